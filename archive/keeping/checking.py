"""`fsck`: what an archive says is checked against itself, and derived rows are worked out again."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from archive.keeping.check_derived import (
    Mend,
    check_results,
    check_revisits,
    check_sessions,
    check_standings,
    check_tallies,
)
from archive.keeping.check_rows import (
    check_calls,
    check_candidates,
    check_kernels,
    check_provenance,
    check_texts,
    check_verdicts,
    sequence_findings,
)
from archive.keeping.findings import UNREADABLE, Finding, Note
from archive.keeping.rework import Material
from archive.standings import DERIVED
from archive.store import Store
from evo_l2.errors import StorageError

__all__ = ["Report", "check"]

_NULL = ", 'null'"
_Check = Callable[[Store], Iterator[Finding | Note]]


@dataclass(frozen=True, slots=True)
class Report:
    """What a check of a whole archive came to."""

    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    n_repaired: int
    """Derived rows that were worked out again; their findings are listed too."""

    @property
    def clean(self) -> bool:
        """Whether nothing is left to be mended."""
        return len(self.findings) == self.n_repaired


def check(store: Store, *, repair: bool = False) -> Report:
    """Checks everything that an archive says against itself.

    Nothing is taken from a cache: digests are worked out from sources and texts, estimates from samples, standings and
    tallies from candidates, verdicts and sessions, and every run's grid from its history. Curves and bests are not stored;
    they follow from these. SQLite's own checks of a file, and those of its tables and kinds, are left to a server elsewhere.

    Args:
        store: The archive; others may write to it meanwhile, though what they add while it goes on may be reported.
        repair: Whether derived tables (`archive.standings.DERIVED`) are worked out again where they differ. Nothing else is
            ever changed: what was measured cannot be made up.

    Raises:
        StorageError: A repair cannot be written.
    """
    findings: list[Finding] = []
    notes: list[Note] = []
    mends: list[Mend] = []

    def take(name: str, rows: Iterator[Finding | Note | tuple[Finding, Mend | None]]) -> None:
        try:
            for row in rows:
                if isinstance(row, Note):
                    notes.append(row)
                elif isinstance(row, Finding):
                    findings.append(row)
                else:
                    findings.append(row[0])
                    if row[1] is not None:
                        mends.append(row[1])
        except (StorageError, *UNREADABLE) as error:
            what = "the rest of this check is left out, since a value is of another kind than it should be"
            what = "cannot be read to its end" if isinstance(error, StorageError) else what
            findings.append(Finding(name, store.place, f"{what}: {' '.join(str(error).split())}"))

    steps: tuple[tuple[str, _Check], ...] = (
        ("file", _check_file),
        ("tables", _check_tables),
        ("tables", _check_kinds),
        ("kernels", check_kernels),
        ("texts", check_texts),
        ("provenance", check_provenance),
        ("candidates", check_verdicts),
        ("candidates", check_candidates),
        ("calls", check_calls),
        ("sessions", check_sessions),
    )
    for name, step in steps:
        take(name, step(store))
    try:
        material = Material.read(store)
    except (StorageError, *UNREADABLE) as error:
        findings.append(Finding("standings", store.place, f"cannot be worked out: {' '.join(str(error).split())}"))
        return Report(tuple(findings), tuple(notes), 0)
    take("standings", check_standings(store, material))
    take("revisits", check_revisits(store, material))
    take("tallies", check_tallies(store))
    take("results", check_results(store, material))
    n_repaired = _repair(store, mends) if repair else 0
    return Report(tuple(findings), tuple(notes), n_repaired)


def _is_sqlite(store: Store) -> bool:
    return store.is_file


def _check_file(store: Store) -> Iterator[Finding | Note]:
    """SQLite's own checks of its pages, and that rows that are named are there."""
    if not _is_sqlite(store):
        return
    for (text,) in store.read("PRAGMA integrity_check(20)"):
        if text != "ok":
            yield Finding("file", store.place, f"SQLite says {text}")
    for table, row, parent, _ in store.read("PRAGMA foreign_key_check"):
        yield Finding("file", f"row {row} of {table}", f"names a row of {parent} that is not there")


def _check_tables(store: Store) -> Iterator[Finding | Note]:
    """Tables, indices, triggers and views are those of this revision, and no id was given twice."""
    if not _is_sqlite(store):
        return
    sql = "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY type, name"
    expected = _expected_tables(sql)
    found = {tuple(row) for row in store.read(sql)}
    for kind, name in sorted(expected - found):
        yield Finding("tables", name, f"the {kind} is missing")
    for kind, name in sorted(found - expected):
        yield Note(f"{kind} {name} is not one of ours")
    yield from sequence_findings(store, dict(store.read("SELECT name, seq FROM sqlite_sequence")))


def _check_kinds(store: Store) -> Iterator[Finding | Note]:
    """SQLite keeps anything in any column; what is no number where one is due, or no text, is named."""
    if not _is_sqlite(store):
        return
    for (table,) in store.read(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    ):
        if table in DERIVED:  # what is wrong there is found by working it out, and can be mended
            continue
        columns = [(row[1], row[2].upper(), row[3] or row[5]) for row in store.read(f"PRAGMA table_info({table})")]
        wrong = [f"typeof({name}) NOT IN ({_kinds(kind)}{'' if due else _NULL})" for name, kind, due in columns]
        shown = ", ".join(
            f"CASE WHEN {condition} THEN typeof({column[0]}) END" for column, condition in zip(columns, wrong, strict=True)
        )
        sql = f"SELECT {columns[0][0]}, {shown} FROM {table} WHERE {' OR '.join(wrong)} LIMIT 20"
        for row in store.read(sql):
            for (name, kind, _), found in zip(columns, row[1:], strict=True):
                if found is not None:
                    yield Finding("tables", f"row {row[0]} of {table}", f"{name} is {found}, expected {kind.lower()}")


def _kinds(declared: str) -> str:
    """What a column of a declared kind may hold; text that UTF-8 cannot hold is kept as bytes."""
    if "INT" in declared:
        return "'integer'"
    if declared in ("FLOAT", "REAL", "DOUBLE", "DOUBLE PRECISION"):
        return "'real', 'integer'"
    return "'blob'" if declared == "BLOB" else "'text', 'blob'"


@functools.cache
def _expected_tables(sql: str) -> frozenset[tuple[str, str]]:
    """What a file of this revision holds."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "empty.db") as empty:
        return frozenset((kind, name) for kind, name in empty.read(sql))


def _repair(store: Store, mends: list[Mend]) -> int:
    """Works out again what is derived, each in a transaction of its own; how much could be."""
    database = store._database
    n_repaired = 0
    for mend in mends:
        # What it follows from may be damaged too; it stays as it is then.
        with contextlib.suppress(*UNREADABLE), database.write():
            mend(database)
            n_repaired += 1
    return n_repaired
