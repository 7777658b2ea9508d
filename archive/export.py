"""Kernels out of an archive into plain files.

`export` writes into one folder:

- one source file for each kernel, `NN-CELL-DIGEST.c` (`.cu` on the `cuda` target): its rank from 01, the indices of its
  cell, the first twelve digits of its digest;
- `kernels.jsonl`, one JSON object a line in the same order: `rank`, `file`, `digest`, `identity`, `target`, `run`, `problem`
  and `environment` (key and contents), `cell` (indices), `cell_in_words`, `measures` (by axis, null where unknown),
  `speedup` with its 95 % interval `speedup_low` and `speedup_high`, `n_blocks`, `resources` (from the build), `lineage`
  (nearest first: digest, run, index, operator, parents) and `sessions` (purpose; cases with sizes and times in microseconds).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from archive.codec import load, store_session
from archive.mining import lineage
from archive.run import RunHandle
from archive.store import Store
from evo_l2.contracts import Elite
from evo_l2.errors import StorageError
from evo_l2.kernel import SUFFIXES

__all__ = ["Exported", "export"]


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    directory: Path
    n_kernels: int
    table: Path
    """The `kernels.jsonl`."""


def export(store: Store, directory: Path, run_name: str | None = None, *, count: int | None = None) -> Exported:
    """Writes the elites that a run sees, the best first; see the module for the files.

    Args:
        store: The archive.
        directory: Made when it is missing; has to be empty.
        run_name: The run; None for the one that was started last.
        count: Writes the best `count` kernels, elites or not, instead of one for each cell.

    Raises:
        StorageError: No such run, or the folder is not empty or cannot be written.
    """
    run = store.open_run(run_name)
    if count is not None:
        kernels: Iterable[Elite] = islice(run.ranked(), count)
    else:
        kernels = sorted(run.elites(), key=lambda elite: elite.rank)
    table = directory / "kernels.jsonl"
    rows, written = [], [table.with_suffix(".partial")]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            hint = "name a new folder"
            raise StorageError(f"{directory} is not empty", expected="an empty folder", found="files", hint=hint)
        for rank, elite in enumerate(kernels, start=1):
            cell = "_".join(str(i) for i in elite.cell)
            name = f"{rank:02d}-{cell}-{elite.kernel.digest[:12]}{SUFFIXES.get(elite.kernel.target, '.txt')}"
            written.append(directory / name)
            written[-1].write_bytes(elite.kernel.source.encode("utf-8", "surrogatepass"))
            rows.append(_row(store, run, elite, rank, name))
        written[0].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        os.replace(written[0], table)
    except OSError as error:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        expected, hint = "a folder that may be written", f"df -h {directory.parent}, or --to another folder"
        raise StorageError(f"{directory} cannot be filled", expected=expected, found=str(error), hint=hint) from error
    return Exported(directory, len(rows), table)


def _row(store: Store, run: RunHandle, elite: Elite, rank: int, name: str) -> dict[str, Any]:
    estimate = elite.estimate
    low, high = estimate.interval if estimate is not None else (None, None)
    measures = elite.verdict.measures or ()
    return {
        "rank": rank,
        "file": name,
        "digest": elite.kernel.digest,
        "identity": elite.identity,
        "target": elite.kernel.target,
        "run": run.name,
        "problem": {"key": run.problem_key, "definition": run.problem_definition},
        "environment": {
            "key": run.environment_key,
            "identity": dict(run.environment.identity),
            "provenance": dict(run.environment.provenance),
        },
        "cell": list(elite.cell),
        "cell_in_words": run.schema.describe(elite.cell),
        "measures": {axis.name: value for axis, value in zip(run.schema.axes, measures, strict=True)},
        "status": elite.verdict.status.value,
        "speedup": estimate.speedup if estimate is not None else None,
        "speedup_low": low,
        "speedup_high": high,
        "n_blocks": estimate.n_blocks if estimate is not None else 0,
        "resources": dict(elite.verdict.build.resources) if elite.verdict.build is not None else {},
        "lineage": [
            {"digest": a.digest, "run": a.run, "index": a.index, "operator": a.operator, "parents": list(a.parents)}
            for a in lineage(store, elite.kernel.digest)
        ],
        "sessions": [{"purpose": session.purpose, "cases": load(store_session(session))} for session in elite.sessions],
    }
