"""A CUDA kernel's launches: what they evaluate to, what no card takes, what the built code does not fit."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.errors import KernelError
from evo_l2.evaluation import Status
from evo_l2.kernel import Kernel
from evo_l2.launch import Role
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cpu.screen import screen as screen_for_cpu
from evo_l2.targets.cuda.cards import find_card
from evo_l2.targets.cuda.launching.measures import launch_facts, n_stages, tile_area
from evo_l2.targets.cuda.launching.plan import PlannedWorkspace, check_plan, identity, plan, plan_cases
from evo_l2.targets.cuda.limits import LimitError
from evo_l2.targets.cuda.reading.cubin import Cubin, Entry, Parameter
from evo_l2.targets.cuda.screen import screen as screen_for_cuda

SIZES = (300, 520, 1024, 2)
PROBLEM = Hgemm((SIZES,), layouts=("nn", "nt"))
A100, H100, RTX_3090, B200 = (find_card(name) for name in ("A100", "H100", "RTX 3090", "B200"))

TILED = """\
//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid   ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block  32 * WARPS
//! shared STAGES * (BM * BK + BK * BN) * 2
constexpr int BM = 128; //? 64 128
constexpr int BN = 64;
constexpr int BK = 32;
constexpr int STAGES = 3; //? 2 3 4
constexpr int WARPS = 4;
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K) {}
"""
SPLIT = """\
//! layout    nt
//! registers MOST
//! workspace P  SPLITS * BATCH * M * N * 4
//! workspace T  4 * ceil_div(M, 64) zeroed
//! tensormap TA: A, box 64, 64, swizzle 128, promotion 256
//! tensormap TB: B, box 1, 128, KB, swizzle 64
//! launch    partial(TA: map, TB: map, P: workspace, T: workspace, M, N, K, BATCH)
//! grid      2 * SMS, SPLITS
//! block     128, 3
//! shared    96 * 1024
//! cluster   2
//! launch    reduce(P: workspace, C: out, M, N, BATCH)
//! grid      ceil_div(M * N * BATCH, 256)
//! block     256
#define SPLITS 4
#define MOST 168
#define KB 32
"""


def kernel(source, *changes):
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return Kernel(source, "cuda")


def planned(source=TILED, *changes, sizes=SIZES, n_sms=108):
    return plan(kernel(source, *changes), PROBLEM, sizes, n_sms)


def parameters(launch):
    """The arguments' places, as a compiler lays them out for a bank that begins with 352 bytes of the driver's."""
    at, result = 352, []
    for argument in launch.arguments:
        alignment = 64 if argument.role is Role.MAP else argument.n_bytes
        at = math.ceil(at / alignment) * alignment
        result.append(Parameter(at - 352, argument.n_bytes))
        at += argument.n_bytes
    return tuple(result), at


def entry(launch, **changes):
    places, bank_bytes = parameters(launch)
    plain = Entry(launch.entry, 64, 0, 0, 0, 0, 1, None, places, {0: bank_bytes})
    return replace(plain, **changes)


def built(launches, arch="sm_90a", **changes):
    return Cubin(arch, {launch.entry: entry(launch, **changes) for launch in launches}, ())


def refusal(verdict):
    assert verdict is not None
    assert verdict.status is Status.UNLAUNCHABLE
    return verdict.gate, verdict.message


def test_a_launch_is_evaluated_over_constants_sizes_and_multiprocessors():
    result = planned()
    (launch,) = result.launches
    assert (launch.entry, launch.grid, launch.block, launch.cluster) == ("hgemm", (9, 3, 2), (128, 1, 1), None)
    assert (launch.n_threads, launch.shared_bytes, launch.line) == (128, 3 * (128 * 32 + 32 * 64) * 2, 2)
    assert [(a.name, a.value, a.n_bytes) for a in launch.arguments] == [
        ("A", None, 8), ("B", None, 8), ("C", None, 8), ("M", 300, 4), ("N", 520, 4), ("K", 1024, 4)
    ]  # fmt: skip
    assert (result.sizes, result.workspaces, result.tensor_maps, result.max_registers) == (SIZES, (), (), None)


def test_several_launches_share_workspaces_and_tensor_maps():
    result = planned(SPLIT)
    partial, reduce = result.launches
    assert result.entries == ("partial", "reduce")
    assert (partial.grid, partial.block, partial.cluster, partial.n_threads) == ((216, 4, 1), (128, 3, 1), (2, 1, 1), 384)
    assert (reduce.grid, reduce.block, reduce.cluster, reduce.shared_bytes) == ((1219, 1, 1), (256, 1, 1), None, 0)
    assert result.max_registers == 168
    spaces = (PlannedWorkspace("P", 4 * 2 * 300 * 520 * 4, False), PlannedWorkspace("T", 20, True))
    assert result.workspaces == spaces
    assert [a.n_bytes for a in partial.arguments] == [128, 128, 8, 8, 4, 4, 4, 4]


def test_tensor_maps_see_their_operand_as_one_matrix_or_as_a_batch():
    as_matrix, as_batch = planned(SPLIT).tensor_maps
    assert (as_matrix.shape, as_matrix.strides_bytes, as_matrix.box) == ((600, 1024), (2048,), (64, 64))
    assert (as_matrix.operand, as_matrix.dtype, as_matrix.swizzle_bytes, as_matrix.promotion_bytes) == (
        "A",
        "float16",
        128,
        256,
    )
    assert (as_batch.shape, as_batch.strides_bytes, as_batch.box) == ((2, 520, 1024), (520 * 2048, 2048), (1, 128, 32))
    assert (as_batch.swizzle_bytes, as_batch.promotion_bytes) == (64, 0)


GRID = "ceil_div(N, BN), ceil_div(M, BM), BATCH"


@pytest.mark.parametrize(
    ("change", "gate", "place", "says"),
    [
        ((GRID, "2147483647, 65535, 65535"), None, None, None),
        ((GRID, "2147483648"), "grid-size", (3, 12), "grid x is out of bounds: expected 1 to 2147483647, found 2147483648"),
        ((GRID, "1, 128 * M * K"), "grid-size", (3, 15), "grid y .* 1 to 65535, found 128 . M . K = 39321600"),
        ((GRID, "1, 1, 65536"), "grid-size", (3, 18), "grid z .* 1 to 65535, found 65536"),
        ((GRID, "M / 512"), "grid-size", (3, 12), "grid x .* found M / 512 = 0"),
        (("32 * WARPS", "1024"), None, None, None),
        (("32 * WARPS", "1025"), "block-size", (4, 12), "block x .* 1 to 1024"),
        (("32 * WARPS", "1, 1, 64"), None, None, None),
        (("32 * WARPS", "1, 1, 65"), "block-size", (4, 18), "block z .* 1 to 64, found 65"),
        (("32 * WARPS", "32, 33"), "block-size", (4, 12), "at most 1024 threads, found 32 x 33 x 1 = 1056"),
        (("32 * WARPS", "128\n//! cluster 3, 1, 2"), None, None, None),
        (("32 * WARPS", "128\n//! cluster 2"), "cluster-size", (5, 13), "grid x a multiple of 2 .* found grid x = 9"),
        (("32 * WARPS", "128\n//! cluster 3, 3"), "cluster-size", (5, 13), "at most 8 blocks, found 3 x 3 x 1 = 9"),
        (("32 * WARPS", "128\n//! cluster 16"), "cluster-size", (5, 13), "cluster x .* 1 to 8, found 16"),
        (("STAGES *", "-STAGES *"), "shared-memory", (5, 12), "dynamic shared memory is out of bounds: .* = -36864"),
        (("32 * WARPS", "32\n//! registers 15"), "registers", (5, 15), "expected 16 to 255, found 15"),
        (("32 * WARPS", "32\n//! registers 256"), "registers", (5, 15), "expected 16 to 255, found 256"),
    ],
)  # fmt: skip
def test_what_no_card_takes_is_refused_with_its_place(change, gate, place, says):
    if gate is None:
        planned(TILED, change)
        return
    with pytest.raises(LimitError, match=says) as caught:
        planned(TILED, change)
    assert (caught.value.gate, (caught.value.line, caught.value.column)) == (gate, place)
    verdict = plan_cases(kernel(TILED, change), PROBLEM, 108)
    assert refusal(verdict)[0] == gate
    assert refusal(verdict)[1].endswith("(at M=300, N=520, K=1024, BATCH=2)")


@pytest.mark.parametrize(
    ("source", "change", "place", "says"),
    [
        (TILED, (f"//! grid   {GRID}\n", ""), (2, 1), "hgemm has no grid: expected a line such as '//! grid ceil_div"),
        (TILED, ("//! block  32 * WARPS\n", ""), (2, 1), "hgemm has no block: expected a line such as '//! block 256'"),
        (SPLIT, ("//! block     256\n", ""), (12, 1), "reduce has no block"),
        (TILED, ("32 * WARPS", "32 * WAPRS"), (4, 17), "one of BATCH, BK, BM, BN, K, M, N, SMS, STAGES, WARPS, found 'WAP"),
        (TILED, ("32 * WARPS", "32 / (BM - 128)"), (4, 15), "divides by zero"),
        (TILED, ("M, N, K)", "M, N, LDA)"), (2, 1), "argument is no size: expected one of the size symbols M, N, K, BATCH"),
        (TILED, ("layout nn", "layout tt"), (1, 1), "layout is not admitted here: expected layout nn or nt, found tt"),
        (SPLIT, ("registers MOST", "registers M"), (2, 15), "unknown name: expected one of KB, MOST, SPLITS, found 'M'"),
        (SPLIT, ("#define SPLITS 4", "#define SPLITS 4000"), (3, 18), "workspace has no usable size: expected 0 to 2..30"),
        (SPLIT, ("TA: A", "TA: D"), (5, 26), "is of no operand: expected one of A, B, C, found 'D'"),
        (SPLIT, ("box 64, 64, swizzle 128", "box 64, 64, swizzle 256"), (5, 42), "one of 0, 32, 64, 128, found 256"),
        (SPLIT, ("promotion 256", "promotion 512"), (5, 57), "one of 0, 64, 128, 256, found 512"),
    ],
)  # fmt: skip
def test_a_launch_that_does_not_evaluate_is_refused_as_source(source, change, place, says):
    with pytest.raises(KernelError, match=says) as caught:
        planned(source, change)
    assert (caught.value.line, caught.value.column) == place
    verdict = plan_cases(kernel(source, change), PROBLEM, 108)
    assert (verdict.status, verdict.gate, verdict.message) == (Status.REJECTED, "launch", str(caught.value))


@pytest.mark.parametrize(
    ("change", "sizes", "says"),
    [
        (("KB 32", "KB 8"), SIZES, None),
        (("KB 32", "KB 4"), SIZES, "line 6, column 34: .* that make a multiple of 16 bytes, found KB = 4, 8 bytes"),
        (("KB 32", "KB 40"), SIZES, r"expected at most 32 elements \(64 bytes\) with swizzle 64, found KB = 40"),
        (("KB 32", "KB 264"), SIZES, "box of TB is out of bounds: expected 1 to 256, found KB = 264"),
        (("KB, swizzle 64", "256"), SIZES, None),
        (("box 64, 64", "box 0, 64"), SIZES, "box of TA is out of bounds: expected 1 to 256, found 0"),
        (("KB 32", "KB 8"), (300, 520, 1000, 1), None),
        (("KB 32", "KB 8"), (300, 520, 1001, 1), "cannot be made for A: expected K a multiple of 8, .* K = 1001, 2002 bytes"),
        (("TB: B", "TB: C"), (300, 521, 1024, 1), "TB cannot be made for C: expected N a multiple of 8, .* found N = 521"),
    ],
)  # fmt: skip
def test_tensor_maps_obey_the_drivers_rules(change, sizes, says):
    if says is None:
        assert len(planned(SPLIT, change, sizes=sizes).tensor_maps) == 2
        return
    with pytest.raises(LimitError, match=says) as caught:
        planned(SPLIT, change, sizes=sizes)
    assert caught.value.gate == "tensor-maps"


def test_rows_of_b_are_those_of_its_layout():
    """In `nn` they have N elements, in `nt` K."""
    sizes, change = (64, 100, 64, 1), ("TA: A", "TA: B")
    assert planned(SPLIT, change, sizes=sizes).tensor_maps[0].shape == (100, 64)
    with pytest.raises(LimitError, match=r"expected N a multiple of 8, .* found N = 100, 200 bytes a row"):
        planned(SPLIT, change, ("layout    nt", "layout nn"), sizes=sizes)


def test_every_case_has_its_plan_and_the_first_that_fails_is_named():
    problem = Hgemm(((256, 256, 256, 1), SIZES, (64, 64, 68, 1)), layouts=("nt",))
    plans = plan_cases(kernel(TILED, ("layout nn", "layout nt")), problem, 108)
    assert [p.launches[0].grid for p in plans] == [(4, 2, 1), (9, 3, 2), (1, 1, 1)]
    assert refusal(plan_cases(kernel(SPLIT), problem, 108))[1].endswith("(at M=64, N=64, K=68, BATCH=1)")
    refused = plan_cases(kernel(TILED, ("layout nn", "layout nt"), ("32 * WARPS", "32 + 0 / (K - 1024)")), problem, 108)
    assert refused.message.endswith(
        "divides by zero: expected a divisor other than zero, found 0 (at M=300, N=520, K=1024, BATCH=2)"
    )


def test_code_that_fits_is_let_through():
    for source, card, arch in ((TILED, A100, "sm_80"), (SPLIT, H100, "sm_90a")):
        result = planned(source)
        assert check_plan(result, built(result.launches, arch), card) is None


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ((), r'line 2: hgemm: .* expected extern "C" __global__ void hgemm\(...\), found none'),
        (("other",), "found other$"),
        (("_Z5hgemmPK6__halfS1_PS_iii",), r'found _Z5hgemmPK6__halfS1_PS_iii \(mangled, for want of extern "C"\)'),
        (tuple("abcdef"), "found a, b, c, d and 2 more$"),
    ],
)
def test_an_entry_that_was_not_built_is_named_with_those_that_were(names, says):
    result = planned()
    code = Cubin("sm_80", {name: entry(result.launches[0], name=name) for name in names}, ())
    gate, message = refusal(check_plan(result, code, A100))
    assert gate == "entries"
    assert re.search(says, message), message


def refit(result, code, card=A100, at=0):
    """Gate and message for the launch number `at`."""
    gate, message = refusal(check_plan(result, code, card))
    launch = result.launches[at]
    assert message.startswith(f"line {launch.line}: {launch.entry}: ")
    return gate, message


def with_parameters(result, *places):
    """Code whose entry has other parameters, each (offset, size)."""
    (launch,) = result.launches
    return built([launch], "sm_80", parameters=tuple(Parameter(*place) for place in places))


POINTERS = ((0, 8), (8, 8), (16, 8))


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ((*POINTERS, (24, 4), (28, 4)), r"expected 5 arguments, as the kernel takes, found 6 \(A, B, C, M, N, K\)"),
        ((*POINTERS, (24, 4), (28, 4), (32, 4), (36, 4)), "expected 7 arguments, as the kernel takes, found 6"),
        ((*POINTERS, (24, 8), (32, 4), (36, 4)), r"argument 4, M: expected int \(4 bytes\), found a parameter of 8 bytes"),
        (((0, 8), (8, 4), (16, 8), (24, 4), (28, 4), (32, 4)), r"argument 2, B: expected const pointer \(8 .* 4 bytes"),
        (((0, 8), (8, 8), (16, 2), (24, 4), (28, 4), (32, 4)), r"argument 3, C: expected pointer \(8 bytes\), .* 2 bytes"),
        (((0, 8), (12, 8), (20, 8), (28, 4), (32, 4), (36, 4)), "argument 2, B: .* not aligned to 8 bytes"),
    ],
)  # fmt: skip
def test_parameters_have_the_number_and_the_size_of_the_arguments(places, says):
    result = planned()
    gate, message = refit(result, with_parameters(result, *places))
    assert gate == "arguments"
    assert re.search(says, message), message


def test_a_tensor_map_is_passed_by_value_and_aligned():
    result = planned(SPLIT)
    partial, reduce = result.launches
    places, bank_bytes = parameters(partial)
    code = built([partial, reduce])
    for first, says in (
        (Parameter(places[0].offset, 8), "argument 1, TA: expected const __grid_constant__ CUtensorMap (128 bytes), found a"),
        (
            Parameter(places[0].offset - 8, 128),
            "argument 1, TA: expected const __grid_constant__ CUtensorMap (128 bytes), found one",
        ),
    ):
        wrong = entry(partial, parameters=(first, *places[1:]), constant_bytes={0: bank_bytes})
        gate, message = refit(result, replace(code, entries={**code.entries, "partial": wrong}), H100)
        assert gate == "arguments"
        assert says in message


def test_a_block_is_no_larger_than_what_was_built_for():
    result = planned()
    assert check_plan(result, built(result.launches, "sm_80", max_threads=128), A100) is None
    says = "expected at most 127 threads, as __launch_bounds__ says, found 128 x 1 x 1"
    gate, message = refit(result, built(result.launches, "sm_80", max_threads=127))
    assert (gate, says in message) == ("block-size", True)
    assert check_plan(result, built(result.launches, "sm_80", required_block=(128, 1, 1), max_threads=128), A100) is None
    gate, message = refit(result, built(result.launches, "sm_80", required_block=(64, 2, 1), max_threads=128))
    assert (gate, "expected 64 x 2 x 1, found 128 x 1 x 1" in message) == ("block-size", True)


@pytest.mark.parametrize(
    ("n_registers", "n_threads"), [(32, 1024), (64, 1024), (65, 896), (72, 896), (80, 768), (96, 640), (128, 512), (144, 384),
                                   (168, 384), (255, 256)]
)  # fmt: skip
def test_registers_of_a_block_fit_the_card(n_registers, n_threads):
    """The bounds are those of the toolkit's occupancy calculator: warps by fours, registers of a warp by 256."""
    result = planned(TILED, ("32 * WARPS", str(n_threads)))
    assert check_plan(result, built(result.launches, "sm_80", n_registers=n_registers), A100) is None
    if n_threads == 1024:
        return
    result = planned(TILED, ("32 * WARPS", str(n_threads + 1)))
    gate, message = refit(result, built(result.launches, "sm_80", n_registers=n_registers))
    assert gate == "registers"
    assert f"expected at most {n_threads} threads with {n_registers} registers each on {A100.name}" in message
    assert f"found {n_threads + 1}" in message


