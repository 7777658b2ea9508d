"""Questions to an archive, and kernels out of it into files."""

import importlib.util
import json
import math
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from archive import Store, mining
from archive.export import export
from evo_l2.contracts import Outcome
from evo_l2.errors import ConfigurationError, StorageError
from evo_l2.evaluation import Status
from evo_l2.kernel import Kernel


def _load_cases():
    path = Path(__file__).parent.parent / "benchmarks" / "archive_cases.py"
    spec = importlib.util.spec_from_file_location("archive_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()
SEED, SECOND, CHILD, GRANDCHILD = (cases.kernel(i).digest for i in (0, 1, 2, 4))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two seeds, a child that gains, one that is wrong, a crossover that gains more, and some that are no kernels."""
    with Store.open(tmp_path_factory.mktemp("mining") / "a.db") as opened:
        run = opened.start_run("one", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        run.add(cases.evaluated(0, 0, speedup=1.0))
        run.add(cases.evaluated(1, 1, speedup=0.5, measures=(64.0, 0.0, 0.0)))
        run.add(cases.evaluated(2, 2, speedup=2.0, parents=(SEED,), operator="edit", n_calls=1))
        run.add(cases.evaluated(3, 3, status=Status.INCORRECT, parents=(SEED,), operator="edit", n_calls=2))
        run.add(cases.evaluated(4, 4, speedup=4.0, parents=(CHILD, SECOND), operator="crossover"))
        run.add(cases.evaluated(5, 5, speedup=1.0, parents=(CHILD,), operator="edit", conclusive=False))
        run.add(cases.duplicate(6, 60, cases.kernel(0), parents=(SEED,)))
        run.add(cases.failed(7, parents=(SEED,)))
        run.add(cases.failed(8, Outcome.GENERATOR_FAILED, parents=(SEED,)))
        run.add_session(GRANDCHILD, cases.session(100, 4.0, purpose="final"))
        yield opened


def test_stats_count_what_was_added(store):
    facts = mining.stats(store)
    assert facts.run.name == "one"
    assert facts.outcomes == {
        Outcome.EVALUATED: 6, Outcome.DUPLICATE: 1, Outcome.NO_KERNEL: 1, Outcome.GENERATOR_FAILED: 1
    }  # fmt: skip
    assert facts.statuses == {Status.PASSED: 4, Status.INCORRECT: 1, Status.INCONCLUSIVE: 1}
    assert [line.operator for line in facts.operators] == ["seed", "edit", "crossover", "parametric", "rewrite"]
    edit = facts.operators[1]
    assert (edit.n_candidates, edit.n_evaluated, edit.n_passed, edit.validity) == (3, 3, 2, 2 / 3)
    assert (edit.n_new_cells, edit.n_improved_cells, edit.n_records) == (0, 1, 1)
    assert edit.seconds == pytest.approx(2.7)
    rewrite = facts.operators[4]
    assert (rewrite.n_without_kernel, rewrite.n_outages, rewrite.validity) == (1, 1, None)
    assert facts.operators[3].n_duplicates == 1
    assert (facts.n_elites, facts.coverage) == (2, 2 / cases.SCHEMA.n_cells)
    assert facts.best.kernel == cases.kernel(4)
    assert facts.qd_score == pytest.approx(sum(e.estimate.speedup for e in store.open_run().elites()))


def test_gains_of_the_operators_add_up_to_the_gain_over_the_best_seed(store):
    points = mining.curve(store)
    gains = {line.operator: line.gain for line in mining.stats(store).operators}
    assert gains["seed"] == 0
    assert gains["edit"] == pytest.approx(points[2].log_low - points[0].log_low)
    assert sum(gains.values()) == pytest.approx(points[-1].best_log_low - max(points[0].log_low, points[1].log_low))


def test_the_curve_never_falls_and_follows_the_records(store):
    points = mining.curve(store, "one")
    best = [point.best_log_low for point in points]
    assert best == sorted(best)
    assert best == [points[i].log_low for i in (0, 0, 2, 2, 4, 4, 4, 4, 4)]
    assert points[3].log_low is None
    assert points[-1].best_speedup == math.exp(best[-1])


def test_the_ledger_adds_up_calls_by_generator_and_operator(store):
    lines = {line.operator: line for line in mining.ledger(store)}
    assert set(lines) == {"edit", "rewrite"}
    edit = lines["edit"]
    assert (edit.generator, edit.n_calls, edit.n_errors, edit.n_retries) == ("recorded", 3, 0, 3)
    assert (edit.n_prompt_tokens, edit.n_reply_tokens) == (3600, 2700)
    assert (edit.cost_usd, edit.latency_s) == (pytest.approx(0.006), pytest.approx(4.5))
    assert mining.ledger(store, all_runs=True) == mining.ledger(store, "one")


def test_top_lists_the_best_first_whether_or_not_they_hold_their_cells(store):
    assert [elite.kernel for elite in mining.top(store, count=3)] == [cases.kernel(i) for i in (4, 2, 0)]


def test_lineage_walks_up_to_the_seeds_and_names_each_ancestor_once(store):
    line = mining.lineage(store, GRANDCHILD)
    assert [(a.digest, a.depth, a.operator) for a in line] == [
        (GRANDCHILD, 0, "crossover"), (CHILD, 1, "edit"), (SECOND, 1, "seed"), (SEED, 2, "seed")
    ]  # fmt: skip
    assert line[0].parents == (CHILD, SECOND)
    assert line[3].estimate is not None


def test_show_tells_all_of_a_kernel_that_passed(store):
    facts = mining.show(store, GRANDCHILD[:10])
    assert (facts.kernel, facts.digest) == (cases.kernel(4), GRANDCHILD)
    (judgement,) = facts.judgements
    assert judgement.status is Status.PASSED
    assert judgement.environment_key == cases.ENVIRONMENT.key
    assert judgement.estimate == store.open_run().get(GRANDCHILD).estimate
    assert judgement.n_sessions == 2
    assert judgement.cell == "simd_bits=256-bit, n_fma=1-7, workspace_bytes=none"
    assert judgement.resources["simd_bits"] == 256


def test_show_tells_why_a_kernel_failed(store):
    (judgement,) = mining.show(store, cases.kernel(3).digest).judgements
    assert (judgement.status, judgement.gate, judgement.message) == (Status.INCORRECT, "exact-integers", "C[3] differs")
    assert (judgement.estimate, judgement.cell) == (None, None)


def test_a_prefix_that_names_no_kernel_or_several_is_refused(store):
    first = Counter(cases.kernel(i).digest[0] for i in (*range(6), 60))
    several = next(digit for digit, n in first.items() if n > 1)
    none = next(digit for digit in "0123456789abcdef" if digit not in first)
    for prefix, found in ((several, "several start"), (none, "none starts"), ("", "''"), ("%", "%")):
        with pytest.raises(ConfigurationError, match=found):
            mining.resolve(store, prefix)


def test_a_run_that_is_not_there_is_named_with_those_that_are(store):
    with pytest.raises(StorageError, match="expected one of one, found two"):
        mining.stats(store, "two")


def test_views_can_be_read_without_this_project(store):
    connection = sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)
    elites = connection.execute("SELECT cell, digest, speedup, source FROM v_elites ORDER BY cell").fetchall()
    expected = store.open_run().elites()
    assert [(json.loads(cell), digest, source) for cell, digest, _, source in elites] == [
        (list(e.cell), e.kernel.digest, e.kernel.source) for e in expected
    ]
    assert [speedup for _, _, speedup, _ in elites] == [e.estimate.speedup for e in expected]
    assert connection.execute("SELECT digest FROM v_best").fetchall() == [(GRANDCHILD,)]
    rows = connection.execute("SELECT idx, status FROM v_candidates WHERE run = 'one' AND status = 'incorrect'").fetchall()
    assert rows == [(3, "incorrect")]
    connection.close()


def test_export_writes_elites_with_all_facts(store, tmp_path):
    written = export(store, tmp_path / "new" / "folder")
    rows = [json.loads(line) for line in written.table.read_text().splitlines()]
    assert written.n_kernels == len(rows) == 2
    assert sorted(path.name for path in written.directory.iterdir()) == sorted(["kernels.jsonl", *(r["file"] for r in rows)])
    for row, number in zip(rows, (4, 1), strict=True):
        data = (written.directory / row["file"]).read_bytes()
        assert Kernel.from_bytes(data, row["target"]).digest == row["digest"] == cases.kernel(number).digest
    best = store.open_run().best()
    assert rows[0]["speedup"] == best.estimate.speedup
    assert (rows[0]["speedup_low"], rows[0]["speedup_high"]) == best.estimate.interval
    assert [s["purpose"] for s in rows[0]["sessions"]] == ["search", "final"]
    assert rows[0]["sessions"][0]["cases"][0]["kernel_us"] == list(best.sessions[0].cases[0].kernel_us)
    assert [a["digest"] for a in rows[0]["lineage"]] == [GRANDCHILD, CHILD, SECOND, SEED]
    assert rows[0]["measures"] == {"simd_bits": 256.0, "n_fma": 4.0, "workspace_bytes": 0.0}


def test_export_of_the_best_few_is_not_bound_to_cells(store, tmp_path):
    written = export(store, tmp_path, count=3)
    rows = [json.loads(line) for line in written.table.read_text().splitlines()]
    assert [row["digest"] for row in rows] == [GRANDCHILD, CHILD, SEED]


def test_export_does_not_mix_with_other_files(store, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(StorageError, match="not empty"):
        export(store, tmp_path)
    with pytest.raises(StorageError, match="cannot be filled"):
        export(store, tmp_path / "mine.txt" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
