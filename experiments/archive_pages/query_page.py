"""`evo-l2 archive query`: rows by SQL or by a filter expression."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from archive.address import Address
from archive.codec import load_build
from archive.mining import COLUMNS, Answer, is_sql, query, write_parquet
from archive.read_only import open_to_read
from experiments.archive_pages.frames import frame, say
from experiments.printable import printable
from experiments.summary_page import counted

__all__ = ["print_columns", "print_query"]

_LONGEST_CELL = 60
_NARROWEST = 16
"""A column of words that is wider is broken, but not squeezed below this; what is still too wide is shown row by row."""


def print_query(
    db: Address,
    text: str,
    *,
    table: str,
    run_name: str | None,
    columns: Sequence[str] | None,
    timeout_s: float,
    limit: int,
    form: str,
    parquet: Path | None,
) -> None:
    """The rows of a query: as a table, cut to `limit` rows, or all of them as `csv` or `json`, or in a Parquet file.

    Raises:
        ConfigurationError: The query does not parse, or would do more than read.
        StorageError: The database cannot be read, the time is spent, or the file cannot be written.
    """
    with (
        open_to_read(db) as store,
        query(store, text, name=table, run_name=run_name, columns=columns, timeout_s=timeout_s) as answer,
    ):
        if parquet is not None:
            names = _unique(answer.columns)
            rows = ({name: _plain(value) for name, value in zip(names, row, strict=True)} for row in answer.rows)
            known = [column for column in COLUMNS[table] if column.name in names and not is_sql(text)]
            n_rows = write_parquet(rows, parquet, known, names)
            print(f"{counted(n_rows, 'row')} in {parquet}")
        elif form == "csv":
            _write_csv(answer)
        elif form == "json":
            _write_json(answer)
        else:
            _print_table(answer, limit)


def _write_csv(answer: Answer) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows:
        writer.writerow([json.dumps(value) if isinstance(value, list) else _encodable(_plain(value)) for value in row])


def _write_json(answer: Answer) -> None:
    """One row a line, so that a long answer can be read as it comes."""
    names = _unique(answer.columns)
    lead = "["
    for row in answer.rows:
        print(f"{lead}\n  {json.dumps({n: _plain(v) for n, v in zip(names, row, strict=True)})}", end="")
        lead = ","
    print("[]" if lead == "[" else "\n]")


def _print_table(answer: Answer, limit: int) -> None:
    console = Console(highlight=False)
    rows = list(itertools.islice(answer.rows, limit + 1))
    shown = rows[:limit]
    numbers = {name for i, name in enumerate(answer.columns) if all(isinstance(row[i], int | float | None) for row in shown)}
    cells = [[_cell(value) for value in row] for row in shown]
    widths = [max(len(name), *(cell.cell_len for cell in column), 0) for name, column in _columns(answer.columns, cells)]
    long = {name for name, width in zip(answer.columns, widths, strict=True) if width > _NARROWEST and name not in numbers}
    least = sum(_NARROWEST if name in long else width for name, width in zip(answer.columns, widths, strict=True))
    if shown and least + 2 * len(widths) > console.width:
        _print_records(console, answer.columns, cells)
    elif answer.columns:
        table = frame(answer.columns, right=numbers, wrap=long)
        for line in cells:
            table.add_row(*line)
        console.print(table)
    rest = "" if len(rows) <= limit else "; there are more: --limit, or --csv for all, shows them"
    say(console, f"{counted(len(shown), 'row')}{rest}", "dim")


def _columns(names: Sequence[str], cells: Sequence[Sequence[Text]]) -> Iterator[tuple[str, list[Text]]]:
    return ((name, [line[i] for line in cells]) for i, name in enumerate(names))


def _print_records(console: Console, names: Sequence[str], cells: Sequence[Sequence[Text]]) -> None:
    """Rows that are too wide for the screen, one below the other."""
    for i, line in enumerate(cells):
        table = frame((f"row {i + 1}", ""), wrap=("",))
        for name, cell in zip(names, line, strict=True):
            table.add_row(name, cell)
        console.print(table)
        console.print()


def _cell(value: Any) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.4g}")
    text = printable(str(_plain(value))).replace("\n", "\\n")
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        text = text[:12]
    return Text(text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…")


def _plain(value: Any) -> Any:
    """A value that JSON and CSV can hold: bytes as hexadecimal digits, what is not finite as null."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _encodable(value: Any) -> Any:
    """A text with lone surrogates, which no file can hold, written out."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _unique(names: Sequence[str]) -> list[str]:
    """The names, numbered where one comes several times."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{i}" for i in itertools.count(2))
        free = name if name not in found else next(other for other in numbered if other not in found)
        found.append(free)
    return found


def print_columns(db: Address, table: str, *, as_json: bool) -> None:
    """The columns of a flat table, those that the builds of this archive report among them.

    Raises:
        StorageError: The database cannot be read.
    """
    columns = list(COLUMNS[table])
    extra = list(_reported(db)) if table in ("candidates", "kernels") else []
    if as_json:
        rows = [{"column": c.name, "type": c.kind, "meaning": c.meaning} for c in columns]
        print(
            json.dumps(rows + [{"column": name, "type": None, "meaning": "reported by builds"} for name in extra], indent=2)
        )
        return
    console = Console(highlight=False)
    shown = frame((table, "type", "meaning"), wrap=("meaning",))
    for column in columns:
        shown.add_row(column.name, column.kind, column.meaning)
    console.print(shown)
    if extra:
        known = {column.name for column in columns}
        words = ", ".join(name for name in extra if name not in known)
        console.print(Text(f"and what the last builds report: {words}"))
    say(console, "\nexample: evo-l2 archive query DB \"operator == 'edit' and speedup > 1.2\"", "dim")


def _reported(db: Address) -> Iterator[str]:
    with open_to_read(db) as store:
        rows = store.read("SELECT build FROM verdicts WHERE build IS NOT NULL ORDER BY id DESC LIMIT 200")
    yield from sorted({name for (build,) in rows for name in _resources(build)})


def _resources(text: str) -> Mapping[str, object]:
    build = load_build(text)
    return build.resources if build is not None else {}
