"""The connection to an archive's file: opened, checked, upgraded; and the transactions on it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from archive.address import parse_address
from evo_l2.errors import StorageError

__all__ = ["APPLICATION_ID", "HEAD", "Database", "open_database", "translated"]

APPLICATION_ID = 0x45564F32
"""`EVO2` in SQLite's header: tells our files from those of others."""
HEAD = "0004"
"""The newest revision of the tables that this version knows."""
_MAGIC = b"SQLite format 3\0"
_MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """One connection, one transaction at a time; may be used from several threads.

    This class is the one of SQLite files; `archive.postgres` has that of servers. SQL has `?` marks in both.
    """

    dialect = "sqlite"

    def __init__(self, place: str | os.PathLike[str], engine: sa.Engine) -> None:
        self.place = str(place)
        """What messages call it: the path of a file, or a URL without its password."""
        self.upgraded_from: str | None = None
        """The revision that the archive had when it was opened, where it was an older one."""
        self._engine = engine
        self._lock = threading.RLock()
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._driver: Any = self._connection.connection.driver_connection

    @property
    def connection(self) -> sa.Connection:
        """For migrations; everything else goes through `read` and `write`."""
        return self._connection

    @property
    def path(self) -> Path:
        """The file.

        Raises:
            StorageError: It is on a server.
        """
        if self.dialect != "sqlite":
            raise StorageError(f"{self.place} is no file", expected="an archive in a file", found="one on a server")
        return Path(self.place)

    @property
    def url(self) -> sa.URL:
        """Where it is, with the password, for a connection beside this one."""
        return self._engine.url

    @property
    def n_bytes(self) -> int:
        """Size of the archive on disk, its log of changes not counted."""
        return self.path.stat().st_size

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Any]:
        """All rows of one query.

        Raises:
            StorageError: The archive cannot be read.
        """
        with self._lock:
            try:
                return self._rows(sql, parameters)
            except self._errors() as error:
                raise self.translated(error) from error

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Any:
        """One statement, its errors not translated; only inside `write`. The driver's cursor.

        It goes to the driver: through SQLAlchemy the statements of a candidate take a third longer.
        """
        return self._execute(sql, parameters)

    def insert(self, sql: str, parameters: Sequence[object] = ()) -> int | None:
        """One `INSERT` of one row into a table with ids; only inside `write`. The id, or None when a conflict kept it out."""
        cursor = self._driver.execute(sql, parameters)
        return cursor.lastrowid if cursor.rowcount == 1 else None

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """A transaction that holds the write lock from its start; rolled back when anything is raised.

        Raises:
            StorageError: The archive cannot be written, or another process held the lock for too long.
        """
        with self._lock:
            try:
                self._begin()
                yield
                self._driver.execute("COMMIT")
            except self._errors() as error:
                self._roll_back()
                raise self.translated(error) from error
            except BaseException:
                self._roll_back()
                raise

    def table_names(self) -> set[str]:
        """Every table and view of the archive's place, ours or not."""
        return {row[0] for row in self.read("SELECT name FROM sqlite_master")}

    def close(self) -> None:
        """Closes the connection; may be called twice."""
        with self._lock:
            if not self._connection.closed:
                with contextlib.suppress(*self._errors()):
                    self._optimize()
                self._connection.close()
            self._engine.dispose()

    # --- what differs between SQLite and PostgreSQL --------------------------------------------------------------------

    def _errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises."""
        return (sa.exc.DBAPIError, sqlite3.Error)

    def _execute(self, sql: str, parameters: Sequence[object]) -> Any:
        return self._driver.execute(sql, parameters)

    def _rows(self, sql: str, parameters: Sequence[object]) -> list[Any]:
        return self._driver.execute(sql, parameters).fetchall()  # type: ignore[no-any-return]

    def _begin(self) -> None:
        self._driver.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        if self._driver.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._driver.execute("ROLLBACK")

    def _optimize(self) -> None:
        self._driver.execute("PRAGMA analysis_limit=400")
        self._driver.execute("PRAGMA optimize")

    def translated(self, error: Exception) -> StorageError:
        """The driver's error as one clear line."""
        return translated(error, self.path)