def test_static_and_dynamic_shared_memory_fit_the_card_together():
    most = {A100.name: 166_912, H100.name: 232_448, RTX_3090.name: 101_376}
    for card in (A100, H100, RTX_3090):
        result = planned(TILED, ("STAGES * (BM * BK + BK * BN) * 2", str(most[card.name] - 1000)))
        assert check_plan(result, built(result.launches, "sm_80", static_shared_bytes=1000), card) is None
        gate, message = refit(result, built(result.launches, "sm_80", static_shared_bytes=1004), card)
        assert gate == "shared-memory"
        assert f"expected at most {most[card.name]} bytes a block on {card.name}" in message
        assert f"found {most[card.name] + 4} (1004 static, {most[card.name] - 1000} dynamic)" in message


def test_clusters_and_tensor_maps_begin_with_hopper():
    result = planned(TILED, ("32 * WARPS", "128\n//! cluster 3"))
    gate, message = refit(result, built(result.launches, "sm_80"))
    assert (gate, "no clusters before sm_90: expected no cluster line, found code for sm_80" in message) == (
        "cluster-size",
        True,
    )
    result = planned(SPLIT, ("//! cluster   2\n", ""))
    gate, message = refit(result, built(result.launches, "sm_86"))
    assert (gate, "no tensor maps before sm_90: expected pointers, found code for sm_86" in message) == ("tensor-maps", True)
    gate, message = refit(planned(SPLIT), built(planned(SPLIT).launches), A100)
    assert (gate, "expected at most 1 blocks a cluster on A100, found 2 x 1 x 1" in message) == ("cluster-size", True)
    for arch in ("sm_90", "sm_90a", "sm_100a", "sm_120"):
        assert check_plan(planned(SPLIT), built(planned(SPLIT).launches, arch), H100) is None


