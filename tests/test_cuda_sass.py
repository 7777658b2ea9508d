"""What is read from the disassembly: instructions, lines, kinds of matrix instruction and copy, counts."""

import dataclasses
import itertools
import re
import time

import pytest

from evo_l2.errors import ToolchainError
from evo_l2.targets.cuda.reading.listing import annotate, in_program_order, plain
from evo_l2.targets.cuda.reading.resources import (
    accumulator,
    copy_kind,
    matrix_kind,
    matrix_operations,
    narrow_instructions,
    parse_usage,
    resources_of,
)
from evo_l2.targets.cuda.reading.sass import (
    instruction_class,
    instruction_mix,
    parse_sass,
    read_sass,
)


def test_every_instruction_of_a_listing_is_read_and_known(goldens, golden_listing):
    listing, code = goldens.text(f"{golden_listing}.sass.txt"), goldens.sass(golden_listing)
    assert len(code.instructions) == len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", listing, re.MULTILINE))
    assert {i.opcode for i in code.instructions if instruction_class(i) == "other"} == set()
    for function in code.functions.values():
        addresses = [i.address for i in function]
        assert addresses == list(range(addresses[0], addresses[0] + 16 * len(addresses), 16))
    assert sum(instruction_mix(code.instructions).values()) == sum(i.base != "NOP" for i in code.instructions)


def test_predicates_operands_and_functions_are_told_apart(goldens):
    code = goldens.sass("tiles.sm_80")
    assert list(code.functions) == ["tiles", "$tiles$_Z5scalefi"]
    assert code.owners == {"tiles": "tiles", "$tiles$_Z5scalefi": "tiles"}
    branch = next(i for i in code.functions["tiles"] if i.predicate)
    assert (branch.predicate, branch.opcode, branch.operands) == ("!P0", "BRA", "`(.L_x_0)")
    product = next(i for i in code.functions["tiles"] if i.base == "HMMA")
    assert (product.opcode, product.modifiers, product.predicate) == ("HMMA.16816.F32", ("16816", "F32"), None)
    assert code.of("tiles") == code.instructions
    assert code.functions["$tiles$_Z5scalefi"][0].address == 0xAA0


def test_lines_are_those_of_the_kernels_file(goldens):
    code = goldens.sass("tiles.sm_80")
    source = goldens.text("tiles.cu").split("\n")
    assert {i.file for i in code.instructions} == {"tiles.cu"}
    for base, word in (("HMMA", "mma.sync"), ("LDSM", "ldmatrix"), ("LDGSTS", "cp.async"), ("STG", "C[threadIdx.x")):
        lines = {i.line for i in code.instructions if i.base == base}
        assert lines
        # An asm statement stands at its last line.
        assert all(word in " ".join(source[line - 3 : line]) for line in lines), (base, lines)
    assert all(source[i.line - 1].startswith("__device__") for i in code.functions["$tiles$_Z5scalefi"])


def test_a_listing_without_lines_is_read(goldens):
    bare = re.sub(r"\t//## File.*\n", "", goldens.text("tiles.sm_80.sass.txt"))
    code = parse_sass(bare)
    assert [i.text for i in code.instructions] == [i.text for i in goldens.sass("tiles.sm_80").instructions]
    assert {(i.file, i.line) for i in code.instructions} == {(None, None)}
    assert parse_sass("") == parse_sass("nvdisasm fatal : no\n")
    assert parse_sass("").functions == {}


# Counted in the listings by hand (grep).
COUNTS = {
    "tiles.sm_80": {
        "n_matrix": 5,
        "n_matrix_load": 10,
        "n_async_copy": 10,
        "widest_async_copy_bits": 128,
        "n_global_load": 0,
        "widest_global_load_bits": 0,
        "n_global_store": 1,
        "n_fma": 0,
    },
    "halves.sm_80": {
        "n_matrix": 12,
        "n_shared_store": 10,
        "n_matrix_load": 10,
        "n_half_math": 0,
        "widest_global_load_bits": 128,
        "widest_async_copy_bits": 0,
    },
    "naive.sm_80": {"n_matrix": 0, "n_fma": 5, "n_atomic": 1, "n_global_load": 12, "n_global_store": 2, "n_half_math": 0},
    "tma.sm_90a": {"n_matrix": 21, "n_bulk_copy": 11, "n_async_copy": 0, "n_global_store": 5},
    "spills.sm_80": {"n_local_store": 89, "n_local_load": 113, "n_fma": 48},
}


