"""`evo-l2 bench`: its tables, what it takes, mistakes in one line, and whole benches on a card made of host memory."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from evo_l2.errors import ConfigurationError, DeviceError, StorageError
from evo_l2.evaluation import Estimate
from evo_l2.kernel import Kernel
from evo_l2.problems.shapes import SHAPE_SETS
from evo_l2.targets.cuda.card.pairs import CardTimingSettings
from evo_l2.targets.cuda.card.rig import Rig
from evo_l2.targets.cuda.cards import find_card
from experiments import bench as bench_module
from experiments.bench import Row, bench, standing
from experiments.bench_tables import buckets, cuda_l2_csv, plain, print_rows, rows_csv, rows_json, write_text
from experiments.benching import parse_shapes
from experiments.cli import main
from experiments.seeds import load_seeds, seed_names
from experiments.sweeping import settings_of

ROOT = Path(__file__).parent.parent
PRODUCT = """\
//! layout nn
//! launch product(A: in, B: in, C: out, M, N, K)
//! grid   ceil_div(M * N, 128)
//! block  128
#include <cuda_fp16.h>
extern "C" __global__ void product(const half *A, const half *B, half *C, int M, int N, int K)
{
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= M * N) return;
    float sum = 0;
    for (int k = 0; k < K; k++) sum += __half2float(A[i / N * K + k]) * __half2float(B[k * N + i % N]);
    C[i] = __float2half(sum);
}
"""
"""On the fake card an entry does what it is called, whatever its code says."""


def estimate(ratio, low, high):
    from math import log

    return Estimate(log(ratio), log(low), log(high), 40)


LIBRARIES = {
    "torch-nn": 44.0, "torch-nt": 60.0, "cublas-nn": 42.0, "cublas-nt": 41.0, "cublaslt-nn": None, "cublaslt-nt": 40.0,
    "cublaslt-tuned-nn": None, "cublaslt-tuned-nt": None,
}  # fmt: skip
FAST = Row(
    "fast", "a" * 64, "nn", "fp32", (1024, 1024, 1024, 1), "offline", {"BM": 64}, "passed", None, 40.0, "cublas", 42.0,
    estimate(1.05, 1.04, 1.06), 0.17, 53.7, LIBRARIES,
)  # fmt: skip
SLOW = Row(
    "slow", "b" * 64, "nn", "fp32", (1024, 1024, 1024, 1), "offline", {}, "passed", None, 50.0, "cublas", 42.0,
    estimate(0.84, 0.83, 0.85), 0.14, 42.9, LIBRARIES,
)  # fmt: skip
LARGE = Row(
    "fast", "a" * 64, "nn", "fp32", (8192, 8192, 4096, 2), "offline", {"BM": 64}, "passed", None, 2000.0, "torch", 2000.0,
    estimate(1.0, 0.995, 1.02), 0.55, 549.8,
)  # fmt: skip
BROKEN = Row("bad", "c" * 64, "nt", "fp32", (64, 64, 64, 1), "offline", {}, "incorrect", "exact-integers: 1 of 4,096 wrong")
RESTLESS = Row(
    "fast", "a" * 64, "nn", "fp32", (64, 64, 64, 1), "offline", {}, "inconclusive", None, 3.0, "cublas", 3.0, None, 0.1, 0.2
)
ROWS = [FAST, SLOW, LARGE, BROKEN, RESTLESS]


# --- tables -----------------------------------------------------------------------------------------------------------


def printed(rows):
    out = io.StringIO()
    print_rows(rows, Console(file=out, width=140, highlight=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


TABLE = """\
shape                   kernel          us  TFLOP/s  roofline  against       us  ratio  95 %
1024x1024x1024          fast (nn)    40.00     53.7      0.17  cublas     42.00  1.050  1.040-1.060  win
1024x1024x1024          slow (nn)    50.00     42.9      0.14  cublas     42.00  0.840  0.830-0.850  loss
8192x8192x4096 batch 2  fast (nn)  2000.00    549.8      0.55  torch    2000.00  1.000  0.995-1.020  tie
64x64x64                bad (nt)                                                                     incorrect
64x64x64                fast (nn)                                                                    inconclusive
bad at 64x64x64: incorrect at gate exact-integers: 1 of 4,096 wrong
fast: below 10 GFLOP, 1 shape: geometric mean of the ratios 1.050
fast: above 300 GFLOP, 1 shape: geometric mean of the ratios 1.000
fast: all sizes, 2 shapes: geometric mean of the ratios 1.025
slow: below 10 GFLOP, 1 shape: geometric mean of the ratios 0.840
slow: all sizes, 1 shape: geometric mean of the ratios 0.840
"""

CSV = f"""\
kernel,digest,layout,accumulate,m,n,k,batch,mode,status,\
time_us,tflops,roofline,baseline,baseline_us,ratio,low,high,standing,message
fast,{"a" * 64},nn,fp32,1024,1024,1024,1,offline,passed,40.0,53.7,0.17,cublas,42.0,1.05,1.04,1.06,win,
slow,{"b" * 64},nn,fp32,1024,1024,1024,1,offline,passed,50.0,42.9,0.14,cublas,42.0,0.84,0.83,0.85,loss,
fast,{"a" * 64},nn,fp32,8192,8192,4096,2,offline,passed,2000.0,549.8,0.55,torch,2000.0,1.0,0.995,1.02,tie,
bad,{"c" * 64},nt,fp32,64,64,64,1,offline,incorrect,,,,,,,,,,"exact-integers: 1 of 4,096 wrong"
fast,{"a" * 64},nn,fp32,64,64,64,1,offline,inconclusive,3.0,0.2,0.1,cublas,3.0,,,,,
"""


def test_the_table_for_people():
    assert printed(ROWS) + "\n" == TABLE


def test_the_csv_has_one_line_a_row_and_numbers_in_full():
    assert rows_csv(ROWS) == CSV


def test_the_json_has_rows_means_and_the_environment():
    data = json.loads(rows_json(ROWS, {"card": "NVIDIA A100-SXM4-80GB"}))
    assert data["environment"] == {"card": "NVIDIA A100-SXM4-80GB"}
    assert data["rows"][0] == json.loads(json.dumps(plain(FAST)))
    assert {**data["rows"][0], "libraries_us": 0, "ratio": 0, "interval": 0} == {
        "kernel": "fast", "digest": "a" * 64, "layout": "nn", "accumulate": "fp32", "sizes": [1024, 1024, 1024, 1],
        "mode": "offline", "tunables": {"BM": 64}, "status": "passed", "message": None, "time_us": 40.0, "baseline": "cublas",
        "baseline_us": 42.0, "roofline": 0.17, "tflops": 53.7, "libraries_us": 0, "percentiles_us": {}, "ratio": 0,
        "interval": 0, "standing": "win",
    }  # fmt: skip
    assert data["rows"][0]["ratio"] == pytest.approx(1.05)
    assert data["rows"][0]["interval"] == pytest.approx([1.04, 1.06])
    assert data["rows"][3]["standing"] is None
    assert data["means"][0] == {
        "kernel": "fast", "sizes": "below 10 GFLOP", "n_shapes": 1, "geometric_mean": pytest.approx(1.05),
    }  # fmt: skip


def test_cuda_l2s_columns_are_those_of_its_files_and_max_is_over_the_faster_library():
    header, *lines = csv.reader(io.StringIO(cuda_l2_csv(ROWS)))
    assert header == [
        "mnk", "torch.matmul", "cuBLAS-tn", "cuBLAS-nn", "cuBLAS-max", "cuBLASLt-heuristic-tn", "cuBLASLt-heuristic-nn",
        "cuBLASLt-heuristic-max", "cuBLASLt-auto-tuning-tn", "cuBLASLt-auto-tuning-nn", "cuBLASLt-auto-tuning-max",
    ]  # fmt: skip
    # The faster kernel's 40 us; what did not run is empty, and the larger of one is that one.
    assert lines[0] == ["1024_1024_1024", "1.100", "1.025", "1.050", "1.025", "1.000", "", "1.000", "", "", ""]
    assert [line[0] for line in lines] == ["1024_1024_1024", "8192_8192_4096", "64_64_64"]
    assert cuda_l2_csv([BROKEN]).splitlines() == [",".join(header)]


def test_means_are_geometric_by_size_and_over_all():
    assert [(kernel, words, n) for kernel, words, n, _ in buckets(ROWS)] == [
        ("fast", "below 10 GFLOP", 1), ("fast", "above 300 GFLOP", 1), ("fast", "all sizes", 2),
        ("slow", "below 10 GFLOP", 1), ("slow", "all sizes", 1),
    ]  # fmt: skip
    assert buckets(ROWS)[2][3] == pytest.approx(1.05**0.5)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(1.011, 1.2, "win"), (1.009, 1.2, "tie"), (0.9, 1.1, "tie"), (0.8, 0.991, "tie"), (0.8, 0.989, "loss")],
)
def test_a_kernel_wins_or_loses_only_where_the_interval_clears_the_margin(low, high, words):
    assert standing(estimate((low + high) / 2, low, high)) == words


def test_other_modes_have_latencies_and_neither_roofline_nor_rate():
    row = Row(
        "fast", "a" * 64, "nn", "fp32", (64, 64, 64, 1), "server", {}, "passed", None, 12.0, "cublas", 15.0,
        estimate(1.25, 1.2, 1.3), None, 9.9, {}, {"p50": (12.0, 15.0), "p99": (31.25, 40.0)},
    )  # fmt: skip
    text = printed([row])
    assert "roofline" not in text
    assert "TFLOP/s" not in text
    assert "fast at 64x64x64: p50 12.0 against 15.0 us, p99 31.2 against 40.0 us" in text


def test_names_that_would_style_or_move_the_cursor_are_shown_as_they_are():
    names = ["[bold]x[/y]", "a\x1b[2Jb"]
    rows = [Row(name, "d" * 64, "nn", "fp32", (8, 8, 8, 1), "offline", {}, "rejected", "screen: no") for name in names]
    text = printed(rows)
    assert "[bold]x[/y] (nn)" in text
    assert "a\\x1b[2Jb (nn)" in text
    assert "\x1b" not in text


def test_results_that_cannot_be_written_are_one_line(tmp_path):
    with pytest.raises(StorageError, match="the results cannot be written"):
        write_text(tmp_path / "no" / "folder.csv", "x")


# --- what it takes ----------------------------------------------------------------------------------------------------


def test_shapes_come_from_named_sets_and_lists_each_once():
    small = SHAPE_SETS["small"]
    assert parse_shapes(["64,64,64", "small", "8, 16,24,3"]) == (*small, (8, 16, 24, 3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-1,64,64", "expected M,N,K or M,N,K,BATCH, or one of grid-1000"), ("tenn", "or one of"), ("", "or one of"),
        ("64,-64,64", "expected M,N,K or M,N,K,BATCH, found"), ("64,64", "found '64,64'"), ("64,64,64,1,1", "found"),
        ("0,64,64", "each from 1 to 65536"), ("64,64,64,0", "each from 1 to 65536"), ("64,65537,64", "each from 1 to 65536"),
        ("65536,65536,64", "operands of at most 2147483648 bytes"), ("9" * 5000 + ",1,1", "the shape cannot be used"),
        ("6\u0664,64,64", "the shape cannot be used"), ("1e3,64,64", "the shape cannot be used"),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be_measured_are_the_users_mistake_in_one_short_line(text, words):
    with pytest.raises(ConfigurationError) as raised:
        parse_shapes(["64,64,64", text])
    assert words in str(raised.value)
    assert len(str(raised.value)) < 200


def tunable(*domains):
    lines = [f"constexpr int T{i} = {domain[0]}; //? {' '.join(map(str, domain))}" for i, domain in enumerate(domains)]
    return Kernel("\n".join(["//! layout nn", "//! launch k(A: in, B: in, C: out, M, N, K)", *lines, ""]), "cuda")


def values(kernels):
    return [tuple(t.value for t in kernel.tunables) for kernel in kernels]


def test_few_settings_are_all_tried_and_the_kernel_as_it_stands_comes_first():
    found = settings_of(tunable((16, 32), (1, 2, 3)), 6)
    assert values(found)[0] == (16, 1)
    assert sorted(values(found)) == [(a, b) for a in (16, 32) for b in (1, 2, 3)]


def test_many_settings_are_tried_by_lot_the_same_ones_each_time():
    kernel = tunable(*[tuple(range(1, 11))] * 4)
    found = settings_of(kernel, 12)
    assert values(found)[0] == (1, 1, 1, 1)
    assert 12 <= len(found) <= 13
    assert len(set(values(found))) == len(found)
    assert values(settings_of(kernel, 12)) == values(found)


def test_more_settings_than_a_machine_can_number_are_tried_by_lot_too():
    found = settings_of(tunable(*[tuple(range(1, 9))] * 40), 5)
    assert 5 <= len(found) <= 6
    assert len({value for point in values(found)[1:] for value in point}) > 1


# --- without a card ---------------------------------------------------------------------------------------------------


@pytest.fixture
def no_card(tmp_path, monkeypatch):
    """A machine whose driver names no card."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "product.cu").write_text(PRODUCT)
    return tmp_path


