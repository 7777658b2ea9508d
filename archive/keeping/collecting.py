"""`gc`: what nothing in an archive refers to is taken out of it, and the file shrinks to what it holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from archive.codec import load
from archive.database import Database
from archive.store import Store
from evo_l2.errors import ConfigurationError

__all__ = ["REFERENCES", "Collected", "collect"]

_PAGE = 500
REFERENCES = (
    ("candidates", "kernel_id"),
    ("candidates", "duplicate_of"),
    ("candidate_parents", "kernel_id"),
    ("run_seeds", "kernel_id"),
    ("verdicts", "kernel_id"),
    ("standings", "kernel_id"),
    ("pending", "kernel_id"),
    ("work", "kernel_id"),
)
"""Every column that names a kernel."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What was taken out, or would be."""

    n_texts: int
    """Prompts and replies that no model call names."""
    n_kernels: int
    """Kernels that no candidate, seed, verdict, standing or work names."""
    backups: tuple[Path, ...]
    """Copies from before an upgrade, and what killed upgrades left."""
    n_backup_bytes: int
    n_bytes_before: int
    """Size of the file, or of the tables on a server."""
    n_bytes_after: int
    """The same in a dry run."""


def collect(store: Store, *, backups: bool = False, dry_run: bool = False) -> Collected:
    """Removes what nothing refers to, and gives the room back to the disk.

    What a run, candidate, verdict, session or call says is never touched, nor are kernels that they name.

    Args:
        store: The archive; another process that reads or writes it for long keeps it from shrinking.
        backups: Whether copies that upgrades left beside the file (`FILE.REVISION.bak`) go too.
        dry_run: Whether it is only said what would go.

    Raises:
        ConfigurationError: The archive is on a server, and there are no such copies.
        StorageError: The file is in use, or there is no room for the smaller copy that takes its place.
    """
    if backups and not store.is_file:
        raise ConfigurationError(
            "upgrades leave copies beside files only",
            expected="an archive in a file",
            found=store.place,
            hint="leave out --backups",
        )
    database = store._database
    before = store.n_bytes
    if dry_run:
        texts, kernels = _loose_texts(database), _loose_kernels(database)
    else:
        with database.write():
            texts, kernels = _loose_texts(database), _loose_kernels(database)
            _delete(database, "texts", texts)
            _delete_kernels(database, kernels)
        # A server gives room back by itself, and has tables of others.
        if store.is_file:
            database.read("VACUUM")
            database.read("PRAGMA wal_checkpoint(TRUNCATE)")
    copies = _backups(store.path) if backups else ()
    n_backup_bytes = sum(_size(copy) for copy in copies)
    if not dry_run:
        for copy in copies:
            copy.unlink(missing_ok=True)
    return Collected(len(texts), len(kernels), copies, n_backup_bytes, before, store.n_bytes)


def _loose_texts(database: Database) -> list[int]:
    named: set[int] = set()
    last = -1
    while True:
        rows = database.read("SELECT id, prompt, reply_id FROM model_calls WHERE id > ? ORDER BY id LIMIT 5000", (last,))
        for _, prompt, reply in rows:
            named.update(key for _, key in load(prompt))
            named.add(reply)
        if len(rows) < 5000:
            break
        last = rows[-1][0]
    return [key for (key,) in database.read("SELECT id FROM texts ORDER BY id") if key not in named]


def _loose_kernels(database: Database) -> list[int]:
    named: set[int] = set()
    for table, column in REFERENCES:
        named.update(key for (key,) in database.read(f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL"))
    return [key for (key,) in database.read("SELECT id FROM kernels ORDER BY id") if key not in named]


def _delete_kernels(database: Database, keys: list[int]) -> None:
    """Kernels are append-only: the trigger that says so is put aside inside the transaction, and nobody sees it gone."""
    if not keys:
        return
    if database.dialect != "sqlite":
        database.execute("ALTER TABLE kernels DISABLE TRIGGER kernels_append_only")
        _delete(database, "kernels", keys)
        database.execute("ALTER TABLE kernels ENABLE TRIGGER kernels_append_only")
        return
    triggers = database.read("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name = 'kernels_no_delete'")
    for name, _ in triggers:
        database.execute(f"DROP TRIGGER {name}")
    _delete(database, "kernels", keys)
    for _, sql in triggers:
        database.execute(sql)


def _delete(database: Database, table: str, keys: list[int]) -> None:
    for start in range(0, len(keys), _PAGE):
        page = keys[start : start + _PAGE]
        database.execute(f"DELETE FROM {table} WHERE id IN ({', '.join('?' * len(page))})", page)


def _backups(path: Path) -> tuple[Path, ...]:
    name = re.compile(re.escape(path.name) + r"\.\d{4}\.bak(\.partial)?")
    return tuple(sorted(other for other in path.parent.iterdir() if name.fullmatch(other.name) and other.is_file()))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
