"""A view that looks up its archive row by row equals one that reads everything, whatever runs do beside each other."""

import importlib
import importlib.util
import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from archive import Store
from archive.background import stored_view
from archive.standings import DERIVED, computed_revisits
from archive.tallies import computed_tallies, stored_tallies
from evo_l2.evaluation import Status
from evo_l2.measures import Axis, MeasuresSchema


def _load_cases():
    path = Path(__file__).parent.parent / "benchmarks" / "archive_cases.py"
    spec = importlib.util.spec_from_file_location("archive_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()
CELLS = ((64.0, 0.0, 0.0), (256.0, 4.0, 0.0))


def start(store, name="run", problem=None):
    return store.start_run(name, problem or cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)


def state(view):
    """All that a view answers, in an order of its own."""
    untimed = [(kernel.digest, n) for kernel, n in view.untimed()]
    return view.elites(), view.best(), untimed, view.n_candidates, view.grid.qd_score, list(view.ranked()), len(view.grid)


def whole(run, *, own=True):
    return stored_view(run._database, run._scope, run.schema, own=own, whole=True)


def derived(store):
    """The tables that follow from others; ids of revisits are an order of arrival, not content."""
    columns = {"revisits": "problem_id, environment_id, identity"}
    return {table: sorted(store.read(f"SELECT {columns.get(table, '*')} FROM {table}"), key=repr) for table in DERIVED}


def check(store, runs):
    """Every open run, the same opened anew, and rewound, against a view that read everything; and all derived tables."""
    for run in runs:
        assert state(run) == state(store.open_run(run.name)) == state(whole(run))
        assert state(run.rewind()) == state(whole(run, own=False))
        assert stored_tallies(store._database, run._scope.run_id) == computed_tallies(store._database, run._scope.run_id)
    kept = derived(store)
    for problem, environment in store.read("SELECT DISTINCT problem_id, environment_id FROM runs"):
        stored = {row[0] for row in store.read("SELECT identity FROM revisits")}
        assert stored == computed_revisits(store._database, problem, environment)
    store.rebuild()
    assert derived(store) == kept


steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(
            ["passed"] * 4
            + ["built", "failed", "inconclusive", "duplicate", "session", "session", "withdrawal", "start", "reopen"]
        ),
        st.integers(0, 3),
        st.sampled_from(CELLS),
        st.sampled_from([0.5, 1.0, 2.0]),
    ),
    max_size=24,
)


def play(store, plan):
    """Several runs in one file, a few kernels among them all; what a run refuses is left out. The runs."""
    runs = [start(store)]
    for number, (which, kind, pick, measures, speedup) in enumerate(plan):
        at = which % len(runs)
        run = runs[at]
        if kind == "start":
            if len(runs) < 3:
                runs.append(start(store))
            continue
        if kind == "reopen":
            runs[at] = store.open_run(run.name)
            continue
        index, digest = run.n_candidates, cases.kernel(pick).digest
        try:
            if kind == "session":
                run.add_session(digest, cases.session(1000 + number, speedup, n_blocks=20, purpose="retime"))
            elif kind == "withdrawal":
                run.withdraw(digest, cases.verdict(pick, status=Status.INCORRECT))
            elif kind == "duplicate":
                run.add(cases.duplicate(index, 500 + number, cases.kernel(pick)))
            else:
                status = {"failed": Status.INCORRECT, "built": Status.BUILT}.get(kind, Status.PASSED)
                # Two sources share an identity, as only runs that are blind to each other can bring them.
                candidate = cases.evaluated(
                    index, pick, speedup=speedup, measures=measures, status=status, conclusive=kind != "inconclusive",
                    identity=f"identity-{pick // 2}", timed=cases.session(number, speedup, conclusive=kind != "inconclusive"),
                    operator=("seed", "edit", "tune")[number % 3],
                )  # fmt: skip
                run.add(candidate)
        except (KeyError, ValueError):
            continue
    return runs


@given(steps)
@settings(max_examples=300 if os.environ.get("EVO_L2_SOAK") else 15, deadline=None)
def test_runs_beside_each_other_see_what_they_should_and_derived_tables_are_what_rebuilding_gives(plan):
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "a.db") as store:
        check(store, play(store, plan))