def complaint(*arguments, status):
    done = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    assert done.exit_code == status, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("evo-l2: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_help_says_what_is_measured_and_needs_no_card(no_card):
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "bench", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for words in ("--shapes M", "--mode [offline|server|host]", "--against FILE", "--cuda-l2 FILE", "--db FILE"):
        assert words.split()[0] in done.stdout
    assert "against the vendor's libraries" in " ".join(done.stdout.split())
    assert done.stderr == ""


def test_a_machine_without_a_card_is_one_clear_line(no_card):
    words = complaint(no_card / "product.cu", status=1)
    assert "there is no card to run on" in words
    assert "nvidia-smi names none" in words


def test_mistakes_are_found_before_a_card_is_asked_for(no_card):
    assert "there is nothing to measure" in complaint(status=2)
    assert "cannot be read" in complaint(no_card / "none.cu", status=2)
    assert "no such archive" in complaint("--db", no_card / "none.db", status=1)
    assert "from 1 to 65536" in complaint(no_card / "product.cu", "--shapes", "0,1,1", status=2)
    assert "cannot be read" in complaint(no_card / "product.cu", "--against", no_card / "none.cu", status=2)


def test_verify_falls_back_to_building_and_says_that_nothing_was_run(no_card, cuda_wheels, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(no_card))
    done = CliRunner().invoke(main, ["verify", str(no_card / "product.cu"), "--builder", "nvrtc"])
    assert done.exit_code == 0, done.output
    assert "(sm_80); nothing was run" in done.stdout
    assert "built: every gate before the launch was passed" in done.stdout


# --- on a card --------------------------------------------------------------------------------------------------------

SHAPE = (32, 24, 40, 1)


@pytest.fixture(scope="module")
def rig(cuda_wheels, shared_card, session_cache):
    timing = CardTimingSettings(blocks=8, final_blocks=8, sample_us=100.0)
    folder, names = session_cache / "evo-l2" / "cuda", ("cublas",)
    with Rig(folder, find_card("A100"), builder="nvrtc", timing=timing, baselines=names) as it:
        yield it


@pytest.fixture
def card(shared_card):
    yield shared_card
    shared_card.reset()


def test_a_kernel_is_measured_against_every_library_in_both_layouts(rig, card):
    card.set(kernel_us=10.0, cublas_us=20.0)
    sources = {"right": PRODUCT, "wrong": PRODUCT.replace("product", "wrong"), "refused": PRODUCT.replace("_fp16.h", "_io.h")}
    kernels = [(name, Kernel(source, "cuda")) for name, source in sources.items()]
    right, incorrect, rejected = bench(rig, kernels, [SHAPE], "fp32", both_layouts=True)
    assert (right.status, right.baseline, right.sizes) == ("passed", "cublas", SHAPE)
    assert (right.time_us, right.baseline_us) == (pytest.approx(10.0), pytest.approx(20.0))
    assert right.estimate.speedup == pytest.approx(2.0)
    assert right.tflops == pytest.approx(2 * 32 * 24 * 40 / 10e-6 / 1e12)
    assert right.roofline == pytest.approx(2 * (32 * 40 + 40 * 24 + 32 * 24) / 2039e9 / 10e-6)
    assert dict(right.libraries_us) == {"cublas-nn": pytest.approx(20.0), "cublas-nt": pytest.approx(20.0)}
    assert (incorrect.status, incorrect.time_us) == ("incorrect", None)
    assert incorrect.message.startswith("exact-integers: ")
    assert (rejected.status, rejected.time_us) == ("rejected", None)
    assert rejected.message.startswith("includes: line 5: <cuda_io.h> may not be included")


@pytest.mark.parametrize("mode", ["host", "server"])
def test_latencies_are_seen_from_the_host(rig, card, monkeypatch, mode):
    monkeypatch.setattr(bench_module, "_SERVER_CALLS", 40)
    (row,) = bench(rig, [("right", Kernel(PRODUCT, "cuda"))], [SHAPE], "fp32", mode=mode)
    assert row.status in ("passed", "inconclusive")
    assert row.time_us > 0
    assert row.roofline is None
    assert list(row.percentiles_us) == (["p50", "p95", "p99"] if mode == "server" else [])


@pytest.mark.parametrize("mode", ["host", "server"])
def test_a_library_that_fails_while_it_is_timed_is_never_the_kernels_fault(rig, card, monkeypatch, mode):
    rows = bench(rig, [("right", Kernel(PRODUCT, "cuda"))], [SHAPE], "fp32", mode=mode)
    former = rig.prove

    def prove(*arguments):
        found = former(*arguments)
        card.set(cublas="traps")
        return found

    monkeypatch.setattr(rig, "prove", prove)
    with pytest.raises(DeviceError, match=r"the baseline fails: found .*ILLEGAL_ADDRESS"):
        list(rows)
    rig.baselines.close()


@pytest.fixture
def machine(fake_card, no_card, cuda_wheels, session_cache, monkeypatch):
    """A machine with the fake card, whose driver's tool names it."""
    (no_card / "bin" / "nvidia-smi").write_text("#!/bin/sh\ncase $1 in *name,*) echo 'NVIDIA A100-SXM4-80GB, 8.0';; esac\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(session_cache))
    monkeypatch.setattr("evo_l2.targets.cuda.card.baselines.baseline_names", lambda: ("torch", "cublas"))
    return no_card


def test_the_command_prints_and_writes_what_it_measured(machine):
    files = {option: machine / option for option in ("csv", "json-to", "cuda-l2")}
    options = [word for option, path in files.items() for word in (f"--{option}", str(path))]
    arguments = [str(machine / "product.cu"), "--shapes", "32,24,40", "--blocks", "8", "--builder", "nvrtc", *options]
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 0, done.output
    assert "32x24x40" in done.stdout
    assert "product: below 10 GFLOP, 1 shape: geometric mean of the ratios 2.000" in done.stdout
    (row,) = csv.DictReader(io.StringIO(files["csv"].read_text()))
    assert (row["kernel"], row["status"], row["standing"], row["baseline"]) == ("product", "passed", "win", "cublas")
    data = json.loads(files["json-to"].read_text())
    assert data["environment"]["card"] == "NVIDIA A100-SXM4-80GB"
    assert data["rows"][0]["libraries_us"]["torch-nn"] is None
    assert files["cuda-l2"].read_text().splitlines()[1].startswith("32_24_40,,2.000,2.000,2.000,,")
    done = CliRunner().invoke(main, ["verify", str(machine / "product.cu"), "--shape", "32,24,40", "--builder", "nvrtc"])
    assert done.exit_code == 0, done.output
    assert "passed: 2.000x of the baseline's speed" in done.stdout


def test_a_kernel_is_measured_against_another_and_what_was_measured_is_kept_when_the_card_fails(machine, fake_card):
    fake_card.set(room_bytes=300_000)
    kernel, shapes = str(machine / "product.cu"), ("--shapes", "32,24,40", "--shapes", "256,256,256")
    options = ("--against", kernel, "--blocks", "8", "--builder", "nvrtc", "--csv", str(machine / "rows.csv"))
    done = CliRunner().invoke(main, ["bench", kernel, *shapes, *options])
    assert done.exit_code == 1
    assert done.stderr.startswith("evo-l2: the card has no room: ")
    (row,) = csv.DictReader(io.StringIO((machine / "rows.csv").read_text()))
    assert (row["m"], row["baseline"], row["standing"], float(row["ratio"])) == ("32", "kernel", "tie", 1.0)
    assert "32x24x40" in done.stdout


def test_results_that_would_be_lost_are_refused_before_anything_is_measured(tmp_path):
    kernel = tmp_path / "kernel.cu"
    kernel.write_text(dict(zip(seed_names("cuda", "nn"), load_seeds("cuda", "nn"), strict=True))["naive_nn"].source)
    csv = tmp_path / "rows.csv"
    for options, words in (
        (["--csv", str(kernel)], "would be written over"),
        (["--csv", str(csv), "--json-to", str(csv)], "would be written over"),
        (["--csv", str(tmp_path / "none" / "rows.csv")], "cannot be written"),
    ):
        done = CliRunner().invoke(main, ["bench", str(kernel), *options])
        assert (done.exit_code, words in done.output) == (2, True), done.output
    assert kernel.read_text().startswith("//! layout")
    assert not csv.exists()
