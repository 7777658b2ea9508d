"""What a check of an archive found: one line each, named by the check and the row."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from archive.store import Store

__all__ = ["UNREADABLE", "Finding", "Note", "pages"]

UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError, zlib.error)
"""What reading a damaged value may raise."""

_PAGE = 2000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    check: str
    """Which check: `file`, `tables`, `kernels`, `texts`, `provenance`, `candidates`, `calls`, `sessions`, `results`,
    `standings`, `revisits`, `tallies`."""
    where: str
    """The row, for instance `candidate 17 of run quickstart`."""
    what: str
    """What was expected and what was found."""
    repairable: bool = False
    """Whether it is a derived row, which `repair` works out again."""

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing that is no fault."""

    what: str


def pages(store: Store, sql: str, parameters: Sequence[object] = ()) -> Iterator[Any]:
    """Rows of a query whose first column is an id, page by page, so that memory does not grow with the table.

    Args:
        store: The archive.
        sql: A `SELECT` whose last condition reads `… > ?` on the id, and which is not ordered yet.
        parameters: Those of the query before the id.
    """
    column = sql.split(None, 2)[1].rstrip(",")
    last = -1
    while True:
        rows = store.read(f"{sql} ORDER BY {column} LIMIT ?", (*parameters, last, _PAGE))
        yield from rows
        if len(rows) < _PAGE:
            return
        last = rows[-1][0]
