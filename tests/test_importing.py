"""Kernels from elsewhere: judged here, each under its own index; what is malformed is named, and a stop loses nothing."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from archive import Store
from archive.export import export
from archive.training_data import Options
from archive.training_data.exporting import select
from evo_l2.contracts import Outcome
from evo_l2.errors import ConfigurationError, DeviceError
from evo_l2.evaluation import Status
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from experiments.cli import main
from experiments.config import load_config
from experiments.import_sources import read_source
from experiments.importing import plan_import, run_import
from experiments.rendering import PromptRenderer
from experiments.sakana import COLUMNS, take_over

CONFIG = load_config("smoke")
PROBLEM = Hgemm(((64, 64, 64, 1),))

EXTENSION = """\
#include <torch/extension.h>
#include <cuda_runtime.h>
#define TILE 16
// one thread for every element
__global__ void product(const half* __restrict__ a, const half* __restrict__ b, half* c, int M, int N, int K) {
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; k++) sum += __half2float(a[row * K + k]) * __half2float(b[k * N + column]);
    c[row * N + column] = __float2half(sum);
}
torch::Tensor forward(torch::Tensor a, torch::Tensor b) {
    int M = a.size(0), K = a.size(1), N = b.size(1);
    auto c = torch::empty({M, N}, a.options());
    dim3 block(TILE, TILE);
    dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    product<<<grid, block>>>((const half*)a.data_ptr(), (const half*)b.data_ptr(), (half*)c.data_ptr(), M, N, K);
    return c;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward, "product"); }
