"""What nothing refers to goes, what anything refers to stays; and builds in the cache grow old."""

import importlib.util
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from archive import Store
from archive.keeping.checking import check
from archive.keeping.collecting import collect
from archive.keeping.content import content_digest
from archive.keeping.leases import Work, WorkQueue
from evo_l2.build_cache import FACTS, BuildCache, BuildOutcome, key_of
from evo_l2.cache_pruning import IN_USE_S, prune
from evo_l2.errors import StorageError
from evo_l2.evaluation import Status
from experiments.cli import main

ROOT = Path(__file__).parent.parent


def _load_cases():
    spec = importlib.util.spec_from_file_location("archive_cases", ROOT / "benchmarks" / "archive_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()


@pytest.fixture
def path(tmp_path):
    """An archive with a kernel of every standing, and three kernels and a hundred texts that nothing names."""
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        run = store.start_run("run", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        run.add_seed(cases.kernel(90))
        run.add(cases.evaluated(0, 0, n_calls=2))
        run.add(cases.evaluated(1, 1, status=Status.REJECTED, parents=(cases.kernel(0).digest,)))
        run.add(cases.duplicate(2, 91, cases.kernel(0)))
        run.add(cases.failed(3, parents=(cases.kernel(0).digest,)))
        row = "INSERT INTO kernels (digest, target, source, created) VALUES (?, 'cpu', ?, 'then')"
        for number in range(100, 104):
            store.read(row, (cases.kernel(number).digest, cases.kernel(number).source))
        queued = Work(cases.kernel(103).digest, cases.PROBLEM.key, cases.ENVIRONMENT.key, "reverify")
        assert WorkQueue(store).put([queued]) == 1
        for number in range(100):
            blob = os.urandom(3000)
            store.read("INSERT INTO texts (digest, n_characters, content) VALUES (?, 1, ?)", (b"%d" % number, blob))
    return path


def test_a_dry_run_says_what_would_go_and_changes_nothing(path):
    with Store.open(path) as store:
        before = store.read("SELECT COUNT(*) FROM texts") + store.read("SELECT COUNT(*) FROM kernels")
        gone = collect(store, dry_run=True)
        assert (gone.n_texts, gone.n_kernels) == (100, 3)
        assert store.read("SELECT COUNT(*) FROM texts") + store.read("SELECT COUNT(*) FROM kernels") == before


def test_what_nothing_refers_to_goes_and_all_else_stays(path):
    with Store.open(path) as store:
        digest, history = content_digest(store), tuple(store.open_run().history())
        store.read("PRAGMA wal_checkpoint(TRUNCATE)")
        gone = collect(store)
        assert (gone.n_texts, gone.n_kernels) == (100, 3)
        assert gone.n_bytes_after < gone.n_bytes_before - 250_000
        assert content_digest(store) == digest
        assert tuple(store.open_run().history()) == history
        assert check(store).findings == ()
        again = collect(store)
        assert (again.n_texts, again.n_kernels) == (0, 0)
        with pytest.raises(StorageError, match="append-only"):
            store.read("DELETE FROM kernels")


def test_an_archive_in_use_stays_as_it_is(path):
    with Store.open(path) as other, Store.open(path, busy_timeout_s=0.1) as store:
        with other._database.write(), pytest.raises(StorageError, match="is in use"):
            collect(store)
        assert collect(store).n_kernels == 3


def test_backups_go_when_asked(path, tmp_path):
    for name in ("a.db.0001.bak", "a.db.0002.bak.partial", "b.db.0001.bak", "a.db.notes.bak"):
        (tmp_path / name).write_text("copy")
    with Store.open(path) as store:
        assert collect(store).backups == ()
        assert (tmp_path / "a.db.0001.bak").exists()
        assert [copy.name for copy in collect(store, backups=True).backups] == ["a.db.0001.bak", "a.db.0002.bak.partial"]
    assert sorted(p.name for p in tmp_path.glob("*.bak*")) == ["a.db.notes.bak", "b.db.0001.bak"]


def test_the_command_prints_what_it_took(path, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    would = CliRunner().invoke(main, ["archive", "gc", str(path), "--dry-run"])
    assert would.output.startswith("would take 100 texts and 3 kernels")
    did = CliRunner().invoke(main, ["archive", "gc", str(path), "--builds"])
    assert did.exit_code == 0
    assert "took 100 texts and 3 kernels" in did.output
    assert "took 0 builds" in did.output


# --- builds -----------------------------------------------------------------------------------------------------------


def make(cache, name, n_bytes=1000):
    def build(work):
        (work / "kernel.so").write_bytes(b"x" * n_bytes)
        return BuildOutcome()

    return cache.obtain(key_of([name]), build).folder


def age(folder, seconds):
    moment = time.time() - seconds
    os.utime(folder / FACTS, (moment, moment))


def test_builds_go_by_age_and_then_by_size_the_longest_unused_first(tmp_path):
    cache = BuildCache(tmp_path, ("kernel.so",))
    folders = [make(cache, str(number)) for number in range(5)]
    for number, folder in enumerate(folders):
        age(folder, (10 - number) * 86_400)
    one = sum(path.stat().st_size for path in folders[0].iterdir())
    limits = {"older_than_s": 8.5 * 86_400, "most_bytes": 2 * one + 1}
    would = prune(tmp_path, **limits, dry_run=True)
    assert all(folder.exists() for folder in folders)
    done = prune(tmp_path, **limits)
    assert done == would
    assert (done.n_removed, done.n_kept, done.n_kept_bytes) == (3, 2, 2 * one)
    assert [folder.exists() for folder in folders] == [False, False, False, True, True]
    assert list(tmp_path.glob(".build-*")) == []


def test_a_build_of_a_run_that_goes_on_stays_whatever_the_limits(tmp_path):
    cache = BuildCache(tmp_path, ("kernel.so",))
    folder, old = make(cache, "used"), make(cache, "old")
    for each in (folder, old):
        age(each, IN_USE_S + 3600)
    assert make(cache, "used") == folder  # taken from the cache, which notes it
    assert prune(tmp_path, older_than_s=0, most_bytes=0).n_removed == 1
    assert folder.exists()
    assert not old.exists()
    assert make(cache, "old") == old


def test_a_build_from_the_future_stays(tmp_path):
    folder = make(BuildCache(tmp_path, ("kernel.so",)), "one")
    age(folder, -86_400)
    assert prune(tmp_path, older_than_s=0, most_bytes=0).n_removed == 0


def test_a_cache_that_is_not_there_is_empty(tmp_path):
    assert prune(tmp_path / "none", older_than_s=0, most_bytes=0).n_kept == 0