def test_a_cluster_that_the_code_fixes_is_the_one_that_is_launched():
    for change, found in ((("32 * WARPS", "128"), "none"), (("32 * WARPS", "128\n//! cluster 3"), "3 x 1 x 1")):
        result = planned(TILED, change)
        gate, message = refit(result, built(result.launches, cluster=(1, 3, 1)), H100)
        assert gate == "cluster-size"
        assert f"expected '//! cluster 1, 3, 1', as __cluster_dims__ says, found {found}" in message
    result = planned(TILED, ("32 * WARPS", "128\n//! cluster 1, 3"))
    assert check_plan(result, built(result.launches, cluster=(1, 3, 1)), H100) is None


def test_every_launch_is_checked():
    result = planned(SPLIT)
    code = built(result.launches[:1])
    assert refit(result, code, H100, at=1)[0] == "entries"


def hashed(source, *changes, machine_code="code", problem=PROBLEM):
    changed = kernel(source, *changes)
    return identity(machine_code, changed, plan_cases(changed, problem, 132))


def test_what_behaves_alike_has_one_identity():
    moved = "//! workspace P 4 * SPLITS * BATCH * M * N\n"
    same = [
        hashed(SPLIT),
        hashed(SPLIT, ("P: workspace", "Partial: workspace"), ("workspace P", "workspace Partial")),
        hashed(SPLIT, ("//! workspace P  SPLITS * BATCH * M * N * 4\n", ""), ("//! launch    red", f"{moved}//! launch red")),
        hashed(SPLIT, ("TA: A", "MA: A"), ("TA: map", "MA: map")),
        hashed(SPLIT, ("partial(", "first("), ("reduce(", "second(")),
        hashed(SPLIT, ("2 * SMS", "264"), ("block     256", "block 128 * 2"), ("box 64, 64", "box KB + KB, 2 * KB")),
        hashed(SPLIT, ("//! layout    nt", "// A kernel.\n\n//! layout nt")),
    ]  # fmt: skip
    assert len(set(same)) == 1
    assert re.fullmatch("[0-9a-f]{64}", same[0])


