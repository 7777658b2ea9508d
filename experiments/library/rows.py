"""The rows of a library's table: a winner with the files that hold it; as JSON, as CSV, as Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo_l2.evaluation import Environment
from experiments.library.winners import Winner

__all__ = ["BuiltKernel", "Row", "file_name", "table_csv", "table_json", "table_markdown"]


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """One kernel as it was built for the library."""

    name: str
    """Of its files, without a suffix."""
    digest: str
    """Of its source, for target and text together: its name in the archive."""
    machine_code: str
    product: Mapping[str, str]
    """Digests of what was built, by the name under which the table has them: `cubin_sha256`."""
    flags: tuple[str, ...] = ()
    """What it was compiled with, where the library's user may compile it again."""


@dataclass(frozen=True, slots=True)
class Row:
    """One product that the library has a kernel for."""

    winner: Winner
    kernel: BuiltKernel
    workspace_bytes: int

    @property
    def is_as_measured(self) -> bool:
        """Whether the machine code is that which was measured."""
        return self.kernel.machine_code == self.winner.machine_code

    @property
    def facts(self) -> dict[str, object]:
        """What `table.json` says of it."""
        winner = self.winner
        low, high = winner.estimate.interval
        return {
            "sums": winner.sums,
            "layout": winner.layout,
            "sizes": list(winner.sizes),
            "kernel": self.kernel.name,
            "digest": winner.kernel.digest,
            "speedup": round(winner.estimate.speedup, 4),
            "speedup_low": round(low, 4),
            "speedup_high": round(high, 4),
            "kernel_us": round(winner.kernel_us, 3),
            "baseline_us": round(winner.baseline_us, 3),
            "sessions": winner.n_sessions,
            "blocks": winner.estimate.n_blocks,
            "as_measured": self.is_as_measured,
            "is_deterministic": winner.kernel.launch.deterministic,
            "workspace_bytes": self.workspace_bytes,
            "problem": winner.problem,
        }


def file_name(winner: Winner) -> str:
    """The name of a winner's files: layout, and the first digits of its digest."""
    return f"{winner.layout}_{winner.kernel.digest[:12]}"


def table_json(rows: Sequence[Row], environment: Environment, needs: Mapping[str, object]) -> str:
    """The text of `table.json`, which the package reads."""
    kernels = {row.kernel.name: row.kernel for row in rows}
    facts = {
        "environment": {"key": environment.key, "target": environment.target, "identity": dict(environment.identity)},
        **needs,
        "kernels": [
            {"name": kernel.name, "digest": kernel.digest, "machine_code": kernel.machine_code, **kernel.product}
            for _, kernel in sorted(kernels.items())
        ],
        "rows": [row.facts for row in rows],
    }
    return json.dumps(facts, indent=1) + "\n"


def table_csv(rows: Sequence[Row], environment: Environment, baseline: str) -> str:
    """The text of `table.csv`."""
    out = io.StringIO()
    names = ("layout", "sums", "m", "n", "k", "batch", *list(rows[0].facts)[3:], "baseline", "environment")
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        facts = row.facts
        m, n, k, batch = row.winner.sizes
        del facts["sizes"]
        writer.writerow(
            {**facts, "m": m, "n": n, "k": k, "batch": batch, "baseline": baseline, "environment": environment.key}
        )
    return out.getvalue()


def table_markdown(rows: Sequence[Row]) -> str:
    """The table of the README, with its footnotes."""
    lines = [
        "| layout | sums | M | N | K | batch | speed-up, its 95 % interval | kernel, µs | baseline, µs | sessions | kernel |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        winner, (low, high) = row.winner, row.winner.estimate.interval
        m, n, k, batch = winner.sizes
        speedup = f"{winner.estimate.speedup:.3f} ({low:.3f} to {high:.3f})" + ("" if low > 1 else " ¹")
        times = f"{winner.kernel_us:.4g} | {winner.baseline_us:.4g} | {winner.n_sessions}"
        name = f"`{row.kernel.name}`" + ("" if row.is_as_measured else " ²")
        lines.append(f"| {winner.layout} | {winner.sums} | {m} | {n} | {k} | {batch} | {speedup} | {times} | {name} |")
    notes = []
    if not all(row.winner.estimate.log_low > 0 for row in rows):
        notes.append("¹ Not shown to win: the interval does not lie above 1. The library was asked for with `--all`.")
    if not all(row.is_as_measured for row in rows):
        notes.append("² Not the machine code that was measured: another compiler built it, or for another machine.")
    return "\n".join(lines + [line for note in notes for line in ("", note)])
