"""`fsck`: a sound archive is clean, and every kind of damage is named by its row."""

import contextlib
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from archive import Store
from archive.keeping.checking import check
from archive.keeping.collecting import REFERENCES
from archive.keeping.content import content_digest
from archive.standings import DERIVED
from evo_l2.errors import StorageError
from evo_l2.evaluation import Status, TimingSession
from evo_l2.timing import pooled_estimate, single_estimates
from experiments.cli import main

SOAK = bool(os.environ.get("EVO_L2_SOAK"))
ROOT = Path(__file__).parent.parent


def _load_cases():
    spec = importlib.util.spec_from_file_location("archive_cases", ROOT / "benchmarks" / "archive_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()


def fill(store, name="run", offset=0):
    """A run with a candidate of every kind, later sessions and a withdrawal."""
    run = store.start_run(name, cases.PROBLEM, cases.ENVIRONMENT, "cpu", {"a": [1]}, 7)
    first = cases.kernel(offset).digest
    run.add_seed(cases.kernel(offset))
    run.put_state("reserved", {"usd": 0.5})
    run.add(cases.evaluated(0, offset, n_calls=2))
    run.add_session(first, cases.session(offset + 50, purpose="retime"))
    for candidate in (
        cases.evaluated(1, offset + 1, speedup=1.5, parents=(first,), operator="edit", n_calls=1),
        cases.evaluated(2, offset + 2, status=Status.REJECTED, parents=(first,)),
        cases.evaluated(3, offset + 3, status=Status.CHEATING, parents=(first, first)),
        cases.evaluated(4, offset + 4, conclusive=False, measures=(None, 30.0, 1.0)),
        cases.failed(5, parents=(first,)),
        cases.duplicate(6, offset + 60, cases.kernel(offset), identity=f"identity-{offset}", parents=(first,)),
        cases.evaluated(7, offset + 7, speedup=3.0),
    ):
        run.add(candidate)
    run.withdraw(cases.kernel(offset + 7).digest, cases.verdict(offset + 7, status=Status.RUNTIME_ERROR))
    run.add_session(cases.kernel(offset + 4).digest, cases.session(offset + 4, purpose="retime"))
    run.add(cases.evaluated(8, offset + 8, speedup=1.2))
    run.finish({"stop": "done"})
    return run


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """An archive with something of every kind."""
    path = tmp_path_factory.mktemp("sound") / "a.db"
    with Store.open(path) as store:
        fill(store)
        fill(store, offset=100)
        beside = store.start_run("beside", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        other = store.start_run("other", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        # Two runs that are blind to each other: they agree about one kernel and contradict each other about another.
        beside.add(cases.evaluated(0, 201))
        other.add(cases.evaluated(0, 201, timed=cases.session(999)))
        beside.add(cases.evaluated(1, 202))
        other.add(cases.evaluated(1, 202, status=Status.INCORRECT))
        other.add(cases.evaluated(2, 203, status=Status.BUILT))
    return path


@pytest.fixture
def path(tmp_path, sound):
    """A copy of it."""
    return Path(shutil.copy(sound, tmp_path))


def damage(path, *statements):
    """Changes rows behind the archive's back, its triggers put aside meanwhile."""
    with Store.open(path, create=False) as store:
        triggers = store.read("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        store.read("PRAGMA foreign_keys=OFF")
        for name, _ in triggers:
            store.read(f"DROP TRIGGER {name}")
        for statement in statements:
            store.read(statement)
        for _, sql in triggers:
            store.read(sql)


def findings(path, **options):
    with Store.open(path, create=False) as store:
        return check(store, **options)


def test_a_sound_archive_is_clean(path):
    report = findings(path)
    assert [str(finding) for finding in report.findings] == []
    assert report.clean
    assert report.notes == ()


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004"])
def test_golden_archives_are_clean(tmp_path, revision):
    copy = tmp_path / "a.db"
    copy.write_bytes((ROOT / "tests" / "golden" / f"archive_{revision}.db").read_bytes())
    assert findings(copy).findings == ()


def test_an_empty_archive_is_clean(tmp_path):
    Store.open(tmp_path / "a.db").close()
    assert findings(tmp_path / "a.db").findings == ()


DAMAGE = [
    ("UPDATE kernels SET source = source || ' ' WHERE id = 3", r"kernels: kernel 3: its source has digest"),
    ("UPDATE texts SET content = x'00' WHERE id = 1", r"texts: text 1: cannot be unpacked"),
    ("UPDATE texts SET content = (SELECT content FROM texts WHERE id = 2) WHERE id = 1", r"text 1: .*another digest"),
    ("UPDATE texts SET n_characters = 3 WHERE id = 1", r"texts: text 1: expected 3 characters"),
    ("UPDATE runs SET config = '[1]' WHERE id = 1", r"provenance: run run: .*configuration"),
    ("UPDATE runs SET seed = 'x' WHERE id = 1", r"provenance: run run: "),
    ("UPDATE runs SET uid = NULL WHERE id = 1", r"provenance: run run: has no id"),
    ("UPDATE run_states SET value = '{'", r"provenance: state reserved of run run: "),
    ("UPDATE run_seeds SET position = 4 WHERE run_id = 1", r"provenance: run run: its seeds have gaps"),
    ("UPDATE environments SET identity = '{}'", r"provenance: environment \w+: its identity has key"),
    ("UPDATE measures_schemas SET axes = '[]'", r"provenance: axes \w+: its axes have version"),
    ("UPDATE problems SET definition = '3'", r"provenance: problem \w+: "),
    ("UPDATE verdicts SET status = 'fine' WHERE id = 1", r"candidates: verdict 1: .*fine"),
    ("UPDATE verdicts SET build = '{}' WHERE id = 1", r"candidates: verdict 1: "),
    ("UPDATE verdicts SET measures = '[\"x\"]' WHERE id = 1", r"candidates: verdict 1: "),
    ("UPDATE verdicts SET gate = 'odd' WHERE id = 1", r"candidates: verdict 1: "),
    ("UPDATE verdicts SET identity = NULL WHERE id = 1", r"candidates: verdict 1: .*identity"),
    ("DELETE FROM candidates WHERE run_id = 1 AND idx = 2", r"candidates: candidate 3 of run run: expected candidate 2"),
    ("UPDATE candidates SET outcome = 'no_kernel' WHERE id = 1", r"candidate 0 of run run: its outcome is no_kernel"),
    ("UPDATE candidates SET outcome = 'well' WHERE id = 1", r"candidate 0 of run run: .*well"),
    ("UPDATE candidates SET session_id = NULL WHERE id = 1", r"candidate 0 of run run: .*no session"),
    ("UPDATE candidates SET verdict_id = 2 WHERE id = 1", r"candidate 0 of run run: its verdict is of another kernel"),
    ("UPDATE candidates SET asked_after = 9 WHERE id = 1", r"candidate 0 of run run: it was asked for after 9"),
    ("UPDATE candidates SET seconds = '{\"a\": \"b\"}' WHERE id = 1", r"candidate 0 of run run: .*seconds"),
    ("UPDATE candidates SET add_value = 0.7 WHERE id = 2", r"results: candidate 1 of run run: its row says"),
    ("UPDATE candidates SET cell = '[9,9,9]' WHERE id = 2", r"results: candidate 1 of run run: its row says"),
    ("UPDATE candidates SET add_status = 'not_added' WHERE id = 1", r"results: candidate 0 of run run: its row says"),
    ("UPDATE candidate_parents SET position = 5 WHERE position = 1", r"its parents have gaps"),
    ("UPDATE model_calls SET position = 5 WHERE id = 2", r"calls: model call 2: expected call 1"),
    ("UPDATE model_calls SET prompt = '[[\"user\",999]]' WHERE id = 1", r"calls: model call 1: names texts .*999"),
    ("UPDATE model_calls SET prompt = 'x' WHERE id = 1", r"calls: model call 1: "),
    ("UPDATE timing_sessions SET samples = '[' WHERE id = 1", r"sessions: session 1: its samples cannot be read"),
    ("UPDATE timing_sessions SET log_ratio = 5 WHERE id = 1", r"sessions: session 1: its samples say"),
    ("UPDATE timing_sessions SET log_low = -50 WHERE id = 1", r"sessions: session 1: its samples say"),
    ("UPDATE timing_sessions SET log_low = NULL WHERE id = 1", r"sessions: session 1: its samples say"),
    ("UPDATE timing_sessions SET samples = replace(samples, '100.0', '-1.0') WHERE id = 1", r"sessions: session 1: "),
    ("DROP TRIGGER kernels_no_update", r"tables: kernels_no_update: the trigger is missing"),
    ("DROP INDEX candidates_kernel", r"tables: candidates_kernel: the index is missing"),
    ("UPDATE sqlite_sequence SET seq = 1 WHERE name = 'kernels'", r"tables: kernels: row \d+ is above"),
    ("DELETE FROM kernels WHERE id = 1", r"file: row \d+ of \w+: names a row of kernels that is not there"),
]  # fmt: skip


def groups():
    """The damages in groups that each touch a table at most once, so that one check can be asked for several."""
    found = []
    for statement, expected in DAMAGE:
        table = re.match(r"(?:UPDATE|DELETE FROM|DROP \w+) (\w+)", statement)[1]
        group = next((group for group in found if table not in group), None)
        if group is None:
            found.append(group := {})
        group[table] = (statement, expected)
    return [list(group.values()) for group in found]


@pytest.mark.parametrize("group", groups())
def test_damage_is_named_by_its_row(path, group):
    damage(path, *(statement for statement, _ in group if not statement.startswith("DROP")))
    with Store.open(path, create=False) as store:
        for statement, _ in group:
            if statement.startswith("DROP"):
                store.read(statement)
    report = findings(path)
    assert not report.clean
    lines = [str(finding) for finding in report.findings]
    for statement, expected in group:
        assert any(re.search(expected, line) for line in lines), (statement, lines)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM standings WHERE identity = 'identity-1'",
        "DELETE FROM standings",
        "UPDATE standings SET cell = '[0,0,0]' WHERE identity = 'identity-1'",
        "UPDATE standings SET log_low = 9.0, speedup_low = 8103.083927575384 WHERE identity = 'identity-1'",
        "UPDATE standings SET speedup = 99 WHERE identity = 'identity-1'",
        "UPDATE standings SET n_sessions = 99 WHERE identity = 'identity-0'",
        "UPDATE standings SET n_blocks = 99 WHERE identity = 'identity-0'",
        "UPDATE standings SET kernel_id = 3, verdict_id = 2 WHERE identity = 'identity-0'",
        "UPDATE standings SET identity = 'identity-none' WHERE identity = 'identity-1'",
        "UPDATE standings SET log_ratio = 'x' WHERE identity = 'identity-1'",
        "DELETE FROM pending",
        "UPDATE pending SET digest = 'x', is_run = 7",
        "INSERT INTO pending SELECT problem_id, environment_id, identity, kernel_id, 'x', verdict_id, schema_id, cell, 1"
        " FROM standings",
    ],
)
def test_a_standing_that_does_not_follow_from_its_rows_is_found_and_mended(path, statement):
    columns = "identity, kernel_id, verdict_id, cell, log_low, speedup, n_sessions, n_blocks"
    rows = f"SELECT {columns} FROM standings ORDER BY identity"
    with Store.open(path, create=False) as store:
        before = store.read(rows)
    damage(path, statement)
    assert {finding.check for finding in findings(path).findings} == {"standings"}
    assert findings(path, repair=True).clean
    assert findings(path).findings == ()
    with Store.open(path, create=False) as store:
        assert store.read(rows) == before


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("revisits", "DELETE FROM revisits"),
        ("tallies", "UPDATE run_tallies SET n = n + 1"),
        ("tallies", "UPDATE run_tallies SET wall_us = 'x' WHERE run_id = 1"),
        ("tallies", "DELETE FROM run_operators WHERE run_id = 2"),
        ("tallies", "UPDATE run_operators SET first_idx = 5"),
        ("tallies", "DELETE FROM run_records"),
        ("tallies", "UPDATE run_records SET log_low = 99 WHERE run_id = 1"),
    ],
)
def test_other_derived_rows_are_checked_and_mended(path, name, statement):
    columns = {table: "identity" if table == "revisits" else "*" for table in DERIVED}
    with Store.open(path, create=False) as store:
        before = [sorted(store.read(f"SELECT {what} FROM {table}"), key=str) for table, what in columns.items()]
    damage(path, statement)
    assert {finding.check for finding in findings(path).findings} == {name}
    assert findings(path, repair=True).clean
    assert findings(path).findings == ()
    with Store.open(path, create=False) as store:
        after = [sorted(store.read(f"SELECT {what} FROM {table}"), key=str) for table, what in columns.items()]
    assert after == before


