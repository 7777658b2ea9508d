"""The gate of HGEMM whose sums grow and cancel: what an accumulator loses is all that is left of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evo_l2.draws import Draws
from evo_l2.problem import Arrays, Defect, Instance
from evo_l2.problems.hgemm_checks import (
    Half,
    bit_equal,
    sizes,
    stored,
)

__all__ = ["Cancellation"]

_ROOM = {"fp32": 2**24, "fp16": 2**10}
"""Largest sum |a b| over the terms of one sign: all that single precision holds exactly; half of what half precision does."""
_WIDEST_LULL = {"fp32": 64, "fp16": 16}
_LARGEST_INTEGER = 2047
"""Of an operand there; half holds it exactly."""
_MOST_REST = 2048
"""Largest sum |a b| of what is left: half holds it exactly, so that every unit of it shows."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Integers whose partial sums grow to a quarter of the room or more, and cancel but for a small rest.

    Sound for every order, blocking and split of K, with fused multiply-adds or without: all terms are integers, and those of
    either sign sum up to `_ROOM` at most. What is summed of them, in any order, lies between these two sums, and is exact in
    the accumulator, whether it rounds or truncates (Higham, Accuracy and Stability of Numerical Algorithms, section 2.1:
    integers up to 2**p are exact with p bits). For half-precision sums that leaves 11 bits: the gate then sees what is
    narrower than half, and no more.

    The other gates do not see such losses: their partial sums are about as large as their results, so that what an
    accumulator of 17 or more bits loses, or one that overflows where half does, drowns in the output's own rounding.
    """

    accumulate: str
    name: str = "cancellation"
    why: str = "a loss in the accumulator, however far below the largest sums, is all that is left of them once they cancel"

    def draw(self, instance: Instance, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """Columns p and q of A are equal, rows p and q of B opposite but for a unit here and there; some terms are tiny.

        Each element's large terms have one sign in one half of K, and the other sign in the other. A block of tiny terms, the
        lull, parts the two somewhere in the middle half of K, where the sums are large. A few rows and columns are loud.
        """
        m, n, k, batch = sizes(instance)
        lull, n_tiny = _lull(k, _WIDEST_LULL[self.accumulate], draws.host)
        n_loud = 4 if self.accumulate == "fp32" and _has_room_for_loud(m, n, k, draws.host) else 0
        room = _ROOM[self.accumulate] - 9 * n_tiny
        n_pairs = min((k - n_tiny - n_loud) // 2, 12 if self.accumulate == "fp16" else k)
        largest = min(_LARGEST_INTEGER - 9 * n_tiny, math.isqrt(room // max(1, n_pairs)))
        xp, rng, kind = draws.xp, draws.host, np.int16
        calm = np.arange(lull.start, lull.stop)
        few = rng.choice(np.setdiff1d(np.arange(k), calm), size=n_tiny - len(calm) + n_loud, replace=False)
        loud, small = few[:n_loud], np.concatenate([calm, few[n_loud:]])
        others = np.setdiff1d(np.arange(k), np.concatenate([small, loud]))
        half = len(others) // 2
        others = np.roll(others, half - int(np.searchsorted(others, lull.start)))
        picks = rng.choice(half, size=n_pairs, replace=False)
        tiny, first = xp.asarray(small), xp.asarray(others[:half][picks])
        second = xp.asarray(rng.permutation(others[half:])[:n_pairs])
        a, b = xp.zeros((batch, m, k), dtype=kind), xp.zeros((batch, k, n), dtype=kind)
        a[:, :, tiny] = draws.integers(1, 4, (batch, m, n_tiny), kind)
        b[:, tiny, :] = draws.integers(-3, 4, (batch, n_tiny, n), kind)
        large = draws.integers((3 * largest + 3) // 4, largest + 1, (batch, m, n_pairs), kind)
        a[:, :, first] = large
        a[:, :, second] = large
        large = draws.integers((3 * largest + 3) // 4, largest + 1, (batch, n_pairs, n), kind)
        b[:, first, :] = large
        b[:, second, :] = -large
        n_rests = min(n_pairs, (_MOST_REST - 9 * n_tiny) // largest)
        b[:, second[:n_rests], :] += draws.integers(0, 2, (batch, n_rests, n), kind)
        a *= draws.integers(0, 2, (batch, m, 1), kind) * kind(2) - kind(1)
        b *= draws.integers(0, 2, (batch, 1, n), kind) * kind(2) - kind(1)
        halves_of_a, halves_of_b = a.astype(np.float16), b.astype(np.float16)
        if n_loud:
            _make_loud(halves_of_a, halves_of_b, xp.asarray(loud), draws)
        return stored(halves_of_a, halves_of_b, instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Bit-equal to the exact product, which half holds."""
        return bit_equal(instance, inputs, outputs, "large terms that cancel do not leave the exact rest")


def _has_room_for_loud(m: int, n: int, k: int, rng: np.random.Generator) -> bool:
    """Where loud ones might be in every tile, only by lot: beside them sums are zero, and not large."""
    return min(m, n) >= 4 and k >= 32 and (min(m, n) >= 64 or rng.random() < 0.5)


def _make_loud(a: Half, b: Half, terms: NDArray[np.integer], draws: Draws) -> None:
    """Four rows of A and four columns of B that hold but four terms each, which nothing else has; where they meet, three huge
    products cancel, and a product of two integers times 2**9 is left.

    The huge terms are (p + q) y, -p y and -q y, each a multiple of 2**19; the first, the largest, is below 2**32. All are
    multiples of 2**9, and those of either sign sum up to 2**33 at most: 24 bits hold every partial sum. The first is above
    2**30 and larger than the others by 2**29 at least, and no operand has more bits than bfloat16.
    """
    batch, kind = a.shape[0], np.float16
    first = [4 * int(draws.host.integers(size // 4)) for size in (a.shape[1], b.shape[2])]
    rows, columns = slice(first[0], first[0] + 4), slice(first[1], first[1] + 4)
    p, q = draws.integers(64, 72, (batch, 4)), draws.integers(48, 56, (batch, 4))
    values = draws.xp.stack([p + q, -p, -q, p * 0 + 1], axis=-1).astype(kind)
    values[..., :3] *= kind(2.0**9)
    a[:, rows] = 0
    a[:, rows, terms] = values
    y = draws.integers(33, 64, (batch, 1, 4))
    last = draws.integers(-63, 64, (batch, 1, 4))
    values = draws.xp.concatenate([y, y, y, last], axis=1).astype(kind)
    values[:, :3] *= kind(2.0**10)
    values[:, 3:] *= kind(2.0**9)
    b[:, :, columns] = 0
    b[:, terms, columns] = values


def _lull(k: int, widest: int, rng: np.random.Generator) -> tuple[range, int]:
    """Where a block of tiny terms stands, aligned to its width, a power of two; and how many terms are to be tiny in all."""
    width = min(widest, 1 << (k // 3).bit_length() - 1) if k > 2 else 0
    n_tiny = width + min(k // 16, 16)
    n_tiny += (k - n_tiny) % 2
    if not width:
        return range(0), n_tiny
    n_blocks = k // width
    first = width * int(rng.integers(-(-n_blocks // 4), 3 * n_blocks // 4))
    return range(first, first + width), n_tiny
