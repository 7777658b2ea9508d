"""Eight processes that write one archive at once, each its own run: nothing fails, nothing is lost, the elites are right."""

import importlib.util
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from archive import Store
from archive.standings import DERIVED

N_WRITERS = 8
LONG = [pytest.mark.slow, pytest.mark.skipif(not os.environ.get("EVO_L2_SOAK"), reason="takes long: EVO_L2_SOAK=1")]


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load(Path(__file__).parent.parent / "benchmarks" / "archive_cases.py")


def candidate(writer, index):
    """Every fifth kernel is one that all writers bring, each timed anew; the others are of this writer only."""
    number = index if index % 5 == 0 else 100_000_000 * (writer + 1) + index
    measures = (float(128 * (index % 5)), float(index % 40), float(index * 4099 % 900_000))
    timed = cases.session(1000 * writer + index % 97, 0.5 + index % 13 / 10)
    return cases.evaluated(index, number, measures=measures, n_bytes=2000, timed=timed, n_calls=index % 2)


def write(address, writer, seconds, told):
    """Adds candidates, and measures one of them again now and then; tells how many were acknowledged."""
    with Store.open(address) as store:
        run = store.start_run(f"writer-{writer}", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, writer)
        end = time.monotonic() + seconds
        n_sessions = 0
        while time.monotonic() < end or run.n_candidates < 10:
            made = candidate(writer, run.n_candidates)
            if run.find(digest=made.kernel.digest, identity=made.identity) is not None:
                made = cases.failed(run.n_candidates)
            run.add(made)
            if run.n_candidates % 10 == 0:
                run.add_session(run.best().kernel.digest, cases.session(run.n_candidates, 1.2, purpose="retime"))
                n_sessions += 1
        told.put((writer, run.n_candidates, n_sessions))


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=LONG)])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_eight_processes_write_one_archive(request, tmp_path, kind, seconds):
    address = tmp_path / "a.db" if kind == "sqlite" else request.getfixturevalue("postgres").fresh()
    Store.open(address).close()
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    processes = [context.Process(target=write, args=(address, i, seconds, told)) for i in range(N_WRITERS)]
    for process in processes:
        process.start()
    counts = {writer: rest for writer, *rest in (told.get(timeout=seconds + 120) for _ in processes)}
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * N_WRITERS
    with Store.open(address, create=False) as store:
        for writer, (n_candidates, n_sessions) in counts.items():
            run = store.open_run(f"writer-{writer}")
            history = list(run.history())
            assert [one.index for one in history] == list(range(n_candidates))
            assert sum(one.kernel == candidate(writer, one.index).kernel for one in history) >= n_candidates * 4 // 5
            assert sum(one.evaluation.session is not None for one in run.remeasurements()) == n_sessions
        columns = {"revisits": "problem_id, environment_id, identity"}

        def derived():
            return {table: set(store.read(f"SELECT {columns.get(table, '*')} FROM {table}")) for table in DERIVED}

        kept, elites = derived(), store.read("SELECT * FROM v_elites ORDER BY cell")
        store.rebuild()
        assert derived() == kept
        assert elites
        assert store.read("SELECT * FROM v_elites ORDER BY cell") == elites
        if kind == "sqlite":
            assert store.read("PRAGMA integrity_check") == [("ok",)]
            assert store.read("PRAGMA foreign_key_check") == []
