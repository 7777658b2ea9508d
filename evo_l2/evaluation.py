"""What is known of a kernel once it was looked at: environment, build, verdict, timing sessions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "FEWEST_BLOCKS",
    "HARNESS_VERSION",
    "BuildReport",
    "CaseTiming",
    "Environment",
    "Estimate",
    "Evaluation",
    "Status",
    "TimingSession",
    "Verdict",
    "rank",
]

FEWEST_BLOCKS = 6
"""Fewest blocks whose range holds the median with 95 % confidence: the chance that all lie on one side is 2 / 2^6."""
HARNESS_VERSION = "4"
"""Changes whenever a gate, the timer or a baseline changes what a verdict or a time means; part of the compatibility key."""


class Status(StrEnum):
    """How far a kernel came. Only `PASSED` has an objective."""

    @property
    def is_good(self) -> bool:
        """Whether nothing was found against it, and it may have offspring."""
        return self in (Status.PASSED, Status.BUILT)

    REJECTED = "rejected"
    """The source was refused before the compiler saw it (or its launch does not parse)."""
    BUILD_ERROR = "build_error"
    UNLAUNCHABLE = "unlaunchable"
    """Built, but what was built is refused or cannot be launched (symbols, resources, instructions)."""
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    INCORRECT = "incorrect"
    CHEATING = "cheating"
    """A gate that only a cheat trips: mutated inputs, a forbidden system call, wrong outputs only while timed."""
    INCONCLUSIVE = "inconclusive"
    """Right, but the machine did not hold still while it was timed."""
    BUILT = "built"
    """Built, and through every gate that needs no card; never run."""
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a number was measured. Results are compared only within one `key`."""

    target: str
    """`cpu` or `cuda`."""
    identity: Mapping[str, str]
    """What makes two numbers comparable: processor or card, memory, toolchain, baseline, harness version."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """What is worth knowing but does not part results: host, driver, clocks, kernel release."""

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits over target and identity; equal keys may be compared."""
        text = json.dumps([self.target, dict(sorted(self.identity.items()))], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What the compiler and the machine-code reader said. Resources hold what the target knows (plain numbers and words)."""

    seconds: float
    """Wall seconds of the build; 0.0 when it came from the cache."""
    log: str = ""
    """The compiler's message, cut to a bounded length."""
    machine_code: str | None = None
    """Digest of normalised machine code and constants; None when nothing was built."""
    resources: Mapping[str, int | float | str] = field(default_factory=dict)
    """For instance `n_fma`, `simd_bits`, `code_bytes`, `stack_bytes`, `workspace_bytes`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a kernel is right. Unique per (kernel, problem, environment), never repeated."""

    status: Status
    gate: str | None = None
    """Name of the gate that stopped it; None exactly when none did (`PASSED`, `BUILT`)."""
    message: str | None = None
    """Plain words for the person (and the model) who will mend it; None exactly when no gate stopped it."""
    build: BuildReport | None = None
    measures: tuple[float | None, ...] | None = None
    """One value per axis of the problem's measures schema, `None` where unknown; None when nothing was built."""

    def __post_init__(self) -> None:
        good = self.status.is_good
        if self.status is Status.INCONCLUSIVE:
            raise ValueError("inconclusive is a property of a timing session, not of a verdict")
        if good != (self.gate is None) or good != (self.message is None):
            raise ValueError(f"a verdict names its gate and reason exactly when it did not pass (status {self.status})")
        if good and (self.measures is None or self.build is None or self.build.machine_code is None):
            raise ValueError("a kernel that passed, or was built, has a build, its machine code's digest, and measures")


@dataclass(frozen=True, slots=True)
class CaseTiming:
    """Paired samples of one kernel and its baseline on one case of the problem, block by block."""

    sizes: tuple[int, ...]
    """Values of the problem's size symbols, in its order (HGEMM: M, N, K, BATCH)."""
    kernel_us: tuple[float, ...]
    """Time per call in microseconds, one value a block."""
    baseline_us: tuple[float, ...]
    """The baseline's time per call in the same block, in microseconds, its conversions included."""
    kept: tuple[bool, ...]
    """False for a block that was dropped because the machine did not hold still."""
    bare_baseline_us: float | None = None
    """What a call of the baseline takes without its conversions, in microseconds: the median, times a share that was measured
    apart. None where there are none."""

    def __post_init__(self) -> None:
        if not len(self.kernel_us) == len(self.baseline_us) == len(self.kept) or not self.kept:
            raise ValueError("a case's timing has one kernel time, one baseline time and one mark for every block")
        if not all(math.isfinite(t) and t > 0 for t in (*self.kernel_us, *self.baseline_us)):
            raise ValueError("times are finite and positive")

    @property
    def conclusive(self) -> bool:
        """Whether at least a quarter of the blocks were kept, and enough of them for an interval (`FEWEST_BLOCKS`)."""
        return sum(self.kept) >= max(FEWEST_BLOCKS, len(self.kept) / 4)

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """`log(baseline / kernel)` of every block that was kept."""
        rows = zip(self.kernel_us, self.baseline_us, self.kept, strict=True)
        return tuple(math.log(base / kern) for kern, base, kept in rows if kept)


@dataclass(frozen=True, slots=True)
class TimingSession:
    """One measurement of one kernel over all cases of its problem; append-only once stored."""

    cases: tuple[CaseTiming, ...]
    purpose: str = "search"
    """`search` for the first look, `retime` for elites, `final` for winners in a fresh process."""

    @property
    def conclusive(self) -> bool:
        """Whether every case is conclusive."""
        return all(case.conclusive for case in self.cases)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Log of the speed-up over the baseline (geometric mean over cases), with a 95 % bootstrap interval."""

    log_ratio: float
    log_low: float
    log_high: float
    n_blocks: int

    @property
    def speedup(self) -> float:
        """Baseline time over kernel time."""
        return math.exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float]:
        """The speed-up's 95 % interval."""
        return math.exp(self.log_low), math.exp(self.log_high)


def rank(estimate: Estimate | None, digest: str) -> tuple[float, str]:
    """How kernels are ordered, smaller first: the higher lower bound, those without a time last, then the smaller digest."""
    return (-estimate.log_low if estimate is not None else math.inf, digest)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A verdict and, when the kernel passed, the session that timed it."""

    verdict: Verdict
    session: TimingSession | None = None
    seconds: float = 0.0
    """Wall seconds that judging and timing took, the build not counted."""

    def __post_init__(self) -> None:
        if (self.session is not None) != (self.verdict.status is Status.PASSED):
            raise ValueError("a kernel is timed exactly when it passed")

    @property
    def status(self) -> Status:
        """The verdict's status, or `INCONCLUSIVE` for a right kernel whose times cannot be trusted."""
        if self.session is not None and not self.session.conclusive:
            return Status.INCONCLUSIVE
        return self.verdict.status
