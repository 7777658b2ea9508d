"""What an archive teaches: read-only questions about runs, operators, costs and kernels."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from archive.codec import load_build, load_cell, load_estimate, load_schema, load_text
from archive.run import RunInfo
from archive.store import Store
from archive.tallies import Record
from evo_l2.contracts import Elite, Outcome
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Estimate, Status
from evo_l2.kernel import Kernel

__all__ = [
    "Ancestor",
    "CurvePoint",
    "Judgement",
    "KernelFacts",
    "LedgerLine",
    "OperatorStats",
    "RunStats",
    "curve",
    "ledger",
    "lineage",
    "resolve",
    "show",
    "stats",
    "top",
]


_RIGHT = frozenset({Status.INCONCLUSIVE.value, *(status.value for status in Status if status.is_good)})
_FIRST = "(SELECT MIN(t.id) FROM timing_sessions t WHERE t.verdict_id = c.verdict_id AND t.log_low IS NOT NULL)"
"""The first session of a candidate's kernel whose times can be trusted."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The run's best after one candidate, from each kernel's first conclusive timing session."""

    index: int
    operator: str
    log_low: float | None
    """Lower bound of the candidate's log speed-up; None without objective."""
    best_log_low: float | None
    """The highest lower bound so far, what the run started with not counted; None while there is none."""

    @property
    def best_speedup(self) -> float | None:
        """The same as a speed-up."""
        return math.exp(self.best_log_low) if self.best_log_low is not None else None


@dataclass(frozen=True, slots=True)
class OperatorStats:
    """What one variation operator brought to a run."""

    operator: str
    n_candidates: int
    n_evaluated: int
    n_passed: int
    """Timed or not."""
    n_duplicates: int
    n_without_kernel: int
    """No kernel in the reply, or edits that did not apply."""
    n_outages: int
    n_new_cells: int
    n_improved_cells: int
    n_records: int
    """How often its offspring raised the run's best."""
    gain: float
    """By how much its offspring raised the run's best lower bound, in log speed-up; over all operators it adds up to the
    whole gain over the best seed. 0 for seeds."""
    seconds: float
    """Wall seconds of its candidates."""

    @property
    def validity(self) -> float | None:
        """Share of its evaluated kernels that passed; None where none was evaluated."""
        return self.n_passed / self.n_evaluated if self.n_evaluated else None


@dataclass(frozen=True, slots=True)
class RunStats:
    """A run in numbers."""

    run: RunInfo
    outcomes: Mapping[Outcome, int]
    statuses: Mapping[Status, int]
    """Statuses of the evaluated candidates; `INCONCLUSIVE` are those that passed and could not be timed, now as then."""
    operators: tuple[OperatorStats, ...]
    """In order of first use."""
    n_elites: int
    n_cells: int
    coverage: float
    qd_score: float
    best: Elite | None
    n_bytes: int
    """Size of the whole file."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """What one operator spent at one generator."""

    generator: str
    operator: str
    n_calls: int
    n_errors: int
    n_retries: int
    n_prompt_tokens: int
    n_reply_tokens: int
    cost_usd: float
    latency_s: float
    """Sum over calls of the seconds until the reply; calls of one batch overlap."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A kernel in a line of descent, and the candidate that brought it."""

    digest: str
    depth: int
    """0 for the kernel asked about, 1 for its parents, and so on; the shortest way counts."""
    run: str
    index: int
    operator: str
    parents: tuple[str, ...]
    estimate: Estimate | None
    """From its first session; None when it did not pass."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One kernel in one environment, over all its sessions there and over all runs."""

    problem_title: str
    environment_key: str
    status: Status
    gate: str | None
    message: str | None
    resources: Mapping[str, int | float | str]
    cell: str | None
    """The cell in words; None when it holds no place in a grid."""
    estimate: Estimate | None
    n_sessions: int


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """All that is known of one kernel."""

    kernel: Kernel
    digest: str
    judgements: tuple[Judgement, ...]
    lineage: tuple[Ancestor, ...]


