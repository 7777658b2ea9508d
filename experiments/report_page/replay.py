"""The grid as it filled: a pure function of a run's candidates and later sessions, in the order in which they were told."""

from __future__ import annotations

import math
from collections.abc import Sequence

from archive.grid import Entry, Grid
from experiments.report_page.facts import CandidateRow, GridPoint, LaterSession

__all__ = ["grid_history"]


def grid_history(
    grid: Grid, rows: Sequence[CandidateRow], later: Sequence[LaterSession], *, n_points: int = 400
) -> tuple[GridPoint, ...]:
    """The grid after each candidate, or after some of them where there are more than `n_points`; the last is always there.

    Args:
        grid: What the run began with; it is changed.
        rows: In order of index.
        later: In the order in which they were filed.
        n_points: How many to keep.
    """
    entries: dict[str, Entry] = {}
    pending = sorted(later, key=lambda one: one.after)
    step = max(1, math.ceil(len(rows) / n_points))
    points: list[GridPoint] = []
    next_later = 0
    for position, row in enumerate(rows):
        while next_later < len(pending) and pending[next_later].after <= row.index:
            _apply(grid, entries, pending[next_later])
            next_later += 1
        if row.is_right and row.digest is not None and row.identity is not None and row.cell is not None:
            entry = Entry(row.digest, row.identity, row.cell, row.early)
            entries[row.digest] = entry
            if row.early is not None or not row.is_timed:
                grid.put(entry)
        is_last = position == len(rows) - 1
        if is_last:
            for one in pending[next_later:]:
                _apply(grid, entries, one)
        if is_last or position % step == 0:
            points.append(GridPoint(row.index, len(grid.elites), grid.qd_score))
    return tuple(points)


def _apply(grid: Grid, entries: dict[str, Entry], one: LaterSession) -> None:
    known = entries.get(one.digest)
    if known is None:
        known = next((entry for entry in grid.ranked() if entry.digest == one.digest), None)
    if known is None:
        return
    if one.is_withdrawal:
        grid.drop(known.identity)
    elif one.estimate is not None:
        entries[one.digest] = Entry(known.digest, known.identity, known.cell, one.estimate)
        grid.put(entries[one.digest])
