"""What `evo-l2 archive` prints of what was mined: in 80 columns, without colour, and as JSON."""

import contextlib
import csv
import importlib.util
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from archive import Store, mining
from evo_l2.contracts import Candidate, Outcome
from evo_l2.evaluation import Environment, Evaluation, Status
from evo_l2.kernel import Kernel
from experiments.cli import main


def _load_cases():
    path = Path(__file__).parent.parent / "benchmarks" / "archive_cases.py"
    spec = importlib.util.spec_from_file_location("archive_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()
SOURCE = (
    "//! layout nn\n//! launch hgemm(A: in, B: in, C: out, M, N, K)\n#define BM 64 //? 32 64 128\nvoid hgemm(void) {{ {} }}\n"
)
SOURCES = (
    SOURCE.format("x;"),
    SOURCE.format("x;").replace("BM 64", "BM 128"),
    SOURCE.format("__syncthreads();\x1b[31m[red]"),
)
DIGESTS = tuple(Kernel(source, "cpu").digest for source in SOURCES)
OTHER = Environment("cpu", {"processor": "two"}, {})


def candidate(index, source, parents=(), speedup=1.0, measures=(256.0, 4.0, 0.0), good=Status.PASSED):
    timed = cases.session(index, speedup) if good is Status.PASSED else None
    return Candidate(
        index, "edit" if parents else "seed", parents, index, Outcome.EVALUATED, kernel=Kernel(source, "cpu"),
        identity=f"identity-{index}", evaluation=Evaluation(cases.verdict(index, measures, good), timed, 0.1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    """A seed, a child that gained in another cell, a child that lost; and a run elsewhere that only built."""
    path = tmp_path_factory.mktemp("pages") / "a.db"
    with Store.open(path) as store:
        run = store.start_run("here", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        run.add(candidate(0, SOURCES[0]))
        run.add(candidate(1, SOURCES[1], (DIGESTS[0],), 2.0, (512.0, 30.0, 1024.0)))
        run.add(candidate(2, SOURCES[2], (DIGESTS[1],), 1.0, (64.0, 30.0, 0.0)))
        there = store.start_run("there", cases.PROBLEM, OTHER, "cpu", {}, 1)
        there.add(candidate(0, SOURCES[0], good=Status.BUILT))
    return path


def said(*arguments, code=0, width=80):
    done = CliRunner(env={"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"}).invoke(
        main, ["archive", *map(str, arguments)]
    )
    assert done.exit_code == code, done.output
    assert code == 2 or "\x1b" not in done.output
    return done.output


def test_cells_are_a_map_that_is_read_without_colour(db):
    text = said("cells", db, "--run", "here")
    lines = text.splitlines()
    assert lines[1] == f"environment {cases.ENVIRONMENT.key}, cpu, one"
    assert lines[2] == "best speed-up by simd_bits (across) and n_fma (down); any workspace_bytes"
    assert lines[4].split() == ["n_fma", "scalar", "128-bit", "256-bit", "512-bit"]
    (row,) = [line.split() for line in lines if line.startswith("24-63")]
    assert row[0] == "24-63"
    assert row[2:4] == ["·", "·"]
    assert float(row[1]) == pytest.approx(1.0, rel=0.1)
    assert row[4].endswith("*")
    assert float(row[4][:-1]) == pytest.approx(2.0, rel=0.1)
    assert "3 of 150 cells filled (2.0 %), 3 kernels, QD score" in text
    assert max(map(len, lines[:10])) <= 80


def test_cells_take_other_axes_values_and_boundaries(db):
    text = said("cells", db, "--run", "here", "--x", "workspace_bytes", "--y", "n_fma", "--value", "kernels")
    assert "kernels by workspace_bytes (across) and n_fma (down)" in text
    facts = json.loads(said("cells", db, "--run", "here", "--rebin", "simd_bits=1000", "--rebin", "n_fma=2,40", "--json"))
    assert facts["axes"][1] == {"name": "n_fma", "boundaries": [2, 40], "labels": ["<2", "2-40", "40+"]}
    assert [(e["cell"], e["kernels"]) for e in facts["elites"]] == [([0, 1, 0], 2), ([0, 1, 1], 1)]
    assert facts["qd_score"] == pytest.approx(3.0, rel=0.1)
    for wrong in ("simd_bits", "simd_bits=2,1", "nonsense=1", "simd_bits=a", "simd_bits=nan,nan"):
        assert "the boundaries do not parse" in said("cells", db, "--rebin", wrong, code=2)
    assert said("cells", db, "--env", cases.ENVIRONMENT.key[:8]) == said("cells", db, "--run", "here")
    assert "no such axis" in said("cells", db, "--x", "nonsense", code=2)
    assert "another axis for --y" in said("cells", db, "--x", "n_fma", "--y", "n_fma", code=2)


def test_cells_of_what_was_only_built_count_kernels(db):
    text = said("cells", db)
    assert text.splitlines()[2].startswith("kernels by")
    assert "1 kernel, none of them ever run" in text
    regimes = json.loads(said("cells", db, "--regimes", "--json"))
    assert {(r["environment"], r["regime"], r["speedup"] is None) for r in regimes} == {
        (cases.ENVIRONMENT.key, "small square", False),
        (OTHER.key, "small square", True),
    }
    assert said("cells", db, "--regimes").count("small square, environment") == 2


def test_diff_shows_what_differs_and_what_it_does(db):
    text = said("diff", db, DIGESTS[0][:8], DIGESTS[1][:8])
    assert "-#define BM 64 //? 32 64 128\n+#define BM 128 //? 32 64 128\n" in text
    assert "BM        64            128" in text
    assert f"{DIGESTS[1][:12]} runs at 2.0" in text or f"{DIGESTS[1][:12]} runs at 1.9" in text
    assert "sure; the two intervals part" in text
    facts = json.loads(said("diff", db, DIGESTS[0], DIGESTS[1], "--json"))
    assert facts["places"][0]["gain"]["ratio"] == pytest.approx(2.0, rel=0.1)
    assert "nothing differs" in said("diff", db, DIGESTS[0], DIGESTS[0])
    assert "no such kernel" in said("diff", db, DIGESTS[0], "zz", code=2)
    # What a source holds is shown as it stands, never as a command to the terminal.
    assert "\\x1b[31m[red]" in said("diff", db, DIGESTS[0], DIGESTS[2])


def test_lineage_goes_up_and_down_with_gains(db):
    text = said("lineage", db, DIGESTS[1][:8])
    rows = [line.split() for line in text.splitlines()[1:4]]
    assert [(row[0], row[1]) for row in rows] == [("-1", DIGESTS[0][:12]), ("0", DIGESTS[1][:12]), ("+1", DIGESTS[2][:12])]
    assert rows[2][-2:] == ["here", "#2"]
    with_diff = said("lineage", db, DIGESTS[1], "--diff")
    assert "    +#define BM 128 //? 32 64 128" in with_diff
    facts = json.loads(said("lineage", db, DIGESTS[1], "--diff", "--json"))
    assert [fact["generation"] for fact in facts] == [-1, 0, 1]
    assert facts[1]["gains"][0]["ratio"] == pytest.approx(2.0, rel=0.1)
    assert facts[0]["diff"] == []
    assert "1 descendant more were left out" in said("lineage", db, DIGESTS[1], "--limit", "0")


def test_moves_are_listed_by_kind(db):
    text = said("moves", db)
    assert [line.split()[:2] for line in text.splitlines()[1:4]] == [["BM", "down"], ["BM", "up"], ["barrier", "1"]]
    assert "by" in said("moves", db, width=120).splitlines()[0].split()
    facts = {(f["kind"], f["direction"]): f for f in json.loads(said("moves", db, "--run", "here", "--json"))}
    assert facts["tunable", "up"]["gained"]["hits"] == 1
    assert facts["barrier", None]["mean"]["ratio"] == pytest.approx(0.5, rel=0.1)
    assert "no candidate of there changed a parent" in said("moves", db, "--run", "there")


def test_query_prints_a_table_csv_json_and_parquet(db, tmp_path):
    assert "3 rows" in said("query", db, "run == 'here'")
    rows = list(csv.reader(io.StringIO(said("query", db, "speedup > 1.5", "--csv", "--columns", "digest,speedup"))))
    assert rows[0] == ["digest", "speedup"]
    assert rows[1][0] == DIGESTS[1]
    assert json.loads(said("query", db, "SELECT name FROM runs ORDER BY id", "--json")) == [
        {"name": "here"},
        {"name": "there"},
    ]
    assert json.loads(said("query", db, "SELECT 1 AS a, 2 AS a, x'00ff' AS b", "--json")) == [{"a": 1, "a_2": 2, "b": "00ff"}]
    assert json.loads(said("query", db, "idx > 99", "--json")) == []
    assert "2 rows; there are more" in said("query", db, "idx >= 0", "--limit", "2")
    assert "row 1" in said("query", db, "idx == 1", "--columns", "*")
    path = tmp_path / "x.parquet"
    with contextlib.suppress(ImportError):
        import pyarrow.parquet

        assert "3 rows in" in said("query", db, "speedup > 0", "--columns", "digest,note", "--parquet", path)
        assert pyarrow.parquet.read_table(path).to_pydict()["note"] == ["é"] * 3
    assert "cannot be given together" in said("query", db, "idx", "--csv", "--json", code=2)
    assert "the statement is not one that reads" in said("query", db, "DROP TABLE runs", code=2)
    assert "no such archive" in said("query", tmp_path / "none.db", "idx", code=1)


def test_query_without_a_question_lists_the_columns(db):
    for table in mining.TABLES:
        text = said("query", db, "--table", table)
        assert all(column.name in text for column in mining.COLUMNS[table])
    assert "what the last builds report: note, simd_bits" in said("query", db)
    assert {row["column"] for row in json.loads(said("query", db, "--json"))} >= {"gain", "simd_bits"}


def test_top_names_the_other_environments_and_shows_the_front(db):
    text = said("top", db, "--env", cases.ENVIRONMENT.key[:8])
    assert DIGESTS[1][:12] in text.splitlines()[1]
    assert OTHER.key in text.splitlines()[-1]
    assert "none of them was ever run" in said("top", db)
    front = json.loads(said("top", db, "--run", "here", "--pareto", "--resource", "simd_bits", "--json"))
    assert (front["axes"], [point["digest"] for point in front["front"]]) == (["simd_bits"], [DIGESTS[1]])
    assert "nothing was run, so speed is not weighed" in said("top", db, "--pareto")
    assert "no such environment" in said("top", db, "--env", "zz", code=2)
    assert "cannot be given together" in said("top", db, "--env", "0", "--run", "here", code=2)
    assert "2 environments: compare numbers within one" in said("stats", db)


def test_a_file_without_runs_is_said_to_have_none(tmp_path):
    Store.open(tmp_path / "a.db").close()
    path = tmp_path / "a.db"
    for command in ("cells", "top"):
        assert "no such run" in said(command, path, code=1)
    assert "no kernel passed" in said("cells", path, "--regimes")
    assert "changed a parent" in said("moves", path)
    assert "0 rows" in said("query", path, "idx == 0")
