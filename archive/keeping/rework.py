"""What follows from an archive's rows, worked out from nothing but them: standings, and what every addition did."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from archive.codec import load_cell, load_estimate, load_measures, load_schema
from archive.grid import Entry, Grid
from archive.keeping.findings import UNREADABLE, pages
from archive.reading import read_sessions
from archive.store import Store
from evo_l2.contracts import AddResult, AddStatus
from evo_l2.evaluation import Estimate, Status
from evo_l2.measures import Cell, MeasuresSchema
from evo_l2.timing import pooled_estimate

__all__ = ["Judged", "Material", "RunFrame", "Standing", "Timed", "expected_standings", "replay_results"]

_GOOD = {status.value for status in Status if status.is_good}


@dataclass(frozen=True, slots=True)
class Timed:
    """A timing session, without its samples."""

    key: int
    verdict: int
    run: int
    ordinal: int
    """How many sessions of its run came before."""
    after: int
    index: int | None
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, as far as standings follow from it."""

    key: int
    kernel: int
    digest: str
    run: int
    ordinal: int
    """How many verdicts of its run came before."""
    attempt: int
    identity: str | None
    status: str
    measures: tuple[float | None, ...] | None
    after: int | None


@dataclass(frozen=True, slots=True)
class RunFrame:
    """A run's place in the file, and what it saw when it was started."""

    key: int
    name: str
    schema: MeasuresSchema
    base_verdict: int
    base_session: int
    bases: Mapping[int, tuple[int, int]]
    """Of a merged run: how many verdicts and sessions it had seen of other runs."""
    merged: bool

    def sees_verdict(self, verdict: Judged) -> bool:
        """Whether the verdict was there when the run was started."""
        if self.merged:
            return verdict.ordinal < self.bases.get(verdict.run, (0, 0))[0]
        return verdict.key <= self.base_verdict

    def sees_session(self, session: Timed) -> bool:
        """Whether the session was there when the run was started."""
        if self.merged:
            return session.ordinal < self.bases.get(session.run, (0, 0))[1]
        return session.key <= self.base_session


@dataclass(slots=True)
class Material:
    """All verdicts and sessions of one problem in one environment, in order of id."""

    problem: int
    environment: int
    verdicts: list[Judged] = field(default_factory=list)
    sessions: dict[int, list[Timed]] = field(default_factory=lambda: defaultdict(list))
    """By verdict."""
    later: dict[int, list[Timed]] = field(default_factory=lambda: defaultdict(list))
    """Sessions that are not a candidate's first, by run."""
    runs: list[RunFrame] = field(default_factory=list)

    @classmethod
    def read(cls, store: Store) -> dict[tuple[int, int], Material]:
        """Everything in the file, by problem and environment."""
        found: dict[tuple[int, int], Material] = {}
        places: dict[int, Material] = {}
        counts: dict[int, int] = defaultdict(int)
        sql = (
            "SELECT v.id, v.kernel_id, k.digest, v.run_id, v.attempt, v.identity, v.status, v.measures, v.after,"
            " v.problem_id, v.environment_id FROM verdicts v JOIN kernels k ON k.id = v.kernel_id WHERE v.id > ?"
        )
        for key, kernel, digest, run, attempt, identity, status, text, after, problem, environment in pages(store, sql):
            place = found.setdefault((problem, environment), cls(problem, environment))
            places[key] = place
            try:
                measures = load_measures(text)
            except UNREADABLE:
                measures = None
            place.verdicts.append(Judged(key, kernel, digest, run, counts[run], attempt, identity, status, measures, after))
            counts[run] += 1
        counts.clear()
        sql = (
            "SELECT id, verdict_id, run_id, after, candidate_index, log_ratio, log_low, log_high, n_blocks"
            " FROM timing_sessions WHERE id > ?"
        )
        for key, verdict, run, after, index, *estimate in pages(store, sql):
            session = Timed(key, verdict, run, counts[run], after, index, load_estimate(*estimate))
            counts[run] += 1
            if verdict in places:
                places[verdict].sessions[verdict].append(session)
                if index is None:
                    places[verdict].later[run].append(session)
        cls._read_runs(store, found)
        return found

    @classmethod
    def _read_runs(cls, store: Store, found: dict[tuple[int, int], Material]) -> None:
        bases: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        for run, seen, n_verdicts, n_sessions in store.read(
            "SELECT run_id, seen_run_id, n_verdicts, n_sessions FROM run_bases ORDER BY run_id, seen_run_id"
        ):
            bases[run][seen] = (n_verdicts, n_sessions)
        for key, name, problem, environment, axes, base_verdict, base_session, merged in store.read(
            "SELECT r.id, r.name, r.problem_id, r.environment_id, m.axes, r.base_verdict, r.base_session, r.merged"
            " FROM runs r JOIN measures_schemas m ON m.id = r.schema_id ORDER BY r.id"
        ):
            place = found.setdefault((problem, environment), cls(problem, environment))
            try:
                schema = load_schema(axes)
            except UNREADABLE:
                continue
            place.runs.append(RunFrame(key, name, schema, base_verdict, base_session, bases.get(key, {}), merged is not None))


