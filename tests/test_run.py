"""Whole runs on the CPU target, through the command line: end to end, replayed, killed and resumed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archive.store import Store
from evo_l2.contracts import Outcome
from evo_l2.errors import EvoL2Error
from experiments.config import load_config
from experiments.run import execute, resume

N_KILLS, N_TOLD = (100, 60) if os.environ.get("EVO_L2_SOAK") else (5, 24)
QUICK = ("timing.blocks=8", "timing.min_batch_ms=0.5", "timing.finalists=0")


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """An environment with a cache of its own, shared by the module's tests."""
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "COLUMNS": "120"}


def evo(*arguments, environ, **options):
    command = [sys.executable, "-m", "experiments", *map(str, arguments)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, **options)


def rows(db):
    with Store.open(db, create=False) as store:
        return [
            (c.index, c.operator, c.parents, c.asked_after, c.outcome, c.message, c.kernel and c.kernel.digest, c.identity,
             c.duplicate_of, c.evaluation)
            for c in store.open_run(None).history()
        ]  # fmt: skip


def processes_of(folder):
    """Commands of living processes that run something below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_a_run_ends_with_elites_and_a_summary(environ, tmp_path):
    db = tmp_path / "smoke.db"
    done = evo("run", "smoke", "--db", db, environ=environ)
    assert done.returncode == 0, done.stderr
    assert "best kernel over best seed" in done.stdout
    assert f"archive top {db}" in done.stdout
    top = json.loads(evo("archive", "top", db, "--json", environ=environ).stdout)
    assert top[0]["speedup"] > 0
    assert "final" in top[0]["sessions"]
    shown = evo("archive", "show", db, top[0]["digest"][:12], environ=environ)
    assert "//! launch" in shown.stdout
    exported = evo("archive", "export", db, "--to", tmp_path / "elites", environ=environ)
    assert exported.returncode == 0
    assert len(list((tmp_path / "elites").glob("*.c"))) == len(top)
    assert not processes_of(environ["XDG_CACHE_HOME"])


def test_a_replay_gives_the_same_rows(environ, tmp_path):
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    options = [f"--set={item}" for item in QUICK]
    assert evo("run", "smoke", *options, "--db", first, environ=environ).returncode == 0
    done = evo("run", "smoke", *options, "--db", second, "--replay", first, environ=environ)
    assert done.returncode == 0, done.stderr
    assert rows(first) == rows(second)
    assert len(rows(first)) == 12


def test_a_replay_with_a_model_gives_the_same_rows(environ, tmp_path, monkeypatch):
    """Replies come from a file the first time and from the archive the second."""
    monkeypatch.setenv("XDG_CACHE_HOME", environ["XDG_CACHE_HOME"])
    replies = tmp_path / "replies.jsonl"
    lines = ["no kernel here", "<<<<<<< SEARCH\nnot in the file\n=======\nx\n>>>>>>> REPLACE"]
    replies.write_text("".join(json.dumps({"reply": {"text": line}}) + "\n" for line in lines * 20))
    overrides = [*QUICK, "generator.kind=recorded", f"generator.path={replies}", "generator.prompt_tokens=1600",
                 "search.operators={parametric: 1, edit: 1}", "budget.evaluations=15"]  # fmt: skip
    config = load_config("smoke", overrides)

    class Silent:
        def started(self, info): ...
        def told(self, candidate, result, archive): ...
        def note(self, text): ...
        def stopped(self): ...

    first, second = tmp_path / "first.db", tmp_path / "second.db"
    execute(config, db=first, observer=Silent())
    execute(config, db=second, observer=Silent(), replay=(first, None))
    assert rows(first) == rows(second)
    outcomes = {row[4] for row in rows(first)}
    assert {Outcome.NO_KERNEL, Outcome.EDIT_FAILED, Outcome.EVALUATED} <= outcomes


@pytest.mark.slow
def test_killed_at_any_moment_a_run_goes_on_and_judges_nothing_twice(environ, tmp_path):
    db = tmp_path / "killed.db"
    rng = random.Random(7)
    options = [f"--set={item}" for item in (*QUICK, f"budget.evaluations={N_TOLD}", "budget.wall_s=600")]
    start = ["run", "smoke", *options, "--db", db]
    seen: list[tuple] = []
    begin = time.monotonic()
    assert evo("run", "smoke", "--dry-run", environ=environ).returncode == 0
    start_s = time.monotonic() - begin
    for number in range(N_KILLS):
        arguments = ["resume", db] if _n_rows(db) is not None else start
        command = [sys.executable, "-m", "experiments", *map(str, arguments)]
        child = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        # Every other one is let live until it has told something, however slow the machine is.
        while number % 2 == 0 and (_n_rows(db) or 0) <= len(seen) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(rng.uniform(0.3 * start_s, start_s + 2.5) * (0.3 if number % 2 == 0 else 1.0))
        child.send_signal(signal.SIGKILL)
        child.wait()
        deadline = time.monotonic() + 5
        while processes_of(environ["XDG_CACHE_HOME"]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not processes_of(environ["XDG_CACHE_HOME"])
        now = rows(db) if _n_rows(db) is not None else []
        assert now[: len(seen)] == seen
        seen = now
    assert seen
    done = evo("resume", db, environ=environ)
    assert done.returncode == 0, done.stderr
    final = rows(db)
    assert final[: len(seen)] == seen
    assert [row[0] for row in final] == list(range(N_TOLD))
    judged = [row[7] for row in final if row[4] is Outcome.EVALUATED and row[7] is not None]
    assert len(judged) == len(set(judged))


def test_ctrl_c_ends_a_run_in_order_and_resume_goes_on(environ, tmp_path):
    db = tmp_path / "stopped.db"
    options = [f"--set={item}" for item in (*QUICK, "budget.evaluations=400", "budget.wall_s=600")]
    command = [sys.executable, "-m", "experiments", "run", "smoke", *options, "--db", str(db)]
    child = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (_n_rows(db) or 0) <= 5:
        time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert "Traceback" not in err
    assert " resume " in out
    assert not processes_of(environ["XDG_CACHE_HOME"])
    before = rows(db)
    done = evo("resume", db, "--evaluations", len(before) + 5, environ=environ)
    assert done.returncode == 0, done.stderr
    assert rows(db)[: len(before)] == before
    assert len(rows(db)) == len(before) + 5


def _n_rows(db):
    """Candidates of the last run; None while there is no run to resume."""
    try:
        return len(rows(db))
    except EvoL2Error:
        return None


def test_recorded_replies_go_on_where_they_were(environ, tmp_path, monkeypatch):
    """A run that was stopped in its middle is given the same replies as one that was not."""
    monkeypatch.setenv("XDG_CACHE_HOME", environ["XDG_CACHE_HOME"])
    replies = tmp_path / "replies.jsonl"
    replies.write_text("".join(json.dumps({"reply": {"text": f"reply {i}"}}) + "\n" for i in range(20)))
    overrides = [*QUICK, "generator.kind=recorded", f"generator.path={replies}", "generator.prompt_tokens=1600",
                 "search.operators={edit: 1}", "search.batch=3"]  # fmt: skip

    class Silent:
        def started(self, info): ...
        def told(self, candidate, result, archive): ...
        def note(self, text): ...
        def stopped(self): ...

    db = tmp_path / "run.db"
    execute(load_config("smoke", [*overrides, "budget.evaluations=8"]), db=db, observer=Silent())
    resume(db, None, Silent(), [("evaluations", 14)])
    with Store.open(db, create=False) as store:
        given = [call.reply.text for candidate in store.open_run(None).history() for call in candidate.calls]
    assert given == [f"reply {i}" for i in range(11)]