def test_what_behaves_otherwise_has_another():
    different = [
        hashed(SPLIT),
        hashed(SPLIT, machine_code="other"),
        hashed(SPLIT, ("layout    nt", "layout    nn")),
        hashed(SPLIT, ("//! cluster   2\n", "")),
        hashed(SPLIT, ("//! cluster   2\n", "//! cluster 2, 2\n")),
        hashed(SPLIT, ("2 * SMS", "4 * SMS")),
        hashed(SPLIT, ("block     128, 3", "block 3, 128")),
        hashed(SPLIT, ("96 * 1024", "97 * 1024")),
        hashed(SPLIT, (" zeroed", "")),
        hashed(SPLIT, ("4 * ceil_div(M, 64)", "8 * ceil_div(M, 64)")),
        hashed(SPLIT, ("TA: map, TB: map", "TB: map, TA: map")),
        hashed(SPLIT, ("swizzle 64", "swizzle 128")),
        hashed(SPLIT, (", promotion 256", "")),
        hashed(SPLIT, ("box 64, 64", "box 32, 64")),
        hashed(SPLIT, ("P: workspace, T: workspace", "T: workspace, P: workspace")),
        hashed(SPLIT, ("M, N, K, BATCH)", "N, M, K, BATCH)")),
        hashed(SPLIT, ("reduce(", "partial(")),
        hashed(SPLIT, ("//! registers MOST", "//! nondeterministic")),
        hashed(SPLIT, problem=Hgemm((SIZES, (304, 520, 1024, 2)), layouts=("nt",))),
        hashed(SPLIT, problem=Hgemm(((304, 520, 1024, 2),), layouts=("nt",))),
    ]  # fmt: skip
    assert len(set(different)) == len(different)


