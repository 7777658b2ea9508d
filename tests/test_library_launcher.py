"""What a library's launcher in C asks of the driver is what the plan of every CUDA seed says, at several shapes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evo_l2.kernel import Kernel
from evo_l2.launch import Role
from evo_l2.targets.cpu.toolchain import find_toolchain
from evo_l2.targets.cuda.plan import plan
from experiments.library.cuda_package import CudaCubin, write_cuda


def _load(name):
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load("library_cases")
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
            **os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_LIBCUDA_LOG": str(log), "FAKE_LIBCUDA_PARAMETERS": str(parameters),
            "FAKE_LIBCUDA_NAME": "NVIDIA H200", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip

    def run(self, program, *arguments, text="", **settings):
        """What a program prints, started in a process with this driver, and its errors."""
        words = [sys.executable, "-W", "always", "-W", "ignore::ResourceWarning", "-c", program, *map(str, arguments)]
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
    assert found == {place: n_bytes for place, n_bytes in wanted.items() if n_bytes > 48 * 1024}
    assert found
    assert {call["attribute"] for call in of_kind(opened, "attribute")} == {8}
