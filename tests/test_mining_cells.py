"""MAP-Elites read from the rows: cells, other boundaries, regimes, fronts; and what pyribs says of the same additions."""

import importlib.util
import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive import Store, mining
from archive.grid import Entry, Grid
from evo_l2.contracts import AddStatus
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import BuildReport, Environment, Estimate, Evaluation, Status, TimingSession, Verdict
from evo_l2.measures import Axis, MeasuresSchema
from evo_l2.problems.hgemm import Hgemm


def _load_cases():
    path = Path(__file__).parent.parent / "benchmarks" / "archive_cases.py"
    spec = importlib.util.spec_from_file_location("archive_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()
SEED = cases.kernel(0).digest


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """An archive without rows, to be copied: making one takes longer than most of these tests."""
    path = tmp_path_factory.mktemp("empty") / "a.db"
    Store.open(path).close()
    return path


@pytest.fixture
def store(empty, tmp_path):
    with Store.open(shutil.copy(empty, tmp_path / "a.db")) as opened:
        yield opened


def start(store, name="run", problem=cases.PROBLEM, environment=cases.ENVIRONMENT):
    return store.start_run(name, problem, environment, environment.target, {}, 1)


def as_entries(grid):
    return {cell: (e.digest, e.estimate) for cell, e in grid.elites.items()}


MEASURES = st.tuples(
    st.sampled_from((64.0, 128.0, 256.0, 512.0, None)),
    st.sampled_from((0.0, 4.0, 8.0, 30.0, 64.0)),
    st.sampled_from((0.0, 1024.0, 40_000.0)),
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kernels=st.lists(st.tuples(MEASURES, st.sampled_from((0.5, 1.0, 2.0)), st.booleans()), min_size=1, max_size=8))
def test_cells_are_those_of_the_run_whatever_was_added(kernels, empty, tmp_path_factory):
    with Store.open(shutil.copy(empty, tmp_path_factory.mktemp("cells") / "a.db")) as store:
        run = start(store)
        for i, (measures, speedup, conclusive) in enumerate(kernels):
            run.add(cases.evaluated(i, i, speedup=speedup, measures=measures, conclusive=conclusive))
        found = mining.cells(store)
        assert {cell: (e.digest, e.estimate) for cell, e in found.elites.items()} == as_entries(run.grid)
        assert (found.coverage, found.qd_score) == (run.grid.coverage, run.grid.qd_score)
        assert found.best == run.grid.best()
        assert found.n_kernels == sum(conclusive for *_, conclusive in kernels)


def test_other_boundaries_part_what_shared_a_cell(store):
    run = start(store)
    run.add(cases.evaluated(0, 0, measures=(256.0, 4.0, 0.0)))
    run.add(cases.evaluated(1, 1, measures=(256.0, 6.0, 0.0), speedup=2.0))
    assert len(mining.cells(store).elites) == 1
    simd, _, workspace = cases.SCHEMA.axes
    finer = MeasuresSchema((simd, Axis("n_fma", (5,), ("few", "many")), workspace))
    assert [e.digest for e in mining.rebin(store, finer).elites.values()] == [cases.kernel(0).digest, cases.kernel(1).digest]
    assert len(mining.cells(store).elites) == 1


def test_a_new_axis_takes_its_values_from_the_build_and_a_word_its_place_among_the_labels(store):
    run = start(store)
    for i, word in enumerate(("cp.async", "tma", "else")):
        build = BuildReport(0.1, "", f"code-{i}", {"kind": word, "registers": 32 * i})
        candidate = cases.evaluated(i, i)
        verdict = Verdict(Status.PASSED, build=build, measures=(256.0, 4.0, 0.0))
        object.__setattr__(candidate, "evaluation", Evaluation(verdict, candidate.evaluation.session, 0.1))
        run.add(candidate)
    axes = (
        Axis("kind", (1,), ("tma", "cp.async")),
        Axis("registers", (40,), ("<40", "40+")),
        Axis("absent", (1,), ("a", "b")),
    )
    found = mining.rebin(store, MeasuresSchema(axes))
    assert {cell: e.digest for cell, e in found.elites.items()} == {
        (1, 0, 2): cases.kernel(0).digest,
        (0, 0, 2): cases.kernel(1).digest,
        (2, 1, 2): cases.kernel(2).digest,
    }


def test_built_kernels_have_cells_and_a_withdrawn_kernel_has_none(store):
    run = start(store)
    for i in range(2):
        candidate = cases.evaluated(i, i)
        verdict = cases.verdict(i, status=Status.BUILT)
        object.__setattr__(candidate, "evaluation", Evaluation(verdict, None, 0.1))
        run.add(candidate)
    run.add(cases.evaluated(2, 2, measures=(64.0, 0.0, 0.0)))
    run.withdraw(cases.kernel(2).digest, cases.verdict(2, status=Status.INCORRECT))
    found = mining.cells(store)
    assert found.n_kernels == 2
    assert not found.is_timed
    assert [e.digest for e in found.elites.values()] == [min(cases.kernel(i).digest for i in range(2))]
    assert mining.show(store, cases.kernel(0).digest).judgements[0].cell == cases.SCHEMA.describe((2, 1, 0))


def test_the_projection_keeps_the_best_of_what_falls_together(store):
    run = start(store)
    run.add(cases.evaluated(0, 0, measures=(256.0, 4.0, 0.0), speedup=1.0))
    run.add(cases.evaluated(1, 1, measures=(256.0, 4.0, 1024.0), speedup=3.0))
    found = mining.cells(store)
    assert [e.digest for e in found.projected(0, 1).values()] == [cases.kernel(1).digest]
    assert len(found.projected(1, 2)) == 2
    with pytest.raises(ConfigurationError, match="no such axis"):
        found.axis("nonsense")


# --- pyribs -----------------------------------------------------------------------------------------------------------

UNIFORM = MeasuresSchema(
    (Axis("a", (1, 2, 3), ("0", "1", "2", "3")), Axis("b", (2, 4, 6, 8, 10, 12, 14), tuple("01234567"))),
)
ADDITIONS = st.lists(
    st.tuples(
        st.sampled_from([x / 4 for x in range(-4, 24)]),
        st.sampled_from([x / 2 for x in range(-4, 40)]),
        st.sampled_from([x / 8 for x in range(-16, 17)]),
    ),
    max_size=40,
)


@pytest.mark.ribs
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(additions=ADDITIONS)
def test_without_noise_the_grid_is_that_of_pyribs(additions):
    archives = pytest.importorskip("ribs.archives", reason="pip install 'evo-l2[dev]'")
    logs, speedups = (
        archives.GridArchive(solution_dim=1, dims=(4, 8), ranges=((0, 4), (0, 16)), qd_score_offset=0.0) for _ in range(2)
    )
    ours = Grid(UNIFORM)
    for i, (a, b, log) in enumerate(additions):
        # Digests in order of addition: a tie keeps the incumbent, here as there.
        entry = Entry(f"{i:064d}", f"identity-{i}", UNIFORM.cell((a, b)), Estimate(log, log, log, 6))
        result = ours.preview(entry)
        ours.put(entry)
        theirs = logs.add_single([i], log, [a, b])
        speedups.add_single([i], math.exp(log), [a, b])
        assert {0: AddStatus.NOT_ADDED, 1: AddStatus.IMPROVED, 2: AddStatus.NEW}[int(theirs["status"])] is result.status
        assert result.value == pytest.approx(float(theirs["value"]))
    assert len(ours.elites) == len(logs)
    found = {tuple(logs.int_to_grid_index([e["index"]])[0]): int(e["solution"][0]) for e in logs}
    assert {cell: int(entry.digest) for cell, entry in ours.elites.items()} == found
    assert ours.qd_score == pytest.approx(float(speedups.stats.qd_score))
    # Their share is of the cells for known values; ours counts those for unknown ones too.
    assert ours.coverage * UNIFORM.n_cells == pytest.approx(float(logs.stats.coverage) * 32)
    best = ours.best()
    assert (best is None) == (logs.best_elite is None)
    if best is not None:
        assert best.estimate.log_low == pytest.approx(float(logs.best_elite["objective"]))


# --- regimes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((256, 256, 256, 1), "small square"),
        ((4096, 4096, 4096, 1), "large square"),
        ((1024, 1024, 1024, 1), "medium square"),
        ((64, 64, 256, 1), "small deep"),
        ((64, 64, 255, 1), "small square"),
        ((256, 256, 64, 1), "small flat"),
        ((64, 512, 128, 1), "small skinny"),
        ((256, 256, 256, 16), "medium square batched"),
        ((64,), "any"),
        ((64, 64, 0, 1), "any"),
    ],
)
def test_a_shape_has_one_regime(sizes, expected):
    assert mining.regime(sizes) == expected


