"""One suite for every implementation of `evo_l2.contracts.Archive`: in memory, durable, and durable replayed."""

import dataclasses
import importlib.util
import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archive import MemoryArchive, Store
from evo_l2.contracts import AddStatus, Outcome
from evo_l2.evaluation import Environment, Status
from evo_l2.past import Past, file_remeasurement
from evo_l2.timing import pooled_estimate


def _load_cases():
    path = Path(__file__).parent.parent / "benchmarks" / "archive_cases.py"
    spec = importlib.util.spec_from_file_location("archive_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()
_ENVIRONMENTS = itertools.count()
CELLS = ((64.0, 0.0, 0.0), (256.0, 4.0, 0.0), (512.0, None, 600_000.0))


class _Replayed:
    """A durable run whose answers come from telling its candidates to a rewound one."""

    def __init__(self, run):
        self.run = run
        self.rewound = run.rewind()

    def add(self, candidate):
        expected = self.rewound.n_candidates
        assert expected == self.run.n_candidates
        self.run.add(candidate)
        return self.rewound.add(candidate)

    def add_session(self, digest, session):
        self.run.add_session(digest, session)
        self.rewound.add_session(digest, session)

    def withdraw(self, digest, verdict):
        self.run.withdraw(digest, verdict)
        self.rewound.withdraw(digest, verdict)

    def __getattr__(self, name):
        return getattr(self.rewound, name)


def start(store, name="run"):
    return store.start_run(name, cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)


@pytest.fixture(params=["memory", "store", "replayed", "postgresql"])
def archive(request, tmp_path):
    if request.param == "memory":
        yield MemoryArchive(cases.SCHEMA)
        return
    if request.param == "postgresql":
        run = start(request.getfixturevalue("postgres_store"))
        yield run
        return
    with Store.open(tmp_path / "a.db") as store:
        run = start(store)
        yield run if request.param == "store" else _Replayed(run)


@pytest.fixture(scope="module")
def shared_postgres_store(postgres):
    with Store.open(postgres.fresh()) as store:
        yield store


@pytest.fixture
def postgres_store(shared_postgres_store, monkeypatch):
    """One archive for all tests, since a new one takes longer than they do; each test gets an environment of its own."""
    number = next(_ENVIRONMENTS)
    monkeypatch.setattr(cases, "ENVIRONMENT", Environment("cpu", {"processor": f"test {number}"}, {"host": "here"}))
    return shared_postgres_store


def test_an_empty_archive_has_no_elite(archive):
    assert archive.elites() == ()
    assert archive.best() is None
    assert archive.n_candidates == 0
    assert archive.find(digest=cases.kernel(0).digest) is None


def test_the_first_kernel_of_a_cell_is_new_and_its_value_is_the_lower_bound(archive):
    candidate = cases.evaluated(0, 0)
    result = archive.add(candidate)
    expected = pooled_estimate((candidate.evaluation.session,))
    assert (result.status, result.value, result.cell) == (AddStatus.NEW, expected.log_low, (2, 1, 0))
    elite = archive.best()
    assert archive.elites() == (elite,)
    assert elite.kernel == candidate.kernel
    assert elite.verdict == candidate.evaluation.verdict
    assert elite.sessions == (candidate.evaluation.session,)
    assert elite.estimate == expected


def test_a_better_kernel_takes_the_cell_and_its_value_is_the_gain(archive):
    archive.add(cases.evaluated(0, 0, speedup=1.0))
    former = archive.best().estimate.log_low
    result = archive.add(cases.evaluated(1, 1, speedup=2.0))
    assert result.status is AddStatus.IMPROVED
    assert archive.best().kernel == cases.kernel(1)
    assert result.value == archive.best().estimate.log_low - former


def test_a_worse_kernel_leaves_the_cell_and_can_still_be_had(archive):
    archive.add(cases.evaluated(0, 0, speedup=2.0))
    result = archive.add(cases.evaluated(1, 1, speedup=1.0))
    assert result.status is AddStatus.NOT_ADDED
    assert result.value < 0
    assert [elite.kernel for elite in archive.elites()] == [cases.kernel(0)]
    assert archive.get(cases.kernel(1).digest).kernel == cases.kernel(1)
    assert [elite.kernel for elite in archive.ranked()] == [cases.kernel(0), cases.kernel(1)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_tie_goes_to_the_smaller_digest_whatever_the_order(archive, order):
    timed = cases.session(1)
    for index, number in enumerate(order):
        archive.add(cases.evaluated(index, number, timed=timed))
    assert archive.best().kernel.digest == min(cases.kernel(0).digest, cases.kernel(1).digest)


def test_elites_come_in_order_of_cell(archive):
    for index, measures in enumerate(reversed(CELLS)):
        archive.add(cases.evaluated(index, index, measures=measures))
    cells = [elite.cell for elite in archive.elites()]
    assert cells == sorted(cells)
    assert cells == [(0, 0, 0), (2, 1, 0), (3, 5, 3)]


def test_an_elite_whose_bound_falls_loses_its_cell_to_the_next_best(archive):
    archive.add(cases.evaluated(0, 0, speedup=3.0))
    archive.add(cases.evaluated(1, 1, speedup=2.0))
    archive.add_session(cases.kernel(0).digest, cases.session(7, speedup=1.0, n_blocks=60, purpose="retime"))
    assert archive.best().kernel == cases.kernel(1)
    fallen = archive.get(cases.kernel(0).digest)
    assert [session.purpose for session in fallen.sessions] == ["search", "retime"]
    assert fallen.estimate == pooled_estimate(fallen.sessions)
    archive.add_session(cases.kernel(0).digest, cases.session(8, speedup=4.0, n_blocks=400, purpose="retime"))
    assert archive.best().kernel == cases.kernel(0)
    assert len(archive.best().sessions) == 3


def test_a_session_on_the_elite_changes_what_is_answered(archive):
    archive.add(cases.evaluated(0, 0))
    before = archive.elites()[0]
    archive.add_session(cases.kernel(0).digest, cases.session(5, purpose="final"))
    after = archive.elites()[0]
    assert after == archive.best() == archive.get(cases.kernel(0).digest)
    assert after.estimate.n_blocks == before.estimate.n_blocks + 6


def test_an_inconclusive_kernel_is_known_but_holds_no_cell_until_it_is_timed_again(archive):
    result = archive.add(cases.evaluated(0, 0, conclusive=False))
    assert (result.status, result.value) == (AddStatus.NOT_ADDED, None)
    assert archive.find(digest=cases.kernel(0).digest) == cases.kernel(0).digest
    assert archive.elites() == ()
    with pytest.raises(KeyError):
        archive.get(cases.kernel(0).digest)
    assert archive.untimed() == ((cases.kernel(0), 1),)
    archive.add_session(cases.kernel(0).digest, cases.session(2, conclusive=False))
    assert archive.untimed() == ((cases.kernel(0), 2),)
    archive.add_session(cases.kernel(0).digest, cases.session(3))
    assert archive.untimed() == ()
    assert archive.best().kernel == cases.kernel(0)


FAILURE = cases.verdict(0, status=Status.INCORRECT)


def test_a_withdrawn_kernel_is_known_but_no_elite_and_the_next_best_takes_its_cell(archive):
    archive.add(cases.evaluated(0, 0, speedup=3.0))
    archive.add(cases.evaluated(1, 1, speedup=2.0))
    digest = cases.kernel(0).digest
    archive.withdraw(digest, FAILURE)
    assert [elite.kernel for elite in archive.elites()] == [cases.kernel(1)]
    assert archive.best().kernel == cases.kernel(1)
    assert archive.find(digest=digest) == digest
    assert archive.untimed() == ()
    with pytest.raises(KeyError):
        archive.get(digest)
    with pytest.raises(KeyError):
        archive.add_session(digest, cases.session(1))
    with pytest.raises(KeyError):
        archive.withdraw(digest, FAILURE)
    archive.add(cases.evaluated(2, 2, parents=(digest,)))
    assert archive.n_candidates == 3


def test_an_inconclusive_kernel_can_be_withdrawn(archive):
    archive.add(cases.evaluated(0, 0, conclusive=False))
    archive.withdraw(cases.kernel(0).digest, FAILURE)
    assert archive.untimed() == ()
    assert archive.elites() == ()


def test_a_kernel_is_not_withdrawn_for_having_passed(archive):
    archive.add(cases.evaluated(0, 0))
    with pytest.raises(ValueError, match="passed"):
        archive.withdraw(cases.kernel(0).digest, cases.verdict(0))
    assert archive.best().kernel == cases.kernel(0)


@pytest.mark.parametrize("status", [s for s in Status if not s.is_good and s is not Status.INCONCLUSIVE])
def test_a_kernel_that_failed_is_known_and_nothing_else(archive, status):
    result = archive.add(cases.evaluated(0, 0, status=status))
    assert (result.status, result.value, result.cell) == (AddStatus.NOT_ADDED, None, None)
    assert archive.find(digest=cases.kernel(0).digest) == cases.kernel(0).digest
    assert archive.elites() == ()
    with pytest.raises(KeyError):
        archive.get(cases.kernel(0).digest)
    with pytest.raises(KeyError):
        archive.add_session(cases.kernel(0).digest, cases.session(1))


def test_a_kernel_that_was_built_and_never_run_holds_a_cell_without_objective(archive):
    result = archive.add(cases.evaluated(0, 0, status=Status.BUILT))
    assert (result.status, result.value, result.cell) == (AddStatus.NEW, None, (2, 1, 0))
    elite = archive.best()
    assert archive.elites() == (elite,)
    assert (elite.kernel, elite.estimate, elite.sessions) == (cases.kernel(0), None, ())
    assert elite == archive.get(cases.kernel(0).digest)
    assert archive.untimed() == ()
    assert archive.grid.qd_score == 0.0
    with pytest.raises(KeyError):
        archive.add_session(cases.kernel(0).digest, cases.session(1))
    archive.withdraw(cases.kernel(0).digest, FAILURE)
    assert archive.elites() == ()


def test_a_timed_kernel_takes_the_cell_of_one_that_was_never_run_and_not_the_other_way_round(archive):
    archive.add(cases.evaluated(0, 0, status=Status.BUILT))
    assert archive.add(cases.evaluated(1, 1, speedup=0.5)).status is AddStatus.IMPROVED
    assert archive.add(cases.evaluated(2, 2, status=Status.BUILT)).status is AddStatus.NOT_ADDED
    assert archive.best().kernel == cases.kernel(1)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_that_were_never_run_the_smaller_digest_holds_the_cell(archive, order):
    for index, number in enumerate(order):
        archive.add(cases.evaluated(index, number, status=Status.BUILT))
    assert archive.best().kernel.digest == min(cases.kernel(0).digest, cases.kernel(1).digest)


def test_a_known_kernel_is_found_by_source_and_by_identity(archive):
    archive.add(cases.evaluated(0, 0, identity="one"))
    digest = cases.kernel(0).digest
    assert archive.find(digest=digest) == digest
    assert archive.find(identity="one") == digest
    assert archive.find(digest=cases.kernel(1).digest, identity="one") == digest
    assert archive.find(digest=cases.kernel(1).digest, identity="two") is None
    assert archive.find() is None


def test_a_duplicates_source_answers_with_the_kernel_it_repeats(archive):
    archive.add(cases.evaluated(0, 0))
    archive.add(cases.duplicate(1, 5, cases.kernel(0), identity="identity-0"))
    assert archive.find(digest=cases.kernel(5).digest) == cases.kernel(0).digest
    assert archive.n_candidates == 2
    with pytest.raises(KeyError):
        archive.get(cases.kernel(5).digest)


@pytest.mark.parametrize("index", [0, 2, 3])
def test_an_index_that_is_not_the_next_is_refused_and_nothing_changes(archive, index):
    archive.add(cases.evaluated(0, 0))
    before = archive.elites()
    with pytest.raises(ValueError, match="1 is the next index"):
        archive.add(cases.evaluated(index, 1, speedup=9.0))
    assert archive.n_candidates == 1
    assert archive.elites() == before
    assert archive.find(digest=cases.kernel(1).digest) is None


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (cases.evaluated(1, 0), "is known"),
        (cases.evaluated(1, 1, identity="identity-0"), "is known"),
        (cases.duplicate(1, 2, cases.kernel(3)), "not known here"),
        (cases.failed(1, parents=(cases.kernel(3).digest,)), "parent"),
        (cases.evaluated(1, 1, measures=(1.0,)), "zip"),
    ],
)
def test_a_candidate_that_contradicts_the_archive_is_refused_and_nothing_changes(archive, candidate, message):
    archive.add(cases.evaluated(0, 0))
    with pytest.raises(ValueError, match=message):
        archive.add(candidate)
    assert archive.n_candidates == 1
    archive.add(cases.evaluated(1, 1))


