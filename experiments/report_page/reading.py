"""A run read out of an archive for the page: light rows for every candidate, texts for few."""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from archive.codec import load, load_cell, load_estimate, load_text
from archive.mining import Ancestor, ledger, lineage
from archive.run import RunHandle
from archive.store import Store
from evo_l2.contracts import AddStatus, Outcome
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Status
from evo_l2.timing import pooled_estimate
from experiments.config import restore_config
from experiments.report_page.facts import CandidateRow, CellRow, FailureRow, LaterSession, RunFacts, RunRow
from experiments.report_page.replay import grid_history
from experiments.report_page.sheets import choose_sheets
from experiments.seed_names import names_by_digest
from experiments.winners import KernelRow, best_seed, kernel_row, over, short_name

__all__ = ["MOST_RUNS", "read_run", "read_runs"]

MOST_RUNS = 24
"""How many runs are compared, the latest: each has to be put together."""
_FIRST = (
    "(SELECT MIN(t.id) FROM timing_sessions t WHERE t.verdict_id = c.verdict_id AND t.run_id = c.run_id"
    " AND t.log_low IS NOT NULL)"
)
_ROWS = (
    "SELECT c.idx, c.operator, c.outcome, v.status, v.gate, k.digest, c.identity, f.log_ratio, f.log_low, f.log_high,"
    " f.n_blocks, s.log_ratio, s.log_low, s.log_high, s.n_blocks, c.session_id, c.add_status, c.cell, c.seconds, c.created"
    " FROM candidates c JOIN runs r ON r.id = c.run_id LEFT JOIN kernels k ON k.id = c.kernel_id"
    " LEFT JOIN verdicts v ON v.id = c.verdict_id LEFT JOIN timing_sessions s ON s.id = c.session_id"
    f" LEFT JOIN timing_sessions f ON f.id = {_FIRST} WHERE r.name = ? ORDER BY c.idx"
)
_PARENTS = (
    "SELECT c.idx, k.digest FROM candidate_parents p JOIN candidates c ON c.id = p.candidate_id"
    " JOIN runs r ON r.id = c.run_id JOIN kernels k ON k.id = p.kernel_id WHERE r.name = ? ORDER BY c.idx, p.position"
)
_FINALS = (
    "SELECT DISTINCT k.digest FROM timing_sessions s JOIN verdicts v ON v.id = s.verdict_id"
    " JOIN kernels k ON k.id = v.kernel_id JOIN runs r ON r.id = ? AND r.problem_id = v.problem_id"
    " AND r.environment_id = v.environment_id WHERE s.purpose = 'final' AND s.log_low IS NOT NULL"
)


def read_run(store: Store, name: str | None = None) -> RunFacts:
    """All that the page shows of one run; None for the one that was started last.

    Raises:
        StorageError: No such run, or the archive cannot be read.
    """
    run = store.open_run(name)
    rows = _rows(store, run.name)
    names = _names(run)
    seeds = tuple(_seed_row(run, digest, names, rows) for digest in _seed_digests(run, rows))
    best = _best(store, run, names)
    first_seed = best_seed(seeds)
    line = _line(store, best.digest) if best is not None else ()
    failures = _failures(store, run.name, rows)
    cells = tuple(CellRow(e.cell, e.digest, e.estimate) for e in sorted(run.grid.elites.values(), key=lambda e: e.rank))
    sheets = choose_sheets(store, run, rows, names, line, seeds, cells, failures)
    shown = {sheet.digest for sheet in sheets}
    return RunFacts(
        info=store.run_info(run.name),
        rows=rows,
        history=grid_history(run.rewind().grid, rows, _later(run, rows)),
        cells=cells,
        seeds=seeds,
        best=best,
        best_seed=first_seed,
        over_seed=over(best, first_seed),
        is_inherited=best is not None and best.digest not in _made(rows),
        line=line,
        failures=failures,
        ledger=ledger(store, run.name),
        kernels=sheets,
        n_unshown=sum(1 for cell in cells if cell.digest not in shown),
    )


def read_runs(store: Store) -> tuple[RunRow, ...]:
    """The latest runs of the archive (`MOST_RUNS` of them), oldest first.

    Raises:
        StorageError: The archive cannot be read.
    """
    found = []
    for info in store.runs()[-MOST_RUNS:]:
        run = store.open_run(info.name)
        best = _best(store, run, _names(run))
        curve, made = _curve(store, info.name)
        found.append(
            RunRow(
                info.name,
                info.problem_key,
                info.problem_title,
                info.environment.key,
                info.created,
                info.finished,
                info.n_candidates,
                len(run.grid.elites),
                info.schema.n_cells,
                best,
                best is not None and best.digest not in made,
                curve,
            )
        )
    return tuple(found)


def _rows(store: Store, name: str) -> tuple[CandidateRow, ...]:
    parents: dict[int, list[str]] = defaultdict(list)
    for index, digest in store.read(_PARENTS, (name,)):
        parents[index].append(digest)
    return tuple(_row(row, tuple(parents.get(row[0], ()))) for row in store.read(_ROWS, (name,)))


def _row(row: Sequence[Any], parents: tuple[str, ...]) -> CandidateRow:
    index, operator, outcome, status, gate, digest, identity = row[:7]
    session, added, cell, seconds, created = row[15:]
    return CandidateRow(
        index=index,
        operator=operator,
        outcome=Outcome(outcome),
        status=Status(status) if status is not None else None,
        gate=gate,
        digest=digest,
        identity=identity,
        estimate=load_estimate(*row[7:11]),
        early=load_estimate(*row[11:15]),
        is_timed=session is not None,
        added=AddStatus(added),
        cell=load_cell(cell),
        seconds=_finite(load(seconds)),
        created=created,
        parents=parents,
    )


