"""Rogues of the CUDA target that only a run shows: each comes through every gate before its launch, and no further.

A rogue states what it does (`// rogue:`), the status and gate that are expected of it (`// expect:`, alternatives parted by
commas), and, where they are not the usual ones, the shape it is tried on (`// case:`) and the one architecture that it is for
(`// arch:`). One that is marked `// alone:` shows what its gate is for: without that gate, it passes all the others; of one
with `// then:` that line says where it ends instead. `// passes:` says why one comes through: it is harmless, being right in
every call that counts, or there is a hole, which a gate may close. `// from:` says where one comes from that is not ours.

Without a card, what is checked is that builds and gates let them all through, so that it is the run that stops them.
"""

import functools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from evo_l2.errors import ToolchainError
from evo_l2.evaluation import Status
from evo_l2.judge import Failure, Judge
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.cards import card_for
from evo_l2.targets.cuda.prepare import prepare
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler
from evo_l2.targets.cuda.toolchain.toolkit import find_toolkit
from experiments.seeds import load_seeds, seed_names

GALLERY = Path(__file__).parent / "rogues" / "card"
USUAL_CASE = (96, 80, 112, 1)
ARCHITECTURES = ("sm_80", "sm_90a") if os.environ.get("EVO_L2_SOAK") else ("sm_90a",)
GATES_ON_RESULTS = {gate.name for gate in Hgemm((USUAL_CASE,)).gates}
BESIDE_THE_SUITE = {"poison", "inputs-unchanged", "guards", "determinism", "timed-outputs"}
OF_THE_CARD = {"run", "time-limit", "launch", "roofline"}
"""These cannot be left out."""
NOT_NEEDED_ALONE = {"poison": "it names the reason when another gate has found the result wrong"}
CRASHES = {"run", "time-limit"}


@dataclass(frozen=True)
class Rogue:
    """One file of the gallery, with what its first lines say."""

    name: str
    kernel: Kernel
    expected: frozenset[tuple[Status, str]]
    then: frozenset[tuple[Status, str]] | None
    """Where it ends without the gate that is expected of it; empty for one that passes; None where nothing is said."""
    case: tuple[int, ...]
    arch: str | None

    @property
    def problem(self):
        return Hgemm((self.case,), "fp32", ("nn", "nt"))

    @property
    def gate(self):
        """The one gate that is expected of it."""
        ((_, gate),) = self.expected
        return gate

    def builds_for(self, arch):
        return self.arch in (None, arch)


def ends(text):
    return frozenset((Status(status), gate) for status, gate in (pair.split() for pair in text.split(", ")))


def read(path):
    source = path.read_text(encoding="utf-8")
    facts = dict(re.findall(r"^// (rogue|expect|alone|then|case|arch|passes): (.+)$", source, re.MULTILINE))
    assert facts["rogue"]
    assert ("expect" in facts) != ("passes" in facts)
    expected = ends(facts["expect"]) if "expect" in facts else frozenset()
    then = ends(facts["then"]) if "then" in facts else frozenset() if "alone" in facts else None
    case = tuple(int(size) for size in facts["case"].split("x")) if "case" in facts else USUAL_CASE
    return Rogue(path.stem, Kernel(source, "cuda"), expected, then, case, facts.get("arch"))


ROGUES = tuple(sorted((read(path) for path in GALLERY.glob("*.cu")), key=lambda rogue: (rogue.case, rogue.name)))
"""Those of one case stand together, so that the baseline is opened once for all of them."""
ABLATED = tuple(rogue for rogue in ROGUES if rogue.then is not None)


def named(rogues):
    return pytest.mark.parametrize("rogue", rogues, ids=lambda rogue: rogue.name)


@pytest.fixture(scope="module")
def compiler(session_cache):
    try:
        toolkit = find_toolkit(wheels_first=True)
        made = CudaCompiler(toolkit, session_cache / "cuda", builder="nvrtc")
    except ToolchainError as error:
        pytest.skip(str(error))
    with made:
        yield made


