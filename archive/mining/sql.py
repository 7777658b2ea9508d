"""Read-only SQL on an archive, on a connection of its own, with limits on time, size and what a statement may do."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive.store import Store
from evo_l2.errors import ConfigurationError, StorageError

__all__ = ["Answer", "is_sql", "sql"]

_WORDS = ("select", "with", "values", "explain")
_REFUSED = (
    "alter",
    "attach",
    "begin",
    "copy",
    "create",
    "delete",
    "detach",
    "drop",
    "insert",
    "pragma",
    "set",
    "update",
    "vacuum",
)
_PAGE = 1000
_LONGEST_VALUE_BYTES = 64 * 2**20
_STEPS = 20_000
"""SQLite's virtual machine makes this many steps, well under a hundredth of a second, between two looks at the clock."""
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a statement, to be read once."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def is_sql(text: str) -> bool:
    """Whether a query is a statement, by its first word, also one that will be refused; else it is a filter expression."""
    return _first_word(text) in (*_WORDS, *_REFUSED)


def _first_word(text: str) -> str:
    words = text.split(maxsplit=1)
    return words[0].lower().lstrip("(") if words else ""


@contextlib.contextmanager
def sql(store: Store, statement: str, *, timeout_s: float = 30.0) -> Iterator[Answer]:
    """Runs one statement that reads; nothing that it holds can write, attach another file, or set anything.

    Args:
        store: The archive; the statement runs beside it, on a connection of its own.
        statement: One `SELECT`, `WITH`, `VALUES` or `EXPLAIN`.
        timeout_s: How long it may take, its rows included, in seconds.

    Raises:
        ConfigurationError: The statement does not parse, or would do more than read.
        StorageError: The archive cannot be read, or the time is spent.
    """
    if _first_word(statement) not in _WORDS:
        expected, found = "a statement that begins with SELECT, WITH, VALUES or EXPLAIN", repr(statement[:60])
        raise ConfigurationError("the statement is not one that reads", expected=expected, found=found)
    if store.url.get_backend_name() == "postgresql":
        with _postgresql(store, statement, timeout_s) as answer:
            yield answer
    else:
        with _sqlite(store, statement, timeout_s) as answer:
            yield answer


@contextlib.contextmanager
def _sqlite(store: Store, statement: str, timeout_s: float) -> Iterator[Answer]:
    path = store.path
    deadline = time.monotonic() + timeout_s
    try:
        connection = sqlite3.connect(store.file_uri, uri=True, timeout=timeout_s)
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be read", expected="an archive", found=str(error)) from error
    with contextlib.closing(connection):
        connection.execute("PRAGMA query_only=ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)
        connection.set_authorizer(_authorise)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        with _translated(path, timeout_s):
            cursor = connection.execute(statement)
            names = tuple(column[0] for column in cursor.description or ())
        yield Answer(names, _pages(cursor, path, timeout_s))


def _authorise(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _pages(cursor: sqlite3.Cursor, path: Path, timeout_s: float) -> Iterator[tuple[Any, ...]]:
    while True:
        with _translated(path, timeout_s):
            rows = cursor.fetchmany(_PAGE)
        if not rows:
            return
        yield from rows


@contextlib.contextmanager
def _translated(path: Path, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        text = str(error)
        if "interrupted" in text:
            raise _too_long(timeout_s) from error
        if "malformed" in text or "not a database" in text or "disk I/O" in text:
            raise StorageError(f"{path} cannot be read", expected="a sound archive", found=text) from error
        if "not authorized" in text or "prohibited" in text or "readonly" in text:
            expected = "a statement that only reads the archive's tables"
            raise ConfigurationError("the statement is refused", expected=expected, found=text) from error
        raise _bad(text) from error


def _too_long(timeout_s: float) -> StorageError:
    hint = "--timeout with more seconds, or a narrower WHERE"
    return StorageError("the query took too long", expected=f"an end within {timeout_s:g} s", found="none", hint=hint)


def _bad(text: str, tables: str = "SELECT name, sql FROM sqlite_master") -> ConfigurationError:
    hint = f'evo-l2 archive query DB "{tables}", for the tables'
    return ConfigurationError("the statement cannot be run", expected="one SELECT", found=text, hint=hint)


@contextlib.contextmanager
def _postgresql(store: Store, statement: str, timeout_s: float) -> Iterator[Answer]:
    import sqlalchemy as sa

    engine = sa.create_engine(store.url, poolclass=sa.pool.NullPool, connect_args={"application_name": "evo-l2 query"})
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {max(1, int(timeout_s * 1000))}")
            driver: Any = connection.connection.driver_connection
            with _refused_by_server(driver, timeout_s), driver.cursor() as cursor:
                # A prepared statement is one statement: without, `SELECT 1; COMMIT; DROP ...` would leave the transaction.
                cursor.execute(statement, prepare=True)
                names = tuple(column.name for column in cursor.description or ())
                yield Answer(names, _fetched(cursor))
    except sa.exc.DBAPIError as error:
        found = str(error.orig)
        raise StorageError(f"{store.place} cannot be reached", expected="a server that answers", found=found) from error
    finally:
        engine.dispose()


@contextlib.contextmanager
def _refused_by_server(driver: Any, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except sys.modules[type(driver).__module__.partition(".")[0]].Error as error:
        text = str(error)
        if "statement timeout" in text:
            raise _too_long(timeout_s) from error
        if "read-only transaction" in text:
            expected = "a statement that only reads the archive's tables"
            raise ConfigurationError("the statement is refused", expected=expected, found=text) from error
        raise _bad(text, "SELECT table_name, column_name FROM information_schema.columns") from error


def _fetched(cursor: Any) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(_PAGE):
        yield from rows
