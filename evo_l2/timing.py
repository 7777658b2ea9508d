"""From paired samples to a speed-up with an interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evo_l2.evaluation import Estimate, TimingSession

__all__ = ["estimate"]

_N_RESAMPLES = 1000
_BOOTSTRAP_SEED = 20251


def estimate(sessions: Sequence[TimingSession]) -> Estimate | None:
    """The speed-up over all conclusive sessions together, or None when there is none.

    Blocks are pooled over sessions, case by case. The value is the mean over cases of the median log ratio; the interval
    is the 2.5th to 97.5th percentile of 1,000 bootstrap resamples of the blocks, drawn within each case from a fixed seed
    (so the estimate is a pure function of the stored samples).
    """
    usable = [session for session in sessions if session.conclusive]
    if not usable:
        return None
    pools = [
        np.array([ratio for session in usable for ratio in session.cases[i].log_ratios]) for i in range(len(usable[0].cases))
    ]
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    value = 0.0
    resampled = np.zeros(_N_RESAMPLES)
    for pool in pools:
        value += float(np.median(pool)) / len(pools)
        draws = pool[rng.integers(0, pool.size, size=(_N_RESAMPLES, pool.size))]
        resampled += np.median(draws, axis=1) / len(pools)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Estimate(value, min(float(low), value), max(float(high), value), sum(pool.size for pool in pools))
