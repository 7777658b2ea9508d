"""How an archive of 6 KB programs behaves as it grows: `python benchmarks/archive_scale.py [--sizes 1000,30000] [--calls N]`.

Each archive is filled in bulk with the rows that `add` writes (`archive_filler.py`), then used as a search uses it. Prints a
markdown table:

- *add/s*: new kernels, each durable in a transaction of its own, every second one timed, so that the bootstrap of its
  interval counts too; of wall time, of this process's own CPU time, and of the wall time that the quickest quarter of
  each kind stays below (the machine may be busy with something else).
- *sample/s*: a parent and two inspirations: three different elites with their sources, verdicts and samples, drawn
  evenly after each of these additions, as `Search` reads them.
- *ask/s*: the same through `Search.ask_group` with its tournament, for one operator that takes three parents.
- *KB/candidate*: the whole file, prompts and replies included (with `--calls 1`).
- *open*: `Store.open` and `open_run`, in a process that has not seen the file; *top*, *stats*: `archive.mining` on a store
  that was just opened.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import archive_cases as cases
import archive_filler

from archive import mining
from archive.store import Store
from evo_l2.search import Search, SearchSettings

_N_ADDED = 1000


class _Crossover:
    """An operator that takes three parents."""

    n_parents = 3
    uses_model = False

    def takes(self, kernel):
        return True

    def propose(self, problem, requests):
        raise NotImplementedError


def timed(call):
    """What a call returns, and its wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def add_and_sample(run, n_calls):
    """Wall and CPU seconds of additions, and of a sample after each; the lower quartile of an addition's wall seconds."""
    rng = random.Random(1)
    candidates = [archive_filler.candidate(run.n_candidates + i, n_calls) for i in range(_N_ADDED)]
    spent = [0.0, 0.0, 0.0, 0.0]
    single: tuple[list[float], list[float]] = ([], [])
    n_bytes = 0
    for candidate in candidates:
        _, wall, cpu = timed(lambda candidate=candidate: run.add(candidate))
        chosen, sample_wall, sample_cpu = timed(lambda: rng.sample(run.elites(), 3))
        n_bytes += sum(len(elite.kernel.source) for elite in chosen)
        single[candidate.index % 2].append(wall)
        spent = [a + b for a, b in zip(spent, (wall, cpu, sample_wall, sample_cpu), strict=True)]
    assert n_bytes > 0
    undisturbed = [sorted(walls)[len(walls) // 4] for walls in single]
    return *spent, sum(undisturbed) / 2


def asks(run):
    """Calls of `Search.ask_group` a CPU second."""
    search = Search(run, {"crossover": (_Crossover(), 1.0)}, 1, SearchSettings())
    _, _, cpu = timed(lambda: [search.ask_group(run.n_candidates + i, 1) for i in range(100)])
    return 100 / cpu


def measure(path, size, n_calls):
    """One line of the table."""
    if not path.exists():
        begin = time.perf_counter()
        with Store.open(path) as store:
            run = store.start_run("bench", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
            archive_filler.fill(store, run, size, n_calls)
        print(f"{size:,} filled in {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)

    def opened():
        store = Store.open(path, create=False)
        return store, store.open_run()

    (store, run), open_s, open_cpu_s = timed(opened)
    with store:
        kb = store.n_bytes / 1000 / run.n_candidates
        first_s = timed(run.elites)[1]
        add, add_cpu, sample, sample_cpu, undisturbed = add_and_sample(run, n_calls)
        n_asks = asks(run)
    with Store.open(path, create=False) as store:
        _, top_s, top_cpu_s = timed(lambda: mining.top(store))
    with Store.open(path, create=False) as store:
        _, stats_s, stats_cpu_s = timed(lambda: mining.stats(store))
    return (
        f"| {size:,} | {_N_ADDED / add:,.0f} | {_N_ADDED / add_cpu:,.0f} | {1 / undisturbed:,.0f} | {_N_ADDED / sample:,.0f}"
        f" | {_N_ADDED / sample_cpu:,.0f} | {n_asks:,.0f} | {kb:.1f} | {open_s:.3f} ({open_cpu_s:.3f}) | {first_s:.3f}"
        f" | {top_s:.3f} ({top_cpu_s:.3f}) | {stats_s:.3f} ({stats_cpu_s:.3f}) |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,30000,300000")
    parser.add_argument("--calls", type=int, default=0, help="model calls of a candidate, 6 KB prompt and reply each")
    parser.add_argument("--folder", type=Path, help="where the archives are made, and kept for the next time")
    arguments = parser.parse_args()
    titles = ("stored", "add/s", "add/s CPU", "add/s quartile", "sample/s", "sample/s CPU", "ask/s CPU", "KB/candidate")
    titles += ("open s (CPU)", "first elites s", "top s (CPU)", "stats s (CPU)")
    print(f"| {' | '.join(titles)} |\n{'|---:' * len(titles)}|", flush=True)
    for size in (int(text) for text in arguments.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            path = (arguments.folder or Path(folder)) / f"archive-{size}-{arguments.calls}.db"
            print(measure(path, size, arguments.calls), flush=True)


if __name__ == "__main__":
    main()
