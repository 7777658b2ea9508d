"""By how much a kernel is faster than another, and how sure that is; shares and means with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evo_l2.evaluation import Estimate

__all__ = ["Gain", "Mean", "Share", "gain", "mean_gain", "share"]

_Z = 1.959963984540054
_N_RESAMPLES = 1000
_BOOTSTRAP_SEED = 20252


@dataclass(frozen=True, slots=True)
class Gain:
    """Log of one kernel's speed-up over another's, with a 95 % interval."""

    log_ratio: float
    log_low: float
    log_high: float

    @property
    def ratio(self) -> float:
        """How many times as fast."""
        return math.exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float]:
        """The ratio's 95 % interval."""
        return math.exp(self.log_low), math.exp(self.log_high)

    @property
    def is_sure(self) -> bool:
        """Whether the whole interval is a gain."""
        return self.log_low > 0

    @property
    def is_loss(self) -> bool:
        """Whether the whole interval is a loss."""
        return self.log_high < 0


def gain(kernel: Estimate, other: Estimate) -> Gain:
    """What one kernel gained over another of the same problem and environment.

    Each was timed in pairs with the baseline, not with the other, so the two estimates are independent. The interval
    follows from theirs by squaring and adding the distances to the ends (MOVER: Zou and Donner, *Statistics in Medicine*
    27, 2008, section 2), which keeps it as lopsided as they are.
    """
    value = kernel.log_ratio - other.log_ratio
    below = math.hypot(kernel.log_ratio - kernel.log_low, other.log_high - other.log_ratio)
    above = math.hypot(kernel.log_high - kernel.log_ratio, other.log_ratio - other.log_low)
    return Gain(value, value - below, value + above)


@dataclass(frozen=True, slots=True)
class Share:
    """A share of some trials, with its 95 % interval."""

    n_hits: int
    n_trials: int
    value: float
    low: float
    high: float


def share(n_hits: int, n_trials: int) -> Share | None:
    """A share with Wilson's interval (*JASA* 22, 1927), which is sound for few trials; None without any."""
    if n_trials == 0:
        return None
    value = n_hits / n_trials
    scale = 1 + _Z**2 / n_trials
    middle = (value + _Z**2 / (2 * n_trials)) / scale
    half = _Z / scale * math.sqrt(value * (1 - value) / n_trials + _Z**2 / (4 * n_trials**2))
    low, high = max(0.0, min(middle - half, value)), min(1.0, max(middle + half, value))
    return Share(n_hits, n_trials, value, low, high)


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of some log gains, with its 95 % interval where there are at least two."""

    n: int
    value: float
    low: float | None
    high: float | None

    @property
    def ratio(self) -> float:
        """The geometric mean of the gains."""
        return math.exp(self.value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval."""
        return (math.exp(self.low), math.exp(self.high)) if self.low is not None and self.high is not None else None


def mean_gain(values: Sequence[float]) -> Mean | None:
    """The mean of log gains with the 2.5th to 97.5th percentile of 1,000 bootstrap means; None without any.

    The order of the values does not matter; the resamples are drawn from a fixed seed.
    """
    if not values:
        return None
    pool = np.sort(np.asarray(values, dtype=np.float64))
    value = float(pool.mean())
    if pool.size == 1:
        return Mean(1, value, None, None)
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    # Resample by resample: all at once would take 8 KB for every value.
    means = [pool[rng.integers(0, pool.size, pool.size)].mean() for _ in range(_N_RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return Mean(int(pool.size), value, min(float(low), value), max(float(high), value))
