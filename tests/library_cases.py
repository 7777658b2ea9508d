"""What the tests of libraries share: kernels as winners, and archives in which they were measured, without a measurement."""

import math

from archive import Store
from evo_l2.contracts import Candidate, Outcome
from evo_l2.evaluation import BuildReport, CaseTiming, Environment, Estimate, Evaluation, Status, TimingSession, Verdict
from evo_l2.problems.hgemm import Hgemm
from experiments.library.winners import Winner
from experiments.seeds import load_seeds, seed_names

H200 = Environment(
    "cuda",
    {
        "arch": "sm_90a", "multiprocessors": "132", "compiler": "nvrtc 13.2.86", "harness": "4", "card": "NVIDIA H200",
        "memory": "140 GiB",
    },
)  # fmt: skip


def seeds(target, layout):
    """Every built-in kernel of a layout by the name of its idea."""
    names = [name.rpartition("_")[0] for name in seed_names(target, layout)]
    return dict(zip(names, load_seeds(target, layout), strict=True))


def winner(kernel, sizes, sums="fp32", speedup=1.25):
    """A kernel as the best for one shape."""
    log = math.log(speedup)
    return Winner(
        kernel, kernel.launch.layout, sums, sizes, Estimate(log, log - 0.02, log + 0.02, 12), 10.0, 10.0 * speedup, 2,
        "machine code", "0123456789abcdef",
    )  # fmt: skip


def session(cases, speedups, purpose="search", conclusive=True):
    """A session with a speed-up for each case, whose blocks scatter by a per cent."""
    n_blocks = 8
    timings = []
    for sizes, speedup in zip(cases, speedups, strict=True):
        times = tuple(100.0 / speedup * (1 + 0.01 * math.sin(i)) for i in range(n_blocks))
        kept = tuple(conclusive or i == 0 for i in range(n_blocks))
        timings.append(CaseTiming(sizes, times, (100.0,) * n_blocks, kept))
    return TimingSession(tuple(timings), purpose)


def fill(path, environment, *runs):
    """An archive of runs, each a problem and its kernels with a speed-up for each case."""
    with Store.open(path) as store:
        for problem, kernels in runs:
            assert isinstance(problem, Hgemm)
            run = store.start_run("run", problem, environment, environment.target, {}, 1)
            for index, (kernel, speedups) in enumerate(kernels):
                n_axes = len(problem.measures(environment.target).axes)
                build = BuildReport(0.1, "", f"code of {kernel.digest[:8]}", {})
                verdict = Verdict(Status.PASSED, build=build, measures=(1.0,) * n_axes)
                evaluation = Evaluation(verdict, session(problem.cases, speedups), 0.1)
                run.add(
                    Candidate(
                        index=index, operator="seed", parents=(), asked_after=0, outcome=Outcome.EVALUATED, kernel=kernel,
                        identity=f"identity of {kernel.digest}", evaluation=evaluation,
                    )
                )  # fmt: skip
    return path
