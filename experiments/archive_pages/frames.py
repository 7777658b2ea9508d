"""Tables as all pages draw them: no lines, one space between columns, nothing cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.table import Table

__all__ = ["frame"]


def frame(names: Iterable[str], *, right: Collection[str] = (), wrap: Collection[str] = ()) -> Table:
    """An empty table; columns in `right` hold numbers, those in `wrap` may take several lines."""
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in wrap, overflow="fold")
    return table
