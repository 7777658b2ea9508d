"""MAP-Elites read from the rows: cells and their elites, coverage and QD score, and the same under other boundaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from archive.grid import Entry, Grid
from archive.mining.members import Field, Member, field, members
from archive.store import Store
from evo_l2.errors import ConfigurationError
from evo_l2.measures import Cell, MeasuresSchema

__all__ = ["CellMap", "cells", "grid_of", "rebin"]


@dataclass(frozen=True, slots=True)
class CellMap:
    """The filled cells of a field."""

    field: Field
    schema: MeasuresSchema
    elites: Mapping[Cell, Entry]
    """In order of cell."""
    counts: Mapping[Cell, int]
    """How many kernels lie in each cell."""
    coverage: float
    """Share of the cells that are filled; the denominator counts the cells for unknown values too."""
    qd_score: float
    """Sum over filled cells of the elite's speed-up; a cell without a time adds 0."""
    best: Entry | None

    @property
    def n_kernels(self) -> int:
        """Kernels that passed, or were built."""
        return sum(self.counts.values())

    @property
    def is_timed(self) -> bool:
        """False when nothing was run, so that no cell has a speed-up."""
        return any(entry.estimate is not None for entry in self.elites.values())

    def axis(self, name: str) -> int:
        """The position of an axis.

        Raises:
            ConfigurationError: There is no such axis.
        """
        names = [axis.name for axis in self.schema.axes]
        if name not in names:
            raise ConfigurationError("no such axis", expected=f"one of {', '.join(names)}", found=name)
        return names.index(name)

    def widest(self) -> tuple[int, int]:
        """The two axes along which most indices are filled, in order of axis; of equals the first."""
        n_filled = [len({cell[i] for cell in self.elites}) for i in range(len(self.schema.axes))]
        first, second = sorted(range(len(n_filled)), key=lambda i: (-n_filled[i], i))[:2]
        return min(first, second), max(first, second)

    def projected(self, x: int, y: int) -> Mapping[tuple[int, int], Entry]:
        """The best elite for each pair of indices along two axes, whatever the other axes say."""
        found: dict[tuple[int, int], Entry] = {}
        for cell, entry in self.elites.items():
            place = (cell[x], cell[y])
            if place not in found or entry.rank < found[place].rank:
                found[place] = entry
        return found


def grid_of(kernels: Iterable[Member], schema: MeasuresSchema) -> Grid:
    """The grid that some kernels make, whatever the order in which they come.

    A pure function: re-binning is this with another schema. `Member.measures` says where an axis finds its values.
    """
    grid = Grid(schema)
    for kernel in kernels:
        grid.put(Entry(kernel.digest, kernel.identity, schema.cell(kernel.measures(schema)), kernel.estimate))
    return grid


def cells(store: Store, run_name: str | None = None) -> CellMap:
    """The cells of a run's problem and environment, over all runs of the file; None for the run that was started last.

    Raises:
        StorageError: No such run.
    """
    place = field(store, run_name)
    return _map(place, grid_of(members(store, place), place.schema))


def rebin(store: Store, schema: MeasuresSchema, run_name: str | None = None) -> CellMap:
    """The cells as they would be with other axes or boundaries; nothing is written.

    Raises:
        StorageError: No such run.
    """
    place = field(store, run_name)
    return _map(place, grid_of(members(store, place), schema))


def _map(place: Field, grid: Grid) -> CellMap:
    return CellMap(
        place,
        grid.schema,
        {cell: grid.elites[cell] for cell in sorted(grid.elites)},
        Counter(entry.cell for entry in grid.ranked()),
        grid.coverage,
        grid.qd_score,
        grid.best(),
    )
