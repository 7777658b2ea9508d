"""Launches held against what the real compiler makes of their kernels: entries, arguments, blocks, tensor maps."""

import re

import pytest

from evo_l2.evaluation import Status
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.cards import find_card
from evo_l2.targets.cuda.launching.plan import check_plan, plan
from evo_l2.targets.cuda.reading.cubin import read_cubin
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt

SIZES = (300, 520, 1024, 2)
PROBLEM = Hgemm((SIZES,), layouts=("nn", "nt"))
A100, H100, B200 = (find_card(name) for name in ("A100", "H100", "B200"))

REAL = """\
#include <cuda.h>
#include <cuda_fp16.h>
struct Bytes { char values[128]; };
extern "C" __global__ void __launch_bounds__(128)
hgemm(const half *A, const half *B, half *C, int M, int N, int K) { C[threadIdx.x] = __hadd(A[M], B[N + K]); }
extern "C" __global__ void wide(const half *A, const half *B, half *C, long long M, int N, int K)
{ C[M] = __hadd(A[N], B[K]); }
__global__ void mangled(const half *A, const half *B, half *C, int M, int N, int K) { C[M] = __hadd(A[N], B[K]); }
extern "C" __global__ void mapped(int M, const __grid_constant__ CUtensorMap TA, const half *B, half *C)
{ C[M] = __hadd(B[0], __ushort_as_half((unsigned short)(unsigned long long)&TA)); }
extern "C" __global__ void bytes(int M, const __grid_constant__ Bytes TA, const half *B, half *C)
{ C[M + TA.values[M]] = B[0]; }
"""
POINTERS_AND_SIZES = "A: in, B: in, C: out, M, N, K"
WITH_A_MAP = "M, TA: map, B: in, C: out"


@pytest.fixture(scope="module", params=["sm_80", "sm_90a", "sm_100a"])
def real_code(request, nvrtc):
    """What the real compiler makes of `REAL`."""
    made = nvrtc.build(
        Kernel("//! layout nn\n//! launch hgemm(A: in)\n//! grid 1\n//! block 1\n" + REAL, "cuda"), request.param
    )
    assert isinstance(made, CudaBuilt), made
    return read_cubin(made.cubin)


@pytest.mark.parametrize(
    ("entry_name", "arguments", "block", "gate", "says"),
    [
        ("hgemm", POINTERS_AND_SIZES, 128, None, None),
        ("hgemm", POINTERS_AND_SIZES, 129, "block-size", "at most 128 threads"),
        ("hgemm", "A: in, B: in, C: out, M, N, K, BATCH", 128, "arguments", "expected 6 arguments, .* found 7"),
        ("hgemm", "M, B: in, C: out, A: in, N, K", 128, "arguments", "argument 1, M: expected int"),
        ("wide", POINTERS_AND_SIZES, 128, "arguments", r"argument 4, M: expected int \(4 bytes\), .* of 8 bytes"),
        ("mangled", POINTERS_AND_SIZES, 128, "entries", 'for want of extern "C"'),
        ("mapped", WITH_A_MAP, 128, "tensor-maps", "no tensor maps before sm_90"),
        ("mapped", "M, A: in, B: in, C: out", 128, "arguments", "argument 2, A: expected const pointer"),
        ("bytes", WITH_A_MAP, 128, "arguments", "argument 2, TA: .* not aligned to 64 bytes"),
    ],
)  # fmt: skip
def test_what_the_compiler_made_is_held_against_the_launch(real_code, entry_name, arguments, block, gate, says):
    card = {"sm_80": A100, "sm_90a": H100, "sm_100a": B200}[real_code.arch]
    source = f"//! layout nn\n//! launch {entry_name}({arguments})\n//! grid 1\n//! block {block}\n"
    source += "//! tensormap TA: A, box 64, 64\n" if "map" in arguments else ""
    verdict = check_plan(plan(Kernel(source, "cuda"), PROBLEM, SIZES, card.n_sms), real_code, card)
    if gate is None or (gate == "tensor-maps" and card is not A100):
        assert verdict is None
        return
    assert verdict is not None
    assert (verdict.status, verdict.gate) == (Status.UNLAUNCHABLE, gate)
    assert re.search(says, verdict.message), verdict.message
