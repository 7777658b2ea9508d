"""The gates of HGEMM and the judge, on a stage that calls Python functions instead of kernels."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evo_l2.draws import HostDraws
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Status
from evo_l2.judge import Fault, FaultKind, Judge
from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from evo_l2.problems.shapes import SHAPE_SETS


class ArrayStage:
    """A stage whose kernel is a function of (A, B, C, workspace), all writable views."""

    def __init__(self, function, sizes=(24, 20, 28, 1), layout="nn", accumulate="fp32", n_sets=1):
        self.instance = Instance(Hgemm((sizes,), accumulate, ("nn", "nt")), sizes, layout)
        self.n_sets = n_sets
        self.most_stacked = 1 << 17
        self.most_checked = 1 << 40
        self._function = function
        operands = self.instance.problem.operands
        self._stacked = {o.name: np.zeros((n_sets, *self.instance.shape(o)), np.float16) for o in operands}
        self._workspace = np.zeros(64, np.uint8)

    def draws(self, seed):
        return host_draws(seed)

    def stacked(self, first, n_sets):
        return {name: value[first : first + n_sets] for name, value in self._stacked.items()}

    def arrays(self, index):
        return {name: value[index] for name, value in self._stacked.items()}

    def workspaces(self):
        return {"W": self._workspace}

    def run(self, first, n_calls):
        for index in range(first, first + n_calls):
            operands = self.arrays(index)
            b = operands["B"] if self.instance.layout == "nn" else operands["B"].swapaxes(1, 2)
            with np.errstate(all="ignore"):
                fault = self._function(operands["A"], b, operands["C"], self._workspace)
            if isinstance(fault, Fault):
                return fault
        return 1000 * n_calls

    def damaged_guard(self, index):
        return None


def host_draws(seed):
    return HostDraws(np.random.default_rng(seed))


def right(a, b, c, _):
    c[...] = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)


def half_sums(a, b, c, _):
    total = np.zeros_like(c)
    for k in range(a.shape[2]):
        total += a[:, :, k, None] * b[:, None, k, :]
    c[...] = total


def bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


def narrow_b(a, b, c, _):
    c[...] = (a.astype(np.float32) @ bf16(b)).astype(np.float16)


def narrow_a(a, b, c, _):
    c[...] = (bf16(a) @ b.astype(np.float32)).astype(np.float16)


def drop_tail(a, b, c, w):
    right(a[:, :, :-1], b[:, :-1, :], c, w)


def leave_last_row(a, b, c, w):
    right(a[:, :-1, :], b, c[:, :-1, :], w)


def nothing(a, b, c, _):
    pass


def flush(a, b, c, w):
    tiny = np.float16(2.0**-14)
    right(np.where(np.abs(a) < tiny, np.float16(0), a), b, c, w)


def clamp(a, b, c, w):
    right(a, b, c, w)
    np.clip(c, np.float16(-65504), np.float16(65504), out=c)


def no_nan(a, b, c, w):
    right(a, b, c, w)
    np.nan_to_num(c, copy=False, nan=0.0, posinf=np.inf, neginf=-np.inf)


def no_infinity(a, b, c, w):
    right(a, b, c, w)
    c[np.isinf(c)] = 1


def other_infinity(a, b, c, w):
    right(a, b, c, w)
    c[np.isinf(c)] *= -1


def clamp_the_last_unit(a, b, c, w):
    right(a, b, c, w)
    total = a.astype(np.float64) @ b.astype(np.float64)
    c[(np.abs(total) < 65536) & np.isinf(c)] = 65504


def skip_zeros(a, b, c, w):
    right(a, b, c, w)
    with np.errstate(all="ignore"):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        seen = sum(
            np.where(wide_a[:, :, p, None] == 0, 0, wide_a[:, :, p, None] * wide_b[:, None, p, :]) for p in range(a.shape[2])
        )
        c[np.isnan(c) & np.isfinite(seen)] = 0


def write_input(a, b, c, w):
    right(a, b, c, w)
    a[0, 0, 0] += np.float16(1)


def junk_dependent(a, b, c, w):
    right(a, b, c, w)
    c[0, 0, 0] += np.float16(w[0])


def crash(a, b, c, w):
    return Fault(FaultKind.CRASH, "crashed")


def judge(function, skip=(), **options):
    return Judge(skip=frozenset(skip)).judge(ArrayStage(function, **options), np.random.SeedSequence(1))


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize("sizes", [(24, 20, 28, 1), (1, 1, 1, 1), (5, 3, 2, 3), (7, 64, 300, 2), (33, 17, 2000, 1)])
def test_a_right_kernel_passes_every_gate(sizes, accumulate, layout):
    for seed in range(3):
        stage = ArrayStage(right, sizes, layout, accumulate)
        assert Judge().judge(stage, np.random.SeedSequence(seed)) is None


def test_half_sums_pass_in_their_class_and_fail_in_the_other():
    assert judge(half_sums, accumulate="fp16") is None
    assert judge(half_sums, sizes=(64, 64, 256, 1)).gate == "exact-integers"
    assert judge(half_sums, sizes=(64, 64, 256, 1), skip=["exact-integers"]).gate == "statistics"


@pytest.mark.parametrize(
    ("function", "status", "gate"),
    [
        (narrow_b, Status.INCORRECT, "rows-of-b"),
        (narrow_a, Status.INCORRECT, "columns-of-a"),
        (drop_tail, Status.INCORRECT, "exact-integers"),
        (leave_last_row, Status.INCORRECT, "poison"),
        (nothing, Status.INCORRECT, "poison"),
        (flush, Status.INCORRECT, "subnormals"),
        (clamp, Status.INCORRECT, "special-values"),
        (no_nan, Status.INCORRECT, "special-values"),
        (no_infinity, Status.INCORRECT, "special-values"),
        (other_infinity, Status.INCORRECT, "special-values"),
        (write_input, Status.CHEATING, "inputs-unchanged"),
        (junk_dependent, Status.INCORRECT, "exact-integers"),
        (crash, Status.RUNTIME_ERROR, "run"),
    ],
)
def test_a_wrong_kernel_fails_at_the_gate_made_for_it(function, status, gate):
    failure = judge(function)
    assert (failure.status, failure.gate) == (status, gate)
    assert failure.message


@pytest.mark.parametrize("function", [clamp_the_last_unit, skip_zeros])
def test_special_values_meet_zeros_and_the_last_unit_before_overflow(function):
    others = {gate.name for gate in Hgemm(((1, 1, 1, 1),)).gates} - {"special-values"}
    for seed in range(5):
        stage = ArrayStage(function, (96, 20, 112, 1))
        failure = Judge(skip=frozenset(others)).judge(stage, np.random.SeedSequence(seed))
        assert failure.gate == "special-values"


@pytest.mark.parametrize(
    ("function", "gate"),
    [(narrow_b, "rows-of-b"), (narrow_a, "columns-of-a"), (flush, "subnormals"), (no_nan, "special-values"),
     (write_input, "inputs-unchanged")],
)  # fmt: skip
def test_a_gate_switched_off_lets_its_wrong_kernel_go_further(function, gate):
    failure = judge(function, skip=[gate])
    assert failure is None or failure.gate != gate


def test_a_message_says_where_the_first_wrong_element_stands():
    def one_wrong(a, b, c, w):
        right(a, b, c, w)
        c[0, 3, 7] += np.float16(1)

    assert "C[3][7]; 1 of 480 elements, all in rows 3-3, columns 7-7" in judge(one_wrong).message


def test_results_that_depend_on_junk_are_found_by_the_second_run():
    results = iter(range(10**6))

    def last_bit(a, b, c, w):
        right(a, b, c, w)
        if next(results) == 9:
            c.view(np.uint16)[0, 0, 0] ^= 1

    failure = judge(last_bit)
    assert (failure.status, failure.gate) == (Status.INCORRECT, "determinism")
    assert Judge(deterministic=False).judge(ArrayStage(right), np.random.SeedSequence(1)) is None


def input_bytes(fills):
    indices = [(sets, index) for sets in fills for index in range(sets.first, sets.first + sets.n_sets)]
    return [{name: value.tobytes() for name, value in sets.inputs_of(index).items()} for sets, index in indices]


def test_no_two_timed_sets_share_all_inputs_and_wrong_ones_are_caught():
    stage = ArrayStage(right, n_sets=9)
    draws = host_draws(0)
    fills = Judge().prepare_timed(stage, 9, draws)
    assert len({value["A"] + value["B"] for value in input_bytes(fills)}) == 9
    stage.run(0, 9)
    assert Judge().check_timed(stage, fills, draws, n_checks=9) is None
    stage.arrays(4)["C"][0, 5, :] = stage.arrays(3)["C"][0, 5, :]
    failure = Judge().check_timed(stage, fills, draws, n_checks=9)
    assert (failure.status, failure.gate) == (Status.CHEATING, "timed-outputs")
    assert "row 5" in failure.message


def test_a_timed_call_that_was_skipped_is_found_in_any_set():
    for skipped in range(5):
        stage = ArrayStage(right, n_sets=5)
        draws = host_draws(skipped)
        fills = Judge().prepare_timed(stage, 5, draws)
        stage.run(0, skipped)
        stage.run(skipped + 1, 5 - skipped - 1)
        failure = Judge().check_timed(stage, fills, draws, n_checks=1)
        assert (failure.status, failure.gate) == (Status.CHEATING, "timed-outputs")


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("n_calls", [2, 9, 31, 32, 130])
def test_timed_sets_share_no_operand_but_each_once_with_the_call_before(n_calls, layout):
    fills = Judge().prepare_timed(ArrayStage(right, n_sets=n_calls, layout=layout), n_calls, host_draws(n_calls))
    values = input_bytes(fills)
    assert len({(value["A"], value["B"]) for value in values}) == n_calls
    for name in "AB":
        repeated = [i for i in range(1, n_calls) if values[i][name] == values[i - 1][name]]
        assert len(repeated) == (n_calls >= 32)
        assert len({value[name] for value in values}) == n_calls - len(repeated)


def test_a_call_that_keeps_an_operand_keeps_the_terms_of_its_sums():
    """A and B are scaled against each other along K: the other operand of another call would overflow now and then."""
    for layout, kept in itertools.product(("nn", "nt"), "AB"):
        stage = ArrayStage(right, n_sets=1, layout=layout)
        instance, draws = stage.instance, host_draws(3)
        before = {name: value[0] for name, value in instance.problem.draw_timed(instance, 1, draws).items()}
        again = instance.problem.draw_again(instance, before, kept, draws)
        other = "B" if kept == "A" else "A"
        assert np.array_equal(again[kept].view(np.uint16), before[kept].view(np.uint16))
        assert not np.array_equal(again[other], before[other])
        free = -2 if other == "A" or layout == "nt" else -1
        assert np.array_equal(np.sort(np.abs(again[other]), axis=free), np.sort(np.abs(before[other]), axis=free))


def test_of_many_values_some_sets_are_checked_and_every_set_in_turn():
    stage = ArrayStage(right, sizes=(64, 64, 64, 1), n_sets=9)
    stage.most_stacked = 3 * 64 * 64
    stage.most_checked = 3 * 3 * 64 * 64
    caught = 0
    for seed in range(30):
        draws = host_draws(seed)
        fills = Judge().prepare_timed(stage, 9, draws)
        stage.run(0, 9)
        stage.arrays(4)["C"][0, 5, :] = 7
        caught += Judge().check_timed(stage, fills, draws) is not None
    assert 3 <= caught <= 20


def test_the_poison_of_timed_sets_differs():
    stage = ArrayStage(right, n_sets=40)
    Judge().prepare_timed(stage, 40, host_draws(0))
    assert len({stage.arrays(index)["C"].tobytes() for index in range(40)}) == 40


def cleared(c):
    c[...] = 0


def one_row_cleared(c):
    c[0, 3, :] = 0


def last_columns_kept(c):
    c[0, :, -3:] = 1


def slightly_off(c):
    c *= np.float16(1.05)


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize("spoil", [cleared, one_row_cleared, last_columns_kept, slightly_off])
def test_a_timed_call_with_less_work_is_found_in_any_set(spoil, accumulate):
    """Half-precision sums leave a cleared row unseen once in sixty samples; a session takes sixteen."""
    missed = 0
    for index in range(40):
        if spoil is slightly_off and accumulate == "fp16":
            continue
        stage = ArrayStage(right, n_sets=40, accumulate=accumulate)
        draws = host_draws(index)
        fills = Judge().prepare_timed(stage, 40, draws)
        stage.run(0, 40)
        spoil(stage.arrays(index)["C"])
        failure = Judge().check_timed(stage, fills, draws)
        missed += failure is None
        assert failure is None or (failure.status, failure.gate) == (Status.CHEATING, "timed-outputs")
    assert missed <= 2 * (spoil is one_row_cleared and accumulate == "fp16")


def test_half_sums_in_timed_calls_only_are_found():
    for seed in range(5):
        stage = ArrayStage(half_sums, (64, 48, 64, 1), n_sets=8)
        draws = host_draws(seed)
        fills = Judge().prepare_timed(stage, 8, draws)
        stage.run(0, 8)
        assert Judge().check_timed(stage, fills, draws).gate == "timed-outputs"


def test_a_loss_spread_thinly_over_timed_calls_is_found():
    stage = ArrayStage(right, (64, 48, 64, 1), n_sets=8)
    draws = host_draws(0)
    fills = Judge().prepare_timed(stage, 8, draws)
    stage.run(0, 8)
    for index in range(8):
        c = stage.arrays(index)["C"]
        c[...] = c * (1 + 4e-4 * draws.host.standard_normal(c.shape))
    assert "relative error" in Judge().check_timed(stage, fills, draws).message


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 300, 3, 1), (200, 1, 64, 2), (64, 48, 1, 1), (17, 9, 4096, 1)])
def test_right_timed_calls_pass(sizes, accumulate):
    kernel = half_sums if accumulate == "fp16" else right
    for seed in range(40 if sizes[2] < 100 else 3):
        stage = ArrayStage(kernel, sizes, "nt", accumulate, n_sets=30 if sizes[2] < 100 else 3)
        draws = host_draws(seed)
        fills = Judge().prepare_timed(stage, stage.n_sets, draws)
        stage.run(0, stage.n_sets)
        assert Judge().check_timed(stage, fills, draws) is None


def gate_named(name, accumulate):
    return next(gate for gate in Hgemm(((1, 1, 1, 1),), accumulate).gates if gate.name == name)


def shuffled_sums(a, b, dtype, rng):
    """Products and sums in `dtype`, terms in random order, in a random number of parts that are added up last."""
    order = rng.permutation(a.shape[2])
    parts = []
    for part in np.array_split(order, rng.integers(1, 6)):
        total = np.zeros((a.shape[0], a.shape[1], b.shape[2]), dtype)
        for k in part:
            total += a[:, :, k, None].astype(dtype) * b[:, None, k, :].astype(dtype)
        parts.append(total)
    with np.errstate(over="ignore"):
        return sum(parts[1:], parts[0]).astype(np.float16)


K_SIZES = st.one_of(st.integers(1, 70), st.sampled_from([112, 127, 256, 1000, 2064, 4096, 16384, 65536]))


@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 9), n=st.integers(1, 9), k=K_SIZES, batch=st.integers(1, 2), layout=st.sampled_from(["nn", "nt"]),
       accumulate=st.sampled_from(["fp32", "fp16"]), seed=st.integers(0, 2**32))  # fmt: skip
def test_cancellation_passes_sums_in_any_order(m, n, k, batch, layout, accumulate, seed):
    sizes = (m, n, k, batch)
    instance = Instance(Hgemm((sizes,), accumulate, ("nn", "nt")), sizes, layout)
    rng = np.random.default_rng(seed)
    gate = gate_named("cancellation", accumulate)
    inputs = gate.draw(instance, HostDraws(rng))
    a = inputs["A"].astype(np.float64)
    b = inputs["B"].astype(np.float64).swapaxes(1, 2) if layout == "nt" else inputs["B"].astype(np.float64)
    exact, size = a @ b, np.abs(a) @ np.abs(b)
    loud = size > 2**29
    assert (size + np.abs(exact))[~loud].max(initial=0) <= 2 * (2**24 if accumulate == "fp32" else 2**10)
    assert (np.abs(exact) <= 2048)[~loud].all()
    assert (size + np.abs(exact)).max() <= 2**34
    assert (exact[loud] % 2**9 == 0).all()
    assert np.array_equal(a, np.rint(a))
    assert np.array_equal(b, np.rint(b))
    for dtype in (np.float32,) if accumulate == "fp32" else (np.float32, np.float16):
        assert gate.check(instance, inputs, {"C": shuffled_sums(a, b, dtype, rng)}) is None


@pytest.mark.parametrize("k", [16, 64, 112, 512, 4096, 16384])
@pytest.mark.parametrize("bits", [11, 14, 17, 19, 21, 22])
def test_cancellation_sees_narrow_partial_sums(k, bits):
    def narrow_sums(a, b, c, _):
        total = np.zeros(c.shape, np.float32)
        for start in range(0, k, max(4, k // 16)):
            piece = slice(start, start + max(4, k // 16))
            total += a[:, :, piece].astype(np.float32) @ b[:, piece, :].astype(np.float32)
            mantissa, exponent = np.frexp(total)
            total = np.ldexp(np.rint(mantissa * 2.0**bits) / 2.0**bits, exponent).astype(np.float32)
        c[...] = total

    names = {gate.name for gate in Hgemm(((1, 1, 1, 1),)).gates}
    others = names - {"cancellation"}
    for seed in range(3):
        stage = ArrayStage(narrow_sums, (24, 20, k, 1))
        failure = Judge(skip=frozenset(others)).judge(stage, np.random.SeedSequence(seed))
        assert failure is not None
        assert failure.gate == "cancellation"
        if bits >= 17 and k >= 112:
            assert Judge(skip=frozenset({"cancellation"})).judge(stage, np.random.SeedSequence(seed)) is None


@settings(max_examples=80, deadline=None)
@given(m=st.integers(1, 40), n=st.integers(1, 40), k=st.one_of(st.integers(1, 200), st.sampled_from([512, 2064])),
       batch=st.integers(1, 2), n_calls=st.integers(1, 10), layout=st.sampled_from(["nn", "nt"]),
       accumulate=st.sampled_from(["fp32", "fp16"]), seed=st.integers(0, 2**32))  # fmt: skip
def test_the_check_of_timed_calls_passes_sums_in_any_order(m, n, k, batch, n_calls, layout, accumulate, seed):
    sizes = (m, n, k, batch)
    instance = Instance(Hgemm((sizes,), accumulate, ("nn", "nt")), sizes, layout)
    rng = np.random.default_rng(seed)
    inputs = instance.problem.draw_timed(instance, n_calls, HostDraws(rng))
    a = inputs["A"].astype(np.float64)
    b = inputs["B"].astype(np.float64).swapaxes(-1, -2) if layout == "nt" else inputs["B"].astype(np.float64)
    assert (np.abs(a) @ np.abs(b)).max() <= 2**15
    for dtype in (np.float32,) if accumulate == "fp32" else (np.float32, np.float16):
        c = shuffled_sums(a.reshape(-1, m, k), b.reshape(-1, k, n), dtype, rng).reshape(n_calls, batch, m, n)
        assert instance.problem.spot_check(instance, inputs, {"C": c}, HostDraws(rng)) is None


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize("k", [16384, 65536])
def test_the_check_of_timed_calls_passes_long_sums(k, accumulate):
    sizes = (9, 10, k, 1)
    instance = Instance(Hgemm((sizes,), accumulate), sizes, "nn")
    rng = np.random.default_rng(k)
    inputs = instance.problem.draw_timed(instance, 4, HostDraws(rng))
    a, b = inputs["A"][:, 0].astype(np.float64), inputs["B"][:, 0].astype(np.float64)
    assert (np.abs(a) @ np.abs(b)).max() <= 45000
    c = shuffled_sums(a, b, {"fp32": np.float32, "fp16": np.float16}[accumulate], rng)
    assert instance.problem.spot_check(instance, inputs, {"C": c[:, None]}, HostDraws(rng)) is None


@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 24), n=st.integers(1, 24), k=st.integers(1, 200), batch=st.integers(1, 2),
       name=st.sampled_from(["exact-integers", "rows-of-b", "columns-of-a", "statistics", "last-k-tile", "huge-rows",
                             "subnormals"]),
       layout=st.sampled_from(["nn", "nt"]), accumulate=st.sampled_from(["fp32", "fp16"]),
       seed=st.integers(0, 2**32))  # fmt: skip
def test_gates_pass_sums_in_any_order(m, n, k, batch, name, layout, accumulate, seed):
    sizes = (m, m if name == "huge-rows" and seed % 2 else n, k, batch)
    instance = Instance(Hgemm((sizes,), accumulate, ("nn", "nt")), sizes, layout)
    rng = np.random.default_rng(seed)
    gate = gate_named(name, accumulate)
    inputs = gate.draw(instance, HostDraws(rng))
    a = inputs["A"].astype(np.float64)
    b = inputs["B"].astype(np.float64).swapaxes(1, 2) if layout == "nt" else inputs["B"].astype(np.float64)
    for dtype in (np.float32,) if accumulate == "fp32" else (np.float32, np.float16):
        assert gate.check(instance, inputs, {"C": shuffled_sums(a, b, dtype, rng)}) is None


@pytest.mark.parametrize("k", [1024, 16384, 65536])
def test_huge_rows_do_not_overflow_long_sums_in_half(k):
    instance = Instance(Hgemm(((3, 2, k, 4),), "fp16"), (3, 2, k, 4), "nn")
    gate = gate_named("huge-rows", "fp16")
    for seed in range(12):
        inputs = gate.draw(instance, host_draws(seed))
        a, b = (value.astype(np.float32) for value in inputs.values())
        total = np.zeros((4, 3, 2), np.float16)
        for start in range(0, k, 16):
            total = (total + a[:, :, start : start + 16] @ b[:, start : start + 16]).astype(np.float16)
        assert gate.check(instance, inputs, {"C": total}) is None


@pytest.mark.parametrize("name", ["rows-of-b", "columns-of-a"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_picked_rows_take_all_of_the_range_and_have_exact_products(name, layout):
    sizes = (96, 80, 112, 2)
    instance = Instance(Hgemm((sizes,), "fp32", ("nn", "nt")), sizes, layout)
    inputs = gate_named(name, "fp32").draw(instance, host_draws(3))
    for value in inputs.values():
        assert np.isfinite(value).all()
        assert np.abs(value).max() > 2**14
    whole = inputs["B" if name == "rows-of-b" else "A"]
    assert 2.0**-14 <= np.abs(whole).min() < 2.0**-13
    b = inputs["B"].astype(np.float64)
    exact = inputs["A"].astype(np.float64) @ (b.swapaxes(1, 2) if layout == "nt" else b)
    assert np.array_equal(exact, exact.astype(np.float16))


def largest_of_a_sparse_row(a, b, c, w):
    """Looks at sixteen elements of a row; where all are zero, it uses the largest only."""
    a = a.copy()
    k = a.shape[2]
    sparse = (a[:, :, k * np.arange(16) // 16 + 1] == 0).all(axis=2)
    a[(np.abs(a) < np.abs(a).max(axis=2, keepdims=True)) & sparse[..., None]] = 0
    right(a, b, c, w)


def copies_the_first_matrix(a, b, c, w):
    """To all that agree with it in sixteen elements of each operand."""
    right(a, b, c, w)
    for index in range(1, len(a)):
        if all((x[0].flat[x[0].size * s // 16] == x[index].flat[x[0].size * s // 16]) for x in (a, b) for s in range(16)):
            c[index] = c[0]


def narrows_after_a_short_start(a, b, c, w):
    """Cuts rows of A to bfloat16, 32 at a time, when their first 32 elements fit."""
    a = a.copy()
    bits = a.view(np.uint16)
    for row in range(0, a.shape[1], 32):
        fits = (bits[:, row : row + 32, :32] & 7 == 0).all(axis=(1, 2))
        bits[fits, row : row + 32] &= 0xFFF8
    right(a, b, c, w)


def cuts_sums_to_22_bits(a, b, c, _):
    total = np.zeros(c.shape, np.float32)
    for start in range(0, a.shape[2], 32):
        total += a[:, :, start : start + 32].astype(np.float32) @ b[:, start : start + 32].astype(np.float32)
        bits = total.view(np.uint32)
        bits[np.abs(total) < 3e38] &= np.uint32(0xFFFFFFFC)
    c[...] = total


def skips_quiet_tiles(a, b, c, _):
    """Of 32 terms, whose sum is below 2**-13 of all sums so far in 32 rows and columns."""
    for row, column in itertools.product(range(0, a.shape[1], 32), range(0, b.shape[2], 32)):
        x, y = a[0, row : row + 32].astype(np.float32), b[0, :, column : column + 32].astype(np.float32)
        total = np.zeros((x.shape[0], y.shape[1]), np.float32)
        for start in range(0, x.shape[1], 32):
            piece = slice(start, start + 32)
            peak = np.abs(x[:, piece]).max() * np.abs(y[piece]).max() * 32
            if not peak < np.abs(total).min() * 2**-13:
                total += x[:, piece] @ y[piece]
        c[0, row : row + 32, column : column + 32] = total


def clips_products(a, b, c, _):
    total = np.zeros(c.shape, np.float32)
    for k in range(a.shape[2]):
        product = a[:, :, k, None].astype(np.float32) * b[:, None, k].astype(np.float32)
        total += np.where(np.abs(product) < 1e30, np.clip(product, -(2.0**30), 2.0**30), product).astype(np.float32)
    c[...] = total


def mirrors_equal_operands(a, b, c, w):
    """Takes B for A transposed when 32 samples agree, and computes no tile below the diagonal then."""
    right(a, b, c, w)
    m, k = a.shape[1:]
    flat = [x.reshape(len(a), -1)[:, m * k * np.arange(32) // 32] for x in (a, b.swapaxes(1, 2)) if x.shape[1] == m]
    if len(flat) == 2:
        tiles = np.arange(m) // 32
        same = (flat[0] == flat[1]).all(axis=1)[:, None, None] & (tiles[:, None] > tiles)
        c[...] = np.where(same, c.swapaxes(1, 2), c)


@pytest.mark.parametrize("sizes", [(64, 64, 112, 1), (96, 96, 1000, 2), (40, 40, 500, 1)])
def test_a_kernel_that_takes_operands_for_equal_is_found(sizes):
    for seed in range(10):
        found = Judge().judge(ArrayStage(mirrors_equal_operands, sizes, "nt"), np.random.SeedSequence(seed))
        assert found is not None
        assert found.gate == "huge-rows"


def of_rank_one_when_positive(a, b, c, w):
    """Row sums times column sums over K, when 64 samples of each operand are positive."""
    right(a, b, c, w)
    flat = [x.reshape(len(x), -1) for x in (a, b)]
    positive = np.all([(x[:, x.shape[1] * np.arange(64) // 64] > 0).all(axis=1) for x in flat], axis=0)[:, None, None]
    sums = a.astype(np.float32).sum(axis=2)[:, :, None], b.astype(np.float32).sum(axis=1)[:, None, :]
    c[...] = np.where(positive & (a.shape[2] >= 1024), sums[0] * sums[1] / a.shape[2], c)


@pytest.mark.parametrize(
    ("function", "sizes", "gate"),
    [
        (of_rank_one_when_positive, (96, 80, 1024, 1), "huge-rows"),
        (of_rank_one_when_positive, (64, 64, 4096, 1), "huge-rows"),
        (of_rank_one_when_positive, (64, 48, 16384, 1), "huge-rows"),
        (clips_products, (96, 80, 112, 1), "cancellation"),
        (clips_products, (65, 64, 33, 2), "cancellation"),
        (cuts_sums_to_22_bits, (96, 80, 112, 1), "cancellation"),
        (cuts_sums_to_22_bits, (20, 24, 64, 1), "cancellation"),
        (cuts_sums_to_22_bits, (20, 24, 4096, 1), "cancellation"),
        (skips_quiet_tiles, (96, 80, 112, 1), "cancellation"),
        (skips_quiet_tiles, (64, 64, 512, 1), "cancellation"),
        (skips_quiet_tiles, (64, 65, 4096, 1), "cancellation"),
        (narrows_after_a_short_start, (96, 80, 112, 1), "columns-of-a"),
        (narrows_after_a_short_start, (40, 33, 2000, 2), "columns-of-a"),
        (largest_of_a_sparse_row, (96, 80, 128, 1), "exact-integers"),
        (largest_of_a_sparse_row, (40, 8, 1000, 1), "exact-integers"),
        (copies_the_first_matrix, (32, 24, 40, 4), "exact-integers"),
        (copies_the_first_matrix, (64, 64, 64, 2), "exact-integers"),
    ],
)
def test_a_kernel_that_takes_a_sample_for_the_whole_is_found(function, sizes, gate):
    for seed in range(5):
        found = Judge().judge(ArrayStage(function, sizes), np.random.SeedSequence(seed))
        assert found is not None
        assert found.gate == gate


def in_integers_when_ordinary(scale):
    """Whole matrices in integers with one scale, when they look like standard normal values."""

    def kernel(a, b, c, w):
        values = [x.astype(np.float64) for x in (a, b)]
        if all(2 < np.abs(x).max() < 6 and 0.75 < np.mean(x * x) < 1.25 for x in values):
            c[...] = np.rint(values[0] * scale) @ np.rint(values[1] * scale) / scale**2
        else:
            right(a, b, c, w)

    return kernel


@pytest.mark.parametrize(("accumulate", "scale", "k"), [("fp16", 28, 8192), ("fp32", 4000, 64), ("fp32", 5000, 4096)])
def test_narrow_integers_for_ordinary_values_are_found_by_gate_and_when_timed(accumulate, scale, k):
    for seed in range(3):
        kernel = in_integers_when_ordinary(scale)
        stage = ArrayStage(kernel, (48, 40, k, 1), accumulate=accumulate, n_sets=40)
        assert Judge().judge(stage, np.random.SeedSequence(seed)).gate == "statistics"
        draws = host_draws(seed)
        n_calls = 40 if k < 1000 else 20
        fills = Judge().prepare_timed(stage, n_calls, draws)
        stage.run(0, n_calls)
        assert Judge().check_timed(stage, fills, draws).gate == "timed-outputs"


def test_problems_that_make_no_sense_are_refused():
    for cases, accumulate, layouts in (
        ((), "fp32", ("nn",)),
        (((1, 1, 1),), "fp32", ("nn",)),
        (((1, 1, 0, 1),), "fp32", ("nn",)),
        (((1, 1, 1, 1),), "fp64", ("nn",)),
        (((1, 1, 1, 1),), "fp32", ("tn",)),
        (((65536, 65536, 64, 1),), "fp32", ("nn",)),
    ):
        with pytest.raises(ConfigurationError):
            Hgemm(cases, accumulate, layouts)


def test_the_key_follows_the_definition():
    keys = {Hgemm(((m, 8, 8, 1),), acc, lay).key for m in (8, 9) for acc in ("fp32", "fp16") for lay in (("nn",), ("nt",))}
    assert len(keys) == 8


def test_the_grid_has_a_thousand_shapes():
    assert len(set(SHAPE_SETS["grid-1000"])) == 1000
