"""The MAP-Elites grid: which kernel holds which cell, as a pure function of the kernels and sessions put into it."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from typing import Protocol

from evo_l2.contracts import AddResult, AddStatus
from evo_l2.evaluation import Estimate, rank
from evo_l2.measures import Cell, MeasuresSchema

__all__ = ["Background", "Entry", "Grid"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel that passed, as the grid ranks it."""

    digest: str
    identity: str
    cell: Cell
    estimate: Estimate | None
    """None for a kernel that was built and never run; any that was timed ranks before it."""

    @property
    def rank(self) -> tuple[float, str]:
        """Smaller is better; see `evo_l2.evaluation.rank`."""
        return rank(self.estimate, self.digest)


class Background(Protocol):
    """Kernels that a grid holds without keeping them in memory."""

    def elites(self) -> Iterator[Entry]:
        """The best entry of every cell."""
        ...

    def best(self, cell: Cell, taken: Container[str]) -> Entry | None:
        """The best entry of a cell whose identity is not among those taken."""
        ...

    def ranked(self, taken: Collection[str]) -> Iterator[Entry]:
        """Every entry whose identity is not among those taken, as they are when this is called, the best first."""
        ...


class Grid:
    """Cells with fixed boundaries; each is held by its member with the highest lower bound of the log speed-up.

    Equal bounds go to the smaller source digest, so that the grid does not depend on the order in which it was filled. Every
    member stays on record: an elite whose bound falls may lose its cell to the next best.

    Args:
        schema: The axes.
        background: Kernels that are on record from the start; None for an empty grid. What is put into the grid, or dropped,
            hides what the background says of the same identity.
    """

    def __init__(self, schema: MeasuresSchema, background: Background | None = None) -> None:
        self._schema = schema
        self._background = background
        self._entries: dict[str, Entry] = {}
        self._members: dict[Cell, dict[str, Entry]] = {}
        self._elites: dict[Cell, Entry] = {}
        self._holders: dict[str, Cell] = {}
        self._taken: set[str] = set()
        if background is not None:
            for entry in background.elites():
                self._hold(entry)

    @property
    def schema(self) -> MeasuresSchema:
        """The axes."""
        return self._schema

    @property
    def elites(self) -> Mapping[Cell, Entry]:
        """The elite of every filled cell."""
        return self._elites

    def __len__(self) -> int:
        """Number of kernels on record."""
        return len(self._entries) + (sum(1 for _ in self._background.ranked(self._taken)) if self._background else 0)

    def preview(self, entry: Entry) -> AddResult:
        """What `put` of a kernel that is not on record would do."""
        former = self._elites.get(entry.cell)
        value = entry.estimate.log_low if entry.estimate is not None else None
        if former is None:
            return AddResult(AddStatus.NEW, value, entry.cell)
        status = AddStatus.IMPROVED if entry.rank < former.rank else AddStatus.NOT_ADDED
        if value is not None and former.estimate is not None:
            value -= former.estimate.log_low
        return AddResult(status, value, entry.cell)

    def put(self, entry: Entry) -> None:
        """Puts a kernel on record, in place of what was known of its identity."""
        held = self._holders.get(entry.identity)
        if held is None or self._elites[held] != entry:
            self.drop(entry.identity)
        self._taken.add(entry.identity)
        self._entries[entry.identity] = entry
        self._members.setdefault(entry.cell, {})[entry.identity] = entry
        self._hold(entry)

    def drop(self, identity: str) -> None:
        """Takes a kernel off the record; nothing happens when it is not on it."""
        self._taken.add(identity)
        entry = self._entries.pop(identity, None)
        if entry is not None:
            del self._members[entry.cell][identity]
        cell = self._holders.pop(identity, None)
        if cell is None:
            return
        del self._elites[cell]
        # First: while it answers, the background may put other kernels into this grid.
        below = self._background.best(cell, self._taken) if self._background is not None else None
        for other in (below, min(self._members.get(cell, {}).values(), key=_rank, default=None)):
            if other is not None:
                self._hold(other)

    def holds(self, identity: str) -> bool:
        """Whether a kernel was put into the grid or dropped from it, so that the background's word does not count."""
        return identity in self._taken

    def _hold(self, entry: Entry) -> None:
        """Gives an entry its cell, where it is better than the elite."""
        former = self._elites.get(entry.cell)
        if former is None or entry.rank < former.rank:
            if former is not None:
                del self._holders[former.identity]
            self._elites[entry.cell] = entry
            self._holders[entry.identity] = entry.cell

    def entry(self, identity: str) -> Entry | None:
        """What is on record for an identity; of the background's kernels, only the elites are known here."""
        entry = self._entries.get(identity)
        if entry is None and identity in self._holders:
            return self._elites[self._holders[identity]]
        return entry

    def best(self) -> Entry | None:
        """The elite with the highest lower bound; None while the grid is empty."""
        return min(self._elites.values(), key=_rank, default=None)

    def ranked(self) -> Iterator[Entry]:
        """Every kernel on record, the best first."""
        # First, for the same reason as in `drop`.
        below = self._background.ranked(self._taken) if self._background is not None else iter(())
        return merge(sorted(self._entries.values(), key=_rank), below, key=_rank)

    @property
    def coverage(self) -> float:
        """Share of the cells that are filled; the denominator counts the cells for unknown values too."""
        return len(self._elites) / self._schema.n_cells

    @property
    def qd_score(self) -> float:
        """Sum over filled cells of the elite's speed-up (a ratio, so never negative; a cell without objective adds 0).

        The sum is correctly rounded, so it does not depend on the order in which cells were filled.
        """
        return math.fsum(entry.estimate.speedup for entry in self._elites.values() if entry.estimate is not None)


def _rank(entry: Entry) -> tuple[float, str]:
    return entry.rank
