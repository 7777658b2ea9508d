"""Candidates of every kind, made from a few numbers: for the benchmark and the tests of the archive."""

import dataclasses
import random

from evo_l2.contracts import Candidate, Message, ModelCall, Outcome, Reply
from evo_l2.evaluation import BuildReport, CaseTiming, Environment, Evaluation, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm

PROBLEM = Hgemm(((64, 64, 64, 1),))
ENVIRONMENT = Environment("cpu", {"processor": "one", "harness": "1"}, {"host": "here"})
SCHEMA = PROBLEM.measures("cpu")


def kernel(number: int, n_bytes: int = 0) -> Kernel:
    """A kernel of its own for every number, padded to a size."""
    text = f"//! layout nn\n//! launch hgemm(A: in, B: in, C: out, M, N, K)\n#define T {number}\n"
    line = f"// {number}: a line of padding that makes the source as long as a real kernel's\n"
    return Kernel(text + line * (max(0, n_bytes - len(text)) // len(line) + (n_bytes > 0)), "cpu")


def session(
    seed: int, speedup: float = 1.0, n_blocks: int = 6, purpose: str = "search", conclusive: bool = True
) -> TimingSession:
    """A session whose blocks scatter by 5 % about a speed-up."""
    rng = random.Random(seed)
    times = tuple(100.0 / speedup * rng.uniform(0.95, 1.05) for _ in range(n_blocks))
    kept = tuple(conclusive or i == 0 for i in range(n_blocks))
    return TimingSession((CaseTiming((64, 64, 64, 1), times, (100.0,) * n_blocks, kept),), purpose)


def verdict(number: int, measures: tuple[float | None, ...] = (256.0, 4.0, 0.0), status: Status = Status.PASSED) -> Verdict:
    """A verdict with a build."""
    build = BuildReport(0.1, f"log {number}", f"code-{number}", {"simd_bits": 256, "note": "é"})
    if status.is_good:
        return Verdict(status, build=build, measures=measures)
    if status in (Status.REJECTED, Status.BUILD_ERROR):
        return Verdict(status, "screen", f"kernel {number} is refused")
    return Verdict(status, "exact-integers", f"C[{number}] differs", build, measures)


def evaluated(
    index: int,
    number: int,
    *,
    speedup: float = 1.0,
    measures: tuple[float | None, ...] = (256.0, 4.0, 0.0),
    status: Status = Status.PASSED,
    identity: str | None = None,
    parents: tuple[str, ...] = (),
    operator: str = "seed",
    conclusive: bool = True,
    n_bytes: int = 0,
    n_calls: int = 0,
    timed: TimingSession | None = None,
) -> Candidate:
    """A candidate that was evaluated."""
    timing = timed if timed is not None else session(number, speedup, conclusive=conclusive)
    passed = status is Status.PASSED
    built = status not in (Status.REJECTED, Status.BUILD_ERROR)
    return Candidate(
        index=index,
        operator=operator,
        parents=parents,
        asked_after=max(0, index - 1),
        outcome=Outcome.EVALUATED,
        kernel=kernel(number, n_bytes),
        identity=identity or (f"identity-{number}" if built else None),
        evaluation=Evaluation(verdict(number, measures, status), timing if passed else None, 0.25),
        calls=tuple(call(100 * index + i, n_bytes) for i in range(n_calls)),
        seconds={"propose": 0.5, "build": 0.1, "measure": 0.25, "wall": 0.9},
    )


def duplicate(
    index: int, number: int, original: Kernel, *, identity: str | None = None, parents: tuple[str, ...] = ()
) -> Candidate:
    """A candidate that repeats a known kernel."""
    return Candidate(
        index, "parametric", parents, index, Outcome.DUPLICATE, "known before", kernel(number), identity,
        duplicate_of=original.digest, seconds={"wall": 0.1},
    )  # fmt: skip


def failed(index: int, outcome: Outcome = Outcome.NO_KERNEL, *, parents: tuple[str, ...] = (), n_calls: int = 1) -> Candidate:
    """A candidate that never became a kernel."""
    calls = tuple(call(100 * index + i) for i in range(n_calls))
    return Candidate(index, "rewrite", parents, index, outcome, "the reply held no kernel", calls=calls)


def call(seed: int, n_bytes: int = 0) -> ModelCall:
    """A model call whose system message is that of every other, and whose prompt and reply hold a source."""
    system = "You write kernels. " * (1 + n_bytes // 40)
    prompt = (Message("system", system), Message("user", f"Improve number {seed}, please:\n{kernel(seed, n_bytes).source}"))
    return ModelCall("recorded", prompt, Reply(kernel(seed + 1, n_bytes).source, 1200, 900, 1.5, 0.002, 1), seed, 2048)


def renumbered(candidate: Candidate, index: int) -> Candidate:
    """The same candidate under another index."""
    return dataclasses.replace(candidate, index=index)
