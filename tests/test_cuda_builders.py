"""Builders within limits, at once, hung, killed and broken: what is the kernel's fault and what the machine's."""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from evo_l2.errors import StorageError, ToolchainError
from evo_l2.evaluation import Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt, CudaCompiler
from evo_l2.targets.cuda.toolchain.toolkit import find_toolkit

SOAK = bool(os.environ.get("EVO_L2_SOAK"))
CPU_S = 20 if SOAK else 2
"""Of one build step: what users have, or little."""
HEADER = "//! layout nn\n//! launch scale(A: in, C: out)\n//! grid 1\n//! block 128\n"
BODY = (
    "#include <cuda_fp16.h>\n"
    'extern "C" __global__ void scale(const half *A, half *C) { C[threadIdx.x] = A[threadIdx.x] * A[0]; }\n'
)


def kernel(text="", body=BODY, header=HEADER):
    return Kernel(f"{header}{text}\n{body}", "cuda")


def failure(compiler, text="", body=BODY, header=HEADER):
    """Status, gate and message of a kernel that must not come through."""
    verdict = compiler.build(kernel(text, body, header))
    assert isinstance(verdict, Verdict)
    return verdict.status, verdict.gate, verdict.message


BOMBS = {
    "templates": "template<int N, int M> struct G { static constexpr long v = G<N - 1, 2 * M>::v + G<N - 1, 2 * M + 1>::v; };"
    "template <int M> struct G<0, M> { static constexpr long v = M; };\n"
    "__global__ void g(long *a) { a[0] = G<25, 0>::v; }",
    "macros that double": "#define A0 x;\n"
    + "".join(f"#define A{i} A{i - 1} A{i - 1}\n" for i in range(1, 40))
    + "__device__ void z(int x) { A39 }",
    "a large array": "__device__ int big[1u << 29] = {1, 2};\n__global__ void g(int *p) { p[0] = big[p[1]]; }",
}


