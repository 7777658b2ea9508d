"""Leases: whatever dies, however clocks are set, work is done once and none is lost."""

import importlib.util
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from archive import Store
from archive.keeping.leases import Lease, LeaseLostError, SteadyClock, Work, WorkQueue
from evo_l2.errors import StorageError

ROOT = Path(__file__).parent.parent


def _load_cases():
    spec = importlib.util.spec_from_file_location("archive_cases", ROOT / "benchmarks" / "archive_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()


class Machine:
    """Clocks of one machine, set by hand."""

    def __init__(self, wall):
        self.wall, self.up = wall, 0.0

    def pass_time(self, seconds):
        self.wall += seconds
        self.up += seconds

    def queue(self, store):
        return WorkQueue(store, SteadyClock(lambda: self.wall, lambda: self.up))


def fill(store, n_kernels=4):
    run = store.start_run("run", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
    for number in range(n_kernels):
        run.add(cases.evaluated(number, number))


def work(number, purpose="reverify"):
    return Work(cases.kernel(number).digest, cases.PROBLEM.key, cases.ENVIRONMENT.key, purpose, f"note {number}")


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "a.db") as opened:
        fill(opened)
        yield opened


@pytest.fixture
def machine():
    return Machine(1000.0)


def test_work_is_given_out_in_order_and_once(store, machine):
    queue = machine.queue(store)
    assert queue.put([work(1), work(0)]) == 2
    assert queue.put([work(0), work(2), work(0, "other")]) == 2
    taken = [queue.take("reverify", "me", 10) for _ in range(4)]
    assert [lease.work for lease in taken[:3]] == [work(1), work(0), work(2)]
    assert taken[3] is None
    for lease in taken[:3]:
        queue.finish(lease)
    machine.pass_time(1e6)
    assert queue.take("reverify", "me", 10) is None
    assert queue.put([work(1)]) == 0
    counts = queue.counts("reverify")
    assert (counts.n_waiting, counts.n_taken, counts.n_done) == (0, 0, 3)


def test_an_expired_lease_is_given_to_another_and_its_result_is_refused(store, machine):
    queue = machine.queue(store)
    queue.put([work(0)])
    first = queue.take("reverify", "slow", 10)
    machine.pass_time(9.9)
    assert queue.take("reverify", "fast", 10) is None
    machine.pass_time(0.2)
    second = queue.take("reverify", "fast", 10)
    assert second.token == first.token + 1
    for refused in (queue.finish, queue.check, lambda lease: queue.renew(lease, 5)):
        with pytest.raises(LeaseLostError, match=r"not filed.*fast with lease 2"):
            refused(first)
    queue.give_back(first)
    queue.check(second)
    queue.finish(second)
    with pytest.raises(LeaseLostError, match="it done at"):
        queue.finish(second)


def test_a_lease_that_ran_out_still_counts_while_nobody_took_it(store, machine):
    queue = machine.queue(store)
    queue.put([work(0)])
    lease = queue.take("reverify", "me", 10)
    machine.pass_time(60)
    lease = queue.renew(lease, 10)
    assert queue.take("reverify", "other", 10) is None
    machine.pass_time(60)
    queue.finish(lease)


def test_work_that_is_given_back_is_had_at_once(store, machine):
    queue = machine.queue(store)
    queue.put([work(0)])
    queue.give_back(queue.take("reverify", "me", 1000))
    assert queue.take("reverify", "other", 10).token == 2


def test_a_clock_set_back_delays_no_lease_and_loses_none(store, machine):
    queue = machine.queue(store)
    queue.put([work(0)])
    first = queue.take("reverify", "me", 10)
    machine.wall -= 86_400
    machine.pass_time(5)
    other = machine.queue(store)  # another process, which never saw the clock as it was
    assert other.take("reverify", "other", 10) is None
    machine.pass_time(11)
    second = other.take("reverify", "other", 10)
    assert second.token == first.token + 1
    with pytest.raises(LeaseLostError):
        queue.finish(first)


def test_a_clock_set_forward_can_make_work_be_tried_twice_but_done_once(store, machine):
    queue, ahead = machine.queue(store), Machine(1e9).queue(store)
    queue.put([work(0)])
    first, second = queue.take("reverify", "me", 10), ahead.take("reverify", "ahead", 10)
    assert second is not None
    ahead.finish(second)
    with pytest.raises(LeaseLostError):
        queue.finish(first)


@pytest.mark.parametrize(
    "bad",
    [
        Work("0" * 64, cases.PROBLEM.key, cases.ENVIRONMENT.key, "x"),
        Work(cases.kernel(0).digest, "0" * 16, cases.ENVIRONMENT.key, "x"),
        Work(cases.kernel(0).digest, cases.PROBLEM.key, "0" * 16, "x"),
    ],
)
def test_work_on_what_the_archive_lacks_is_refused_whole(store, bad):
    queue = WorkQueue(store)
    with pytest.raises(StorageError, match="cannot be queued"):
        queue.put([work(0, "x"), bad])
    assert queue.counts("x").n_waiting == 0


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_lease_of_no_time_is_refused(store, seconds):
    queue = WorkQueue(store)
    queue.put([work(0)])
    with pytest.raises(ValueError, match="no time"):
        queue.take("reverify", "me", seconds)


class Queues(RuleBasedStateMachine):
    """Three workers with clocks of their own, that stop, wait, and are set back and forth, on one queue."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store.open(Path(self.folder.name) / "a.db")
        fill(self.store)
        self.machines = [Machine(1000.0 + 7 * i) for i in range(3)]
        self.queues = [machine.queue(self.store) for machine in self.machines]
        self.held: list[tuple[int, Lease]] = []
        self.latest: dict[str, int] = {}
        self.finished: list[str] = []
        self.put: set[str] = set()

    @rule(number=st.integers(0, 3))
    def queue_work(self, number):
        digest = work(number).digest
        assert self.queues[0].put([work(number)]) == (digest not in self.put)
        self.put.add(digest)

    @rule(worker=st.integers(0, 2), seconds=st.sampled_from([1, 10, 100]))
    def take(self, worker, seconds):
        lease = self.queues[worker].take("reverify", f"worker {worker}", seconds)
        if lease is None:
            return
        assert lease.work.digest in self.put - set(self.finished)
        assert lease.token == self.latest.get(lease.work.digest, 0) + 1
        self.latest[lease.work.digest] = lease.token
        self.held.append((worker, lease))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100), how=st.sampled_from(["finish", "renew", "give_back", "die"]))
    def go_on(self, which, how):
        worker, lease = self.held.pop(which % len(self.held))
        digest = lease.work.digest
        mine = self.latest[digest] == lease.token and digest not in self.finished
        queue = self.queues[worker]
        if how == "give_back":
            queue.give_back(lease)
        elif how != "die":
            act = queue.finish if how == "finish" else lambda lease: self.held.append((worker, queue.renew(lease, 10)))
            try:
                act(lease)
            except LeaseLostError:
                assert not mine
            else:
                assert mine
                if how == "finish":
                    self.finished.append(digest)

    @rule(seconds=st.floats(0.1, 200))
    def wait(self, seconds):
        for machine in self.machines:
            machine.pass_time(seconds)

    @rule(worker=st.integers(0, 2), seconds=st.floats(-5000, 5000))
    def set_clock(self, worker, seconds):
        self.machines[worker].wall += seconds

    @rule(worker=st.integers(0, 2))
    def restart(self, worker):
        self.held = [(other, lease) for other, lease in self.held if other != worker]
        self.queues[worker] = self.machines[worker].queue(self.store)

    @invariant()
    def nothing_is_lost_or_done_twice(self):
        assert len(self.finished) == len(set(self.finished))
        counts = self.queues[0].counts("reverify")
        assert counts.n_done == len(self.finished)
        assert counts.n_waiting + counts.n_taken == len(self.put) - len(self.finished)

    def teardown(self):
        # Whatever happened, all that is left is done in the end, in as many seconds as the longest lease lasts after a look.
        for queue in self.queues:
            queue.counts("reverify")
        for machine in self.machines:
            machine.pass_time(101)
        for _ in self.put - set(self.finished):
            self.queues[1].finish(self.queues[1].take("reverify", "last", 10))
        assert self.queues[1].take("reverify", "last", 10) is None
        self.store.close()
        self.folder.cleanup()


SOAK = bool(os.environ.get("EVO_L2_SOAK"))
TestQueues = pytest.mark.slow(Queues.TestCase) if SOAK else Queues.TestCase
TestQueues.settings = settings(
    max_examples=200 if SOAK else 3,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def _work_on(path, holder, results):
    with Store.open(path, create=False) as store:
        queue = WorkQueue(store)
        while (lease := queue.take("reverify", str(holder), 0.05 if holder % 2 else 30.0)) is not None:
            if holder % 2:
                time.sleep(0.06)  # too slow: its lease has run out, and it may be another's
            try:
                queue.finish(lease)
            except LeaseLostError:
                continue
            results.put(lease.work.digest)


def test_several_processes_do_every_piece_of_work_once(tmp_path):
    n_kernels = 60
    with Store.open(tmp_path / "a.db") as store:
        fill(store, n_kernels)
        WorkQueue(store).put([work(number) for number in range(n_kernels)])
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    processes = [context.Process(target=_work_on, args=(tmp_path / "a.db", holder, results)) for holder in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    done = []
    while not results.empty():
        done.append(results.get())
    assert sorted(done) == sorted(work(number).digest for number in range(n_kernels))
