"""What machine code may read beside its arguments, and which constants reach an instruction on every path."""

import re
from pathlib import Path

import pytest

from evo_l2.kernel import Kernel
from evo_l2.targets.cuda.reading.cubin import read_cubin
from evo_l2.targets.cuda.reading.driver_constants import constant_addresses, lint_header
from evo_l2.targets.cuda.reading.reaching_constants import constants_in
from evo_l2.targets.cuda.reading.resources import matrix_kind
from evo_l2.targets.cuda.reading.sass import parse_sass, read_sass
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler

GOLDEN = Path(__file__).parent / "golden" / "cuda"
LISTED = sorted(path.name.removesuffix(".sass.txt") for path in GOLDEN.glob("*.sass.txt"))
EVERYWHERE = (
    "ntid.x", "ntid.y", "ntid.z", "nctaid.x", "nctaid.y", "nctaid.z", "ctaid.x", "nwarpid", "nsmid", "laneid", "warpid",
    "smid", "total_smem_size", "dynamic_smem_size",
)  # fmt: skip
WITH_CLUSTERS = (
    "nclusterid.x", "clusterid.y", "cluster_nctaid.x", "cluster_nctaid.z", "cluster_ctaid.x", "cluster_ctarank",
    "cluster_nctarank", "aggr_smem_size",
)  # fmt: skip
SOURCE = """\
//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid 1
//! block 32
#include <cuda_fp16.h>
__constant__ int table[4] = {3, 1, 4, 1};
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    unsigned sum = table[threadIdx.x & 3], one;
    %s
    unsigned local[64];
    for (int i = 0; i < 64; i++)
        local[i] = sum * i;
    ((unsigned *)C)[threadIdx.x] = local[M & 63];
}
"""
LISTING = """
\t.section\t.text.f,"ax",@progbits
\t.type\tf,@function
f:
%s
"""


@pytest.fixture(scope="module")
def compiler(cuda_wheels, tmp_path_factory):
    with CudaCompiler(cuda_wheels, tmp_path_factory.mktemp("cache"), builder="nvrtc") as made:
        yield made


def listing(*rows):
    address, lines = 0, []
    for row in rows:
        if row.endswith(":"):
            lines.append(row)
        else:
            lines.append(f"        /*{address:04x}*/                   {row} ;")
            address += 16
    return parse_sass(LISTING % "\n".join(lines))


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100a"])
def test_special_registers_and_tables_may_be_read(compiler, arch):
    names = EVERYWHERE if arch in ("sm_80", "sm_86") else EVERYWHERE + WITH_CLUSTERS
    reads = "".join(f'asm volatile("mov.u32 %0, %%{n};" : "=r"(one)); sum = sum * 3 + one;\n' for n in names)
    built = compiler.build(Kernel(SOURCE % reads, "cuda"), arch)
    sass = read_sass(built.cubin, compiler.toolkit.tool("nvdisasm"))
    banks = {name: entry.constant_bytes for name, entry in read_cubin(built.cubin).entries.items()}
    assert banks["hgemm"][3] == 16
    assert list(lint_header(sass, arch, banks)) == []
    assert list(constant_addresses(sass, arch)) == []


@pytest.mark.parametrize("name", LISTED)
def test_known_machine_code_reads_nothing_beside_its_arguments(name):
    sass = parse_sass((GOLDEN / f"{name}.sass.txt").read_text(encoding="utf-8"))
    arch = re.search(r"sm_\w+", name)[0]
    assert list(constant_addresses(sass, arch)) == []
    assert [f for f in lint_header(sass, arch) if "c[0x0][R" not in f.line_text] == []


