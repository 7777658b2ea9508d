"""`evo-l2 archive top`."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from archive.mining import top
from archive.store import Store
from evo_l2.contracts import Elite
from experiments.archive_pages.words import estimate_facts

__all__ = ["print_top"]


def print_top(db: Path, count: int, run_name: str | None, *, all_kernels: bool, as_json: bool) -> None:
    """The best elites, one a cell; or the best kernels, whether they hold a cell or not.

    Raises:
        StorageError: The database cannot be read, or has no such run.
    """
    with Store.open(db, create=False) as store:
        run = store.open_run(run_name)
        ranked = top(store, run_name, count=count) if all_kernels else run.elites()
        elites = sorted(ranked, key=lambda elite: elite.rank)[:count]
        cells = [run.schema.describe(elite.cell) for elite in elites]
    if as_json:
        print(json.dumps([_facts(elite, cell) for elite, cell in zip(elites, cells, strict=True)], indent=2))
        return
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for name in ("kernel", "speed-up", "95 % interval", "blocks", "cell"):
        table.add_column(name, justify="right" if name in ("speed-up", "blocks") else "left", no_wrap=name != "cell")
    for elite, cell in zip(elites, cells, strict=True):
        speedup, interval, n_blocks = "never run", "", ""
        if elite.estimate is not None:
            low, high = elite.estimate.interval
            speedup, interval = f"{elite.estimate.speedup:.3f}", f"{low:.3f} to {high:.3f}"
            n_blocks = str(elite.estimate.n_blocks)
        table.add_row(elite.kernel.digest[:12], speedup, interval, n_blocks, cell)
    Console(highlight=False).print(table)


def _facts(elite: Elite, cell: str) -> dict[str, object]:
    build = elite.verdict.build
    return {
        "digest": elite.kernel.digest,
        **estimate_facts(elite.estimate),
        "sessions": [session.purpose for session in elite.sessions],
        "cell": cell,
        "tunables": {tunable.name: tunable.value for tunable in elite.kernel.tunables},
        "resources": dict(build.resources) if build is not None else {},
    }
