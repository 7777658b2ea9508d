"""What inputs are drawn from: Philox by its published numbers, what both kinds of draws promise, cards against the host."""

import functools

import numpy as np
import pytest

from evo_l2.draws import HostDraws, namespace
from evo_l2.evaluation import Status
from evo_l2.judge import Judge
from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.card.draws import CardDraws, philox

ODD = (65, 33, 127, 2)


@functools.cache
def card():
    """Cupy; skips without a card."""
    cupy = pytest.importorskip("cupy", reason="needs cupy")
    try:
        cupy.zeros(1)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"needs an NVIDIA card: {error}")
    return cupy


def card_draws(seed, xp=np):
    return CardDraws(np.random.SeedSequence(seed), xp)


KINDS = {"host": lambda seed: HostDraws(np.random.default_rng(seed)), "card": card_draws}


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_blocks(counter, key, block):
    """The vectors of Random123's `kat_vectors`, `philox4x32 10`."""
    assert philox(np.array([counter], np.uint32), key).tolist() == [block]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_shape_and_range_that_were_asked_for(kind):
    draws = KINDS[kind](1)
    assert draws.xp is np
    assert draws.words((3, 5, 7)).shape == (3, 5, 7)
    assert draws.words(0).size == 0
    counts = np.bincount(draws.integers(-3, 4, 70_000, np.int16).astype(int) + 3)
    assert counts.size == 7
    assert np.abs(counts - 10_000).max() < 600
    keys = draws.integers(0, 2**32, (50, 40), np.uint32)
    assert keys.dtype == np.uint32
    assert keys.min() < 2**26
    assert keys.max() > 2**32 - 2**26
    bits = np.unpackbits(draws.words(20_000).view(np.uint8)).reshape(-1, 16)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.02
    for values in (draws.normal((200, 300)), draws.normal_halves((200, 300)).view(np.float16).astype(float)):
        assert abs(values.mean()) < 0.03
        assert abs(values.std() - 1) < 0.03
    assert draws.normal(3).dtype == np.float64


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_from_the_seed_and_are_never_the_same_twice(kind):
    first, again, other = KINDS[kind](1), KINDS[kind](1), KINDS[kind](2)
    seen = set()
    for draws in (first, first, other):
        seen.add(draws.words(64).tobytes())
    assert len(seen) == 3
    assert again.words(64).tobytes() in seen
    assert again.host.random() != other.host.random()


def test_too_many_different_integers_are_refused():
    with pytest.raises(ValueError, match="2\\*\\*32"):
        card_draws(1).integers(0, 2**32 + 1, 3)


def test_an_array_tells_its_library():
    assert namespace(np.zeros(3)) is np


class Stage:
    """Buffers of one library, and a function of (A, B, C) for a kernel."""

    most_stacked = 1 << 22
    most_checked = 1 << 40

    def __init__(self, kernel, xp=np, sizes=ODD, layout="nn", accumulate="fp32", n_sets=1):
        self.instance = Instance(Hgemm((sizes,), accumulate, ("nn", "nt")), sizes, layout)
        self.n_sets = n_sets
        self._kernel = kernel
        self._xp = xp
        operands = self.instance.problem.operands
        self.operands = {o.name: xp.zeros((n_sets, *self.instance.shape(o)), np.float16) for o in operands}
        self._workspace = xp.zeros(65, np.uint8)

    def draws(self, seed):
        return CardDraws(seed, self._xp)

    def stacked(self, first, n_sets):
        return {name: value[first : first + n_sets] for name, value in self.operands.items()}

    def workspaces(self):
        return {"W": self._workspace}

    def run(self, first, n_calls):
        for index in range(first, first + n_calls):
            a, b, c = (self.operands[name][index] for name in "ABC")
            with np.errstate(all="ignore"):
                self._kernel(a, b if self.instance.layout == "nn" else b.swapaxes(1, 2), c)
        return 1000 * n_calls

    def damaged_guard(self, index):
        return None


def right(a, b, c):
    c[...] = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)


def narrow(x):
    """To three bits of mantissa."""
    return ((x.view(np.uint16) + np.uint16(0x40)) & np.uint16(0xFF80)).view(np.float16)


def narrow_a(a, b, c):
    right(narrow(a.copy()), b, c)


def narrow_b(a, b, c):
    right(a, narrow(b.copy()), c)


def half_sums(a, b, c):
    total = c * np.float16(0)
    total[...] = 0
    for k in range(0, a.shape[2], 2):
        piece = a[:, :, k : k + 2].astype(np.float32) @ b[:, k : k + 2].astype(np.float32)
        total = (total.astype(np.float32) + piece).astype(np.float16)
    c[...] = total


def one_off(a, b, c):
    right(a, b, c)
    c.view(np.uint16)[-1, 3, 7] ^= np.uint16(1)


def tile_cleared(a, b, c):
    right(a, b, c)
    c[0, 16:32, 16:32] = 0


def nothing(a, b, c):
    pass


def write_input(a, b, c):
    right(a, b, c)
    a[0, 0, 0] += np.float16(1)


