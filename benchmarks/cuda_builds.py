"""From a raw CUDA kernel to its report (screen, plan, build, read, gates), by nvcc and by NVRTC, without a card.

Run with: python benchmarks/cuda_builds.py [--kernels 24] [--card A100] [--builder nvrtc]

Every kernel is new to the cache: another setting of a seed's tunables. A row of the table is the median over a quarter of
`--kernels` (at least three), one at a time, once everything is warm: processor seconds of this process and of all that it
started (the compiler, the disassembler), wall seconds, and processor milliseconds of the same source once more, answered from
the cache. The last row is of `--kernels` of each seed, mixed, two at a time: how many a minute by the clock, and how many two
cores would make by processor time alone, which says more where others use them too.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from evo_l2.errors import EvoL2Error
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.build_only import BuildOnlyEvaluator
from evo_l2.targets.cuda.cards import find_card
from evo_l2.targets.cuda.toolchain.compiler import BUILDERS
from experiments.seeds import load_seeds, seed_names

SEEDS = ("naive_nn", "tiled_nn", "wmma_nn", "mma_nn")
PROBLEM = Hgemm(((4096, 4096, 4096, 1),))


def variants(seed: Kernel, count: int, rng: np.random.Generator) -> list[Kernel]:
    """Different settings of a seed's tunables."""
    found: dict[str, Kernel] = {}
    while len(found) < count:
        kernel = seed.with_tunables({t.name: int(rng.choice(t.domain)) for t in seed.tunables})
        kernel = Kernel(f"{kernel.source}// {len(found)} {rng.integers(2**31)}\n", "cuda")
        found[kernel.digest] = kernel
    return list(found.values())


def cpu_s() -> float:
    """Processor seconds of this process, of children that ended, and of those that live on."""
    ended, own = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    total = ended.ru_utime + ended.ru_stime + own.ru_utime + own.ru_stime
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if _descends(int(entry.parent.name)):
            total += sum(int(field) for field in fields[11:15]) / tick
    return total


def _descends(process: int) -> bool:
    """Whether a living process is a child of this one, however far down."""
    while process > 1:
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return False
        if process == os.getpid():
            return True
    return False


def measure(builder: str, card: str, count: int) -> None:
    """Prints one line a seed, then kernels a minute with two at a time."""
    rng = np.random.default_rng(1)
    kernels = dict(zip(seed_names("cuda", "nn"), load_seeds("cuda", "nn"), strict=True))
    with (
        tempfile.TemporaryDirectory() as folder,
        BuildOnlyEvaluator(PROBLEM, Path(folder), find_card(card), builder=builder) as evaluator,
    ):
        for kernel in variants(kernels["naive_nn"], 2, rng):
            evaluator.prepare(kernel)
        name = evaluator.compiler.builder
        for seed in SEEDS:
            rows = []
            for kernel in variants(kernels[seed], max(3, count // 4), rng):
                begin, cpu = time.perf_counter(), cpu_s()
                evaluator.prepare(kernel)
                wall, spent = time.perf_counter() - begin, cpu_s() - cpu
                middle = time.process_time()
                evaluator.prepare(Kernel(kernel.source, "cuda"))
                rows.append((spent, wall, time.process_time() - middle))
            spent, wall, again = np.median(np.array(rows), axis=0)
            print(f"| {name} | {seed} | {spent:.2f} | {wall:.2f} | {1000 * again:.1f} |", flush=True)
        mixed = [kernel for seed in SEEDS for kernel in variants(kernels[seed], count, rng)]
        order = rng.permutation(len(mixed))
        begin, cpu = time.perf_counter(), cpu_s()
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda i: evaluator.prepare(mixed[i]), order))
        seconds, spent = time.perf_counter() - begin, cpu_s() - cpu
        n_built = sum(prepared.build is not None for prepared in done)
        rates = f"{60 * len(done) / seconds:.0f} a minute, {120 * len(done) / spent:.0f} by processor time"
        print(f"| {name} | all, two at a time: {rates}, {n_built} of {len(done)} built | | | |", flush=True)


def main() -> None:
    """One table over both builders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=24)
    parser.add_argument("--card", default="A100")
    parser.add_argument("--builder", choices=BUILDERS, action="append")
    arguments = parser.parse_args()
    print("| builder | kernel | CPU s to the report | wall s | again from the cache, CPU ms |")
    print("|---|---|---|---|---|")
    for builder in arguments.builder or BUILDERS:
        try:
            measure(builder, arguments.card, arguments.kernels)
        except EvoL2Error as error:
            print(f"| {builder} | {error} | | | |")


if __name__ == "__main__":
    main()
