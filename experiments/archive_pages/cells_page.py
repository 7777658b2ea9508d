"""`evo-l2 archive cells`: a heat map of two axes, and the regimes."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.address import Address
from archive.grid import Entry
from archive.mining import CellMap, cells, elites, environments, last_run, rebin
from archive.read_only import open_to_read
from evo_l2.errors import ConfigurationError
from evo_l2.measures import Axis, MeasuresSchema
from experiments.archive_pages.frames import frame, say
from experiments.archive_pages.words import environment_in_words, estimate_facts, estimate_in_words
from experiments.printable import printable
from experiments.summary_page import counted

__all__ = ["print_cells", "print_regimes"]

_RAMP = ("white on #440154", "white on #3b528b", "white on #21808c", "black on #5ec962", "black on #fde725")
"""From the lowest value to the highest; the numbers in the cells say the same without colour."""


@dataclass(frozen=True, slots=True)
class _View:
    """What a heat map shows."""

    found: CellMap
    x: int
    y: int
    value: str
    """`speedup` or `kernels`."""

    @property
    def values(self) -> Mapping[tuple[int, int], float]:
        """The value of each filled place."""
        if self.value == "kernels":
            counts: dict[tuple[int, int], float] = {}
            for cell, n in self.found.counts.items():
                place = (cell[self.x], cell[self.y])
                counts[place] = counts.get(place, 0) + n
            return counts
        best = self.found.projected(self.x, self.y)
        return {place: e.estimate.speedup for place, e in best.items() if e.estimate is not None}


def print_cells(
    db: Address,
    run_name: str | None,
    *,
    environment: str | None,
    across: str | None,
    down: str | None,
    value: str | None,
    boundaries: Sequence[str],
    as_json: bool,
) -> None:
    """A heat map of a run's problem and environment along two axes; along all others the best kernel counts.

    Raises:
        ConfigurationError: There is no such axis or environment, or boundaries do not parse.
        StorageError: The database cannot be read, or has no such run.
    """
    with open_to_read(db) as store:
        name = last_run(store, environment) if environment is not None else run_name
        found = cells(store, name)
        if boundaries:
            found = rebin(store, _with_boundaries(found.schema, boundaries), name)
        machine = next(e for e in environments(store) if e.key == found.field.environment_key)
    shown = value or ("speedup" if found.is_timed or not found.elites else "kernels")
    x, y = _axes(found, across, down)
    if as_json:
        print(json.dumps(_facts(found), indent=2))
        return
    console = Console(highlight=False)
    say(console, found.field.problem_title, "bold")
    say(console, f"environment {environment_in_words(machine)}")
    what = "kernels" if shown == "kernels" else "best speed-up"
    axes = found.schema.axes
    say(console, f"{what} by {axes[x].name} (across) and {axes[y].name} (down){_others(found, x, y)}")
    console.print()
    _print_map(console, _View(found, x, y, shown))
    console.print()
    for line in _footer(found):
        say(console, line, "dim")


def _axes(found: CellMap, across: str | None, down: str | None) -> tuple[int, int]:
    n_axes = len(found.schema.axes)
    if n_axes < 2:
        raise ConfigurationError("the map has no two axes", expected="two axes or more", found=str(n_axes))
    x = found.axis(across) if across is not None else None
    y = found.axis(down) if down is not None else None
    if x is not None and x == y:
        raise ConfigurationError("the map needs two axes", expected="another axis for --y", found=str(down))
    free = [i for i in (*found.widest(), *range(n_axes)) if i not in (x, y)]
    if x is None:
        x = free.pop(0)
    if y is None:
        y = next(i for i in free if i != x)
    return x, y


def _others(found: CellMap, x: int, y: int) -> str:
    others = [axis.name for i, axis in enumerate(found.schema.axes) if i not in (x, y)]
    return f"; any {', '.join(others)}" if others else ""


def _print_map(console: Console, view: _View) -> None:
    axes, values = view.found.schema.axes, view.values
    columns, rows = _shown(axes[view.x], [p[0] for p in values]), _shown(axes[view.y], [p[1] for p in values])
    best = view.found.best
    best_place = (best.cell[view.x], best.cell[view.y]) if best is not None and view.value == "speedup" else None
    low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
    table = Table(box=None, padding=(0, 0), header_style="bold", pad_edge=False)
    table.add_column(Text(axes[view.y].name), no_wrap=True, style="bold")
    for i in columns:
        table.add_column(Text(f" {axes[view.x].label(i)} "), justify="right", no_wrap=True, min_width=7)
    for j in rows:
        row = [Text(axes[view.y].label(j) + " ")]
        for i in columns:
            found = values.get((i, j))
            if found is None:
                row.append(Text("· ", style="dim"))
                continue
            mark = "*" if (i, j) == best_place else " "
            text = f"{found:.0f}{mark}" if view.value == "kernels" else f"{found:.3f}{mark}"
            row.append(Text(f" {text:>6}", style=_RAMP[_level(found, low, high)] + (" bold" if mark == "*" else "")))
        table.add_row(*row)
    console.print(table)


def _shown(axis: Axis, filled: Sequence[int]) -> list[int]:
    """Every index; *unknown* only where something is."""
    return [i for i in range(axis.n_cells) if i < len(axis.labels) or i in filled]


def _level(value: float, low: float, high: float) -> int:
    return min(len(_RAMP) - 1, int((value - low) / (high - low) * len(_RAMP))) if high > low else len(_RAMP) - 1


def _footer(found: CellMap) -> list[str]:
    n_filled, n_cells = len(found.elites), found.schema.n_cells
    lines = [
        f"{n_filled} of {n_cells} cells filled ({100 * found.coverage:.1f} %), {counted(found.n_kernels, 'kernel')}"
        + (f", QD score {found.qd_score:.3f}" if found.is_timed else ", none of them ever run")
    ]
    if found.best is not None and found.best.estimate is not None:
        lines.append(f"* {found.best.digest[:12]}: {estimate_in_words(found.best.estimate)}")
        lines.append(f"  {found.schema.describe(found.best.cell)}")
    return lines


def _facts(found: CellMap) -> dict[str, object]:
    return {
        "problem": found.field.problem_title,
        "environment": found.field.environment_key,
        "axes": [
            {"name": axis.name, "boundaries": list(axis.boundaries), "labels": list(axis.labels)}
            for axis in found.schema.axes
        ],
        "cells": found.schema.n_cells,
        "filled": len(found.elites),
        "coverage": found.coverage,
        "qd_score": found.qd_score,
        "kernels": found.n_kernels,
        "elites": [_elite(found, entry) for entry in found.elites.values()],
    }


def _elite(found: CellMap, entry: Entry) -> dict[str, object]:
    return {
        "cell": list(entry.cell),
        "cell_in_words": found.schema.describe(entry.cell),
        "digest": entry.digest,
        **estimate_facts(entry.estimate),
        "kernels": found.counts[entry.cell],
    }


def _with_boundaries(schema: MeasuresSchema, texts: Sequence[str]) -> MeasuresSchema:
    """The axes with other boundaries, given as `AXIS=1,8,64`."""
    axes = {axis.name: axis for axis in schema.axes}
    for text in texts:
        name, sign, values = text.partition("=")
        try:
            numbers = tuple(float(value) for value in values.split(",") if value.strip())
            if name not in axes:
                raise ValueError(f"no axis {name!r}; there are {', '.join(axes)}")
            if not sign or not all(map(math.isfinite, numbers)):
                raise ValueError("no finite numbers")
            axes[name] = Axis(name, numbers, _labels(numbers))
        except ValueError as error:
            expected = "AXIS=NUMBER,NUMBER,... with rising numbers"
            raise ConfigurationError("the boundaries do not parse", expected=expected, found=f"{text} ({error})") from error
    return MeasuresSchema(tuple(axes.values()))


def _labels(numbers: Sequence[float]) -> tuple[str, ...]:
    if not numbers:
        return ("all",)
    shown = [f"{number:g}" for number in numbers]
    return (f"<{shown[0]}", *(f"{a}-{b}" for a, b in itertools.pairwise(shown)), f"{shown[-1]}+")


def print_regimes(db: Address, *, as_json: bool) -> None:
    """The elites of the whole file by environment and shape regime.

    Raises:
        StorageError: The database cannot be read.
    """
    with open_to_read(db) as store:
        found = elites(store)
    if as_json:
        print(
            json.dumps(
                [
                    {
                        "environment": elite.environment_key,
                        "regime": elite.regime,
                        "problem": elite.problem_title,
                        "cell": list(elite.cell),
                        "cell_in_words": elite.cell_in_words,
                        "digest": elite.digest,
                        **estimate_facts(elite.estimate),
                        "kernels": elite.n_kernels,
                    }
                    for elite in found
                ],
                indent=2,
            )
        )
        return
    console = Console(highlight=False)
    groups: dict[tuple[str, str], Table] = {}
    for elite in found:
        table = groups.get((elite.environment_key, elite.regime))
        if table is None:
            table = groups[(elite.environment_key, elite.regime)] = frame(
                ("elite", "speed-up", "95 % interval", "kernels", "cell"), right=("speed-up", "kernels"), wrap=("cell",)
            )
        speedup, interval = "never run", ""
        if elite.estimate is not None:
            low, high = elite.estimate.interval
            speedup, interval = f"{elite.estimate.speedup:.3f}", f"{low:.3f} to {high:.3f}"
        table.add_row(elite.digest[:12], speedup, interval, str(elite.n_kernels), printable(elite.cell_in_words))
    for (environment, regime), table in groups.items():
        say(console, Text.assemble((regime, "bold"), f", environment {environment}"))
        console.print(table)
        console.print()
    if not groups:
        say(console, f"no kernel passed in {db}")
