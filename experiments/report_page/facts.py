"""What the page says about a run, as plain data: the reading half makes it, the writing half shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from archive.mining import Ancestor, LedgerLine
from archive.run import RunInfo
from evo_l2.contracts import AddStatus, Outcome
from evo_l2.evaluation import Estimate, Status, TimingSession
from evo_l2.measures import Cell
from experiments.winners import KernelRow, Ratio

__all__ = [
    "CandidateRow",
    "CellRow",
    "FailureRow",
    "GridPoint",
    "KernelSheet",
    "LaterSession",
    "RunFacts",
    "RunRow",
]


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate without its texts."""

    index: int
    operator: str
    outcome: Outcome
    status: Status | None = None
    """The verdict's; None for what was not evaluated."""
    gate: str | None = None
    digest: str | None = None
    identity: str | None = None
    estimate: Estimate | None = None
    """From the first session in this run whose times can be trusted."""
    early: Estimate | None = None
    """From the candidate's own session; None where that could not be trusted."""
    is_timed: bool = False
    """Whether it has a session of its own, conclusive or not."""
    added: AddStatus = AddStatus.NOT_ADDED
    cell: Cell | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by stage: `propose`, `build`, `measure`; and `wall`, from asked to told."""
    created: str = ""
    """When it was told: UTC, ISO 8601."""
    parents: tuple[str, ...] = ()
    """Digests."""

    @property
    def has_kernel(self) -> bool:
        """Whether there was a kernel, new or known."""
        return self.outcome in (Outcome.EVALUATED, Outcome.DUPLICATE)

    @property
    def is_built(self) -> bool:
        """Whether its kernel is new and the compiler made machine code of it."""
        return self.status is not None and self.status not in (Status.REJECTED, Status.BUILD_ERROR)

    @property
    def is_right(self) -> bool:
        """Whether nothing was found against its kernel."""
        return self.status is not None and self.status.is_good


@dataclass(frozen=True, slots=True)
class LaterSession:
    """A later measurement of a kernel: its estimate over all sessions until then, or its withdrawal."""

    after: int
    """How many candidates had been told."""
    digest: str
    estimate: Estimate | None
    is_withdrawal: bool = False


@dataclass(frozen=True, slots=True)
class GridPoint:
    """The grid after one candidate."""

    index: int
    n_elites: int
    qd_score: float


@dataclass(frozen=True, slots=True)
class CellRow:
    """A filled cell."""

    cell: Cell
    digest: str
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One way in which candidates failed, with the first that did."""

    kind: str
    """A status, or the outcome of what never became a kernel."""
    gate: str | None
    count: int
    index: int
    digest: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class KernelSheet:
    """All that the page shows of one kernel."""

    digest: str
    title: str
    """The seed's name where it has one, or the first digits of its digest."""
    why: str
    """Why it is on the page."""
    status: str
    message: str | None
    source: str
    n_cut: int
    """Characters of the source that were left out at its end."""
    cell: str | None = None
    """In words."""
    estimate: Estimate | None = None
    """Over all its sessions."""
    measures: Mapping[str, float | None] = field(default_factory=dict)
    resources: Mapping[str, int | float | str] = field(default_factory=dict)
    sessions: tuple[TimingSession, ...] = ()
    """Some of them, thinned, where there are many."""
    n_sessions: int = 0
    n_blocks: int = 0
    """In all sessions together."""
    index: int | None = None
    """The candidate of this run that brought it; None for one of an earlier run."""
    operator: str | None = None
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of the archive beside the others."""

    name: str
    problem_key: str
    problem_title: str
    environment_key: str
    created: str
    finished: str | None
    n_candidates: int
    n_elites: int
    n_cells: int
    best: KernelRow | None
    is_inherited: bool
    """Whether the best kernel was in the archive before the run."""
    curve: tuple[tuple[int, float], ...] = ()
    """Candidate and lower bound of the speed-up, wherever the run's best rose; by first sessions."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """All that the page shows of one run."""

    info: RunInfo
    rows: tuple[CandidateRow, ...]
    history: tuple[GridPoint, ...]
    cells: tuple[CellRow, ...]
    """The best first."""
    seeds: tuple[KernelRow, ...]
    best: KernelRow | None
    best_seed: KernelRow | None
    over_seed: Ratio | None
    is_inherited: bool
    line: tuple[Ancestor, ...]
    """From the seed to the best kernel."""
    failures: tuple[FailureRow, ...]
    ledger: tuple[LedgerLine, ...]
    kernels: tuple[KernelSheet, ...]
    """Those with their source on the page: the best line first."""
    n_unshown: int
    """Kernels that hold a cell and are not on the page."""

    @property
    def is_run(self) -> bool:
        """Whether anything was timed."""
        return any(row.is_timed for row in self.rows) or (self.best is not None and self.best.estimate is not None)
