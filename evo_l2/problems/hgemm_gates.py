"""The gates of HGEMM: inputs on which no right kernel fails, and checks that say where a wrong one goes wrong.

Arithmetic facts: half has 11 significant bits, so the output's rounding alone gives a relative error of at most 2**-11 an
element and about 2.1e-4 in the Frobenius norm; single precision holds integers exactly up to 2**24, half up to 2**11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evo_l2.problem import Arrays, Defect, Gate, Instance

__all__ = ["GATES_VERSION", "freivalds", "frobenius_limit", "hgemm_gates"]

GATES_VERSION = 1
"""Changes with any gate below; part of the problem's key."""

Half = NDArray[np.float16]
Double = NDArray[np.float64]

_UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11}
"""Unit round-off of the accumulator."""
_OVERFLOW = 65520.0
"""From here on a value rounds to infinity in half."""


def _stored(a: NDArray[np.generic], b: NDArray[np.generic], layout: str) -> dict[str, NDArray[np.generic]]:
    """Inputs as the layout stores them, from A (BATCH, M, K) and B (BATCH, K, N)."""
    b = b.swapaxes(1, 2) if layout == "nt" else b
    return {
        "A": np.ascontiguousarray(a.astype(np.float16, copy=False)),
        "B": np.ascontiguousarray(b.astype(np.float16, copy=False)),
    }


def _logical(inputs: Arrays, layout: str) -> tuple[Double, Double]:
    """A (BATCH, M, K) and B (BATCH, K, N) in double precision."""
    a, b = inputs["A"].astype(np.float64), inputs["B"].astype(np.float64)
    return a, b.swapaxes(1, 2) if layout == "nt" else b


def _sizes(instance: Instance) -> tuple[int, int, int, int]:
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


def _double_product(a: Double, b: Double) -> Double:
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(a, b))


def _bit_equal(instance: Instance, inputs: Arrays, outputs: Arrays, what: str) -> Defect | None:
    """Compares with the exact product, rounded once. The inputs are such that double precision holds every sum exactly."""
    a, b = _logical(inputs, instance.layout)
    with np.errstate(over="ignore"):
        expected = _double_product(a, b).astype(np.float16)
    got = outputs["C"].view(np.float16)
    return _mismatch(got, expected, ~(got == expected), what)


def _within_bounds(instance: Instance, inputs: Arrays, outputs: Arrays, accumulate: str, what: str) -> Defect | None:
    """Compares every element with the product in double precision.

    The bound is half a unit in the last place of the output, plus (K + 2) u sum |a b| for K additions at unit round-off u
    in any order (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). NaN and infinities must agree.
    """
    a, b = _logical(inputs, instance.layout)
    reference = _double_product(a, b)
    magnitude = _double_product(np.abs(a), np.abs(b))
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


