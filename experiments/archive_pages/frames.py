"""Tables and notes as all pages print them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["frame", "say"]


def frame(names: Iterable[str], *, right: Collection[str] = (), wrap: Collection[str] = ()) -> Table:
    """An empty table; columns in `right` hold numbers, those in `wrap` may take several lines."""
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in wrap, overflow="fold")
    return table


def say(console: Console, text: str | Text, style: str = "") -> None:
    """A line of words: broken between words on a terminal, and whole anywhere else."""
    console.print(Text(text, style=style) if isinstance(text, str) else text, soft_wrap=not console.is_terminal)
