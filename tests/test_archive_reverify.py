"""What matters of an older environment is judged and timed again in the present one, by several processes, once each."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from archive import Store
from archive.keeping.checking import check
from archive.keeping.leases import WorkQueue
from archive.keeping.reverifying import Origin, purpose_of, select, source_run
from evo_l2.evaluation import Environment, Status
from evo_l2.kernel import Kernel
from experiments import reverifying
from experiments.cli import main
from experiments.config import load_config
from experiments.parts import make_problem
from experiments.seeds import load_seeds

ROOT = Path(__file__).parent.parent
OLDER = Environment("cpu", {"processor": "this one", "harness": "1"}, {"host": "here"})


def _load_cases():
    spec = importlib.util.spec_from_file_location("archive_cases", ROOT / "benchmarks" / "archive_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()


def judged(index, kernel, speedup, tile, parents=()):
    candidate = cases.evaluated(index, index, speedup=speedup, measures=(256.0, tile, 0.0), parents=parents)
    return dataclasses.replace(candidate, kernel=kernel)


SEEDS = load_seeds("cpu", "nn")
WRONG = Kernel((ROOT / "experiments/seeds/cpu/naive_nn.c").read_text().replace("sum = 0.0f", "sum = 0.5f"), "cpu")
"""It passed the gates of then."""


@pytest.fixture
def path(tmp_path):
    """An archive of another harness: three seeds, of which one descends from another, and a wrong kernel that passed."""
    path = tmp_path / "a.db"
    overrides = ("timing.blocks=8", "timing.min_batch_ms=0.5", "timing.finalists=0", "budget.evaluations=4")
    config = load_config("smoke", overrides)
    with Store.open(path) as store:
        run = store.start_run("smoke", make_problem(config), OLDER, "cpu", config.dump(), 1)
        run.add(judged(0, SEEDS[0], 1.0, 4.0))
        run.add(judged(1, SEEDS[1], 2.0, 40.0, (SEEDS[0].digest,)))
        run.add(judged(2, WRONG, 9.0, 300.0, (SEEDS[1].digest,)))
        run.add(judged(3, SEEDS[2], 1.5, 40.0, (SEEDS[0].digest,)))
    return path


def test_elites_best_and_ancestors_are_chosen(path):
    with Store.open(path) as store:
        info = source_run(store, None)
        naive, blocked, vectorised = (
            Origin(seed.digest, "smoke", index) for seed, index in zip(SEEDS, (0, 1, 3), strict=True)
        )
        wrong = Origin(WRONG.digest, "smoke", 2)
        assert select(store, info, count=None, ancestors=False) == (wrong, blocked, naive)
        assert select(store, info, count=1, ancestors=False) == (wrong,)
        assert select(store, info, count=1, ancestors=True) == (naive, blocked, wrong)
        assert select(store, info, count=9, ancestors=True) == (naive, blocked, wrong, vectorised)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("EVO_L2_SOAK"), reason="takes long: EVO_L2_SOAK=1")
def test_several_processes_judge_each_kernel_once_and_old_rows_stay(path, session_cache):
    environ = {**os.environ, "XDG_CACHE_HOME": str(session_cache)}
    command = [Path(sys.executable).parent / "evo-l2", "archive", "reverify", path, "--ancestors", "--workers", "2", "--json"]
    with Store.open(path) as store:
        before = list(store.open_run("smoke").history())
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["run"] == "smoke-reverify"
    assert facts["left"] == 0
    assert facts["statuses"].pop("incorrect") == 1
    assert sum(facts["statuses"].values()) == 2
    assert facts["statuses"].keys() <= {"passed", "inconclusive"}
    with Store.open(path) as store:
        assert list(store.open_run("smoke").history()) == before
        run = store.open_run("smoke-reverify")
        history = list(run.history())
        assert {c.kernel.digest for c in history} == {SEEDS[0].digest, SEEDS[1].digest, WRONG.digest}
        assert len(history) == 3
        for candidate in history:
            assert candidate.operator == "reverify"
            assert "of run smoke, problem" in candidate.message
            assert OLDER.key in candidate.message
            assert candidate.evaluation.verdict.build.machine_code is not None
        wrong = next(c for c in history if c.kernel == WRONG)
        assert wrong.evaluation.verdict.status is Status.INCORRECT
        assert wrong.parents in ((), (SEEDS[1].digest,))
        assert WorkQueue(store).counts(purpose_of(store, run.name)).n_done == 3
        assert check(store).findings == ()
        n_rows = store.read("SELECT COUNT(*) FROM candidates")
    again = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "3 kernels of run smoke, 0 of them not asked for before" in again.stderr
    with Store.open(path) as store:
        assert store.read("SELECT COUNT(*) FROM candidates") == n_rows
    resumed = CliRunner().invoke(main, ["resume", str(path), "smoke-reverify"])
    assert "is no search" in resumed.stderr


def test_two_ways_to_choose_are_refused(path):
    done = CliRunner().invoke(main, ["archive", "reverify", str(path), "--elites", "-n", "3"])
    assert done.exit_code == 2
    assert "two things" in done.stderr


# --- the same by threads, with an evaluator that takes no time ---------------------------------------------------------


@pytest.fixture
def many(tmp_path, instant):
    """Twelve kernels of an older environment; the ninth fails now, and two are one kernel by their machine code."""
    path = tmp_path / "many.db"
    config = load_config("smoke", ("budget.evaluations=4",))
    with Store.open(path) as store:
        run = store.start_run("smoke", make_problem(config), OLDER, "cpu", config.dump(), 1)
        for index in range(12):
            source = instant.kernel_source(base=min(index, 9)) + "// again\n" * max(0, index - 9)
            parents = (next(run.history()).kernel.digest,) if index else ()
            run.add(judged(index, Kernel(source, "cpu"), 1.0 + index, 3.0, parents))
    return path


@pytest.fixture
def told(many, instant, monkeypatch):
    """What a worker is told, the work being queued."""
    monkeypatch.setattr(reverifying, "make_evaluator", lambda config, problem: instant.InstantEvaluator())
    tasks = []

    def remember(task, n_workers):
        tasks.append(task)

    monkeypatch.setattr(reverifying, "_work", remember)
    assert not reverifying.reverify(many, None, count=12, ancestors=True, workers=3, as_json=True)
    return tasks[0]


def work(task):
    faults = queue.SimpleQueue()
    reverifying._worker(task, faults)
    assert faults.empty(), faults.get()


def results(task):
    with Store.open(task.db) as store:
        assert check(store).findings == ()
        counts = WorkQueue(store).counts(task.purpose)
        assert (counts.n_waiting, counts.n_taken) == (0, 0)
        return list(store.open_run(task.run).history()), counts.n_done


def test_workers_that_file_into_one_run_lose_nothing_and_judge_each_kernel_once(told, instant):
    threads = [threading.Thread(target=work, args=(told,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    history, n_done = results(told)
    assert n_done == 12
    assert len(history) == 12
    assert len({c.kernel.digest for c in history}) == 12
    outcomes = sorted(c.outcome.value for c in history)
    assert outcomes == ["duplicate"] * 2 + ["evaluated"] * 10
    statuses = sorted(c.evaluation.verdict.status.value for c in history if c.evaluation is not None)
    assert statuses == ["incorrect"] + ["passed"] * 9
    # All descend from one kernel, and a parent is named once it is there, however late its worker was.
    first = next(c.index for c in history if c.kernel.source == instant.kernel_source(base=0))
    assert all(c.parents for c in history if c.index > first)
    assert reverifying.reverify(told.db, None, count=12, ancestors=True, workers=3, as_json=True)


def test_a_worker_that_dies_after_filing_has_its_kernel_ended_by_another(told, monkeypatch):
    finish = WorkQueue.finish

    def die(self, lease):
        monkeypatch.setattr(WorkQueue, "finish", finish)
        raise SystemExit(1)

    monkeypatch.setattr(WorkQueue, "finish", die)
    with pytest.raises(SystemExit):
        work(told)
    with Store.open(told.db) as store:
        assert WorkQueue(store).release(f"{socket.gethostname()}:{os.getpid()}") == 1
    work(told)
    history, n_done = results(told)
    assert n_done == 12
    assert len({c.kernel.digest for c in history}) == len(history) == 12


def test_what_a_worker_brings_after_another_took_its_kernel_is_not_filed(told, instant, monkeypatch):
    measure = instant.InstantEvaluator.measure

    def slow(self, prepared, seed, *, purpose="search"):
        monkeypatch.setattr(instant.InstantEvaluator, "measure", measure)
        with Store.open(told.db) as store:
            store.read("UPDATE work SET expires_s = 0 WHERE expires_s IS NOT NULL")
        work(told)
        return measure(self, prepared, seed, purpose=purpose)

    monkeypatch.setattr(instant.InstantEvaluator, "measure", slow)
    # The second worker is this same thread, which cannot wait for itself.
    monkeypatch.setattr(reverifying, "_turn", lambda target, alone: contextlib.nullcontext())
    work(told)
    history, n_done = results(told)
    assert n_done == 12
    assert len({c.kernel.digest for c in history}) == len(history) == 12


def test_what_is_judged_in_the_present_environment_already_is_refused_as_a_source(told):
    work(told)
    done = CliRunner().invoke(main, ["archive", "reverify", str(told.db), "--run", told.run])
    assert done.exit_code == 2
    assert "nothing to judge again" in done.stderr
