"""How many blocks of a kernel a multiprocessor holds at once, and what stands in the way of more.

The rules are those of NVIDIA's occupancy calculator as its header `cuda_occupancy.h` (CUDA 13) states them for compute
capability 8.0 and up: registers are given to warps, in pieces of 256, from four equal parts of the register file; shared
memory to blocks, in pieces of 128 bytes, after a reserved kibibyte; and from 9.0 on barriers of the multiprocessor are
shared by its blocks. The tests compare every rule with that header, compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from evo_l2.targets.cuda.cards import Card
from evo_l2.targets.cuda.reading.cubin import RESERVED_SHARED_BYTES, Entry

__all__ = ["Limit", "Occupancy", "occupancy"]

_REGISTER_PIECE = 256
_SHARED_PIECE = 128
_N_PARTS = 4
"""Parts of a multiprocessor, each with a quarter of its registers."""


class Limit(StrEnum):
    """What bounds the number of blocks."""

    WARPS = "warps"
    REGISTERS = "registers"
    SHARED = "shared memory"
    BLOCKS = "blocks"
    BARRIERS = "barriers"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How a multiprocessor is filled."""

    blocks_per_sm: int
    """0: no block fits, so that the launch would fail."""
    warps_per_sm: int
    max_warps_per_sm: int
    limit: Limit
    """The scarcest; of equals the first in the order of `Limit`."""
    blocks_by: dict[Limit, int]
    """Blocks that each alone would admit; what is not used at all is left out."""
    shared_per_block_bytes: int
    """What a block takes of the multiprocessor, reserved part and rounding included."""
    registers_per_block: int

    @property
    def fraction(self) -> float:
        """Resident warps over those that the multiprocessor has room for."""
        return self.warps_per_sm / self.max_warps_per_sm


def occupancy(entry: Entry, block_threads: int, dynamic_shared_bytes: int, card: Card) -> Occupancy:
    """Blocks of one entry that a multiprocessor of a card holds.

    Args:
        entry: Its registers, static shared memory and barriers count.
        block_threads: Threads a block.
        dynamic_shared_bytes: What the launch asks for beside the static shared memory.
        card: Whose limits.

    Raises:
        ValueError: Threads or bytes are no sizes at all (below 1 and 0).
    """
    if block_threads < 1 or dynamic_shared_bytes < 0:
        raise ValueError(f"a block of {block_threads} threads with {dynamic_shared_bytes} bytes is none")
    n_warps = -(-block_threads // card.warp_size)
    of_warp = _round_up(entry.n_registers * card.warp_size, _REGISTER_PIECE)
    shared = _round_up(entry.static_shared_bytes + dynamic_shared_bytes + RESERVED_SHARED_BYTES, _SHARED_PIECE)
    by = {Limit.WARPS: card.max_warps_per_sm // n_warps if block_threads <= card.max_threads_per_block else 0}
    if of_warp:
        # The hardware checks a launch as if its warps were dealt to all parts alike.
        fits = of_warp * _round_up(n_warps, _N_PARTS) <= card.registers_per_sm
        fits &= entry.n_registers <= card.max_registers_per_thread
        by[Limit.REGISTERS] = card.registers_per_sm // _N_PARTS // of_warp * _N_PARTS // n_warps if fits else 0
    fits = shared <= card.shared_per_block_bytes + RESERVED_SHARED_BYTES
    by[Limit.SHARED] = card.shared_per_sm_bytes // shared if fits else 0
    by[Limit.BLOCKS] = card.max_blocks_per_sm
    if entry.n_barriers and card.max_barriers_per_sm is not None:
        by[Limit.BARRIERS] = card.max_barriers_per_sm // entry.n_barriers
    blocks = min(by.values())
    limit = next(name for name, value in by.items() if value == blocks)
    return Occupancy(blocks, blocks * n_warps, card.max_warps_per_sm, limit, by, shared, of_warp * n_warps)


def _round_up(value: int, piece: int) -> int:
    return -(-value // piece) * piece
