"""What a candidate costs on a card, by size, and how fast the loop turns there.

Run with: python benchmarks/card_loop.py [--seconds 60] [--cards 1] [--sizes 256 1024 4096 8192]

The first table has single candidates: a seed at other settings of its tunables, built beforehand, from the first gate to the
last sample. The second has whole runs of `hgemm-auto` with parametric moves alone: one whose builds are fresh, then the same
seed again, whose builds are cached, so that what is left between two measurements is the host's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from archive.store import Store
from evo_l2.contracts import Candidate, Outcome
from evo_l2.evaluation import Status
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.evaluator import CudaEvaluator
from experiments.config import load_config
from experiments.parts import open_rig
from experiments.progress import Progress
from experiments.run import execute
from experiments.sections import CudaConfig, LimitsConfig, TimingConfig
from experiments.seeds import load_seeds, seed_names

_N_CANDIDATES = 6


def variants(kernel: Kernel, count: int) -> list[Kernel]:
    """A kernel at settings of its tunables drawn at random, the first as it is."""
    rng = np.random.default_rng(1)
    found = {kernel.digest: kernel}
    for _ in range(50 * count):
        if len(found) == count:
            break
        other = kernel.with_tunables({t.name: int(rng.choice(t.domain)) for t in kernel.tunables})
        found[other.digest] = other
    return list(found.values())


def candidates(size: int, kernel: Kernel) -> tuple[int, float, float]:
    """How many of a seed's variants passed at one size, and the median and longest seconds of those."""
    taken: list[float] = []
    rig = open_rig(CudaConfig(), TimingConfig(blocks=8), LimitsConfig())
    with CudaEvaluator(Hgemm(((size, size, size, 1),), "fp32", ("nn",)), rig) as evaluator:
        prepared = [each for each in map(evaluator.prepare, variants(kernel, _N_CANDIDATES)) if each.verdict is None]
        for number, each in enumerate((prepared[0], *prepared)):
            begin = time.perf_counter()
            evaluation = evaluator.measure(each, np.random.SeedSequence(number))
            # The first one finds the fastest library, which is done once.
            if number > 0 and evaluation.status is Status.PASSED:
                taken.append(time.perf_counter() - begin)
    return len(taken), statistics.median(taken), max(taken)


def run_once(seconds: float, cards: int, db: Path) -> list[Candidate]:
    """The candidates of one run."""
    overrides = [
        "generator.kind=none", "search.operators={parametric: 1}", f"budget.wall_s={seconds}", "timing.finalists=0",
        f"workers.cards={cards}",
    ]  # fmt: skip
    execute(load_config("hgemm-auto", overrides), db=db, observer=Progress())
    with Store.open(db, create=False) as store:
        return list(store.open_run().history())


def row(name: str, found: list[Candidate], cards: int) -> str:
    """A run in numbers: what lies between two measurements is the wall time that no card was at work."""
    measured = [each for each in found if "measure" in each.seconds]
    wall = sum(each.seconds["wall"] for each in found)
    at_work = sum(each.seconds["measure"] for each in measured) / cards
    gaps = 1000 * max(0.0, wall - at_work) / max(1, len(measured))
    n_right = sum(each.evaluation is not None and each.evaluation.status.is_good for each in found)
    n_built = sum(each.outcome is Outcome.EVALUATED for each in found)
    median = statistics.median(each.seconds["measure"] for each in measured)
    return (
        f"| {name} | {len(found)} | {n_built} | {n_right} | {60 * len(found) / wall:.0f} | {60 * len(measured) / wall:.0f} "
        f"| {median:.3f} | {gaps:.0f} |"
    )


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 1024, 4096, 8192])
    arguments = parser.parse_args()
    seeds = dict(zip(seed_names("cuda", "nn"), load_seeds("cuda", "nn"), strict=True))
    print("| M = N = K | seed | candidates | median, s | longest, s |\n|---|---|---|---|---|")
    for size in arguments.sizes:
        for name in ("hopper_nn", "mma_nn"):
            with contextlib.suppress(IndexError, statistics.StatisticsError):
                n_passed, median, longest = candidates(size, seeds[name])
                print(f"| {size} | `{name}` | {n_passed} | {median:.3f} | {longest:.3f} |", flush=True)
    print("\n| run | told | judged | right | told a minute | measured a minute | median, s | between two, ms |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for name in ("fresh builds", "builds cached"):
            found = run_once(arguments.seconds, arguments.cards, Path(folder) / f"{name.split()[0]}.db")
            print(row(name, found, arguments.cards), flush=True)


if __name__ == "__main__":
    main()
