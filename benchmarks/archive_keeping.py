"""How long it takes to merge two archives and to check one.

    python benchmarks/archive_keeping.py --size 100000 --shared 0.1

Each archive holds one run of so many candidates (6 KB kernels, every second one timed; `--calls 1` gives each a prompt and a
reply), and so large a share of the kernels is in both. Printed are seconds by the clock and of processor time: two merges
into a new file, a merge of all that again, and `fsck` of the outcome.
"""

import argparse
import tempfile
import time
from pathlib import Path

import archive_cases as cases
from archive_filler import fill

from archive.keeping.checking import check
from archive.keeping.merging import merge
from archive.read_only import open_to_read
from archive.store import Store


def _timed(what: str, body):
    clock, processor = time.perf_counter(), time.process_time()
    answer = body()
    seconds = (time.perf_counter() - clock, time.process_time() - processor)
    print(f"{what}: {seconds[0]:.1f} s by the clock, {seconds[1]:.1f} s of processor time", flush=True)
    return answer


def _make(path: Path, count: int, n_calls: int, offset: int) -> None:
    with Store.open(path) as store:
        run = store.start_run("bench", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        fill(store, run, count, n_calls, offset)


def _merge(into: Path, source: Path):
    with open_to_read(source) as store, Store.open(into) as target:
        return merge(target, [store])


def main() -> None:
    """Makes, merges, checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--shared", type=float, default=0.1, help="share of the kernels that both archives hold")
    parser.add_argument("--calls", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("a.db", "b.db")]
        offsets = (0, round(arguments.size * (1 - arguments.shared)))
        for path, offset in zip(paths, offsets, strict=True):
            _timed(f"{path.name} made", lambda path=path, offset=offset: _make(path, arguments.size, arguments.calls, offset))
        into = Path(folder) / "both.db"
        for path in (*paths, paths[1]):
            merged = _timed(f"{path.name} merged", lambda path=path: _merge(into, path))
            print(f"  {merged.n_candidates} candidates, {merged.n_verdicts} verdicts, {merged.n_sessions} sessions")
        with open_to_read(into) as store:
            print(f"  {store.n_bytes / 2**20:.0f} MiB")
            report = _timed("fsck", lambda: check(store))
        print(f"  {len(report.findings)} findings")


if __name__ == "__main__":
    main()