@pytest.mark.parametrize("name", COUNTS)
def test_instructions_are_counted(goldens, name):
    facts = resources_of(goldens.cubin(name), goldens.sass(name))
    assert {key: facts[key] for key in COUNTS[name]} == COUNTS[name]
    for key, base in (
        ("n_matrix_load", "LDSM"),
        ("n_async_copy", "LDGSTS"),
        ("n_local_load", "LDL"),
        ("n_global_load", "LDG"),
    ):
        assert facts[key] == len(re.findall(rf"\s{base}[. ]", goldens.text(f"{name}.sass.txt"))), key


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
def test_matrix_instructions_and_copies_are_classified(goldens, name, kinds, sums, copies):
    code = goldens.sass(name)
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
def test_each_entry_is_classified_by_its_own_code(goldens, name, entry, kind, copies):
    code = goldens.sass(name)
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


def test_instructions_that_nobody_knows_are_counted(goldens):
    assert resources_of(goldens.cubin("tiles.sm_80"), goldens.sass("tiles.sm_80"))["n_unknown"] == 0
    assert resources_of(goldens.cubin("tiles.sm_80"), with_opcode("LDNEW.E.128"))["n_unknown"] == 1


def test_narrow_formats_are_found_where_the_matrix_instruction_hides_them(goldens):
    code = goldens.sass("narrow.sm_90a")
    assert matrix_kind(code) == "wmma/mma fp32"
    found = narrow_instructions(code)
    assert {i.opcode for i in found} == {"F2FP.F16.E4M3.UNPACK_B"}
    assert resources_of(goldens.cubin("tiles.sm_80"), code)["n_narrow"] == len(found) == 12
    assert len(narrow_instructions(goldens.sass("halves.sm_80"))) == 2
    assert all(i.base == "IMMA" for i in narrow_instructions(goldens.sass("halves.sm_80")))
    for name in ("tiles.sm_80", "tiles.sm_100a", "tma.sm_90a", "tcgen.sm_100a", "naive.sm_80"):
        assert narrow_instructions(goldens.sass(name)) == ()
    assert len(narrow_instructions(with_opcode("F2FP.SATFINITE.E5M2.F16.UNPACK_B_MERGE_C"))) == 1
    assert narrow_instructions(with_opcode("DMMA.884")) == ()


def test_a_descriptor_that_is_no_constant_leaves_the_sums_unknown(goldens):
    listing = goldens.text("tcgen.sm_100a.sass.txt")
    assert accumulator(parse_sass(re.sub(r"UMOV UR13, 0x8100010 ", "R2UR UR13, R9 ", listing))) == "mixed"
    hidden = parse_sass(re.sub(r"UMOV UR13, 0x81000\d0 ", "R2UR UR13, R9 ", listing))
    assert (accumulator(hidden), matrix_kind(hidden)) == ("unknown", "tcgen05 unknown")
    guarded = parse_sass(re.sub(r"UMOV UR13, 0x81000\d0 ", "@UP0 UMOV UR13, 0x8100010 ", listing))
    assert accumulator(guarded) == "unknown"


@pytest.mark.parametrize(
    ("operands", "opcode", "n"),
    [
        ("R3, -RZ, RZ, 0, 0", "HFMA2.MMA", 0),
        ("R3, -RZ, R5.H0_H0", "HADD2.F32", 0),
        ("R3, R4, R5, R6", "HFMA2", 1),
        ("R3, R4, R5", "HADD2", 1),
        ("R3, R4, R5, R6", "HFMA2.BF16_V2", 1),
        ("R3, R4, R5", "HMUL2.BF16_V2", 1),
        ("R3, -RZ, RZ, 0, 0", "HFMA2.BF16_V2", 0),
    ],
)
def test_half_arithmetic_is_told_from_conversions_and_constants(goldens, operands, opcode, n):
    assert resources_of(goldens.cubin("tiles.sm_80"), with_opcode(opcode, operands))["n_half_math"] == n