def test_an_elite_that_falls_gives_its_cell_to_the_next_best_that_the_run_may_see(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        first = start(store)
        for number, speedup in enumerate((3.0, 2.0, 1.5)):
            first.add(cases.evaluated(number, number, speedup=speedup))
        run = start(store)
        first.add(cases.evaluated(3, 3, speedup=2.5))
        first.add_session(cases.kernel(1).digest, cases.session(5, 0.5, n_blocks=90))
        run.withdraw(cases.kernel(0).digest, cases.verdict(0, status=Status.INCORRECT))
        assert run.best().kernel == cases.kernel(1)
        assert len(run.best().sessions) == 1
        check(store, [first, run])


def test_what_another_run_does_to_a_kernel_changes_no_answer_of_a_run_that_is_open(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        first = start(store)
        for number in range(3):
            first.add(cases.evaluated(number, number, conclusive=number > 0))
        run, asked = start(store), start(store)
        expected = state(asked)
        first.withdraw(cases.kernel(1).digest, cases.verdict(1, status=Status.INCORRECT))
        first.add_session(cases.kernel(2).digest, cases.session(5, 9.0, n_blocks=90))
        first.add_session(cases.kernel(0).digest, cases.session(6))
        assert run.untimed() == ((cases.kernel(0), 1),)
        assert [elite.kernel for elite in run.ranked()] == [elite.kernel for elite in expected[5]]
        assert state(run) == state(asked) == expected
        check(store, [first, run, asked])


def test_a_kernel_that_several_rows_spoke_of_already_stays_as_an_open_run_saw_it(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        first = start(store)
        first.add(cases.evaluated(0, 0, speedup=5.0))
        first.add(cases.evaluated(1, 1, speedup=1.0))
        first.add_session(cases.kernel(1).digest, cases.session(5))
        run, other = start(store), start(store)
        other.add_session(cases.kernel(1).digest, cases.session(6, 3.0))
        assert [elite.estimate.n_blocks for elite in run.ranked()] == [6, 12]
        assert list(run.ranked()) == list(store.open_run(run.name).ranked())


def test_a_run_goes_on_by_its_own_axes_when_another_brings_new_ones(tmp_path):
    class Coarser:
        def __getattr__(self, name):
            return getattr(cases.PROBLEM, name)

        def measures(self, target):
            return MeasuresSchema(tuple(Axis(a.name, a.boundaries[:1], ("low", "high")) for a in cases.SCHEMA.axes))

    with Store.open(tmp_path / "a.db") as store:
        run = start(store)
        for number, speedup in enumerate((3.0, 2.0)):
            run.add(cases.evaluated(number, number, speedup=speedup))
        again = store.open_run()
        start(store, problem=Coarser())
        for handle in (run, again):
            assert [elite.kernel for elite in handle.ranked()] == [cases.kernel(0), cases.kernel(1)]
        again.withdraw(cases.kernel(0).digest, cases.verdict(0, status=Status.INCORRECT))
        assert [elite.cell for elite in again.elites()] == [(2, 1, 0)]
        assert again.best().kernel == cases.kernel(1)


def test_the_benchmark_fills_an_archive_with_the_rows_that_adding_writes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(cases.__file__).parent))
    filler = importlib.import_module("archive_filler")

    def rows(store):
        found = {}
        for (table,) in store.read("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"):
            names = [row[1] for row in store.read(f"PRAGMA table_info({table})") if row[1] not in ("created", "uid")]
            found[table] = sorted(store.read(f"SELECT {', '.join(names)} FROM {table}"), key=repr)
        return found

    with Store.open(tmp_path / "real.db") as real, Store.open(tmp_path / "bulk.db") as bulk:
        run = start(real)
        for index in range(300):
            run.add(filler.candidate(index, index % 2))
        filler.candidate, made = lambda index, n_calls, offset=0: made(index, index % 2, offset), filler.candidate
        again = filler.fill(bulk, start(bulk), 300)
        assert rows(bulk) == rows(real)
        assert state(again) == state(run)
