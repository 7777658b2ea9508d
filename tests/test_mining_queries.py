"""Filters, read-only SQL, and flat tables with their pyarrow and pandas forms."""

import builtins
import contextlib
import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive import Store, mining
from evo_l2.errors import ConfigurationError, StorageError
from evo_l2.evaluation import Status


def _load_cases():
    path = Path(__file__).parent.parent / "benchmarks" / "archive_cases.py"
    spec = importlib.util.spec_from_file_location("archive_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()
SEED, CHILD = cases.kernel(0).digest, cases.kernel(1).digest


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A seed, a child twice as fast, one that is wrong, one without a kernel, and a repeat."""
    folder = tmp_path_factory.mktemp("queries")
    with Store.open(folder / "a.db") as opened:
        run = opened.start_run("one", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        run.add(cases.evaluated(0, 0))
        run.add(cases.evaluated(1, 1, speedup=2.0, parents=(SEED,), operator="edit", n_calls=2))
        run.add(cases.evaluated(2, 2, status=Status.INCORRECT, parents=(SEED,), operator="edit"))
        run.add(cases.failed(3, parents=(CHILD, SEED)))
        run.add(cases.duplicate(4, 40, cases.kernel(0), parents=(SEED,)))
        opened.start_run("two", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 2).add(cases.evaluated(0, 9, conclusive=False))
        yield opened


def ask(store, text, **options):
    with mining.query(store, text, **options) as answer:
        return answer.columns, list(answer.rows)


# --- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("operator == 'edit' and speedup > 1.2", [1]),
        ("speedup > 0", [0, 1]),
        ("not speedup > 1.5", [0, 2, 3, 4, 0]),
        ("speedup is None and status is not None", [2, 0]),
        ("0.5 < speedup < 1.5", [0]),
        ("gain > 1.5 and gain_low > 1", [1]),
        ("outcome in ['duplicate', 'no_kernel']", [3, 4]),
        ("'differs' in message", [2]),
        ("status == 'inconclusive'", [0]),
        ("simd_bits / 2 == 128 and idx % 2 == 0", [0, 2, 0]),
        ("simd_bits // 0 == 1", []),
        ("startswith(lower(operator), 'ed') and max(idx, 2) == 2", [1, 2]),
        ("n_calls * 2 >= 4 or parent_2 != ''", [1, 3]),
        ("-idx < -3", [4]),
        ("True", [0, 1, 2, 3, 4, 0]),
    ],
)
def test_a_filter_takes_the_rows_of_which_it_is_true(store, text, expected):
    assert [row[0] for row in ask(store, text, columns=["idx"])[1]] == expected


def test_a_filter_shows_what_it_names_and_what_is_asked_for(store):
    assert ask(store, "n_calls > 1")[0] == ("run", "idx", "operator", "digest", "status", "speedup", "gain", "n_calls")
    assert ask(store, "n_calls > 1", columns=["note", "idx"]) == (("note", "idx"), [("é", 1)])
    columns, rows = ask(store, "idx == 1", columns=["*"], run_name="one")
    row = dict(zip(columns, rows[0], strict=True))
    assert (row["parent"], row["generator"], row["n_reply_tokens"], row["simd_bits"]) == (SEED, "recorded", 1800, 256)
    assert row["speedup"] == pytest.approx(2.0, rel=0.1)
    assert row["gain_low"] < row["gain"] < row["gain_high"]


@pytest.mark.parametrize(
    "text",
    ["speedup >", "", "__import__('os')", "().__class__", "speedup.real > 1", "(lambda: 1)()", "speedup[0]", "x := 1",
     "2 ** 9", "f'{idx}'", "abs(x=1)", "[i for i in idx]", "b'x'", "1 if idx else 2", "~idx", "\0", "(" * 5000, "idx" * 2000],
)  # fmt: skip
def test_a_filter_that_holds_anything_else_is_refused_in_one_line(store, text):
    with pytest.raises(ConfigurationError, match="the expression") as caught:
        ask(store, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["operator > 3", "lower(idx) == 1", "idx + operator > 1", "log(idx - 9) > 0", "'a' in idx"])
def test_what_cannot_be_worked_out_is_said_with_the_row(store, text):
    with pytest.raises(ConfigurationError, match=r"cannot be worked out.*(idx|operator) = "):
        ask(store, text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(st.sampled_from("idx()+-*/%<>=!.,'\" andornot1[]{}:@\n\\"), max_size=30))
def test_no_text_does_more_than_be_refused_or_be_worked_out(text):
    with contextlib.suppress(ConfigurationError):
        mining.parse_filter(text).accepts({"idx": 1, "operator": "edit"})


@pytest.mark.parametrize("depth", range(50, 3000, 350))
def test_a_deep_expression_is_worked_out_or_refused(store, depth):
    for text in ("-" * depth + "idx > 0", "not " * depth + "idx", "(" * depth + "idx" + ")" * depth, "idx" + "+1" * depth):
        with contextlib.suppress(ConfigurationError):
            ask(store, text)


def test_an_unknown_column_is_named_with_those_that_are_like_it(store):
    with pytest.raises(ConfigurationError, match=r"expected one like speedup.*found speeedup"):
        ask(store, "speeedup > 1")
    with pytest.raises(ConfigurationError, match=r"the table moves has no such column.*found simd"):
        ask(store, "simd == 1", name="moves")
    with pytest.raises(ConfigurationError, match=r"no such column.*found nonsense"):
        ask(store, "idx == 0", columns=["nonsense"])
    with pytest.raises(StorageError, match="no such run"):
        ask(store, "idx == 0", run_name="three")


# --- SQL --------------------------------------------------------------------------------------------------------------


def test_a_select_is_answered(store):
    assert ask(store, "SELECT name, seed FROM runs ORDER BY id") == (("name", "seed"), [("one", "1"), ("two", "2")])
    assert ask(store, "with x as (select 1 as a) select a from x")[1] == [(1,)]
    assert ask(store, "select '100%' as p, ':name' as n, '?' as q")[1] == [("100%", ":name", "?")]


@pytest.mark.parametrize(
    "text",
    ["DELETE FROM runs", "WITH x AS (SELECT 1) DELETE FROM runs", "SELECT 1; DROP TABLE runs", "PRAGMA query_only=OFF",
     "ATTACH '{path}' AS other", "SELECT load_extension('x')", "CREATE TEMP TABLE t (a)", "VACUUM INTO '{path}'",
     "SELECT * FROM pragma_table_info('runs')", "INSERT INTO runs DEFAULT VALUES", "BEGIN IMMEDIATE", "select", "SELECT nope",
     "WITH x AS (SELECT 1) UPDATE kernels SET source = ''", "EXPLAIN DELETE FROM runs"],
)  # fmt: skip
def test_a_statement_that_would_do_more_is_refused_and_nothing_changes(store, tmp_path, text):
    path = tmp_path / "other.db"
    before = store.read("SELECT COUNT(*) FROM runs")
    with pytest.raises(ConfigurationError, match="the statement") as caught:
        ask(store, text.format(path=path))
    assert "\n" not in str(caught.value)
    assert store.read("SELECT COUNT(*) FROM runs") == before
    assert not path.exists()


def test_a_statement_without_end_is_ended(store):
    started = time.monotonic()
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT "
    for what in ("COUNT(*) FROM c", "x FROM c"):
        with pytest.raises(StorageError, match="took too long"):
            ask(store, endless + what, timeout_s=0.2)
    assert time.monotonic() - started < 20
    rows = mining.Table("moves", (), lambda: ({"idx": 1} for _ in iter(int, 1)))
    with pytest.raises(StorageError, match="took too long"):
        list(mining.select(rows, mining.parse_filter("idx > 1"), timeout_s=0.05).rows)


def test_a_value_of_more_than_64_megabytes_is_refused(store):
    with pytest.raises(ConfigurationError, match="too big"):
        ask(store, "SELECT length(zeroblob(70000000) || 'x')")


# --- tables -----------------------------------------------------------------------------------------------------------


def test_every_column_of_a_table_is_one_that_is_described(store):
    for name in mining.TABLES:
        named = {column.name for column in mining.COLUMNS[name]}
        seen = {key for row in mining.table(store, name).rows() for key in row}
        assert seen - named <= {"simd_bits", "note"}, name
        assert named - seen <= {"name", "before", "after", "direction"} | ({"cell"} if name == "kernels" else set()), name


def test_kernels_and_sessions_and_calls_are_flat(store):
    kernels = {row["digest"]: row for row in mining.table(store, "kernels").rows()}
    assert (kernels[CHILD]["status"], kernels[cases.kernel(2).digest]["gate"]) == ("passed", "exact-integers")
    assert kernels[cases.kernel(9).digest]["status"] == "inconclusive"
    assert kernels[SEED]["source"] == cases.kernel(0).source
    sessions = list(mining.table(store, "sessions", "one").rows())
    assert [(row["sizes"], row["n_blocks"], row["n_kept"]) for row in sessions] == [("[64,64,64,1]", 6, 6)] * 2
    assert sessions[0]["baseline_us"] == 100.0
    calls = list(mining.table(store, "calls").rows())
    assert [(row["run"], row["idx"], row["position"]) for row in calls] == [("one", 1, 0), ("one", 1, 1), ("one", 3, 0)]
    assert [message["role"] for message in json.loads(calls[0]["prompt"])] == ["system", "user"]


def test_a_kernel_that_failed_once_stands_once_and_as_failed(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        run = store.start_run("run", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        run.add(cases.evaluated(0, 0))
        run.withdraw(SEED, cases.verdict(0, status=Status.INCORRECT))
        (row,) = mining.table(store, "kernels").rows()
        assert (row["status"], row.get("speedup")) == ("incorrect", None)


def test_tables_become_pyarrow_and_pandas(store, tmp_path):
    pytest.importorskip("pyarrow")
    table = mining.table(store, "candidates")
    arrow = table.to_arrow()
    assert arrow.num_rows == 6
    assert arrow.column_names[: len(table.columns)] == [column.name for column in table.columns]
    assert arrow.column_names[len(table.columns) :] == ["note", "simd_bits"]
    assert {name: str(arrow.schema.field(name).type) for name in ("idx", "speedup", "message", "simd_bits")} == {
        "idx": "int64", "speedup": "double", "message": "string", "simd_bits": "int64"
    }  # fmt: skip
    frame = table.to_pandas()
    assert frame["n_prompt_tokens"].isna().sum() == 4
    assert str(frame["n_prompt_tokens"].dtype) == "Int64"
    assert str(mining.table(store, "sessions").to_arrow().schema.field("kernel_samples_us").type) == "list<item: double>"
    moves = mining.table(store, "moves")
    assert moves.to_arrow().num_rows == sum(1 for _ in moves.rows())
    rows = ({"a": value} for value in (1, 2.5, None))
    path = tmp_path / "x.parquet"
    assert mining.write_parquet(rows, path) == 3
    with pytest.raises(StorageError, match="cannot be written"):
        mining.write_parquet(iter([{"a": 1}]), tmp_path / "none" / "x.parquet")


def test_values_of_several_types_meet_in_one_column():
    pytest.importorskip("pyarrow")
    rows = [{"a": 1, "b": "\ud800"}] * 5000 + [{"a": 2.5, "b": None, "c": 1}] + [{"a": "word"}] * 5000
    whole = mining.arrow_of(iter(rows))
    assert (whole.num_rows, str(whole.schema.field("a").type)) == (10001, "string")
    assert mining.arrow_of(iter([{"a": 1}, {"a": 2.5}])).to_pydict() == {"a": [1.0, 2.5]}
    assert mining.arrow_of(iter(()), mining.COLUMNS["moves"]).num_rows == 0


def test_what_is_not_installed_is_named(store, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] in ("pyarrow", "pandas"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] in ("pyarrow", "pandas")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(builtins, "__import__", without)
    for change in ("to_arrow", "to_pandas"):
        with pytest.raises(ConfigurationError, match=r"is missing.*pip install 'evo-l2\[tables\]'"):
            getattr(mining.table(store, "cells"), change)()
    with pytest.raises(ConfigurationError, match="no such table"):
        mining.table(store, "nonsense")


def test_a_path_may_hold_what_means_something_in_a_url(tmp_path):
    with Store.open(tmp_path / "a b?#%41.db") as store:
        store.start_run("run", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        assert ask(store, "SELECT name FROM runs")[1] == [("run",)]