def test_a_kernel_stands_in_each_regime_with_its_times_there(store):
    shapes = ((64, 64, 64, 1), (64, 64, 512, 1))
    problem = Hgemm(shapes)
    run = start(store, problem=problem)
    for i, (square, deep) in enumerate(((2.0, 0.5), (1.0, 3.0))):
        sessions = [cases.session(10 * i + j, speedup) for j, speedup in enumerate((square, deep))]
        timed = TimingSession(
            tuple(type(s.cases[0])(sizes, s.cases[0].kernel_us, s.cases[0].baseline_us, s.cases[0].kept)
                  for sizes, s in zip(shapes, sessions, strict=True))
        )  # fmt: skip
        run.add(cases.evaluated(i, i, timed=timed))
    found = {elite.regime: elite for elite in mining.elites(store)}
    assert sorted(found) == ["small deep", "small square"]
    assert found["small square"].digest == cases.kernel(0).digest
    assert found["small deep"].digest == cases.kernel(1).digest
    assert found["small deep"].estimate.speedup == pytest.approx(3.0, rel=0.1)
    assert found["small deep"].n_kernels == 2


def test_kernels_of_two_shapes_of_one_regime_compete_and_environments_do_not(store):
    other = Environment("cpu", {"processor": "two"}, {})
    start(store, "a").add(cases.evaluated(0, 0, speedup=1.0))
    start(store, "b", Hgemm(((96, 96, 96, 1),))).add(cases.evaluated(0, 1, speedup=2.0))
    start(store, "c", environment=other).add(cases.evaluated(0, 2, speedup=0.5))
    found = {elite.environment_key: elite for elite in mining.elites(store)}
    assert {key: elite.digest for key, elite in found.items()} == {
        cases.ENVIRONMENT.key: cases.kernel(1).digest,
        other.key: cases.kernel(2).digest,
    }
    assert [facts.runs for facts in mining.environments(store)] == [("a", "b"), ("c",)]
    assert mining.last_run(store, cases.ENVIRONMENT.key[:6]) == "b"
    with pytest.raises(ConfigurationError, match="no such environment"):
        mining.last_run(store, "zz")


