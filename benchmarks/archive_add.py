"""How fast the archive files and answers, as it fills: `python benchmarks/archive_add.py [--rows 50000] [--calls 0]`.

Every candidate is a new 6 KB kernel, filed durably in a transaction of its own; every second one is timed, so `add` counts
the bootstrap of its interval, storage and grid. `sample` is one call of `elites()` and `best()` each right after an addition;
`find` looks up a source that is known; `add/s CPU` goes by the process's own processor time, for machines on which something
else runs too.
"""

import argparse
import dataclasses
import resource
import tempfile
import time
from pathlib import Path

import archive_cases as cases

from archive.store import RunHandle, Store
from evo_l2.evaluation import Status

_BATCH = 500


def make(index: int, n_calls: int, passes: bool):
    """The candidate of one index; measures spread over the grid."""
    measures = (float(128 * (index % 5)), float(index * 7 % 90), float(index * 4099 % 900_000))
    status = Status.PASSED if passes else Status.INCORRECT
    speedup = 0.5 + (index * 7919 % 1000) / 1000
    return cases.evaluated(index, index, speedup=speedup, measures=measures, status=status, n_bytes=6000, n_calls=n_calls)


@dataclasses.dataclass(slots=True)
class Spent:
    """Seconds of some additions."""

    add_s: float = 0.0
    add_cpu_s: float = 0.0
    sample_s: float = 0.0


def fill(run: RunHandle, first: int, count: int, n_calls: int) -> Spent:
    """Adds candidates, every second one a kernel that passed, and asks for the elites after each."""
    spent = Spent()
    for start in range(first, first + count, _BATCH):
        for candidate in [make(i, n_calls, i % 2 == 0) for i in range(start, min(start + _BATCH, first + count))]:
            begin, cpu = time.perf_counter(), time.process_time()
            run.add(candidate)
            spent.add_cpu_s += time.process_time() - cpu
            end = time.perf_counter()
            run.elites(), run.best()
            spent.sample_s += time.perf_counter() - end
            spent.add_s += end - begin
    return spent


def rate(call, seconds: float = 0.3) -> float:
    """Calls a second."""
    begin, n = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        call()
        n += 1
    return n / (time.perf_counter() - begin)


def resident_mb() -> float:
    """Resident memory of this process at present."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    """Prints one line for 1k, 10k and so on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--calls", type=int, default=0, help="model calls of a candidate, 6 KB prompt and reply each")
    arguments = parser.parse_args()
    titles = ("rows", "add/s", "add/s CPU", "sample/s", "find/s", "RSS MB", "bytes/row")
    print("  ".join(f"{title:>{max(8, len(title))}}" for title in titles))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "archive.db"
        with Store.open(path) as store:
            run = store.start_run("bench", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
            for rows in [n for n in (1_000, 10_000, 50_000, 100_000) if n <= arguments.rows] or [arguments.rows]:
                tail = min(1_000, rows - run.n_candidates)
                fill(run, run.n_candidates, rows - run.n_candidates - tail, arguments.calls)
                spent = fill(run, run.n_candidates, tail, arguments.calls)
                digest = cases.kernel(rows // 2, 6000).digest
                values = (
                    rows,
                    tail / spent.add_s,
                    tail / spent.add_cpu_s,
                    tail / spent.sample_s,
                    rate(lambda digest=digest: run.find(digest=digest)),
                    resident_mb(),
                    sum(file.stat().st_size for file in Path(folder).iterdir()) / rows,
                )
                columns = zip(titles, values, strict=True)
                print("  ".join(f"{value:>{max(8, len(title))}.0f}" for title, value in columns), flush=True)
        begin = time.perf_counter()
        with Store.open(path, create=False) as store:
            n_candidates = store.open_run().n_candidates
        print(f"opened again with {n_candidates} candidates in {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