def test_a_session_over_other_cases_is_refused(archive):
    archive.add(cases.evaluated(0, 0))
    session = cases.session(1)
    other = dataclasses.replace(session, cases=(dataclasses.replace(session.cases[0], sizes=(1, 2, 3, 1)),))
    with pytest.raises(ValueError, match="other cases"):
        archive.add_session(cases.kernel(0).digest, other)


def test_candidates_without_kernel_are_counted(archive):
    archive.add(cases.evaluated(0, 0))
    for index, outcome in enumerate((Outcome.NO_KERNEL, Outcome.EDIT_FAILED, Outcome.GENERATOR_FAILED), start=1):
        archive.add(cases.failed(index, outcome, parents=(cases.kernel(0).digest,)))
    assert archive.n_candidates == 4
    assert len(archive.elites()) == 1


# --- properties -------------------------------------------------------------------------------------------------------

kinds = st.tuples(
    st.sampled_from(
        ["passed", "passed", "passed", "built", "failed", "inconclusive", "duplicate", "none", "session", "withdrawal"]
    ),
    st.integers(0, 5),
    st.sampled_from(CELLS),
    st.sampled_from([0.5, 0.98, 1.0, 1.02, 2.0]),
)
sequences = st.lists(kinds, max_size=14)


def play(archive, steps):
    """Adds what the steps say to an archive; what came of each."""
    results = []
    known = []
    for number, (kind, pick, measures, speedup) in enumerate(steps):
        index = archive.n_candidates
        if kind == "session":
            if known:
                archive.add_session(known[pick % len(known)].digest, cases.session(1000 + number, speedup, purpose="retime"))
            continue
        if kind == "withdrawal":
            if known:
                archive.withdraw(known.pop(pick % len(known)).digest, FAILURE)
            continue
        if kind == "duplicate" and known:
            candidate = cases.duplicate(index, 500 + number, known[pick % len(known)])
        elif kind in ("none", "duplicate"):
            candidate = cases.failed(index)
        else:
            status = {"failed": Status.INCORRECT, "built": Status.BUILT}.get(kind, Status.PASSED)
            candidate = cases.evaluated(
                index, number, speedup=speedup, measures=measures, status=status, conclusive=kind != "inconclusive"
            )
            if status is Status.PASSED:
                known.append(candidate.kernel)
        results.append(archive.add(candidate))
    return results


