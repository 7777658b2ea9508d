"""What a library's launcher in C asks of the driver is what the plan of every CUDA seed says, at several shapes."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evo_l2.kernel import Kernel
from evo_l2.launch import Role
from evo_l2.targets.cpu.toolchain import find_toolchain
from evo_l2.targets.cuda.launching.plan import plan
from experiments.library.cuda_package import CudaCubin, write_cuda


def _load(name):
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load("library_cases")
long = pytest.mark.skipif(not os.environ.get("EVO_L2_SOAK"), reason="takes long: EVO_L2_SOAK=1")
N_SMS = 132
SHAPES = ((256, 384, 512, 1), (1024, 1024, 4096, 1), (40, 72, 136, 3), (8192, 64, 64, 1))
ZEROED = """\
//! layout nn
//! tensormap TA: A, box 64, 32, swizzle 64
//! tensormap TC: C, box 1, 8, 8, promotion 256
//! workspace junk 1000 + M
//! workspace sums BATCH * M * N * 4 zeroed
//! launch hgemm(N, TA: map, B: in, sums: workspace, BATCH, junk: workspace)
//! block 8, 4, 2
//! cluster 2, 2, 1
//! grid SMS, 2
//! launch add(sums: workspace, TC: map, C: out)
//! grid 1
//! block 32
"""
"""What no seed has: zeros, two workspaces, maps of two dimensions and of C, and the number of multiprocessors."""
SEEDS = {(layout, name): kernel for layout in ("nn", "nt") for name, kernel in cases.seeds("cuda", layout).items()}
SEEDS["nn", "zeroed"] = Kernel(ZEROED, "cuda")
WINNERS = [
    # Eight kernels of one layout cannot all be the best for one shape: each has a number of rows of its own.
    cases.winner(kernel, (m + 8 * place, n, k, batch), "fp16" if name == "mma_f16" else "fp32")
    for place, ((_, name), kernel) in enumerate(SEEDS.items())
    for m, n, k, batch in SHAPES
]
A, B, C, SCRATCH, STREAM = 0x10000000000, 0x20000000000, 0x30000000000, 0x40000000000, 0x77
CALLS = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from evo_hgemm import _launcher
from evo_hgemm._products import Product
kernels = _launcher.kernels_on(0)
log = open(os.environ["FAKE_LIBCUDA_LOG"])
print(json.dumps(log.read().splitlines()))
for layout, sums, sizes, workspace in json.loads(sys.stdin.read()):
    done = kernels.launch(Product(layout, tuple(sizes)), sums, *[int(x) for x in sys.argv[2:5]], workspace, int(sys.argv[5]))
    print(json.dumps([done, log.read().splitlines()]))
"""


class Driver:
    """The stand-in for the driver, and a library whose launcher runs on it."""

    def __init__(self, folder, package, log, parameters):
        self.package = package
        self._log = log
        self.environ = {
            **os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_LIBCUDA_LOG": str(log), "PYTHONDONTWRITEBYTECODE": "1",
            "FAKE_LIBCUDA_NAME": "NVIDIA H200", "FAKE_LIBCUDA_PARAMETERS": str(parameters),
        }  # fmt: skip

    def run(self, program, *arguments, text="", **settings):
        """What a program prints, started in a process with this driver, and its errors."""
        words = [sys.executable, "-W", "always", "-W", "ignore::ResourceWarning", "-c", program, *map(str, arguments)]
        self._log.write_text("")
        environ = {**self.environ, **{f"FAKE_LIBCUDA_{name.upper()}": value for name, value in settings.items()}}
        done = subprocess.run(words, input=text, capture_output=True, text=True, env=environ, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def log(self):
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@pytest.fixture(scope="module")
def driver(tmp_path_factory, cuda_wheels):
    folder = tmp_path_factory.mktemp("library")
    include = next(path for path in cuda_wheels.include_dirs if (path / "cuda.h").exists())
    compiler = str(find_toolchain().compiler)
    source = Path(__file__).parent / "fake_libcuda" / "libcuda.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", f"-I{include}", "-o", folder / "libcuda.so.1", source], check=True
    )
    package = folder / "package"
    cubins = {winner.kernel.digest: CudaCubin(b"\x7fno cubin", "machine code") for winner in WINNERS}
    rows = write_cuda(package, cases.H200, WINNERS, cubins, "nvrtc 13.2.86", cuda_wheels.include_dirs)
    order = sorted({row.kernel.name for row in rows})
    lines = {
        f"{order.index(row.kernel.name)} {launch.entry} {' '.join(str(argument.n_bytes) for argument in launch.arguments)}\n"
        for row in rows
        for launch in plan(row.winner.kernel, row.winner.hgemm, row.winner.sizes, N_SMS).launches
    }
    parameters = folder / "parameters"
    parameters.write_text("".join(sorted(lines)))
    made = Driver(folder, package, folder / "log", parameters)
    made.order = order
    made.names = {row.winner.kernel.digest: row.kernel.name for row in rows}
    return made