# --- standings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """What one kernel's standing has to be."""

    identity: str
    kernel: int
    digest: str
    verdict: int
    measures: tuple[float | None, ...] | None
    estimate: Estimate | None
    """None for a kernel that is good and whose times are not known."""
    n_sessions: int
    is_run: bool

    def cell(self, schema: MeasuresSchema) -> Cell | None:
        """Its cell on these axes."""
        fits = self.measures is not None and len(self.measures) == len(schema.axes)
        return schema.cell(self.measures) if fits and self.measures is not None else None


def expected_standings(store: Store, material: Material) -> Iterator[Standing | str]:
    """One standing for each kernel that is good and was never found otherwise; its identity where samples cannot be read."""
    statuses: dict[int, set[str]] = defaultdict(set)
    for verdict in material.verdicts:
        statuses[verdict.kernel].add(verdict.status)
    members: dict[str, list[Judged]] = defaultdict(list)
    for verdict in material.verdicts:
        if verdict.identity is not None and verdict.status in _GOOD and len(statuses[verdict.kernel]) == 1:
            members[verdict.identity].append(verdict)
    for identity in sorted(members):
        rows = sorted(members[identity], key=lambda row: (row.digest, row.key))
        passed = [row for row in rows if row.status == Status.PASSED.value]
        sessions = [s for row in passed for s in material.sessions.get(row.key, ()) if s.estimate is not None]
        try:
            estimate = _pool(store, sessions)
        except UNREADABLE:
            yield identity
            continue
        first = (passed or rows)[0]
        yield Standing(
            identity, first.kernel, first.digest, first.key, first.measures, estimate, len(sessions), is_run=bool(passed)
        )


def _pool(store: Store, sessions: Sequence[Timed]) -> Estimate | None:
    """The estimate over all sessions; that of a single one is stored with it, and checked by itself."""
    conclusive = [session for session in sessions if session.estimate is not None]
    if len(conclusive) <= 1:
        return conclusive[0].estimate if conclusive else None
    return pooled_estimate(read_sessions(store._database, sorted(session.key for session in conclusive)))


# --- what every addition did ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sight:
    """A kernel that passed, as a run sees it."""

    identity: str
    digest: str
    cell: Cell | None
    sessions: list[Timed]
    is_run: bool