def oracle(steps):
    """Cell to digest of its elite, by the definition: all sessions pooled, highest bound, smaller digest; never run last."""
    archive = MemoryArchive(cases.SCHEMA)
    sessions, cells, built = {}, {}, []
    add, add_session, withdraw = archive.add, archive.add_session, archive.withdraw

    def noted_add(candidate):
        if candidate.evaluation is not None and candidate.evaluation.session is not None:
            sessions[candidate.kernel.digest] = [candidate.evaluation.session]
            cells[candidate.kernel.digest] = cases.SCHEMA.cell(candidate.evaluation.verdict.measures)
        if candidate.evaluation is not None and candidate.evaluation.verdict.status is Status.BUILT:
            built.append(candidate.kernel.digest)
            cells[candidate.kernel.digest] = cases.SCHEMA.cell(candidate.evaluation.verdict.measures)
        return add(candidate)

    def noted_session(digest, session):
        sessions[digest].append(session)
        return add_session(digest, session)

    def noted_withdrawal(digest, verdict):
        del sessions[digest]
        return withdraw(digest, verdict)

    archive.add, archive.add_session, archive.withdraw = noted_add, noted_session, noted_withdrawal
    play(archive, steps)
    ranked = []
    for digest, timed in sessions.items():
        value = pooled_estimate(tuple(timed))
        if value is not None:
            ranked.append((-value.log_low, digest))
    holders = {}
    for _, digest in [*sorted(ranked), *((None, digest) for digest in sorted(built))]:
        holders.setdefault(cells[digest], digest)
    return holders


