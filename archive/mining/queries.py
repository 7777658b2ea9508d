"""Questions in words of the user: a read-only SQL statement, or a filter expression over a flat table."""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from archive.mining.columns import COLUMNS
from archive.mining.filters import Filter, parse_filter
from archive.mining.flat import Row
from archive.mining.sql import Answer, is_sql, sql
from archive.mining.tables import Table, table
from archive.store import Store
from evo_l2.errors import ConfigurationError, StorageError

__all__ = ["SHOWN", "query", "select"]

SHOWN = {
    "candidates": ("run", "idx", "operator", "digest", "status", "speedup", "gain"),
    "kernels": ("digest", "status", "speedup", "speedup_low", "cell"),
    "sessions": ("digest", "purpose", "sizes", "kernel_us", "baseline_us", "n_kept"),
    "cells": ("environment", "regime", "cell_in_words", "digest", "speedup", "n_kernels"),
    "moves": ("run", "idx", "kind", "name", "before", "after", "status", "gain"),
    "calls": ("run", "idx", "operator", "generator", "n_prompt_tokens", "n_reply_tokens", "error"),
}
"""The columns that a filter shows when none are asked for, beside those that it names."""
_WIDE = frozenset({"candidates", "kernels"})
"""Tables that have a column for each fact that builds report."""
_EVERY = 256


@contextlib.contextmanager
def query(
    store: Store,
    text: str,
    *,
    name: str = "candidates",
    run_name: str | None = None,
    columns: Sequence[str] | None = None,
    timeout_s: float = 30.0,
) -> Iterator[Answer]:
    """Rows by a SQL statement (see `archive.mining.sql`) or a filter expression (see `archive.mining.filters`).

    Args:
        store: The archive.
        text: The statement, known by its first word; anything else is an expression.
        name: The table that an expression filters.
        run_name: The run whose rows an expression filters; None for the whole file.
        columns: What an expression shows; None for a few that suit the table and those that it names, `("*",)` for all.
        timeout_s: How long it may take, in seconds.

    Raises:
        ConfigurationError: It does not parse, names what is not there, or would do more than read.
        StorageError: The archive cannot be read, there is no such run, or the time is spent.
    """
    if is_sql(text):
        with sql(store, text, timeout_s=timeout_s) as answer:
            yield answer
    else:
        yield select(table(store, name, run_name), parse_filter(text), columns, timeout_s=timeout_s)


def select(source: Table, chosen: Filter, columns: Sequence[str] | None = None, *, timeout_s: float = 30.0) -> Answer:
    """The rows of a flat table that a filter accepts; see `query`.

    Raises:
        ConfigurationError: The table has no such column. For facts of builds that shows only when all rows were read.
        StorageError: The archive cannot be read, or the time is spent.
    """
    named = {column.name for column in COLUMNS[source.name]}
    asked = [*(columns or ()), *chosen.names]
    strangers = [name for name in asked if name not in named and name != "*"]
    if strangers and source.name not in _WIDE:
        raise _unknown(source.name, strangers[0], named)
    rows = _accepted(source, chosen, strangers, named, timeout_s)
    if columns is not None and "*" in columns:
        found = list(rows)
        extra = sorted({name for row in found for name in row} - named)
        shown = (*(column.name for column in COLUMNS[source.name]), *extra)
        rows = iter(found)
    else:
        shown = tuple(dict.fromkeys(columns if columns is not None else (*SHOWN[source.name], *chosen.names)))
    return Answer(shown, (tuple(row.get(name) for name in shown) for row in rows))


def _accepted(source: Table, chosen: Filter, strangers: Sequence[str], named: set[str], timeout_s: float) -> Iterator[Row]:
    deadline = time.monotonic() + timeout_s
    seen: set[str] = set()
    known: dict[str, Any] = {}
    n_rows = 0
    for n_rows, row in enumerate(source.rows(), start=1):
        if n_rows % _EVERY == 0 and time.monotonic() > deadline:
            hint = "--timeout with more seconds, or --run for one run"
            raise StorageError("the query took too long", expected=f"an end within {timeout_s:g} s", found="none", hint=hint)
        seen.update(name for name in strangers if name in row)
        if len(seen) < len(strangers):
            known.update(dict.fromkeys(row))
        if chosen.accepts(row):
            yield row
    missing = [name for name in strangers if name not in seen]
    if missing and n_rows:
        raise _unknown(source.name, missing[0], named | set(known))


def _unknown(table_name: str, column: str, known: set[str]) -> ConfigurationError:
    near = difflib.get_close_matches(column, sorted(known), n=3, cutoff=0.5)
    expected = f"one like {', '.join(near)}" if near else f"one of its {len(known)} columns"
    hint = f"evo-l2 archive query DB --table {table_name}, for the columns"
    return ConfigurationError(f"the table {table_name} has no such column", expected=expected, found=column, hint=hint)