def test_facts_are_flat_and_cover_the_launch(goldens):
    facts = resources_of(
        goldens.cubin("halves.sm_80"), goldens.sass("halves.sm_80"), parse_usage(goldens.text("halves.sm_80.ptxas.txt"))
    )
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
    assert resources_of(goldens.cubin("spills.sm_80"), goldens.sass("spills.sm_80"))["spill_bytes"] == 984
    log = parse_usage(goldens.text("spills.sm_80.ptxas.txt"))
    assert resources_of(goldens.cubin("spills.sm_80"), goldens.sass("spills.sm_80"), log)["spill_bytes"] == 984


def test_an_annotated_listing_shows_every_instruction_once_below_its_line(goldens):
    code, source = goldens.sass("tiles.sm_80"), goldens.text("tiles.cu")
    rows = annotate(code, source).split("\n")
    for number, line in enumerate(source.splitlines(), start=1):
        assert f"{number:5d}  {line}".rstrip() in rows
    products = [i for i, row in enumerate(rows) if "HMMA" in row]
    above = [next(row for row in reversed(rows[:i]) if re.match(r"\s*\d+  ", row)) for i in products]
    assert len(products) == 5
    assert all(': "r"(x[0]), "r"(x[1])' in row for row in above)
    shown = [row for row in rows if row.startswith(" " * 10) and not row.endswith(":")]
    assert sum(not row.endswith("NOP") for row in shown) == sum(i.base != "NOP" for i in code.instructions)
    assert any(row.split()[:4] == ["tiles", "0060", "@!P0", "BRA"] for row in rows)


def test_every_branch_leads_to_a_place_that_is_shown(goldens, golden_listing):
    code = goldens.sass(golden_listing)
    for text in (annotate(code, "one\n"), in_program_order(code, "one\n")):
        rows = text.split("\n")
        branches = [match for row in rows if (match := re.search(r"`\((\.L_x_\w+)\)  // to ([0-9a-f]+)$", row))]
        assert len(branches) == len([row for row in rows if "`(.L_x_" in row])
        for branch in branches:
            at = [i for i, row in enumerate(rows) if row.strip() == f"{branch[1]}:"]
            assert len(at) == 1, branch[0]
            below = next(row for row in rows[at[0] :] if re.search(r"^ {10}(\S+ +)?[0-9a-f]{4,} ", row))
            assert f" {branch[2]} " in below


def test_program_order_is_by_address_with_the_line_where_it_changes(goldens):
    code, source = goldens.sass("tiles.sm_80"), goldens.text("tiles.cu")
    rows = in_program_order(code, source).split("\n")
    addresses = [int(match[1], 16) for row in rows if (match := re.match(r" {10}([0-9a-f]{4}) ", row))]
    kept = [i.address for function in code.functions.values() for i in function]
    assert addresses == [address for address in kept if address in addresses] == sorted(addresses)
    quoted = [row for row in rows if re.match(r" {0,4}\d+  ", row)]
    assert all(one != other for one, other in itertools.pairwise(quoted))
    assert quoted
    assert set(quoted) <= {f"{number:5d}  {line}" for number, line in enumerate(source.split("\n"), start=1)}
    assert [row for row in rows if row.endswith(":") and not row.startswith(" ")] == ["tiles:", "$tiles$_Z5scalefi:"]


