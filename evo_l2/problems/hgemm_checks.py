"""What the gates of HGEMM share: operands as a layout stores them, exact products, proven bounds, and where an error lies.

For arrays of numpy and of cupy alike: see `evo_l2.draws`.

Arithmetic facts: half has 11 significant bits, so the output's rounding alone gives a relative error of at most 2**-11 an
element and about 2.1e-4 in the Frobenius norm.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evo_l2.draws import Draws, namespace
from evo_l2.problem import Arrays, Defect, Instance

__all__ = [
    "Double",
    "Half",
    "bit_equal",
    "double_product",
    "frobenius_limit",
    "halves",
    "logical",
    "power_of_two",
    "sizes",
    "spot_check",
    "stored",
    "too_much_excess",
    "within_bounds",
]

Half = NDArray[np.float16]
Double = NDArray[np.float64]

_UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11}
"""Unit round-off of the accumulator."""
_OVERFLOW = 65520.0
"""From here on a value rounds to infinity in half."""


def stored(a: NDArray[np.generic], b: NDArray[np.generic], layout: str) -> dict[str, NDArray[np.generic]]:
    """Inputs as the layout stores them, from A (BATCH, M, K) and B (BATCH, K, N)."""
    b = b.swapaxes(1, 2) if layout == "nt" else b
    return {name: value.astype(np.float16, order="C", copy=False) for name, value in (("A", a), ("B", b))}


def logical(inputs: Arrays, layout: str) -> tuple[Double, Double]:
    """A (..., BATCH, M, K) and B (..., BATCH, K, N) in double precision."""
    a, b = inputs["A"].astype(np.float64), inputs["B"].astype(np.float64)
    return a, b.swapaxes(-1, -2) if layout == "nt" else b


def sizes(instance: Instance) -> tuple[int, int, int, int]:
    m, n, k, batch = instance.sizes
    return m, n, k, batch


def halves(outputs: Arrays) -> Half:
    """C, as it was written."""
    return outputs["C"].view(np.float16)


def power_of_two(exponents: NDArray[np.integer]) -> Double:
    """Two to each of them, exactly; for normal results."""
    return ((exponents.astype(np.int64) + 1023) << 52).view(np.float64)


def _first(wrong: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _where(wrong: NDArray[np.bool_]) -> str:
    """Names the first wrong element and the box that holds all of them."""
    first = _first(wrong)
    in_rows, in_columns = (np.flatnonzero(wrong.any(axis=axis).any(axis=0)) for axis in (2, 1))
    box = f"rows {int(in_rows[0])}-{int(in_rows[-1])}, columns {int(in_columns[0])}-{int(in_columns[-1])}"
    share = f"{int(wrong.sum())} of {wrong.size} elements"
    batch = f" of matrix {first[0]}" if wrong.shape[0] > 1 else ""
    return f"first at C[{first[1]}][{first[2]}]{batch}; {share}, all in {box}"


def _mismatch(got: Half, expected: NDArray[np.generic], wrong: NDArray[np.bool_], what: str) -> Defect | None:
    if not wrong.any():
        return None
    first = _first(wrong)
    return Defect(f"{what}: expected {float(expected[first]):g}, found {float(got[first]):g}, {_where(wrong)}")


def double_product(a: Double, b: Double) -> Double:
    with np.errstate(all="ignore"):
        product: Double = np.matmul(a, b)
    return product


def bit_equal(instance: Instance, inputs: Arrays, outputs: Arrays, what: str) -> Defect | None:
    """Compares with the exact product, rounded once. The inputs are such that double precision holds every sum exactly."""
    a, b = logical(inputs, instance.layout)
    with np.errstate(over="ignore"):
        expected = double_product(a, b).astype(np.float16)
    got = halves(outputs)
    return _mismatch(got, expected, ~(got == expected), what)


def within_bounds(got: Half, a: Double, b: Double, reference: Double, accumulate: str, what: str) -> Defect | None:
    """Compares every element with `reference`, the product in double precision: see `_out_of_bounds`."""
    magnitude = double_product(np.abs(a), np.abs(b))
    return _mismatch(got, reference, _out_of_bounds(got, reference, magnitude, _n_terms(a, b), accumulate), what)


def _n_terms(a: Double, b: Double) -> Double:
    """For each element of the product, an upper bound for the number of its terms that are not zero."""
    ones = namespace(a).ones((1, a.shape[-1]))
    in_row, in_column = (a != 0.0).astype(np.float64) @ ones.T, ones @ (b != 0.0).astype(np.float64)
    n_terms: Double = np.minimum(in_row, in_column)
    return n_terms


def _out_of_bounds(got: Half, reference: Double, magnitude: Double, n_terms: Double, accumulate: str) -> NDArray[np.bool_]:
    """Which elements no right kernel can have written.

    The bound is half a unit in the last place of the output, plus (T + 2) u sum |a b| for T terms at unit round-off u in any
    order (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Terms that are zero do not count: to add them
    is exact. Half-precision products may be subnormal, and lose up to 2**-25 each. NaN and infinities must agree; but sums in
    half may be NaN for an infinity, since a finite part may overflow beside it.
    """
    with np.errstate(all="ignore"):
        slack = (n_terms + 2.0) * _UNIT[accumulate] * magnitude
        if accumulate == "fp16":
            slack += n_terms * 2.0**-25
        size = np.abs(reference)
        bound = size * 2.0**-11 + 2.0**-25 + slack * 1.01
        wrong: NDArray[np.bool_] = ~(np.abs(got.astype(np.float64) - reference) <= bound)
        finite = np.isfinite(reference)
        same_sign = np.isinf(got) & (np.sign(got) == np.sign(reference))
        wrong &= ~(np.isnan(reference) & np.isnan(got))
        infinite = np.isinf(reference)
        wrong &= ~infinite
        wrong |= infinite & (got != reference) & ~(np.isnan(got) & (accumulate == "fp16"))
        wrong &= ~(finite & (size + slack >= _OVERFLOW) & same_sign)
        wrong |= finite & (size - slack >= _OVERFLOW) & ~same_sign
    return wrong


_EXCESS = 2e-5
"""Root mean square of what single-precision sums add to the output's rounding, relative to the root of the sum of squared
terms: 0.6 sqrt(K) 2**-24 one after another, 8e-6 at K = 65,536."""
_EXCESS_OF_FEW = 8.0
"""For a few rows, this many times as much is let pass."""


def too_much_excess(got: Half, a: Double, b: Double, reference: Double, accumulate: str) -> Defect | None:
    """What the result is off by beyond half a unit in the last place, root mean square, for single-precision sums.

    The output's own rounding hides an error of half its size in the Frobenius norm; here nothing of it is left, since the
    distance to a rounded sum is at most that half unit and the sum's own error.
    """
    if accumulate != "fp32":
        return None
    found = _excess(got, reference, double_product(a * a, b * b))
    limit = _EXCESS * (1.0 + 3.0 / math.sqrt(got.size))
    return None if found <= limit else Defect(f"sums are off by {found:.3g}, over {limit:.3g}, relative to their terms")


def _excess(got: Half, reference: Double, squares: Double) -> float:
    with np.errstate(all="ignore"):
        half_unit = power_of_two(np.maximum(np.frexp(reference)[1] - 12, -25))
        excess = np.maximum(np.abs(got.astype(np.float64) - reference) - half_unit, 0.0)
        return math.sqrt(float(np.mean(excess * excess / np.maximum(squares, 2.0**-48))))


def frobenius_limit(accumulate: str, k: int, n_elements: int) -> float:
    """Largest admitted relative error in the Frobenius norm.

    2.6e-4 for single-precision accumulation at any K. Plain half-precision sums, each product and each addition rounded, lose
    2.1e-4 sqrt(2 + K / 2); half as much again is let pass. Small outputs scatter more, hence the last factor.
    """
    limit = 2.6e-4 if accumulate == "fp32" else 3.2e-4 * math.sqrt(2.0 + k / 2)
    return limit * (1.0 + 3.0 / math.sqrt(n_elements))


_MOST_CHECKED_ROWS = 4
_CHECKED_EVERY = 8
"""Rows of one matrix in so many are checked element by element."""


def spot_check(instance: Instance, inputs: Arrays, outputs: Arrays, draws: Draws, accumulate: str) -> Defect | None:
    """Freivalds' identity for all rows, and `_out_of_bounds` and `_excess` for a few of them, drawn at random.

    Operands may have further axes before BATCH, one result for each.
    """
    a, b = logical(inputs, instance.layout)
    c = halves(outputs)
    defect = _freivalds(instance, a, b, c, draws, accumulate)
    if defect is not None:
        return defect
    xp = draws.xp
    n_matrices = math.prod(a.shape[:-2])
    picks = xp.asarray(draws.host.choice(n_matrices, size=-(-n_matrices // _CHECKED_EVERY), replace=False))
    rows = draws.host.integers(a.shape[-2], size=min(_MOST_CHECKED_ROWS, a.shape[-2]))
    of_picks = picks[:, None], xp.asarray(rows)
    a = xp.ascontiguousarray(a.reshape(-1, *a.shape[-2:])[of_picks])
    c = c.reshape(-1, *c.shape[-2:])[of_picks]
    b = b.reshape(-1, *b.shape[-2:])
    b = b if n_matrices == 1 else b[picks]
    reference = a @ b
    n_terms = _n_terms(a, b)
    np.abs(b, out=b)
    wrong = _out_of_bounds(c, reference, np.abs(a) @ b, n_terms, accumulate)
    if wrong.any():
        first = _first(wrong)
        what = f"C[{rows[first[1]]}][{first[2]}] is {float(c[first]):g} instead of {float(reference[first]):g}"
        return Defect(f"{what} ({int(wrong.sum())} of {wrong.size} are wrong)")
    if accumulate == "fp32":
        np.multiply(b, b, out=b)
        found = _excess(c, reference, (a * a) @ b)
        if not found <= _EXCESS_OF_FEW * _EXCESS * (1.0 + 3.0 / math.sqrt(c.size)):
            return Defect(f"sums are off by {found:.3g} relative to their terms")
    return None


def _freivalds(instance: Instance, a: Double, b: Double, c: Half, draws: Draws, accumulate: str) -> Defect | None:
    """C v against A (B v): one pass over memory (Freivalds, 1977). v has random signs, and evens out C's columns.

    With signs independent of the errors, the difference of a row has the standard deviation of that row's error norm, and the
    sum of its squared terms, times v squared, is what its squared norm is on average. Eight standard deviations, at the
    largest admitted relative error, are let pass in a row. The root mean square over the rows, each relative to its own norm,
    estimates the relative error in the Frobenius norm of C with rows and columns evened out; with n rows it scatters by
    1 / sqrt(2 n), of which five and a half are let pass.
    """
    n, k = instance.sizes[1], instance.sizes[2]
    with np.errstate(all="ignore"):
        a_squared, b_squared = a * a, b * b
        column_norms = np.sqrt(draws.xp.full((1, a.shape[-2]), 1.0 / a.shape[-2]) @ a_squared @ b_squared)
        signs = draws.integers(0, 2, n).astype(np.float64) * 2.0 - 1.0
        v = (signs / np.maximum(column_norms, 2.0**-48)).reshape(*b.shape[:-2], n, 1)
        v_squared = v * v
        difference = np.abs(c.astype(np.float64) @ v - a @ (b @ v))[..., 0]
        weights = (a_squared @ (b_squared @ v_squared))[..., 0]
        least = 2.0**-25 * np.sqrt(v_squared.sum(axis=(-2, -1)))[..., None]
        limit = frobenius_limit(accumulate, k, n)
        wrong = ~(difference <= 8.0 * (limit * np.sqrt(weights) + least))
    if wrong.any():
        place = _first(wrong)
        of = f" of matrix {place[-2]}" if wrong.shape[-2] > 1 else ""
        return Defect(f"the result is wrong: row {place[-1]}{of} is off ({int(wrong.sum())} of {wrong.size} rows are)")
    most = frobenius_limit(accumulate, k, n * wrong.size) * (1.0 + 4.0 / math.sqrt(wrong.size))
    found = math.sqrt(float(np.mean(difference**2 / np.maximum(weights + (least / most) ** 2, 2.0**-96))))
    if found > most:
        return Defect(f"the relative error is about {found:.3g}, over {most:.3g}")
    return None
