"""Kernels with `extern __shared__` arrays, and launches that give them memory or not."""

import pytest

from evo_l2.evaluation import Status
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.cards import find_card
from evo_l2.targets.cuda.launching.dynamic_shared import dynamic_arrays
from evo_l2.targets.cuda.prepare import prepare

SOURCE = """\
//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid 1
//! block 32
SHARED
#include <cuda_fp16.h>
extern __shared__ half tile[];
__device__ __noinline__ half deep(const half *A, int i) { tile[i] = A[i]; __syncthreads(); return tile[i ^ 1]; }
extern "C" __global__ void other(const half *A, half *C) { C[0] = deep(A, threadIdx.x); }
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K) { C[0] = BODY; }
"""
PROBLEM = Hgemm(((64, 64, 64, 1), (64, 64, 128, 1)))
DIRECT, CALLED, UNUSED = "tile[(tile[M] = A[N], K)]", "deep(A, M)", "A[M]"


def verdict(nvrtc, body, shared=""):
    source = SOURCE.replace("BODY", body).replace("SHARED", shared)
    return prepare(Kernel(source, "cuda"), PROBLEM, nvrtc, find_card("A100")).verdict


@pytest.mark.parametrize("body", [DIRECT, CALLED])
def test_dynamic_memory_without_a_line_is_refused_with_the_line_to_add(nvrtc, body):
    found = verdict(nvrtc, body)
    assert (found.status, found.gate) == (Status.UNLAUNCHABLE, "shared-memory")
    assert found.message == (
        "line 2: hgemm: the kernel uses dynamic shared memory (extern __shared__ tile) and the launch gives it none: "
        "expected a line '//! shared BYTES' below the launch line, found none"
    )
    assert found.build.resources["n_instructions"] > 0


def test_a_line_that_comes_to_nothing_at_one_of_the_cases_is_refused(nvrtc):
    found = verdict(nvrtc, DIRECT, "//! shared (K - 64) * 2")
    assert found.gate == "shared-memory"
    assert found.message.endswith("found '//! shared (K - 64) * 2', which is 0 bytes at 64 x 64 x 64 x 1")


@pytest.mark.parametrize(("body", "shared"), [(DIRECT, "//! shared 512"), (CALLED, "//! shared K * 2"), (UNUSED, "")])
def test_a_launch_that_gives_memory_or_needs_none_is_passed(nvrtc, body, shared):
    assert verdict(nvrtc, body, shared) is None


def test_a_kernel_without_arrays_may_stand_before_one_with_them(nvrtc):
    source = SOURCE.replace("SHARED\n", "").replace("BODY", UNUSED)
    first, second = source.find('extern "C" __global__ void other'), source.find('extern "C" __global__ void hgemm(')
    swapped = source[:first] + source[second:] + source[first:second]
    assert prepare(Kernel(swapped, "cuda"), PROBLEM, nvrtc, find_card("A100")).verdict is None


def test_arrays_are_those_of_a_function_and_of_what_it_calls():
    ptx = """
.extern .shared .align 16 .b8 one[];
.extern .shared .align 16 .b8 two$2[];
.func (.param .b32 r) deep(.param .b32 x);
.visible .entry none(
)
{
\tret; // one
}
\t// .globl\tall
.func  (.param .b32 r) deep(
\t.param .b32 x
)
{
\tmov.u32 %r1, two$2;
\tcall.uni (r), deep, (x);
}
.weak .entry all()
{
\tmov.u32 %r1, one;
\tcall.uni (r), deep, (x);
}
"""
    assert dynamic_arrays(ptx) == {"none": (), "deep": ("two$2",), "all": ("one", "two$2")}
    assert dynamic_arrays(ptx.replace(".extern .shared", ".shared")) == {}
