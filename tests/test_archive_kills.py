"""Writers killed at random moments, several at once: the archive is clean every time, and nothing acknowledged is missing."""

import importlib.util
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest

from archive import Store
from archive.keeping.checking import check
from evo_l2.evaluation import Status

ROOT = Path(__file__).parent.parent
SOAK = bool(os.environ.get("EVO_L2_SOAK"))
pytestmark = [pytest.mark.slow] if SOAK else []
N_KILLS = 1000 if SOAK else 50
N_WRITERS = 5
N_ROUNDS_A_FILE = 2


def _load_cases():
    spec = importlib.util.spec_from_file_location("archive_cases", ROOT / "benchmarks" / "archive_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()


def write_until_killed(path, name, common, offset, told):
    """Adds candidates of every kind and measures some again, and says what was stored; never comes back."""
    with Store.open(path, busy_timeout_s=60.0) as store:
        run = store.start_run(name, cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, offset)
        os.write(told, f"run {run.name}\n".encode())
        for index in range(1_000_000):
            # Writers of one round judge some kernels in common, so that they meet in the same rows.
            number = (common if index % 3 == 0 else offset) + index
            if run.find(digest=cases.kernel(number, 3000).digest) is not None:
                number = offset + index  # one that another writer judged before this one started
            status = Status.INCORRECT if index % 7 == 6 else Status.PASSED
            run.add(cases.evaluated(index, number, speedup=1 + index % 5, status=status, n_calls=1, n_bytes=3000))
            os.write(told, f"add {index}\n".encode())
            if index % 4 == 0 and status is Status.PASSED:
                run.add_session(cases.kernel(number, 3000).digest, cases.session(index, purpose="retime"))
                os.write(told, f"session {index}\n".encode())
            if index % 11 == 10 and status is Status.PASSED:
                digest = cases.kernel(number, 3000).digest
                run.withdraw(digest, cases.verdict(number, status=Status.RUNTIME_ERROR))
                os.write(told, f"withdraw {index}\n".encode())


def start_writer(path, name, common, offset):
    """A process that was forked before anything was opened; its id, and where it says what was stored."""
    told, say = os.pipe()
    pid = os.fork()
    if pid:
        os.close(say)
        return pid, told
    try:
        os.close(told)
        write_until_killed(path, name, common, offset, say)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    os._exit(1)


def read_all(descriptor):
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode().splitlines()


def kill_round(path, round_number, chance):
    """Several writers, each killed at a moment of its own; what each said had been stored."""
    base = 10_000 * N_WRITERS * round_number
    writers = [
        start_writer(path, f"run{round_number}-{number}", base, base + 10_000 * (number + 1) + 5000)
        for number in range(N_WRITERS)
    ]
    said = []
    # Some die while they open or make the file, most while they write.
    if chance.random() < 0.7:
        select.select([told for _, told in writers], [], [], 20)
    for pid, _ in sorted(writers, key=lambda _: chance.random()):
        time.sleep(chance.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
    for pid, told in writers:
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "a writer failed by itself"
        said.append(read_all(told))
    return said


def assert_all_there(store, said):
    """Every line that a writer finished saying is a row."""
    for lines in said:
        if not lines:
            continue
        name = lines[0].split()[1]
        run = store.open_run(name)
        indices = [c.index for c in run.history()]
        assert indices == list(range(run.n_candidates))
        counted = {kind: sum(line.startswith(kind) for line in lines) for kind in ("add", "session", "withdraw")}
        again = list(run.remeasurements())
        n_sessions = sum(one.evaluation.session is not None for one in again)
        for kind, found in (
            ("add", run.n_candidates), ("session", n_sessions), ("withdraw", len(again) - n_sessions)
        ):  # fmt: skip
            assert counted[kind] <= found <= counted[kind] + 1, (name, kind)


@pytest.mark.parametrize("seed", range(max(1, N_KILLS // (N_WRITERS * N_ROUNDS_A_FILE))))
def test_killed_writers_leave_a_clean_archive_with_all_they_said(tmp_path, seed):
    chance = random.Random(seed)
    path = tmp_path / "a.db"
    said = []
    for round_number in range(N_ROUNDS_A_FILE):
        said += kill_round(path, round_number, chance)
    with Store.open(path) as store:
        assert_all_there(store, said)
        assert [str(finding) for finding in check(store).findings] == []
