"""Which kernel of a run is the best, and by how much it beats the seeds: one answer for the summary and for the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evo_l2.contracts import Elite
from evo_l2.evaluation import Estimate, TimingSession
from evo_l2.timing import pooled_estimate

__all__ = ["KernelRow", "Ratio", "best_seed", "final_sessions", "kernel_row", "over", "ratio", "short_name"]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel's speed-up over the baseline."""

    name: str
    """The seed's name where it has one, or the first digits of its digest."""
    digest: str
    estimate: Estimate | None
    """From the final sessions alone where there are any: those that it was chosen by flatter it. None when it did not pass or
    its times cannot be trusted."""
    is_final: bool
    """Whether the estimate is from measurements after the search."""
    status: str
    """`passed`, or how it failed."""
    gate: str | None = None
    """The gate that it failed, and why; None where it passed or was not reached."""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """One speed-up over another, with an interval that is not too narrow."""

    value: float
    low: float
    high: float


def ratio(above: Estimate, below: Estimate) -> Ratio:
    """One speed-up over another; the ends take either side's interval at its worse end, so they hold with 95 % or more."""
    return Ratio(
        math.exp(above.log_ratio - below.log_ratio),
        math.exp(above.log_low - below.log_high),
        math.exp(above.log_high - below.log_low),
    )


def final_sessions(elite: Elite) -> tuple[TimingSession, ...]:
    """Its conclusive sessions after the search."""
    return tuple(session for session in elite.sessions if session.purpose == "final" and session.conclusive)


def short_name(digest: str, names: Mapping[str, str]) -> str:
    """The seed's name, or the first digits of the digest."""
    return names.get(digest, digest[:12])


def kernel_row(elite: Elite, names: Mapping[str, str]) -> KernelRow:
    """A kernel that passed, or was built."""
    digest = elite.kernel.digest
    final = pooled_estimate(final_sessions(elite))
    value = final if final is not None else elite.estimate
    return KernelRow(short_name(digest, names), digest, value, final is not None, elite.verdict.status.value)


def best_seed(seeds: Iterable[KernelRow]) -> KernelRow | None:
    """The seed with the highest lower bound; one that was measured again before one that was not."""
    timed = [(seed.is_final, seed.estimate.log_low, seed) for seed in seeds if seed.estimate is not None]
    return max(timed, key=lambda row: row[:2])[2] if timed else None


def over(best: KernelRow | None, seed: KernelRow | None) -> Ratio | None:
    """The best kernel over the best seed; None where they are one, or one of them has no time."""
    if best is None or seed is None or best.digest == seed.digest or best.estimate is None or seed.estimate is None:
        return None
    return ratio(best.estimate, seed.estimate)
