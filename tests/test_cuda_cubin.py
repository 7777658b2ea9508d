"""What is read from a cubin's ELF and from ptxas's log, against what the tools report."""

import dataclasses
import re
import shutil
import subprocess

import pytest

from evo_l2.errors import ToolchainError
from evo_l2.kernel import Kernel
from evo_l2.targets.cuda.reading.cubin import Parameter, read_cubin
from evo_l2.targets.cuda.reading.resources import (
    complete,
    local_traffic_bytes,
    parse_usage,
)
from evo_l2.targets.cuda.reading.sass import (
    instruction_class,
    read_sass,
)
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt


def res_usage(listing):
    """Numbers of `cuobjdump -res-usage` by function."""
    pairs = re.findall(r"Function (\S+):\s+(.*)", listing)
    return {name: {k: int(v) for k, v in re.findall(r"([A-Z]+(?:\[\d\])?):(\d+)", row)} for name, row in pairs}


def build(nvrtc, source, entry, arch):
    """A build by NVRTC of a source without launch lines."""
    head = f"//! layout nn\n//! launch {entry}(A: in, C: out)\n//! grid 1\n//! block 64\n"
    made = nvrtc.build(Kernel(head + source, "cuda"), arch)
    assert isinstance(made, CudaBuilt), made
    return made


def compare(code, usage, log):
    """The ELF's numbers against those of two tools."""
    reported, ptxas = res_usage(usage), parse_usage(log)
    assert set(code.entries) == set(reported) == {u.name for u in ptxas.values() if u.is_entry}
    # cuobjdump counts the reserved kibibyte from Hopper on, ptxas does not.
    reserved = 1024 if int(re.search(r"\d+", code.arch)[0]) >= 90 else 0
    for name, entry in code.entries.items():
        row, said = reported[name], ptxas[name]
        assert (entry.n_registers, entry.stack_bytes) == (row["REG"], row["STACK"])
        assert entry.static_shared_bytes == row["SHARED"] - (reserved if row["SHARED"] else 0)
        assert entry.constant_bytes[0] == row["CONSTANT[0]"]
        assert (entry.n_registers, entry.n_barriers) == (said.n_registers, said.n_barriers)
        assert entry.static_shared_bytes == said.shared_bytes
        assert entry.stack_bytes == (said.cumulative_stack_bytes or said.stack_bytes)
        if said.constant_bytes:
            assert said.constant_bytes.items() <= entry.constant_bytes.items()


def test_resources_in_the_elf_are_those_that_the_tools_report(goldens, golden_build):
    compare(
        goldens.cubin(golden_build), goldens.text(f"{golden_build}.res_usage.txt"), goldens.text(f"{golden_build}.ptxas.txt")
    )
    assert goldens.cubin(golden_build).arch == golden_build.partition(".")[2]


@pytest.mark.parametrize("name", ["tiles.sm_80", "tiles.sm_86", "tiles.sm_90a", "tiles.sm_100a"])
def test_arguments_bounds_and_functions_are_read(goldens, name):
    code = goldens.cubin(name)
    entry = code.entries["tiles"]
    assert entry.parameters == (*(Parameter(8 * i, 8) for i in range(3)), *(Parameter(24 + 4 * i, 4) for i in range(3)))
    assert (entry.max_threads, entry.n_barriers, entry.static_shared_bytes, entry.cluster) == (128, 1, 2048, None)
    assert code.functions == ("$tiles$_Z5scalefi",)
    assert code.undefined == ()
    assert entry.code_bytes == code.code_bytes == 16 * len(goldens.sass(name).instructions)


@pytest.mark.parametrize("name", ["odd.sm_90a", "odd.sm_100a"])
def test_large_arguments_and_clusters_are_read(goldens, name):
    code = goldens.cubin(name)
    assert code.entries["clustered"].parameters == (Parameter(0, 4800), Parameter(4800, 8))
    assert code.entries["clustered"].cluster == (2, 1, 1)
    assert code.entries["recursive"].cluster is None
    assert code.entries["recursive"].max_threads is None
    assert code.undefined == ("vprintf",)