def state(archive):
    untimed = sorted((kernel.digest, n_sessions) for kernel, n_sessions in archive.untimed())
    return archive.elites(), archive.best(), untimed, archive.n_candidates, archive.grid.qd_score, archive.grid.coverage


@given(sequences)
@settings(max_examples=25, deadline=None)
def test_each_cell_is_held_by_its_member_with_the_highest_bound(steps):
    archive = MemoryArchive(cases.SCHEMA)
    play(archive, steps)
    holders = oracle(steps)
    assert {elite.cell: elite.kernel.digest for elite in archive.elites()} == holders
    if holders:
        assert archive.best() == min(archive.elites(), key=lambda elite: elite.rank)


@given(sequences)
@settings(max_examples=10, deadline=None)
def test_memory_store_rebuilt_store_and_replay_agree(steps):
    memory = MemoryArchive(cases.SCHEMA)
    expected = play(memory, steps)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "a.db") as store:
        run = start(store)
        results = play(run, steps)
        assert results == expected == list(run.results())
        assert state(run) == state(memory)
        again = store.open_run(run.name)
        assert state(again) == state(run)
        rewound = run.rewind()
        past = Past(run.n_candidates, run.history(), run.remeasurements())
        replayed = []
        for index in range(past.n_candidates + 1):
            for again in past.remeasured(index):
                file_remeasurement(rewound, again.digest, again.evaluation)
            if index < past.n_candidates:
                replayed.append(rewound.add(past.candidate(index)))
        assert replayed == expected
        assert state(rewound) == state(run)
        standings = "SELECT * FROM standings WHERE environment_id = 1 ORDER BY identity"
        kept = store.read(standings)
        store.rebuild()
        assert store.read(standings) == kept


@given(st.permutations(range(6)), st.permutations(range(4)))
@settings(max_examples=15, deadline=None)
def test_the_grid_does_not_depend_on_the_order_of_kernels_and_sessions(kernels, sessions):
    def fill(order, later):
        archive = MemoryArchive(cases.SCHEMA)
        for index, number in enumerate(order):
            candidate = cases.evaluated(index, number, speedup=1 + number % 3, measures=CELLS[number % 2])
            archive.add(candidate)
        for number in later:
            archive.add_session(cases.kernel(number % 3).digest, cases.session(50 + number, 1.5, purpose="retime"))
        return archive

    one, two = fill(range(6), range(4)), fill(kernels, sessions)
    assert {e.cell: (e.identity, e.estimate) for e in one.elites()} == {
        e.cell: (e.identity, e.estimate) for e in two.elites()
    }
    assert one.best().identity == two.best().identity
    assert one.grid.qd_score == two.grid.qd_score
