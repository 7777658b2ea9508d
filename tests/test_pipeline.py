"""The loop: deterministic, resumable, within its budgets, and never judging anything twice."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from archive.memory import MemoryArchive
from archive.store import Store
from evo_l2.budget import Budget, Limits
from evo_l2.contracts import Candidate, Message, ModelCall, Outcome, Proposal, Reply
from evo_l2.errors import DeviceError
from evo_l2.evaluation import Evaluation, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.past import Past
from evo_l2.pipeline import Pipeline, PipelineSettings, Stop
from evo_l2.problems.hgemm import Hgemm
from evo_l2.quiet import Quiet
from evo_l2.recorded import RecordedEvaluator
from evo_l2.search import Search, SearchSettings
from mutators.operators import Parametric

PROBLEM = Hgemm(((64, 64, 64, 1),))


class Scripted:
    """A mutator that stands for a model: replies at a fixed cost, every third without a kernel."""

    name = "scripted"
    n_parents = 1
    uses_model = True
    most_tokens = 100

    def __init__(self):
        self.feedback = []

    def takes(self, kernel):
        return True

    def propose(self, problem, requests):
        return tuple(self._one(request) for request in requests)

    def _one(self, request):
        self.feedback.append(request.feedback)
        reply = Reply("text", 60, 30, 0.0, 0.01)
        call = ModelCall("scripted", (Message("user", "go"),), reply, request.index, 40)
        if request.index % 3 == 0:
            return Proposal(request, None, Outcome.NO_KERNEL, f"no kernel in reply {request.index}", (call,))
        value = {"T0": request.index % 10}
        return Proposal(request, request.parents[0].kernel.with_tunables(value), calls=(call,))


def run(instant, *, evaluations=60, seed=1, history=(), model=False, batch=8, lookahead=1, limits=None, stop_at=None,
        evaluator=None, build_workers=2, n_cards=0):  # fmt: skip
    """One run in memory; returns candidates, evaluator, stop reason and the mutators."""
    operators = {"parametric": (Parametric(), 3.0)}
    if model:
        operators["scripted"] = (Scripted(), 1.0)
    evaluator = evaluator or instant.InstantEvaluator()
    told = list(history)
    durable = MemoryArchive(PROBLEM.measures("cpu"))
    for candidate in history:
        durable.add(candidate)
    search = Search(MemoryArchive(PROBLEM.measures("cpu")), operators, seed, SearchSettings())
    pipeline = Pipeline(
        problem=PROBLEM,
        seeds=[Kernel(instant.kernel_source(), "cpu"), Kernel(instant.kernel_source(base=2), "cpu")],
        search=search,
        archive=durable,
        evaluator=evaluator,
        quiet=Quiet(),
        budget=Budget(limits or Limits(evaluations=evaluations)),
        settings=PipelineSettings(batch, lookahead, build_workers, n_cards),
        told=lambda candidate, result, replayed: on_told(candidate, replayed),
    )

    def on_told(candidate, replayed):
        if not replayed:
            told.append(candidate)
        if stop_at is not None and len(told) >= stop_at:
            pipeline.request_stop()

    stop = pipeline.run(history)
    return told, evaluator, stop, operators


def rows(candidates):
    """What has to be equal between two runs: everything but wall times."""
    return [
        (c.index, c.operator, c.parents, c.asked_after, c.outcome, c.message, c.kernel and c.kernel.digest, c.identity,
         c.duplicate_of, c.evaluation, c.calls)
        for c in candidates
    ]  # fmt: skip


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize("model", [False, True])
def test_one_seed_gives_one_run(instant, lookahead, model):
    first = run(instant, model=model, lookahead=lookahead)[0]
    second = run(instant, model=model, lookahead=lookahead, build_workers=1)[0]
    assert rows(first) == rows(second)
    assert [c.index for c in first] == list(range(60))
    assert rows(first) != rows(run(instant, model=model, lookahead=lookahead, seed=2)[0])


@pytest.mark.parametrize("model", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 3, 9, 10, 17, 31, 59])
def test_a_run_cut_anywhere_goes_on_as_if_it_had_not_been(instant, cut, model):
    whole = run(instant, model=model)[0]
    head, first, stop, _ = run(instant, model=model, stop_at=cut)
    assert stop is Stop.REQUESTED
    assert len(head) == cut
    resumed, second, stop, _ = run(instant, model=model, history=head)
    assert stop is Stop.EVALUATIONS
    assert rows(resumed) == rows(whole)
    assert not set(first.measured) & set(second.measured)


def test_nothing_is_measured_twice(instant):
    _, evaluator, _, _ = run(instant, evaluations=300, model=True)
    assert len(evaluator.measured) == len(set(evaluator.measured))


def test_asks_see_exactly_the_groups_told_before(instant):
    told = run(instant, batch=8, lookahead=1)[0]
    asked = [c.asked_after for c in told]
    assert asked[:2] == [0, 0]
    assert asked[2:18] == [2] * 16
    assert asked[18:26] == [10] * 8
    generational = [c.asked_after for c in run(instant, batch=8, lookahead=0)[0]]
    assert generational[2:18] == [2] * 8 + [10] * 8


def test_the_search_finds_better_kernels(instant):
    told = run(instant, evaluations=400)[0]
    passed = [c for c in told if c.evaluation is not None and c.evaluation.session is not None]
    best = max(sum(c.evaluation.session.cases[0].log_ratios) for c in passed)
    seeds = max(sum(c.evaluation.session.cases[0].log_ratios) for c in passed[:2])
    assert best > seeds + 12 * 0.5


def test_failures_are_said_once_to_the_next_prompt(instant):
    scripted = run(instant, evaluations=200, model=True)[3]["scripted"][0]
    said = [line for lines in scripted.feedback for line in lines if line.startswith("no kernel")]
    assert said
    assert len(said) == len(set(said))


def test_tokens_are_never_overrun_and_free_operators_go_on(instant):
    told, _, stop, _ = run(instant, model=True, limits=Limits(evaluations=200, tokens=950))
    spent = sum(call.reply.n_prompt_tokens + call.reply.n_reply_tokens for c in told for call in c.calls)
    assert 0 < spent <= 950
    assert len(told) == 200
    assert stop is Stop.EVALUATIONS


def test_wall_time_ends_the_run(instant):
    class Slow(instant.InstantEvaluator):
        def measure(self, prepared, seed, *, purpose="search"):
            time.sleep(0.02)
            return super().measure(prepared, seed, purpose=purpose)

    begin = time.monotonic()
    _, _, stop, _ = run(instant, limits=Limits(wall_s=0.5), evaluator=Slow())
    assert stop is Stop.WALL
    assert time.monotonic() - begin < 2.0


def test_a_run_without_a_right_seed_says_why(instant):
    class Broken(instant.InstantEvaluator):
        def measure(self, prepared, seed, *, purpose="search"):
            return super().measure(self.prepare(prepared.kernel.with_tunables({"T0": 9})), seed)

    with pytest.raises(DeviceError, match="no seed passed"):
        run(instant, evaluator=Broken())


class Restless:
    """An evaluator whose first times of a kernel cannot be trusted, for every third kernel; one of those fails later."""

    def __init__(self, instant, n_bad=1, broken=None):
        self.inner = instant.InstantEvaluator()
        self.environment = self.inner.environment
        self.prepare, self.close = self.inner.prepare, self.inner.close
        self.n_bad, self.broken = n_bad, broken
        self.times = {}
        self.again = []

    def measure(self, prepared, seed, *, purpose="search"):
        n_times = self.times[prepared.identity] = self.times.get(prepared.identity, 0) + 1
        assert (purpose == "retime") == (n_times > 1)
        evaluation = self.inner.measure(prepared, seed, purpose=purpose)
        if evaluation.session is None or int(prepared.identity, 16) % 3:
            return evaluation
        if purpose == "retime" and int(prepared.identity, 16) % 2 == self.broken:
            failed = Verdict(Status.INCORRECT, "exact-integers", "wrong", prepared.build, prepared.measures)
            return Evaluation(failed)
        if n_times > self.n_bad:
            return evaluation
        case = evaluation.session.cases[0]
        case = dataclasses.replace(case, kept=(False,) * len(case.kept))
        return dataclasses.replace(evaluation, session=TimingSession((case,), purpose))


@pytest.mark.parametrize("n_bad", [1, 2, 9])
def test_what_could_not_be_timed_is_timed_again_and_at_most_three_times(instant, tmp_path, n_bad):
    evaluator = Restless(instant, n_bad)
    with Store.open(tmp_path / "a.db") as store:
        handle = durable_run(instant, store, evaluator)
        sessions = {again.digest: 0 for again in handle.remeasurements()}
        assert sessions
        assert max(evaluator.times.values()) == min(n_bad + 1, 3)
        last_group = {candidate.kernel.digest for candidate in handle.history() if candidate.index >= 34}
        left = {kernel.digest: n_sessions for kernel, n_sessions in handle.untimed()}
        assert all(n_sessions == 3 or digest in last_group for digest, n_sessions in left.items())
        assert (3 in left.values()) == (n_bad == 9)
        assert store.open_run().untimed() == handle.untimed()


@pytest.mark.parametrize("broken", [None, 0])
@pytest.mark.parametrize("cut", [1, 2, 10, 18, 26, 31])
def test_a_run_with_later_measurements_goes_on_as_if_it_had_not_been_cut(instant, tmp_path, cut, broken):
    with Store.open(tmp_path / "whole.db") as one, Store.open(tmp_path / "cut.db") as two:
        whole = durable_run(instant, one, Restless(instant, broken=broken))
        evaluator = Restless(instant, broken=broken)
        durable_run(instant, two, evaluator, stop_at=cut)
        resumed = durable_run(instant, two, evaluator, resumed=True)
        assert rows(resumed.history()) == rows(whole.history())
        assert list(resumed.remeasurements()) == list(whole.remeasurements())
        withdrawn = [again for again in whole.remeasurements() if again.evaluation.session is None]
        assert bool(withdrawn) == (broken is not None)
        assert not {again.digest for again in withdrawn} & {elite.kernel.digest for elite in whole.ranked()}
        replayed = RecordedEvaluator(whole.history(), whole.environment, whole.remeasurements())
        with Store.open(tmp_path / "replayed.db") as three:
            again = durable_run(instant, three, replayed)
            assert rows(again.history()) == rows(whole.history())
            assert list(again.remeasurements()) == list(whole.remeasurements())


def test_a_past_that_ends_too_soon_says_so():
    with pytest.raises(LookupError, match="ends before candidate 0"):
        Past(1).candidate(0)


def durable_run(instant, store, evaluator, *, stop_at=None, resumed=False):
    """A run of 40 candidates in a file."""
    seeds = [Kernel(instant.kernel_source(), "cpu"), Kernel(instant.kernel_source(base=2), "cpu")]
    fresh = None if resumed else store.start_run("run", PROBLEM, evaluator.environment, "cpu", {}, 1)
    handle = fresh or store.open_run()
    pipeline = Pipeline(
        problem=PROBLEM,
        seeds=seeds,
        search=Search(handle.rewind(), {"parametric": (Parametric(), 1.0)}, 1, SearchSettings()),
        archive=handle,
        evaluator=evaluator,
        quiet=Quiet(),
        budget=Budget(Limits(evaluations=40)),
        settings=PipelineSettings(8),
        told=lambda candidate, result, replayed: candidate.index + 1 == stop_at and pipeline.request_stop(),
    )
    pipeline.run(handle.history(), handle.remeasurements())
    return handle


def test_a_failing_machine_ends_the_run_and_leaves_no_thread(instant):
    class Dying(instant.InstantEvaluator):
        def measure(self, prepared, seed, *, purpose="search"):
            if len(self.measured) == 20:
                raise DeviceError("the device is gone")
            return super().measure(prepared, seed, purpose=purpose)

    before = threading.active_count()
    with pytest.raises(DeviceError, match="gone"):
        run(instant, evaluator=Dying())
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def elite_search(instant, sources, operators):
    """A search over kernels that passed, each in a cell of its own, and its archive."""
    archive = MemoryArchive(PROBLEM.measures("cpu"))
    search = Search(archive, operators, 1, SearchSettings())
    evaluator = instant.InstantEvaluator()
    for index, source in enumerate(sources):
        kernel = Kernel(source, "cpu")
        prepared = evaluator.prepare(kernel)
        evaluation = evaluator.measure(prepared, np.random.SeedSequence(index))
        search.tell(Candidate(index, "seed", (), 0, Outcome.EVALUATED, None, kernel, prepared.identity, evaluation))
    return search


def test_a_fault_of_form_is_told_to_its_own_operator_only_and_a_kernel_s_to_any(instant):
    operators = {"one": (Scripted(), 1.0), "two": (Scripted(), 1.0)}
    search = elite_search(instant, [instant.kernel_source()], operators)
    (parent,) = search.archive.elites()
    call = ModelCall("scripted", (Message("user", "go"),), Reply("text", 1, 1, 0.0), 1, 4)
    digest = parent.kernel.digest
    search.tell(Candidate(1, "one", (digest,), 1, Outcome.NO_KERNEL, "no block", calls=(call,)))
    heard = {}
    for request in search.ask_group(2, 2):
        heard[request.operator] = request.feedback
    assert heard == {"one": ("no block",), "two": ()}
    assert [request.feedback for request in search.ask_group(4, 2)] == [(), ()]


def test_what_an_operator_without_a_model_could_not_do_is_told_to_nobody(instant):
    operators = {"parametric": (Parametric(), 1.0), "scripted": (Scripted(), 1.0)}
    search = elite_search(instant, [instant.kernel_source()], operators)
    (parent,) = search.archive.elites()
    search.tell(Candidate(1, "parametric", (parent.kernel.digest,), 1, Outcome.NO_KERNEL, "no tunable"))
    assert all(request.feedback == () for request in search.ask_group(2, 2))


def test_an_operator_is_given_parents_that_it_takes_while_there_are_any(instant):
    class Picky(Scripted):
        def takes(self, kernel):
            return kernel.digest == wanted

    search = elite_search(instant, [instant.kernel_source(), instant.kernel_source(base=2)], {"picky": (Picky(), 1.0)})
    assert len(search.archive.elites()) == 2
    for elite in search.archive.elites():
        wanted = elite.kernel.digest
        assert {request.parents[0].kernel.digest for request in search.ask_group(2, 40)} == {wanted}
    wanted = "none"
    assert len(search.ask_group(2, 5)) == 5


class Late(Restless):
    """Nothing can be timed before so many tries of a kernel."""

    def __init__(self, instant, n_bad):
        super().__init__(instant, n_bad)
        self.prepare = lambda kernel: dataclasses.replace(self.inner.prepare(kernel), identity=f"{0:064x}"[:-1] + "3")


def test_a_single_seed_is_tried_until_it_is_timed_and_the_next_start_tries_on(instant, tmp_path):
    def start(store, evaluator):
        handle = store.start_run("run", PROBLEM, evaluator.environment, "cpu", {}, 1)
        return handle, lambda: go_on(store, evaluator)

    def go_on(store, evaluator):
        handle = store.open_run()
        pipeline = Pipeline(
            problem=PROBLEM, seeds=[Kernel(instant.kernel_source(), "cpu")],
            search=Search(handle.rewind(), {"parametric": (Parametric(), 1.0)}, 1, SearchSettings()), archive=handle,
            evaluator=evaluator, quiet=Quiet(), budget=Budget(Limits(evaluations=1)), settings=PipelineSettings(8),
            told=lambda candidate, result, replayed: None,
        )  # fmt: skip
        pipeline.run(handle.history(), handle.remeasurements())
        return handle

    with Store.open(tmp_path / "a.db") as store:
        evaluator = Late(instant, 7)
        _, run_on = start(store, evaluator)
        with pytest.raises(DeviceError, match="did not hold still"):
            run_on()
        n_first = sum(evaluator.times.values())
        assert n_first == 1 + 1 + 3
        handle = run_on()
        assert sum(evaluator.times.values()) == 8
        assert len(handle.elites()) == 1
        other = Late(instant, 0)
        store.start_run("run", PROBLEM, other.environment, "cpu", {}, 1)
        go_on(store, other)
        assert other.times == {}
    with Store.open(tmp_path / "b.db") as store:
        evaluator = Late(instant, 6)
        _, run_on = start(store, evaluator)
        with pytest.raises(DeviceError, match="did not hold still"):
            run_on()
        _, run_on = start(store, evaluator)
        handle = run_on()
        assert handle.name != "run"
        assert next(iter(handle.history())).outcome is Outcome.DUPLICATE
        assert len(handle.elites()) == 1


class Cards:
    """An evaluator with several cards, the first of which is slow."""

    def __init__(self, instant, fails_at=None):
        self.inner = instant.InstantEvaluator()
        self.environment = self.inner.environment
        self.prepare, self.close = self.inner.prepare, self.inner.close
        self.fails_at = fails_at
        self.lock = threading.Lock()
        self.at_work, self.most_at_work, self.measured = 0, 0, []

    def measure(self, prepared, seed, *, purpose="search"):
        with self.lock:
            self.at_work += 1
            self.most_at_work = max(self.at_work, self.most_at_work)
            self.measured.append(prepared.identity)
            place = len(self.measured)
        if place == self.fails_at:
            raise DeviceError("a card is gone")
        time.sleep(0.01 if place % 3 else 0.03)
        evaluation = self.inner.measure(prepared, seed, purpose=purpose)
        with self.lock:
            self.at_work -= 1
        return evaluation


@pytest.mark.parametrize("model", [False, True])
def test_several_cards_measure_at_once_and_what_is_told_is_the_same(instant, model):
    alone = run(instant, model=model)[0]
    shared, cards, _, _ = run(instant, model=model, evaluator=Cards(instant), n_cards=3)
    assert rows(shared) == rows(alone)
    assert cards.most_at_work == 3
    assert len(set(cards.measured)) == len(cards.measured)
    head, first, _, _ = run(instant, model=model, evaluator=Cards(instant), n_cards=3, stop_at=23)
    resumed, second, _, _ = run(instant, model=model, evaluator=Cards(instant), n_cards=2, history=head)
    assert rows(resumed) == rows(alone)
    assert first.at_work == second.at_work == 0


def test_a_card_that_fails_ends_the_run_when_the_others_have_done(instant):
    before = threading.active_count()
    cards = Cards(instant, fails_at=12)
    with pytest.raises(DeviceError, match="a card is gone"):
        run(instant, evaluator=cards, n_cards=3)
    assert cards.at_work == 1  # the one that failed
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_builds_go_on_while_a_card_is_timed_and_wait_while_a_processor_is():
    for disturb in (True, False):
        quiet = Quiet(builds_disturb=disturb)
        built = threading.Event()

        def build(quiet=quiet, built=built):
            with quiet.noise():
                built.set()

        with quiet.silence():
            thread = threading.Thread(target=build)
            thread.start()
            assert built.wait(0.2) is not disturb
        thread.join(5)
        assert built.is_set()
