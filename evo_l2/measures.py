"""Measures: what a built kernel is like, on axes with fixed, versioned boundaries."""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Axis", "Cell", "MeasuresSchema"]

Cell = tuple[int, ...]
"""One index per axis of the schema."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One measure. Boundaries are lower-inclusive: the index is the number of boundaries that are not above the value.

    The ends are open, so no value is out of range, and *unknown* has the last index to itself.
    """

    name: str
    boundaries: tuple[float, ...]
    labels: tuple[str, ...]
    """One label per interval, `len(boundaries) + 1` in all."""

    def __post_init__(self) -> None:
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError(f"boundaries of {self.name} must rise")
        if len(self.labels) != len(self.boundaries) + 1:
            raise ValueError(f"{self.name} needs {len(self.boundaries) + 1} labels")

    @property
    def n_cells(self) -> int:
        """Number of indices, *unknown* included."""
        return len(self.labels) + 1

    def index(self, value: float | None) -> int:
        """Index of a value; the last one for `None` and for NaN."""
        if value is None or value != value:
            return len(self.labels)
        return bisect.bisect_right(self.boundaries, value)

    def label(self, index: int) -> str:
        """The label of an index."""
        return self.labels[index] if index < len(self.labels) else "unknown"


@dataclass(frozen=True, slots=True)
class MeasuresSchema:
    """The axes of one target's archive, in order."""

    axes: tuple[Axis, ...]

    @property
    def n_cells(self) -> int:
        """Number of cells of the grid, those for unknown values included."""
        count = 1
        for axis in self.axes:
            count *= axis.n_cells
        return count

    @property
    def version(self) -> str:
        """Twelve hexadecimal digits over names, boundaries and labels; stored with every archive."""
        text = json.dumps([[a.name, a.boundaries, a.labels] for a in self.axes], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def cell(self, measures: tuple[float | None, ...]) -> Cell:
        """The cell of one kernel's measures.

        Raises:
            ValueError: The number of measures is not the number of axes.
        """
        return tuple(axis.index(value) for axis, value in zip(self.axes, measures, strict=True))

    def values(self, resources: Mapping[str, int | float | str]) -> tuple[float | None, ...]:
        """One value for each axis, from the facts of a build by the axes' names.

        A number as it stands, a word as the index of the label that it is, None for anything else.
        """
        found: list[float | None] = []
        for axis in self.axes:
            value = resources.get(axis.name)
            if isinstance(value, str):
                found.append(float(axis.labels.index(value)) if value in axis.labels else None)
            else:
                found.append(float(value) if value is not None else None)
        return tuple(found)

    def describe(self, cell: Cell) -> str:
        """The cell in words, for instance `simd=256-bit, tile=17-64`."""
        return ", ".join(f"{a.name}={a.label(i)}" for a, i in zip(self.axes, cell, strict=True))
