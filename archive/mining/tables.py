"""Flat tables of an archive: row by row, or whole as tables of pyarrow and pandas."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archive.mining.call_rows import call_rows
from archive.mining.columns import COLUMNS, Column
from archive.mining.flat import Row, candidate_rows, cell_rows, kernel_rows, move_rows, session_rows
from archive.store import Store
from evo_l2.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    import pandas
    import pyarrow

__all__ = ["TABLES", "Table", "arrow_of", "table", "write_parquet"]

_ROWS: dict[str, Callable[[Store, str | None], Iterator[Row]]] = {
    "candidates": candidate_rows,
    "kernels": kernel_rows,
    "sessions": session_rows,
    "cells": cell_rows,
    "moves": move_rows,
    "calls": call_rows,
}
TABLES = tuple(_ROWS)
"""The tables' names."""
_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Table:
    """A flat table, read from the archive each time it is asked for; the store has to be open then."""

    name: str
    columns: tuple[Column, ...]
    """Those that every row may have. `candidates` and `kernels` have more: what the builds report, in order of name."""
    source: Callable[[], Iterator[Row]]

    def rows(self) -> Iterator[Row]:
        """The rows, one dictionary each; a column that is missing is null.

        Raises:
            StorageError: The archive cannot be read.
        """
        return self.source()

    def to_arrow(self) -> pyarrow.Table:
        """The whole table as a `pyarrow.Table`.

        Raises:
            ConfigurationError: pyarrow is not installed.
            StorageError: The archive cannot be read.
        """
        return arrow_of(self.rows(), self.columns)

    def to_pandas(self) -> pandas.DataFrame:
        """The whole table as a `pandas.DataFrame`; whole numbers stay whole where some are missing (`Int64`).

        Raises:
            ConfigurationError: pyarrow or pandas is not installed.
            StorageError: The archive cannot be read.
        """
        frames = _library("pandas")
        types = {"int64": frames.Int64Dtype(), "bool": frames.BooleanDtype()}
        return self.to_arrow().to_pandas(types_mapper=lambda kind: types.get(str(kind)))


def table(store: Store, name: str, run_name: str | None = None) -> Table:
    """A flat table of an archive.

    Args:
        store: The archive.
        name: `candidates`, `kernels`, `sessions`, `cells`, `moves` or `calls`; `archive.mining.COLUMNS` says what they hold.
        run_name: The run; None for the whole file. `cells` are those of the run's environment.

    Raises:
        ConfigurationError: There is no such table.
        StorageError: No such run.
    """
    if name not in _ROWS:
        raise ConfigurationError("no such table", expected=f"one of {', '.join(TABLES)}", found=name)
    run = store.run_info(run_name).name if run_name is not None else None
    return Table(name, COLUMNS[name], lambda: _ROWS[name](store, run))


def arrow_of(rows: Iterator[Row], columns: Sequence[Column] = (), order: Sequence[str] | None = None) -> pyarrow.Table:
    """Rows as a `pyarrow.Table`.

    Args:
        rows: One dictionary each; what is missing is null.
        columns: Columns whose types are known; those of others are as their values are.
        order: The columns of the table; None for the known ones, then all others by name.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    arrow = _library("pyarrow")
    types = {
        "text": arrow.string(),
        "integer": arrow.int64(),
        "real": arrow.float64(),
        "yes/no": arrow.bool_(),
        "list": arrow.list_(arrow.float64()),
    }
    named = {column.name: types[column.kind] for column in columns}
    parts = []
    while chunk := list(itertools.islice(rows, _CHUNK)):
        extra = sorted({name for row in chunk for name in row} - set(named))
        arrays = {name: _array(arrow, [row.get(name) for row in chunk], named.get(name)) for name in (*named, *extra)}
        parts.append(arrow.table(arrays))
    if not parts:
        names = order if order is not None else tuple(named)
        return arrow.table({name: arrow.array([], named.get(name, arrow.null())) for name in names})
    return _joined(arrow, parts, tuple(named), order)


def _array(arrow: Any, values: list[Any], kind: Any) -> Any:
    if kind is None or kind == arrow.string():
        values = [value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in values]
    try:
        return arrow.array(values, kind)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        if kind is None and all(value is None or isinstance(value, int | float) for value in values):
            return arrow.array(values, arrow.float64())
        return arrow.array([None if value is None else str(value) for value in values], arrow.string())


def _joined(arrow: Any, parts: list[Any], first: tuple[str, ...], order: Sequence[str] | None) -> Any:
    """The parts as one table; a column that is text in one part is text in all."""
    try:
        whole = arrow.concat_tables(parts, promote_options="permissive")
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        text = {field.name for part in parts for field in part.schema if field.type == arrow.string()}
        parts = [
            arrow.table({name: part[name].cast(arrow.string()) if name in text else part[name] for name in part.column_names})
            for part in parts
        ]
        whole = arrow.concat_tables(parts, promote_options="permissive")
    return whole.select(order if order is not None else [*first, *sorted(set(whole.column_names) - set(first))])


def write_parquet(rows: Iterator[Row], path: Path, columns: Sequence[Column] = (), order: Sequence[str] | None = None) -> int:
    """Writes rows to a Parquet file, whole or not at all; see `arrow_of`. How many they were.

    Raises:
        ConfigurationError: pyarrow is not installed.
        StorageError: The file cannot be written.
    """
    whole = arrow_of(rows, columns, order)
    partial = path.with_name(f"{path.name}.partial")
    try:
        _library("pyarrow.parquet").write_table(whole, partial)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        hint = f"df -h {path.parent}, or name another file"
        raise StorageError(f"{path} cannot be written", expected="a file", found=str(error), hint=hint) from error
    return int(whole.num_rows)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        hint = "pip install 'evo-l2[tables]'"
        raise ConfigurationError(
            f"{package} is missing", expected=f"{package} for tables", found="none", hint=hint
        ) from error
