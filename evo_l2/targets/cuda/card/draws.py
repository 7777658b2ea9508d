"""Numbers drawn on a card by a counter-based generator, and the same ones by numpy.

Philox 4x32-10: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011). One key an object; the
counter goes on from draw to draw, so that no block is used twice. All that follows from the words is integers or a table, so
that card and host agree bit for bit.
"""

from __future__ import annotations

import importlib
import math
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evo_l2.draws import Shape, normal_table

__all__ = ["CardDraws", "philox"]

Words = NDArray[np.uint32]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_N_ROUNDS = 10
_LOW_WORD = np.uint64(0xFFFFFFFF)

_THREADS = 256
_SOURCE = r"""
extern "C" __global__ void philox(uint4 *out, unsigned long long n_blocks, unsigned long long first, unsigned k0, unsigned k1)
{
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_blocks) return;
    unsigned c0 = (unsigned)(first + i), c1 = (unsigned)((first + i) >> 32), c2 = 0, c3 = 0;
    #pragma unroll
    for (int round = 0; round < 10; ++round) {
        unsigned h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        unsigned h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    out[i] = make_uint4(c0, c1, c2, c3);
}
"""


def philox(counters: NDArray[np.uint32], key: tuple[int, int]) -> Words:
    """`(n, 4)` array of words, one block for each of the `(n, 4)` counters."""
    c0, c1, c2, c3 = (counters[:, i].astype(np.uint64) for i in range(4))
    for number in range(_N_ROUNDS):
        k0, k1 = (np.uint64((word + number * step) & 0xFFFFFFFF) for word, step in zip(key, _WEYL, strict=True))
        first, second = np.uint64(_MULTIPLIERS[0]) * c0, np.uint64(_MULTIPLIERS[1]) * c2
        c0, c1 = (second >> np.uint64(32)) ^ c1 ^ k0, second & _LOW_WORD
        c2, c3 = (first >> np.uint64(32)) ^ c3 ^ k1, first & _LOW_WORD
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


@cache
def _kernel(cupy: ModuleType) -> Any:
    return cupy.RawKernel(_SOURCE, "philox")


def _on_card(cupy: ModuleType, n_blocks: int, first: int, key: tuple[int, int]) -> Words:
    words: Words = cupy.empty(4 * n_blocks, dtype=np.uint32)
    if n_blocks:
        arguments = (words, np.uint64(n_blocks), np.uint64(first), np.uint32(key[0]), np.uint32(key[1]))
        _kernel(cupy)((-(-n_blocks // _THREADS),), (_THREADS,), arguments)
    return words


def _on_host(n_blocks: int, first: int, key: tuple[int, int]) -> Words:
    indices = np.arange(first, first + n_blocks, dtype=np.uint64)
    low, high = (indices & _LOW_WORD).astype(np.uint32), (indices >> np.uint64(32)).astype(np.uint32)
    return philox(np.stack([low, high, np.zeros_like(low), np.zeros_like(low)], axis=1), key).reshape(-1)


class CardDraws:
    """Arrays on cupy's current device. See `evo_l2.draws.Draws`.

    Args:
        seed: Where all of them follow from.
        xp: numpy, for the same numbers on the host; cupy when left out.
    """

    def __init__(self, seed: np.random.SeedSequence, xp: ModuleType | None = None) -> None:
        self.xp = xp if xp is not None else importlib.import_module("cupy")
        self.host = np.random.default_rng(seed)
        first, second = (int(word) for word in self.host.integers(2**32, size=2))
        self._key = first, second
        self._n_blocks = 0
        """Blocks that were used up."""
        self._tables: dict[type[np.floating], NDArray[np.floating]] = {}

    def words(self, shape: Shape) -> NDArray[np.uint16]:
        """See `evo_l2.draws.Draws`."""
        size = shape if isinstance(shape, int) else math.prod(shape)
        return self._words(-(-size // 2)).view(np.uint16)[:size].reshape(shape)

    def integers(self, low: int, high: int, shape: Shape, dtype: DTypeLike = np.int64) -> NDArray[np.integer]:
        """See `evo_l2.draws.Draws`; a word times the number of values, shifted down."""
        size = shape if isinstance(shape, int) else math.prod(shape)
        if not 0 < high - low <= 2**32:
            raise ValueError(f"expected from 1 to 2**32 different integers, found {high - low}")
        wide = self._words(size).astype(np.uint64)
        wide *= np.uint64(high - low)
        wide >>= np.uint64(32)
        values = wide.view(np.int64)
        values += low
        narrow: NDArray[np.integer] = values.astype(dtype, copy=False)
        return narrow.reshape(shape)

    def normal(self, shape: Shape) -> NDArray[np.float64]:
        """See `evo_l2.draws.Draws`; from a table of 65,536."""
        return self._table(np.float64).take(self.words(shape)).view(np.float64)

    def normal_halves(self, shape: Shape) -> NDArray[np.uint16]:
        """See `evo_l2.draws.Draws`."""
        return self._table(np.float16).take(self.words(shape)).view(np.uint16)

    def _words(self, n_words: int) -> Words:
        n_blocks, first = -(-n_words // 4), self._n_blocks
        self._n_blocks += n_blocks
        if self.xp is np:
            return _on_host(n_blocks, first, self._key)[:n_words]
        return _on_card(self.xp, n_blocks, first, self._key)[:n_words]

    def _table(self, dtype: type[np.floating]) -> NDArray[np.floating]:
        if dtype not in self._tables:
            self._tables[dtype] = self.xp.asarray(normal_table().astype(dtype))
        return self._tables[dtype]
