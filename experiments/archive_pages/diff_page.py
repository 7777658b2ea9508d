"""`evo-l2 archive diff`: two kernels side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.address import Address
from archive.mining import Comparison, Difference, Judgement, SideBySide, compare
from archive.read_only import open_to_read
from experiments.archive_pages.frames import frame, say
from experiments.archive_pages.words import estimate_facts, gain_facts, gain_in_words, interval_in_words
from experiments.printable import printable

__all__ = ["print_diff", "print_diff_lines"]


def print_diff(db: Address, left: str, right: str, *, as_json: bool) -> None:
    """What differs between two kernels, and what that does to their speed.

    Raises:
        ConfigurationError: No kernel, or more than one, begins with these digits.
        StorageError: The database cannot be read.
    """
    with open_to_read(db) as store:
        found = compare(store, left, right)
    if as_json:
        print(json.dumps(_facts(found), indent=2))
        return
    console = Console(highlight=False)
    if found.left.digest == found.right.digest:
        say(console, f"{found.left.digest[:12]} with itself: nothing differs")
        return
    print_diff_lines(console, found.diff)
    for title, rows in (("launch", found.launch), ("tunables", found.tunables)):
        if rows:
            console.print()
            console.print(_table(found, title, rows))
    for place in found.places:
        console.print()
        say(console, place.problem_title, "bold")
        console.print(Text(f"environment {place.environment_key}"))
        console.print(_place(found, place))
        say(console, _verdict(found, place))
    if not found.places:
        say(console, "\nThe two were never judged on one problem in one environment.")


def print_diff_lines(console: Console, lines: Iterable[str], indent: str = "") -> None:
    """A unified diff in colour."""
    for line in lines:
        style = "bold" if line.startswith(("---", "+++")) else {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(Text(indent + printable(line), style=style), soft_wrap=True)


def _table(found: Comparison, title: str, rows: Iterable[Difference | tuple[str, str, str]]) -> Table:
    sides = (found.left.digest[:12], found.right.digest[:12])
    table = frame((title, *sides), wrap=sides)
    for row in rows:
        name, left, right = (row.name, row.left, row.right) if isinstance(row, Difference) else row
        table.add_row(
            *(Text(printable(text)) if text is not None else Text("none", style="dim") for text in (name, left, right))
        )
    return table


def _place(found: Comparison, place: SideBySide) -> Table:
    left, right = place.left, place.right
    rows = [("verdict", _status(left), _status(right)), ("speed-up", _speed(left), _speed(right))]
    if left.cell is not None or right.cell is not None:
        rows += _cells(left.cell, right.cell)
    for name in dict.fromkeys((*left.resources, *right.resources)):
        values = (left.resources.get(name), right.resources.get(name))
        if values[0] != values[1]:
            rows.append((name, _shown(values[0]), _shown(values[1])))
    return _table(found, "", rows)


def _cells(left: str | None, right: str | None) -> list[tuple[str, str, str]]:
    """The cells in words, axis by axis; only axes that differ, but one line at least."""
    if left == right:
        return [("cell", "the same", "the same")]
    parts = [dict(piece.split("=", 1) for piece in cell.split(", ")) if cell else {} for cell in (left, right)]
    names = dict.fromkeys((*parts[0], *parts[1]))
    return [
        (f"cell: {name}", parts[0].get(name, "none"), parts[1].get(name, "none"))
        for name in names
        if parts[0].get(name) != parts[1].get(name)
    ]


def _status(found: Judgement) -> str:
    return found.status.value + (f" at {found.gate}" if found.gate else "")


def _speed(found: Judgement) -> str:
    if found.estimate is None:
        return "no time"
    return f"{found.estimate.speedup:.3f} ({interval_in_words(found.estimate.interval)})"


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _verdict(found: Comparison, place: SideBySide) -> str:
    if place.gain is None:
        return "no ratio: not both were timed here"
    names = found.right.digest[:12], found.left.digest[:12]
    sure = "sure" if place.gain.is_sure or place.gain.is_loss else "not sure: the ratio's interval holds 1"
    parts = "the two intervals part" if place.parts else "the two intervals overlap"
    return f"{names[0]} runs at {gain_in_words(place.gain)} of the speed of {names[1]}; {sure}; {parts}"


def _facts(found: Comparison) -> dict[str, object]:
    def rows(differences: Sequence[Difference]) -> list[dict[str, object]]:
        return [{"name": d.name, "left": d.left, "right": d.right} for d in differences]

    def side(judgement: Judgement) -> dict[str, object]:
        return {
            "status": judgement.status.value,
            "gate": judgement.gate,
            "cell": judgement.cell,
            "resources": dict(judgement.resources),
            "estimate": estimate_facts(judgement.estimate) if judgement.estimate is not None else None,
        }

    return {
        "left": found.left.digest,
        "right": found.right.digest,
        "launch": rows(found.launch),
        "tunables": rows(found.tunables),
        "diff": list(found.diff),
        "places": [
            {
                "problem": place.problem_title,
                "environment": place.environment_key,
                "left": side(place.left),
                "right": side(place.right),
                "gain": gain_facts(place.gain),
                "intervals_part": place.parts,
            }
            for place in found.places
        ],
    }