@pytest.fixture(scope="module")
def asked(driver):
    """What was asked of the driver: while the library was opened, and for every product, without and with a workspace."""
    calls = [
        (winner.layout, winner.sums, winner.sizes, workspace) for winner in WINNERS for workspace in (0, SCRATCH)
    ]  # fmt: skip
    out, errors = driver.run(CALLS, driver.package, A, B, C, STREAM, text=json.dumps(calls))
    assert errors == ""
    opened, *answers = (json.loads(line) for line in out.splitlines())
    found = {}
    for (layout, sums, sizes, workspace), (done, lines) in zip(calls, answers, strict=True):
        assert done
        found[layout, sums, sizes, bool(workspace)] = [json.loads(line) for line in lines]
    return [json.loads(line) for line in opened], found


def of_kind(calls, *kinds):
    return [call for call in calls if call["call"] in kinds]


def expected_parameters(launch, planned, scratch, numbers):
    """The bytes of every argument, as a kernel takes them."""
    offsets, end = {}, 0
    for space in planned.workspaces:
        offsets[space.name] = end
        end += -(-space.n_bytes // 256) * 256
    values = []
    for argument in launch.arguments:
        if argument.role is Role.SIZE:
            values.append(argument.value.to_bytes(4, "little"))
        elif argument.role is Role.WORKSPACE:
            values.append((scratch + offsets[argument.name]).to_bytes(8, "little"))
        elif argument.role is Role.MAP:
            values.append(numbers[argument.name].to_bytes(4, "little") + b"\xab" * 124)
        else:
            values.append({"A": A, "B": B, "C": C}[argument.name].to_bytes(8, "little"))
    return [value.hex() for value in values]


@pytest.mark.parametrize("own", [False, True], ids=["allocated", "own-workspace"])
@pytest.mark.parametrize("place", range(len(SEEDS)), ids=[f"{name}_{layout}" for layout, name in SEEDS])
def test_every_seed_is_launched_as_its_plan_says(driver, asked, place, own):
    for winner in WINNERS[place * len(SHAPES) : (place + 1) * len(SHAPES)]:
        planned = plan(winner.kernel, winner.hgemm, winner.sizes, N_SMS)
        calls = asked[1][winner.layout, winner.sums, winner.sizes, own]
        n_bytes = sum(-(-space.n_bytes // 256) * 256 for space in planned.workspaces)
        kinds = ["memset" for space in planned.workspaces if space.zeroed and space.n_bytes]
        kinds += ["encode"] * len(planned.tensor_maps) + ["launch"] * len(planned.launches)
        allocates = n_bytes > 0 and not own
        assert [call["call"] for call in calls] == (["allocate", *kinds, "free"] if allocates else kinds)
        scratch = SCRATCH
        if allocates:
            assert calls[0]["bytes"] == n_bytes
            scratch = calls[0]["address"]
            assert calls[-1]["address"] == scratch
        for tensor, call in zip(planned.tensor_maps, of_kind(calls, "encode"), strict=True):
            assert call["address"] == {"A": A, "B": B, "C": C}[tensor.operand]
            assert (call["shape"], call["strides"]) == (list(tensor.shape[::-1]), list(tensor.strides_bytes[::-1]))
            assert (call["box"], call["element_strides"]) == (list(tensor.box[::-1]), [1] * len(tensor.box))
            assert call["swizzle"] == {0: 0, 32: 1, 64: 2, 128: 3}[tensor.swizzle_bytes]
            assert call["promotion"] == {0: 0, 64: 1, 128: 2, 256: 3}[tensor.promotion_bytes]
            assert (call["type"], call["interleave"], call["fill"], call["misplaced"]) == (6, 0, 0, 0)
        encoded = of_kind(calls, "encode")
        numbers = {tensor.name: call["number"] for tensor, call in zip(planned.tensor_maps, encoded, strict=True)}
        for launch, call in zip(planned.launches, of_kind(calls, "launch"), strict=True):
            assert call["module"] == driver.order.index(driver.names[winner.kernel.digest])
            assert (call["entry"], call["stream"], call["current"]) == (launch.entry, STREAM, 1)
            assert (tuple(call["grid"]), tuple(call["block"])) == (launch.grid, launch.block)
            assert call["shared"] == launch.shared_bytes
            assert call["attributes"] == ([[4, *launch.cluster]] if launch.cluster is not None else [])
            assert call["parameters"] == expected_parameters(launch, planned, scratch, numbers)


@pytest.mark.parametrize("kind", ["gcc", "clang"])
def test_compilers_have_nothing_to_say_of_the_launcher(driver, cuda_wheels, kind):
    compiler = shutil.which(kind)
    if compiler is None:
        pytest.skip(f"no {kind}")
    includes = [f"-I{path}" for path in cuda_wheels.include_dirs]
    words = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *includes, "-c", "-o", "/dev/null", "evo_hgemm.c"]
    subprocess.run([compiler, *words], cwd=driver.package / "evo_hgemm" / "c", check=True)


def test_the_seeds_have_all_that_a_launcher_may_be_asked_for(asked):
    """Otherwise the test above would say less than it seems to."""
    calls = [call for each in asked[1].values() for call in each]
    assert {call["call"] for call in calls} == {"allocate", "memset", "encode", "launch", "free"}
    assert any(call["attributes"] for call in of_kind(calls, "launch"))
    assert any(len(of_kind(each, "launch")) > 1 for each in asked[1].values())


def test_opening_loads_every_cubin_and_asks_for_the_most_shared_memory_of_each_entry(driver, asked):
    opened = asked[0]
    assert [call["first_byte"] for call in of_kind(opened, "load")] == [0x7F] * len(SEEDS)
    wanted = {}
    for winner in WINNERS:
        module = driver.order.index(driver.names[winner.kernel.digest])
        for launch in plan(winner.kernel, winner.hgemm, winner.sizes, N_SMS).launches:
            wanted[module, launch.entry] = max(wanted.get((module, launch.entry), 0), launch.shared_bytes)
    found = {(call["module"], call["entry"]): call["value"] for call in of_kind(opened, "attribute")}
    assert found == {place: n_bytes for place, n_bytes in wanted.items() if n_bytes > 0}
    assert found
    assert {call["attribute"] for call in of_kind(opened, "attribute")} == {8}


REFUSALS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from evo_hgemm import _launcher
from evo_hgemm._products import Product
kernels = _launcher.kernels_on(0)
good = [int(x) for x in sys.argv[2:5]]
layout, sums, sizes = json.loads(sys.stdin.read())
def ask(sizes, addresses, workspace=0):
    try:
        return kernels.launch(Product(layout, tuple(sizes)), sums, *addresses, workspace, 0)
    except RuntimeError as error:
        return str(error)
print(json.dumps([
    ask(sizes, good), ask([sizes[0] + 1, *sizes[1:]], good), ask(sizes, [good[0] + 16, *good[1:]]),
    ask(sizes, [*good[:2], 0]), ask(sizes, good, 16),
]))
kernels._library.evo_hgemm_close(kernels._handle)
"""


def product_with_workspace():
    """One that is launched twice, and needs scratch memory."""
    place = list(SEEDS).index(("nn", "splitk"))
    return WINNERS[place * len(SHAPES)]


def refusals(driver, **settings):
    chosen = product_with_workspace()
    text = json.dumps([chosen.layout, chosen.sums, chosen.sizes])
    return driver.run(REFUSALS, driver.package, A, B, C, text=text, **settings)


def test_what_the_launcher_cannot_take_is_left_to_the_vendor_and_nothing_is_enqueued(driver):
    out, errors = refusals(driver)
    assert json.loads(out) == [True, False, False, False, False]
    assert errors == ""
    kinds = [call["call"] for call in driver.log()]
    assert kinds[kinds.index("allocate") :] == ["allocate", "launch", "launch", "free", *["unload"] * len(SEEDS), "release"]


@pytest.mark.parametrize("call", ["cuLaunchKernelEx", "cuMemAllocAsync"])
def test_a_refusal_of_the_driver_is_told_in_its_words_and_gives_the_workspace_back(driver, call):
    out, _ = refusals(driver, fail=call)
    assert json.loads(out)[0] == "evo_hgemm: the CUDA driver returned 2 (out of memory)"
    kinds = [each["call"] for each in driver.log()]
    assert kinds.count("free") == (1 if call == "cuLaunchKernelEx" else 0)
    assert kinds.count("launch") == (1 if call == "cuLaunchKernelEx" else 0)


OPENING = """
import sys
sys.path.insert(0, sys.argv[1])
import evo_hgemm
from evo_hgemm import _launcher
for _ in range(2):
    print(_launcher.kernels_on(0) is not None)
print(evo_hgemm.status())
"""


@pytest.mark.parametrize(
    ("settings", "runs", "line"),
    [
        ({}, True, "ready: "),
        ({"capability": "8.0"}, False, "the card is another: these kernels were built for NVIDIA H200 (sm_90a); every "),
        ({"sms": "114"}, True, "ready: "),
        ({"name": "NVIDIA H100 80GB HBM3"}, True, "ready: "),
        ({"fail": "cuInit"}, False, "the CUDA driver returned 2 (out of memory); every product goes to the vendor's library"),
        ({"fail": "cuModuleLoadData"}, False, "the CUDA driver returned 2 (out of memory); every product goes to the "),
    ],
    ids=["same", "capability", "multiprocessors", "name", "driver", "image"],
)  # fmt: skip
def test_another_card_is_told_of_in_one_line_and_once(driver, settings, runs, line):
    out, errors = driver.run(OPENING, driver.package, **settings)
    *found, status = out.splitlines()
    assert status.startswith(line)
    assert found == [str(runs)] * 2
    warned = "RuntimeWarning: evo_hgemm: "
    assert errors.count(warned) == (1 if settings else 0)
    if settings and runs:
        assert "measured on another card (NVIDIA H200): they are right here, and may not be the fastest" in errors
    if not runs:
        assert warned + status in errors
        kinds = [call["call"] for call in driver.log()]
        assert kinds.count("retain") == kinds.count("release")


def test_without_a_driver_the_package_imports_and_says_so(driver):
    environ = {**driver.environ, "LD_LIBRARY_PATH": ""}
    done = subprocess.run([sys.executable, "-c", OPENING, driver.package], capture_output=True, text=True, env=environ)
    if "ready" in done.stdout:
        pytest.skip("there is a driver")
    line = "no CUDA driver of version 12.0 or newer (libcuda.so.1); every product goes to the vendor's library"
    assert done.stdout.splitlines() == ["False", "False", line]
    assert done.stderr.count(line) == 1


def test_a_grid_that_depends_on_the_multiprocessors_is_for_their_number_alone(driver):
    chosen = WINNERS[list(SEEDS).index(("nn", "zeroed")) * len(SHAPES)]
    text = json.dumps([(chosen.layout, chosen.sums, chosen.sizes, 0)])
    for sms, done in (("132", True), ("114", False)):
        out, _ = driver.run(CALLS, driver.package, A, B, C, STREAM, text=text, sms=sms)
        assert json.loads(out.splitlines()[1])[0] is done


CUPY = """
import contextlib, json, sys, types
sys.path.insert(0, sys.argv[1])

class ndarray:
    def __init__(self, shape, dtype, ptr=0x50000000000, strides=None):
        self.shape, self.dtype, self.data, self.device = tuple(shape), dtype, types.SimpleNamespace(ptr=ptr), Device()
        steps = [2]
        for size in reversed(self.shape[1:]):
            steps.insert(0, steps[0] * size)
        self.strides = strides or tuple(steps)

class Device(contextlib.nullcontext):
    id = 0
    def __eq__(self, other):
        return True

def vendor(a, b):
    return "vendor"

stream = types.SimpleNamespace(ptr=0x99)
memory = types.SimpleNamespace(ptr=0x60000000000)
sys.modules["cupy"] = types.SimpleNamespace(
    ndarray=ndarray, float16="float16", empty=ndarray, matmul=vendor,
    cuda=types.SimpleNamespace(alloc=lambda n_bytes: memory, get_current_stream=lambda: stream),
)
from evo_hgemm import matmul
m, n, k, batch = json.loads(sys.stdin.read())
a, b = ndarray((m, k), "float16", 0x10000000000), ndarray((k, n), "float16", 0x20000000000)
print(matmul(a, b).data.ptr == 0x50000000000, matmul(a, b).shape == (m, n))
print(matmul(ndarray((m, k), "float16", 0x10000000010), b), matmul(a, ndarray((k, n), "float16", strides=(2, 2 * k))))
print(matmul(ndarray((m + 1, k), "float16"), b), matmul(ndarray((2, m, k), "float16"), b))
for bad in (ndarray((k, n), "float32"), [1.0], ndarray((k + 1, n), "float16")):
    try:
        matmul(a, bad)
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
"""


def test_arrays_of_cupy_reach_the_kernel_and_everything_else_reaches_the_vendor(driver):
    chosen = product_with_workspace()
    m, n, k, _ = chosen.sizes
    out, errors = driver.run(CUPY, driver.package, text=json.dumps(chosen.sizes))
    assert errors == ""
    assert out.splitlines() == [
        "True True", "vendor vendor", "vendor vendor",
        "TypeError evo_hgemm.matmul: expected float16, found float32",
        "TypeError evo_hgemm.matmul: expected arrays of cupy, found builtins.list",
        f"ValueError the shapes do not fit: expected (..., M, K) and (..., K, N), or (K, N), found {(m, k)} and {(k + 1, n)}",
    ]  # fmt: skip
    launched = of_kind(driver.log(), "launch")
    assert [call["entry"] for call in launched] == ["hgemm", "add_splits"] * 2
    assert launched[0]["parameters"][:3] == [(x).to_bytes(8, "little").hex() for x in (A, B, 0x60000000000)]
    assert {call["stream"] for call in launched} == {0x99}


TORCH = """
import contextlib, json, math, sys, types
sys.path.insert(0, sys.argv[1])
import torch
from evo_hgemm import _launcher, torch_op
from evo_hgemm._products import check_shapes
plain = torch.empty

def aligned(shape, dtype, device=None):
    n_bytes = (shape if isinstance(shape, int) else math.prod(shape)) * dtype.itemsize
    memory = plain(n_bytes + 256, dtype=torch.uint8)
    first = -memory.data_ptr() % 256
    found = memory[first : first + n_bytes].view(dtype)
    return found if isinstance(shape, int) else found.view(shape)

# A tensor of the host in the place of a card's: what is launched is written down, and not done.
torch.empty = aligned
torch.cuda.device = lambda device: contextlib.nullcontext()
torch.cuda.current_stream = lambda: types.SimpleNamespace(cuda_stream=0x99)
torch_op._check = lambda a, b: check_shapes(a.shape, b.shape)
torch_op.kernels_on = lambda index: _launcher.kernels_on(0)
op = torch_op._matmul._init_fn
m, n, k, _ = json.loads(sys.stdin.read())
a, b = aligned((m, k), torch.float16).fill_(1), aligned((k, n), torch.float16).fill_(1)
c = op(a, b, "fp32")
print(json.dumps([list(c.shape), a.data_ptr(), b.data_ptr(), c.data_ptr()]))
# Transposed in memory, and of another shape: by torch, whose results are real.
print(bool((op(a, b.T.contiguous().T, "fp32") == k).all()), bool((op(a[:3], b, "fp32") == k).all()))
"""


@long
def test_tensors_of_torch_reach_the_kernel_and_everything_else_reaches_the_vendor(driver):
    pytest.importorskip("torch")
    chosen = product_with_workspace()
    out, _ = driver.run(TORCH, driver.package, text=json.dumps(chosen.sizes))
    (shape, *addresses), vendor = json.loads(out.splitlines()[0]), out.splitlines()[1]
    assert shape == [chosen.sizes[0], chosen.sizes[1]]
    assert vendor == "True True"
    first, second = of_kind(driver.log(), "launch")
    a, b, c = ((address).to_bytes(8, "little").hex() for address in addresses)
    assert (first["entry"], first["parameters"][:2], first["stream"]) == ("hgemm", [a, b], 0x99)
    assert (second["entry"], second["parameters"][1]) == ("add_splits", c)
    assert not of_kind(driver.log(), "allocate")


CUBLAS = """
#include "evo_hgemm_cublas.h"
#include <stdio.h>
static int asked[9];
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) { (void)handle; return stream ? 0 : 7; }
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, int of_a, int of_b, int m, int n, int k, const void *alpha,
    const void *a, int ta, int lda, long long sa, const void *b, int tb, int ldb, long long sb, const void *beta, void *c,
    int tc, int ldc, long long sc, int batch, int compute, int algorithm)
{
    (void)handle, (void)alpha, (void)a, (void)ta, (void)b, (void)tb, (void)beta, (void)c, (void)tc, (void)compute;
    (void)algorithm;
    const int found[9] = {of_a == 1, of_b == 1, lda, ldb, ldc, (int)sa, (int)sb, (int)sc, batch};
    for (int i = 0; i < 9; i++) asked[i] = found[i];
    return m == 5 && n == 3 && k == 7 ? 0 : 13;
}
int main(void)
{
    char *a = (char *)256;
    for (int layout = 0; layout < 2; layout++) {
        const evo_hgemm_layout each = (evo_hgemm_layout)layout;
        printf("%d:", evo_hgemm_or_cublas(NULL, NULL, a, a, a, 3, 5, 7, 2, each, EVO_HGEMM_FP32, NULL, a));
        for (int i = 0; i < 9; i++) printf(" %d", asked[i]);
        printf("\\n");
    }
    printf("%d\\n", evo_hgemm_or_cublas(NULL, NULL, a, a, a, 3, 5, 7, 2, EVO_HGEMM_NN, EVO_HGEMM_FP32, NULL, NULL));
    return 0;
}
"""
CUBLAS_HEADER = """
typedef void *cublasHandle_t, *cudaStream_t;
typedef int cublasStatus_t, cublasOperation_t;
enum { CUBLAS_OP_N, CUBLAS_OP_T };
enum { CUBLAS_STATUS_SUCCESS = 0, CUDA_R_16F = 2, CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1 };
cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, int, int, int, int, int, const void *, const void *, int, int,
    long long, const void *, int, int, long long, const void *, void *, int, int, long long, int, int, int);
"""


def test_the_header_hands_what_is_not_covered_to_cublas_as_a_row_major_product(driver, tmp_path):
    (tmp_path / "cublas_v2.h").write_text(CUBLAS_HEADER)
    (tmp_path / "main.c").write_text(CUBLAS)
    package = driver.package / "evo_hgemm"
    command = [
        str(find_toolchain().compiler),
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{tmp_path}",
        f"-I{package / 'c'}",
    ]
    subprocess.run([*command, "-o", "main", "main.c", package / "libevo_hgemm.so"], cwd=tmp_path, check=True)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(package)}
    out = subprocess.run(["./main"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True).stdout
    # Column-major C' (5 x 3) = B' A': transposed B or not, leading dimensions, strides of a batch of two.
    assert out.splitlines() == ["0: 0 0 5 7 5 35 21 15 2", "0: 1 0 7 7 5 35 21 15 2", "3007"]
