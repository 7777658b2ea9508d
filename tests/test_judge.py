"""The gates of HGEMM and the judge, on a stage that calls Python functions instead of kernels."""

import numpy as np
import pytest

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
        self._function = function
        self._sets = [
            {o.name: np.zeros(self.instance.shape(o), np.float16) for o in self.instance.problem.operands}
            for _ in range(n_sets)
        ]
        self._workspace = np.zeros(64, np.uint8)

    def arrays(self, index):
        return self._sets[index]

    def workspaces(self):
        return {"W": self._workspace}

    def run(self, first, n_calls):
        for operands in self._sets[first : first + n_calls]:
            b = operands["B"] if self.instance.layout == "nn" else operands["B"].swapaxes(1, 2)
            with np.errstate(all="ignore"):
                fault = self._function(operands["A"], b, operands["C"], self._workspace)
            if isinstance(fault, Fault):
                return fault
        return 1000 * n_calls

    def damaged_guard(self, index):
        return None


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
        (write_input, Status.CHEATING, "inputs-unchanged"),
        (junk_dependent, Status.INCORRECT, "exact-integers"),
        (crash, Status.RUNTIME_ERROR, "run"),
    ],
)
def test_a_wrong_kernel_fails_at_the_gate_made_for_it(function, status, gate):
    failure = judge(function)
    assert (failure.status, failure.gate) == (status, gate)
    assert failure.message


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


def test_no_two_timed_sets_share_all_inputs_and_wrong_ones_are_caught():
    stage = ArrayStage(right, n_sets=9)
    rng = np.random.default_rng(0)
    fills = Judge().prepare_timed(stage, 9, rng)
    assert len({fill.inputs["A"].tobytes() + fill.inputs["B"].tobytes() for fill in fills}) == 9
    stage.run(0, 9)
    assert Judge().check_timed(stage, fills, rng, n_checks=9) is None
    stage.arrays(4)["C"][0, 5, :] = stage.arrays(3)["C"][0, 5, :]
    failure = Judge().check_timed(stage, fills, rng, n_checks=9)
    assert (failure.status, failure.gate) == (Status.CHEATING, "timed-outputs")
    assert "row 5" in failure.message


def test_a_timed_call_that_was_skipped_is_found_in_any_set():
    for skipped in range(5):
        stage = ArrayStage(right, n_sets=5)
        rng = np.random.default_rng(skipped)
        fills = Judge().prepare_timed(stage, 5, rng)
        stage.run(0, skipped)
        stage.run(skipped + 1, 5 - skipped - 1)
        failure = Judge().check_timed(stage, fills, rng, n_checks=1)
        assert (failure.status, failure.gate) == (Status.CHEATING, "timed-outputs")


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
