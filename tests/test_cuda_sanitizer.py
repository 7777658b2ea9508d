"""What compute-sanitizer says, in plain words; small cases; and, on a card, defects that it alone sees."""

import os
from pathlib import Path

import numpy as np
import pytest

from evo_l2.evaluation import Status
from evo_l2.judge import Failure
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.card.sanitizer import TOOLS, find_sanitizer, read_report, sanitize, small_instance
from experiments.seeds import load_seeds, seed_names

CLEAN = """========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __shared__ write of size 4 bytes
=========     at hgemm+0x2a0 in kernel.cu:22
=========     by thread (31,7,0) in block (2,0,0)
=========     Address 0x1040 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernelEx [0x35b5a3] in libcuda.so.1
=========
========= Invalid __shared__ write of size 4 bytes
=========     at hgemm+0x2a0 in kernel.cu:22
=========     by thread (30,7,0) in block (2,0,0)
=========     Address 0x103c is out of bounds
=========
the kernel's fault: the kernel reached memory that is not mapped (CUDA_ERROR_ILLEGAL_ADDRESS)
========= ERROR SUMMARY: 64 errors
========= ERROR SUMMARY: 60 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
NEAREST = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 2 bytes
=========     at hgemm+0x150
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f52c4a05400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f52c4a00000 of size 21504 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
========= ERROR SUMMARY: 1 error
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at hgemm+0x570
=========     and Write access at hgemm+0x3d0 [61440 hazards]
=========     and Write access at hgemm+0x410 [61440 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNED = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Write access at hgemm+0x3d0
=========     and Write access at hgemm+0x3d0 [32 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
JUNK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at hgemm+0x120
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f52c4a00000
=========     Saved host backtrace up to driver entry point at kernel launch time
=========
========= ERROR SUMMARY: 7680 errors
"""
BARRIER = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at hgemm+0x200
=========     by thread (16,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 16 errors
"""
NO_CARD = """========= COMPUTE-SANITIZER
not launched: the driver says CUDA_ERROR_NO_DEVICE
========= ERROR SUMMARY: 0 errors
"""
BROKEN = """========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
"""


@pytest.mark.parametrize(
    ("tool", "text", "status", "words"),
    [
        (
            "memcheck",
            OUT_OF_BOUNDS,
            Status.RUNTIME_ERROR,
            "Invalid __shared__ write of size 4 bytes, at hgemm+0x2a0 in kernel.cu",
        ),
        ("memcheck", OUT_OF_BOUNDS, Status.RUNTIME_ERROR, "Address 0x1040 is out of bounds (the first of 64 findings)"),
        ("memcheck", NEAREST, Status.RUNTIME_ERROR, "is out of bounds and is 1 bytes after the nearest allocation"),
        (
            "racecheck",
            RACE,
            Status.INCORRECT,
            "Race reported between Read access at hgemm+0x570 and Write access at hgemm+0x3d0",
        ),
        ("initcheck", JUNK, Status.INCORRECT, "Uninitialized __global__ memory read of size 4 bytes, at hgemm+0x120"),
        ("synccheck", BARRIER, Status.RUNTIME_ERROR, "Barrier error detected. Divergent thread(s) in block, at hgemm+0x200"),
    ],
)
def test_the_first_finding_is_told_in_words(tool, text, status, words):
    found = read_report(tool, text)
    assert isinstance(found, Failure)
    assert (found.status, found.gate) == (status, "sanitizer")
    assert found.message.startswith(f"{tool}: ")
    assert words in found.message
    assert "backtrace" not in found.message


@pytest.mark.parametrize(("tool", "text"), [("memcheck", CLEAN), ("initcheck", CLEAN), ("racecheck", WARNED)])
def test_a_clean_run_finds_nothing(tool, text):
    assert read_report(tool, text) is None


@pytest.mark.parametrize(
    ("text", "words"), [(NO_CARD, "NO_DEVICE"), (BROKEN, "before first instrumented"), ("", "no output"), (RACE, "hazard")]
)
def test_a_tool_that_did_not_come_to_its_end_says_nothing_about_the_kernel(text, words):
    found = read_report("memcheck", text)
    assert isinstance(found, str)
    assert words in found


def test_a_kernel_that_ends_its_run_is_at_fault_even_where_the_tool_is_silent():
    text = CLEAN + "the kernel's fault: the kernel made an access that is not aligned to its size\n"
    assert read_report("initcheck", text).status is Status.RUNTIME_ERROR


def seed(name):
    return dict(zip(seed_names("cuda", "nn"), load_seeds("cuda", "nn"), strict=True))[name]


@pytest.mark.parametrize(
    ("sizes", "small"),
    [
        ((96, 80, 112, 1), (96, 80, 112, 1)),
        ((512, 512, 512, 2), (512, 512, 512, 2)),
        ((4096, 4100, 16384, 5), (512, 452, 512, 2)),
    ],
)
def test_a_case_is_made_small_and_keeps_its_edges(sizes, small):
    kernel = seed("tiled_nn")
    found = small_instance(kernel, Instance(Hgemm((sizes,)), sizes, "nn"), 132)
    assert found.sizes == small
    tiles = [kernel.constants[name] for name in ("BM", "BN", "BK")]
    assert [s % t for s, t in zip(found.sizes, tiles, strict=False)] == [s % t for s, t in zip(sizes, tiles, strict=False)]


def test_a_case_stays_where_the_small_one_cannot_be_launched():
    source = "//! layout nn\n//! launch f(A: in, B: in, C: out, M)\n//! grid M / 1024\n//! block 32\nint f;\n"
    instance = Instance(Hgemm(((4096, 64, 64, 1),)), (4096, 64, 64, 1), "nn")
    assert small_instance(Kernel(source, "cuda"), instance, 132) is instance


def test_without_the_tool_the_report_says_so(monkeypatch):
    monkeypatch.setattr("evo_l2.targets.cuda.card.sanitizer.find_sanitizer", lambda: None)
    report = sanitize(seed("naive_nn"), b"", Instance(Hgemm(((8, 8, 8, 1),)), (8, 8, 8, 1), "nn"), 132, 0)
    assert (report.failure, report.checked) == (None, ())
    assert set(report.unchecked) == set(TOOLS)
    assert all("CUDA_HOME" in reason for reason in report.unchecked.values())


def fake_tool(folder, script):
    path = folder / "compute-sanitizer"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_tools_are_asked_in_turn_until_one_finds_something(tmp_path):
    (tmp_path / "race").write_text(RACE)
    (tmp_path / "clean").write_text(CLEAN)
    tool = fake_tool(
        tmp_path, f"echo $2 >> {tmp_path}/asked; [ $2 = racecheck ] && cat {tmp_path}/race || cat {tmp_path}/clean"
    )
    instance = Instance(Hgemm(((8, 8, 8, 1),)), (8, 8, 8, 1), "nn")
    report = sanitize(seed("naive_nn"), b"", instance, 132, 0, tool=tool)
    assert report.failure is not None
    assert report.checked == ("memcheck", "racecheck")
    assert (tmp_path / "asked").read_text().split() == ["memcheck", "racecheck"]


def test_a_tool_that_takes_too_long_is_ended_and_named(tmp_path):
    tool = fake_tool(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    instance = Instance(Hgemm(((8, 8, 8, 1),)), (8, 8, 8, 1), "nn")
    report = sanitize(seed("naive_nn"), b"", instance, 132, 0, tool=tool, tools=("memcheck",), limit_s=0.5)
    assert report.failure is None
    assert "did not end within" in report.unchecked["memcheck"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_tool_is_found_below_a_toolkit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    tool = fake_tool(tmp_path / "bin", "exit 0")
    assert find_sanitizer() == tool
    tool.unlink()
    assert find_sanitizer() in (
        None,
        Path("/usr/local/cuda/bin/compute-sanitizer"),
        Path("/usr/local/cuda/compute-sanitizer/compute-sanitizer"),
    )


BASE = """//! layout nn
//! workspace W 4096
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 16), ceil_div(M, 16)
//! block 16, 16
#include <cuda_fp16.h>
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, float *W, int M, int N, int K)
{
    __shared__ float a[16][16], b[16][16];
    const int x = threadIdx.x, y = threadIdx.y, i = blockIdx.y * 16 + y, j = blockIdx.x * 16 + x;
    float sum = 0;
    for (int k = 0; k < K; k += 16) {
        a[y][x] = i < M && k + x < K ? __half2float(A[i * K + k + x]) : 0.0f;
        b[y][x] = j < N && k + y < K ? __half2float(B[(k + y) * N + j]) : 0.0f;
        __syncthreads();
        for (int p = 0; p < 16; p++)
            sum += a[y][p] * b[p][x];
        __syncthreads();
    }
    if (i < M && j < N)
        C[i * N + j] = __float2half(sum);
}
"""
PLANTED = {
    "memcheck": ("b[y][x] =", "b[y + (k > 16 ? M : 0)][x] ="),
    "racecheck": ("        __syncthreads();\n    }", "    }"),
    "initcheck": ("float sum = 0;", "float sum = W[x] == 1e30f ? 1 : 0;"),
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    from evo_l2.targets.cuda.card.rig import Rig
    from evo_l2.targets.cuda.devices import choose_card, present_devices

    if not present_devices():
        pytest.skip("nvidia-smi names no card")
    if find_sanitizer() is None:
        pytest.skip("compute-sanitizer is neither on PATH nor under CUDA_HOME")
    card, device = choose_card("auto", present_devices())
    with Rig(tmp_path_factory.mktemp("cache"), card, device, builder="nvrtc", baselines=("cublas",)) as rig:
        yield rig


@pytest.mark.gpu
@pytest.mark.parametrize("tool", PLANTED)
def test_a_planted_defect_is_found(rig, tool):
    before, after = PLANTED[tool]
    assert BASE.count(before) == 1
    problem = Hgemm(((96, 80, 112, 1),))
    prepared = rig.prepare(Kernel(BASE.replace(before, after), "cuda"), problem)
    report = rig.sanitize(prepared, Instance(problem, problem.cases[0], "nn"))
    assert report.failure is not None, report.unchecked
    assert report.failure.message.startswith(f"{tool}: "), report.failure.message


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["base", *seed_names("cuda", "nn")])
def test_an_honest_kernel_is_clean(rig, name):
    kernel = Kernel(BASE, "cuda") if name == "base" else seed(name)
    accumulate = "fp16" if ".f16.f16.f16.f16" in kernel.source else "fp32"
    problem = Hgemm(((200, 136, 168, 1),), accumulate)
    prepared = rig.prepare(kernel, problem)
    if prepared.verdict is not None and not rig.card.arch.startswith("sm_9"):
        pytest.skip(prepared.verdict.message)
    assert prepared.verdict is None, prepared.verdict.message
    report = rig.sanitize(prepared, Instance(problem, problem.cases[0], "nn"))
    assert report.failure is None, report.failure.message
    assert {"memcheck", "initcheck", "synccheck"} <= set(report.checked), report.unchecked


@pytest.mark.gpu
def test_finalists_are_asked(rig):
    from evo_l2.targets.cuda.evaluator import CudaEvaluator

    before, after = PLANTED["initcheck"]
    reports = []
    evaluator = CudaEvaluator(Hgemm(((96, 80, 112, 1),)), rig, observe=reports.append)
    prepared = evaluator.prepare(Kernel(BASE.replace(before, after), "cuda"))
    verdict = evaluator.measure(prepared, np.random.SeedSequence(3), purpose="final").verdict
    assert (verdict.status, verdict.gate) == (Status.INCORRECT, "sanitizer")
    assert reports[-1].gate == "sanitizer"