def stats(store: Store, run_name: str | None = None) -> RunStats:
    """A run in numbers; None for the one that was started last.

    Raises:
        StorageError: No such run.
    """
    run = store.open_run(run_name)
    found = store.tallies(run.name)
    outcomes: Counter[Outcome] = Counter()
    statuses: Counter[Status] = Counter()
    tallies: dict[str, Counter[str]] = {operator: Counter() for operator in found.first_indices}
    seconds: Counter[str] = Counter()
    for one in found.tallies:
        outcomes[Outcome(one.outcome)] += one.n
        tally = tallies[one.operator]
        tally.update({"all": one.n, one.outcome: one.n, one.added: one.n})
        if one.status:
            statuses[Status(one.status)] += one.n
            tally[one.status] += one.n
        seconds[one.operator] += one.wall_us
    records, gains = _gains(found.records)
    grid = run.grid
    return RunStats(
        run=store.run_info(run.name),
        outcomes=dict(outcomes),
        statuses=dict(statuses),
        operators=tuple(
            OperatorStats(
                operator=name,
                n_candidates=tally["all"],
                n_evaluated=tally[Outcome.EVALUATED.value],
                n_passed=sum(n for name, n in tally.items() if name in _RIGHT),
                n_duplicates=tally[Outcome.DUPLICATE.value],
                n_without_kernel=tally[Outcome.NO_KERNEL.value] + tally[Outcome.EDIT_FAILED.value],
                n_outages=tally[Outcome.GENERATOR_FAILED.value],
                n_new_cells=tally["new"],
                n_improved_cells=tally["improved"],
                n_records=records[name],
                gain=gains[name],
                seconds=seconds[name] / 1e6,
            )
            for name, tally in tallies.items()
        ),
        n_elites=len(grid.elites),
        n_cells=grid.schema.n_cells,
        coverage=grid.coverage,
        qd_score=grid.qd_score,
        best=run.best(),
        n_bytes=store.n_bytes,
    )


def _gains(found: tuple[Record, ...]) -> tuple[Counter[str], dict[str, float]]:
    """How often, and by how much, each operator raised the best of the seeds and of what came after them."""
    records: Counter[str] = Counter()
    gains: defaultdict[str, float] = defaultdict(float)
    best: float | None = None
    for record in found:
        records[record.operator] += 1
        if best is not None and record.operator != "seed":
            gains[record.operator] += record.log_low - best
        best = record.log_low
    return records, gains


def curve(store: Store, run_name: str | None = None) -> tuple[CurvePoint, ...]:
    """Best so far by candidate index.

    Raises:
        StorageError: No such run.
    """
    name = store.run_info(run_name).name
    points = []
    best: float | None = None
    for index, operator, log_low in store.read(
        "SELECT c.idx, c.operator, s.log_low FROM candidates c JOIN runs r ON r.id = c.run_id"
        f" LEFT JOIN timing_sessions s ON s.id = {_FIRST} WHERE r.name = ? ORDER BY c.idx",
        (name,),
    ):
        if log_low is not None and (best is None or log_low > best):
            best = log_low
        points.append(CurvePoint(index, operator, log_low, best))
    return tuple(points)


def ledger(store: Store, run_name: str | None = None, *, all_runs: bool = False) -> tuple[LedgerLine, ...]:
    """Cost by generator and operator: of one run (None for the last), or of the whole file.

    Raises:
        StorageError: No such run.
    """
    where = "" if all_runs else "WHERE run = ?"
    parameters = () if all_runs else (store.run_info(run_name).name,)
    rows = store.read(
        "SELECT generator, operator, COUNT(*), COUNT(error), SUM(n_retries), SUM(n_prompt_tokens), SUM(n_reply_tokens),"
        f" SUM(cost_usd), SUM(latency_s) FROM v_model_calls {where} GROUP BY generator, operator"
        " ORDER BY generator, operator",
        parameters,
    )
    return tuple(LedgerLine(*row) for row in rows)


def top(store: Store, run_name: str | None = None, *, count: int = 10) -> tuple[Elite, ...]:
    """The best kernels that a run sees, elites or not, the highest lower bound first.

    Raises:
        StorageError: No such run.
    """
    return tuple(islice(store.open_run(run_name).ranked(), count))


