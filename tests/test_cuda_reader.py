"""What the reader of CUDA machine code sees. The files in `golden/cuda/` are what real tools made of the kernels there.

They are of toolkit 13.2.86: cubin and log by `nvcc -cubin -arch=A -Xptxas -v`, `res_usage` by `cuobjdump -res-usage`,
`sass` by `nvdisasm -c -gi -ndf` of a build with `-lineinfo`, folders taken out of the names of files; `constants` by NVRTC.
"""

import dataclasses
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from evo_l2.errors import ConfigurationError, ToolchainError
from evo_l2.targets.cuda.cards import CARDS, card_for, find_card
from evo_l2.targets.cuda.cubin import Entry, Parameter, read_cubin
from evo_l2.targets.cuda.occupancy import Limit, occupancy
from evo_l2.targets.cuda.ptx import RULES, lint_ptx, lint_sass
from evo_l2.targets.cuda.resources import (
    accumulator,
    complete,
    copy_kind,
    local_traffic_bytes,
    matrix_kind,
    matrix_operations,
    narrow_instructions,
    parse_usage,
    resources_of,
)
from evo_l2.targets.cuda.sass import (
    annotate,
    instruction_class,
    instruction_mix,
    machine_code_digest,
    parse_sass,
    read_sass,
)

GOLDEN = Path(__file__).parent / "golden" / "cuda"
BUILT = sorted(path.name.removesuffix(".ptxas.txt") for path in GOLDEN.glob("*.ptxas.txt"))
LISTED = sorted(path.name.removesuffix(".sass.txt") for path in GOLDEN.glob("*.sass.txt"))
WHEEL = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13"


def tool(name):
    path = WHEEL / "bin" / name
    found = str(path) if path.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return Path(found)


def text(name):
    return (GOLDEN / name).read_text(encoding="utf-8")


def sass(name):
    return parse_sass(text(f"{name}.sass.txt"))


def cubin(name):
    return read_cubin(GOLDEN / f"{name}.cubin")