WRONG = [
    (one_off, Status.INCORRECT, "exact-integers", ()),
    (tile_cleared, Status.INCORRECT, "exact-integers", ()),
    (half_sums, Status.INCORRECT, "exact-integers", ()),
    (half_sums, Status.INCORRECT, "statistics", ("exact-integers",)),
    (narrow_b, Status.INCORRECT, "rows-of-b", ("exact-integers",)),
    (narrow_a, Status.INCORRECT, "columns-of-a", ("exact-integers",)),
    (nothing, Status.INCORRECT, "poison", ()),
    (write_input, Status.CHEATING, "inputs-unchanged", ()),
]


def judged(kernel, xp, skip=(), **options):
    return Judge(skip=frozenset(skip)).judge(Stage(kernel, xp, **options), np.random.SeedSequence(1))


def check_right_kernels(xp, layout, accumulate):
    for sizes in (ODD, (1, 1, 1, 1), (24, 20, 700, 1)):
        assert judged(right, xp, sizes=sizes, layout=layout, accumulate=accumulate) is None
    if accumulate == "fp16":
        assert judged(half_sums, xp, layout=layout, accumulate=accumulate) is None


def check_timed_calls(xp):
    for spoilt in range(0, 40, 13):
        stage = Stage(right, xp, n_sets=40)
        draws = stage.draws(np.random.SeedSequence(spoilt))
        fills = Judge().prepare_timed(stage, 40, draws)
        stage.run(0, spoilt)
        stage.run(spoilt + 1, 39 - spoilt)
        failure = Judge().check_timed(stage, fills, draws)
        assert (failure.status, failure.gate) == (Status.CHEATING, "timed-outputs")
        assert f"timed call {spoilt} of 40 left its output unwritten" in failure.message
        stage.run(spoilt, 1)
        assert Judge().check_timed(stage, fills, draws) is None
        stage.operands["C"][spoilt, 1, 5] = 0
        assert "row 5 of matrix 1 is off" in Judge().check_timed(stage, fills, draws).message


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
def test_right_kernels_pass_on_a_cards_numbers(layout, accumulate):
    check_right_kernels(np, layout, accumulate)


@pytest.mark.parametrize(("kernel", "status", "gate", "skip"), WRONG)
def test_wrong_kernels_fail_on_a_cards_numbers(kernel, status, gate, skip):
    failure = judged(kernel, np, skip)
    assert (failure.status, failure.gate) == (status, gate)


def test_timed_calls_are_checked_on_a_cards_numbers():
    check_timed_calls(np)


class Coarse:
    """Draws whose 32-bit integers take four values only."""

    def __init__(self, draws):
        self._draws = draws

    def __getattr__(self, name):
        return getattr(self._draws, name)

    def integers(self, low, high, shape, dtype=np.int64):
        values = self._draws.integers(low, high, shape, dtype)
        return values >> 30 if high == 2**32 else values


@pytest.mark.parametrize("k", [227, 228, 229, 1000, 5000])
@pytest.mark.parametrize("coarse", [False, True])
def test_integers_for_half_sums_stay_exact_in_half(k, coarse):
    instance = Instance(Hgemm(((9, 200, k, 2),), "fp16"), (9, 200, k, 2), "nn")
    gate = next(gate for gate in instance.problem.gates if gate.name == "exact-integers")
    draws = card_draws(k)
    inputs = gate.draw(instance, Coarse(draws) if coarse else draws)
    a, b = (np.abs(inputs[name].astype(np.float64)) for name in "AB")
    assert (a @ b).max() <= 2048
    assert ((b != 0).sum(axis=1) <= 227).all()
    if not coarse:
        assert (b != 0).mean() > 0.7 * min(1, 227 / k)


@pytest.mark.gpu
def test_card_and_host_draw_the_same_bits():
    cupy = card()
    pair = [card_draws(3, xp) for xp in (cupy, np)]
    for draws in pair:
        draws._n_blocks = 2**32 - 500
    for draw in (
        lambda draws: draws.words(4001),
        lambda draws: draws.words((3, 5, 7)),
        lambda draws: draws.integers(-5, 6, (100, 3), np.int16),
        lambda draws: draws.integers(0, 2**32, 4001, np.uint32),
        lambda draws: draws.integers(0, 7, 0),
        lambda draws: draws.normal((300, 300)),
        lambda draws: draws.normal_halves((300, 300)),
    ):
        on_card, on_host = (draw(draws) for draws in pair)
        assert namespace(on_card) is cupy
        assert on_card.dtype == on_host.dtype
        assert np.array_equal(on_card.get(), on_host)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
def test_every_gate_draws_the_same_inputs_on_card_and_host(layout, accumulate):
    instance = Instance(Hgemm((ODD,), accumulate, ("nn", "nt")), ODD, layout)
    for index, gate in enumerate(instance.problem.gates):
        on_card, on_host = (gate.draw(instance, card_draws(index, xp)) for xp in (card(), np))
        for name, value in on_card.items():
            assert value.flags.c_contiguous
            assert np.array_equal(value.get().view(np.uint16), on_host[name].view(np.uint16))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
def test_right_kernels_pass_on_a_card(layout, accumulate):
    check_right_kernels(card(), layout, accumulate)


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "status", "gate", "skip"), WRONG)
def test_wrong_kernels_fail_on_a_card(kernel, status, gate, skip):
    failure = judged(kernel, card(), skip)
    assert (failure.status, failure.gate) == (status, gate)


@pytest.mark.gpu
def test_timed_calls_are_checked_on_a_card():
    check_timed_calls(card())