def resolve(store: Store, prefix: str) -> str:
    """The digest that starts with a prefix.

    Raises:
        ConfigurationError: No kernel's digest does, or several do.
    """
    expected = "the first digits of one kernel's digest"
    if not prefix or not set(prefix) <= set("0123456789abcdef"):
        raise ConfigurationError("no such kernel", expected=expected, found=repr(prefix), hint="evo-l2 archive top")
    rows = store.read("SELECT digest FROM kernels WHERE digest >= ? AND digest < ? LIMIT 3", (prefix, prefix + "g"))
    if len(rows) != 1:
        found = f"{prefix}, which {'several start with' if rows else 'none starts with'}"
        raise ConfigurationError("no such kernel", expected=expected, found=found, hint="evo-l2 archive top")
    return str(rows[0][0])


def show(store: Store, prefix: str) -> KernelFacts:
    """All that is known of a kernel, over all runs.

    Raises:
        ConfigurationError: The prefix does not name one kernel.
    """
    digest = resolve(store, prefix)
    source, target = store.read("SELECT source, target FROM kernels WHERE digest = ?", (digest,))[0]
    rows = store.read(
        "SELECT p.title, e.key, v.status, v.gate, v.message, v.build, t.cell, m.axes, t.log_ratio, t.log_low, t.log_high,"
        " t.n_blocks, (SELECT COUNT(*) FROM timing_sessions s WHERE s.verdict_id = v.id)"
        " FROM verdicts v JOIN kernels k ON k.id = v.kernel_id JOIN problems p ON p.id = v.problem_id"
        " JOIN environments e ON e.id = v.environment_id LEFT JOIN standings t ON t.problem_id = v.problem_id"
        " AND t.environment_id = v.environment_id AND t.identity = v.identity AND v.status = 'passed'"
        " LEFT JOIN measures_schemas m ON m.id = t.schema_id WHERE k.digest = ? ORDER BY v.id",
        (digest,),
    )
    return KernelFacts(
        Kernel(load_text(source), target), digest, tuple(_judgement(row) for row in rows), lineage(store, digest)
    )


def _judgement(row: Sequence[Any]) -> Judgement:
    title, environment, status, gate, message, build, text, axes, *estimate, n_sessions = row
    report, cell = load_build(build), load_cell(text)
    return Judgement(
        problem_title=title,
        environment_key=environment,
        status=Status(status),
        gate=gate,
        message=load_text(message) if message is not None else None,
        resources=report.resources if report is not None else {},
        cell=load_schema(axes).describe(cell) if cell is not None else None,
        estimate=load_estimate(*estimate),
        n_sessions=n_sessions,
    )


def lineage(store: Store, prefix: str) -> tuple[Ancestor, ...]:
    """A kernel and its ancestors, the nearest first; seeds have no parents.

    A kernel that several runs brought has the parents that it had the first time.

    Raises:
        ConfigurationError: The prefix does not name one kernel.
    """
    line: list[Ancestor] = []
    level = [resolve(store, prefix)]
    seen = set(level)
    depth = 0
    while level:
        born = [_born(store, digest, depth) for digest in level]
        line.extend(ancestor for ancestor in born if ancestor is not None)
        parents = [parent for ancestor in born if ancestor is not None for parent in ancestor.parents]
        level = [parent for parent in dict.fromkeys(parents) if parent not in seen]
        seen.update(level)
        depth += 1
    return tuple(line)


def _born(store: Store, digest: str, depth: int) -> Ancestor | None:
    """The candidate that first brought a kernel; None for one that no run has told yet."""
    rows = store.read(
        "SELECT c.id, r.name, c.idx, c.operator, s.log_ratio, s.log_low, s.log_high, s.n_blocks FROM candidates c"
        " JOIN kernels k ON k.id = c.kernel_id JOIN runs r ON r.id = c.run_id"
        f" LEFT JOIN timing_sessions s ON s.id = {_FIRST} WHERE k.digest = ? ORDER BY c.id LIMIT 1",
        (digest,),
    )
    if not rows:
        return None
    key, run, index, operator, *estimate = rows[0]
    parents = store.read(
        "SELECT k.digest FROM candidate_parents p JOIN kernels k ON k.id = p.kernel_id WHERE p.candidate_id = ?"
        " ORDER BY p.position",
        (key,),
    )
    return Ancestor(digest, depth, run, index, operator, tuple(row[0] for row in parents), load_estimate(*estimate))
