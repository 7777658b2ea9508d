"""The rogues' gallery of the CUDA target, as far as a kernel can be caught before it is launched.

A rogue states what it does (`// rogue:`), the status and gate that are expected of it (`// expect:`, alternatives parted by
commas), and, where they are not the usual ones, its architecture (`// arch:`) and compiler (`// builder:`). With its gate
switched off, one that is marked `// alone:` comes through all the others, for the reason given there; of one with `// then:`
that line says where it ends instead.

What only a launch can show is left to the gates on results: halves that are added outside the matrix units (`n_half_math`
counts them), bytes multiplied as integers, dropped tails, races, what former launches left in shared memory, endless loops.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from evo_l2.errors import KernelError, ToolchainError
from evo_l2.evaluation import Status
from evo_l2.kernel import LONGEST_SOURCE_BYTES, Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.cards import card_for
from evo_l2.targets.cuda.prepare import prepare
from evo_l2.targets.cuda.reading.gates import GATES
from evo_l2.targets.cuda.screen import SCREEN_GATES
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler
from evo_l2.targets.cuda.toolchain.toolkit import find_toolkit

GALLERY = Path(__file__).parent / "rogues" / "cuda"
PROBLEM = Hgemm(((96, 80, 112, 1),), "fp32", ("nn",))
BUILD_S = 3.0
GATES_ON_LAUNCHES = {
    "flags", "grid-size", "block-size", "cluster-size", "tensor-maps", "arguments", "registers", "shared-memory",
}  # fmt: skip
"""`entries` is not among them: a build without the entry is no build."""
NOT_NEEDED_ALONE = {
    "clocks": "says with a line of source what `clock` finds in the machine code",
    "output": "says with a line of source what `outside-call` and `trap` find in the machine code",
    "memory": "says with a line of source what `outside-call` and `local-memory` find in the machine code",
    "language": "says in plain words what device code does not compile with",
    "indirect-call": "machine code shows the same call, where `outside-call` finds it",
}
SHOWN_WITHOUT_A_FILE = {"size"}


@dataclass(frozen=True)
class Rogue:
    """One file of the gallery, with what its first lines say."""

    name: str
    kernel: Kernel
    expected: frozenset[tuple[Status, str]]
    then: frozenset[tuple[Status, str]] | None
    """Where it ends without the gate that is expected of it; empty for one that comes through; None where nothing is said."""
    arch: str
    builder: str

    @property
    def gate(self):
        """The one gate that is expected of it."""
        ((_, gate),) = self.expected
        return gate


def ends(text):
    return frozenset((Status(status), gate) for status, gate in (pair.split() for pair in text.split(", ")))


def read(path):
    source = path.read_text(encoding="utf-8")
    facts = dict(re.findall(r"^// (rogue|expect|alone|then|arch|builder): (.+)$", source, re.MULTILINE))
    assert facts["rogue"]
    then = ends(facts["then"]) if "then" in facts else frozenset() if "alone" in facts else None
    kernel = Kernel(source, "cuda")
    arch, builder = facts.get("arch", "sm_80"), facts.get("builder", "nvrtc")
    return Rogue(path.stem, kernel, ends(facts["expect"]), then, arch, builder)


ROGUES = tuple(read(path) for path in sorted(GALLERY.glob("*.cu")))
ABLATED = tuple(rogue for rogue in ROGUES if rogue.then is not None)


class Court:
    """Answers for each rogue; what one answer was built for, another finds in the cache."""

    def __init__(self, cache, only_builder=None):
        toolkit = find_toolkit(wheels_first=True)
        names = (only_builder,) if only_builder else ("nvcc", "nvrtc")
        self.compilers = {name: CudaCompiler(toolkit, cache, builder=name, cpu_s=BUILD_S) for name in names}
        self.only_builder = only_builder

    def verdict(self, rogue, *, without_gate=False):
        compiler = self.compilers[self.only_builder or rogue.builder]
        skip = frozenset({rogue.gate}) if without_gate else frozenset()
        return prepare(rogue.kernel, PROBLEM, compiler, card_for(rogue.arch), skip).verdict

    def close(self):
        for compiler in self.compilers.values():
            compiler.close()


def court_of(session_cache, only_builder=None):
    try:
        return Court(session_cache / "rogues", only_builder)
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def court(session_cache):
    made = court_of(session_cache)
    yield made
    made.close()


@pytest.fixture(scope="module")
def court_of_nvcc(session_cache):
    made = court_of(session_cache, "nvcc")
    yield made
    made.close()


def check(court, rogue):
    verdict = court.verdict(rogue)
    assert verdict is not None, "it came through"
    assert (verdict.status, verdict.gate) in rogue.expected, verdict.message
    assert verdict.message
    # The name of the file may be in it only where the source wrote it where it is shown: in an option, or an include.
    shows_names = ("bad_flag", "incbin", "assembler_include", "digraph_include", "host_include")
    assert "/etc/passwd" not in verdict.message or rogue.name in shows_names
    assert "root:" not in verdict.message


def check_without_its_gate(court, rogue):
    verdict = court.verdict(rogue, without_gate=True)
    if rogue.then:
        assert verdict is not None, "it came through"
        assert (verdict.status, verdict.gate) in rogue.then, verdict.message
    else:
        assert verdict is None, (verdict.gate, verdict.message)


@pytest.mark.parametrize("rogue", ROGUES, ids=lambda rogue: rogue.name)
def test_a_rogue_ends_where_it_should(rogue, court):
    check(court, rogue)


@pytest.mark.parametrize("rogue", ABLATED, ids=lambda rogue: rogue.name)
def test_without_its_gate_a_rogue_comes_through_or_to_the_next(rogue, court):
    check_without_its_gate(court, rogue)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("EVO_L2_SOAK"), reason="builds the gallery once more: EVO_L2_SOAK=1")
@pytest.mark.parametrize("rogue", ROGUES, ids=lambda rogue: rogue.name)
def test_every_rogue_ends_the_same_when_nvcc_builds(rogue, court_of_nvcc):
    check(court_of_nvcc, rogue)
    if rogue.then is not None:
        check_without_its_gate(court_of_nvcc, rogue)


def test_every_gate_before_a_launch_has_a_rogue_of_its_own():
    alone = {rogue.gate for rogue in ABLATED if not rogue.then}
    gates = set(GATES) | SCREEN_GATES
    assert alone <= gates
    assert gates - alone - SHOWN_WITHOUT_A_FILE == set(NOT_NEEDED_ALONE)
    assert {rogue.gate for rogue in ABLATED if rogue.then} >= set(NOT_NEEDED_ALONE)


def test_every_gate_on_launches_and_builds_has_a_rogue():
    shown = {gate for rogue in ROGUES for _, gate in rogue.expected}
    assert shown >= GATES_ON_LAUNCHES | {"compile", "compile-limits"}
    assert shown <= GATES_ON_LAUNCHES | {"compile", "compile-limits"} | set(GATES) | SCREEN_GATES


def test_bytes_that_are_no_text_are_no_kernel():
    source = (GALLERY / "no_kernel.cu").read_bytes()
    for data, found in ((source + b"// \xff\xfe", "UTF-8"), (source + b"\0", "NUL")):
        with pytest.raises(KernelError, match=found):
            Kernel.from_bytes(data, "cuda")


def test_text_that_cannot_be_written_down_is_refused(court):
    source = (GALLERY / "bad_pragma.cu").read_text(encoding="utf-8").replace("#pragma", "// \udcff #pragma")
    verdict = prepare(Kernel(source, "cuda"), PROBLEM, court.compilers["nvrtc"], card_for("sm_80")).verdict
    assert (verdict.status, verdict.gate) == (Status.REJECTED, "text")


def test_a_hundred_megabytes_of_source_are_refused_unread(court):
    source = (GALLERY / "bad_pragma.cu").read_text(encoding="utf-8").replace("#pragma", "// #pragma")
    card, compiler = card_for("sm_80"), court.compilers["nvrtc"]
    long = source + "// and so on\n" * (100 * 2**20 // 13)
    with pytest.raises(KernelError, match="too long"):
        Kernel.from_bytes(long.encode(), "cuda")
    verdict = prepare(Kernel(long, "cuda"), PROBLEM, compiler, card).verdict
    assert (verdict.status, verdict.gate) == (Status.REJECTED, "size")
    longer = Kernel(source + "// and so on\n" * (LONGEST_SOURCE_BYTES // 13), "cuda")
    assert prepare(longer, PROBLEM, compiler, card).verdict.gate == "size"
    assert prepare(longer, PROBLEM, compiler, card, frozenset({"size"})).verdict is None
    assert prepare(Kernel(source, "cuda"), PROBLEM, compiler, card).verdict is None
