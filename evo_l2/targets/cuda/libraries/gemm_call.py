"""The product of a case as the libraries take it: column-major, batches by stride."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from evo_l2.errors import ConfigurationError

__all__ = ["Accumulate", "GemmCall", "Layout", "Matrix", "alignment_bytes", "checked_sets"]

Layout = Literal["nn", "nt"]
Accumulate = Literal["fp32", "fp16"]

_MOST_ALIGNMENT_BYTES = 256
"""What `cudaMalloc` gives; cuBLASLt asks for no more."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One operand in column-major order, its columns one behind the other."""

    name: str
    """Of the buffer that holds it: `A`, `B` or `C`."""
    rows: int
    """The leading dimension too."""
    columns: int
    transposed: bool = False

    @property
    def stride(self) -> int:
        """Elements from one matrix of the batch to the next."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class GemmCall:
    """C = A·B in row-major order, which is the column-major product of the transposes, in reverse: Cᵀ = Bᵀ·Aᵀ.

    Raises:
        ConfigurationError: A layout, accumulator or size is not admitted.
    """

    layout: Layout
    """`nn`: B is (BATCH, K, N); `nt`: B is (BATCH, N, K)."""
    accumulate: Accumulate
    """`fp32`: halves are multiplied and summed in single precision, and never reduced in half; `fp16`: all in half."""
    sizes: tuple[int, int, int, int]
    """M, N, K, BATCH."""

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise ConfigurationError("no such layout", expected="nn or nt", found=repr(self.layout))
        if self.accumulate not in get_args(Accumulate):
            raise ConfigurationError("no such accumulator", expected="fp32 or fp16", found=repr(self.accumulate))
        if len(self.sizes) != 4 or min(self.sizes) < 1 or max(self.sizes) >= 1 << 31:
            raise ConfigurationError("no such sizes", expected="M, N, K, BATCH, each positive", found=repr(self.sizes))

    @property
    def m(self) -> int:
        """Rows of the column-major result."""
        return self.sizes[1]

    @property
    def n(self) -> int:
        """Columns of the column-major result."""
        return self.sizes[0]

    @property
    def k(self) -> int:
        """Elements of each sum."""
        return self.sizes[2]

    @property
    def batch(self) -> int:
        """Products in one call."""
        return self.sizes[3]

    @property
    def first(self) -> Matrix:
        """The left operand of the column-major product: the row-major B."""
        if self.layout == "nn":
            return Matrix("B", self.m, self.k)
        return Matrix("B", self.k, self.m, transposed=True)

    @property
    def second(self) -> Matrix:
        """Its right operand: the row-major A."""
        return Matrix("A", self.k, self.n)

    @property
    def result(self) -> Matrix:
        """What it writes: the row-major C."""
        return Matrix("C", self.m, self.n)

    def row_major(self, name: str) -> tuple[int, int, int]:
        """Shape of a buffer as the problem has it, for instance (BATCH, M, K)."""
        matrix = {"A": self.second, "B": self.first, "C": self.result}[name]
        return (self.batch, matrix.columns, matrix.rows)


def alignment_bytes(addresses: Iterable[int]) -> int:
    """The largest power of two, at most 256, that divides every address."""
    together = _MOST_ALIGNMENT_BYTES
    for address in addresses:
        together |= address
    return together & -together


def checked_sets(sets: Sequence[Mapping[str, int]]) -> tuple[Mapping[str, int], ...]:
    """The buffer sets, each with an address for A, B and C.

    Raises:
        ConfigurationError: There are none, or one lacks an operand.
    """
    for index, buffers in enumerate(sets):
        if not {"A", "B", "C"} <= set(buffers):
            found = ", ".join(sorted(buffers)) or "none"
            raise ConfigurationError(f"buffer set {index} is not whole", expected="addresses of A, B and C", found=found)
    if not sets:
        raise ConfigurationError("there is no buffer set", expected="at least one", found="none")
    return tuple(sets)
