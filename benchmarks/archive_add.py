"""How fast the archive files and answers, as it fills: `python benchmarks/archive_add.py [--rows 50000] [--calls 0]`.

Every candidate is a new 6 KB kernel, filed durably in a transaction of its own. `add` counts storage and grid; the bootstrap
behind a timed kernel's interval costs more than filing it and is measured in a column of its own. `sample` is one call of
`elites()` and `best()` each; `find` is one look-up of a source that is known.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import archive_cases as cases

from archive.grid import pooled_estimate
from archive.store import RunHandle, Store
from evo_l2.evaluation import Status

_BATCH = 500


def make(index: int, n_calls: int, passes: bool):
    """The candidate of one index; measures spread over the grid."""
    measures = (float(128 * (index % 5)), float(index * 7 % 90), float(index * 4099 % 900_000))
    status = Status.PASSED if passes else Status.INCORRECT
    speedup = 0.5 + (index * 7919 % 1000) / 1000
    return cases.evaluated(index, index, speedup=speedup, measures=measures, status=status, n_bytes=6000, n_calls=n_calls)


def fill(run: RunHandle, first: int, count: int, n_calls: int) -> tuple[float, float]:
    """Adds candidates, every second one a kernel that passed; seconds of adding, and of the bootstrap before it."""
    add_s = bootstrap_s = 0.0
    for start in range(first, first + count, _BATCH):
        for candidate in [make(i, n_calls, i % 2 == 0) for i in range(start, min(start + _BATCH, first + count))]:
            begin = time.perf_counter()
            if candidate.evaluation.session is not None:
                pooled_estimate((candidate.evaluation.session,))
            middle = time.perf_counter()
            run.add(candidate)
            add_s += time.perf_counter() - middle
            bootstrap_s += middle - begin
    return add_s, bootstrap_s


def rate(call, seconds: float = 0.3) -> float:
    """Calls a second."""
    begin, n = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        call()
        n += 1
    return n / (time.perf_counter() - begin)


def main() -> None:
    """Prints one line for 1k, 10k and so on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--calls", type=int, default=0, help="model calls of a candidate, 6 KB prompt and reply each")
    arguments = parser.parse_args()
    print(f"{'rows':>7} {'add/s':>8} {'with bootstrap/s':>17} {'sample/s':>10} {'find/s':>9} {'RSS MB':>7} {'bytes/row':>10}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "archive.db"
        with Store.open(path) as store:
            run = store.start_run("bench", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
            for rows in [n for n in (1_000, 10_000, 50_000, 100_000) if n <= arguments.rows] or [arguments.rows]:
                tail = min(1_000, rows - run.n_candidates)
                fill(run, run.n_candidates, rows - run.n_candidates - tail, arguments.calls)
                add_s, bootstrap_s = fill(run, run.n_candidates, tail, arguments.calls)
                digest = cases.kernel(rows // 2, 6000).digest
                sample = rate(lambda: (run.elites(), run.best()))
                find = rate(lambda digest=digest: run.find(digest=digest))
                rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                print(
                    f"{rows:>7} {tail / add_s:>8.0f} {tail / (add_s + bootstrap_s):>17.0f} {sample:>10.0f} {find:>9.0f}"
                    f" {rss_mb:>7.0f} {os.path.getsize(path) / rows:>10.0f}",
                    flush=True,
                )
        begin = time.perf_counter()
        with Store.open(path, create=False) as store:
            n_candidates = store.open_run().n_candidates
        print(f"opened again with {n_candidates} candidates in {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