@pytest.mark.parametrize(
    ("arch", "row", "is_refused"),
    [
        ("sm_80", "MOV R2, c[0x0][0x30]", True),
        ("sm_80", "MOV R2, c[0x0][-0x80]", True),
        ("sm_80", "ULDC.64 UR4, c[0x0][0x118]", False),
        ("sm_80", "ULDC.128 UR4, c[0x0][0x110]", True),
        ("sm_80", "ULDC.64 UR4, c[0x0][0x28]", False),
        ("sm_80", "ULDC.128 UR4, c[0x0][0x20]", False),
        ("sm_80", "IMAD.WIDE R2, R4, 0x2, c[0x0][0x160]", False),
        ("sm_80", "IMAD.WIDE R2, R4, 0x2, c[0x0][0x30]", True),
        ("sm_90a", "LDC R2, c[0x0][R2+0x30]", True),
        ("sm_90a", "LDC R2, c[0x0][R2+0x210]", True),
        ("sm_90a", "LDC R2, c[0x0][RZ]", False),
        ("sm_90a", "LDC R2, c[0x3][R2]", False),
        ("sm_90a", "LDC R2, c[UR4][R2]", True),
        ("sm_90a", "LDG.E R2, desc[UR4][R2.64]", False),
        ("sm_100a", "LDC.64 R4, c[0x0][0x140]", True),
        ("sm_100a", "LDC R5, c[0x0][R5+0x2a0]", True),
    ],
)
def test_what_stands_before_the_arguments_is_not_read(arch, row, is_refused):
    assert bool(list(lint_header(listing(row, "EXIT"), arch))) == is_refused


@pytest.mark.parametrize(
    ("rows", "is_refused"),
    [
        (("CS2R.32 R5, SR_CgaSize", "IMAD R5, R5, -0xa0, RZ", "LDC R5, c[0x0][R5+0x2a0]"), False),
        (("CS2R.32 R5, SR_CgaSize", "IMAD R5, R5, -0xa0, RZ", "R2UR UR6, R5", "LDCU UR6, c[0x0][UR6+0x2cc]"), False),
        (("CS2R.32 R5, SR_CgaSize", "IMAD R5, R5, -0xa0, RZ", "LDC R5, c[0x0][R5+0x140]"), True),
        (("CS2R.32 R5, SR_CgaSize", "IMAD R5, R5, -0xa0, RZ", "LDC.64 R4, c[0x0][R5+0x2a0]"), True),
        (("CS2R.32 R5, SR_CgaSize", "LDC R5, c[0x0][R5+0x2a0]"), True),
        (("S2R R5, SR_TID.X", "IMAD R5, R5, -0xa0, RZ", "LDC R5, c[0x0][R5+0x2a0]"), True),
        (("CS2R.32 R5, SR_CgaSize", "@P0 IMAD R5, R5, -0xa0, RZ", "LDC R5, c[0x0][R5+0x2a0]"), True),
        (("CS2R.32 R5, SR_CgaSize", "IMAD R5, R5, -0xa0, RZ", ".L_x_0:", "LDC R5, c[0x0][R5+0x2a0]", "BRA `(.L_x_0)"), True),
    ],
)
def test_the_compilers_own_index_is_told_from_others(rows, is_refused):
    rows = [re.sub(r"^@(P0) ", r"@\1 ", row) for row in rows]
    assert bool(list(lint_header(listing(*rows, "EXIT"), "sm_100a"))) == is_refused


@pytest.mark.parametrize(
    ("arch", "offsets"), [("sm_80", (0x50, 0x54)), ("sm_86", (0x50,)), ("sm_90a", (0xD0, 0xD4)), ("sm_100a", (0x120, 0x124))]
)
def test_the_address_of_constant_memory_is_found(arch, offsets):
    for offset in offsets:
        assert len(list(constant_addresses(listing(f"MOV R2, c[0x0][{offset:#x}]", "EXIT"), arch))) == 1
    assert len(list(constant_addresses(listing(f"LDC.64 R2, c[0x0][{offsets[0] - 4:#x}]", "EXIT"), arch))) == 1


