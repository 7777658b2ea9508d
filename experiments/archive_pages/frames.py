"""Tables and notes as all pages print them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["frame", "say"]

_NARROWEST = 8
"""Columns of the screen that a column of words keeps however narrow the screen is."""


def frame(names: Iterable[str], *, right: Collection[str] = (), wrap: Collection[str] = ()) -> Table:
    """An empty table; columns in `right` hold numbers, those in `wrap` may take several lines."""
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    for name in names:
        is_cut = name in wrap
        justify: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, no_wrap=not is_cut, overflow="fold", min_width=_NARROWEST if is_cut else None)
    return table


def say(console: Console, text: str | Text, style: str = "") -> None:
    """A line of words: broken between words on a terminal, and whole anywhere else."""
    console.print(Text(text, style=style) if isinstance(text, str) else text, soft_wrap=not console.is_terminal)