def test_the_number_of_registers_counts_through_the_machine_code_alone():
    assert hashed(SPLIT, ("MOST 168", "MOST 160")) == hashed(SPLIT)


@pytest.mark.parametrize(
    ("line", "word"),
    [("grid 1", "grid"), ("block 32", "block"), ("shared 64", "shared"), ("cluster 2", "cluster"),
     ("registers 64", "registers"), ("workspace W 4 zeroed", "zeroed"), ("tensormap W: A, box 8, 8", "tensormap")],
)  # fmt: skip
def test_the_cpu_target_refuses_what_only_a_card_has(line, word):
    role = {"zeroed": ", W: workspace", "tensormap": ", W: map"}.get(word, "")
    source = f"//! layout nn\n//! launch hgemm(A: in, B: in, C: out, M, N, K{role})\n\n//! {line}\nvoid hgemm(void);\n"
    verdict = screen_for_cpu(Kernel(source, "cpu"), PROBLEM)
    assert (verdict.status, verdict.gate) == (Status.REJECTED, "launch")
    assert (
        verdict.message == f"line 4: expected a plain call on this target, found '{word}', which is for CUDA alone; remove it"
    )


def test_the_first_line_for_cards_is_the_one_that_is_shown():
    changes = (("layout nn", "layout nn\n//! registers 64"), ("//! shared", "//! cluster 1\n//! shared"))
    assert screen_for_cpu(kernel(TILED, *changes), PROBLEM).message.startswith("line 2: expected a plain call on this target")