def test_tensor_maps_are_arguments_of_128_bytes(goldens):
    parameters = goldens.cubin("tma.sm_90a").entries["tma"].parameters
    assert [p.size for p in parameters] == [128, 128, 8, 4]
    assert parameters[1].offset - parameters[0].offset == 128


def test_required_blocks_are_read(nvrtc):
    source = 'extern "C" __global__ void __block_size__((8, 4, 2)) k(int *p) { p[threadIdx.x] = 1; }'
    entry = read_cubin(build(nvrtc, source, "k", "sm_90a").cubin).entries["k"]
    assert (entry.required_block, entry.max_threads) == ((8, 4, 2), 64)


def test_globals_are_told_from_constants(goldens):
    symbols = {s.name: s for s in goldens.cubin("naive.sm_80").symbols}
    assert {name for name, s in symbols.items() if s.writable} == {"calls", "memo", "fixed"}
    assert (symbols["scales"].section, symbols["scales"].size, symbols["scales"].writable) == (".nv.constant3", 16, False)
    assert (symbols["memo"].section, symbols["memo"].size) == (".nv.global.init", 128)
    assert symbols["calls"].section == ".nv.global"


def test_a_constant_that_nvrtc_keeps_as_a_variable_is_no_writable_global_when_it_is_unused(goldens):
    code = goldens.cubin("constants.sm_80")
    assert {"UNUSED", "ZERO", "UNUSED_TABLE", "PLAIN", "never", "calls"} < {s.name for s in code.symbols}
    finished = complete(code, goldens.sass("constants.sm_80"))
    assert {s.name for s in finished.symbols if s.writable} == {"TABLE", "calls", "_ZZ9constantsE4memo"}


def test_a_table_of_addresses_that_is_indexed_counts_as_use_of_all(goldens):
    code, listing = goldens.cubin("constants.sm_80"), goldens.sass("constants.sm_80")
    indexed = dataclasses.replace(listing.functions["constants"][0], operands="R2, c[0x4][R3+0x8]")
    used = complete(code, dataclasses.replace(listing, functions={"constants": (indexed,)}))
    assert {s.name for s in used.symbols if s.writable} == {s.name for s in code.symbols}


@pytest.mark.parametrize("content", [b"", b"no ELF", b"\x7fELF" + bytes(60), None])
def test_what_is_no_cubin_is_one_clear_error(tmp_path, content):
    path = tmp_path / "kernel.cubin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ToolchainError, match=r"a cubin cannot be read.*kernel\.cubin"):
        read_cubin(path)


def test_a_damaged_cubin_is_an_error_or_a_reading_and_nothing_else(goldens, tmp_path):
    whole = (goldens.folder / "tiles.sm_80.cubin").read_bytes()
    path = tmp_path / "kernel.cubin"
    for at in range(0, len(whole), 97):
        for data in (whole[:at], whole[:at] + b"\xff" * 8 + whole[at + 8 :]):
            path.write_bytes(data)
            try:
                read_cubin(path)
            except ToolchainError as error:
                assert "a cubin cannot be read" in str(error)  # noqa: PT017


def test_an_object_of_another_machine_is_refused(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "a.c").write_text("int x;")
    subprocess.run(["cc", "-c", "a.c"], cwd=tmp_path, check=True)
    with pytest.raises(ToolchainError, match="expected an ELF for CUDA"):
        read_cubin(tmp_path / "a.o")


def test_spills_are_read_from_the_log(goldens):
    usage = parse_usage(goldens.text("spills.sm_80.ptxas.txt"))["spills"]
    assert (usage.is_entry, usage.n_registers, usage.stack_bytes) == (True, 24, 240)
    assert (usage.spill_store_bytes, usage.spill_load_bytes) == (444, 540)


