"""Timing in pairs on a card: order, what is dropped, what is a fault of whom; and the clock of the harness."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.draws import HostDraws
from evo_l2.errors import DeviceError
from evo_l2.evaluation import FEWEST_BLOCKS, Status
from evo_l2.judge import Failure, Fault, FaultKind, Judge
from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.card.harness import clock_mhz
from evo_l2.targets.cuda.card.pairs import (
    CardTimingSettings,
    Side,
    blocks_of,
    n_calls_of,
    roofline_us,
    time_pairs,
)
from evo_l2.targets.cuda.card.runner import Refused, Sample
from evo_l2.targets.cuda.cards import find_card

SIZES = (16, 24, 32, 1)
N_CALLS = 4


class ScriptedStage:
    """Operands in this process; every replay multiplies right, and takes the next time that it is given."""

    def __init__(self, samples, order, name, *, writes=True):
        self.instance = Instance(Hgemm((SIZES,)), SIZES, "nn")
        self.n_sets = N_CALLS
        self.most_stacked = self.most_checked = 1 << 30
        self.inputs = []
        self._samples = iter(samples)
        self._order = order
        self._name = name
        self._writes = writes
        self._arrays = {
            o.name: np.zeros((N_CALLS, *self.instance.shape(o)), np.float16) for o in self.instance.problem.operands
        }

    def draws(self, seed):
        return HostDraws(np.random.default_rng(seed))

    def stacked(self, first, n_sets):
        return {name: value[first : first + n_sets] for name, value in self._arrays.items()}

    def workspaces(self):
        return {}

    def damaged_guard(self, index):
        return None

    def replay(self, n_calls):
        self._order.append(self._name)
        self.inputs.append(self._arrays["A"].tobytes())
        if self._writes:
            with np.errstate(all="ignore"):
                a, b = (self._arrays[name].astype(np.float32) for name in "AB")
                self._arrays["C"][...] = a @ b
        sample = next(self._samples)
        if isinstance(sample, Exception):
            raise sample
        return sample


def sample(us, mhz=1410.0):
    """A replay whose calls take so long each."""
    return Sample(round(us * 1000 * N_CALLS), mhz)


def timed(kernel, baseline, n_blocks=8, seed=0, floor=0.0, **options):
    """What came of samples of both sides (repeated without end), the order they were taken in, and the stages."""
    order = []
    ours = ScriptedStage(itertools.cycle(kernel), order, "k", **options)
    theirs = ScriptedStage(itertools.cycle(baseline), order, "b")
    seeds = np.random.SeedSequence(seed)
    found = time_pairs(Side(ours, N_CALLS), Side(theirs, N_CALLS), n_blocks, Judge(), seeds, floor)
    return found, "".join(order), ours, theirs


def test_sides_take_turns_in_blocks_whose_order_is_drawn():
    orders = set()
    for seed in range(3):
        found, order, _, _ = timed([sample(2.0)], [sample(3.0)], seed=seed)
        blocks = [order[i : i + 4] for i in range(0, 32, 4)]
        assert set(blocks) == {"kbbk", "bkkb"}
        assert (found.kernel_us, found.baseline_us) == ((2.0,) * 8, (3.0,) * 8)
        assert (found.kept, found.sizes) == ((True,) * 8, SIZES)
        orders.add(order)
    assert len(orders) > 1


def test_a_blocks_time_is_the_mean_of_its_two_samples():
    found, _, _, _ = timed([sample(2.0), sample(2.1)], [sample(3.0), sample(3.2)])
    assert found.kernel_us == pytest.approx((2.05,) * 8)
    assert found.baseline_us == pytest.approx((3.1,) * 8)


@pytest.mark.parametrize(
    ("kernel", "baseline", "kept"),
    [
        ([sample(2.0), sample(2.19)], [sample(3.0)], True),
        ([sample(2.0), sample(2.21)], [sample(3.0)], False),
        ([sample(2.21), sample(2.0)], [sample(3.0)], False),
        ([sample(2.0)], [sample(3.0), sample(3.4)], False),
        ([sample(2.0, 1400), sample(2.0, 1427)], [sample(3.0)], True),
        ([sample(2.0, 1400), sample(2.0, 1429)], [sample(3.0)], False),
        ([sample(2.0)], [sample(3.0, 1429), sample(3.0, 1400)], False),
        ([sample(2.0, 1200)], [sample(3.0, 1800)], True),
        ([sample(2.0, None)], [sample(3.0, None)], True),
    ],
)
def test_a_block_is_dropped_where_a_side_differs_from_itself_in_time_or_clock(kernel, baseline, kept):
    found, _, _, _ = timed(kernel, baseline)
    assert found.kept == (kept,) * 8


def test_one_restless_block_is_dropped_alone():
    found, _, _, _ = timed([sample(2.0)] * 4 + [sample(2.0), sample(4.0)] + [sample(2.0)] * 10, [sample(3.0)])
    assert found.kept == (True, True, False, True, True, True, True, True)
    assert len(found.log_ratios) == 7


def test_every_sample_of_the_kernel_has_inputs_of_its_own_that_the_baseline_never_sees():
    _, _, ours, theirs = timed([sample(2.0)], [sample(3.0)])
    assert len(set(ours.inputs)) == len(ours.inputs) == 16
    assert not set(ours.inputs) & set(theirs.inputs)


def test_a_time_that_the_cards_arithmetic_cannot_do_is_cheating():
    # Two microseconds at 1,410 MHz are 2,820 cycles.
    found, _, _, _ = timed([sample(2.0)], [sample(3.0)], floor=2820 * 1.04)
    assert (found.status, found.gate) == (Status.CHEATING, "roofline")
    assert found.message == "a timed call took 2.00 us, 1.04 of what the card's arithmetic can do"
    assert not isinstance(timed([sample(2.0)], [sample(3.0)], floor=2820 * 1.03)[0], Failure)


def test_without_a_clock_there_is_no_roofline():
    assert not isinstance(timed([sample(2.0, None)], [sample(3.0)], floor=1e9)[0], Failure)


def test_a_fault_of_the_kernel_ends_the_timing_and_is_its_own():
    fault = Fault(FaultKind.TIME_LIMIT, "a call took longer than 5 s")
    found, order, _, _ = timed([sample(2.0), sample(2.0), fault], [sample(3.0)])
    assert found == Failure(Status.TIMEOUT, "time-limit", "a call took longer than 5 s")
    assert order.count("k") == 3


def test_outputs_that_were_not_written_are_found_after_a_timed_sample():
    found, order, _, _ = timed([sample(2.0)], [sample(3.0)], writes=False)
    assert (found.status, found.gate) == (Status.CHEATING, "timed-outputs")
    assert order.count("k") == 1


@pytest.mark.parametrize("failure", [Fault(FaultKind.CRASH, "out of order"), Refused("out of order")])
def test_a_failing_baseline_is_never_the_kernels_fault(failure):
    with pytest.raises(DeviceError, match=r"the baseline fails: found out of order; try: evo-l2 doctor"):
        timed([sample(2.0)], [sample(3.0), failure])


def test_a_refused_launch_of_the_kernel_is_its_own():
    with pytest.raises(Refused):
        timed([Refused("too large")], [sample(3.0)])


# --- numbers that are fixed beforehand --------------------------------------------------------------------------------

SETTINGS = CardTimingSettings()


@given(st.floats(0.001, 1e7), st.integers(6, 6 << 30), st.integers(1 << 20, 128 << 20))
def test_a_sample_has_calls_enough_to_last_and_to_leave_the_cache_or_as_many_as_memory_allows(call_us, n_bytes, l2_bytes):
    n_calls = n_calls_of(call_us, n_bytes, l2_bytes, SETTINGS)
    bounded = n_calls == 2048 or (n_calls + 1) * n_bytes > 16 << 30
    assert 1 <= n_calls <= 2048
    assert n_calls == 1 or n_calls * n_bytes <= 16 << 30
    assert bounded or (n_calls * max(call_us, 0.5) >= 300 and n_calls * n_bytes > 2 * l2_bytes)


def test_no_more_calls_are_taken_than_the_longer_of_both_needs():
    assert n_calls_of(10.0, 1 << 20, 1 << 20, SETTINGS) == 30
    assert n_calls_of(1000.0, 1 << 20, 50 << 20, SETTINGS) == 101
    assert n_calls_of(1000.0, 64 << 20, 50 << 20, SETTINGS) == 2


@given(st.floats(0.001, 1e7), st.integers(1, 2048), st.booleans())
def test_blocks_are_those_of_the_settings_unless_they_take_too_long_and_never_too_few(call_us, n_calls, final):
    n_blocks = blocks_of(call_us, n_calls, SETTINGS, final=final)
    wanted, most_s = (40, 40.0) if final else (10, 4.0)
    assert FEWEST_BLOCKS + 2 <= n_blocks <= wanted
    spent_s = 4 * n_blocks * n_calls * call_us * 1e-6
    assert n_blocks == FEWEST_BLOCKS + 2 or spent_s <= most_s * 1.0001
    assert n_blocks == wanted or 4 * (n_blocks + 1) * n_calls * call_us * 1e-6 > most_s * 0.9999


def test_the_roofline_is_that_of_the_class_at_the_clock_that_was_measured():
    card = find_card("RTX 3090")
    sizes = (4096, 4096, 4096, 1)
    single, half = (Instance(Hgemm((sizes,), accumulate), sizes, "nn") for accumulate in ("fp32", "fp16"))
    full = 2 * 4096**3 / 71e12 * 1e6
    assert roofline_us(single, card, 1695) == pytest.approx(full)
    assert roofline_us(half, card, 1695) == pytest.approx(full / 2)
    assert roofline_us(single, card, 1695 / 2) == pytest.approx(full * 2)


def test_a_buffer_set_is_all_operands():
    assert Instance(Hgemm((SIZES,)), SIZES, "nn").n_bytes == 2 * (16 * 32 + 32 * 24 + 16 * 24)


# --- the harness's clock ----------------------------------------------------------------------------------------------


def test_the_clock_is_the_median_over_multiprocessors_that_were_read_twice():
    before = [(1000, 5000), (0, 5000), (500, 5000), (0, 0), (700, 5000)]
    after = [(2500, 6000), (1400, 6000), (10_500, 6000), (900, 6000), (0, 0)]
    assert clock_mhz(before, after) == pytest.approx(1500)


@pytest.mark.parametrize(
    ("before", "after"),
    [([], []), ([(0, 0)], [(9, 9)]), ([(5, 5)], [(0, 0)]), ([(5, 5)], [(9, 5)]), ([(9, 5)], [(5, 9)])],
)
def test_there_is_no_clock_where_no_multiprocessor_was_read_twice(before, after):
    assert clock_mhz(before, after) is None


@given(st.floats(200, 3000), st.integers(1, 10**7), st.integers(1, 2**60))
def test_the_clock_is_cycles_over_time(mhz, n_ns, start):
    cycles = round(mhz * n_ns / 1000)
    found = clock_mhz([(start, start)], [(start + cycles, start + n_ns)])
    assert found == (pytest.approx(1000 * cycles / n_ns) if cycles else None)
