"""The connection to an archive on a PostgreSQL server; see `archive.database` for what it promises."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from archive.address import ServerAddress
from archive.database import APPLICATION_ID, Database
from evo_l2.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresDatabase", "connect"]

_CONNECT_TIMEOUT_S = 10


class PostgresDatabase(Database):
    """One connection to a server, one transaction at a time.

    Transactions that write wait for each other, by a lock of the whole archive, as they do in a file: the ids of rows follow
    the order of commits, and what a run saw when it was started can be told by the last id of then.
    """

    dialect = "postgresql"

    def __init__(self, address: ServerAddress, engine: sa.Engine) -> None:
        super().__init__(str(address), engine)
        self._translated: dict[str, str] = {}

    def _errors(self) -> tuple[type[Exception], ...]:
        import psycopg

        return (sa.exc.DBAPIError, psycopg.Error)

    def _execute(self, sql: str, parameters: Sequence[object]) -> psycopg.Cursor[Any]:
        text = self._translated.get(sql)
        if text is None:
            text = self._translated[sql] = _with_their_marks(sql)
        return self._driver.execute(text, tuple(parameters))  # type: ignore[no-any-return]

    def _rows(self, sql: str, parameters: Sequence[object]) -> list[Any]:
        cursor = self._execute(sql, parameters)
        return cursor.fetchall() if cursor.description is not None else []

    def insert(self, sql: str, parameters: Sequence[object] = ()) -> int | None:
        """See `Database.insert`."""
        row = self._execute(f"{sql} RETURNING id", parameters).fetchone()
        return int(row[0]) if row is not None else None

    def _begin(self) -> None:
        self._driver.execute("BEGIN")
        self._driver.execute("SELECT pg_advisory_xact_lock(%s, hashtext(current_schema()))", (APPLICATION_ID,))

    def _roll_back(self) -> None:
        import psycopg

        with contextlib.suppress(psycopg.Error):
            if self._driver.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self._driver.execute("ROLLBACK")

    @property
    def n_bytes(self) -> int:
        """Size of the archive's tables and indices."""
        rows = self.read(
            "SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'"
        )
        return int(rows[0][0])

    def table_names(self) -> set[str]:
        """See `Database.table_names`."""
        rows = self.read("SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()")
        return {row[0] for row in rows}

    def _optimize(self) -> None:
        """The server does it by itself."""

    def translated(self, error: Exception) -> StorageError:
        """PostgreSQL's error as one clear line."""
        import psycopg

        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        found = " ".join(str(cause).split("\n")[0].split()) or type(cause).__name__
        if isinstance(cause, psycopg.errors.IntegrityError):
            return StorageError(
                f"a row of {self.place} contradicts another",
                expected="one process for each run",
                found=found,
                hint="stop the other process, then evo-l2 resume",
            )
        if isinstance(cause, psycopg.errors.LockNotAvailable):
            expected, hint = "to get the write lock in time", "SELECT * FROM pg_stat_activity, to see who holds it"
            return StorageError(f"{self.place} is in use", expected=expected, found=found, hint=hint)
        if isinstance(cause, psycopg.errors.DiskFull):
            return StorageError(f"{self.place} cannot grow", expected="room on the server's disk", found=found)
        if isinstance(cause, psycopg.errors.ReadOnlySqlTransaction | psycopg.errors.InsufficientPrivilege):
            expected = "a user that may create and write tables there"
            return StorageError(f"{self.place} cannot be written", expected=expected, found=found)
        if isinstance(cause, psycopg.OperationalError) and self._driver.closed:
            expected = "the server to stay up"
            return StorageError(f"the connection to {self.place} is lost", expected=expected, found=found)
        return StorageError(f"{self.place} cannot be used", expected="PostgreSQL to succeed", found=found)


def connect(address: ServerAddress, *, durable: bool, busy_timeout_s: float) -> PostgresDatabase:
    """Connects to a server.

    Raises:
        ConfigurationError: The driver is not installed.
        StorageError: The server, the database, the user or the schema is not there, or cannot hold an archive.
    """
    try:
        import psycopg
    except ImportError as error:
        raise ConfigurationError(
            "archives on PostgreSQL need its driver", expected="psycopg", found="none", hint="pip install 'evo-l2[postgres]'"
        ) from error
    arguments = {"connect_timeout": _CONNECT_TIMEOUT_S, "application_name": "evo-l2", "client_encoding": "utf8"}
    engine = sa.create_engine(address.url, poolclass=sa.pool.StaticPool, connect_args=arguments)
    try:
        database = PostgresDatabase(address, engine)
    except (sa.exc.DBAPIError, psycopg.Error) as error:
        engine.dispose()
        raise _refused(address, error) from error
    try:
        if database.read("SHOW server_encoding") != [("UTF8",)]:
            found = database.read("SHOW server_encoding")[0][0]
            raise StorageError(f"{address} cannot hold an archive", expected="a database in UTF8", found=found)
        if database.read("SELECT current_schema()") == [(None,)]:
            hint = "CREATE SCHEMA, by the name in the URL's search_path"
            raise StorageError(
                f"{address} has no schema for the archive", expected="one on its path", found="none", hint=hint
            )
        database.read("SELECT set_config('lock_timeout', ?, false)", (f"{int(busy_timeout_s * 1000)}ms",))
        if durable:
            database.read("SET synchronous_commit = on")
    except BaseException:
        database.close()
        raise
    return database


def _refused(address: ServerAddress, error: Exception) -> StorageError:
    """Why there is no connection; the server's words do not hold the password."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    text = " ".join(str(cause).split())
    password = sa.make_url(address.url).password
    if password:
        text = text.replace(str(password), "***")
    if "password" in text or "authentication" in text or "no pg_hba.conf entry" in text or "role" in text:
        expected, hint = "a user and a password that the server takes", "PGPASSWORD or ~/.pgpass keep it out of the URL"
        return StorageError(f"{address} refuses the user", expected=expected, found=text, hint=hint)
    if "database" in text and "does not exist" in text:
        name = sa.make_url(address.url).database
        return StorageError(f"{address} is missing", expected=f"a database {name}", found=text, hint=f"createdb {name}")
    return StorageError(f"{address} cannot be reached", expected="a server that answers", found=text, hint="pg_isready")


def _with_their_marks(sql: str) -> str:
    """`?` outside of strings becomes `%s`."""
    parts = sql.replace("%", "%%").split("'")
    parts[::2] = [part.replace("?", "%s") for part in parts[::2]]
    return "'".join(parts)
