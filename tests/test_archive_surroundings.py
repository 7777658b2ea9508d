"""Torn files, full disks, network folders, files that may only be read, odd clocks and odd values: one line, nothing lost."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from nobody import as_nobody

import archive.database
import archive.rows
import archive.store
from archive import Store
from archive.keeping.checking import check
from archive.keeping.content import content_digest
from archive.keeping.merging import merge
from archive.read_only import open_to_read
from evo_l2.contracts import ModelCall
from evo_l2.errors import EvoL2Error, StorageError
from evo_l2.kernel import Kernel
from experiments.cli import main

ROOT = Path(__file__).parent.parent
SOAK = bool(os.environ.get("EVO_L2_SOAK"))
LONGER = pytest.mark.slow if SOAK else lambda test: test
READING = (
    *(["stats"], ["top"], ["cells"], ["moves"], ["show", "00"], ["lineage", "00"], ["fsck"]),
    *(["query", "SELECT COUNT(*) FROM candidates"], ["query", "outcome == 'evaluated'"]),
)


def _load_cases():
    spec = importlib.util.spec_from_file_location("archive_cases", ROOT / "benchmarks" / "archive_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()


def start(store, name="run"):
    return store.start_run(name, cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)


def fill(path, count=30, offset=0):
    with Store.open(path) as store:
        run = start(store)
        for index in range(count):
            run.add(cases.evaluated(index, offset + index, n_calls=1, n_bytes=2000))
        run.add_session(cases.kernel(offset, 2000).digest, cases.session(1, purpose="retime"))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sound archive; tests work on copies."""
    return fill(tmp_path_factory.mktemp("whole") / "a.db")


def one_line(error):
    assert len(str(error).splitlines()) == 1
    assert "Traceback" not in str(error)


def examined(path):
    """What is found in a file that may be damaged: the error that refuses it, or its findings."""
    try:
        with open_to_read(path) as store:
            return [str(finding) for finding in check(store).findings]
    except EvoL2Error as error:
        one_line(error)
        return [str(error)]


# --- damage -----------------------------------------------------------------------------------------------------------


@LONGER
@pytest.mark.parametrize("seed", range(40 if SOAK else 4))
def test_a_file_cut_short_anywhere_is_named_and_left_as_it_is(whole, tmp_path, seed):
    data = whole.read_bytes()
    n_bytes = random.Random(seed).choice([random.Random(seed).randrange(1, len(data)), 4096 * (1 + seed), 50 * (1 + seed)])
    torn = tmp_path / "torn.db"
    torn.write_bytes(data[:n_bytes])
    assert examined(torn)
    if n_bytes < 4096:
        assert torn.read_bytes() == data[:n_bytes]
    for command in READING:
        done = CliRunner().invoke(main, ["archive", command[0], str(torn), *command[1:]])
        assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)
        assert len(done.stderr.splitlines()) <= 1


@LONGER
@pytest.mark.parametrize("seed", range(40 if SOAK else 2))
def test_pages_of_noise_are_no_crash(whole, tmp_path, seed):
    chance = random.Random(seed)
    data = bytearray(whole.read_bytes())
    page = chance.randrange(2, len(data) // 4096)
    data[page * 4096 : page * 4096 + 4096] = chance.randbytes(4096)
    path = tmp_path / "noise.db"
    path.write_bytes(data)
    examined(path)
    for command in READING:
        done = CliRunner().invoke(main, ["archive", command[0], str(path), *command[1:]])
        assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)


def test_a_damaged_source_leaves_what_it_is_merged_into_as_it_was(whole, tmp_path):
    data = bytearray(whole.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 40_000] = bytes(40_000)
    torn = tmp_path / "torn.db"
    torn.write_bytes(data)
    with Store.open(fill(tmp_path / "into.db", 3, 500)) as into:
        before = content_digest(into)
        with pytest.raises(EvoL2Error) as error, open_to_read(torn) as source:
            merge(into, [source])
        one_line(error.value)
        assert content_digest(into) == before
        assert check(into).findings == ()


@pytest.mark.parametrize("command", [["fsck"], ["gc"], ["merge"]])
def test_a_newer_revision_is_refused_by_every_command(whole, tmp_path, command):
    newer = Path(shutil.copy(whole, tmp_path / "newer.db"))
    with Store.open(newer) as store:
        store.read("UPDATE alembic_version SET version_num = '9999'")
    arguments = [*command, str(tmp_path / "into.db"), str(newer)] if command == ["merge"] else [*command, str(newer)]
    done = CliRunner().invoke(main, ["archive", *arguments])
    assert done.exit_code == 1
    assert "revision 9999; try: pip install --upgrade evo-l2" in done.stderr


# --- disks and folders ------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_in_the_middle_of_a_merge_loses_nothing(whole, tmp_path):
    with Store.open(fill(tmp_path / "into.db", 3, 500)) as into, Store.open(whole) as source:
        before = content_digest(into)
        pages = into.read("PRAGMA page_count")[0][0]
        into.read(f"PRAGMA max_page_count={pages + 5}")
        with pytest.raises(StorageError, match="room on its disk") as error:
            merge(into, [source])
        one_line(error.value)
        assert content_digest(into) == before
        assert check(into).findings == ()
        into.read("PRAGMA max_page_count=1000000")
        assert merge(into, [source]).n_candidates == 30


