"""Limits and peak rates of the cards that the project names, each with its public source.

Limits of a multiprocessor are those of its compute capability: NVIDIA, CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability"; barriers: the toolkit's `cuda_occupancy.h`. A kernel can be checked against a card
that is not in the machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from evo_l2.errors import ConfigurationError

__all__ = ["CARDS", "Card", "card_for", "find_card"]

_KIB = 1024


@dataclass(frozen=True, slots=True)
class Card:
    """One card: what a launch on it may use, and what it can do at most."""

    name: str
    compute_capability: tuple[int, int]
    arch: str
    """What to compile for: `sm_80`, `sm_90a`."""
    n_sms: int
    """Streaming multiprocessors."""
    clock_mhz: float
    """Clock of the multiprocessors at which the peak rates are stated; a card may run faster or slower."""
    fp16_tflops: float
    """Dense half-precision products with half-precision sums, at that clock."""
    fp32_sum_tflops: float
    """Dense half-precision products with single-precision sums, at that clock."""
    memory_gb_s: float
    """Bandwidth of its memory, in 10^9 bytes a second."""
    l2_bytes: int
    shared_per_sm_bytes: int
    shared_per_block_bytes: int
    """Most a block may have, after it was asked for by attribute; without that it is 48 KiB."""
    max_warps_per_sm: int
    max_blocks_per_sm: int
    max_barriers_per_sm: int | None
    """Hardware barriers of a multiprocessor, which its blocks share; None where they bound nothing (before 9.0)."""
    source: str
    """Where product figures come from."""
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255
    max_threads_per_block: int = 1024
    max_cluster_blocks: int = 1
    """Blocks a cluster may have without asking for more; 1 where there are no clusters."""
    warp_size: int = 32

    @property
    def ridge_flops_per_byte(self) -> float:
        """Operations a byte of memory at which single-precision sums are bound by arithmetic rather than by memory."""
        return self.fp32_sum_tflops * 1000 / self.memory_gb_s

    def arithmetic_us(self, n_flops: float, *, half_sums: bool = False, clock_mhz: float | None = None) -> float:
        """Shortest time of that many dense operations, in microseconds; at the clock of the peak rates when none is given."""
        peak = self.fp16_tflops if half_sums else self.fp32_sum_tflops
        return n_flops / (peak * 1e6) * (self.clock_mhz / clock_mhz if clock_mhz is not None else 1.0)

    def memory_us(self, n_bytes: float) -> float:
        """Shortest time in which its memory moves that many bytes, in microseconds."""
        return n_bytes / (self.memory_gb_s * 1e3)


_AMPERE = "NVIDIA A100 Tensor Core GPU Architecture, white paper V1.0; memory: A100 80GB data sheet, SXM"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture, white paper V2.1, figures of the GeForce RTX 3090"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture, white paper V1.04; H100 data sheet, SXM (half of sparse)"
_H200 = "NVIDIA H200 data sheet (half of sparse); same multiprocessors and L2 as the H100 SXM5"
_BLACKWELL = (
    "NVIDIA HGX B200 data sheet (half of sparse, an eighth of the board), Blackwell Tuning Guide for L2 and shared memory; "
    "the clock is the one that the peak rate implies"
)

CARDS: tuple[Card, ...] = (
    Card(
        "A100", (8, 0), "sm_80", n_sms=108, clock_mhz=1410, fp16_tflops=312, fp32_sum_tflops=312, memory_gb_s=2039,
        l2_bytes=40 * _KIB * _KIB, shared_per_sm_bytes=164 * _KIB, shared_per_block_bytes=163 * _KIB,
        max_warps_per_sm=64, max_blocks_per_sm=32, max_barriers_per_sm=None, source=_AMPERE,
    ),
    Card(
        "RTX 3090", (8, 6), "sm_86", n_sms=82, clock_mhz=1695, fp16_tflops=142, fp32_sum_tflops=71, memory_gb_s=936,
        l2_bytes=6 * _KIB * _KIB, shared_per_sm_bytes=100 * _KIB, shared_per_block_bytes=99 * _KIB,
        max_warps_per_sm=48, max_blocks_per_sm=16, max_barriers_per_sm=None, source=_GA102,
    ),
    Card(
        "H100", (9, 0), "sm_90a", n_sms=132, clock_mhz=1830, fp16_tflops=989.4, fp32_sum_tflops=989.4, memory_gb_s=3350,
        l2_bytes=50 * _KIB * _KIB, shared_per_sm_bytes=228 * _KIB, shared_per_block_bytes=227 * _KIB,
        max_warps_per_sm=64, max_blocks_per_sm=32, max_barriers_per_sm=64, source=_HOPPER, max_cluster_blocks=8,
    ),
    Card(
        "H200", (9, 0), "sm_90a", n_sms=132, clock_mhz=1830, fp16_tflops=989.4, fp32_sum_tflops=989.4, memory_gb_s=4800,
        l2_bytes=50 * _KIB * _KIB, shared_per_sm_bytes=228 * _KIB, shared_per_block_bytes=227 * _KIB,
        max_warps_per_sm=64, max_blocks_per_sm=32, max_barriers_per_sm=64, source=_H200, max_cluster_blocks=8,
    ),
    Card(
        "B200", (10, 0), "sm_100a", n_sms=148, clock_mhz=1856, fp16_tflops=2250, fp32_sum_tflops=2250, memory_gb_s=7700,
        l2_bytes=126 * _KIB * _KIB, shared_per_sm_bytes=228 * _KIB, shared_per_block_bytes=227 * _KIB,
        max_warps_per_sm=64, max_blocks_per_sm=32, max_barriers_per_sm=64, source=_BLACKWELL, max_cluster_blocks=8,
    ),
)  # fmt: skip
"""A100 and H100 are the SXM cards, the A100 with 80 GB. Of one compute capability the first is the default."""


def find_card(name: str) -> Card:
    """The card of a name as people or drivers write it: `a100`, `NVIDIA A100-SXM4-80GB`, `GeForce RTX 3090`.

    A driver's name for another product of the same chip is no match (`H100 PCIe`, `A100-PCIE-40GB`, `RTX 3090 Ti`).

    Raises:
        ConfigurationError: There is no such card in the table.
    """
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w and w not in _PADDING]
    for card in CARDS:
        if words == card.name.lower().split():
            return card
    expected = "one of " + ", ".join(card.name for card in CARDS)
    raise ConfigurationError("no such card", expected=expected, found=repr(name))


_PADDING = frozenset(("nvidia", "geforce", "tesla", "gpu", "sxm", "sxm2", "sxm4", "sxm5", "sxm6", "80gb", "hbm3", "hbm3e"))
"""Words of a driver's name that tell nothing apart among the cards of the table."""


def card_for(arch: str) -> Card:
    """The default card of an architecture or compute capability: `sm_80`, `sm_90a`, `8.6`.

    Raises:
        ConfigurationError: No card of the table has it.
    """
    digits = re.fullmatch(r"(?:(?:sm|compute)_)?(\d+?)\.?(\d)[af]?", arch.strip().lower())
    for card in CARDS:
        if digits is not None and card.compute_capability == (int(digits[1]), int(digits[2])):
            return card
    expected = "one of " + ", ".join(dict.fromkeys(card.arch for card in CARDS))
    raise ConfigurationError("no card is known for this architecture", expected=expected, found=repr(arch))