def test_stages_are_those_declared_or_what_the_copies_need():
    assert [n_stages({"STAGES": 4}, kind) for kind in ("none", "tma")] == [4, 4]
    assert [n_stages({}, kind) for kind in ("none", "staged", "cp.async", "tma")] == [1, 1, 2, 2]
    assert n_stages({"STAGES": 0}, "cp.async") == 2


def test_the_block_tile_is_declared_or_follows_from_the_grid():
    def area(*changes, problem=PROBLEM):
        changed = kernel(TILED, *changes)
        return tile_area(changed, problem, plan_cases(changed, problem, 108))

    renamed = (("int BN", "int COLUMNS"), (GRID, "ceil_div(N, COLUMNS), ceil_div(M, BM), BATCH"), ("BK * BN", "BK * COLUMNS"))
    assert area() == 128 * 64
    assert area(*renamed) == 300 * 520 // (9 * 3)
    assert area(*renamed, problem=Hgemm(((64, 64, 64, 1), (4096, 4096, 64, 1)))) == 128 * 64
    assert area(*renamed, (", BATCH\n", ", 4 * BATCH\n")) == 300 * 520 // (9 * 3)


def test_facts_of_the_launches_are_those_of_the_scarcest():
    source = kernel(SPLIT)
    plans = plan_cases(source, PROBLEM, H100.n_sms)
    code = Cubin("sm_90a", {
        "partial": entry(plans[0].launches[0], n_registers=168, static_shared_bytes=2048),
        "reduce": entry(plans[0].launches[1], n_registers=32),
    }, ())  # fmt: skip
    assert launch_facts(source, PROBLEM, plans, code, H100, "tma") == {
        "stages": 2, "tile_area": 300 * 520 // (264 * 4), "occupancy": 12 / 64, "blocks_per_sm": 1,
        "occupancy_limit": "registers",
        "block_threads": 384, "dynamic_shared_bytes": 98304, "workspace_bytes": 4992020, "n_launches": 2,
    }  # fmt: skip