class _Replay:
    """One run's grid, from what it started with through all that it added."""

    def __init__(self, store: Store, material: Material, run: RunFrame) -> None:
        self._store = store
        self._schema = run.schema
        self.grid = Grid(run.schema)
        self._passed: dict[str, _Sight] = {}
        self._start(material, run)

    def _start(self, material: Material, run: RunFrame) -> None:
        """What the run found: kernels that passed and never failed, as far as it saw."""
        seen = [verdict for verdict in material.verdicts if run.sees_verdict(verdict)]
        failed = {verdict.digest for verdict in seen if verdict.status not in _GOOD}
        members: dict[str, list[Judged]] = defaultdict(list)
        for verdict in seen:
            if verdict.digest not in failed and verdict.identity is not None:
                members[verdict.identity].append(verdict)
        for identity, rows in members.items():
            rows.sort(key=lambda row: (row.digest, row.attempt))
            sessions = [s for row in rows for s in material.sessions.get(row.key, ()) if run.sees_session(s)]
            is_run = any(row.status == Status.PASSED.value for row in rows)
            sight = _Sight(identity, rows[0].digest, self._cell(rows[0].measures), sessions, is_run)
            for row in rows:
                self._passed[row.digest] = sight
            self._put(sight)

    def _cell(self, measures: tuple[float | None, ...] | None) -> Cell | None:
        if measures is None or len(measures) != len(self._schema.axes):
            return None
        return self._schema.cell(measures)

    def _put(self, sight: _Sight) -> None:
        try:
            estimate = _pool(self._store, sight.sessions)
        except UNREADABLE:
            estimate = None
        self.grid.drop(sight.identity)
        if sight.cell is not None and (estimate is not None or not sight.is_run):
            self.grid.put(Entry(sight.digest, sight.identity, sight.cell, estimate))

    def add(self, verdict: Judged, session: Timed | None, identity: str | None) -> AddResult:
        """What an evaluated candidate does."""
        cell = self._cell(verdict.measures)
        if verdict.status not in _GOOD or identity is None or cell is None:
            return AddResult(AddStatus.NOT_ADDED, None)
        sight = _Sight(identity, verdict.digest, cell, [session] if session is not None else [], session is not None)
        self._passed[verdict.digest] = sight
        estimate = session.estimate if session is not None else None
        if session is not None and estimate is None:
            return AddResult(AddStatus.NOT_ADDED, None, cell)
        entry = Entry(verdict.digest, identity, cell, estimate)
        result = self.grid.preview(entry)
        self.grid.put(entry)
        return result

    def measured_again(self, digest: str, session: Timed) -> None:
        """A later session."""
        sight = self._passed.get(digest)
        if sight is not None:
            sight.sessions.append(session)
            self._put(sight)

    def withdraw(self, digest: str) -> None:
        """A failure of a kernel that had passed."""
        sight = self._passed.get(digest)
        if sight is not None:
            self.grid.drop(sight.identity)
            self._passed = {name: other for name, other in self._passed.items() if other is not sight}


def replay_results(store: Store, material: Material, run: RunFrame) -> Iterator[tuple[int, AddResult, AddResult]]:
    """Index, stored result and result worked out again, for every candidate of a run whose two results differ."""
    replay = _Replay(store, material, run)
    verdicts = {verdict.key: verdict for verdict in material.verdicts}
    sessions = {s.key: s for rows in material.sessions.values() for s in rows if s.run == run.key}
    again = sorted(material.later.get(run.key, ()), key=lambda session: (session.after, session.key))
    gone = sorted(
        (v for v in material.verdicts if v.run == run.key and v.after is not None), key=lambda v: (v.after or 0, v.key)
    )
    take_sessions = _until(again, lambda session: session.after)
    take_withdrawals = _until(gone, lambda verdict: verdict.after or 0)
    columns = "idx, verdict_id, session_id, identity, add_status, add_value, cell"
    sql = f"SELECT {columns} FROM candidates WHERE run_id = ? AND idx > ?"
    for index, verdict_id, session_id, identity, status, value, cell in pages(store, sql, (run.key,)):
        for session in take_sessions(index):
            replay.measured_again(verdicts[session.verdict].digest, session)
        for verdict in take_withdrawals(index):
            replay.withdraw(verdict.digest)
        try:
            stored = AddResult(AddStatus(status), value, load_cell(cell))
        except UNREADABLE:
            continue
        found = AddResult(AddStatus.NOT_ADDED, None)
        if verdict_id in verdicts:
            found = replay.add(verdicts[verdict_id], sessions.get(session_id), identity)
        if not _equal(stored, found):
            yield index, stored, found


def _until(rows: Iterable[Timed | Judged] | Sequence, after: Callable) -> Callable:  # type: ignore[type-arg]
    """A function that gives, each once, the rows that were filed by the time that so many candidates had been told."""
    waiting = list(rows)[::-1]

    def take(n_told: int) -> Iterator[Timed | Judged]:
        while waiting and after(waiting[-1]) <= n_told:
            yield waiting.pop()

    return take


def _equal(one: AddResult, other: AddResult) -> bool:
    if (one.status, one.cell, one.value is None) != (other.status, other.cell, other.value is None):
        return False
    return one.value is None or other.value is None or math.isclose(one.value, other.value, rel_tol=1e-6, abs_tol=1e-9)
