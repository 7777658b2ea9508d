"""What outputs hold before a kernel runs: plausible values, so that no kernel can tell them from results."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evo_l2.draws import Draws
from evo_l2.launch import Role
from evo_l2.problem import Instance

__all__ = ["Pool", "poison_pools"]

_N_MARKS = 64
_SPARE = 65536
"""Values by which the string of several sets' poison is longer than one output."""


class Pool:
    """Plausible junk for one output of `n_sets` sets: pieces of one string of standard normal values, evenly apart."""

    def __init__(self, shape: tuple[int, ...], dtype: str, n_sets: int, draws: Draws) -> None:
        self._xp = draws.xp
        self._shape = shape
        self._size = math.prod(shape)
        n_spare = min(_SPARE, (n_sets - 1) * self._size)
        self._step = int(draws.host.integers(1, max(1, n_spare // n_sets) + 1))
        n_values = self._size + max(n_spare, n_sets - 1)
        self._values: NDArray[np.generic] = draws.normal_halves(n_values).view(np.float16).astype(dtype, copy=False)

    def pieces(self, first: int, n_sets: int) -> NDArray[np.generic]:
        """Those of several sets in a row, stacked."""
        values = self._values[first * self._step :]
        strides = (self._step * values.itemsize, values.itemsize)
        windows: NDArray[np.generic] = self._xp.lib.stride_tricks.as_strided(values, (n_sets, self._size), strides)
        return windows.reshape(n_sets, *self._shape)

    def marks(self, first: int, n_sets: int, draws: Draws) -> tuple[NDArray[np.integer], NDArray[np.generic]]:
        """A few random places in every one of them, and what stands there."""
        places = draws.integers(0, max(1, self._size), (n_sets, _N_MARKS))
        starts = (first + self._xp.arange(n_sets)) * self._step
        return places, self._values[places + starts[:, None]]


def poison_pools(instance: Instance, n_sets: int, draws: Draws) -> dict[str, Pool]:
    """One for every output."""
    return {o.name: Pool(instance.shape(o), o.dtype, n_sets, draws) for o in instance.operands(Role.OUT)}