@dataclass(frozen=True, slots=True)
class ExactIntegers:
    """Small signed integers whose every partial sum the accumulator holds exactly."""

    accumulate: str
    name: str = "exact-integers"
    why: str = "indexing errors, dropped tails, races and too narrow accumulators pass tolerances, but not equality"

    def draw(self, instance: Instance, rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        """Dense for single precision; for half, B is thinned out so that sum |a b| stays at most 2,048."""
        m, n, k, batch = _sizes(instance)
        if self.accumulate == "fp32":
            radius = _integer_radius(k)
            a = rng.integers(-radius, radius + 1, size=(batch, m, k), dtype=np.int16)
            b = rng.integers(-radius, radius + 1, size=(batch, k, n), dtype=np.int16)
            return _stored(a, b, instance.layout)
        a = rng.integers(-3, 4, size=(batch, m, k), dtype=np.int16)
        b = rng.integers(-3, 4, size=(batch, k, n), dtype=np.int16)
        n_terms = 2048 // 9
        if k > n_terms:
            keep = np.argsort(rng.random((batch, k, n), dtype=np.float32), axis=1) < n_terms
            b = np.where(keep, b, 0)
        return _stored(a, b, instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Bit-equal to the exact product, rounded once to half."""
        return _bit_equal(instance, inputs, outputs, "a product of small integers is not exact")


def _integer_radius(k: int) -> int:
    """Largest radius with K r**2 below 2**24 and six standard deviations of the sum, sqrt(K) r (r + 1) / 3, below 65,504."""
    radius = 1
    while radius < 45 and k * (radius + 1) ** 2 < 2**24 and 2 * math.sqrt(k) * (radius + 1) * (radius + 2) < 65504:
        radius += 1
    return radius


def _full_mantissa(rng: np.random.Generator, shape: tuple[int, ...]) -> Double:
    """Halves with random sign and mantissa, between 2**-2 and 2**2."""
    mantissa = rng.integers(1024, 2048, size=shape) / 1024.0
    exponent = rng.integers(-2, 2, size=shape)
    sign = rng.integers(0, 2, size=shape) * 2.0 - 1.0
    return np.asarray(np.ldexp(mantissa * sign, exponent))


def _selection(rng: np.random.Generator, batch: int, n_rows: int, n_columns: int) -> Double:
    """(BATCH, rows, columns) with one power of two in each row, columns used as evenly as can be."""
    result = np.zeros((batch, n_rows, n_columns))
    for matrix in result:
        columns = np.concatenate([rng.permutation(n_columns) for _ in range(-(-n_rows // n_columns))])[:n_rows]
        matrix[np.arange(n_rows), columns] = 2.0 ** rng.integers(-3, 4, size=n_rows)
    return result


@dataclass(frozen=True, slots=True)
class RowsOfB:
    """A picks rows of B and scales them by powers of two."""

    name: str = "rows-of-b"
    why: str = "a kernel that narrows B (FP8, INT8, bf16) or maps its tiles wrongly cannot give B's rows back bit for bit"

    def draw(self, instance: Instance, rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        """A has one power of two a row, B full-mantissa values."""
        m, n, k, batch = _sizes(instance)
        return _stored(_selection(rng, batch, m, k), _full_mantissa(rng, (batch, k, n)), instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Bit-equal."""
        return _bit_equal(instance, inputs, outputs, "scaled rows of B do not come back unchanged")


@dataclass(frozen=True, slots=True)
class ColumnsOfA:
    """B picks columns of A and scales them by powers of two."""

    name: str = "columns-of-a"
    why: str = "a kernel that narrows A or maps its tiles wrongly cannot give A's columns back bit for bit"

    def draw(self, instance: Instance, rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        """B has one power of two a column, A full-mantissa values."""
        m, n, k, batch = _sizes(instance)
        picks = _selection(rng, batch, n, k).swapaxes(1, 2)
        return _stored(_full_mantissa(rng, (batch, m, k)), picks, instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Bit-equal."""
        return _bit_equal(instance, inputs, outputs, "scaled columns of A do not come back unchanged")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Random signed full-mantissa values against the product in double precision."""

    accumulate: str
    name: str = "statistics"
    why: str = "accumulation in half precision, and any loss spread thinly over the result, shows in the relative error"

    def draw(self, instance: Instance, rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        """Standard normal values, shrunk where sums would overflow."""
        m, n, k, batch = _sizes(instance)
        a, b = rng.standard_normal((batch, m, k)), rng.standard_normal((batch, k, n))
        return _stored(a, b, instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Relative error in the Frobenius norm, one matrix at a time, within `frobenius_limit`."""
        reference = _double_product(*_logical(inputs, instance.layout))
        got = outputs["C"].view(np.float16).astype(np.float64)
        for index, (c, r) in enumerate(zip(got, reference, strict=True)):
            with np.errstate(all="ignore"):
                error = float(np.linalg.norm(c - r) / np.linalg.norm(r))
            limit = frobenius_limit(self.accumulate, instance.sizes[2], r.size)
            if not error <= limit:
                what = f"relative Frobenius error {error:.3g} of matrix {index} is over {limit:.3g}"
                return Defect(f"{what} ({self.accumulate} accumulation, K = {instance.sizes[2]})")
        return None


@dataclass(frozen=True, slots=True)
class Hard:
    """A hard case: a recipe for inputs, checked element by element against a proven bound."""

    accumulate: str
    name: str
    why: str

    def draw(self, instance: Instance, rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        """By the recipe that has the gate's name."""
        m, n, k, batch = _sizes(instance)
        a, b = rng.standard_normal((batch, m, k)), rng.standard_normal((batch, k, n))
        a, b = _RECIPES[self.name](a, b, rng)
        with np.errstate(over="ignore"):
            return _stored(a, b, instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Every element within its bound; NaN and infinities where they belong."""
        return _within_bounds(instance, inputs, outputs, self.accumulate, f"wrong on {self.name.replace('-', ' ')}")


def _last_k_tile(a: Double, b: Double, rng: np.random.Generator) -> tuple[Double, Double]:
    """Almost all of the energy in the last few terms of every sum; nothing subnormal, which is another gate's."""
    n_last = min(a.shape[2], int(rng.integers(1, 17)))
    a[:, :, :-n_last] *= 2.0**-8
    a[np.abs(a) < 2.0**-14] = 0.0
    return a, b


def _huge_rows(a: Double, b: Double, rng: np.random.Generator) -> tuple[Double, Double]:
    """One row of A and one column of B far above the rest."""
    a[:, rng.integers(a.shape[1]), :] *= 2.0**6
    b[:, :, rng.integers(b.shape[2])] *= 2.0**3
    return a, b


def _subnormals(a: Double, b: Double, rng: np.random.Generator) -> tuple[Double, Double]:
    """Subnormal halves in A, in every other column of B too; outputs on both sides of the subnormal range."""
    a = np.ldexp(rng.integers(1, 1024, size=a.shape) * np.sign(a), -24)
    b[:, :, ::2] *= 2.0**-5
    b[:, :, 1::2] *= 2.0**6
    return np.asarray(a), b


def _cancellation(a: Double, b: Double, rng: np.random.Generator) -> tuple[Double, Double]:
    """Pairs of terms that cancel but for a last, small one."""
    half = a.shape[2] // 2
    order = rng.permutation(a.shape[2])
    first, second = order[:half], order[half : 2 * half]
    a[:, :, second] = a[:, :, first]
    b[:, second, :] = -b[:, first, :].astype(np.float16).astype(np.float64)
    b[:, order[-1], :] += 2.0**-4 * rng.standard_normal((b.shape[0], b.shape[2]))
    return a, b


def _special_values(a: Double, b: Double, rng: np.random.Generator) -> tuple[Double, Double]:
    """NaN and infinities in a few rows and columns, and one row whose finite sums overflow half."""
    batch, m, k = a.shape
    for matrix in range(batch):
        rows = rng.integers(m, size=4)
        a[matrix, rows[0], rng.integers(k)] = np.inf
        a[matrix, rows[1], rng.integers(k)] = -np.inf
        a[matrix, rows[2], :] = 300.0 * np.sign(a[matrix, rows[2], :])
        b[matrix, :, rng.integers(b.shape[2])] = 300.0 * np.sign(a[matrix, rows[2], :])
        a[matrix, rows[3], rng.integers(k)] = np.nan
        b[matrix, rng.integers(k), rng.integers(b.shape[2])] = -np.inf
    return a, b


_RECIPES = {
    "last-k-tile": _last_k_tile,
    "huge-rows": _huge_rows,
    "subnormals": _subnormals,
    "cancellation": _cancellation,
    "special-values": _special_values,
}
_WHY = {
    "last-k-tile": "a dropped or doubled tail of K hides among many equal terms",
    "huge-rows": "scaling by one factor for the whole matrix loses the small rows beside a huge one",
    "subnormals": "a kernel that flushes subnormals is right on every ordinary input",
    "cancellation": "large terms that cancel uncover narrow accumulators and wrong signs",
    "special-values": "NaN, infinities and overflow have to come out where IEEE 754 puts them",
}


def hgemm_gates(accumulate: str) -> tuple[Gate, ...]:
    """The suite for one accumulator class, cheapest and most telling first."""
    return (
        ExactIntegers(accumulate),
        RowsOfB(),
        ColumnsOfA(),
        Statistics(accumulate),
        *(Hard(accumulate, name, _WHY[name]) for name in _RECIPES),
    )


def freivalds(
    instance: Instance, inputs: Arrays, outputs: Arrays, rng: np.random.Generator, accumulate: str
) -> Defect | None:
    """C v against A (B v) for one random vector of signs: one pass over memory (Freivalds, 1977).

    With signs independent of the errors, the difference of a row has the standard deviation of that row's error norm;
    eight of them, at the largest admitted relative error, are let pass.
    """
    n, k = instance.sizes[1], instance.sizes[2]
    signs = rng.integers(0, 2, size=n) * 2.0 - 1.0
    a, b = _logical(inputs, instance.layout)
    c = outputs["C"].view(np.float16).astype(np.float64)
    with np.errstate(all="ignore"):
        difference = np.abs(c @ signs - (a @ (b @ signs)[..., None])[..., 0])
        row_norm = np.linalg.norm(a, axis=2) * math.sqrt(n) * np.sqrt(np.mean(b * b, axis=(1, 2)))[:, None]
        bound = 8.0 * frobenius_limit(accumulate, k, n) * row_norm + 1e-6
        wrong = ~(difference <= bound)
    if not wrong.any():
        return None
    batch, row = (int(i) for i in np.argwhere(wrong)[0])
    of = f" of matrix {batch}" if wrong.shape[0] > 1 else ""
    return Defect(f"a timed call's result is wrong: row {row}{of} is off ({int(wrong.sum())} of {wrong.size} rows are)")