def test_a_folder_in_which_no_log_can_be_shared_is_refused_with_what_to_do(tmp_path, monkeypatch):
    """A file system without shared memory, as SQLite sees a network folder: here by a VFS that has none."""
    create = sa.create_engine

    def without_memory(url, **options):
        return create(f"sqlite:///file:{url.database}?vfs=unix-dotfile&uri=true", **options)

    monkeypatch.setattr(archive.database.sa, "create_engine", without_memory)
    with pytest.raises(StorageError, match=r"network folder.*try: --db a path on a disk of this machine") as error:
        Store.open(tmp_path / "a.db")
    one_line(error.value)


@contextlib.contextmanager
def shut(*files):
    """A folder that holds copies of files and may not be written, nor may they."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "shut"
        folder.mkdir()
        for file in files:
            shutil.copy(file, folder)
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
        Path(name).chmod(0o755)
        with as_nobody():
            yield folder
        folder.chmod(0o755)


def test_an_archive_that_may_only_be_read_is_read_as_it_lies(whole):
    for command in READING:  # what they import may not be readable for nobody
        CliRunner().invoke(main, ["archive", command[0], str(whole), *command[1:]])
    with open_to_read(whole) as store:
        digest = content_digest(store)
    with shut(whole) as folder:
        path = folder / whole.name
        with open_to_read(path) as store:
            assert store.path == path
            assert content_digest(store) == digest
            assert check(store).findings == ()
            with pytest.raises(StorageError, match="cannot be written") as error:
                start(store)
            one_line(error.value)
        assert [other.name for other in folder.iterdir()] == [whole.name]
        for command in READING:
            done = CliRunner().invoke(main, ["archive", command[0], str(path), *command[1:]])
            assert (done.exit_code, done.stderr) == (0, "") or "none starts with" in done.stderr, done.output
        with pytest.raises(StorageError, match="read-only"):
            Store.open(path)


def test_an_older_archive_that_may_only_be_read_is_read_from_an_upgraded_copy():
    with shut(ROOT / "tests" / "golden" / "archive_0001.db") as folder:
        with open_to_read(folder / "archive_0001.db") as store:
            assert len(list(store.open_run().history())) == 7
            copy = Path(store._folder.name)
            assert copy.exists()
        assert not copy.exists()
        assert [other.name for other in folder.iterdir()] == ["archive_0001.db"]


def test_a_log_that_a_killed_writer_left_is_read_too(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        run = start(store)
        for index in range(5):
            run.add(cases.evaluated(index, index))
        assert (tmp_path / "a.db-wal").stat().st_size > 0
        for companions in (("-wal",), ("-wal", "-shm")):
            with shut(path, *(tmp_path / f"a.db{ending}" for ending in companions)) as folder:
                with open_to_read(folder / "a.db") as reader:
                    assert len(list(reader.open_run().history())) == 5
                assert len(list(folder.iterdir())) == 1 + len(companions)


def test_a_file_that_may_not_even_be_read_is_one_clear_line(whole):
    with shut(whole) as folder:
        os.seteuid(os.getuid())
        (folder / whole.name).chmod(0)
        if os.getuid() == 0:
            os.seteuid(65534)
        with pytest.raises(StorageError, match="cannot be read") as error:
            open_to_read(folder / whole.name)
        one_line(error.value)


# --- clocks and values ------------------------------------------------------------------------------------------------


def test_clocks_that_go_backwards_disturb_nothing(tmp_path, monkeypatch):
    moments = iter(f"20{90 - i // 4}-01-01T00:00:00.000+00:00" for i in range(10_000))
    for module in (archive.rows, archive.store):
        monkeypatch.setattr(module, "now", lambda: next(moments))
    path = fill(tmp_path / "a.db", 10)
    fill(tmp_path / "a.db", 5, 700)
    with Store.open(path) as store, Store.open(tmp_path / "b.db") as other:
        created = [row[0] for row in store.read("SELECT created FROM candidates ORDER BY id")]
        assert created == sorted(created, reverse=True)
        assert check(store).findings == ()
        merge(other, [store])
        assert content_digest(other) == content_digest(store)
        assert [c.index for c in other.open_run("run-2").history()] == list(range(5))


def test_measures_that_are_infinite_or_no_number_come_back(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        run = start(store)
        run.add(cases.evaluated(0, 0, measures=(math.nan, math.inf, -math.inf)))
        assert next(run.history()).evaluation.verdict.measures == (None, math.inf, -math.inf)
        assert check(store).findings == ()


@pytest.mark.parametrize("field", ["cost_usd", "latency_s"])
def test_a_cost_that_is_no_number_is_refused_and_the_run_goes_on(tmp_path, field):
    call = cases.call(1)
    odd = ModelCall(
        call.generator, call.prompt, dataclasses.replace(call.reply, **{field: math.nan}), call.seed, call.max_tokens
    )
    with Store.open(tmp_path / "a.db") as store:
        run = start(store)
        run.add(cases.failed(0))
        with pytest.raises(StorageError, match="NaN") as error:
            run.add(dataclasses.replace(cases.failed(1), calls=(odd,)))
        one_line(error.value)
        run.add(cases.failed(1))
        assert check(store).findings == ()


def test_sources_with_nul_bytes_or_of_10_mb_are_kept_checked_and_merged(tmp_path):
    with Store.open(tmp_path / "a.db") as store, Store.open(tmp_path / "b.db") as other:
        run = start(store)
        sources = ["//! layout nn\n\0\0// \ud800\n", "//! layout nn\n" + "// 0123456789abcdef\n" * 500_000]
        for index, source in enumerate(sources):
            run.add(dataclasses.replace(cases.evaluated(index, index), kernel=Kernel(source, "cpu")))
        assert [c.kernel.source for c in store.open_run().history()] == sources
        assert check(store).findings == ()
        merge(other, [store])
        assert [c.kernel.source for c in other.open_run().history()] == sources
        assert content_digest(other) == content_digest(store)