@pytest.fixture(scope="module")
def compilers(cuda_wheels, tmp_path_factory):
    """Compilers by the names of their builders."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(CudaCompiler(cuda_wheels, tmp_path_factory.mktemp(name), builder=name, cpu_s=CPU_S))
            for name in ("nvcc", "nvrtc")
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builder", "name"), [(b, n) for b in ("nvcc", "nvrtc") for n in BOMBS if SOAK or b == "nvrtc" or n == "templates"]
)
def test_bombs_end_at_the_limits(compilers, builder, name):
    compiler = compilers[builder]
    begin = time.monotonic()
    status, gate, message = failure(compiler, BOMBS[name])
    assert (status, gate) == (Status.BUILD_ERROR, "compile-limits")
    assert "smaller" in message
    assert time.monotonic() - begin < 35 + 4 * CPU_S
    assert isinstance(compiler.build(kernel(f"// after {name}")), CudaBuilt)


def build_in_process(task):
    builder, cache = task
    with CudaCompiler(find_toolkit(wheels_first=True), cache, builder=builder) as compiler:
        return compiler.build(kernel("// at once")).cubin


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["nvrtc", "nvcc"] if SOAK else ["nvrtc"])
def test_threads_and_processes_may_build_one_kernel_at_once(cuda_wheels, builder, tmp_path):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        cubins = set(pool.map(build_in_process, [(builder, tmp_path)] * 2))
    assert len(cubins) == 1
    assert cubins.pop().exists()
    with CudaCompiler(cuda_wheels, tmp_path, builder=builder) as compiler:
        with ThreadPoolExecutor(3) as pool:
            built = list(pool.map(lambda n: compiler.build(kernel(f"// thread {n % 2}")), range(4)))
        assert len({one.cubin for one in built}) == 2
        assert isinstance(compiler.build(kernel("// after threads")), CudaBuilt)
    assert not list((tmp_path / "cuda-kernels").glob(".build-*"))


class Breakable:
    """Tools that work until they are told to behave otherwise: they stand for a broken machine."""

    def __init__(self, real, folder, tool, wall_s=3.0):
        self.folder = folder
        path = folder / tool
        path.write_text(f'#!/bin/sh\nif [ -e {folder}/mood ]; then . {folder}/mood; fi\nexec {getattr(real, tool)} "$@"\n')
        path.chmod(0o755)
        toolkit = dataclasses.replace(real, homes=(*real.homes, folder), **{tool: path})
        self.compiler = CudaCompiler(toolkit, folder / "cache", builder="nvcc", cpu_s=2, wall_s=60.0)
        # The first has noted in the cache that the tools work, so that the second does not try them on a busy machine.
        self.impatient = CudaCompiler(toolkit, folder / "cache", builder="nvcc", cpu_s=2, wall_s=wall_s)

    def turn(self, script):
        (self.folder / "mood").write_text(script + "\n")

    def recover(self):
        (self.folder / "mood").unlink(missing_ok=True)


GARBAGE = "for last; do :; done; echo garbage > $last; exit 0"
"""A cubin that is none, from a tool that says nothing."""
LINK = "for last; do :; done; ln -s /dev/zero $last; exit 0"
"""A product that has no end, if a link is followed."""
MOODS = [
    ("kill -SEGV $$", ToolchainError, "signal 11"),
    ("sleep 30", ToolchainError, "limit of time"),
    ("while :; do :; done", ToolchainError, "limit of (processor )?time"),
    ("yes yes-yes-yes-yes-yes-yes-yes-yes-yes", ToolchainError, "limit of output"),
    ("yes > huge; kill -XFSZ $$", ToolchainError, "limit of file size"),
    ("exit 0", ToolchainError, "returned 0 without a message"),
    (LINK, ToolchainError, r"nvcc \S+ to leave kernel\.\w+ as an ordinary file, found a symbolic link; try: evo"),
    ("for last; do :; done; mkdir $last; exit 0", ToolchainError, "as an ordinary file, found a folder"),
    ("for last; do :; done; mkfifo $last; exit 0", ToolchainError, "as an ordinary file, found a pipe"),
    ("for last; do :; done; ln -s /no/such/file $last; exit 1", ToolchainError, "found a symbolic link"),
    (GARBAGE, ToolchainError, "cubin, found"),
    ("echo \"nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)\" >&2; exit 1", ToolchainError, "11"),
    ("echo 'gcc: fatal error: cannot execute cc1plus' >&2; exit 1", ToolchainError, "cannot execute.*g\\+\\+"),
    ("echo 'tmpxft.ii: No space left on device' >&2; exit 1", StorageError, "No space left"),
]  # fmt: skip
"""What a tool does instead of its work, what is raised, and what that says."""
ALWAYS_WITH_PTXAS = {"kill -SEGV $$", "exit 0", GARBAGE, LINK}
"""With ptxas each costs three runs of what comes before it; these are shown always, all of them with `EVO_L2_SOAK=1`."""


@pytest.fixture(scope="module")
def breakables(cuda_wheels, tmp_path_factory):
    """A function from the name of a tool to its `Breakable`, one for all that can go wrong with it."""
    kept = {}

    def of(tool):
        if tool not in kept:
            kept[tool] = Breakable(cuda_wheels, tmp_path_factory.mktemp(tool), tool)
        kept[tool].recover()
        return kept[tool]

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "script", "error", "says"),
    [
        pytest.param(tool, *mood, id=f"{tool}-{mood[0]}")
        for tool in ("nvcc", "ptxas")
        for mood in MOODS
        if (SOAK or tool == "nvcc" or mood[0] in ALWAYS_WITH_PTXAS) and (tool, mood[0]) != ("nvcc", GARBAGE)
    ],
)
def test_a_broken_compiler_is_the_machines_fault(breakables, tool, script, error, says):
    broken = breakables(tool)
    source = kernel(f"// {script}")
    broken.turn(script)
    compiler = broken.impatient if script.startswith("sleep") else broken.compiler
    with pytest.raises(error, match=says) as caught:
        compiler.build(source)
    assert "\n" not in str(caught.value)
    broken.recover()
    assert isinstance(broken.compiler.build(source), CudaBuilt)


def test_a_compiler_that_hangs_over_one_kernel_costs_that_kernel_and_is_tried_again(cuda_wheels, tmp_path):
    moody = Breakable(cuda_wheels, tmp_path, "nvcc", wall_s=8.0)
    moody.turn("if grep -q slow kernel.cu; then sleep 30; fi")
    verdict = moody.impatient.build(kernel("// slow"))
    assert (verdict.status, verdict.gate) == (Status.BUILD_ERROR, "compile-limits")
    moody.recover()
    assert isinstance(moody.compiler.build(kernel("// slow")), CudaBuilt)


def test_a_compiler_that_vanishes_is_the_machines_fault(cuda_wheels, tmp_path):
    broken = Breakable(cuda_wheels, tmp_path, "nvcc")
    (tmp_path / "nvcc").unlink()
    with pytest.raises(ToolchainError, match="does not start"):
        broken.compiler.build(kernel())


def workers():
    """Process ids of the warm processes of this one (their leaders)."""
    listing = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    ).stdout
    return [int(line.split()[0]) for line in listing.splitlines() if "nvrtc_worker.py" in line]


def test_a_warm_process_that_was_killed_is_replaced(cuda_wheels, tmp_path):
    before = set(workers())
    with CudaCompiler(cuda_wheels, tmp_path, builder="nvrtc") as compiler:
        for n in range(2):
            assert isinstance(compiler.build(kernel(f"// {n}")), CudaBuilt)
            (mine,) = set(workers()) - before
            os.killpg(mine, signal.SIGKILL)
        assert isinstance(compiler.build(kernel("// again")), CudaBuilt)
    assert set(workers()) <= before


def test_a_build_that_has_no_end_in_time_ends_and_the_next_one_works(cuda_wheels, tmp_path):
    with CudaCompiler(cuda_wheels, tmp_path, builder="nvrtc", cpu_s=30, wall_s=3.0) as compiler:
        status, gate, message = failure(compiler, BOMBS["templates"])
        assert (status, gate) == (Status.BUILD_ERROR, "compile-limits")
        assert "limit of time" in message
        assert isinstance(compiler.build(kernel()), CudaBuilt)


def test_processes_outlive_the_thread_that_started_them(cuda_wheels, tmp_path):
    with CudaCompiler(cuda_wheels, tmp_path, builder="nvrtc") as compiler:
        before = workers()
        assert before
        with ThreadPoolExecutor(1) as pool:
            pool.submit(compiler.build, kernel("// in a thread")).result()
        assert isinstance(compiler.build(kernel("// outside")), CudaBuilt)
        assert workers() == before


def test_nvrtc_that_does_not_load_is_one_clear_line(cuda_wheels, tmp_path):
    (tmp_path / "libnvrtc.so.13").write_text("no library")
    toolkit = dataclasses.replace(cuda_wheels, nvrtc=tmp_path / "libnvrtc.so.13", homes=(tmp_path,))
    with pytest.raises(ToolchainError, match=r"NVRTC does not work.*does not load.*pip install"):
        CudaCompiler(toolkit, tmp_path / "cache", builder="nvrtc")
