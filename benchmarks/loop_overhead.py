"""Wall time of the loop itself per candidate: instant evaluator, no model, at 1,000 and at 50,000 stored candidates.

Run with: python benchmarks/loop_overhead.py [SMALL LARGE]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from instant import InstantEvaluator, kernel_source

from archive.store import Store
from evo_l2.budget import Budget, Limits
from evo_l2.kernel import Kernel
from evo_l2.pipeline import Pipeline, PipelineSettings
from evo_l2.problems.hgemm import Hgemm
from evo_l2.quiet import Quiet
from evo_l2.search import Search, SearchSettings
from mutators.operators import Parametric

_SOURCE_BYTES = 6000
_WINDOW = 500


def main(small: int, large: int) -> None:
    """Runs to `large` candidates in one database and prints the mean over the last 500 before each mark."""
    problem = Hgemm(((64, 64, 64, 1),))
    times = []
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "bench.db") as store:
        evaluator = InstantEvaluator()
        seed = Kernel(kernel_source(_SOURCE_BYTES), "cpu")
        run = store.start_run("bench", problem, evaluator.environment, "cpu", {}, 1)
        run.add_seed(seed)
        operators = {"parametric": (Parametric(), 1.0)}
        pipeline = Pipeline(
            problem=problem,
            seeds=[seed],
            search=Search(run.rewind(), operators, 1, SearchSettings()),
            archive=run,
            evaluator=evaluator,
            quiet=Quiet(),
            budget=Budget(Limits(evaluations=large)),
            settings=PipelineSettings(),
            told=lambda candidate, result, replayed: times.append(time.perf_counter()),
        )
        pipeline.run()
        n_bytes = sum(path.stat().st_size for path in Path(folder).iterdir())
    print("| stored candidates | ms a candidate |")
    print("|---|---|")
    for mark in (small, large):
        window = min(_WINDOW, mark - 1)
        print(f"| {mark:,} | {1000 * (times[mark - 1] - times[mark - 1 - window]) / window:.2f} |")
    print(f"\n{n_bytes / large:,.0f} bytes a candidate on disk, {_SOURCE_BYTES:,} of them source before compression")


if __name__ == "__main__":
    main(*([int(word) for word in sys.argv[1:3]] or [1000, 50_000]))