def build(folder, source, arch="sm_80", *flags, name="kernel"):
    """A cubin of a source, and what ptxas said."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.cu").write_text(source, encoding="utf-8")
    command = [tool("nvcc"), "-cubin", f"-arch={arch}", "-Xptxas", "-v", *flags, f"{name}.cu", "-o", f"{name}.cubin"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder / f"{name}.cubin", done.stdout + done.stderr


def digest(path, entries=None):
    return machine_code_digest(read_sass(path, tool("nvdisasm")), read_cubin(path), entries)


def res_usage(listing):
    """Numbers of `cuobjdump -res-usage` by function."""
    pairs = re.findall(r"Function (\S+):\s+(.*)", listing)
    return {name: {k: int(v) for k, v in re.findall(r"([A-Z]+(?:\[\d\])?):(\d+)", row)} for name, row in pairs}


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


# --- the ELF ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT)
def test_resources_in_the_elf_are_those_that_the_tools_report(name):
    compare(cubin(name), text(f"{name}.res_usage.txt"), text(f"{name}.ptxas.txt"))
    assert cubin(name).arch == name.partition(".")[2]


@pytest.mark.parametrize("name", ["tiles.sm_80", "tiles.sm_86", "tiles.sm_90a", "tiles.sm_100a"])
def test_arguments_bounds_and_functions_are_read(name):
    code = cubin(name)
    entry = code.entries["tiles"]
    assert entry.parameters == (*(Parameter(8 * i, 8) for i in range(3)), *(Parameter(24 + 4 * i, 4) for i in range(3)))
    assert (entry.max_threads, entry.n_barriers, entry.static_shared_bytes, entry.cluster) == (128, 1, 2048, None)
    assert code.functions == ("$tiles$_Z5scalefi",)
    assert code.undefined == ()
    assert entry.code_bytes == code.code_bytes == 16 * len(sass(name).instructions)


@pytest.mark.parametrize("name", ["odd.sm_90a", "odd.sm_100a"])
def test_large_arguments_and_clusters_are_read(name):
    code = cubin(name)
    assert code.entries["clustered"].parameters == (Parameter(0, 4800), Parameter(4800, 8))
    assert code.entries["clustered"].cluster == (2, 1, 1)
    assert code.entries["recursive"].cluster is None
    assert code.entries["recursive"].max_threads is None
    assert code.undefined == ("vprintf",)


def test_tensor_maps_are_arguments_of_128_bytes():
    parameters = cubin("tma.sm_90a").entries["tma"].parameters
    assert [p.size for p in parameters] == [128, 128, 8, 4]
    assert parameters[1].offset - parameters[0].offset == 128


def test_required_blocks_are_read(tmp_path):
    source = 'extern "C" __global__ void __block_size__((8, 4, 2)) k(int *p) { p[threadIdx.x] = 1; }'
    entry = read_cubin(build(tmp_path, source, "sm_90a")[0]).entries["k"]
    assert (entry.required_block, entry.max_threads) == ((8, 4, 2), 64)


def test_globals_are_told_from_constants():
    symbols = {s.name: s for s in cubin("naive.sm_80").symbols}
    assert {name for name, s in symbols.items() if s.writable} == {"calls", "memo", "fixed"}
    assert (symbols["scales"].section, symbols["scales"].size, symbols["scales"].writable) == (".nv.constant3", 16, False)
    assert (symbols["memo"].section, symbols["memo"].size) == (".nv.global.init", 128)
    assert symbols["calls"].section == ".nv.global"


def test_a_constant_that_nvrtc_keeps_as_a_variable_is_no_writable_global_when_it_is_unused():
    code = cubin("constants.sm_80")
    assert {"UNUSED", "ZERO", "UNUSED_TABLE", "PLAIN", "never", "calls"} < {s.name for s in code.symbols}
    finished = complete(code, sass("constants.sm_80"))
    assert {s.name for s in finished.symbols if s.writable} == {"TABLE", "calls", "_ZZ9constantsE4memo"}


def test_a_table_of_addresses_that_is_indexed_counts_as_use_of_all():
    code, listing = cubin("constants.sm_80"), sass("constants.sm_80")
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


def test_a_damaged_cubin_is_an_error_or_a_reading_and_nothing_else(tmp_path):
    whole = (GOLDEN / "tiles.sm_80.cubin").read_bytes()
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


# --- ptxas's log ------------------------------------------------------------------------------------------------------


def test_spills_are_read_from_the_log():
    usage = parse_usage(text("spills.sm_80.ptxas.txt"))["spills"]
    assert (usage.is_entry, usage.n_registers, usage.stack_bytes) == (True, 24, 240)
    assert (usage.spill_store_bytes, usage.spill_load_bytes) == (444, 540)


def test_a_device_function_has_a_row_of_its_own_and_its_spills_are_the_entrys():
    usage = parse_usage(text("odd.sm_90a.ptxas.txt"))
    assert (usage["_Z4deepi"].is_entry, usage["_Z4deepi"].n_registers) == (False, None)
    assert (usage["recursive"].cumulative_stack_bytes, usage["_Z4deepi"].stack_bytes) == (8, 152)
    path = GOLDEN / "odd.sm_90a.cubin"
    code = complete(read_cubin(path), read_sass(path, tool("nvdisasm")), text("odd.sm_90a.ptxas.txt"))
    deep = usage["_Z4deepi"]
    assert code.entries["recursive"].spill_bytes == deep.spill_store_bytes + deep.spill_load_bytes > 0
    assert code.entries["clustered"].spill_bytes == 0


def test_without_a_log_spills_are_unknown():
    assert complete(cubin("tiles.sm_80"), sass("tiles.sm_80")).entries["tiles"].spill_bytes is None
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


def test_spills_in_machine_code_are_those_that_ptxas_reports():
    usage = parse_usage(text("spills.sm_80.ptxas.txt"))["spills"]
    assert local_traffic_bytes(sass("spills.sm_80").instructions) == (usage.spill_store_bytes, usage.spill_load_bytes)
    assert local_traffic_bytes(sass("tiles.sm_80").instructions) == (0, 0)


# --- instructions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LISTED)
def test_every_instruction_of_a_listing_is_read_and_known(name):
    listing, code = text(f"{name}.sass.txt"), sass(name)
    assert len(code.instructions) == len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", listing, re.MULTILINE))
    assert {i.opcode for i in code.instructions if instruction_class(i) == "other"} == set()
    for function in code.functions.values():
        addresses = [i.address for i in function]
        assert addresses == list(range(addresses[0], addresses[0] + 16 * len(addresses), 16))
    assert sum(instruction_mix(code.instructions).values()) == sum(i.base != "NOP" for i in code.instructions)


def test_predicates_operands_and_functions_are_told_apart():
    code = sass("tiles.sm_80")
    assert list(code.functions) == ["tiles", "$tiles$_Z5scalefi"]
    assert code.owners == {"tiles": "tiles", "$tiles$_Z5scalefi": "tiles"}
    branch = next(i for i in code.functions["tiles"] if i.predicate)
    assert (branch.predicate, branch.opcode, branch.operands) == ("!P0", "BRA", "`(.L_x_0)")
    product = next(i for i in code.functions["tiles"] if i.base == "HMMA")
    assert (product.opcode, product.modifiers, product.predicate) == ("HMMA.16816.F32", ("16816", "F32"), None)
    assert code.of("tiles") == code.instructions
    assert code.functions["$tiles$_Z5scalefi"][0].address == 0xAA0


def test_lines_are_those_of_the_kernels_file():
    code = sass("tiles.sm_80")
    source = text("tiles.cu").split("\n")
    assert {i.file for i in code.instructions} == {"tiles.cu"}
    for base, word in (("HMMA", "mma.sync"), ("LDSM", "ldmatrix"), ("LDGSTS", "cp.async"), ("STG", "C[threadIdx.x")):
        lines = {i.line for i in code.instructions if i.base == base}
        assert lines
        # An asm statement stands at its last line.
        assert all(word in " ".join(source[line - 3 : line]) for line in lines), (base, lines)
    assert all(source[i.line - 1].startswith("__device__") for i in code.functions["$tiles$_Z5scalefi"])


def test_a_listing_without_lines_is_read():
    bare = re.sub(r"\t//## File.*\n", "", text("tiles.sm_80.sass.txt"))
    code = parse_sass(bare)
    assert [i.text for i in code.instructions] == [i.text for i in sass("tiles.sm_80").instructions]
    assert {(i.file, i.line) for i in code.instructions} == {(None, None)}
    assert parse_sass("") == parse_sass("nvdisasm fatal : no\n")
    assert parse_sass("").functions == {}


# Counted in the listings by hand (grep).
COUNTS = {
    "tiles.sm_80": {
        "n_matrix": 5,
        "n_matrix_load": 10,
        "n_async_copy": 10,
        "n_global_load": 0,
        "n_global_store": 1,
        "n_fma": 0,
    },
    "halves.sm_80": {
        "n_matrix": 12,
        "n_shared_store": 10,
        "n_matrix_load": 10,
        "n_half_math": 0,
        "widest_global_load_bits": 128,
    },
    "naive.sm_80": {"n_matrix": 0, "n_fma": 5, "n_atomic": 1, "n_global_load": 12, "n_global_store": 2, "n_half_math": 0},
    "tma.sm_90a": {"n_matrix": 21, "n_bulk_copy": 11, "n_async_copy": 0, "n_global_store": 5},
    "spills.sm_80": {"n_local_store": 89, "n_local_load": 113, "n_fma": 48},
}


@pytest.mark.parametrize("name", COUNTS)
def test_instructions_are_counted(name):
    facts = resources_of(cubin(name), sass(name))
    assert {key: facts[key] for key in COUNTS[name]} == COUNTS[name]
    for key, base in (
        ("n_matrix_load", "LDSM"),
        ("n_async_copy", "LDGSTS"),
        ("n_local_load", "LDL"),
        ("n_global_load", "LDG"),
    ):
        assert facts[key] == len(re.findall(rf"\s{base}[. ]", text(f"{name}.sass.txt"))), key


@pytest.mark.parametrize(
    ("name", "kinds", "sums", "copies"),
    [
        ("tiles.sm_80", {"wmma/mma fp32"}, "fp32", "cp.async"),
        ("tiles.sm_86", {"wmma/mma fp32"}, "fp32", "cp.async"),
        ("tiles.sm_90a", {"wmma/mma fp32"}, "fp32", "cp.async"),
        ("tiles.sm_100a", {"wmma/mma fp32"}, "fp32", "cp.async"),
        ("halves.sm_80", {"wmma/mma fp16", "wmma/mma integer"}, "mixed", "staged"),
        ("halves.sm_100a", {"wmma/mma fp16", "wmma/mma integer"}, "mixed", "staged"),
        ("tma.sm_90a", {"wgmma fp16", "wgmma fp32"}, "mixed", "tma"),
        ("tcgen.sm_100a", {"tcgen05 fp16", "tcgen05 fp32"}, "mixed", "staged"),
        ("naive.sm_80", set(), "none", "none"),
        ("spills.sm_80", set(), "none", "none"),
    ],
)
def test_matrix_instructions_and_copies_are_classified(name, kinds, sums, copies):
    code = sass(name)
    assert {o.kind for o in matrix_operations(code)} == kinds
    assert sum(o.count for o in matrix_operations(code)) == instruction_mix(code.instructions)["matrix"]
    assert (accumulator(code), copy_kind(code.instructions)) == (sums, copies)
    expected = kinds.copy().pop() if len(kinds) == 1 else f"{next(iter(kinds)).split()[0]} mixed" if kinds else "none"
    assert matrix_kind(code) == expected


@pytest.mark.parametrize(
    ("name", "entry", "kind", "copies"),
    [
        ("halves.sm_80", "halves", "wmma/mma fp16", "staged"),
        ("halves.sm_80", "bytes", "wmma/mma integer", "none"),
        ("tma.sm_90a", "tma", "wgmma fp32", "tma"),
        ("tma.sm_90a", "bulk", "wgmma fp16", "tma"),
        ("tcgen.sm_100a", "singles", "tcgen05 fp32", "staged"),
        ("tcgen.sm_100a", "halfs", "tcgen05 fp16", "staged"),
    ],
)
def test_each_entry_is_classified_by_its_own_code(name, entry, kind, copies):
    code = sass(name)
    alone = dataclasses.replace(code, functions={entry: code.of(entry)})
    assert (matrix_kind(alone), copy_kind(code.of(entry))) == (kind, copies)


def with_opcode(opcode, operands="R4, R8, R12, R4"):
    """A listing of one instruction."""
    head = '\t.section\t.text.k,"ax",@progbits\n        .type           k,@function\nk:\n'
    return parse_sass(f"{head}        /*0000*/ {opcode} {operands} ;\n")


@pytest.mark.parametrize(
    ("opcode", "kind", "sums"),
    [
        ("HMMA.16816.F32.BF16", "wmma/mma bf16", "fp32"),
        ("HMMA.1688.F32.TF32", "wmma/mma tf32", "fp32"),
        ("HMMA.SP.16832.F16", "wmma/mma fp16", "fp16"),
        ("QMMA.16832.F32.E4M3.E4M3", "wmma/mma narrow", "fp32"),
        ("IMMA.16832.S8.S8", "wmma/mma integer", "integer"),
        ("BMMA.168256.XOR.POPC", "wmma/mma binary", "integer"),
        ("DMMA.884", "wmma/mma fp64", "fp64"),
        ("HGMMA.64x256x16.F32", "wgmma fp32", "fp32"),
        ("HGMMA.64x256x16.F32.BF16", "wgmma bf16", "fp32"),
        ("IGMMA.64x64x32.S8.S8", "wgmma integer", "integer"),
        ("QGMMA.64x64x32.F16.E5M2.E4M3", "wgmma narrow", "fp16"),
        ("UTCQMMA", "tcgen05 narrow", "unknown"),
        ("UTCHMMA", "tcgen05 unknown", "unknown"),
    ],
)
def test_every_matrix_instruction_has_a_kind(opcode, kind, sums):
    code = with_opcode(opcode)
    assert (matrix_kind(code), accumulator(code)) == (kind, sums)


def test_narrow_formats_are_found_where_the_matrix_instruction_hides_them():
    code = sass("narrow.sm_90a")
    assert matrix_kind(code) == "wmma/mma fp32"
    found = narrow_instructions(code)
    assert {i.opcode for i in found} == {"F2FP.F16.E4M3.UNPACK_B"}
    assert resources_of(cubin("tiles.sm_80"), code)["n_narrow"] == len(found) == 12
    assert len(narrow_instructions(sass("halves.sm_80"))) == 2
    assert all(i.base == "IMMA" for i in narrow_instructions(sass("halves.sm_80")))
    for name in ("tiles.sm_80", "tiles.sm_100a", "tma.sm_90a", "tcgen.sm_100a", "naive.sm_80"):
        assert narrow_instructions(sass(name)) == ()
    assert len(narrow_instructions(with_opcode("F2FP.SATFINITE.E5M2.F16.UNPACK_B_MERGE_C"))) == 1
    assert narrow_instructions(with_opcode("DMMA.884")) == ()


def test_a_descriptor_that_is_no_constant_leaves_the_sums_unknown():
    name = "tcgen.sm_100a"
    assert accumulator(parse_sass(re.sub(r"UMOV UR13, 0x8100010 ", "R2UR UR13, R9 ", text(f"{name}.sass.txt")))) == "mixed"
    hidden = parse_sass(re.sub(r"UMOV UR13, 0x81000\d0 ", "R2UR UR13, R9 ", text(f"{name}.sass.txt")))
    assert (accumulator(hidden), matrix_kind(hidden)) == ("unknown", "tcgen05 unknown")
    guarded = parse_sass(re.sub(r"UMOV UR13, 0x81000\d0 ", "@UP0 UMOV UR13, 0x8100010 ", text(f"{name}.sass.txt")))
    assert accumulator(guarded) == "unknown"


@pytest.mark.parametrize(
    ("operands", "opcode", "n"),
    [
        ("R3, -RZ, RZ, 0, 0", "HFMA2.MMA", 0),
        ("R3, -RZ, R5.H0_H0", "HADD2.F32", 0),
        ("R3, R4, R5, R6", "HFMA2", 1),
        ("R3, R4, R5", "HADD2", 1),
    ],
)
def test_half_arithmetic_is_told_from_conversions_and_constants(operands, opcode, n):
    assert resources_of(cubin("tiles.sm_80"), with_opcode(opcode, operands))["n_half_math"] == n


def test_facts_are_flat_and_cover_the_launch():
    facts = resources_of(cubin("halves.sm_80"), sass("halves.sm_80"), parse_usage(text("halves.sm_80.ptxas.txt")))
    assert all(isinstance(value, int | float | str) for value in facts.values())
    launch = {
        "arch": "sm_80",
        "n_registers": 35,
        "n_barriers": 1,
        "static_shared_bytes": 1024,
        "spill_bytes": 0,
        "n_entries": 2,
    }
    assert launch.items() <= facts.items()
    assert resources_of(cubin("spills.sm_80"), sass("spills.sm_80"))["spill_bytes"] == 984
    log = parse_usage(text("spills.sm_80.ptxas.txt"))
    assert resources_of(cubin("spills.sm_80"), sass("spills.sm_80"), log)["spill_bytes"] == 984


def test_an_annotated_listing_shows_every_instruction_once_below_its_line():
    code, source = sass("tiles.sm_80"), text("tiles.cu")
    rows = annotate(code, source).split("\n")
    for number, line in enumerate(source.splitlines(), start=1):
        assert f"{number:5d}  {line}".rstrip() in rows
    products = [i for i, row in enumerate(rows) if "HMMA" in row]
    above = [next(row for row in reversed(rows[:i]) if re.match(r"\s*\d+  ", row)) for i in products]
    assert len(products) == 5
    assert all(': "r"(x[0]), "r"(x[1])' in row for row in above)
    shown = [row for row in rows if row.startswith(" " * 10)]
    assert sum(not row.endswith("NOP") for row in shown) == sum(i.base != "NOP" for i in code.instructions)
    assert any(row.split()[:4] == ["tiles", "0060", "@!P0", "BRA"] for row in rows)


def test_instructions_without_a_line_come_last():
    bare = parse_sass(re.sub(r"\t//## File.*\n", "", text("tiles.sm_80.sass.txt")))
    rows = annotate(bare, "one\ntwo\n").split("\n")
    assert rows[:3] == ["    1  one", "    2  two", "       (no line of the source)"]
    assert "IMAD.MOV.U32 R1" in rows[3]


def test_a_broken_disassembler_is_one_clear_error(tmp_path):
    path = GOLDEN / "tiles.sm_80.cubin"
    for body, found in (
        ("echo no code", "no instruction"),
        ("echo bad file >&2; exit 1", "bad file"),
        ("sleep 60", "timed out"),
    ):
        script = tmp_path / "nvdisasm"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
        with pytest.raises(ToolchainError, match=found):
            read_sass(path, script, timeout_s=0.5)
    with pytest.raises(ToolchainError, match="the disassembler fails"):
        read_sass(path, tmp_path / "missing")


# --- tools of this machine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", ["tiles", "odd"])
def test_the_installed_tools_agree_with_the_reader(tmp_path, name, arch):
    path, log = build(tmp_path, text(f"{name}.cu"), arch, "-lineinfo")
    usage = subprocess.run([tool("cuobjdump"), "-res-usage", path], capture_output=True, text=True, check=True).stdout
    compare(read_cubin(path), usage, log)
    code = read_sass(path, tool("nvdisasm"))
    assert len(code.instructions) * 16 == read_cubin(path).code_bytes
    assert {i.opcode for i in code.instructions if instruction_class(i) == "other"} == set()


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


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return build(tmp_path_factory.mktemp("plain"), BODY)[0]


def test_the_digest_is_equal_across_folders_users_and_line_information(plain, tmp_path, monkeypatch):
    expected = digest(plain)
    assert digest(build(tmp_path / "one", BODY)[0]) == expected
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("LC_ALL", "C")
    elsewhere = tmp_path / "a" / "much" / "longer" / "path"
    assert digest(build(elsewhere, BODY, "sm_80", "-lineinfo", name="other")[0]) == expected
    spaced = "// a comment\n\n" + BODY.replace("{\n", "{\n\n")
    assert digest(build(tmp_path / "two", spaced, "sm_80", "-lineinfo")[0]) == expected


def test_a_digest_of_another_process_is_equal(plain):
    program = (
        "import sys; from pathlib import Path; from evo_l2.targets.cuda.cubin import read_cubin; "
        "from evo_l2.targets.cuda.sass import read_sass, machine_code_digest as d; p = Path(sys.argv[1]); "
        "print(d(read_sass(p, Path(sys.argv[2])), read_cubin(p)))"
    )
    environ = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", program, str(plain), str(tool("nvdisasm"))]
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
def test_the_digest_differs_with_what_runs(plain, tmp_path, old, new):
    assert old in BODY
    assert digest(build(tmp_path, BODY.replace(old, new, 1))[0]) != digest(plain)


def test_the_digest_differs_when_any_one_instruction_differs(tmp_path):
    path = GOLDEN / "tiles.sm_80.cubin"
    listing, code = sass("tiles.sm_80"), read_cubin(path)
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


def test_renaming_does_not_matter_and_the_order_of_launches_does(plain, tmp_path):
    renamed = BODY.replace("first", "alpha").replace("second", "zeta").replace("scale", "factors").replace("tile", "part")
    path = build(tmp_path / "renamed", renamed)[0]
    assert digest(path) == digest(plain)
    assert digest(path, ("alpha", "zeta")) == digest(plain, ("first", "second")) != digest(plain, ("second", "first"))
    swapped = build(tmp_path / "swapped", BODY.replace("first", "x").replace("second", "first").replace("x(", "second("))[0]
    assert digest(swapped) != digest(plain)
    assert digest(swapped, ("second", "first")) == digest(plain, ("first", "second"))


def test_the_digest_is_of_one_architecture(plain, tmp_path):
    assert digest(build(tmp_path, BODY, "sm_86")[0]) != digest(plain)


def test_an_unused_constant_of_nvrtc_does_not_change_the_digest():
    listing = sass("constants.sm_80")
    one, other = cubin("constants.sm_80"), cubin("constants_other.sm_80")
    assert one.symbols != other.symbols
    assert machine_code_digest(listing, one) == machine_code_digest(listing, other)


def test_a_golden_digest_does_not_drift():
    assert machine_code_digest(sass("tiles.sm_80"), cubin("tiles.sm_80"))[:16] == "8c10afd58310d9f8"


# --- what no kernel may use -------------------------------------------------------------------------------------------


def rules(findings):
    return {(f.rule, f.line_text.split("[")[0].split(",")[0].strip()) for f in findings}


def test_ptx_that_breaks_rules_is_found_with_its_line():
    findings = lint_ptx(text("banned.ptx"))
    source = text("banned.cu").split("\n")
    assert {f.rule for f in findings} == set(RULES) - {"device-launch", "indirect-call", "call-number", "local-memory"}
    for finding in findings:
        word = re.split(r"[\s,]+", finding.line_text.replace("call.uni", ""))[0].split(".")[0]
        plain_words = {"mov": ("clock", "globaltimer", "%pm0"), "free": ("free",)}
        line = source[finding.line - 1]
        assert any(w in line for w in plain_words.get(word, (word, "printf", "malloc", "free"))), (finding, line)
    assert sum(f.rule == "clock" for f in findings) == 4
    assert sum(f.rule == "outside-call" for f in findings) == 3


def test_machine_code_that_breaks_rules_is_found_with_its_line():
    both = {"clock", "prefetch", "system-memory", "outside-call", "trap"}
    assert {f.rule for f in lint_sass(sass("banned.sm_80"))} == both
    findings = lint_sass(sass("banned.sm_90a"))
    assert {f.rule for f in findings} == both | {"dependent-launch"}
    assert {("dependent-launch", "PREEXIT"), ("dependent-launch", "ACQBULK"), ("prefetch", "UBLKPF.L2")} <= rules(findings)
    assert {"SR_CLOCKLO", "SR_GLOBALTIMERLO", "SR_PM0"} == {f.message.split()[-1] for f in findings if f.rule == "clock"}
    source = text("banned.cu").split("\n")
    assert all("globaltimer" in source[f.line - 1] for f in findings if "GLOBALTIMER" in f.message)


@pytest.mark.parametrize("name", [n for n in LISTED if not n.startswith("banned")])
def test_machine_code_that_breaks_no_rule_is_left_alone(name):
    assert lint_sass(sass(name)) == ()


def test_policies_are_followed_to_what_they_are():
    found = lint_ptx(text("policies.ptx"))
    source = text("policies.cu").split("\n")
    assert {f.rule for f in found} == {"cache-policy"}
    said = [(source[f.line - 1].rsplit('"', 1)[-1], "cannot be read" in f.message) for f in found]
    assert said == [("(b));", False), ("(b));", False), ("(0x14F0000000000000ull));", False), ("(given));", True)]


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("mov.u32 %r1, %clock;", "clock"),
        ("mov.u32 %r1, %clock_hi;", "clock"),
        ("mov.u32 %r1, %globaltimer_lo;", "clock"),
        ("pmevent 3;", "clock"),
        ("prefetch.global.L1 [%rd1];", "prefetch"),
        ("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {%r1, %r2}];", "prefetch"),
        ("cp.async.cg.shared.global.L2::256B [%r1], [%rd1], 16;", "prefetch"),
        ("@%p1 trap;", "trap"),
        ("@%p1 griddepcontrol.wait;", "dependent-launch"),
        ("multimem.red.global.add.f32 [%rd1], %f1;", "system-memory"),
        ("call (retval0), %rd5, (param0), prototype_0;", "indirect-call"),
        (
            ".extern .func (.param .b32 r) cudaLaunchDeviceV2 (.param .b64 a);\ncall.uni (r), cudaLaunchDeviceV2, (a);",
            "device-launch",
        ),
        (".extern .func __assertfail (.param .b64 a);\n@%p1 call.uni __assertfail, (a);", "outside-call"),
        ("ld.global.L2::evict_last.v8.f32 {%f1, %f2}, [%rd1];", "cache-policy"),
        ("st.global.L2::cache_hint.f32 [%rd1], %f1, %rd9;", "cache-policy"),
        (
            "mov.b64 %rd2, 0x14F0000000000000;\nmov.b64 %rd3, %rd2;\nst.global.L2::cache_hint.f32 [%rd1], %f1, %rd3;",
            "cache-policy",
        ),
        ("{ .reg .b64 p; createpolicy.cvt.L2.b64 p, %rd1; ld.global.L2::cache_hint.f32 %f1, [%rd2], p; }", "cache-policy"),
    ],
)
def test_each_rule_catches_its_statement(statement, rule):
    findings = lint_ptx(f".visible .entry k()\n{{\n{statement}\nret;\n}}\n")
    assert [f.rule for f in findings] == [rule]


@pytest.mark.parametrize(
    "statement",
    [
        "// mov.u64 %rd1, %clock64;\n/* trap; */ ret;",
        "prefetch.tensormap [%rd1];",
        "prefetch.param.tensormap [%rd1];",
        "cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16;",
        "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
        "ld.global.L1::evict_last.f32 %f1, [%rd1];",
        "mov.u32 %r1, %smid;",
        "mov.u32 %r1, %clusterid.x;",
        "nanosleep.u32 20;",
        ".func f ()\n{\nret;\n}\ncall.uni f, ();",
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);",
        "createpolicy.fractional.L2::evict_first.b64 %rd2, 1.0;\nld.global.L2::cache_hint.f32 %f1, [%rd1], %rd2;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%r1], [%rd1, {%r2, %r3}], [%r4], 0x1000000000000000;",
    ],
)  # fmt: skip
def test_what_kernels_may_use_is_left_alone(statement):
    assert lint_ptx(f".visible .entry k()\n{{\n{statement}\nret;\n}}\n") == ()


# --- cards and occupancy ----------------------------------------------------------------------------------------------


def test_cards_are_found_by_the_names_that_people_and_drivers_use():
    for name in ("A100", "a100", "NVIDIA A100-SXM4-80GB"):
        assert find_card(name).arch == "sm_80"
    assert find_card("NVIDIA GeForce RTX 3090").compute_capability == (8, 6)
    assert find_card("NVIDIA H100 80GB HBM3").name == "H100"
    assert find_card("NVIDIA H200").memory_gb_s > find_card("H100").memory_gb_s
    for name in (
        "NVIDIA H100 PCIe",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA GeForce RTX 3090 Ti",
        "V100",
        "",
    ):
        with pytest.raises(ConfigurationError, match="no such card"):
            find_card(name)


def test_cards_are_found_by_architecture():
    assert [card_for(a).name for a in ("sm_80", "8.6", "sm_90a", "sm_90", "compute_100a", "10.0")] == [
        "A100", "RTX 3090", "H100", "H100", "B200", "B200",
    ]  # fmt: skip
    for arch in ("sm_75", "sm_120a", "ampere", ""):
        with pytest.raises(ConfigurationError, match="no card is known"):
            card_for(arch)


# Dense multiply-adds of a multiprocessor in one clock, from the white papers, times two.
FLOPS_PER_CLOCK = {"A100": 2048, "RTX 3090": 1024, "H100": 4096, "H200": 4096, "B200": 8192}


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_peak_rates_follow_from_multiprocessors_and_clock(card):
    peak = FLOPS_PER_CLOCK[card.name] * card.n_sms * card.clock_mhz * 1e6 / 1e12
    assert card.fp16_tflops == pytest.approx(peak, rel=0.005)
    assert card.fp32_sum_tflops * (2 if card.name == "RTX 3090" else 1) == card.fp16_tflops
    assert card.shared_per_sm_bytes - card.shared_per_block_bytes == 1024
    assert card.source
    assert 50 < card.ridge_flops_per_byte < 400


def entry(n_registers=32, shared=0, n_barriers=1):
    return Entry("k", n_registers, 0, None, shared, 0, n_barriers, None, (), {})


@pytest.mark.parametrize(
    ("card", "registers", "threads", "shared", "blocks", "limit"),
    [
        ("A100", 32, 256, 0, 8, Limit.WARPS),
        ("A100", 128, 128, 0, 4, Limit.REGISTERS),
        ("A100", 168, 128, 0, 3, Limit.REGISTERS),
        ("A100", 255, 256, 0, 1, Limit.REGISTERS),
        ("A100", 32, 32, 0, 32, Limit.BLOCKS),
        ("A100", 128, 128, 81 * 1024, 2, Limit.SHARED),
        ("A100", 128, 128, 82 * 1024, 1, Limit.SHARED),
        ("A100", 32, 128, 163 * 1024, 1, Limit.SHARED),
        ("A100", 32, 128, 163 * 1024 + 1, 0, Limit.SHARED),
        ("A100", 128, 1024, 0, 0, Limit.REGISTERS),
        ("A100", 32, 1056, 0, 0, Limit.WARPS),
        ("RTX 3090", 40, 1024, 0, 1, Limit.WARPS),
        ("RTX 3090", 32, 32, 0, 16, Limit.BLOCKS),
        ("RTX 3090", 64, 256, 48 * 1024, 2, Limit.SHARED),
        ("H100", 168, 384, 227 * 1024, 1, Limit.REGISTERS),
        ("H200", 90, 128, 0, 5, Limit.REGISTERS),
        ("B200", 64, 192, 113 * 1024, 2, Limit.SHARED),
    ],
)
def test_known_occupancies(card, registers, threads, shared, blocks, limit):
    result = occupancy(entry(registers), threads, shared, find_card(card))
    assert (result.blocks_per_sm, result.limit) == (blocks, limit)
    assert result.warps_per_sm == blocks * -(-threads // 32)
    assert 0 <= result.fraction <= 1


def test_static_and_dynamic_shared_memory_add_up_and_barriers_count():
    card = find_card("A100")
    assert occupancy(entry(shared=40000), 64, 41000, card) == occupancy(entry(), 64, 81000, card)
    assert occupancy(entry(n_barriers=16), 64, 0, card).blocks_by.keys() == {*Limit} - {Limit.BARRIERS}
    hopper = find_card("H100")
    assert occupancy(entry(n_barriers=16), 64, 0, hopper).limit is Limit.BARRIERS
    assert occupancy(entry(n_barriers=16), 64, 0, hopper).blocks_per_sm == 4
    assert occupancy(entry(n_barriers=0), 64, 0, hopper).blocks_by.keys() == {*Limit} - {Limit.BARRIERS}
    with pytest.raises(ValueError, match="is none"):
        occupancy(entry(), 0, 0, card)


CALCULATOR = r"""
#include <limits.h>
#include <stdio.h>
#include "cuda_occupancy.h"
int main(void)
{
    int major, minor, warps, sm, block, registers, shared, barriers, threads, dynamic;
    while (scanf("%d %d %d %d %d %d %d %d %d %d", &major, &minor, &warps, &sm, &block, &registers, &shared, &barriers,
                 &threads, &dynamic) == 10) {
        cudaOccDeviceProp card = {.computeMajor = major, .computeMinor = minor, .maxThreadsPerBlock = 1024,
            .maxThreadsPerMultiprocessor = warps * 32, .regsPerBlock = 65536, .regsPerMultiprocessor = 65536,
            .warpSize = 32, .sharedMemPerBlock = 49152, .sharedMemPerMultiprocessor = sm, .numSms = 1,
            .sharedMemPerBlockOptin = block, .reservedSharedMemPerBlock = 1024};
        cudaOccFuncAttributes kernel = {.maxThreadsPerBlock = INT_MAX, .numRegs = registers, .sharedSizeBytes = shared,
            .partitionedGCConfig = PARTITIONED_GC_OFF, .shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN,
            .maxDynamicSharedSizeBytes = dynamic, .numBlockBarriers = barriers};
        cudaOccDeviceState state = {CACHE_PREFER_NONE, SHAREDMEM_CARVEOUT_MAX_SHARED};
        cudaOccResult result;
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &card, &kernel, &state, threads, dynamic);
        printf("%d %d %d\n", error ? -error : result.activeBlocksPerMultiprocessor, (int)result.allocatedSharedMemPerBlock,
               result.allocatedRegistersPerBlock);
    }
}
"""


def test_occupancy_is_that_of_nvidias_calculator(tmp_path):
    include = WHEEL / "include"
    if not (include / "cuda_occupancy.h").exists() or shutil.which("cc") is None:
        pytest.skip("cuda_occupancy.h or a C compiler is not installed")
    (tmp_path / "a.c").write_text(CALCULATOR)
    subprocess.run(["cc", f"-I{include}", "a.c", "-o", "a.out"], cwd=tmp_path, check=True, capture_output=True)
    sizes = (0, 100, 1024, 16384, 40000, 49152)
    cases = list(
        itertools.product(
            CARDS, (16, 24, 32, 40, 41, 64, 90, 96, 128, 168, 200, 255), (0, 1, 3, 16), sizes,
            (32, 33, 96, 128, 256, 384, 1000, 1024), (0, 1000, 49152, 66000, 98304, 163840, 180000, 232448),
        )
    )[::7]  # fmt: skip
    lines = [
        f"{c.compute_capability[0]} {c.compute_capability[1]} {c.max_warps_per_sm} {c.shared_per_sm_bytes} "
        f"{c.shared_per_block_bytes} {r} {s} {b} {t} {d}"
        for c, r, b, s, t, d in cases
    ]
    done = subprocess.run(["./a.out"], cwd=tmp_path, input="\n".join(lines), capture_output=True, text=True, check=True)
    theirs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(theirs) == len(cases) > 5000
    for case, expected in zip(cases, theirs, strict=True):
        card, registers, barriers, shared, threads, dynamic = case
        ours = occupancy(entry(registers, shared, barriers), threads, dynamic, card)
        assert (ours.blocks_per_sm, ours.shared_per_block_bytes, ours.registers_per_block) == expected, case
