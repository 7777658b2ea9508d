"""The rogues' gallery of the CPU target: every cheat and every broken kernel ends where its own first lines say it should.

A rogue states what it does (`// rogue:`), the status and gate that are expected of it (`// expect:`, alternatives parted by
commas), and, where it is not the usual one, the shape it is tried on (`// case:`) and the machine it was written for
(`// machine:`). One that is marked `// alone:` shows what its gate is for: without that gate, it passes all the others.
"""

import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from evo_l2.errors import KernelError
from evo_l2.evaluation import Status
from evo_l2.judge import Failure, Judge
from evo_l2.kernel import LONGEST_SOURCE_BYTES, Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cpu.evaluator import CpuEvaluator, CpuSettings
from evo_l2.targets.cpu.pairs import TimingSettings
from evo_l2.targets.cpu.runner import RunnerBinary
from evo_l2.targets.cpu.toolchain import find_toolchain

GALLERY = Path(__file__).parent / "rogues" / "cpu"
USUAL_CASE = (96, 80, 112, 1)
SETTINGS = CpuSettings(timing=TimingSettings(blocks=8, min_batch_ms=4.0, most_s=0.1), call_s=0.5, build_s=3.0)
JUDGED_BESIDE_THE_SUITE = ("poison", "inputs-unchanged", "guards", "determinism", "timed-outputs")
NOT_NEEDED_ALONE = {"poison": "it names the reason when another gate has found the result wrong"}


@dataclass(frozen=True)
class Rogue:
    """One file of the gallery, with what its first lines say."""

    path: Path
    kernel: Kernel
    expected: frozenset[tuple[Status, str]]
    case: tuple[int, ...]
    machine: str | None
    needs: str | None
    alone: bool

    @property
    def is_never_run(self):
        """Whether it is stopped before it is loaded, whatever gate does it."""
        before = (Status.REJECTED, Status.BUILD_ERROR, Status.UNLAUNCHABLE)
        return all(status in before and gate != "load" for status, gate in self.expected)


def read(path):
    source = path.read_text(encoding="utf-8")
    facts = dict(re.findall(r"^// (rogue|expect|case|machine|needs|alone): (.+)$", source, re.MULTILINE))
    assert facts["rogue"]
    expected = frozenset((Status(status), gate) for status, gate in (pair.split() for pair in facts["expect"].split(", ")))
    case = tuple(int(size) for size in facts["case"].split("x")) if "case" in facts else USUAL_CASE
    return Rogue(path, Kernel(source, "cpu"), expected, case, facts.get("machine"), facts.get("needs"), "alone" in facts)


ROGUES = tuple(read(path) for path in sorted(GALLERY.glob("*.c")))
ALONE = tuple(rogue for rogue in ROGUES if rogue.alone)
STEMS = [rogue.path.stem for rogue in ROGUES]
TRIES = 12
"""The inputs of timed calls are ordinary ones; by luck they show one time in four what a gate is made to show."""
BESIDE = pytest.mark.beside


@pytest.fixture(scope="module")
def offers(cache):
    """What the running kernel offers to the runner, for instance `{"seccomp": True}`."""
    binary = RunnerBinary.ensure(find_toolchain().compiler, cache)
    printed = subprocess.run([str(binary), "--probe"], capture_output=True, text=True, check=True, timeout=30).stdout
    return {name: value != "0" for name, value in (line.split("=") for line in printed.split())}


@pytest.fixture(scope="module")
def cache(session_cache):
    return session_cache / "evo-l2" / "cpu"


@pytest.fixture(scope="module")
def evaluators(cache):
    """One evaluator for each case and set of skipped gates, closed at the end."""
    made = {}

    def get(case, skip=frozenset()):
        if (case, skip) not in made:
            made[case, skip] = CpuEvaluator(Hgemm((case,), "fp32", ("nn", "nt")), cache, SETTINGS, skip=skip)
        return made[case, skip]

    yield get
    for evaluator in made.values():
        evaluator.close()


def judged(evaluator, kernel, seed=None):
    prepared = evaluator.prepare(kernel)
    if prepared.verdict is not None:
        return prepared.verdict
    return evaluator.measure(prepared, seed or np.random.SeedSequence(20)).verdict


def need(rogue, offers):
    if rogue.machine not in (None, platform.machine()):
        pytest.skip(f"written for {rogue.machine}")
    if rogue.needs is not None and not offers[rogue.needs]:
        pytest.skip(f"this kernel has no {rogue.needs}")


@pytest.mark.parametrize("rogue", [pytest.param(one, marks=BESIDE if one.is_never_run else ()) for one in ROGUES], ids=STEMS)
def test_a_rogue_ends_where_it_should(rogue, evaluators, offers):
    need(rogue, offers)
    verdict = judged(evaluators(rogue.case), rogue.kernel)
    assert (verdict.status, verdict.gate) in rogue.expected, verdict.message
    assert verdict.message


@pytest.mark.parametrize("rogue", ALONE, ids=lambda rogue: rogue.path.stem)
def test_without_its_gate_a_rogue_passes(rogue, evaluators, offers):
    need(rogue, offers)
    ((_, gate),) = rogue.expected
    verdicts = (
        judged(evaluators(rogue.case, frozenset({gate})), rogue.kernel, np.random.SeedSequence(n)) for n in range(TRIES)
    )
    for verdict in verdicts:
        if verdict.status is Status.PASSED:
            return
        assert verdict.gate == "timed-outputs", (verdict.gate, verdict.message)
    pytest.fail(f"caught in each of {TRIES} trials: {verdict.message}")


