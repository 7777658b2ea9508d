"""The digest of machine code: equal for what is one kernel, different for what runs otherwise."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from evo_l2.kernel import Kernel
from evo_l2.targets.cuda.reading.cubin import read_cubin
from evo_l2.targets.cuda.reading.sass import machine_code_digest, read_sass
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt

BODY = """\
__constant__ float scale[2] = {1.0f, 2.0f};
extern "C" __global__ void first(const float *A, float *C, int n)
{
    __shared__ float tile[128];
    tile[threadIdx.x] = A[threadIdx.x] * scale[n & 1];
    __syncthreads();
    C[threadIdx.x] = tile[127 - threadIdx.x] + 1.0f;
}
extern "C" __global__ void second(float *C, int n) { C[n] = 0; }
"""


def build(nvrtc, source, arch="sm_80"):
    """A cubin of a source without launch lines, by NVRTC."""
    entries = re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)", source)
    launches = "".join(f"//! launch {entry}(A: in, C: out)\n//! grid 1\n//! block 128\n" for entry in entries)
    made = nvrtc.build(Kernel(f"//! layout nn\n{launches}{source}", "cuda"), arch)
    assert isinstance(made, CudaBuilt), made
    return made.cubin


def build_by_nvcc(toolkit, folder, *flags, name="kernel"):
    folder.mkdir(parents=True)
    (folder / f"{name}.cu").write_text(BODY, encoding="utf-8")
    command = [toolkit.nvcc, "-cubin", "-arch=sm_80", *flags, f"{name}.cu", "-o", f"{name}.cubin"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder / f"{name}.cubin"


@pytest.fixture(scope="module")
def plain(nvrtc):
    return build(nvrtc, BODY)


@pytest.fixture(scope="module")
def digest(cuda_wheels):
    """The digest of a cubin's file, by all its entries or by those named; each is disassembled once."""

    @functools.cache
    def of(path, entries=None):
        return machine_code_digest(read_sass(path, cuda_wheels.tool("nvdisasm")), read_cubin(path), entries)

    return of


def test_the_digest_is_equal_across_folders_users_and_line_information(cuda_wheels, digest, tmp_path, monkeypatch):
    expected = digest(build_by_nvcc(cuda_wheels, tmp_path / "one"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("LC_ALL", "C")
    elsewhere = tmp_path / "a" / "much" / "longer" / "path"
    assert digest(build_by_nvcc(cuda_wheels, elsewhere, "-lineinfo", name="other")) == expected


def test_the_digest_is_equal_when_lines_move(nvrtc, plain, digest):
    spaced = build(nvrtc, "// a comment\n\n" + BODY.replace("{\n", "{\n\n"))
    assert spaced.read_bytes() != plain.read_bytes()
    assert digest(spaced) == digest(plain)


def test_a_digest_of_another_process_is_equal(plain, digest, cuda_wheels):
    program = (
        "import sys; from pathlib import Path; from evo_l2.targets.cuda.reading.cubin import read_cubin; "
        "from evo_l2.targets.cuda.reading.sass import read_sass, machine_code_digest as d; p = Path(sys.argv[1]); "
        "print(d(read_sass(p, Path(sys.argv[2])), read_cubin(p)))"
    )
    environ = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", program, str(plain), str(cuda_wheels.tool("nvdisasm"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ, cwd="/")
    assert done.stdout.strip() == digest(plain)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+ 1.0f", "- 1.0f"),
        ("+ 1.0f", "+ 2.0f"),
        ("A[threadIdx.x] *", "A[threadIdx.x] +"),
        ("{1.0f, 2.0f}", "{1.0f, 3.0f}"),
        ("tile[128]", "tile[132]"),
        ("float *C, int n)\n", "float *C, int n, int m)\n"),
        ("void first", "void __launch_bounds__(128) first"),
        ("C[n] = 0", "C[n] = 1"),
    ],
    ids=["instruction", "immediate", "operation", "constant", "shared", "arguments", "bounds", "other-entry"],
)
def test_the_digest_differs_with_what_runs(nvrtc, plain, digest, old, new):
    assert old in BODY
    assert digest(build(nvrtc, BODY.replace(old, new, 1))) != digest(plain)


def test_the_digest_differs_when_any_one_instruction_differs(goldens, tmp_path):
    path = goldens.folder / "tiles.sm_80.cubin"
    listing, code = goldens.sass("tiles.sm_80"), read_cubin(path)
    expected = machine_code_digest(listing, code)
    data = path.read_bytes()
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".text.tiles")
        start, size = section["sh_offset"], section["sh_size"]
    seen = {expected}
    for at in range(0, size, 16 * 23):
        changed = bytearray(data)
        changed[start + at + 3] ^= 0x10
        (tmp_path / "changed.cubin").write_bytes(bytes(changed))
        seen.add(machine_code_digest(listing, read_cubin(tmp_path / "changed.cubin")))
    assert len(seen) == 1 + len(range(0, size, 16 * 23))


def test_renaming_does_not_matter_and_the_order_of_launches_does(nvrtc, plain, digest):
    renamed = BODY.replace("first", "alpha").replace("second", "zeta").replace("scale", "factors").replace("tile", "part")
    path = build(nvrtc, renamed)
    assert digest(path) == digest(plain)
    assert digest(path, ("alpha", "zeta")) == digest(plain, ("first", "second")) != digest(plain, ("second", "first"))
    swapped = build(nvrtc, BODY.replace("first", "x").replace("second", "first").replace("x(", "second("))
    assert digest(swapped) != digest(plain)
    assert digest(swapped, ("second", "first")) == digest(plain, ("first", "second"))


def test_the_digest_is_of_one_architecture(nvrtc, plain, digest):
    assert digest(build(nvrtc, BODY, "sm_86")) != digest(plain)


def test_an_unused_constant_of_nvrtc_does_not_change_the_digest(goldens):
    listing = goldens.sass("constants.sm_80")
    one, other = goldens.cubin("constants.sm_80"), goldens.cubin("constants_other.sm_80")
    assert one.symbols != other.symbols
    assert machine_code_digest(listing, one) == machine_code_digest(listing, other)


def test_a_golden_digest_does_not_drift(goldens):
    assert machine_code_digest(goldens.sass("tiles.sm_80"), goldens.cubin("tiles.sm_80"))[:16] == "8c10afd58310d9f8"
