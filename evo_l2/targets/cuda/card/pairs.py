"""Timing in pairs on a card: kernel and baseline take turns, each in a process of its own and on inputs of its own.

A sample is one replay of a graph: one call on each of its buffer sets, whose bytes exceed twice the L2 cache, so that every
call finds its operands in memory. At its start the cache is emptied, on both sides alike, and each sample of the kernel has
inputs and poison of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evo_l2.draws import Draws
from evo_l2.errors import DeviceError
from evo_l2.evaluation import FEWEST_BLOCKS, CaseTiming, Status
from evo_l2.judge import Failure, Fault, Judge, fault_failure
from evo_l2.problem import Instance
from evo_l2.targets.cuda.card.runner import Refused, Sample
from evo_l2.targets.cuda.card.stage import CardStage
from evo_l2.targets.cuda.cards import Card

__all__ = [
    "CardTimingSettings",
    "Side",
    "baseline_sample",
    "blocks_of",
    "n_calls_of",
    "roofline_us",
    "time_pairs",
]

_MOST_CALLS = 2048
_MOST_SET_BYTES = 16 << 30
_CLOCK_STILL = math.log(1.02)
"""Clocks of the two samples of one side in one block may differ by this much before it is dropped."""
_STILL = math.log(1.1)
"""Two samples of one side in one block may differ by this much before it is dropped."""
_BELOW_ROOFLINE = 0.97
"""A time below this share of the roofline at the measured clock is no record, but a cheat or a fault of ours."""


@dataclass(frozen=True, slots=True)
class CardTimingSettings:
    """How many samples of what length. Numbers of blocks are fixed in advance."""

    blocks: int = 10
    """Blocks of four samples (two of either side) for a first look."""
    final_blocks: int = 40
    """Blocks of a finalist."""
    sample_us: float = 300.0
    """Shortest sample."""
    most_s: float = 4.0
    """Device seconds that one case may take; slow kernels get fewer blocks, at least eight."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the pairs: what is replayed, and how many calls a sample has."""

    stage: CardStage
    n_calls: int