USE = "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR9], UP0"


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (("UMOV UR9, 0x10", USE), {0x10}),
        (("UMOV UR5, 0x10", "UMOV UR9, UR5", "UMOV UR5, 0x0", USE), {0x10}),
        (("UMOV UR9, URZ", USE), {0}),
        (("UMOV UR9, 0x10", ".L_x_0:", USE, "@P0 BRA `(.L_x_0)"), {0x10}),
        (("UMOV UR9, 0x10", ".L_x_0:", USE, "UMOV UR9, 0x20", "@P0 BRA `(.L_x_0)"), {0x10, 0x20}),
        (("UMOV UR9, 0x10", "@P0 BRA `(.L_x_0)", "UMOV UR9, 0x20", ".L_x_0:", USE), {0x10, 0x20}),
        (("UMOV UR9, 0x10", "BRA `(.L_x_0)", "R2UR UR9, R3", "EXIT", ".L_x_0:", USE), {0x10}),
        (("UMOV UR9, 0x10", "@P0 BRA 0x30", "UMOV UR9, 0x20", USE), {0x10, 0x20}),
        (("BSSY B0, `(.L_x_0)", "UMOV UR9, 0x10", "BSYNC B0", "UMOV UR9, 0x20", ".L_x_0:", USE), {0x10, 0x20}),
        ((USE,), None),
        (("@P0 BRA `(.L_x_0)", "UMOV UR9, 0x10", ".L_x_0:", USE), None),
        (("@UP0 UMOV UR9, 0x10", USE), None),
        (("UMOV UR9, 0x10", "ULOP3.LUT UP0, UR9, UR3, 0x1, URZ, 0xc0, !UPT", USE), None),
        (("UMOV UR9, 0x10", "UIMAD.WIDE UR8, UR3, UR4, URZ", USE), None),
        (("UMOV UR9, 0x10", "LDCU.128 UR8, c[0x0][0x380]", USE), None),
        (("UMOV UR9, 0x10", "ULDC.64 UR8, c[0x0][0x380]", USE), None),
        (("UMOV UR9, 0x10", "UISETP.NE.AND UP0, UPT, UR9, URZ, UPT", USE), {0x10}),
        (("UMOV UR9, 0x10", "CALL.REL.NOINC `(g)", USE), None),
        (("UMOV UR9, 0x10", USE, "BRX R2 -0x10"), None),
    ],
)
def test_constants_are_those_of_every_path(rows, found):
    sass = listing(*rows, "EXIT")
    function = sass.functions["f"]
    index = next(i for i, instruction in enumerate(function) if instruction.base == "UTCHMMA")
    assert constants_in("UR9", function, index, sass.labels) == (None if found is None else frozenset(found))


@pytest.mark.parametrize(
    ("descriptor", "kind"),
    [
        (0x10 | 8 << 17 | 8 << 24, "tcgen05 fp32"),
        (0x10 | 1 << 7 | 1 << 10 | 1 << 15, "tcgen05 bf16"),
        (0x10 | 1 << 7, "tcgen05 unknown"),
        (0x10 | 1 << 10, "tcgen05 unknown"),
        (0x10 | 2 << 7 | 1 << 10, "tcgen05 unknown"),
        (0x14, "tcgen05 unknown"),
        (0x18, "tcgen05 unknown"),
        (0x50, "tcgen05 unknown"),
        (0x10 | 1 << 23, "tcgen05 unknown"),
        (0x10 | 1 << 29, "tcgen05 unknown"),
    ],
)
def test_both_operands_of_a_dense_product_are_of_the_same_type(descriptor, kind):
    sass = listing(f"UMOV UR9, {descriptor:#x}", USE, "EXIT")
    assert matrix_kind(sass) == kind


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_what_lies_behind_the_arguments_is_not_read(compiler, arch):
    def found(read):
        built = compiler.build(Kernel(SOURCE % f"{read} sum += one;", "cuda"), arch)
        sass = read_sass(built.cubin, compiler.toolkit.tool("nvdisasm"))
        banks = {name: entry.constant_bytes for name, entry in read_cubin(built.cubin).entries.items()}
        return [finding.message for finding in lint_header(sass, arch, banks)]

    assert found('asm volatile("ld.param.u32 %0, [hgemm_param_5];" : "=r"(one));') == []
    for offset in (4, 40, 2000):
        (message,) = found(f'asm volatile("ld.param.u32 %0, [hgemm_param_5+{offset}];" : "=r"(one));')
        assert "behind its arguments" in message


@pytest.mark.parametrize(
    ("row", "is_refused"),
    [
        ("LDC R1, c[0x0][0x224]", False),
        ("LDC.64 R2, c[0x0][0x220]", False),
        ("LDC R1, c[0x0][0x228]", True),
        ("LDC R1, c[0x3][0x3c]", False),
        ("LDC R1, c[0x3][R2+-0x10]", False),
        ("LDC R1, c[0x3][0x40]", True),
        ("ULDC UR4, c[0x3][-0x218]", True),
        ("LDC R1, c[0x2][0x0]", True),
        ("LDC R1, c[0x2][R4]", True),
    ],
)
def test_constants_end_with_the_tables_and_the_arguments(row, is_refused):
    assert bool(list(lint_header(listing(row, "EXIT"), "sm_90a", {"f": {0: 0x228, 3: 0x40}}))) == is_refused
