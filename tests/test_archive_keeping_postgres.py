"""Checks, merges, collecting and judging again of archives on a PostgreSQL server: as those of a file."""

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from archive import Store
from archive.keeping.checking import check
from archive.keeping.collecting import collect
from archive.keeping.content import content_digest
from archive.keeping.merging import merge
from archive.standings import DERIVED
from evo_l2.errors import ConfigurationError, StorageError
from experiments.cli import main

HERE = Path(__file__).parent


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load(HERE.parent / "benchmarks" / "archive_cases.py")
checks = _load(HERE / "test_archive_fsck.py")
again = _load(HERE / "test_archive_reverify.py")
told = again.told


@pytest.fixture
def url(postgres):
    return postgres.fresh()


def findings(store, **options):
    return [str(finding) for finding in check(store, **options).findings]


def command(*words):
    return CliRunner().invoke(main, ["archive", *map(str, words)])


def test_archives_go_to_a_server_and_back_by_merging(url, tmp_path):
    file, back = tmp_path / "a.db", tmp_path / "back.db"
    with Store.open(file) as store:
        checks.fill(store)
        digest = content_digest(store)
    done = command("merge", url, file, "--json")
    assert (done.exit_code, json.loads(done.output)["new_runs"]) == (0, 1), done.output
    assert json.loads(command("merge", url, file, "--json").output)["candidates"] == 0
    assert command("merge", back, url).exit_code == 0
    for place in (url, back):
        with Store.open(place, create=False) as store:
            assert content_digest(store) == digest
            assert findings(store) == []
    with Store.open(url) as server, Store.open(url) as same, pytest.raises(ConfigurationError, match="into itself"):
        merge(server, [same])
    with Store.open(url) as server, pytest.raises(StorageError, match="goes on at home only"):
        server.open_run("run").finish({})


def test_derived_rows_on_a_server_are_checked_and_mended(url):
    with Store.open(url) as store:
        checks.fill(store)
        assert findings(store) == []
        with store._database.write():
            for table in DERIVED:
                store._database.execute(f"DELETE FROM {table}")
    found = command("fsck", url)
    assert found.exit_code == 1
    assert {line.split(":")[0] for line in found.output.splitlines()[:-1]} == {"standings", "revisits", "tallies"}
    assert command("fsck", url, "--repair").exit_code == 0
    assert command("fsck", url).output.endswith(" is clean\n")


def test_what_nothing_refers_to_leaves_a_server(url):
    with Store.open(url) as store:
        checks.fill(store)
        digest = content_digest(store)
        for number in range(3):
            row = (f"{number:064x}", "cpu", "source", "then")
            with store._database.write():
                store._database.insert("INSERT INTO kernels (digest, target, source, created) VALUES (?, ?, ?, ?)", row)
        assert (collect(store, dry_run=True).n_kernels, collect(store).n_kernels, collect(store).n_kernels) == (3, 3, 0)
        assert content_digest(store) == digest
        assert findings(store) == []
        with pytest.raises(StorageError, match="append-only"):
            store.read("DELETE FROM kernels")
    refused = command("gc", url, "--backups")
    assert (refused.exit_code, len(refused.output.splitlines())) == (2, 1)
    assert command("gc", url).exit_code == 0


@pytest.fixture
def many(url, tmp_path, instant):
    """Kernels of an older environment, on a server."""
    file = again.many.__wrapped__(tmp_path, instant)
    with Store.open(url) as server, Store.open(file) as store:
        merge(server, [store])
    return url


def test_kernels_on_a_server_are_judged_again_by_several_workers(told, instant):
    again.test_workers_that_file_into_one_run_lose_nothing_and_judge_each_kernel_once(told, instant)
