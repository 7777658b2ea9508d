"""What inputs are drawn from: numbers on the host, or where the arrays live.

Judge and problems are written once for arrays of numpy and of cupy. Numpy's functions pass a call on to the library of the
arrays they are given, so only what makes an array, or asks for a module of its own, names the library: `Draws.xp` and
`namespace`. An array of one library never meets an array of the other; small decisions are drawn on the host and moved by
`xp.asarray`.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from types import ModuleType
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Draws", "HostDraws", "Shape", "namespace", "normal_table"]

Shape = int | tuple[int, ...]
_N_NORMAL = 65536


def namespace(array: NDArray[np.generic]) -> ModuleType:
    """Numpy or cupy, whichever the array is of; imports neither."""
    return np if isinstance(array, np.ndarray) else sys.modules[type(array).__module__.partition(".")[0]]


@cache
def normal_table() -> NDArray[np.float64]:
    """65,536 standard normal values, always the same."""
    return np.random.default_rng(16).standard_normal(_N_NORMAL)


@cache
def _normal_halves() -> NDArray[np.uint16]:
    return normal_table().astype(np.float16).view(np.uint16)


class Draws(Protocol):
    """Independent random arrays of one library, and a generator for small decisions."""

    @property
    def xp(self) -> ModuleType:
        """The library of the arrays: numpy or cupy."""
        ...

    @property
    def host(self) -> np.random.Generator:
        """For single numbers, permutations and choices."""
        ...

    def words(self, shape: Shape) -> NDArray[np.uint16]:
        """Sixteen random bits each."""
        ...

    def integers(self, low: int, high: int, shape: Shape, dtype: DTypeLike = np.int64) -> NDArray[np.integer]:
        """Integers from `low` on and below `high`, at most 2**32 different ones, as likely as each other to within 2**-32."""
        ...

    def normal(self, shape: Shape) -> NDArray[np.float64]:
        """Standard normal values."""
        ...

    def normal_halves(self, shape: Shape) -> NDArray[np.uint16]:
        """The bits of standard normal values that were rounded to half, from a table of 65,536."""
        ...


class HostDraws:
    """Numpy's arrays, from one of its generators."""

    xp: ModuleType = np

    def __init__(self, rng: np.random.Generator) -> None:
        self.host = rng

    def words(self, shape: Shape) -> NDArray[np.uint16]:
        """See `Draws`."""
        size = shape if isinstance(shape, int) else math.prod(shape)
        words = self.host.integers(0, 2**64, size=-(-size // 4), dtype=np.uint64).view(np.uint16)
        return words[:size].reshape(shape)

    def integers(self, low: int, high: int, shape: Shape, dtype: DTypeLike = np.int64) -> NDArray[np.integer]:
        """See `Draws`."""
        values: NDArray[np.integer] = self.host.integers(low, high, size=shape, dtype=np.dtype(dtype))
        return values

    def normal(self, shape: Shape) -> NDArray[np.float64]:
        """See `Draws`."""
        return self.host.standard_normal(shape)

    def normal_halves(self, shape: Shape) -> NDArray[np.uint16]:
        """See `Draws`."""
        return _normal_halves()[self.words(shape)]
