"""The durable archive: one SQLite file, or PostgreSQL schema, with every run, kernel, verdict, timing and model call."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from archive.codec import dump, load, load_environment, load_schema, now, store_schema
from archive.database import Database, open_database
from archive.keeping.held import read_seen
from archive.reading import read_calls, read_evaluation
from archive.rows import Scope
from archive.run import RunHandle, RunInfo
from archive.standings import has_other_axes, rebuild_derived, rebuild_standings
from archive.tallies import Tallies, stored_tallies
from evo_l2.contracts import ModelCall
from evo_l2.errors import StorageError
from evo_l2.evaluation import Environment, Evaluation
from evo_l2.problem import Problem

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["RunHandle", "RunInfo", "Store"]

_RUN = (
    "SELECT r.id, r.name, r.problem_id, r.environment_id, r.schema_id, r.base_verdict, r.base_session, r.base_candidate,"
    " p.key, p.title, p.definition, e.target, e.identity, r.provenance, r.target, m.axes, r.config, r.seed, r.created,"
    " r.finished, r.summary, (SELECT COALESCE(MAX(c.idx) + 1, 0) FROM candidates c WHERE c.run_id = r.id),"
    " r.merged"
    " FROM runs r JOIN problems p ON p.id = r.problem_id JOIN environments e ON e.id = r.environment_id"
    " JOIN measures_schemas m ON m.id = r.schema_id"
)


class Store:
    """An open archive; a context manager. Made by `Store.open`; may be used from several threads, not across a fork."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(
        cls,
        url_or_path: str | os.PathLike[str],
        *,
        create: bool = True,
        durable: bool = False,
        busy_timeout_s: float = 30.0,
    ) -> Store:
        """Opens an archive. One of an older revision is copied to `FILE.REVISION.bak` and then upgraded.

        Args:
            url_or_path: A path, `sqlite:///PATH`, or `postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE`.
            create: Whether a missing file is made.
            durable: False survives the end of the process at any moment (`synchronous=NORMAL`); True a power cut too
                (`FULL`), for a flush to disk on every addition. A server decides by itself, and is told to for True.
            busy_timeout_s: How long to wait for another process's transaction, in seconds.

        Raises:
            ConfigurationError: The URL names neither an SQLite file nor a PostgreSQL database.
            StorageError: The file or server is missing, is no archive, is of a newer revision, or cannot be written.
        """
        return cls(open_database(url_or_path, create=create, durable=durable, busy_timeout_s=busy_timeout_s))

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._database.close()

    @property
    def is_file(self) -> bool:
        """Whether it is an SQLite file, and not on a server."""
        return self._database.dialect == "sqlite"

    @property
    def file_uri(self) -> str:
        """How SQLite opens the file to be read, on a connection beside this one.

        Raises:
            StorageError: The archive is on a server.
        """
        return f"file:{quote(str(self.path.absolute()))}?mode=ro"

    @property
    def path(self) -> Path:
        """The file.

        Raises:
            StorageError: The archive is on a server.
        """
        return self._database.path

    @property
    def place(self) -> str:
        """What messages call the archive: the path of its file, or its URL without the password."""
        return self._database.place

    @property
    def url(self) -> sa.URL:
        """Where it is, with the password, for a connection beside this one."""
        return self._database.url

    @property
    def n_bytes(self) -> int:
        """Size of the whole archive on disk, its log of changes not counted."""
        return self._database.n_bytes

    @property
    def upgraded_from(self) -> str | None:
        """The revision that the file had before `open` upgraded it; None when it was up to date."""
        return self._database.upgraded_from

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Any]:
        """All rows of one query, for mining.

        Raises:
            StorageError: The file cannot be read.
        """
        return self._database.read(sql, parameters)

    def start_run(
        self,
        name: str,
        problem: Problem,
        environment: Environment,
        target: str,
        config: Mapping[str, Any],
        seed: int,
    ) -> RunHandle:
        """Starts a run; what the file holds for this problem and environment is where it begins.

        Args:
            name: Its name; where it is taken, the run is called `NAME-2`, `NAME-3` and so on.
            problem: What is computed.
            environment: Where it is measured.
            target: `cpu` or `cuda`.
            config: Plain data (JSON) from which the run can be made again.
            seed: The run's seed.

        Raises:
            StorageError: The file cannot be written.
        """
        schema = problem.measures(target)
        with self._database.write():
            problem_id = self._intern(
                "problems",
                {"key": problem.key, "name": problem.name, "title": problem.title, "definition": dump(problem.definition)},
            )
            identity = dump(dict(environment.identity))
            environment_id = self._intern(
                "environments", {"key": environment.key, "target": environment.target, "identity": identity}
            )
            schema_id = self._intern("measures_schemas", {"version": schema.version, "axes": store_schema(schema)})
            if has_other_axes(self._database, problem_id, environment_id, schema_id):
                rebuild_standings(self._database, problem_id, environment_id, schema_id, schema)
            free = self._free_name(name)
            self._database.execute(
                "INSERT INTO runs (name, problem_id, environment_id, schema_id, target, config, seed, provenance,"
                " base_verdict, base_session, base_candidate, created, uid) SELECT ?, ?, ?, ?, ?, ?, ?, ?,"
                " (SELECT COALESCE(MAX(id), 0) FROM verdicts), (SELECT COALESCE(MAX(id), 0) FROM timing_sessions),"
                " (SELECT COALESCE(MAX(id), 0) FROM candidates), ?, ?",
                (
                    free,
                    problem_id,
                    environment_id,
                    schema_id,
                    target,
                    dump(dict(config)),
                    str(seed),
                    dump(dict(environment.provenance)),
                    now(),
                    secrets.token_hex(16),
                ),
            )
        return self.open_run(free)

    def _intern(self, table: str, row: Mapping[str, str]) -> int:
        """The id of a row with a unique first column; written when it is new."""
        key = next(iter(row))
        marks = ", ".join("?" * len(row))
        self._database.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks}) ON CONFLICT ({key}) DO NOTHING", tuple(row.values())
        )
        return int(self._database.read(f"SELECT id FROM {table} WHERE {key} = ?", (row[key],))[0][0])

    def _free_name(self, name: str) -> str:
        taken = {row[0] for row in self._database.read("SELECT name FROM runs")}
        free, number = name, 1
        while free in taken:
            number += 1
            free = f"{name}-{number}"
        return free

    def open_run(self, name: str | None = None) -> RunHandle:
        """A run as it was left; None for the one that was started last.

        Raises:
            StorageError: There is no such run.
        """
        row = self._run_row(name)
        seen = read_seen(self._database.read, row[0]) if row[22] is not None else {}
        scope = replace(Scope(row[0], *row[2:8]), merged=row[22], seen=seen)
        return RunHandle(self._database, scope, _info(row))

    def run_info(self, name: str | None = None) -> RunInfo:
        """What is stored of a run as a whole; None for the one that was started last.

        Raises:
            StorageError: There is no such run.
        """
        return _info(self._run_row(name))

    def _run_row(self, name: str | None) -> Sequence[Any]:
        if name is not None:
            rows = self._database.read(f"{_RUN} WHERE r.name = ?", (name,))
        else:
            rows = self._database.read(f"{_RUN} ORDER BY r.id DESC LIMIT 1")
        if not rows:
            known = ", ".join(row[0] for row in self._database.read("SELECT name FROM runs ORDER BY id DESC LIMIT 5"))
            expected = f"one of {known}" if known else "a run in the archive"
            hint = "evo-l2 run quickstart" if not known else None
            raise StorageError("no such run", expected=expected, found=name or "none", hint=hint)
        return rows[0]  # type: ignore[no-any-return]

    def runs(self) -> tuple[RunInfo, ...]:
        """Every run, oldest first."""
        return tuple(_info(row) for row in self._database.read(f"{_RUN} ORDER BY r.id"))

    def evaluation(self, problem_key: str, environment_key: str, digest: str) -> Evaluation | None:
        """The verdict of a kernel with its first session, whichever run brought it; None where there is none."""
        return read_evaluation(self._database, problem_key, environment_key, digest)

    def model_calls(self, run_name: str, index: int) -> tuple[ModelCall, ...]:
        """The model calls of one candidate, in order; empty where there are none, or no such run."""
        rows = self._database.read("SELECT id FROM runs WHERE name = ?", (run_name,))
        return tuple(read_calls(self._database, rows[0][0], index, index).get(index, ())) if rows else ()

    def tallies(self, run_name: str | None = None) -> Tallies:
        """A run's candidates counted by kind, and its records; None for the run that was started last.

        Raises:
            StorageError: There is no such run.
        """
        return stored_tallies(self._database, self._run_row(run_name)[0])

    def rebuild(self) -> None:
        """Works out all tables that follow from others again: standings (what `v_elites` and `v_best` show) and tallies.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._database.write():
            rebuild_derived(self._database)


def _info(row: Sequence[Any]) -> RunInfo:
    return RunInfo(
        name=row[1],
        problem_key=row[8],
        problem_title=row[9],
        problem_definition=load(row[10]),
        environment=load_environment(row[11], row[12], row[13]),
        target=row[14],
        schema=load_schema(row[15]),
        config=load(row[16]),
        seed=int(row[17]),
        created=row[18],
        finished=row[19],
        summary=load(row[20]),
        n_candidates=row[21],
    )
