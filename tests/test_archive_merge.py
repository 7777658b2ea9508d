"""Merging archives: no row twice, in whatever order, as often as one likes; runs that grew go on, runs that forked do not."""

import functools
import importlib.util
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from archive import Store
from archive.keeping.checking import check
from archive.keeping.content import content_digest, run_digests
from archive.keeping.merging import check_resumable, merge
from evo_l2.errors import ConfigurationError, StorageError
from evo_l2.evaluation import Environment, Status
from evo_l2.past import file_remeasurement
from experiments.cli import main

ROOT = Path(__file__).parent.parent


def _load_cases():
    spec = importlib.util.spec_from_file_location("archive_cases", ROOT / "benchmarks" / "archive_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()
SOAK = bool(os.environ.get("EVO_L2_SOAK"))
ELSEWHERE = Environment("cpu", {"processor": "another", "harness": "1"}, {"host": "there"})
STANDINGS = (
    "SELECT p.key, e.key, t.identity, k.digest, t.cell, t.log_ratio, t.log_low, t.log_high, t.n_blocks, t.n_sessions"
    " FROM standings t JOIN problems p ON p.id = t.problem_id JOIN environments e ON e.id = t.environment_id"
    " JOIN kernels k ON k.id = t.kernel_id ORDER BY p.key, e.key, t.identity"
)


@functools.cache
def template():
    """The bytes of an empty archive, which take a while to make."""
    with tempfile.TemporaryDirectory() as folder:
        Store.open(Path(folder) / "a.db").close()
        return (Path(folder) / "a.db").read_bytes()


def opened(path):
    """An archive, made from the template when it is missing."""
    if not path.exists():
        path.write_bytes(template())
    return Store.open(path)


def start(store, name="run", environment=cases.ENVIRONMENT):
    return store.start_run(name, cases.PROBLEM, environment, "cpu", {}, 1)


def act(run, step):
    """One thing that a run may do, made from a number; what is no longer possible is passed over."""
    kind, number = step
    index = run.n_candidates
    digest, identity = cases.kernel(number).digest, f"identity-{number}"
    known = run.find(digest=digest, identity=identity)
    parents = tuple(elite.kernel.digest for elite in run.elites()[:1])
    if kind == "call":
        run.add(cases.failed(index, parents=parents, n_calls=2))
    elif kind == "seed":
        run.add_seed(cases.kernel(number))
    elif kind == "state":
        run.put_state("told", number)
    elif kind == "finish":
        run.finish({"stop": number})
    elif kind in ("session", "withdraw") and known is not None:
        try:
            if kind == "session":
                run.add_session(known, cases.session(number * 100 + index, purpose="retime"))
            else:
                run.withdraw(known, cases.verdict(number, status=Status.RUNTIME_ERROR))
        except KeyError:
            return
    elif kind == "add" and known is not None:
        run.add(cases.duplicate(index, number, cases.kernel(int(number)), parents=parents) if known == digest else
                cases.failed(index))  # fmt: skip
    elif kind == "add":
        status = Status.INCORRECT if number % 5 == 4 else Status.PASSED
        run.add(cases.evaluated(index, number, speedup=1 + number / 7, status=status, parents=parents, n_calls=number % 2,
                                measures=(256.0, float(3 ** (number % 4)), 0.0), conclusive=number % 7 != 3))  # fmt: skip


def merged(path, *sources):
    with opened(path) as into:
        for source in sources:
            with Store.open(source, create=False) as store:
                merge(into, [store])
        return content_digest(into), tuple(into.read(STANDINGS)), tuple(into.read("SELECT name, uid FROM runs ORDER BY uid"))


def sight(run):
    """All that a run sees, and what it sees again when its history is told to it from its start."""
    rewound = run.rewind()
    faces = [_face(run), _face(rewound)]
    again = sorted(run.remeasurements(), key=lambda one: one.after)
    for candidate, result in zip(run.history(), run.results(), strict=True):
        while again and again[0].after <= candidate.index:
            file_remeasurement(rewound, again[0].digest, again.pop(0).evaluation)
        assert rewound.add(candidate) == result
    for one in again:
        file_remeasurement(rewound, one.digest, one.evaluation)
    assert _face(rewound) == faces[0]
    return faces


def _face(run):
    known = [(run.find(digest=cases.kernel(n).digest), run.find(identity=f"identity-{n}")) for n in range(12)]
    untimed = sorted(kernel.digest for kernel, _ in run.untimed())
    return list(run.ranked()), run.elites(), run.best(), run.n_candidates, known, untimed


def assert_seen_as_at_home(path, *homes):
    """Every run sees in a file what it sees at home."""
    with Store.open(path, create=False) as store:
        names = dict(store.read("SELECT uid, name FROM runs"))
        for home in homes:
            with Store.open(home, create=False) as there:
                for uid, name in there.read("SELECT uid, name FROM runs WHERE merged IS NULL"):
                    assert sight(store.open_run(names[uid])) == sight(there.open_run(name))


def assert_clean(path):
    with Store.open(path, create=False) as store:
        assert [str(finding) for finding in check(store).findings] == []


KINDS = st.sampled_from(["add", "add", "add", "call", "seed", "session", "session", "withdraw", "state", "finish"])
STEPS = st.lists(st.tuples(KINDS, st.integers(0, 11)), max_size=8)


@(pytest.mark.slow if SOAK else lambda test: test)
@settings(
    max_examples=100 if SOAK else 2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    machines=st.lists(st.lists(st.tuples(st.booleans(), STEPS), min_size=1, max_size=2), min_size=2, max_size=3),
    growth=STEPS,
    order=st.randoms(use_true_random=False),
)
def test_any_split_merged_in_any_order_is_one_archive(machines, growth, order):
    """Archives of two or three machines, one of which grows between merges, in any order and more than once."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        paths = []
        for number, runs in enumerate(machines):
            paths.append(root / f"machine{number}.db")
            with opened(paths[-1]) as store:
                for elsewhere, steps in runs:
                    run = start(store, environment=ELSEWHERE if elsewhere else cases.ENVIRONMENT)
                    for step in steps:
                        act(run, step)
        before = root / "before.db"
        shutil.copy(paths[0], before)
        with Store.open(paths[0]) as store:
            run = store.open_run()
            for step in growth:
                act(run, step)
        expected = merged(root / "expected.db", *paths)
        assert_clean(root / "expected.db")
        several = [before, *paths, order.choice(paths)]
        order.shuffle(several)
        # Two halves are collected apart, one of them in a machine's own file, and then put together.
        home = paths[order.randrange(len(paths))]
        merged(home, *(path for path in several[:2] if path != home))
        merged(root / "half.db", *several[2:], *paths)
        found = merged(root / "half.db", home)
        assert found == expected
        assert_clean(root / "half.db")
        assert merged(root / "half.db", *several, root / "expected.db") == expected
        before_merge = {path: shutil.copy(path, root / f"kept.{path.name}") for path in paths}
        assert merged(home, root / "half.db") == expected
        assert_clean(home)
        assert_seen_as_at_home(root / "half.db", *before_merge.values())
        assert_seen_as_at_home(home, *before_merge.values())


@pytest.fixture
def two(tmp_path):
    """Archives of two machines, each with a run of the same name and a kernel in common."""
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for number, path in enumerate(paths):
        with opened(path) as store:
            run = start(store)
            run.add(cases.evaluated(0, 0, timed=cases.session(number), n_calls=1))
            run.add(cases.evaluated(1, 1 + number, speedup=2.0, parents=(cases.kernel(0).digest,)))
            # It begins where the first ended.
            later = start(store)
            later.add_session(cases.kernel(0).digest, cases.session(10 + number, purpose="retime"))
            later.add(cases.evaluated(0, 3 + number, parents=(cases.kernel(1 + number).digest,)))
            run.finish({"stop": "done"})
    return paths


def test_every_row_is_there_once_and_a_second_merge_changes_nothing(two, tmp_path):
    both = tmp_path / "both.db"
    first = merged(both, *two)
    with Store.open(both) as store:
        tables = ("runs", "candidates", "verdicts", "timing_sessions", "kernels", "standings", "model_calls", "texts")
        counts = {table: store.read(f"SELECT COUNT(*) FROM {table}")[0][0] for table in tables}
        assert counts == {
            "runs": 4, "candidates": 6, "verdicts": 6, "timing_sessions": 8, "kernels": 5, "standings": 5, "model_calls": 2,
            "texts": counts["texts"],
        }  # fmt: skip
        texts = store.read("SELECT COUNT(DISTINCT digest) FROM texts")[0][0]
        assert counts["texts"] == texts
        # The kernel in common stands by the sessions of both machines.
        assert store.read("SELECT n_sessions FROM standings WHERE identity = 'identity-0'") == [(4,)]
        for path in two:
            with Store.open(path) as source:
                nothing = merge(store, [source])
            assert (nothing.n_new_runs, nothing.n_grown_runs, nothing.n_candidates) == (0, 0, 0)
    assert merged(both, *two) == first
    assert_clean(both)


def test_runs_of_one_name_are_told_apart_and_the_oldest_keeps_it(two, tmp_path):
    for order in itertools.permutations(two):
        path = tmp_path / f"{order[0].stem}.first.db"
        merged(path, *order)
        with Store.open(path) as store:
            runs = store.read("SELECT name, home_name, uid FROM runs ORDER BY created, uid")
        assert [row[0] for row in runs] == [
            "run", "run-2", f"run-{runs[2][2][:6]}", f"run-2-{runs[3][2][:6]}",
        ]  # fmt: skip
        assert [row[1] for row in runs] == ["run", "run-2", "run", "run-2"]


def test_a_run_that_grew_is_continued(two, tmp_path):
    both = tmp_path / "both.db"
    merged(both, *two)
    with Store.open(two[0]) as store:
        run = store.open_run("run-2")
        run.add(cases.evaluated(1, 77, speedup=9.0))
        run.add_session(cases.kernel(77).digest, cases.session(5, purpose="final"))
        run.withdraw(cases.kernel(0).digest, cases.verdict(0, status=Status.RUNTIME_ERROR))
        run.finish({"stop": "later"})
        parts = run_digests(store)
    with Store.open(both) as into, Store.open(two[0]) as source:
        done = merge(into, [source])
        assert (done.n_new_runs, done.n_grown_runs, done.n_candidates, done.n_verdicts, done.n_sessions) == (0, 1, 1, 2, 2)
        assert into.read("SELECT COUNT(*) FROM standings WHERE identity = 'identity-0'") == [(0,)]
        assert parts.items() <= run_digests(into).items()
    assert_clean(both)


def test_a_run_that_went_on_in_two_files_is_refused_and_nothing_is_lost(two, tmp_path):
    copy = tmp_path / "copy.db"
    shutil.copy(two[0], copy)
    for number, path in enumerate((two[0], copy)):
        with Store.open(path) as store:
            store.open_run("run").add(cases.evaluated(2, 50 + number))
    with Store.open(two[0]) as into, Store.open(copy) as source:
        before = content_digest(into)
        with pytest.raises(StorageError, match="each time otherwise"):
            merge(into, [source])
        assert content_digest(into) == before
    assert_clean(two[0])


def test_copies_that_each_hold_what_the_other_lacks_are_refused(two, tmp_path):
    copy = tmp_path / "copy.db"
    shutil.copy(two[0], copy)
    with Store.open(two[0]) as store:
        store.open_run("run").add(cases.failed(2))
    with Store.open(copy) as store:
        store.open_run("run").add_session(cases.kernel(0).digest, cases.session(50, purpose="retime"))
    with Store.open(two[0]) as into, Store.open(copy) as source, pytest.raises(StorageError, match="the other lacks"):
        merge(into, [source])


def test_a_merged_run_goes_on_at_home_only(two, tmp_path):
    both = tmp_path / "both.db"
    merged(both, two[0])
    with Store.open(both) as store:
        with pytest.raises(StorageError, match="goes on at home only"):
            check_resumable(store, "run")
        fresh = start(store)
        check_resumable(store, fresh.name)
        assert fresh.name == "run-3"
        # It sees all that was merged.
        assert fresh.best().kernel == cases.kernel(1)
        fresh.add(cases.evaluated(0, 99, parents=(cases.kernel(3).digest,)))
    done = CliRunner().invoke(main, ["resume", str(both), "run"])
    assert done.exit_code == 1
    assert "goes on at home only" in done.stderr


def test_the_history_of_a_merged_run_is_that_of_its_home(two, tmp_path):
    both = tmp_path / "both.db"
    merged(both, two[1], two[0])
    with Store.open(both) as store, Store.open(two[0]) as home:
        uids = dict(store.read("SELECT uid, name FROM runs"))
        for name, uid in home.read("SELECT name, uid FROM runs"):
            there, here = home.open_run(name), store.open_run(uids[uid])
            assert tuple(here.history()) == tuple(there.history())
            assert list(here.remeasurements()) == list(there.remeasurements())
            assert list(here.results()) == list(there.results())
            assert here.seeds() == there.seeds()
    assert_seen_as_at_home(both, *two)
    shown = []
    with Store.open(both) as store:
        names = dict(store.read("SELECT uid, name FROM runs"))
    with Store.open(two[1]) as home:
        uid = home.read("SELECT uid FROM runs WHERE name = 'run-2'")[0][0]
    for path, name in ((two[1], "run-2"), (both, names[uid])):
        top = CliRunner().invoke(main, ["archive", "top", str(path), "--run", name, "--json"])
        assert top.exit_code == 0
        shown.append(top.output)
    assert shown[0] == shown[1].replace(names[uid], "run-2")
    assert cases.kernel(1).digest[:12] not in shown[0]
    assert cases.kernel(2).digest[:12] in shown[0]


def test_a_merged_run_takes_nothing_more(two, tmp_path):
    both = tmp_path / "both.db"
    before = merged(both, *two)
    with Store.open(both) as store:
        run = store.open_run("run")
        for write in (
            lambda: run.add(cases.evaluated(2, 60)),
            lambda: run.add_session(cases.kernel(0).digest, cases.session(3, purpose="retime")),
            lambda: run.withdraw(cases.kernel(0).digest, cases.verdict(0, status=Status.RUNTIME_ERROR)),
            lambda: run.add_seed(cases.kernel(60)),
            lambda: run.put_state("told", 1),
            lambda: run.finish({}),
        ):
            with pytest.raises(StorageError, match="goes on at home only"):
                write()
    assert merged(both) == before


def test_a_kernel_that_failed_here_stays_without_a_standing_when_its_run_grows(two, tmp_path):
    both = tmp_path / "both.db"
    merged(both, two[0])
    with Store.open(both) as store:
        start(store).withdraw(cases.kernel(0).digest, cases.verdict(0, status=Status.RUNTIME_ERROR))
    with Store.open(two[0]) as store:
        store.open_run("run-2").add(cases.evaluated(1, 70))
    merged(both, two[0])
    assert_clean(both)


def test_older_revisions_are_upgraded_first_and_copies_of_one_file_agree(tmp_path):
    for name in ("a.db", "b.db"):
        shutil.copy(ROOT / "tests" / "golden" / "archive_0001.db", tmp_path / name)
    both = tmp_path / "both.db"
    merged(both, tmp_path / "a.db", tmp_path / "b.db")
    assert (tmp_path / "a.db.0001.bak").exists()
    with Store.open(both) as store:
        assert [info.name for info in store.runs()] == ["golden"]
    assert_clean(both)


def test_bad_arguments_are_one_clear_line(two, tmp_path):
    with Store.open(two[0]) as into, Store.open(two[0]) as same, pytest.raises(ConfigurationError, match="into itself"):
        merge(into, [same])
    foreign = tmp_path / "notes.txt"
    foreign.write_text("no archive")
    for bad in (foreign, tmp_path / "none.db"):
        done = CliRunner().invoke(main, ["archive", "merge", str(two[0]), str(two[1]), str(bad)])
        assert done.exit_code == 1
        assert len(done.stderr.splitlines()) == 1
    done = CliRunner().invoke(main, ["archive", "merge", str(tmp_path / "new.db"), *map(str, two)])
    assert done.exit_code == 0, done.stderr
    assert "4 new runs" in done.output