def translated(error: Exception, path: Path) -> StorageError:
    """SQLite's error as one clear line."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    text = str(cause)
    if "NOT NULL" in text:
        return StorageError(
            f"a row for {path} lacks a value", expected="a number where one is due", found=f"NaN, or none: {text}"
        )
    if isinstance(cause, sqlite3.IntegrityError):
        expected = "one process for each run"
        hint = "stop the other process, then evo-l2 resume"
        return StorageError(f"a row of {path} contradicts another", expected=expected, found=text, hint=hint)
    if "is full" in text:
        return StorageError(f"{path} cannot grow", expected="room on its disk", found=text, hint=f"df -h {path.parent}")
    if "locking protocol" in text:
        hint = "--db a path on a disk of this machine"
        return StorageError(
            f"{path} cannot be shared", expected="a local disk", found=f"{text}, as on a network folder", hint=hint
        )
    if "locked" in text:
        expected = "to get the write lock in time"
        hint = f"fuser {path}, to see which process holds it"
        return StorageError(f"{path} is in use", expected=expected, found=text, hint=hint)
    if "readonly" in text or "unable to open" in text:
        expected = "a file and a folder that may be written"
        return StorageError(f"{path} cannot be written", expected=expected, found=text, hint=f"ls -ld {path.parent} {path}")
    if "not a database" in text or "malformed" in text:
        hint = f"sqlite3 {path} .recover | sqlite3 recovered.db"
        return StorageError(f"{path} is damaged or no archive", expected="an SQLite file", found=text, hint=hint)
    return StorageError(f"{path} cannot be used", expected="SQLite to succeed", found=text)


def open_database(
    url_or_path: str | os.PathLike[str],
    *,
    create: bool,
    durable: bool,
    busy_timeout_s: float,
    migrations: Path = _MIGRATIONS,
    head: str = HEAD,
) -> Database:
    """Opens an archive, makes it when it is missing, and brings it to the newest revision.

    Raises:
        ConfigurationError: The URL names neither an SQLite file nor a PostgreSQL database.
        StorageError: The file or server is missing, is no archive, is of a newer revision, or cannot be written.
    """
    address = parse_address(url_or_path)
    if isinstance(address, Path):
        return _open_file(address, create, durable, busy_timeout_s, migrations, head)
    from archive.postgres import connect

    database: Database = connect(address, durable=durable, busy_timeout_s=busy_timeout_s)
    try:
        revision = _revision(database)
        if revision is None and not create:
            raise StorageError("no such archive", expected=f"tables in {address}", found="none", hint="evo-l2 run quickstart")
        if revision != head:
            _upgrade(database, revision, migrations, head)
    except BaseException as error:
        _give_up(database, error)
        raise
    return database


def _open_file(path: Path, create: bool, durable: bool, busy_timeout_s: float, migrations: Path, head: str) -> Database:
    _check_file(path, create=create)
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=sa.pool.StaticPool,
        connect_args={"check_same_thread": False, "timeout": busy_timeout_s, "cached_statements": 256},
    )
    database = None
    try:
        database = Database(str(path), engine)
        revision = _revision(database)
        _set_up(database, durable=durable, busy_timeout_s=busy_timeout_s)
        if revision != head:
            _upgrade(database, revision, migrations, head)
    except BaseException as error:
        if database is not None:
            _give_up(database, error)
        engine.dispose()
        if isinstance(error, sa.exc.DBAPIError):
            raise translated(error, path) from error
        raise
    return database


def _give_up(database: Database, error: BaseException) -> None:
    """Closes what could not be opened, and says why."""
    found = database.translated(error) if isinstance(error, sa.exc.DBAPIError) else None
    database.close()
    if found is not None:
        raise found from error


def _check_file(path: Path, *, create: bool) -> None:
    """What can be said before SQLite is asked."""
    if path.exists() and not path.is_file():
        found = "a folder" if path.is_dir() else "a device or pipe"
        raise StorageError(f"{path} is no archive", expected="a file", found=found)
    if not path.parent.is_dir():
        hint = f"mkdir -p {path.parent}"
        raise StorageError(f"{path} cannot be made", expected=f"a folder {path.parent}", found="none", hint=hint)
    if not path.exists():
        if not create:
            raise StorageError("no such archive", expected=f"a file {path}", found="none", hint="evo-l2 run quickstart")
    else:
        try:
            with path.open("rb") as file:
                start = file.read(len(_MAGIC))
        except OSError as error:
            raise StorageError(f"{path} cannot be read", expected="a file that may be read", found=str(error)) from error
        if start and start != _MAGIC:
            raise StorageError(f"{path} is no archive", expected="an SQLite file", found="something else")
        if not os.access(path, os.W_OK, effective_ids=True):
            hint = f"cp {path} somewhere else, and open the copy"
            raise StorageError(f"{path} is read-only", expected="a file that may be written", hint=hint)
    if not os.access(path.parent, os.W_OK, effective_ids=True):
        found = f"{path.parent} is read-only"
        hint = "--db a path in another folder"
        raise StorageError(f"{path} cannot be written", expected="a folder that may be written", found=found, hint=hint)


def _revision(database: Database) -> str | None:
    """The archive's revision; None when there is nothing.

    Raises:
        StorageError: It is a database of something else.
    """
    names = database.table_names()
    identifier = database.read("PRAGMA application_id")[0][0] if database.dialect == "sqlite" else 0
    if not names and identifier in (0, APPLICATION_ID):
        return None
    # A file that was dumped and loaded again has lost its identifier, but not its tables; a server has none.
    ours = identifier == APPLICATION_ID or (identifier == 0 and {"alembic_version", "runs", "timing_sessions"} <= names)
    if ours and "alembic_version" in names:
        found = database.read("SELECT version_num FROM alembic_version")
        if len(found) == 1:
            return str(found[0][0])
    raise StorageError(
        f"{database.place} is the database of something else",
        expected="an archive of evo-l2, or a new file" if database.dialect == "sqlite" else "an archive, or an empty schema",
        found=f"tables {', '.join(sorted(names)[:4]) or 'of none'}",
    )


def _set_up(database: Database, *, durable: bool, busy_timeout_s: float) -> None:
    connection = database.connection
    connection.exec_driver_sql(f"PRAGMA busy_timeout={int(busy_timeout_s * 1000)}")
    # Of a new file. A candidate changes a few bytes in each of a dozen pages, and the log takes whole ones.
    connection.exec_driver_sql("PRAGMA page_size=1024")
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            mode = connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar_one()
            if mode != "wal":
                found = f"SQLite keeps journal mode {mode} there, as on a network folder"
                hint = "--db a path on a disk of this machine"
                raise StorageError(f"{database.path} cannot be shared", expected="a local disk", found=found, hint=hint)
            break
        # SQLite does not wait for the lock that this change needs, so two processes that make one file can collide here.
        except sa.exc.OperationalError as error:
            if "locked" not in str(error.orig) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    connection.exec_driver_sql("PRAGMA foreign_keys=ON")
    connection.exec_driver_sql("PRAGMA temp_store=MEMORY")
    connection.exec_driver_sql("PRAGMA cache_size=-32768")
    # Checkpoints rewrite the same index pages; a longer log (64 MB at this size of page) writes each of them less often.
    connection.exec_driver_sql("PRAGMA wal_autocheckpoint=64000")


def _upgrade(database: Database, revision: str | None, migrations: Path, head: str) -> None:
    """Brings the file to the newest revision, in one transaction, after a copy was put beside it."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    from archive.standings import fill_derived

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StorageError(
            f"{database.place} was written by another version",
            expected=f"revision {head} or older",
            found=f"revision {revision}",
            hint="pip install --upgrade evo-l2",
        )
    with database.write():
        # Another process may have done it while this one waited for the lock.
        if _revision(database) == head:
            return
        if revision is not None:
            if database.dialect == "sqlite":
                _back_up(database, revision)
            database.upgraded_from = revision
        config.attributes["connection"] = database.connection
        command.upgrade(config, head)
        fill_derived(database)
        if database.dialect == "sqlite":
            database.execute(f"PRAGMA application_id={APPLICATION_ID}")


def _back_up(database: Database, revision: str) -> None:
    """Copies the file to `FILE.REVISION.bak`; an upgrade cannot be undone otherwise."""
    target = database.path.with_name(f"{database.path.name}.{revision}.bak")
    partial = target.with_name(f"{target.name}.partial")
    try:
        # By a connection of its own: SQLite copies nothing through one that is in a write transaction, and waits for ever.
        with (
            contextlib.closing(sqlite3.connect(database.path)) as source,
            contextlib.closing(sqlite3.connect(partial)) as copy,
        ):
            source.backup(copy)
        partial.replace(target)
    except (OSError, sqlite3.Error) as error:
        partial.unlink(missing_ok=True)
        raise StorageError(
            f"{database.path} cannot be copied before its upgrade",
            expected="room for a copy beside it",
            found=str(error),
            hint=f"df -h {database.path.parent}",
        ) from error
