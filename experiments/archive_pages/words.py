"""Words that several pages share."""

from __future__ import annotations

from evo_l2.evaluation import Estimate

__all__ = ["estimate_facts", "estimate_in_words"]


def estimate_facts(value: Estimate | None) -> dict[str, object]:
    if value is None:
        return {"speedup": None, "interval": None, "n_blocks": 0}
    return {"speedup": value.speedup, "interval": list(value.interval), "n_blocks": value.n_blocks}


def estimate_in_words(value: Estimate | None) -> str:
    if value is None:
        return "built and never run"
    low, high = value.interval
    return f"{value.speedup:.3f}x of the baseline's speed ({low:.3f} to {high:.3f}, {value.n_blocks} blocks)"