def _finite(seconds: Any) -> dict[str, float]:
    if not isinstance(seconds, dict):
        return {}
    return {k: float(v) for k, v in seconds.items() if isinstance(v, int | float) and math.isfinite(v) and v >= 0}


def _made(rows: Sequence[CandidateRow]) -> set[str | None]:
    return {row.digest for row in rows if row.outcome is Outcome.EVALUATED}


def _names(run: RunHandle) -> dict[str, str]:
    with contextlib.suppress(ConfigurationError):
        return names_by_digest(restore_config(run.config), of_files=False)
    return {}


def _seed_digests(run: RunHandle, rows: Sequence[CandidateRow]) -> tuple[str, ...]:
    """The kernels that opened the run; by their operator where an older or merged archive does not list them."""
    listed = [kernel.digest for kernel in run.seeds()]
    return tuple(dict.fromkeys(listed or [row.digest for row in rows if row.operator == "seed" and row.digest is not None]))


def _seed_row(run: RunHandle, digest: str, names: dict[str, str], rows: Sequence[CandidateRow]) -> KernelRow:
    with contextlib.suppress(KeyError):
        return kernel_row(run.get(digest), names)
    row = next((row for row in rows if row.digest == digest), None)
    status = "not reached" if row is None else (row.status or row.outcome).value
    if status == Status.PASSED.value:
        status = Status.INCONCLUSIVE.value if row is not None and row.estimate is None else "withdrawn"
    return KernelRow(short_name(digest, names), digest, None, False, status)


def _best(store: Store, run: RunHandle, names: dict[str, str]) -> KernelRow | None:
    """As the summary at a run's end has it: the best of those that were measured again after the search, if any was."""
    run_id = store.read("SELECT id FROM runs WHERE name = ?", (run.name,))[0][0]
    finals = {row[0] for row in store.read(_FINALS, (run_id,))}
    for entry in run.grid.ranked() if finals else ():
        if entry.digest in finals:
            row = kernel_row(run.get(entry.digest), names)
            if row.is_final:
                return row
    elite = run.best()
    return kernel_row(elite, names) if elite is not None and elite.estimate is not None else None


def _line(store: Store, digest: str) -> tuple[Ancestor, ...]:
    """First parents from the seed to a kernel."""
    known = {ancestor.digest: ancestor for ancestor in lineage(store, digest)}
    line: list[Ancestor] = []
    at: str | None = digest
    while at is not None and at in known:
        ancestor = known.pop(at)
        line.append(ancestor)
        at = ancestor.parents[0] if ancestor.parents else None
    return tuple(reversed(line))


def _later(run: RunHandle, rows: Sequence[CandidateRow]) -> tuple[LaterSession, ...]:
    """The run's later sessions, each with the estimate over all of the kernel's sessions until then."""
    events = list(run.remeasurements())
    n_own = Counter(event.digest for event in events if event.evaluation.session is not None)
    n_own.update(row.digest for row in rows if row.is_timed and row.digest is not None)
    n_seen = Counter(row.digest for row in rows if row.is_timed and row.digest is not None)
    found = []
    for event in events:
        if event.evaluation.session is None:
            found.append(LaterSession(event.after, event.digest, None, is_withdrawal=True))
            continue
        n_seen[event.digest] += 1
        # A kernel that was withdrawn since has no sessions here; until then its first estimate stands.
        with contextlib.suppress(KeyError):
            sessions = run.get(event.digest).sessions
            until = len(sessions) - n_own[event.digest] + n_seen[event.digest]
            found.append(LaterSession(event.after, event.digest, pooled_estimate(sessions[:until])))
    return tuple(found)


def _failures(store: Store, name: str, rows: Sequence[CandidateRow]) -> tuple[FailureRow, ...]:
    """Ways to fail, the most frequent first."""
    groups: dict[tuple[str, str | None], list[CandidateRow]] = defaultdict(list)
    for row in rows:
        if row.status is not None and not row.status.is_good:
            groups[row.status.value, row.gate].append(row)
        elif not row.has_kernel:
            groups[row.outcome.value, None].append(row)
    found = []
    for (kind, gate), members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0][0], item[0][1] or "")):
        first = members[0]
        (message,) = store.read(
            "SELECT COALESCE(c.message, v.message) FROM candidates c JOIN runs r ON r.id = c.run_id"
            " LEFT JOIN verdicts v ON v.id = c.verdict_id WHERE r.name = ? AND c.idx = ?",
            (name, first.index),
        )[0]
        text = load_text(message) if message is not None else None
        found.append(FailureRow(kind, gate, len(members), first.index, first.digest, text))
    return tuple(found)


def _curve(store: Store, name: str) -> tuple[tuple[tuple[int, float], ...], set[str]]:
    """Where a run's best rose, and the kernels that it brought."""
    points: list[tuple[int, float]] = []
    best, made = -math.inf, set()
    for index, outcome, digest, low in store.read(
        "SELECT c.idx, c.outcome, k.digest, f.log_low FROM candidates c JOIN runs r ON r.id = c.run_id"
        f" LEFT JOIN kernels k ON k.id = c.kernel_id LEFT JOIN timing_sessions f ON f.id = {_FIRST}"
        " WHERE r.name = ? ORDER BY c.idx",
        (name,),
    ):
        if outcome == Outcome.EVALUATED.value and digest is not None:
            made.add(digest)
        if low is not None and low > best:
            best = low
            points.append((index, math.exp(low)))
    return tuple(points), made