"""


@pytest.fixture
def folder(tmp_path, instant):
    """Three kernels, one of them wrong, a copy of the first under another name, and two files that are no kernels."""
    made = tmp_path / "kernels"
    (made / "below").mkdir(parents=True)
    for name, base in (("a", 1), ("b", 5), ("below/c", 9)):
        (made / f"{name}.c").write_text(instant.kernel_source(base=base))
    shutil.copy(made / "a.c", made / "d.c")
    (made / "e.c").write_bytes(b"\xff\xfe")
    (made / "f.cu").write_text("__global__ void f() {}")
    (made / "notes.txt").write_text("not a kernel")
    return made


def bring(store, path, evaluator):
    source = read_source(path, "cpu")
    return run_import(store, source, CONFIG, PROBLEM, evaluator, "Apache-2.0", str(path))


def test_a_folder_is_judged_and_what_is_malformed_is_named(folder, tmp_path, instant):
    with Store.open(tmp_path / "a.db") as store:
        done = bring(store, folder, instant.InstantEvaluator())
        history = list(store.open_run(done.run).history())
    assert done.outcomes == {"passed": 2, "incorrect": 1, "duplicate": 1}
    assert {where for where, _ in done.malformed} == {"e.c", "f.cu"}
    assert "UTF-8" in dict(done.malformed)["e.c"]
    assert [candidate.operator for candidate in history] == ["import"] * 4
    assert [c.outcome for c in history] == [Outcome.EVALUATED] * 3 + [Outcome.DUPLICATE]
    assert history[3].duplicate_of == history[0].kernel.digest


def test_an_import_that_was_stopped_goes_on_and_judges_nothing_twice(folder, tmp_path, instant):
    class Dying(instant.InstantEvaluator):
        def prepare(self, kernel):
            if len(self.measured) == 1:
                raise DeviceError("the machine is gone")
            return super().prepare(kernel)

    first, second = Dying(), instant.InstantEvaluator()
    with Store.open(tmp_path / "a.db") as store:
        with pytest.raises(DeviceError):
            bring(store, folder, first)
        done = bring(store, folder, second)
        assert done.n_before == 1
        assert done.outcomes == {"passed": 2, "incorrect": 1, "duplicate": 1}
        assert not set(first.measured) & set(second.measured)
        again = bring(store, folder, instant.InstantEvaluator())
        assert (again.run, again.n_before, again.outcomes) == (done.run, 4, done.outcomes)
        assert [info.name for info in store.runs()] == [done.run]
        (folder / "g.c").write_text(instant.kernel_source(base=3))
        more = bring(store, folder, instant.InstantEvaluator())
        assert more.run != done.run
        assert more.outcomes == {"duplicate": 4, "passed": 1}


def test_an_export_of_ours_is_judged_again_and_old_numbers_are_provenance(folder, tmp_path, instant):
    with Store.open(tmp_path / "a.db") as store:
        bring(store, folder, instant.InstantEvaluator())
        out = export(store, tmp_path / "out").directory
    lines = (out / "kernels.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 2
    (out / "kernels.jsonl").write_text("\n".join([lines[0], "{broken", lines[1], '{"file": "../x.c", "digest": "0"}']) + "\n")
    (out / rows[1]["file"]).write_text("cut off")
    with Store.open(tmp_path / "b.db") as store:
        done = bring(store, out, instant.InstantEvaluator())
        run = store.open_run(done.run)
        assert done.outcomes == {"passed": 1}
        assert [where for where, _ in done.malformed] == ["line 2", "line 3", "line 4"]
        assert "was changed" in done.malformed[1][1]
        kept = run.get_state("import:0000000")
        assert kept["speedup"] == rows[0]["speedup"]
        assert kept["digest"] == rows[0]["digest"]
        (candidate,) = run.history()
        assert candidate.evaluation.session.cases[0].kernel_us != tuple(rows[0]["sessions"][0]["cases"][0]["kernel_us"])


def table(path: Path, codes) -> Path:
    rows = [{**dict.fromkeys(COLUMNS, ""), "Op_Name": f"op {i}", "CUDA_Code": code, "CUDA_Speedup_Native": "nan"}
            for i, code in enumerate(codes)]  # fmt: skip
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
            file.write("one,two\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "[1]\nno\n")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize(("suffix", "n_torn"), [(".csv", 1), (".jsonl", 2), (".parquet", 0)])
def test_a_table_of_extensions_gives_what_fits_and_a_reason_for_the_rest(suffix, n_torn, tmp_path):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = table(tmp_path / f"t{suffix}", [EXTENSION, "", "torch::Tensor f(torch::Tensor a) { return a.relu(); }"])
    source = read_source(path, "cuda")
    assert (source.kind, source.licence) == ("table", "CC-BY-4.0")
    good, empty, library, *torn = source.items
    assert good.refusal is None
    assert good.kernel.launch.calls[0].entry == "product"
    assert empty.kernel is None
    assert empty.fault == "CUDA_Code is empty"
    assert "no __global__ function" in library.refusal
    assert len(torn) == n_torn
    assert all(item.fault is not None and item.where.split()[1].isdigit() for item in torn)
    assert good.provenance["CUDA_Speedup_Native"] is None
    assert good.where.split()[1] == {".csv": "2", ".jsonl": "1", ".parquet": "1"}[suffix]


def test_nothing_of_a_table_is_dropped_in_silence(tmp_path, instant):
    path = table(tmp_path / "t.jsonl", [EXTENSION, EXTENSION + "\n", ""])
    with Store.open(tmp_path / "a.db") as store:
        done = bring(store, path, instant.InstantEvaluator())
        history = list(store.open_run(done.run).history())
    assert done.n_items == 5
    assert sum(done.outcomes.values()) + len(done.malformed) == 5
    assert [c.evaluation.verdict.status for c in history] == [Status.REJECTED] * 2
    assert history[0].evaluation.verdict.message == "it is CUDA, and the target is cpu"
    assert history[0].kernel.source == EXTENSION


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("half* __restrict__ a", "float* __restrict__ a", "its operands are float, the problem's are half"),
        ("__global__ void product", "template <int T> __global__ void product", "a template"),
        ("int K) {\n    int row", "int stride) {\n    int row", "neither an operand nor one of the sizes"),
        ("dim3 grid((N + TILE - 1) / TILE,", "dim3 grid(a.size(0),", "worked out by host code"),
        ("    return c;", "    product<<<grid, block>>>(a, b, c, M, N, K);\n    return c;", "1 kernels and 2 launches"),
        ("const half* __restrict__ b", "half* b", "not two that are read and one that is written"),
    ],
)
def test_what_does_not_fit_the_launch_grammar_is_refused_with_the_reason(old, new, reason):
    assert old in EXTENSION
    taken = take_over(EXTENSION.replace(old, new))
    assert taken.source is None
    assert reason in taken.reason


def test_what_is_taken_over_builds(nvrtc):
    from evo_l2.targets.cuda.cards import find_card
    from evo_l2.targets.cuda.prepare import prepare

    kernel = Kernel(take_over(EXTENSION).source, "cuda")
    prepared = prepare(kernel, PROBLEM, nvrtc, find_card("A100"))
    assert prepared.verdict is None or prepared.verdict.status is Status.BUILT, prepared.verdict


def test_a_dry_run_writes_nothing(folder, tmp_path):
    source = read_source(folder, "cpu")
    done = plan_import(tmp_path / "a.db", source, PROBLEM)
    assert done.outcomes == {"to be judged": 3, "duplicate": 1}
    assert len(done.malformed) == 2
    assert not (tmp_path / "a.db").exists()


def test_rows_that_descend_from_an_import_carry_its_licence(folder, tmp_path, instant):
    with Store.open(tmp_path / "a.db") as store:
        bring(store, folder, instant.InstantEvaluator())
        _, drafts = select(store, Options("sft", licence="MIT"), PromptRenderer(4096))
    assert {draft.values["licence"] for members in drafts.values() for draft in members} == {"Apache-2.0"}


def test_sources_that_cannot_be_read_are_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "t.xlsx").write_text("x")
    (tmp_path / "t.parquet").write_text("no parquet")
    for name, found in (("none", "nothing there"), ("empty", "no .c file"), ("t.xlsx", "a .xlsx file")):
        with pytest.raises(ConfigurationError, match=found):
            read_source(tmp_path / name, "cpu")
    pytest.importorskip("pyarrow")
    with pytest.raises(ConfigurationError, match="expected a Parquet file"):
        read_source(tmp_path / "t.parquet", "cpu")


def test_the_command_says_what_is_missing(folder, tmp_path):
    ran = CliRunner().invoke(main, ["archive", "import", str(tmp_path / "a.db"), str(folder)])
    assert ran.exit_code == 2
    assert "--config" in ran.output
    (tmp_path / "t.jsonl").write_text('{"x": 1}\n[]\n')
    ran = CliRunner().invoke(
        main, ["archive", "import", str(tmp_path / "a.db"), str(tmp_path / "t.jsonl"), "--config", "smoke"]
    )
    assert ran.exit_code == 2
    assert "2 malformed items, the first line 1: expected the columns CUDA_Code" in ran.output
    ran = CliRunner().invoke(
        main, ["archive", "import", str(tmp_path / "a.db"), str(folder), "--config", "smoke", "--dry-run"]
    )
    assert ran.exit_code == 0, ran.output
    assert "2 malformed" in ran.output
    assert "f.cu: a .cu file is no kernel for target cpu" in ran.output


def test_an_import_is_not_resumed_as_a_search(folder, tmp_path, instant):
    with Store.open(tmp_path / "a.db") as store:
        bring(store, folder, instant.InstantEvaluator())
    ran = CliRunner().invoke(main, ["resume", str(tmp_path / "a.db")])
    assert ran.exit_code == 2
    assert "archive import" in ran.output
