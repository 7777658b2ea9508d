"""From paired samples to a speed-up with an interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evo_l2.evaluation import Estimate, TimingSession

__all__ = ["estimate", "log_ratio"]

_N_RESAMPLES = 1000
_BOOTSTRAP_SEED = 20251


def log_ratio(sessions: Sequence[TimingSession]) -> float | None:
    """The value of `estimate` without its interval, which is what costs."""
    pools = _pools(sessions)
    return _middle(pools) if pools else None


def estimate(sessions: Sequence[TimingSession]) -> Estimate | None:
    """The speed-up over all conclusive sessions together, or None when there is none.

    Blocks are pooled over sessions, case by case. The value is the mean over cases of the median log ratio; the interval
    is the 2.5th to 97.5th percentile of 1,000 bootstrap resamples of the blocks, drawn within each case from a fixed seed
    (so the estimate is a pure function of the stored samples).
    """
    pools = _pools(sessions)
    if not pools:
        return None
    value = _middle(pools)
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    resampled = np.zeros(_N_RESAMPLES)
    for pool in pools:
        draws = pool[rng.integers(0, pool.size, size=(_N_RESAMPLES, pool.size))]
        resampled += np.median(draws, axis=1) / len(pools)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Estimate(value, min(float(low), value), max(float(high), value), sum(pool.size for pool in pools))


def _pools(sessions: Sequence[TimingSession]) -> list[NDArray[np.float64]]:
    """The kept blocks' log ratios of all conclusive sessions, case by case; empty when there is no such session."""
    usable = [session for session in sessions if session.conclusive]
    n_cases = len(usable[0].cases) if usable else 0
    return [np.array([ratio for session in usable for ratio in session.cases[i].log_ratios]) for i in range(n_cases)]


def _middle(pools: Sequence[NDArray[np.float64]]) -> float:
    """The mean over cases of the median."""
    return sum(float(np.median(pool)) / len(pools) for pool in pools)