@named(ROGUES)
def test_a_rogue_comes_through_every_gate_before_its_launch(rogue, compiler):
    for arch in filter(rogue.builds_for, ARCHITECTURES):
        verdict = prepare(rogue.kernel, rogue.problem, compiler, card_for(arch)).verdict
        assert verdict is None, (arch, verdict.gate, verdict.message)


def test_every_gate_that_is_named_exists():
    shown = {gate for rogue in ROGUES for _, gate in rogue.expected | (rogue.then or frozenset())}
    assert shown == GATES_ON_RESULTS | BESIDE_THE_SUITE | OF_THE_CARD


def test_every_gate_on_results_has_a_rogue_of_its_own():
    assert all(len(rogue.expected) == 1 for rogue in ABLATED)
    everywhere = {rogue.gate for rogue in ABLATED if not rogue.then and rogue.arch is None}
    assert everywhere | set(NOT_NEEDED_ALONE) == GATES_ON_RESULTS | BESIDE_THE_SUITE


class Court:
    """One rig for all; builds everything beforehand, and closes the baseline of a case when the next begins."""

    def __init__(self, rig):
        self.rig = rig
        self.last = None
        rogues = [rogue for rogue in ROGUES if rogue.builds_for(rig.card.arch)]
        with ThreadPoolExecutor(8) as pool:
            made = pool.map(lambda rogue: rig.prepare(rogue.kernel, rogue.problem), rogues)
            self.prepared = dict(zip((rogue.name for rogue in rogues), made, strict=True))

    def verdict(self, rogue, skip=frozenset()):
        if not rogue.builds_for(self.rig.card.arch):
            pytest.skip(f"built for {rogue.arch} alone")
        prepared = self.prepared[rogue.name]
        if prepared.verdict is not None:
            return prepared.verdict
        return self.measured(rogue.problem, prepared, skip)

    def measured(self, problem, prepared, skip=frozenset()):
        from evo_l2.targets.cuda.evaluator import CudaEvaluator

        instance = Instance(problem, problem.cases[0], prepared.kernel.launch.layout)
        if self.last not in (None, instance):
            self.rig.baselines.release(self.last)
        self.last = instance
        return CudaEvaluator(problem, self.rig, skip=skip).measure(prepared, np.random.SeedSequence(20)).verdict

    def proved(self, kernel, problem):
        """None, or the failure; nothing is timed."""
        prepared = self.rig.prepare(kernel, problem)
        if prepared.verdict is not None:
            return prepared.verdict
        judge = Judge(deterministic=kernel.launch.deterministic)
        found = self.rig.prove(
            prepared, Instance(problem, problem.cases[0], kernel.launch.layout), judge, np.random.SeedSequence(7)
        )
        return found if isinstance(found, Failure) else None


@pytest.fixture(scope="module")
def court(tmp_path_factory):
    from evo_l2.targets.cuda.card.pairs import CardTimingSettings
    from evo_l2.targets.cuda.card.rig import Rig
    from evo_l2.targets.cuda.devices import choose_card, present_devices

    devices = present_devices()
    if not devices:
        pytest.skip("nvidia-smi names no card")
    card, device = choose_card("auto", devices)
    timing = CardTimingSettings(blocks=8, sample_us=100.0, most_s=1.0)
    cache = tmp_path_factory.mktemp("cache")
    with Rig(cache, card, device, builder="nvrtc", timing=timing, call_s=1.0, baselines=("cublas",)) as rig:
        yield Court(rig)


@functools.cache
def honest():
    return dict(zip(seed_names("cuda", "nn"), load_seeds("cuda", "nn"), strict=True))["naive_nn"]


@pytest.mark.gpu
@named(ROGUES)
def test_a_rogue_ends_where_it_should(rogue, court):
    verdict = court.verdict(rogue)
    if not rogue.expected:
        assert verdict.status is Status.PASSED, (verdict.gate, verdict.message)
        return
    assert (verdict.status, verdict.gate) in rogue.expected, verdict.message
    assert verdict.message
    if verdict.gate in CRASHES:
        assert court.proved(honest(), Hgemm((USUAL_CASE,))) is None