def test_every_gate_on_results_has_a_rogue_of_its_own():
    gates = {gate.name for gate in Hgemm((USUAL_CASE,)).gates} | set(JUDGED_BESIDE_THE_SUITE)
    everywhere = [rogue for rogue in ALONE if rogue.machine is None and rogue.needs is None]
    shown = {gate for rogue in everywhere for _, gate in rogue.expected}
    assert all(len(rogue.expected) == 1 for rogue in ALONE)
    assert gates - shown == set(NOT_NEEDED_ALONE)
    assert shown <= gates


@pytest.mark.parametrize("name", ["wrong_stride", "transposes_b"])
def test_a_square_problem_alone_would_not_do(name, evaluators):
    rogue = read(GALLERY / f"{name}.c")
    square = judged(evaluators((96, 112, 112, 1)), rogue.kernel)
    assert (square.status is Status.PASSED) == (name == "wrong_stride")
    assert judged(evaluators(USUAL_CASE), rogue.kernel).status is Status.INCORRECT


def test_inputs_do_not_follow_from_the_public_seed(cache, monkeypatch):
    seen = []

    class Recording(Judge):
        def judge(self, stage, seed):
            seen.append(tuple(seed.generate_state(4)))
            return Failure(Status.INCORRECT, "none", "not asked")

    monkeypatch.setattr("evo_l2.targets.cpu.evaluator.Judge", Recording)
    for _ in range(2):
        with CpuEvaluator(Hgemm((USUAL_CASE,), "fp32", ("nn", "nt")), cache, SETTINGS) as evaluator:
            for key in ((3, 1), (3, 1), (4, 1)):
                judged(evaluator, read(GALLERY / "zeros.c").kernel, np.random.SeedSequence(20, spawn_key=key))
    first, again, other, *elsewhere = seen
    assert first == again != other
    assert not {first, other} & set(elsewhere)
    assert first != tuple(np.random.SeedSequence(20, spawn_key=(3, 1)).spawn(2)[0].generate_state(4))


CALLS = {
    "open": ("int open(const char *path, int flags, ...);", 'C[0] = (_Float16)open("/etc/passwd", 0);'),
    "write": ("long write(int file, const void *from, unsigned long n);", "write(1, A, 64);"),
    "printf": ("int printf(const char *text, ...);", 'for (;;) printf("on and on");'),
    "malloc": ("void *malloc(unsigned long n);", "for (;;) *(volatile char *)malloc(1UL << 30) = 1;"),
    "fork": ("int fork(void);", "while (fork() >= 0) ;"),
    "socket": ("int socket(int family, int type, int protocol);", "socket(2, 1, 0);"),
    "pthread_create": (
        "int pthread_create(unsigned long *id, const void *how, void *(*run)(void *), void *what);",
        "unsigned long id; pthread_create(&id, 0, (void *(*)(void *))hgemm, C);",
    ),
    "kill": ("int kill(int process, int signal); int getppid(void);", "kill(getppid(), 9);"),
    "signal": ("void (*signal(int number, void (*handler)(int)))(int);", "signal(11, (void (*)(int))1);"),
    "mmap": (
        "void *mmap(void *at, unsigned long n, int access, int flags, int file, long offset);",
        "mmap(A, 4096, 7, 0x32, -1, 0);",
    ),
    "exit": ("void exit(int code);", "exit(0);"),
    "abort": ("void abort(void);", "abort();"),
    "siglongjmp": ("void siglongjmp(void *where, int value);", "siglongjmp((void *)A, 1);"),
    "syscall": ("long syscall(long number, ...);", "syscall(57);"),
    "dlsym": ("void *dlsym(void *library, const char *name);", '((void (*)(int))dlsym(0, "_exit"))(0);'),
    "fesetround": ("int fesetround(int mode);", "fesetround(0xc00);"),
    "clock": ("long clock(void);", "if (clock() % 2) return;"),
    "system": ("int system(const char *command);", 'system("id");'),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.beside
def test_a_library_call_is_refused_by_its_symbol(name, evaluators):
    declaration, call = CALLS[name]
    entry = "void hgemm(_Float16 *A, _Float16 *B, _Float16 *C, int M, int N, int K)"
    header = "//! layout nn\n//! launch hgemm(A: in, B: in, C: out, M, N, K)\n"
    verdict = judged(evaluators(USUAL_CASE), Kernel(f"{header}{declaration}\n{entry}\n{{\n    {call}\n}}\n", "cpu"))
    assert (verdict.status, verdict.gate) == (Status.UNLAUNCHABLE, "symbols")
    assert name in verdict.message


def test_bytes_that_are_no_text_are_no_kernel():
    naive = (GALLERY / "writes_nothing.c").read_bytes()
    for data, found in ((naive + b"// \xff\xfe", "UTF-8"), (naive + b"\0", "NUL")):
        with pytest.raises(KernelError, match=found):
            Kernel.from_bytes(data, "cpu")


@pytest.mark.beside
def test_a_hundred_megabytes_of_source_are_refused_unread(evaluators):
    source = (GALLERY / "writes_nothing.c").read_text(encoding="utf-8")
    long = source + "// and so on\n" * (100 * 2**20 // 13)
    with pytest.raises(KernelError, match="too long"):
        Kernel.from_bytes(long.encode(), "cpu")
    verdict = judged(evaluators(USUAL_CASE), Kernel(long, "cpu"))
    assert (verdict.status, verdict.gate) == (Status.REJECTED, "size")
    assert len(source) < LONGEST_SOURCE_BYTES