def test_measures_of_a_kernel_on_a_card():
    schema = PROBLEM.measures("cuda")
    names = [axis.name for axis in schema.axes]
    assert names == ["matrix_kind", "copy_kind", "stages", "tile_area", "occupancy"]
    resources = {
        "matrix_kind": "wmma/mma fp32",
        "copy_kind": "cp.async",
        "stages": 3,
        "tile_area": 128 * 128,
        "occupancy": 0.25,
    }
    values = schema.values(resources)
    assert values == (1.0, 2.0, 3.0, 16384.0, 0.25)
    assert schema.describe(schema.cell(values)) == (
        "matrix_kind=wmma/mma fp32, copy_kind=cp.async, stages=3-4, tile_area=128x128, occupancy=20-40%"
    )
    unknown = schema.values({"matrix_kind": "a new one"})
    assert unknown == (None,) * 5
    assert schema.describe(schema.cell(unknown)) == ", ".join(f"{name}=unknown" for name in names)


def test_kinds_have_a_cell_for_every_label():
    schema = PROBLEM.measures("cuda")
    for at, axis in enumerate(schema.axes[:2]):
        cells = [schema.cell(schema.values({axis.name: label}))[at] for label in axis.labels]
        assert cells == list(range(len(axis.labels)))


def test_the_kernel_of_the_documents_fits():
    text = (Path(__file__).parent.parent / "docs" / "KERNELS.md").read_text(encoding="utf-8")
    source, _ = re.findall(r"```c\+\+\n(.*?)```", text, re.DOTALL)
    documented = Kernel(source, "cuda")
    assert screen_for_cuda(documented, PROBLEM) is None
    (result,) = plan_cases(documented, PROBLEM, 108)
    assert (result.launches[0].grid, result.launches[0].block) == ((17, 38, 2), (32, 8, 1))


