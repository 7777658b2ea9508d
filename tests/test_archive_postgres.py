"""Archives on a PostgreSQL server: the same tables and answers as in a file, and clear words for what a server refuses."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from archive import Store
from archive.address import ServerAddress, parse_address
from archive.database import HEAD
from evo_l2.errors import ConfigurationError, StorageError
from evo_l2.kernel import Kernel

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent / "benchmarks"


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load(BENCHMARKS / "archive_cases.py")
stored = _load(HERE / "test_archive_store.py")
scale = _load(HERE / "test_archive_scale.py")
start = scale.start


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture(scope="module")
def url(postgres):
    address = postgres.fresh()
    Store.open(address).close()
    return address


@pytest.fixture
def store(url):
    with Store.open(url, create=False) as opened:
        yield opened


def test_what_is_stored_comes_back(store):
    run = stored.start(store, "history")
    for candidate in stored.everything():
        run.add(candidate)
    run.add_seed(cases.kernel(5))
    run.put_state("reserved", {"usd": 1.5})
    run.add_session(stored.FIRST, cases.session(1, purpose="final"))
    run.finish({"stop": "done"})
    again = store.open_run("history")
    assert tuple(again.history()) == stored.everything()
    assert again.seeds() == (cases.kernel(5),)
    assert again.get_state("reserved") == {"usd": 1.5}
    assert [one.evaluation.session for one in again.remeasurements()] == [cases.session(1, purpose="final")]
    assert store.run_info("history").n_candidates == 7
    assert store.n_bytes > 100_000
    rewound = again.rewind()
    for candidate in again.history():
        rewound.add(candidate)


def test_text_that_a_server_cannot_hold_comes_back(store):
    run = start(store, problem=type(cases.PROBLEM)(((64, 64, 256, 1),)))
    candidate = cases.evaluated(0, 0)
    source = cases.kernel(0).source + "// \ud800 \0 é \x01json:\n"
    odd = {f: getattr(candidate, f) for f in candidate.__dataclass_fields__} | {"kernel": Kernel(source, "cpu")}
    run.add(type(candidate)(**odd))
    assert next(store.open_run(run.name).history()).kernel.source == source
    assert run.best().kernel.source == source


def test_runs_beside_each_other_see_what_they_should(postgres):
    rng = random.Random(3)
    kinds = ["passed"] * 4 + ["built", "failed", "inconclusive", "duplicate", "session", "session", "withdrawal", "start"]
    plan = [
        (
            rng.randrange(3),
            rng.choice([*kinds, "reopen"]),
            rng.randrange(4),
            rng.choice(scale.CELLS),
            rng.choice([0.5, 1, 2.0]),
        )
        for _ in range(60)
    ]
    with Store.open(postgres.fresh()) as store:
        scale.check(store, scale.play(store, plan))


def test_rows_that_are_append_only_cannot_be_changed(store):
    for table in ("verdicts", "timing_sessions", "candidates", "kernels"):
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET id = id + 1000", f"TRUNCATE {table} CASCADE"):
            with pytest.raises(StorageError, match="append-only"):
                store.read(statement)


def shape(inspector):
    """Tables, columns, keys and indices, as far as both kinds of database tell them alike."""
    kinds = {"TEXT": "text", "INTEGER": "int", "BIGINT": "int", "FLOAT": "real", "DOUBLE PRECISION": "real", "BLOB": "bytes"}
    kinds["BYTEA"] = "bytes"
    found = {}
    for table in sorted(set(inspector.get_table_names()) - {"sqlite_stat1", "alembic_version"}):
        unique = {tuple(one["column_names"]) for one in inspector.get_unique_constraints(table)}
        indices = {
            (one["name"], tuple(one["column_names"]), bool(one["unique"]))
            for one in inspector.get_indexes(table)
            if "duplicates_constraint" not in one
        }
        found[table] = (
            [(c["name"], kinds[str(c["type"])], c["nullable"]) for c in inspector.get_columns(table)],
            inspector.get_pk_constraint(table)["constrained_columns"],
            sorted((one["constrained_columns"], one["referred_table"]) for one in inspector.get_foreign_keys(table)),
            unique,
            indices,
        )
    return found


def test_a_server_has_the_tables_and_views_of_a_file(store, tmp_path):
    with Store.open(tmp_path / "a.db") as file:
        one, two = (sa.inspect(opened._database.connection) for opened in (file, store))
        assert shape(one) == shape(two)
        assert sorted(one.get_view_names()) == sorted(two.get_view_names())
    for view in two.get_view_names():
        store.read(f"SELECT * FROM {view} LIMIT 1")
    assert store.read("SELECT version_num FROM alembic_version") == [(HEAD,)]


def test_several_that_make_one_archive_at_once_make_one(postgres):
    address = postgres.fresh()
    with ThreadPoolExecutor(4) as pool:
        for opened in [*pool.map(lambda _: Store.open(address), range(4))]:
            with opened:
                start(opened)
    with Store.open(address, create=False) as store:
        assert [run.name for run in store.runs()] == ["run", "run-2", "run-3", "run-4"]


# --- what a server refuses --------------------------------------------------------------------------------------------


def test_a_wrong_password_is_told_without_it(postgres):
    address = postgres.url(user="locked:hunter2")
    with pytest.raises(StorageError, match="refuses the user") as error:
        Store.open(address)
    assert "hunter2" not in one_line(error)
    assert "hunter2" not in str(parse_address(address)) + repr(parse_address(address))
    with pytest.raises(StorageError, match="cannot be written") as error:
        Store.open(postgres.url(user="locked:right"))
    assert "right" not in one_line(error)


def test_a_server_that_is_down_is_told(tmp_path):
    with pytest.raises(StorageError, match="cannot be reached") as error:
        Store.open(f"postgresql+psycopg://me:hunter2@/db?host={tmp_path}")
    assert "hunter2" not in one_line(error)


def test_a_missing_database_is_told(postgres):
    with pytest.raises(StorageError, match="createdb nothing") as error:
        Store.open(postgres.url("nothing"))
    one_line(error)


def test_a_missing_schema_is_told(postgres):
    with pytest.raises(StorageError, match="no schema") as error:
        Store.open(postgres.url(options="-csearch_path%3Dnowhere"))
    one_line(error)


def test_an_empty_schema_is_no_archive_where_none_may_be_made(postgres):
    address = postgres.fresh()
    with pytest.raises(StorageError, match="no such archive") as error:
        Store.open(address, create=False)
    one_line(error)


def test_tables_of_something_else_are_refused_and_left_as_they_are(postgres):
    address = postgres.fresh()
    schema = address.rpartition("%3D")[2]
    postgres.execute(f"CREATE TABLE {schema}.alembic_version (version_num TEXT)")
    with pytest.raises(StorageError, match="something else") as error:
        Store.open(address)
    assert "alembic_version" in one_line(error)


def test_a_database_in_another_encoding_is_refused(postgres):
    postgres.execute("CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0")
    with pytest.raises(StorageError, match="UTF8") as error:
        Store.open(postgres.url("bytes"))
    one_line(error)


def test_a_lock_held_too_long_is_one_clear_line(url, store):
    with Store.open(url, busy_timeout_s=0.1) as waiting:
        run = start(waiting)
        with store._database.write(), pytest.raises(StorageError, match="in use") as error:
            run.put_state("a", 1)
        one_line(error)
        run.put_state("a", 1)


def test_a_connection_that_is_cut_is_one_clear_line_and_nothing_of_the_transaction_stays(url, store):
    with Store.open(url) as other:
        run = start(other)
        key = other.read("SELECT pg_backend_pid()")[0][0]
        store.read("SELECT pg_terminate_backend(?)", (key,))
        with pytest.raises(StorageError, match="lost") as error:
            run.put_state("a", 1)
        one_line(error)
    assert store.open_run(run.name).get_state("a") is None


def test_a_path_of_a_server_is_an_error(store):
    with pytest.raises(StorageError, match="no file"):
        _ = store.path


@pytest.mark.parametrize("text", ["mysql://h/d", "postgresql+psycopg://me:hunter2@host/", "sqlite://", "http://[x"])
def test_other_urls_are_refused_without_their_password(text):
    with pytest.raises(ConfigurationError, match=r"postgresql\+psycopg://") as error:
        parse_address(text)
    assert "hunter2" not in one_line(error)


def test_an_address_is_a_path_or_the_url_of_a_server():
    assert parse_address("runs/a.db") == Path("runs/a.db")
    assert parse_address("sqlite:////tmp/a.db") == Path("/tmp/a.db")
    server = parse_address("postgresql+psycopg://me:secret@host:5433/db")
    assert isinstance(server, ServerAddress)
    assert os.fspath(server) == "postgresql+psycopg://me:secret@host:5433/db"
    assert f"{server}" == "postgresql+psycopg://me:***@host:5433/db"


def test_a_killed_process_loses_nothing_that_was_told(postgres):
    url = postgres.fresh()
    code = [sys.executable, "-c", stored.WRITER, url, "killed", str(BENCHMARKS), "0", "100000"]
    process = subprocess.Popen(code, stdout=subprocess.PIPE, text=True)
    told = -1
    for line in process.stdout:
        told = int(line)
        if told >= 5:
            break
    process.send_signal(signal.SIGKILL)
    told = int(([str(told), *process.stdout.read().split()])[-1])
    process.wait()
    with Store.open(url, create=False) as store:
        run = store.open_run("killed")
        assert run.n_candidates in (told + 1, told + 2)
        assert [c.index for c in run.history()] == list(range(run.n_candidates))
        assert all(len(c.calls) == 1 and c.evaluation.session is not None for c in run.history())
        run.add(cases.evaluated(run.n_candidates, run.n_candidates))


def test_commands_take_a_url_for_an_archive(url, store):
    from click.testing import CliRunner

    from experiments.cli import main

    run = stored.start(store, "commands")
    run.add(cases.evaluated(0, 123))
    for words in (["stats", url, "--run", "commands"], ["top", url], ["show", url, cases.kernel(123).digest[:12]]):
        result = CliRunner().invoke(main, ["archive", *words, "--json"])
        assert result.exit_code == 0, result.output
    refused = CliRunner().invoke(main, ["archive", "stats", "postgresql+psycopg://me:hunter2@h/"])
    assert refused.exit_code == 2
    assert "hunter2" not in refused.output
    down = CliRunner().invoke(main, ["archive", "stats", f"postgresql+psycopg://me:hunter2@/db?host={HERE}"])
    assert (down.exit_code, "hunter2" in down.output) == (1, False)
