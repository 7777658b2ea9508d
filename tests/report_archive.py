"""Archives for the tests of the report: a search that looks like a real one, and one whose every text is hostile."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import re
from pathlib import Path

from archive.store import RunHandle, Store
from evo_l2.contracts import Candidate, Message, ModelCall, Outcome, Reply
from evo_l2.evaluation import BuildReport, CaseTiming, Environment, Evaluation, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm

PROBLEM = Hgemm(((256, 256, 256, 1), (512, 512, 512, 1)))
ENVIRONMENT = Environment(
    "cpu",
    {"processor": "AMD EPYC", "memory": "32 GiB", "baseline": "OpenBLAS 0.3.31; one thread", "harness": "4"},
    {"host": "here", "system": "Linux 6.18"},
)
SEED_SOURCE = (Path(__file__).parent.parent / "experiments/seeds/cpu/blocked_nn.c").read_text(encoding="utf-8")
HOSTILE = (
    "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=2'>\"'`<!--]]>&lt;b&gt;<b>bold</b>"
    '<a href="javascript:window.pwned=3">x</a>%{y}${7*7}\u2028\u2029\u202e\x00\x1b[31m\ud800'
)
"""Text that would run, load, close or reorder something wherever it is not escaped."""


def timed(
    rng: random.Random, speedup: float, purpose: str = "search", n_blocks: int = 12, n_kept: int | None = None
) -> TimingSession:
    """A session whose blocks scatter by 3 % about a speed-up."""
    cases = []
    for scale, sizes in zip((1.0, 7.6), PROBLEM.cases, strict=True):
        baseline = [500.0 * scale * rng.uniform(0.97, 1.03) for _ in range(n_blocks)]
        kernel = [time / speedup * math.exp(rng.gauss(0, 0.03)) for time in baseline]
        kept = [i < (n_blocks if n_kept is None else n_kept) for i in range(n_blocks)]
        cases.append(CaseTiming(sizes, tuple(kernel), tuple(baseline), tuple(kept)))
    return TimingSession(tuple(cases), purpose)


def grow(run: RunHandle, n: int, seed: int = 1, *, padding: int = 0) -> None:
    """Adds a search of `n` candidates: two seeds, offspring that gain a little or fail, repeats, replies without a kernel."""
    rng = random.Random(seed)
    sources = {0: SEED_SOURCE, 1: SEED_SOURCE.replace("UNROLL 1", "UNROLL 2")}
    alive: list[tuple[float, Kernel, str]] = []
    for index in range(n):
        if index < 2:
            operator, parents, speed, text = "seed", (), 0.02 * (1 + 9 * index), sources[index]
            chosen: list[tuple[float, Kernel, str]] = []
        else:
            operator = rng.choices(("parametric", "edit", "rewrite", "crossover"), (10, 3, 2, 2))[0]
            pool = sorted(alive, key=lambda one: -one[0])[:12]
            chosen = rng.sample(pool, min(len(pool), 2 if operator == "crossover" else 1))
            parents = tuple(one[1].digest for one in chosen)
            speed = chosen[0][0] * math.exp(rng.gauss(0.02, 0.18))
            text = chosen[0][2]
        for _ in range(rng.randint(1, 3) if index > 1 else 0):
            name = rng.choice(("VL", "MR", "NV", "MC", "NC", "KC", "UNROLL", "AHEAD"))
            text = re.sub(rf"#define {name} \d+", f"#define {name} {rng.choice((1, 2, 4, 8, 16, 32, 64, 128))}", text)
        source = re.sub(r"\n// made as .*$", "", text, flags=re.DOTALL).rstrip("\n") + f"\n// made as {run.name} {index}\n"
        source += "// a line of padding, as long as those of other kernels are\n" * (padding // 60)
        kernel = Kernel(source, "cpu")
        run.add(_candidate(rng, run, index, operator, parents, kernel, speed, chosen))
        with contextlib.suppress(KeyError):
            run.get(kernel.digest)
            alive.append((speed, kernel, source))
    ranked = [elite for _, elite in zip(range(3), run.ranked(), strict=False)]
    for elite in ranked:
        assert elite.estimate is not None
        run.add_session(elite.kernel.digest, timed(rng, elite.estimate.speedup * 0.97, "final", 40))


def add_one(run: RunHandle, speedup: float) -> str:
    """Adds a right kernel of a speed-up, measured once; its digest."""
    kernel = Kernel(f"{SEED_SOURCE}// {run.n_candidates} at {speedup}\n", "cpu")
    build = BuildReport(0.1, "", f"code-{kernel.digest}", {})
    verdict = Verdict(Status.PASSED, build=build, measures=(256.0, 4.0, 0.0))
    evaluation = Evaluation(verdict, timed(random.Random(1), speedup), 0.1)
    index, identity = run.n_candidates, f"id-{kernel.digest}"
    run.add(Candidate(index, "edit", (), index, Outcome.EVALUATED, kernel=kernel, identity=identity, evaluation=evaluation))
    return kernel.digest


def _candidate(
    rng: random.Random,
    run: RunHandle,
    index: int,
    operator: str,
    parents: tuple[str, ...],
    kernel: Kernel,
    speed: float,
    chosen: list[tuple[float, Kernel, str]],
) -> Candidate:
    model = operator in ("edit", "rewrite", "crossover")
    calls = (_call(rng, kernel),) if model else ()
    seconds = {
        "propose": 2.0 if model else 0.001,
        "build": rng.uniform(0.2, 0.6),
        "measure": rng.uniform(0.5, 1.5),
        "wall": 3.0,
    }
    common = {
        "index": index,
        "operator": operator,
        "parents": parents,
        "asked_after": index,
        "calls": calls,
        "seconds": seconds,
    }
    fate = rng.random() if index > 1 else 0.0
    if fate > 0.92 and chosen:
        return Candidate(
            **common, outcome=Outcome.DUPLICATE, message="known before", kernel=chosen[0][1], duplicate_of=chosen[0][1].digest
        )
    if fate > 0.86 and model:
        return Candidate(
            **common, outcome=rng.choice((Outcome.NO_KERNEL, Outcome.EDIT_FAILED)), message="the reply held no kernel"
        )
    build = BuildReport(
        rng.uniform(0.2, 0.5), "", f"code-{kernel.digest}",
        {"simd_bits": rng.choice((0, 128, 256)), "n_fma": rng.randint(0, 90), "code_bytes": rng.randint(900, 9000),
         "stack_bytes": 264, "workspace_bytes": rng.choice((0, 4096, 172032))},
    )  # fmt: skip
    measures = tuple(float(build.resources[axis.name]) for axis in run.schema.axes)
    if fate > 0.7:
        status, gate, message = rng.choice(
            (
                (Status.BUILD_ERROR, "compile", "kernel.c:41:9: error: 'vec' undeclared"),
                (Status.INCORRECT, "exact-integers", "C[3][17] is 1904, and should be 1903"),
                (Status.INCORRECT, "error-bound", "C[0][0] is off by 0.5, and at most 0.01 is right"),
                (Status.REJECTED, "includes", "line 3: <stdio.h> is not allowed"),
                (Status.TIMEOUT, "deadline", "it did not end within 10 s"),
            )
        )
        built = status in (Status.INCORRECT, Status.TIMEOUT)
        verdict = Verdict(status, gate, message, build if built else None, measures if built else None)
        identity = f"id-{kernel.digest}" if built else None
        evaluation = Evaluation(verdict, None, 0.2)
        return Candidate(**common, outcome=Outcome.EVALUATED, kernel=kernel, identity=identity, evaluation=evaluation)
    session = timed(rng, speed, n_kept=2 if fate > 0.67 else None)
    evaluation = Evaluation(Verdict(Status.PASSED, build=build, measures=measures), session, 1.0)
    return Candidate(
        **common, outcome=Outcome.EVALUATED, kernel=kernel, identity=f"id-{kernel.digest}", evaluation=evaluation
    )


def _call(rng: random.Random, kernel: Kernel) -> ModelCall:
    prompt = (Message("system", "You write kernels."), Message("user", kernel.source))
    return ModelCall("openai:some-coder", prompt, Reply(kernel.source, 1800, 700, rng.uniform(1, 9), 0.0031), 1, 2048)


def archive_of(path: Path, n: int, *, seed: int = 1, runs: int = 1, padding: int = 0) -> Path:
    """An archive with runs of `n` candidates each; the last run is of another environment, where there are three or more."""
    with Store.open(path) as store:
        for number in range(runs):
            place = ENVIRONMENT
            if number >= 2:
                place = dataclasses.replace(ENVIRONMENT, identity={**ENVIRONMENT.identity, "processor": "another"})
            run = store.start_run("search", PROBLEM, place, "cpu", {}, seed)
            grow(run, n, seed + number, padding=padding)
            run.finish({})
    return path


def hostile_archive(path: Path) -> Path:
    """An archive whose names, messages, sources, replies, resources and environment are all hostile."""
    rng = random.Random(3)
    bad = {f"a{HOSTILE}": HOSTILE, "baseline": HOSTILE}
    environment = Environment(
        "cpu", {k.replace("\ud800", ""): v.replace("\ud800", "") for k, v in bad.items()}, {"host": "x"}
    )
    with Store.open(path) as store:
        stem = HOSTILE.replace("\ud800", "").replace("\x00", "")
        run = store.start_run(stem, PROBLEM, environment, "cpu", {"seeds": HOSTILE.replace("\ud800", "")}, 1)
        digests: tuple[str, ...] = ()
        for index, speed in enumerate((0.5, 0.7, 0.9)):
            kernel = Kernel(f"//! layout {HOSTILE}\n\n#define T {index} //? {HOSTILE}\n{HOSTILE}\n", "cpu")
            build = BuildReport(0.1, HOSTILE, f"code{index}{stem}", {stem: stem, "simd_bits": 256})
            verdict = Verdict(Status.PASSED, build=build, measures=(256.0, float(index * 9), math.nan))
            call = ModelCall(stem, (Message("user", HOSTILE),), Reply(HOSTILE, 1, 1, 0.1, error=HOSTILE), 1, 10)
            evaluation = Evaluation(verdict, timed(rng, speed, stem), 0.1)
            operator, identity = stem if index else "seed", f"id{index}{stem}"
            run.add(
                Candidate(index, operator, digests[-1:], index, Outcome.EVALUATED, kernel=kernel, identity=identity,
                          evaluation=evaluation, calls=(call,))
            )  # fmt: skip
            digests = (*digests, kernel.digest)
        wrong = Kernel(f"//! layout nn\n{HOSTILE} wrong", "cpu")
        failed = Evaluation(Verdict(Status.INCORRECT, stem, HOSTILE), None, 0.1)
        run.add(Candidate(3, stem, digests[:1], 3, Outcome.EVALUATED, kernel=wrong, identity=None, evaluation=failed))
        run.add(Candidate(4, stem, digests[:1], 4, Outcome.NO_KERNEL, HOSTILE))
    return path
