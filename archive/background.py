"""What a run finds in its file and leaves there: looked up row by row, as it was when the run was started."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain
from typing import Any

from archive.codec import dump, load_cell, load_estimate, load_measures, load_text
from archive.database import Database
from archive.grid import Entry
from archive.reading import GOOD, VERDICT, load_verdict, read_sessions
from archive.rows import Scope
from archive.standings import has_other_axes
from archive.view import Passed, View
from evo_l2.evaluation import Estimate, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.measures import Cell, MeasuresSchema
from evo_l2.timing import pooled_estimate

__all__ = ["StoredRecords", "stored_view"]

_PAGE = 200
_FIRST_PAGE = 4


def stored_view(database: Database, scope: Scope, schema: MeasuresSchema, *, own: bool, whole: bool = False) -> View:
    """The view of a run: what it found when it was started and, if `own`, what it added since.

    The grid comes from the standings, which hold what all runs know, corrected where that is more than this run may see.
    Where the standings are those of other axes, or where `whole` asks for it, everything is read instead, which comes to
    the same and takes long.
    """
    sight = _Sight(database, scope, scope.run_id if own else -1)
    records = StoredRecords(database, sight)
    if whole or has_other_axes(database, scope.problem_id, scope.environment_id, scope.schema_id):
        view = View(schema, records)
        for one in sight.read(None):
            view.load_passed(one)
    else:
        background = _StoredBackground(database, sight)
        view = View(schema, records, background)
        background.attach(view)
        records.background = background
    if own:
        last = database.read("SELECT MAX(idx) FROM candidates WHERE run_id = ?", (scope.run_id,))[0][0]
        view.n_candidates = 0 if last is None else int(last) + 1
    return view


class _Sight:
    """Which rows a run sees, and what they say of the kernels that passed."""

    def __init__(self, database: Database, scope: Scope, run_id: int) -> None:
        self._database = database
        self.scope = scope
        self.run_id = run_id
        """-1 for a run without its own rows."""

    @property
    def place(self) -> tuple[int, int]:
        """Problem and environment."""
        return (self.scope.problem_id, self.scope.environment_id)

    def verdicts(self, sql: str, parameters: Sequence[object]) -> list[Any]:
        """Rows of `v` (verdicts), `k` (their kernels) and `c` (this run's candidates) that the run sees.

        Args:
            sql: A query with `{seen}` in place of the tables and their condition.
            parameters: Those after the ones of `{seen}`.
        """
        seen = (
            "FROM verdicts v JOIN kernels k ON k.id = v.kernel_id LEFT JOIN candidates c ON c.kernel_id = v.kernel_id"
            " AND c.verdict_id = v.id AND c.run_id = ? WHERE v.problem_id = ? AND v.environment_id = ?"
            f" AND (v.id <= {self.scope.last_verdict('v.run_id')} OR c.id IS NOT NULL"
            " OR v.run_id = ? AND v.after IS NOT NULL)"
        )
        first = (self.run_id, *self.place, self.run_id)
        return self._database.read(sql.format(seen=seen), (*first, *parameters))

    def read(self, identities: Sequence[str] | None) -> list[Passed]:
        """Every identity that passed; all, or some only."""
        only = ""
        parameters: tuple[object, ...] = ()
        if identities is not None:
            marks = ",".join("?" * len(identities))
            only = (
                " AND v.kernel_id IN (SELECT w.kernel_id FROM verdicts w WHERE w.problem_id = ? AND w.environment_id = ?"
                f" AND w.identity IN ({marks}))"
            )
            parameters = (*self.place, *identities)
        rows = self.verdicts(
            "SELECT v.id, k.digest, v.identity, v.status, v.measures, c.id IS NOT NULL,"
            f" v.run_id = {int(self.run_id)} AND v.after IS NOT NULL {{seen}}{only}"
            f" ORDER BY k.digest, CASE WHEN v.status IN ({GOOD}) THEN 1 ELSE 0 END, v.attempt",
            parameters,
        )
        failed: set[str] = set()
        withdrawn: set[str] = set()
        passed: dict[str, list[tuple[str, int, str | None]]] = defaultdict(list)
        run_here: set[str] = set()
        for key, digest, identity, status, measures, mine, withdraws in rows:
            if not Status(status).is_good:
                (withdrawn if withdraws else failed).add(digest)
            elif digest in withdrawn:
                continue
            elif mine or digest not in failed:
                passed[identity].append((digest, key, measures))
                if status == Status.PASSED.value:
                    run_here.add(identity)
        if identities is not None:
            passed = defaultdict(list, {identity: passed[identity] for identity in identities if identity in passed})
        timings = self._timings(None if identities is None else [key for one in passed.values() for _, key, _ in one])
        found = []
        for identity, members in passed.items():
            keys = sorted(row for _, verdict, _ in members for row in timings.get(verdict, ()))
            digests = tuple(dict.fromkeys(digest for digest, _, _ in members))
            estimate = _pooled(self._database, keys)
            sessions = tuple(key for key, _ in keys)
            found.append(
                Passed(identity, digests, load_measures(members[0][2]), sessions, estimate, is_run=identity in run_here)
            )
        return found

    def _timings(self, verdicts: Sequence[int] | None) -> dict[int, list[_Timing]]:
        """Ids and estimates of the sessions that the run sees, by verdict."""
        found: dict[int, list[_Timing]] = defaultdict(list)
        if verdicts is not None and not verdicts:
            return found
        only = "" if verdicts is None else f" AND s.verdict_id IN ({','.join('?' * len(verdicts))})"
        for verdict, key, *estimate in self._database.read(
            "SELECT s.verdict_id, s.id, s.log_ratio, s.log_low, s.log_high, s.n_blocks FROM timing_sessions s"
            " JOIN verdicts v ON v.id = s.verdict_id WHERE v.problem_id = ? AND v.environment_id = ?"
            f" AND (s.id <= {self.scope.last_session('s.run_id')} OR s.run_id = ?){only}",
            (*self.place, self.run_id, *(verdicts or ())),
        ):
            found[verdict].append((key, load_estimate(*estimate)))
        return found


_Timing = tuple[int, Estimate | None]


def _pooled(database: Database, timings: Sequence[_Timing]) -> Estimate | None:
    """The estimate over all sessions; that of a single conclusive session is stored with it."""
    conclusive = [(key, estimate) for key, estimate in timings if estimate is not None]
    if len(conclusive) <= 1:
        return conclusive[0][1] if conclusive else None
    return pooled_estimate(read_sessions(database, [key for key, _ in conclusive]))


class StoredRecords:
    """Sources, verdicts and samples of the kernels that a run sees, read when they are asked for."""

    def __init__(self, database: Database, sight: _Sight) -> None:
        self._database = database
        self._sight = sight
        self.background: _StoredBackground | None = None

    def kernel(self, digest: str) -> tuple[Kernel, Verdict]:
        """A kernel that passed in this run, or in those before it, and its verdict.

        A rewound run is told only what it has stored, so its own rows count here whatever it was told so far.
        """
        scope = self._sight.scope
        rows = self._database.read(
            f"SELECT k.source, k.target, {VERDICT} FROM kernels k JOIN verdicts v ON v.kernel_id = k.id"
            " LEFT JOIN candidates c ON c.kernel_id = k.id AND c.verdict_id = v.id AND c.run_id = ?"
            " WHERE k.digest = ? AND v.problem_id = ? AND v.environment_id = ?"
            f" AND v.status IN ({GOOD}) AND (v.id <= {scope.last_verdict('v.run_id')} OR c.id IS NOT NULL)"
            " ORDER BY CASE WHEN c.id IS NULL THEN 1 ELSE 0 END, v.id LIMIT 1",
            (scope.run_id, digest, scope.problem_id, scope.environment_id),
        )
        source, target, *verdict = rows[0]
        return Kernel(load_text(source), target), load_verdict(verdict)

    def sessions(self, keys: Sequence[int]) -> tuple[TimingSession, ...]:
        """Timing sessions by id."""
        return read_sessions(self._database, keys)

    def known(self, digest: str) -> str | None:
        """The judged kernel that a source is, or repeats."""
        rows = self._database.read("SELECT id FROM kernels WHERE digest = ?", (digest,))
        if not rows:
            return None
        key = rows[0][0]
        if self._sight.verdicts("SELECT v.id {seen} AND v.kernel_id = ? LIMIT 1", (key,)):
            return digest
        originals = self._database.read(
            "SELECT o.digest FROM candidates c JOIN runs r ON r.id = c.run_id JOIN kernels o ON o.id = c.duplicate_of"
            " WHERE c.kernel_id = ? AND r.problem_id = ? AND r.environment_id = ?"
            f" AND (c.id <= {self._sight.scope.last_candidate('c.run_id')} OR c.run_id = ?) ORDER BY c.id LIMIT 1",
            (key, *self._sight.place, self._sight.run_id),
        )
        return str(originals[0][0]) if originals else None

    def identified(self, identity: str) -> str | None:
        """The smallest digest of the judged kernels of an identity."""
        place = self._sight.place
        if not self._database.read(
            "SELECT 1 FROM verdicts WHERE identity = ? AND problem_id = ? AND environment_id = ? LIMIT 1", (identity, *place)
        ):
            return None
        rows = self._sight.verdicts("SELECT k.digest {seen} AND v.identity = ? ORDER BY k.digest LIMIT 1", (identity,))
        return str(rows[0][0]) if rows else None

    def passed(self, digest: str) -> Iterable[Passed]:
        """A source that passed, with all that is stored of its identity; nothing when it did not pass."""
        rows = self._sight.verdicts(f"SELECT v.identity {{seen}} AND k.digest = ? AND v.status IN ({GOOD})", (digest,))
        identities = [row[0] for row in rows]
        return [one for one in self._sight.read(identities) if digest in one.digests] if identities else ()

    def untimed(self) -> Iterable[Passed]:
        """Kernels that passed and have no conclusive session."""
        rows = self._pending()
        while self.background is not None and self.background.absorb():
            rows = self._pending()
        for start in range(0, len(rows), _PAGE):
            for one in self._sight.read([row[0] for row in rows[start : start + _PAGE]]):
                if one.estimate is None and one.is_run:
                    yield one

    def _pending(self) -> list[Any]:
        return self._sight.verdicts(
            "SELECT DISTINCT v.identity {seen} AND v.id IN (SELECT p.verdict_id FROM pending p WHERE p.problem_id = ?"
            " AND p.environment_id = ? AND p.is_run = 1)",
            self._sight.place,
        )


class _StoredBackground:
    """The kernels that a run sees, as a grid's background.

    An identity that is known from one verdict and one session stands in the standings as the run sees it, if it sees it at
    all. What more than one row speaks of is listed in `revisits`; where the run does not see all of these rows, the identity
    is worked out from those that it does see, and put into the view.
    """

    def __init__(self, database: Database, sight: _Sight) -> None:
        self._database = database
        self._sight = sight
        self._view: View | None = None
        self._mark = 0
        self._is_loaded = False

    def attach(self, view: View) -> None:
        """Names the view that this is the background of, and corrects it."""
        self._view = view
        self.absorb()

    def elites(self) -> Iterator[Entry]:
        """The best entry of every cell."""
        for cell in self._cells():
            entry = next(self._of_cell(cell), None)
            if entry is not None:
                yield entry

    def best(self, cell: Cell, taken: Container[str]) -> Entry | None:
        """The best entry of a cell whose identity is not among those taken."""
        while not self._is_loaded:
            self.absorb()
            found = next((entry for entry in self._of_cell(dump(cell)) if entry.identity not in taken), None)
            # Another run may have spoken of what was just read, or placed it by other axes.
            if self._has_other_axes():
                self._load()
            elif self._last_revisit() == self._mark:
                return found
        return None

    def ranked(self, taken: Collection[str]) -> Iterator[Entry]:
        """Every entry whose identity is not among those taken, the best first."""
        self.absorb()
        if not self._is_loaded and self._has_other_axes():
            self._load()
        if self._is_loaded:
            return iter(())
        hidden = frozenset(taken)
        entries = merge(*(self._of_cell(cell) for cell in self._cells()), key=lambda entry: entry.rank)
        return (entry for entry in entries if entry.identity not in hidden)

    def _has_other_axes(self) -> bool:
        return has_other_axes(self._database, *self._sight.place, self._sight.scope.schema_id)

    def _load(self) -> None:
        """Puts everything into the view; from then on there is no background."""
        self._is_loaded = True
        assert self._view is not None
        for one in self._sight.read(None):
            if not self._view.holds(one.identity):
                self._view.load_passed(one)

    def _cells(self) -> tuple[str, ...]:
        """Every cell that some kernel is in; each costs one step through the index."""
        place = (*self._sight.place, self._sight.scope.schema_id)
        found: set[str] = set()
        for table, kind in (("standings", ""), ("pending", " AND is_run = 0")):
            where = f"FROM {table} WHERE problem_id = ? AND environment_id = ? AND schema_id = ?{kind}"
            rows = self._database.read(
                f"WITH RECURSIVE cells (cell) AS (SELECT MIN(cell) {where} UNION ALL"
                f" SELECT (SELECT MIN(cell) {where} AND cell > cells.cell) FROM cells WHERE cells.cell IS NOT NULL)"
                " SELECT cell FROM cells WHERE cell IS NOT NULL",
                (*place, *place),
            )
            found.update(row[0] for row in rows)
        return tuple(sorted(found))

    def _of_cell(self, cell: str) -> Iterator[Entry]:
        """The entries of a cell, the best first."""
        return chain(self._timed(cell), self._built(cell))

    def _timed(self, cell: str) -> Iterator[Entry]:
        place = (*self._sight.place, self._sight.scope.schema_id, cell)
        further = ""
        after: tuple[object, ...] = ()
        size = _FIRST_PAGE
        while True:
            rows = self._database.read(
                "SELECT t.identity, k.digest, t.log_ratio, t.log_low, t.log_high, t.n_blocks FROM standings t"
                " JOIN kernels k ON k.id = t.kernel_id JOIN verdicts v ON v.id = t.verdict_id"
                " WHERE t.problem_id = ? AND t.environment_id = ? AND t.schema_id = ? AND t.cell = ?"
                f" AND (v.id <= {self._sight.scope.last_verdict('v.run_id')} OR v.run_id = ?){further}"
                " ORDER BY t.log_low DESC, k.digest LIMIT ?",
                (*place, self._sight.run_id, *after, size),
            )
            yield from (Entry(row[1], row[0], _known(load_cell(cell)), load_estimate(*row[2:])) for row in rows)
            if len(rows) < size:
                return
            further = " AND t.log_low <= ? AND (t.log_low < ? OR k.digest > ?)"
            after = (rows[-1][3], rows[-1][3], rows[-1][1])
            size = _PAGE

    def _built(self, cell: str) -> Iterator[Entry]:
        place = (*self._sight.place, self._sight.scope.schema_id, cell)
        after = ""
        size = _FIRST_PAGE
        while True:
            rows = self._database.read(
                "SELECT t.identity, t.digest FROM pending t JOIN verdicts v ON v.id = t.verdict_id"
                " WHERE t.problem_id = ? AND t.environment_id = ? AND t.schema_id = ? AND t.is_run = 0 AND t.cell = ?"
                f" AND t.digest > ? AND (v.id <= {self._sight.scope.last_verdict('v.run_id')} OR v.run_id = ?)"
                " ORDER BY t.digest LIMIT ?",
                (*place, after, self._sight.run_id, size),
            )
            yield from (Entry(digest, identity, _known(load_cell(cell)), None) for identity, digest in rows)
            if len(rows) < size:
                return
            after = rows[-1][1]
            size = _PAGE

    def _last_revisit(self) -> int:
        rows = self._database.read(
            "SELECT id FROM revisits WHERE problem_id = ? AND environment_id = ? ORDER BY id DESC LIMIT 1", self._sight.place
        )
        return int(rows[0][0]) if rows else 0

    def absorb(self) -> bool:
        """Works out the identities of which the run sees only some rows, since the last time; whether there was any."""
        last = self._last_revisit()
        if last <= self._mark or self._view is None:
            return False
        since, self._mark = self._mark, last
        scope, run_id = self._sight.scope, self._sight.run_id
        rows = self._database.read(
            "SELECT x.identity FROM revisits x WHERE x.problem_id = ? AND x.environment_id = ? AND x.id > ? AND x.id <= ?"
            " AND EXISTS (SELECT 1 FROM verdicts v WHERE v.identity = x.identity AND v.problem_id = x.problem_id"
            f" AND v.environment_id = x.environment_id AND (v.id <= {scope.last_verdict('v.run_id')} OR v.run_id = ?"
            " OR EXISTS (SELECT 1 FROM candidates c"
            " WHERE c.kernel_id = v.kernel_id AND c.verdict_id = v.id AND c.run_id = ?)))"
            " AND EXISTS (SELECT 1 FROM verdicts v JOIN verdicts w ON w.kernel_id = v.kernel_id"
            " AND w.problem_id = v.problem_id AND w.environment_id = v.environment_id"
            " LEFT JOIN timing_sessions s ON s.verdict_id = w.id WHERE v.identity = x.identity"
            " AND v.problem_id = x.problem_id AND v.environment_id = x.environment_id"
            f" AND (w.status = 'built' OR w.id > {scope.last_verdict('w.run_id')} AND w.run_id <> ?"
            f" OR s.id > {scope.last_session('s.run_id')} AND s.run_id <> ?))",
            (*self._sight.place, since, last, run_id, run_id, run_id, run_id),
        )
        identities = [row[0] for row in rows if not self._view.holds(row[0])]
        for start in range(0, len(identities), _PAGE):
            page = identities[start : start + _PAGE]
            found = {one.identity: one for one in self._sight.read(page)}
            for identity in page:
                if identity in found:
                    self._view.load_passed(found[identity])
                else:
                    self._view.load_gone(identity)
        return True


def _known(cell: Cell | None) -> Cell:
    assert cell is not None
    return cell
