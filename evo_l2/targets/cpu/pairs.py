"""Timing in pairs: kernel and baseline take turns on one core, each on inputs of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evo_l2.draws import Draws
from evo_l2.errors import DeviceError
from evo_l2.evaluation import FEWEST_BLOCKS, CaseTiming
from evo_l2.judge import Failure, Fault, Judge, Stage, fault_failure

__all__ = ["PairPlan", "TimingSettings", "plan_pairs", "time_pairs"]

_MOST_SET_BYTES = 192 << 20
"""Memory that all buffer sets of one side may take."""
_MOST_CALLS = 2048
_FEWEST_PLANNED = FEWEST_BLOCKS + 2
"""Two of them may be lost."""
_MOST_TIMES = 3
"""How many times the planned blocks may be taken while the machine does not hold still."""
_STILL = math.log(1.25)
"""Two samples of one side in one block may differ by this much before the block is dropped."""


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """How many samples of what length."""

    blocks: int = 12
    """Blocks of four samples (two of either side)."""
    min_batch_ms: float = 4.0
    """Shortest sample, in milliseconds."""
    most_s: float = 2.5
    """Seconds that a kernel's own samples should take together; slow kernels get fewer blocks, at least eight."""


@dataclass(frozen=True, slots=True)
class PairPlan:
    """Fixed before the first sample is taken."""

    n_calls: int
    """Calls in one sample, each on a buffer set of its own."""
    n_blocks: int


def plan_pairs(call_us: float, n_bytes: int, settings: TimingSettings) -> PairPlan:
    """Plans one side's samples from a first idea of its time per call."""
    wanted = math.ceil(settings.min_batch_ms * 1000 / max(call_us, 0.1))
    n_calls = max(1, min(wanted, _MOST_CALLS, _MOST_SET_BYTES // max(1, n_bytes)))
    affordable = settings.most_s / (2 * n_calls * call_us * 1e-6)
    return PairPlan(n_calls, int(max(_FEWEST_PLANNED, min(settings.blocks, affordable))))


def time_pairs(
    kernel: Stage, n_kernel: int, baseline: Stage, n_baseline: int, n_blocks: int, judge: Judge, seed: np.random.SeedSequence
) -> CaseTiming | Failure:
    """Times `n_blocks` blocks, and more, up to three times as many, while fewer than half of them could be kept.

    A block is kernel, baseline, baseline, kernel, or the other way round, by lot.

    Before every sample of the kernel its inputs are drawn anew and its outputs poisoned; after it, some outputs are checked.
    A block is dropped when the two samples of either side differ by more than a quarter. That says nothing of the ratio, so
    neither does the number of blocks.

    Raises:
        DeviceError: The baseline fails.
    """
    draws = kernel.draws(seed)
    judge.prepare_timed(baseline, n_baseline, draws)
    rows: list[tuple[float, float, bool]] = []
    n_wanted = max(FEWEST_BLOCKS, n_blocks // 2)
    while len(rows) < n_blocks or (len(rows) < _MOST_TIMES * n_blocks and sum(still for *_, still in rows) < n_wanted):
        order = "kbbk" if draws.host.integers(2) else "bkkb"
        samples: dict[str, list[float]] = {"k": [], "b": []}
        for side in order:
            if side == "b":
                samples["b"].append(_baseline_us(baseline, n_baseline))
                continue
            sample = _kernel_us(kernel, n_kernel, judge, draws)
            if isinstance(sample, Failure):
                return sample
            samples["k"].append(sample)
        still = all(abs(math.log(first / second)) < _STILL for first, second in samples.values())
        rows.append((sum(samples["k"]) / 2, sum(samples["b"]) / 2, still))
    kernel_us, baseline_us, kept = zip(*rows, strict=True)
    return CaseTiming(kernel.instance.sizes, kernel_us, baseline_us, kept)


def _kernel_us(stage: Stage, n_calls: int, judge: Judge, draws: Draws) -> float | Failure:
    fills = judge.prepare_timed(stage, n_calls, draws)
    result = stage.run(0, n_calls)
    if isinstance(result, Fault):
        return fault_failure(result)
    return judge.check_timed(stage, fills, draws) or max(result, 1) / 1000 / n_calls


def _baseline_us(stage: Stage, n_calls: int) -> float:
    result = stage.run(0, n_calls)
    if isinstance(result, Fault):
        raise DeviceError("the baseline fails", found=result.detail, hint="evo-l2 doctor")
    return max(result, 1) / 1000 / n_calls
