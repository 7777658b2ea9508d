"""Rewards as pure functions of stored facts, under a version, so that they can be worked out again."""

from __future__ import annotations

import math
from dataclasses import dataclass

from archive.training_data.facts import Fact
from evo_l2.contracts import Outcome
from evo_l2.evaluation import Estimate, Status

__all__ = ["REWARD_VERSION", "Gain", "gain_over", "reward"]

REWARD_VERSION = "ladder-1"
"""Changes whenever a reward does."""
_FAILURES = {
    Status.CHEATING: -1.0,
    Status.REJECTED: -1.0,
    Status.BUILD_ERROR: -1.0,
    Status.UNLAUNCHABLE: -0.8,
    Status.RUNTIME_ERROR: -0.6,
    Status.TIMEOUT: -0.6,
    Status.INCORRECT: -0.4,
}
_WITHOUT_KERNEL = -1.0
_DUPLICATE = -0.9
_LOWEST_RIGHT, _HIGHEST = -0.3, 4.0
"""A right kernel, however slow, is above every failure; nothing counts for more than sixteen times as fast."""
_DEAD_BAND = math.log(1.02)
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Gain:
    """Log of how many times faster a kernel is than another, with a 95 % interval."""

    log_ratio: float
    log_low: float
    log_high: float


def gain_over(child: Estimate, parent: Estimate | None) -> Gain:
    """The gain of one estimate over another, or over the baseline where there is no parent.

    The interval is that of a difference of two estimates with intervals of their own (the square-and-add rule of Zou and
    Donner, 2008), which need not be symmetric.
    """
    if parent is None:
        return Gain(child.log_ratio, child.log_low, child.log_high)
    value = child.log_ratio - parent.log_ratio
    below = math.hypot(child.log_ratio - child.log_low, parent.log_high - parent.log_ratio)
    above = math.hypot(child.log_high - child.log_ratio, parent.log_ratio - parent.log_low)
    return Gain(value, value - below, value + above)


def reward(fact: Fact, parent: Estimate | None) -> float | None:
    """The reward of one candidate; None where it cannot be scored: an outage, or a right kernel without a time.

    No kernel, edits that do not apply, refused, not built, or a cheat −1; a repeat −0.9; cannot be launched −0.8; crashed or
    did not end −0.6; wrong −0.4; right: log2 of the speed-up over the parent (over the baseline where there is none), from
    −0.3 to 4, and 0 inside of the larger of 2 % and three standard errors.
    """
    if fact.outcome in (Outcome.NO_KERNEL, Outcome.EDIT_FAILED):
        return _WITHOUT_KERNEL
    if fact.outcome is Outcome.DUPLICATE:
        return _DUPLICATE
    if fact.status is None or fact.outcome is Outcome.GENERATOR_FAILED:
        return None
    if fact.status in _FAILURES:
        return _FAILURES[fact.status]
    if not fact.is_right or fact.estimate is None:
        return None
    gain = gain_over(fact.estimate, parent)
    error = (gain.log_high - gain.log_low) / (2 * _Z)
    if abs(gain.log_ratio) <= max(_DEAD_BAND, 3 * error):
        return 0.0
    return min(max(gain.log_ratio / math.log(2), _LOWEST_RIGHT), _HIGHEST)
