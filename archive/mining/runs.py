"""Runs in numbers: outcomes, operators, the best so far, and cost."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from archive.mining.sessions import FIRST
from archive.run import RunInfo
from archive.store import Store
from archive.tallies import Record
from evo_l2.contracts import Elite, Outcome
from evo_l2.evaluation import Status

__all__ = ["CurvePoint", "LedgerLine", "OperatorStats", "RunStats", "curve", "ledger", "stats"]

_RIGHT = frozenset({Status.INCONCLUSIVE.value, *(status.value for status in Status if status.is_good)})


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
        f" LEFT JOIN timing_sessions s ON s.id = {FIRST} WHERE r.name = ? ORDER BY c.idx",
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