def test_every_table_is_content_or_derived_or_named_as_neither(path):
    """A new table has to be sorted: into the digest of content, or among those that are worked out again."""
    content = {"problems", "environments", "measures_schemas", "runs", "run_states", "run_seeds", "run_bases"}
    content |= {"kernels", "verdicts", "timing_sessions", "candidates", "candidate_parents", "model_calls", "texts"}
    with Store.open(path, create=False) as store:
        names = {row[0] for row in store.read("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert {name for name in names if not name.startswith("sqlite_")} == {*content, *DERIVED, "work", "alembic_version"}
        named = {
            (table, row[3])
            for table in names
            for row in store.read(f"PRAGMA foreign_key_list({table})")
            if row[2] == "kernels"
        }
        digest = content_digest(store)
    assert named == set(REFERENCES)
    damage(path, *(f"DELETE FROM {table}" for table in DERIVED))
    with Store.open(path, create=False) as store:
        assert content_digest(store) == digest


def test_the_command_says_what_it_found_by_its_exit_status(path):
    def fsck(*options):
        return CliRunner().invoke(main, ["archive", "fsck", str(path), *options])

    clean = fsck()
    assert (clean.exit_code, clean.output) == (0, f"{path} is clean\n")
    damage(path, "DELETE FROM standings WHERE identity = 'identity-1'")
    found = fsck()
    assert found.exit_code == 1
    assert "standings: kernel identity-1: is missing" in found.output
    assert "1 findings; 1 of them can be mended: evo-l2 archive fsck" in found.output
    assert json.loads(fsck("--json").output)["findings"][0]["repairable"] is True
    mended = fsck("--repair")
    assert mended.exit_code == 0
    assert "worked out again: 1" in mended.output
    assert fsck().exit_code == 0


def test_sessions_estimated_together_are_estimated_as_each_by_itself():
    many = [cases.session(n, 1 + n / 9, n_blocks=6 + n % 3, conclusive=n % 5 != 0) for n in range(60)]
    two = [TimingSession(one.cases + other.cases) for one, other in itertools.pairwise(many)]
    assert single_estimates([*many, *two]) == [pooled_estimate((session,)) for session in [*many, *two]]
    assert single_estimates([]) == []


JUNK = (None, "", "x", "[]", "{}", "[[1]]", "NaN", -1, 10**12, 1.5, b"\xff\x00", "null", '{"a": 1e999}')


@pytest.mark.parametrize("seed", range(400 if SOAK else 6))
@(pytest.mark.slow if SOAK else lambda test: test)
def test_no_value_in_any_column_is_a_crash(path, seed):
    chance = random.Random(seed)
    with Store.open(path, create=False) as store:
        tables = [row[0] for row in store.read("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        table = chance.choice([name for name in tables if not name.startswith(("sqlite_", "alembic")) and name != "work"])
        column = chance.choice([row[1] for row in store.read(f"PRAGMA table_info({table})")])
        junk = chance.choice(JUNK)
        for (name,) in store.read("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            store.read(f"DROP TRIGGER {name}")
        store.read("PRAGMA foreign_keys=OFF")
        where = f"WHERE rowid = (SELECT MAX(rowid) FROM {table})" if chance.random() < 0.8 else ""
        with contextlib.suppress(StorageError):
            store.read(f"UPDATE {table} SET {column} = ? {where}", (junk,))
        for repair in (False, True):
            report = check(store, repair=repair)
            assert all(len(str(finding).splitlines()) <= 1 for finding in report.findings), (table, column, junk)
