"""Dense inputs of HGEMM: those that timed calls and the `statistics` gate run on.

What a kernel may lose without being seen depends on its inputs, and a kernel can look at them. So neither kind below forgives
what the other gates would not:

- *Scaled*: full-mantissa values over four binades, each row of A and column of B with a power of two of its own, each k with
  one that A's column has and B's row has inverted, and a few elements 32 times as large. One scale for a matrix, a row or a
  column then loses whole terms.
- *Ordinary*: standard normal values, as in use.

In both, a few rows of A and columns of B hold but one power of two. There the product gives an operand's elements back, and
the proven bound, which grows with the number of terms that are not zero, is next to nothing.

Soundness: every partial sum is finite in half, whatever the order and the accumulator. Scaled elements lie between 2**-12 and
2**9 and are normal. The sum of the magnitudes of K terms, 0.62 K on average in the largest row and column, is shrunk to about
2,600 at most; a term with one large element is below 2**7, and one with two below 2**12: of these, which one pair of elements
in 65,536 makes, sixteen would have to meet in one sum. Of ordinary values that sum is 0.64 K, 42,000 for the largest K.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evo_l2.draws import Draws
from evo_l2.problem import Arrays, Instance

__all__ = ["draw_again", "draw_mixture", "draw_ordinary"]

Bits = NDArray[np.uint16]

_ORDINARY = 0.25
"""Share of timed calls whose inputs are ordinary."""
_LARGE_EVERY = 256
_LARGE_EXPONENT = 5
_SPREAD = 4
"""Binades over which rows of A and columns of B are scaled down."""
_K_SPREAD = 3
"""A's columns are scaled up or down by at most this many binades, B's rows down or up."""
_MOST_TERMS = 4096
"""From here on sums are shrunk."""
_PROBE_EVERY = 32
_FEWEST_WITH_PROBE = 8


def draw_mixture(instance: Instance, n_calls: int, draws: Draws) -> dict[str, NDArray[np.generic]]:
    """A and B of several calls, scaled or ordinary by lot, as the layout stores them."""
    a, b = _scaled(instance, n_calls, draws)
    chosen = np.flatnonzero(draws.host.random(n_calls) < _ORDINARY)
    if len(chosen):
        ordinary = draws.xp.asarray(chosen)
        a[ordinary] = draws.normal_halves((len(chosen), *a.shape[1:]))
        b[ordinary] = draws.normal_halves((len(chosen), *b.shape[1:]))
    return _probed(a, b, instance.layout, draws)


def draw_again(instance: Instance, before: Arrays, kept: str, draws: Draws) -> dict[str, NDArray[np.generic]]:
    """A and B of one call with one of them as before, and the other negated, its rows (A) or columns (B) moved on by lot.

    Another draw of the other operand would not do: the powers of two of A's columns and B's rows belong together, and a large
    element of one must not meet one of the other that is not scaled down for it.
    """
    other = "B" if kept == "A" else "A"
    axis = -1 if other == "B" and instance.layout == "nn" else -2
    values = before[other]
    steps = int(draws.host.integers(max(1, values.shape[axis])))
    return {kept: before[kept], other: -draws.xp.roll(values, steps, axis)}


def draw_ordinary(instance: Instance, draws: Draws) -> dict[str, NDArray[np.generic]]:
    """A and B of one call, standard normal but for the probes, as the layout stores them."""
    m, n, k, batch = instance.sizes
    shape = (1, batch, k, n) if instance.layout == "nn" else (1, batch, n, k)
    inputs = _probed(draws.normal_halves((1, batch, m, k)), draws.normal_halves(shape), instance.layout, draws)
    return {name: value[0] for name, value in inputs.items()}


def _scaled(instance: Instance, n_calls: int, draws: Draws) -> tuple[Bits, Bits]:
    m, n, k, batch = instance.sizes
    shrink = max(0, math.ceil(math.log2(k / _MOST_TERMS)))
    rows = draws.integers(-_SPREAD, 1, (n_calls, batch, m, 1), np.int16)
    columns = draws.integers(-_SPREAD, 1, (n_calls, batch, 1, n), np.int16)
    terms = draws.integers(-_K_SPREAD, _K_SPREAD + 1, (n_calls, batch, k), np.int16)
    a = _full_mantissa(draws, rows - shrink // 2, terms[..., None, :])
    columns = columns - (shrink - shrink // 2)
    if instance.layout == "nn":
        return a, _full_mantissa(draws, -terms[..., None], columns)
    return a, _full_mantissa(draws, columns.swapaxes(-1, -2), -terms[..., None, :])


def _full_mantissa(draws: Draws, first: NDArray[np.integer], second: NDArray[np.integer]) -> Bits:
    """Random sign and mantissa, between 2**-3 and 2, times two powers of two; a few elements are 32 times as large."""
    exponents = ((first + np.int16(12)) << 10).astype(np.uint16)
    shape = np.broadcast_shapes(first.shape, second.shape)
    values = draws.words(shape)
    values &= np.uint16(0x8FFF)
    values += exponents
    values += (second << 10).astype(np.uint16)
    large = draws.integers(0, values.size, -(-values.size // _LARGE_EVERY))
    values.reshape(-1)[large] += np.uint16(_LARGE_EXPONENT << 10)
    return values


def _probed(a: Bits, b: Bits, layout: str, draws: Draws) -> dict[str, NDArray[np.generic]]:
    """Puts the probes in."""
    _probe(a, draws)
    _probe(b.swapaxes(-1, -2) if layout == "nn" else b, draws)
    return {"A": a.view(np.float16), "B": b.view(np.float16)}


def _probe(values: Bits, draws: Draws) -> None:
    """Leaves one power of two in every 32nd row on average, in one row at least when there are eight."""
    n_calls, batch, n_rows, k = values.shape
    if n_rows < _FEWEST_WITH_PROBE:
        return
    shape = (n_calls, batch, -(-n_rows // _PROBE_EVERY))
    calls, matrices = draws.xp.arange(n_calls)[:, None, None], draws.xp.arange(batch)[:, None]
    rows = draws.integers(0, n_rows, shape)
    values[calls, matrices, rows] = 0
    powers = draws.integers(13, 18, shape) << 10 | draws.integers(0, 2, shape) << 15
    values[calls, matrices, rows, draws.integers(0, k, shape)] = powers.astype(np.uint16)
