"""What the gates of HGEMM share: operands as a layout stores them, exact products, proven bounds, and where an error lies.

Arithmetic facts: half has 11 significant bits, so the output's rounding alone gives a relative error of at most 2**-11 an
element and about 2.1e-4 in the Frobenius norm.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evo_l2.problem import Arrays, Defect, Instance

__all__ = [
    "Double",
    "Half",
    "bit_equal",
    "double_product",
    "freivalds",
    "frobenius_limit",
    "logical",
    "sizes",
    "stored",
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
    return {
        "A": np.ascontiguousarray(a.astype(np.float16, copy=False)),
        "B": np.ascontiguousarray(b.astype(np.float16, copy=False)),
    }


def logical(inputs: Arrays, layout: str) -> tuple[Double, Double]:
    """A (..., BATCH, M, K) and B (..., BATCH, K, N) in double precision."""
    a, b = inputs["A"].astype(np.float64), inputs["B"].astype(np.float64)
    return a, b.swapaxes(-1, -2) if layout == "nt" else b


def sizes(instance: Instance) -> tuple[int, int, int, int]:
    m, n, k, batch = instance.sizes
    return m, n, k, batch


def _where(wrong: NDArray[np.bool_]) -> str:
    """Names the first wrong element and the box that holds all of them."""
    places = np.argwhere(wrong)
    first = places[0]
    low, high = places.min(axis=0), places.max(axis=0)
    box = f"rows {low[1]}-{high[1]}, columns {low[2]}-{high[2]}"
    share = f"{len(places)} of {wrong.size} elements"
    batch = f" of matrix {first[0]}" if wrong.shape[0] > 1 else ""
    return f"first at C[{first[1]}][{first[2]}]{batch}; {share}, all in {box}"


def _mismatch(got: Half, expected: NDArray[np.generic], wrong: NDArray[np.bool_], what: str) -> Defect | None:
    if not wrong.any():
        return None
    first = tuple(np.argwhere(wrong)[0])
    return Defect(f"{what}: expected {expected[first]:g}, found {got[first]:g}, {_where(wrong)}")


def double_product(a: Double, b: Double) -> Double:
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(a, b))


def bit_equal(instance: Instance, inputs: Arrays, outputs: Arrays, what: str) -> Defect | None:
    """Compares with the exact product, rounded once. The inputs are such that double precision holds every sum exactly."""
    a, b = logical(inputs, instance.layout)
    with np.errstate(over="ignore"):
        expected = double_product(a, b).astype(np.float16)
    got = outputs["C"].view(np.float16)
    return _mismatch(got, expected, ~(got == expected), what)


def within_bounds(instance: Instance, inputs: Arrays, outputs: Arrays, accumulate: str, what: str) -> Defect | None:
    """Compares every element with the product in double precision.

    The bound is half a unit in the last place of the output, plus (K + 2) u sum |a b| for K additions at unit round-off u
    in any order (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). NaN and infinities must agree.
    """
    a, b = logical(inputs, instance.layout)
    reference = double_product(a, b)
    magnitude = double_product(np.abs(a), np.abs(b))
    got = outputs["C"].view(np.float16)
    with np.errstate(all="ignore"):
        slack = (instance.sizes[2] + 2) * _UNIT[accumulate] * magnitude
        bound = np.abs(reference) * 2.0**-11 + 2.0**-25 + slack * 1.01
        wrong = ~(np.abs(got.astype(np.float64) - reference) <= bound)
        wrong[np.isnan(reference) & np.isnan(got)] = False
        wrong[np.isinf(reference) & (got == reference)] = False
        may_overflow = np.abs(reference) + slack >= _OVERFLOW
        same_sign = np.isinf(got) & (np.sign(got) == np.sign(reference))
        wrong[np.isfinite(reference) & may_overflow & same_sign] = False
        wrong[np.isfinite(reference) & (np.abs(reference) - slack >= _OVERFLOW) & ~same_sign] = True
    return _mismatch(got, reference, wrong, what)


def frobenius_limit(accumulate: str, k: int, n_elements: int) -> float:
    """Largest admitted relative error in the Frobenius norm.

    2.6e-4 for single-precision accumulation at any K. Plain half-precision sums, each product and each addition rounded, lose
    2.1e-4 sqrt(2 + K / 2); half as much again is let pass. Small outputs scatter more, hence the last factor.
    """
    limit = 2.6e-4 if accumulate == "fp32" else 3.2e-4 * math.sqrt(2.0 + k / 2)
    return limit * (1.0 + 3.0 / math.sqrt(n_elements))


def freivalds(
    instance: Instance, inputs: Arrays, outputs: Arrays, rng: np.random.Generator, accumulate: str
) -> Defect | None:
    """C v against A (B v) for one random vector of signs: one pass over memory (Freivalds, 1977).

    Operands may have further axes before BATCH, one result for each. With signs independent of the errors, the difference of
    a row has the standard deviation of that row's error norm; eight of them, at the largest admitted relative error, are let
    pass. The root mean square of all rows' differences estimates the relative error in the Frobenius norm itself; with n rows
    it scatters by 1 / sqrt(2 n), of which five and a half are let pass.
    """
    n, k = instance.sizes[1], instance.sizes[2]
    signs = rng.integers(0, 2, size=n) * 2.0 - 1.0
    a, b = logical(inputs, instance.layout)
    c = outputs["C"].view(np.float16).astype(np.float64)
    with np.errstate(all="ignore"):
        difference = np.abs(c @ signs - (a @ (b @ signs)[..., None])[..., 0])
        squares = np.einsum("...k,...k->...", a, a)
        weights = squares * (np.einsum("...kn,...kn->...", b, b) / k)[..., None]
        limit = frobenius_limit(accumulate, k, n)
        wrong = ~(difference <= 8.0 * limit * np.sqrt(weights) + 1e-6)
    if wrong.any():
        place = [int(i) for i in np.argwhere(wrong)[0]]
        of = f" of matrix {place[-2]}" if wrong.shape[-2] > 1 else ""
        return Defect(f"the result is wrong: row {place[-1]}{of} is off ({int(wrong.sum())} of {wrong.size} rows are)")
    total = float(weights.sum())
    n_rows = total**2 / max(float((weights * weights).sum()), 1e-300)
    found = math.sqrt(float((difference * difference).sum()))
    most = frobenius_limit(accumulate, k, n * wrong.size) * (1.0 + 4.0 / math.sqrt(max(n_rows, 1.0)))
    if found > most * math.sqrt(total) + 1e-6 * math.sqrt(wrong.size):
        return Defect(f"the relative error is about {found / math.sqrt(total):.3g}, over {most:.3g}")
    return None