def test_the_error_of_the_documents_is_the_real_one():
    text = (Path(__file__).parent.parent / "docs" / "KERNELS.md").read_text(encoding="utf-8")
    with pytest.raises(KernelError) as caught:
        planned(TILED, ("32 * WARPS", "32 * WAPRS"))
    assert f"\n{caught.value}\n" in text


def test_the_contract_is_a_kernel_that_fits():
    """The example in the text for authors parses, plans and passes its own launch."""
    for accumulate, layouts in itertools.product(("fp32", "fp16"), (("nn",), ("nt", "nn"))):
        problem = Hgemm((SIZES,), accumulate, layouts)
        text = problem.contract("cuda")
        example = "\n".join(
            line for line in text.splitlines() if line.startswith("//!") and "cluster" not in line and "tensormap" not in line
        )
        source = example + "".join(f"\nconstexpr int {name} = 4;" for name in ("BM", "BN", "BK", "STAGES", "WARPS"))
        (result,) = plan_cases(Kernel(source, "cuda"), problem, 108)
        assert result.launches[0].grid == (130, 75, 2)
        assert {"fp32": "Accumulate in float,", "fp16": "Accumulate in half or float,"}[accumulate] in text


@given(
    st.lists(st.sampled_from(
        ["1", "M", "N", "0", "-1", "SMS", "2 * 1073741824", "65536", "K * K * K * K * K * K * K", "M / 0", "x"]
    ), min_size=1, max_size=3),
    st.lists(st.integers(0, 1100).map(str), min_size=1, max_size=3),
    st.lists(st.integers(0, 9).map(str), max_size=3),
)  # fmt: skip
def test_any_launch_is_planned_within_limits_or_refused_with_a_place(grid, block, cluster):
    source = f"//! layout nn\n//! launch f(A: in, B: in, C: out)\n//! grid {', '.join(grid)}\n//! block {', '.join(block)}\n"
    source += f"//! cluster {', '.join(cluster)}\n" if cluster else ""
    try:
        (launch,) = plan(Kernel(source, "cuda"), PROBLEM, SIZES, 108).launches
    except KernelError as error:
        where = (error.line in (3, 4, 5), error.column is not None)
    else:
        where = (True, True)
        assert all(1 <= blocks <= most for blocks, most in zip(launch.grid, (2**31 - 1, 65535, 65535), strict=True))
        assert all(1 <= threads <= most for threads, most in zip(launch.block, (1024, 1024, 64), strict=True))
        assert launch.n_threads <= 1024
        together = launch.cluster or (1, 1, 1)
        assert math.prod(together) <= 8
        assert all(blocks % side == 0 for blocks, side in zip(launch.grid, together, strict=True))
    assert where == (True, True)