def n_calls_of(call_us: float, n_bytes: int, l2_bytes: int, settings: CardTimingSettings) -> int:
    """Calls of one sample: as many as last `sample_us`, and as many as have more than twice the L2 cache in their buffers.

    Args:
        call_us: A first idea of the time per call.
        n_bytes: Bytes of one buffer set.
        l2_bytes: Size of the card's L2 cache.
        settings: The shortest sample.
    """
    wanted = max(math.ceil(settings.sample_us / max(call_us, 0.5)), 2 * l2_bytes // n_bytes + 1)
    return max(1, min(wanted, _MOST_CALLS, _MOST_SET_BYTES // n_bytes))


def blocks_of(call_us: float, n_calls: int, settings: CardTimingSettings, *, final: bool) -> int:
    """Number of blocks, fixed before the first sample."""
    wanted = settings.final_blocks if final else settings.blocks
    affordable = settings.most_s * (10 if final else 1) * 1e6 / (4 * n_calls * call_us)
    return int(max(FEWEST_BLOCKS + 2, min(wanted, affordable)))


def roofline_us(instance: Instance, card: Card, clock_mhz: float | None = None) -> float:
    """Shortest time of one call by arithmetic alone, at the clock that was measured, or that of the peak rates.

    Memory is left out: part of what a call reads may lie in the L2 cache, and what it writes may stay there.
    """
    classes = instance.problem.matrix_classes
    half_sums = classes is None or ("fp16", "fp16") in classes
    return card.arithmetic_us(instance.problem.work(instance.sizes).n_flops, half_sums=half_sums, clock_mhz=clock_mhz)


def time_pairs(
    kernel: Side, baseline: Side, n_blocks: int, judge: Judge, seed: np.random.SeedSequence, floor: float
) -> CaseTiming | Failure:
    """Times `n_blocks` blocks: kernel, baseline, baseline, kernel, or the other way round, by lot.

    After each sample of the kernel its outputs are checked. A block is dropped when the two samples of a side differ by more
    than a tenth, or their clocks by more than 2 %; neither says which side is faster. The clocks of the sides may differ: a
    card at its power limit runs a kernel the slower, the more power that kernel draws, and so it does for whoever uses it.

    Args:
        kernel: The candidate.
        baseline: What it is compared with.
        n_blocks: Fixed beforehand.
        judge: Draws inputs, and checks what was timed.
        seed: Where order and inputs come from.
        floor: Shortest possible product of a call's microseconds and the clock in MHz.

    Raises:
        DeviceError: The baseline fails.
        Refused: The driver refuses the kernel's launches in a graph.
    """
    children = seed.spawn(3)
    rng = np.random.default_rng(children[0])
    draws = kernel.stage.draws(children[1])
    judge.prepare_timed(baseline.stage, baseline.n_calls, baseline.stage.draws(children[2]))
    rows: list[tuple[float, float, bool]] = []
    while len(rows) < n_blocks:
        block: dict[str, list[Sample]] = {"k": [], "b": []}
        for side in "kbbk" if rng.integers(2) else "bkkb":
            sample = _of_kernel(kernel, judge, draws, floor) if side == "k" else baseline_sample(baseline)
            if isinstance(sample, Failure):
                return sample
            block[side].append(sample)
        kernel_us, baseline_us = (_call_us(block[side], n) for side, n in (("k", kernel.n_calls), ("b", baseline.n_calls)))
        rows.append((sum(kernel_us) / 2, sum(baseline_us) / 2, all(map(_is_still, block.values()))))
    kernel_times, baseline_times, kept = zip(*rows, strict=True)
    return CaseTiming(kernel.stage.instance.sizes, kernel_times, baseline_times, kept)


def _call_us(samples: list[Sample], n_calls: int) -> list[float]:
    return [sample.ns / 1000 / n_calls for sample in samples]


def _of_kernel(side: Side, judge: Judge, draws: Draws, floor: float) -> Sample | Failure:
    """One sample on fresh inputs, and the check of what came out."""
    fills = judge.prepare_timed(side.stage, side.n_calls, draws)
    sample = side.stage.replay(side.n_calls)
    if isinstance(sample, Fault):
        return fault_failure(sample)
    return judge.check_timed(side.stage, fills, draws) or _too_fast(sample, side.n_calls, floor) or sample


def baseline_sample(side: Side, what: str = "the baseline") -> Sample:
    """One replay of what a kernel is compared with, whose failure is never that kernel's.

    Raises:
        DeviceError: It fails.
    """
    try:
        sample = side.stage.replay(side.n_calls)
    except Refused as error:
        raise DeviceError(f"{what} fails", found=str(error), hint="evo-l2 doctor") from error
    if isinstance(sample, Fault):
        raise DeviceError(f"{what} fails", found=sample.detail, hint="evo-l2 doctor")
    return sample


def _too_fast(sample: Sample, n_calls: int, floor: float) -> Failure | None:
    if sample.clock_mhz is None:
        return None
    share = floor / (sample.ns / 1000 / n_calls * sample.clock_mhz)
    if share * _BELOW_ROOFLINE <= 1.0:
        return None
    message = f"a timed call took {sample.ns / 1000 / n_calls:.2f} us, {share:.2f} of what the card's arithmetic can do"
    return Failure(Status.CHEATING, "roofline", message)


def _is_still(samples: list[Sample]) -> bool:
    """Whether the samples of one side agree in time and in clock."""
    times = [sample.ns for sample in samples]
    clocks = [sample.clock_mhz for sample in samples if sample.clock_mhz is not None]
    same_clock = not clocks or math.log(max(clocks) / min(clocks)) <= _CLOCK_STILL
    return math.log(max(times) / min(times)) < _STILL and same_clock