@pytest.mark.gpu
@named(ABLATED)
def test_without_its_gate_a_rogue_passes_or_comes_to_the_next(rogue, court):
    verdict = court.verdict(rogue, frozenset({rogue.gate}))
    if rogue.then:
        assert (verdict.status, verdict.gate) in rogue.then, verdict.message
    else:
        assert verdict.status is Status.PASSED, (verdict.gate, verdict.message)


SEEDS = [
    pytest.param(name, kernel, id=name)
    for layout in ("nn", "nt")
    for name, kernel in zip(seed_names("cuda", layout), load_seeds("cuda", layout), strict=True)
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", [(128, 256, 192, 1), (97, 75, 83, 1), (104, 72, 88, 3), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize(("name", "kernel"), SEEDS)
def test_an_honest_seed_passes(name, kernel, case, court):
    arch, layout = court.rig.card.arch, kernel.launch.layout
    accumulate = "fp32" if name in seed_names("cuda", layout, accumulate="fp32") else "fp16"
    if name not in seed_names("cuda", layout, architecture=arch):
        pytest.skip(f"not for {arch}")
    if kernel.launch.tensor_maps and any(size % 8 for size in case[1:3]):
        pytest.skip("tensor maps need multiples of 8")
    found = court.proved(kernel, Hgemm((case,), accumulate, (layout,)))
    assert found is None, (found.gate, found.message)


@pytest.mark.gpu
def test_an_honest_kernel_is_timed(court):
    problem = Hgemm((USUAL_CASE,))
    assert court.measured(problem, court.rig.prepare(honest(), problem)).status is Status.PASSED


@pytest.mark.gpu
def test_the_order_of_sums_may_vary_where_it_is_declared(court):
    (rogue,) = (rogue for rogue in ROGUES if rogue.name == "adds_in_any_order")
    declared = Kernel(rogue.kernel.source.replace("//! layout nn", "//! layout nn\n//! nondeterministic"), "cuda")
    assert court.proved(declared, rogue.problem) is None


@pytest.mark.gpu
def test_a_square_problem_alone_would_not_do(court):
    (rogue,) = (rogue for rogue in ROGUES if rogue.name == "wrong_stride")
    assert court.proved(rogue.kernel, Hgemm(((96, 112, 112, 1),))) is None


STOPPED_BEFORE = {
    "trap": ('asm volatile("trap;");', "", frozenset({"trap"})),
    "stack": (
        "sum += down(C, K * 100000);",
        """__device__ __noinline__ float down(const volatile half *at, int n)
{
    const float x = __half2float(*(const half *)at);
    return n <= 0 ? x : down(at, n - 1) * 1.5f + x;
}
""",
        frozenset({"local-memory"}),
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", STOPPED_BEFORE)
def test_what_is_refused_before_its_launch_would_end_no_more_than_its_own_run(name, court, tmp_path):
    from evo_l2.targets.cuda.build_only import open_compiler

    line, before, skip = STOPPED_BEFORE[name]
    source = (GALLERY / "zeros.cu").read_text(encoding="utf-8")
    source = source.replace('extern "C"', before + 'extern "C"').replace(
        "    C[i", f"    float sum = 0;\n    {line}\n    C[i"
    )
    source = source.replace("__float2half(0.0f)", "__float2half(sum)")
    problem = Hgemm((USUAL_CASE,))
    with open_compiler(court.rig.card, tmp_path, "nvrtc") as compiler:
        assert prepare(Kernel(source, "cuda"), problem, compiler, court.rig.card).verdict.gate in skip
        prepared = prepare(Kernel(source, "cuda"), problem, compiler, court.rig.card, skip)
        assert prepared.verdict is None, prepared.verdict.message
        verdict = court.measured(problem, prepared)
    assert (verdict.status, verdict.gate) == (Status.RUNTIME_ERROR, "run")
    assert court.proved(honest(), problem) is None
