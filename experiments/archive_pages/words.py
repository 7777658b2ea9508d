"""Words that several pages share."""

from __future__ import annotations

from archive.mining import EnvironmentFacts, Gain, Mean, Share
from evo_l2.evaluation import Estimate

__all__ = [
    "environment_in_words",
    "estimate_facts",
    "estimate_in_words",
    "gain_facts",
    "gain_in_words",
    "interval_in_words",
    "mean_in_words",
    "share_in_words",
]


def estimate_facts(value: Estimate | None) -> dict[str, object]:
    """An estimate as plain data."""
    if value is None:
        return {"speedup": None, "interval": None, "n_blocks": 0}
    return {"speedup": value.speedup, "interval": list(value.interval), "n_blocks": value.n_blocks}


def estimate_in_words(value: Estimate | None) -> str:
    """An estimate in words, the baseline named."""
    if value is None:
        return "built and never run"
    low, high = value.interval
    return f"{value.speedup:.3f}x of the baseline's speed ({low:.3f} to {high:.3f}, {value.n_blocks} blocks)"


def interval_in_words(interval: tuple[float, float]) -> str:
    """For instance `1.180 to 1.262`."""
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def gain_facts(found: Gain | None) -> dict[str, object] | None:
    """A gain as plain data."""
    return {"ratio": found.ratio, "interval": list(found.interval)} if found is not None else None


def gain_in_words(found: Gain | None) -> str:
    """For instance `1.220x (1.180 to 1.262)`."""
    return f"{found.ratio:.3f}x ({interval_in_words(found.interval)})" if found is not None else "-"


def share_in_words(found: Share | None) -> str:
    """For instance `5/20 11-47 %`."""
    return f"{found.n_hits}/{found.n_trials} {100 * found.low:.0f}-{100 * found.high:.0f} %" if found is not None else "-"


def mean_in_words(found: Mean | None) -> str:
    """A mean gain as a ratio; without an interval where there was one value."""
    if found is None:
        return "-"
    interval = found.interval
    return f"{found.ratio:.3f}x {interval[0]:.3f}-{interval[1]:.3f}" if interval is not None else f"{found.ratio:.3f}x (once)"


def environment_in_words(facts: EnvironmentFacts) -> str:
    """For instance `3f2a90c1d4e5b6a7, cpu, AMD EPYC (25-1-1)`."""
    return f"{facts.key}, {facts.target}, {facts.machine}"