# --- fronts -----------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(vectors=st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=25))
def test_the_front_is_what_no_other_beats(vectors):
    kept = mining.pareto_front(vectors)

    def beats(a, b):
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    expected = {v for v in vectors if not any(beats(w, v) for w in vectors)}
    assert {vectors[i] for i in kept} == expected
    assert len(kept) == len(expected)
    assert all(vectors.index(vectors[i]) == i for i in kept)


def test_the_front_weighs_speed_resources_and_error_where_it_is_known(store):
    run = start(store)
    for i, (speedup, stack) in enumerate(((1.0, 0), (2.0, 64), (1.5, 128), (4.0, None))):
        resources = {} if stack is None else {"stack_bytes": stack}
        candidate = cases.evaluated(i, i, speedup=speedup)
        verdict = Verdict(Status.PASSED, build=BuildReport(0.1, "", f"code-{i}", resources), measures=(256.0, 4.0, 0.0))
        object.__setattr__(candidate, "evaluation", Evaluation(verdict, candidate.evaluation.session, 0.1))
        run.add(candidate)
    digests = [cases.kernel(i).digest for i in range(4)]
    front = mining.pareto(store)
    assert front.axes == ("stack_bytes",)
    assert [(p.member.digest, p.costs) for p in front.points] == [
        (digests[3], (None,)),
        (digests[1], (64,)),
        (digests[0], (0,)),
    ]
    errors = {digests[2]: 1e-4, digests[1]: 1e-3, digests[0]: 1e-3, digests[3]: 1e-3}
    with_error = mining.pareto(store, errors=errors)
    assert with_error.axes == ("stack_bytes", "error")
    assert digests[2] in {point.member.digest for point in with_error.points}
    with pytest.raises(ConfigurationError, match=r"no such resource.*stack_bytes.*found nonsense"):
        mining.pareto(store, resources=["nonsense"])


def test_shared_memory_is_the_sum_of_its_parts(store):
    run = start(store)
    candidate = cases.evaluated(0, 0)
    build = BuildReport(0.1, "", "code", {"static_shared_bytes": 10, "dynamic_shared_bytes": 32})
    object.__setattr__(
        candidate,
        "evaluation",
        Evaluation(Verdict(Status.PASSED, build=build, measures=(256.0, 4.0, 0.0)), candidate.evaluation.session, 0.1),
    )
    run.add(candidate)
    assert mining.pareto(store, resources=["shared_bytes"]).points[0].costs == (42,)


def test_cells_of_the_flat_table_are_the_regimes_elites(store):
    start(store).add(cases.evaluated(0, 0))
    (row,) = mining.table(store, "cells").rows()
    assert (row["digest"], json.loads(row["cell"]), row["regime"]) == (SEED, [2, 1, 0], "small square")
    assert list(itertools.islice(mining.table(store, "cells", "run").rows(), 2)) == [row]