def test_plain_data_has_targets_and_labels_that_agree(goldens):
    first, second = plain(goldens.sass("tiles.sm_80"))
    assert (first["name"], second["name"], second["entry"]) == ("tiles", "$tiles$_Z5scalefi", "tiles")
    rows = [*first["instructions"], *second["instructions"]]
    places = {label: row["address"] for row in rows for label in row["labels"]}
    branch = next(row for row in rows if row["opcode"] == "BRA" and row["predicate"] == "!P0")
    assert branch["target"] == places[branch["operands"].strip("`()")]
    call = next(row for row in rows if row["opcode"].startswith("CALL"))
    assert call["target"] == second["instructions"][0]["address"] == 0xAA0


@pytest.mark.parametrize(("opcode", "n_bits"), [("LDG.E.U8", 8), ("LDG.E.U16.CONSTANT", 16), ("LDG.E", 32), ("LDG.E.64", 64),
                                                ("LDG.E.LTC128B.128", 128)])  # fmt: skip
def test_the_width_of_a_load_is_that_of_its_opcode(goldens, opcode, n_bits):
    facts = resources_of(goldens.cubin("tiles.sm_80"), with_opcode(opcode, "R4, [R2]"))
    assert facts["widest_global_load_bits"] == n_bits


def test_instructions_without_a_line_come_last(goldens):
    bare = parse_sass(re.sub(r"\t//## File.*\n", "", goldens.text("tiles.sm_80.sass.txt")))
    rows = annotate(bare, "one\ntwo\n").split("\n")
    assert rows[:3] == ["    1  one", "    2  two", "       (no line of the source)"]
    assert "IMAD.MOV.U32 R1" in rows[3]


def test_a_broken_disassembler_is_one_clear_error(goldens, tmp_path):
    path = goldens.folder / "tiles.sm_80.cubin"
    for body, found in (
        ("echo no code", "no instruction"),
        ("echo bad file >&2; exit 1", "bad file"),
        ("sleep 60", "found nvdisasm, which had not ended after 0.5 s; try: evo-l2 doctor"),
    ):
        script = tmp_path / "nvdisasm"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
        with pytest.raises(ToolchainError, match=found) as caught:
            read_sass(path, script, timeout_s=0.5)
        assert "[" not in str(caught.value)
    with pytest.raises(ToolchainError, match="the disassembler fails"):
        read_sass(path, tmp_path / "missing")


def fake(folder, body):
    """A disassembler that is a script."""
    script = folder / "nvdisasm"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("head -n 60", r"a listing of \d+ instructions of tiles, whose code has 2944 bytes"),
        ("grep -v HMMA", "instructions of tiles, whose code"),
        ("sed /02a0/d", "a listing of 183 instructions"),
        ("sed s/02a0/02a8/", "a listing of 184 instructions"),
        ("sed 's/02a0.*/02a0*\\/ \\x1b[31m NOTHING/'", "a listing of 183 instructions"),
        ("tr -d ';'", "no instruction in its output"),
        ("sed s/tiles/tales/g", "whose code has 0 bytes|a listing of 0 instructions"),
        ('awk \'{ print } END { print "\\t.section\\t.text.more,"; print " /*0000*/ EXIT ;" }\'', "whose code has 0 bytes"),
    ],
)
def test_a_listing_that_does_not_show_all_of_the_code_is_not_believed(change, found, goldens, cuda_wheels, tmp_path):
    path = goldens.folder / "tiles.sm_80.cubin"
    assert len(read_sass(path, fake(tmp_path, f'{cuda_wheels.nvdisasm} "$@" | cat')).instructions) == 184
    with pytest.raises(ToolchainError, match=found) as caught:
        read_sass(path, fake(tmp_path, f'{cuda_wheels.nvdisasm} "$@" | {change}'))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", ["exec yes nonsense", "exec yes nonsense >&2", "cat /dev/zero"])
def test_a_disassembler_without_an_end_to_what_it_says_is_ended(body, goldens, tmp_path):
    begin = time.monotonic()
    with pytest.raises(ToolchainError, match=r"found nvdisasm writes more than \d+ bytes; try: evo-l2 doctor"):
        read_sass(goldens.folder / "tiles.sm_80.cubin", fake(tmp_path, body))
    assert time.monotonic() - begin < 20
