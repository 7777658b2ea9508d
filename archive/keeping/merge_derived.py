"""What follows from the rows of a merge: copied where nothing else bears on it, worked out again elsewhere."""

from __future__ import annotations

from typing import Any

from archive.database import Database
from archive.keeping.merge_rows import Copier, Place
from archive.standings import (
    current_axes,
    has_other_axes,
    mark_revisit,
    rebuild_standings,
    refresh_standings,
)
from archive.tallies import rebuild_tallies

__all__ = ["settle_derived"]

_PAGE = 500
_COLUMNS = {
    "standings": "identity, kernel_id, verdict_id, schema_id, cell, log_ratio, log_low, log_high, speedup, speedup_low,"
    " speedup_high, n_blocks, n_sessions",
    "pending": "identity, kernel_id, verdict_id, schema_id, cell, digest, is_run",
}
_TALLIES = {
    "run_tallies": "operator, outcome, status, added, n, wall_us",
    "run_operators": "operator, first_idx",
    "run_records": "idx, operator, log_low",
}


def settle_derived(database: Database, copier: Copier) -> None:
    """Brings every table of `archive.standings.DERIVED` up to date with the rows that were copied; inside the transaction."""
    for place in copier.places:
        _stand(database, copier, place)
    _count(database, copier)


def _stand(database: Database, copier: Copier, place: Place) -> None:
    schema_id, schema = current_axes(database, *place)
    there = copier.place_there(place)
    rows = {
        table: copier.source.read(
            f"SELECT {columns} FROM {table} WHERE problem_id = ? AND environment_id = ? ORDER BY identity", there
        )
        for table, columns in _COLUMNS.items()
    }
    known = {copier.schema(row[3]) for several in rows.values() for row in several}
    if known - {schema_id} or has_other_axes(database, *place, schema_id):
        rebuild_standings(database, *place, schema_id, schema)
    else:
        for table, several in rows.items():
            _copy(database, copier, place, table, several)
        refresh_standings(database, *place, sorted(copier.shared[place]), schema_id, schema)
    sql = "SELECT identity FROM revisits WHERE problem_id = ? AND environment_id = ?"
    listed = {row[0] for row in database.read(sql, place)}
    new = {row[0] for row in copier.source.read(sql, there)} - listed
    for identity in sorted(new | copier.shared[place]):
        mark_revisit(database, *place, identity)


def _copy(database: Database, copier: Copier, place: Place, table: str, rows: list[Any]) -> None:
    """Rows of kernels that were not known here before."""
    columns = _COLUMNS[table]
    marks = ", ".join("?" * (2 + len(columns.split(","))))
    sql = f"INSERT INTO {table} (problem_id, environment_id, {columns}) VALUES ({marks})"
    new = [row for row in rows if row[2] in copier.new_verdicts and row[0] not in copier.shared[place]]
    for start in range(0, len(new), _PAGE):
        page = new[start : start + _PAGE]
        kernels = copier.kernels([row[1] for row in page])
        for identity, kernel, verdict, schema, *row in page:
            ids = (kernels[kernel], copier.verdict(verdict), copier.schema(schema))
            database.execute(sql, (*place, identity, *ids, *row))


def _count(database: Database, copier: Copier) -> None:
    """The tallies of a new run are those that it has there, where no verdict of its candidates was known here before."""
    stale = _retimed(database, copier)
    for copy in copier.growing:
        assert copy.target is not None
        if not copy.is_new or copy.run.key in copier.mixed:
            stale.add(copy.target)
            continue
        for table, columns in _TALLIES.items():
            marks = ", ".join("?" * (1 + len(columns.split(","))))
            for row in copier.source.read(f"SELECT {columns} FROM {table} WHERE run_id = ?", (copy.run.key,)):
                database.execute(f"INSERT INTO {table} (run_id, {columns}) VALUES ({marks})", (copy.target, *row))
    for run_id in sorted(stale):
        rebuild_tallies(database, run_id)


def _retimed(database: Database, copier: Copier) -> set[int]:
    """Runs whose candidates have a verdict that got another session."""
    found: set[int] = set()
    verdicts = sorted(copier.retimed)
    for start in range(0, len(verdicts), _PAGE):
        page = verdicts[start : start + _PAGE]
        found.update(
            row[0]
            for row in database.read(
                "SELECT DISTINCT c.run_id FROM verdicts v JOIN candidates c ON c.kernel_id = v.kernel_id"
                f" AND c.verdict_id = v.id WHERE v.id IN ({', '.join('?' * len(page))})",
                page,
            )
        )
    return found