def test_a_device_function_has_a_row_of_its_own_and_its_spills_are_the_entrys(goldens, cuda_wheels):
    usage = parse_usage(goldens.text("odd.sm_90a.ptxas.txt"))
    assert (usage["_Z4deepi"].is_entry, usage["_Z4deepi"].n_registers) == (False, None)
    assert (usage["recursive"].cumulative_stack_bytes, usage["_Z4deepi"].stack_bytes) == (8, 152)
    path = goldens.folder / "odd.sm_90a.cubin"
    code = complete(read_cubin(path), read_sass(path, cuda_wheels.tool("nvdisasm")), goldens.text("odd.sm_90a.ptxas.txt"))
    deep = usage["_Z4deepi"]
    assert code.entries["recursive"].spill_bytes == deep.spill_store_bytes + deep.spill_load_bytes > 0
    assert code.entries["clustered"].spill_bytes == 0


def test_without_a_log_spills_are_unknown(goldens):
    assert complete(goldens.cubin("tiles.sm_80"), goldens.sass("tiles.sm_80")).entries["tiles"].spill_bytes is None
    assert parse_usage("nothing\n42 bytes stack frame, 1 bytes spill stores, 1 bytes spill loads\n") == {}


def test_logs_of_nvrtc_and_with_warnings_are_read():
    log = (
        "kernel.cu(1): warning #177-D: variable was declared but never referenced\n"
        "ptxas info    : 8 bytes gmem\n"
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "ptxas info    : Function properties for k\n"
        "ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 3 barriers, 1024+16 bytes smem, 400 bytes cmem[0], 8 bytes cmem[2]\n"
    )
    usage = parse_usage(log)["k"]
    assert (usage.stack_bytes, usage.spill_store_bytes, usage.spill_load_bytes) == (16, 4, 8)
    assert (usage.n_registers, usage.n_barriers, usage.shared_bytes) == (40, 3, 1024)
    assert usage.constant_bytes == {0: 400, 2: 8}


def test_spills_in_machine_code_are_those_that_ptxas_reports(goldens):
    usage = parse_usage(goldens.text("spills.sm_80.ptxas.txt"))["spills"]
    assert local_traffic_bytes(goldens.sass("spills.sm_80").instructions) == (usage.spill_store_bytes, usage.spill_load_bytes)
    assert local_traffic_bytes(goldens.sass("tiles.sm_80").instructions) == (0, 0)


def check_against_the_tools(path, log, toolkit):
    usage = subprocess.run([toolkit.cuobjdump, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    compare(read_cubin(path), usage, log)
    code = read_sass(path, toolkit.tool("nvdisasm"))
    assert len(code.instructions) * 16 == read_cubin(path).code_bytes
    assert {i.opcode for i in code.instructions if instruction_class(i) == "other"} == set()


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("name", "entry"), [("tiles", "tiles"), ("odd", "recursive")])
def test_the_installed_tools_agree_with_the_reader(goldens, nvrtc, name, entry, arch):
    made = build(nvrtc, goldens.text(f"{name}.cu").replace("#include <stdio.h>\n", ""), entry, arch)
    check_against_the_tools(made.cubin, made.log, nvrtc.toolkit)


@pytest.mark.parametrize(("name", "arch"), [("tiles", "sm_80"), ("odd", "sm_90a")])
def test_the_installed_tools_agree_with_the_reader_on_what_nvcc_makes(goldens, cuda_wheels, tmp_path, name, arch):
    (tmp_path / "kernel.cu").write_text(goldens.text(f"{name}.cu"), encoding="utf-8")
    command = [cuda_wheels.nvcc, "-cubin", f"-arch={arch}", "-Xptxas", "-v", "-lineinfo", "kernel.cu", "-o", "kernel.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    check_against_the_tools(tmp_path / "kernel.cubin", done.stdout + done.stderr, cuda_wheels)
