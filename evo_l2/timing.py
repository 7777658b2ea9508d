"""From paired samples to a speed-up with an interval."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evo_l2.evaluation import Estimate, TimingSession

__all__ = ["log_ratio", "pooled_estimate", "pooled_estimates", "single_estimates"]

_N_RESAMPLES = 1000
_BOOTSTRAP_SEED = 20251


def log_ratio(sessions: Sequence[TimingSession]) -> float | None:
    """The value of `pooled_estimate` without its interval, which is what costs."""
    pools = _pools(sessions)
    return _middle(pools) if pools else None


def pooled_estimate(sessions: Sequence[TimingSession]) -> Estimate | None:
    """The speed-up over all conclusive sessions together, whatever their order; None when there is none.

    Blocks are pooled over sessions, case by case. The value is the mean over cases of the median log ratio; the interval
    is the 2.5th to 97.5th percentile of 1,000 bootstrap resamples of the blocks, drawn within each case from a fixed seed
    (so the estimate is a pure function of the stored samples).
    """
    pools = _pools(sessions)
    if not pools:
        return None
    value = _middle(pools)
    resampled = np.zeros(_N_RESAMPLES)
    for pool, (below, above) in zip(pools, _median_ranks(tuple(pool.size for pool in pools)), strict=True):
        resampled += (pool[below] + pool[above]) / (2 * len(pools))
    resampled.sort()
    low, high = _percentile(resampled, 0.025), _percentile(resampled, 0.975)
    return Estimate(value, min(low, value), max(high, value), sum(pool.size for pool in pools))


def _percentile(ordered: NDArray[np.float64], share: float) -> float:
    """`np.percentile` of ordered values, bit for bit, without what it does for every other kind of input."""
    place = share * (ordered.size - 1)
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, ordered.size - 1)])
    weight = place - below
    step = high - low
    return low + step * weight if weight < 0.5 else high - step * (1 - weight)


def single_estimates(sessions: Sequence[TimingSession]) -> list[Estimate | None]:
    """`pooled_estimate` of each session by itself, to the last digit; several times as fast for many of one shape."""
    return pooled_estimates([(session,) for session in sessions])


def pooled_estimates(groups: Sequence[Sequence[TimingSession]]) -> list[Estimate | None]:
    """`pooled_estimate` of each group of sessions, to the last digit; several times as fast for many of one shape."""
    found: list[Estimate | None] = [None] * len(groups)
    alike: dict[tuple[int, ...], list[int]] = {}
    pools = [_pools(group) for group in groups]
    for number, pool in enumerate(pools):
        if pool:
            alike.setdefault(tuple(case.size for case in pool), []).append(number)
    for sizes, numbers in alike.items():
        resampled = np.zeros((len(numbers), _N_RESAMPLES))
        for case, (below, above) in enumerate(_median_ranks(sizes)):
            stacked = np.stack([pools[number][case] for number in numbers])
            resampled += (stacked[:, below] + stacked[:, above]) / (2 * len(sizes))
        lows, highs = np.percentile(resampled, [2.5, 97.5], axis=1)
        for number, low, high in zip(numbers, lows, highs, strict=True):
            value = _middle(pools[number])
            found[number] = Estimate(value, min(float(low), value), max(float(high), value), sum(sizes))
    return found


@functools.lru_cache(maxsize=256)
def _median_ranks(sizes: tuple[int, ...]) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], ...]:
    """For each pool, the two ranks whose mean is each resample's median (equal ranks where the size is odd).

    A resample of a sorted pool has its median at the median of the ranks drawn, so the draws of one size serve every pool
    of that size.
    """
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    ranks = []
    for size in sizes:
        draws = np.sort(rng.integers(0, size, size=(_N_RESAMPLES, size)), axis=1)
        ranks.append((draws[:, (size - 1) // 2], draws[:, size // 2]))
    return tuple(ranks)


def _pools(sessions: Sequence[TimingSession]) -> list[NDArray[np.float64]]:
    """The kept blocks' log ratios of all conclusive sessions, case by case, sorted; empty when there is no such session."""
    usable = [session for session in sessions if session.conclusive]
    n_cases = len(usable[0].cases) if usable else 0
    return [np.sort([ratio for session in usable for ratio in session.cases[i].log_ratios]) for i in range(n_cases)]


def _middle(pools: Sequence[NDArray[np.float64]]) -> float:
    """The mean over cases of the median; each pool is sorted."""
    return sum(float((pool[(pool.size - 1) // 2] + pool[pool.size // 2]) / 2) / len(pools) for pool in pools)
