"""The gates of HGEMM: inputs on which no right kernel fails, and checks that say where a wrong one goes wrong.

Arithmetic facts: half has 11 significant bits, so the output's rounding alone gives a relative error of at most 2**-11 an
element and about 2.1e-4 in the Frobenius norm; single precision holds integers exactly up to 2**24, half up to 2**11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evo_l2.draws import Draws
from evo_l2.problem import Arrays, Defect, Gate, Instance
from evo_l2.problems.hgemm_cancellation import Cancellation
from evo_l2.problems.hgemm_checks import (
    Double,
    Half,
    bit_equal,
    double_product,
    frobenius_limit,
    halves,
    logical,
    sizes,
    stored,
    too_much_excess,
    within_bounds,
)
from evo_l2.problems.hgemm_inputs import draw_ordinary

__all__ = ["GATES_VERSION", "hgemm_gates"]

GATES_VERSION = 4
"""Changes with any gate below; part of the problem's key."""


@dataclass(frozen=True, slots=True)
class ExactIntegers:
    """Small signed integers whose every partial sum the accumulator holds exactly."""

    accumulate: str
    name: str = "exact-integers"
    why: str = "indexing errors, dropped tails, races and too narrow accumulators pass tolerances, but not equality"

    def draw(self, instance: Instance, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """Dense for single precision; for half, B is thinned out so that sum |a b| stays at most 2,048.

        A few rows of A hold at most four values, and every second matrix is the one before it but for an element of A
        and the sign of one of B. Neither makes any sum |a b| larger than it may be.
        """
        m, n, k, batch = sizes(instance)
        radius = _integer_radius(k) if self.accumulate == "fp32" else 3
        a = draws.integers(-radius, radius + 1, (batch, m, k), np.int16)
        b = draws.integers(-radius, radius + 1, (batch, k, n), np.int16)
        n_terms = 2048 // 9
        if self.accumulate == "fp16" and k > n_terms:
            b *= _few_in_columns(draws, batch, k, n, n_terms)
        if k > 4:
            _leave_few(a, radius, draws)
        _repeat_with_changes(a, b, radius, draws)
        return stored(a, b, instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Bit-equal to the exact product, rounded once to half."""
        return bit_equal(instance, inputs, outputs, "a product of small integers is not exact")


def _leave_few(a: NDArray[np.integer], radius: int, draws: Draws) -> None:
    """Leaves at most four values, none of them zero, in one row of every sixteen, if there are eight."""
    batch, m, k = a.shape
    if m < 8:
        return
    xp = draws.xp
    matrices, first = xp.arange(batch)[:, None], xp.arange(0, m, 16)
    rows = np.minimum(first + draws.integers(0, 16, (batch, len(first))), m - 1)
    a[matrices, rows] = 0
    for _ in range(4):
        values = draws.integers(1, radius + 1, rows.shape, np.int16)
        values *= draws.integers(0, 2, rows.shape, np.int16) * np.int16(2) - np.int16(1)
        a[matrices, rows, draws.integers(0, k, rows.shape)] = values


def _repeat_with_changes(a: NDArray[np.integer], b: NDArray[np.integer], radius: int, draws: Draws) -> None:
    """Makes matrices 1, 3, ... those before them, but for the value of an element of A and the sign of one of B."""
    batch, m, k = a.shape
    n_changed = batch // 2
    if not n_changed:
        return
    a[1::2], b[1::2] = a[: 2 * n_changed : 2], b[: 2 * n_changed : 2]
    xp = draws.xp
    matrices, terms = xp.arange(1, batch, 2), draws.integers(0, k, n_changed)
    rows, columns = draws.integers(0, m, n_changed), draws.integers(0, b.shape[2], n_changed)
    values = a[matrices, rows, terms] + np.int16(1)
    a[matrices, rows, terms] = xp.where(values > radius, np.int16(-radius), values)
    b[matrices, terms, columns] = -b[matrices, terms, columns]


def _integer_radius(k: int) -> int:
    """Largest radius with K r**2 below 2**24 and six standard deviations of the sum, sqrt(K) r (r + 1) / 3, below 65,504."""
    radius = 1
    while radius < 45 and k * (radius + 1) ** 2 < 2**24 and 2 * math.sqrt(k) * (radius + 1) * (radius + 2) < 65504:
        radius += 1
    return radius


def _few_in_columns(draws: Draws, batch: int, k: int, n: int, n_most: int) -> NDArray[np.bool_]:
    """(BATCH, K, N), true at most `n_most` times in each column, at random places.

    At the places of the `n_most` smallest of K random numbers; where the next is as large as the last of them, which one
    column in a million is, of fewer.
    """
    keys = draws.integers(0, 2**32, (batch, k, n), np.uint32)
    limits = np.partition(keys, n_most, axis=1)[:, n_most : n_most + 1]
    few: NDArray[np.bool_] = keys < limits
    return few


_LOW, _HIGH = -10, 12
"""A row whose exponents lie within 4 below and 3 above any of these holds normal halves only."""
_SIGN_AND_MANTISSA, _MANTISSA_BITS, _BIAS = 0x83FF, 10, 15
"""Of half's bits."""
_MOST_SHORT, _FITS_BF16 = 64, 0xFFF8
"""Rows of short mantissas, and what is left of their bits."""


def _selected(draws: Draws, batch: int, n_rows: int, k: int, width: int) -> tuple[Half, Half]:
    """(BATCH, rows, K) with one power of two in each row, and (BATCH, K, width) full-mantissa halves; their product is exact.

    The halves take all of half's normal range, each of the K rows eight binades of it; a power of two takes the row that it
    picks to any other eight. Rows are picked as evenly as can be. The first half of the K rows, 64 at most, fit into
    bfloat16, as though all of the operand did.
    """
    xp, rng = draws.xp, draws.host
    bands = rng.integers(_LOW, _HIGH + 1, size=(batch, k))
    values = draws.words((batch, k, width)) & np.uint16(_SIGN_AND_MANTISSA)
    exponents = draws.integers(0, 8, values.shape, np.uint16)
    exponents += xp.asarray((bands + (_BIAS - 4)).astype(np.uint16))[..., None]
    values |= exponents << np.uint16(_MANTISSA_BITS)
    values[:, : min(_MOST_SHORT, k // 2)] &= np.uint16(_FITS_BF16)
    n_rounds = -(-n_rows // k)
    chosen = np.stack([np.concatenate([rng.permutation(k) for _ in range(n_rounds)])[:n_rows] for _ in range(batch)])
    bands = np.take_along_axis(bands, chosen, axis=1)
    shifts = rng.integers(np.maximum(_LOW - bands, -14), np.minimum(_HIGH - bands, 15) + 1)
    picks = xp.zeros((batch, n_rows, k), dtype=np.uint16)
    powers = xp.asarray((shifts + _BIAS << _MANTISSA_BITS).astype(np.uint16))
    picks[xp.arange(batch)[:, None], xp.arange(n_rows), xp.asarray(chosen)] = powers
    return picks.view(np.float16), values.view(np.float16)


@dataclass(frozen=True, slots=True)
class RowsOfB:
    """A picks rows of B and scales them by powers of two."""

    name: str = "rows-of-b"
    why: str = "a kernel that narrows B (FP8, INT8, bf16) or maps its tiles wrongly cannot give B's rows back bit for bit"

    def draw(self, instance: Instance, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """A has one power of two a row, B full-mantissa values of all magnitudes, but for the first of its rows."""
        m, n, k, batch = sizes(instance)
        return stored(*_selected(draws, batch, m, k, n), instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Bit-equal."""
        return bit_equal(instance, inputs, outputs, "scaled rows of B do not come back unchanged")


@dataclass(frozen=True, slots=True)
class ColumnsOfA:
    """B picks columns of A and scales them by powers of two."""

    name: str = "columns-of-a"
    why: str = "a kernel that narrows A or maps its tiles wrongly cannot give A's columns back bit for bit"

    def draw(self, instance: Instance, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """B has one power of two a column, A full-mantissa values of all magnitudes, but for the first columns."""
        m, n, k, batch = sizes(instance)
        picks, values = _selected(draws, batch, n, k, m)
        return stored(values.swapaxes(1, 2), picks.swapaxes(1, 2), instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Bit-equal."""
        return bit_equal(instance, inputs, outputs, "scaled columns of A do not come back unchanged")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Random signed full-mantissa values against the product in double precision."""

    accumulate: str
    name: str = "statistics"
    why: str = "accumulation in half precision, and any loss spread thinly over the result, shows in the relative error"

    def draw(self, instance: Instance, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """Standard normal values, and a few rows of A and columns of B that hold but one power of two."""
        return draw_ordinary(instance, draws)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Each matrix's relative error in the Frobenius norm within `frobenius_limit`; then every element's bound."""
        a, b = logical(inputs, instance.layout)
        reference, got = double_product(a, b), halves(outputs)
        for index, error in enumerate(_relative_errors(got, reference)):
            limit = frobenius_limit(self.accumulate, instance.sizes[2], reference[0].size)
            if not error <= limit:
                what = f"relative Frobenius error {error:.3g} of matrix {index} is over {limit:.3g}"
                return Defect(f"{what} ({self.accumulate} accumulation, K = {instance.sizes[2]})")
        defect = within_bounds(got, a, b, reference, self.accumulate, "wrong on ordinary values")
        return defect or too_much_excess(got, a, b, reference, self.accumulate)


def _relative_errors(got: Half, reference: Double) -> list[float]:
    """Of each matrix, in the Frobenius norm."""
    with np.errstate(all="ignore"):
        squares = [np.square(x).sum(axis=2).sum(axis=1) for x in (got.astype(np.float64) - reference, reference)]
        errors: list[float] = np.sqrt(squares[0] / squares[1]).tolist()
    return errors


@dataclass(frozen=True, slots=True)
class Hard:
    """A hard case: a recipe for inputs, checked element by element against a proven bound."""

    accumulate: str
    name: str
    why: str

    def draw(self, instance: Instance, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """By the recipe that has the gate's name."""
        m, n, k, batch = sizes(instance)
        a, b = _RECIPES[self.name](draws.normal((batch, m, k)), draws.normal((batch, k, n)), draws, self.accumulate)
        with np.errstate(over="ignore"):
            return stored(a, b, instance.layout)

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """Every element within its bound; NaN and infinities where they belong."""
        a, b = logical(inputs, instance.layout)
        what = f"wrong on {self.name.replace('-', ' ')}"
        return within_bounds(halves(outputs), a, b, double_product(a, b), self.accumulate, what)


def _last_k_tile(a: Double, b: Double, draws: Draws, accumulate: str) -> tuple[Double, Double]:
    """Almost all of the energy in the last few terms of every sum; nothing subnormal, which is another gate's."""
    n_last = min(a.shape[2], int(draws.host.integers(1, 17)))
    a[:, :, :-n_last] *= 2.0**-8
    a[np.abs(a) < 2.0**-14] = 0.0
    return a, b


_POSITIVE_FROM = 1024


def _huge_rows(a: Double, b: Double, draws: Draws, accumulate: str) -> tuple[Double, Double]:
    """One row of A and one column of B far above the rest; where shapes allow it, B is A transposed but for a few elements.

    From K = 1,024 on all values are positive: what a sum loses by its order drowns what signs would show there. Both for
    single-precision sums alone: sums of positive terms grow steadily, and one in half may come to a standstill. In half, sums
    of row and column stay below infinity: their standard deviation, at most 2**13 sqrt(2), is a fifth of what half holds.
    """
    batch, m, k = a.shape
    if accumulate == "fp32" and k >= _POSITIVE_FROM:
        a, b = np.abs(a), np.abs(b)
    row = int(draws.host.integers(m))
    if accumulate != "fp32" or m != b.shape[2]:
        exponent = 3 if accumulate == "fp32" else min(3, 7 - (k - 1).bit_length() // 2)
        a[:, row, :] *= 2.0**6
        b[:, :, int(draws.host.integers(b.shape[2]))] *= 2.0**exponent
        return a, b
    a[:, row, :] *= 2.0**6
    b = a.swapaxes(1, 2).copy()
    xp = draws.xp
    columns = xp.asarray(draws.host.choice(m, size=-(-m // 64), replace=False))
    terms = draws.integers(k // 2, k, (batch, len(columns)))
    b[xp.arange(batch)[:, None], terms, columns] = 512.0
    return a, b


def _subnormals(a: Double, b: Double, draws: Draws, accumulate: str) -> tuple[Double, Double]:
    """In each term a subnormal half on one side; outputs on both sides of the subnormal range.

    Rows of A and columns of B are small or large in turn, but for their subnormals, so that the other side's subnormals
    decide a quarter of the results, in either direction.
    """
    rng = draws.host
    in_a = draws.xp.asarray(rng.permutation(a.shape[2]) % 2 == rng.integers(2))
    a[:, int(rng.integers(2)) :: 2, :] *= 2.0**-11
    b[:, :, int(rng.integers(2)) :: 2] *= 2.0**-11
    tiny_a, tiny_b = (np.sign(x) * draws.integers(1, 1024, x.shape, np.int16) * 2.0**-24 for x in (a, b))
    return np.where(in_a, tiny_a, a * 2.0**6), np.where(in_a[:, None], b * 2.0**6, tiny_b)


def _special_values(a: Double, b: Double, draws: Draws, accumulate: str) -> tuple[Double, Double]:
    """NaN and infinities in a few rows and columns; finite sums that overflow half, one by far and one by less than a unit.

    The latter for single-precision sums alone: in half, terms might overflow. One block of A, of whole tiles of 32 x 64 or
    more, is zero, but for rows of the above if there are no others, and meets an infinity in B. Where two infinities meet in
    a sum, they are of opposite signs, and stand apart.
    """
    batch, m, k = a.shape
    n, rng = b.shape[2], draws.host
    most = _just_overflowing(k) if accumulate == "fp32" else None
    for matrix in range(batch):
        columns, terms = _some(rng, range(n), 3), sorted(_some(rng, range(k), 4))
        height = 32 << int(rng.integers(max(1, (m // 64).bit_length())))
        top, left = int(rng.integers(m)) // height * height, terms[3] // 64 * 64
        others = [row for row in range(m) if not top <= row < top + height]
        rows = _some(rng, others or range(m), 5)
        signs = np.sign(a[matrix, rows[2], :])
        a[matrix, top : top + height, left : left + 64] = 0.0
        if most is not None:
            a[matrix, rows[4], :] = signs * draws.xp.asarray(most)
            b[matrix, :, columns[2]] = signs
        a[matrix, rows[0], terms[0]] = np.inf
        a[matrix, rows[1], terms[1]] = -np.inf
        a[matrix, rows[2], :] = signs * 300.0
        b[matrix, :, columns[0]] = signs * 300.0
        a[matrix, rows[3], terms[2]] = np.nan
        b[matrix, terms[3], columns[1]] = -np.inf
        for row, term in zip(rows[:2], terms[:2], strict=True):
            infinite = a[matrix, row, term] * b[matrix, term, columns[1]]
            a[matrix, row, terms[3]] = np.copysign(1.0, infinite) if term < terms[3] else a[matrix, row, terms[3]]
    return a, b


def _just_overflowing(k: int) -> Double | None:
    """K halves with a sum of 65,528, which rounds to infinity and lies below 65,536; None for K below 4."""
    if k < 4:
        return None
    values = np.full(k, np.float64(np.float16(65528.0 / k * (1.0 - 2.0**-11))))
    values[-1] = 65528.0 - values[:-1].sum()
    return values


def _some(rng: np.random.Generator, numbers: Sequence[int], n_wanted: int) -> list[int]:
    """Different ones of the numbers, where there are as many."""
    return [int(number) for number in rng.choice(numbers, size=n_wanted, replace=len(numbers) < n_wanted)]


_RECIPES = {
    "last-k-tile": _last_k_tile,
    "huge-rows": _huge_rows,
    "subnormals": _subnormals,
    "special-values": _special_values,
}
_WHY = {
    "last-k-tile": "a dropped or doubled tail of K hides among many equal terms",
    "huge-rows": "scaling by one factor for the whole matrix loses the small rows beside a huge one",
    "subnormals": "a kernel that flushes subnormals is right on every ordinary input",
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
        Cancellation(accumulate),
    )
