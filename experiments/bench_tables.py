"""What `evo-l2 bench` prints and writes: a table for people, CSV, JSON, and the columns of CUDA-L2's result files."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evo_l2.errors import StorageError
from experiments.bench import Row, standing
from experiments.printable import printable

__all__ = ["buckets", "cuda_l2_csv", "plain", "print_rows", "rows_csv", "rows_json", "write_text"]

_BUCKETS = (("below 10 GFLOP", 1e10), ("10 to 300 GFLOP", 3e11), ("above 300 GFLOP", math.inf))
"""Sizes by operations of one call."""
_WIDTH = 160
"""Of the table where it goes to a file."""
_COLOURS = {"win": "green", "loss": "red", "tie": "yellow"}
_THEIRS = {"cublas": "cuBLAS", "cublaslt": "cuBLASLt-heuristic", "cublaslt-tuned": "cuBLASLt-auto-tuning"}
"""CUDA-L2's names for our baselines; their `tn` is our `nt`."""


def shape_in_words(sizes: tuple[int, ...]) -> str:
    """`4096x4096x4096`, and the batch where there is one."""
    m, n, k, batch = sizes
    return f"{m}x{n}x{k}" + (f" batch {batch}" if batch > 1 else "")


def buckets(rows: Sequence[Row]) -> list[tuple[str, str, int, float]]:
    """(kernel, size bucket, number of shapes, geometric mean of the speed-ups), for every kernel, over all sizes at last."""
    found = []
    for kernel in dict.fromkeys(row.kernel for row in rows):
        timed = [(_n_flops(row), row.estimate.log_ratio) for row in rows if row.kernel == kernel and row.estimate is not None]
        low = 0.0
        for words, high in (*_BUCKETS, ("all sizes", math.inf)):
            inside = [log for n_flops, log in timed if (0.0 if words == "all sizes" else low) <= n_flops < high]
            if inside:
                found.append((kernel, words, len(inside), math.exp(statistics.fmean(inside))))
            low = high
    return found


def _n_flops(row: Row) -> float:
    return 2.0 * math.prod(row.sizes)


def print_rows(rows: Sequence[Row], console: Console | None = None) -> None:
    """The table, then the geometric means."""
    if console is None:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    is_offline = all(row.mode == "offline" for row in rows)
    for name, justify in (
        ("shape", "left"), ("kernel", "left"), ("us", "right"), ("TFLOP/s", "right"), ("roofline", "right"),
        ("against", "left"), ("us", "right"), ("ratio", "right"), ("95 %", "left"), ("", "left"),
    ):  # fmt: skip
        if is_offline or name not in ("TFLOP/s", "roofline"):
            table.add_column(name, justify=justify, no_wrap=name != "kernel")  # type: ignore[arg-type]
    for row in rows:
        shape, kernel = shape_in_words(row.sizes), Text(printable(f"{row.kernel} ({row.layout})"))
        if row.time_us is None or row.estimate is None:
            rest = [""] * (len(table.columns) - 3)
            table.add_row(shape, kernel, *rest, Text(row.status, style="red"))
            continue
        words = standing(row.estimate)
        low, high = row.estimate.interval
        cells: list[str | Text] = [shape, kernel, f"{row.time_us:.2f}"]
        if is_offline:
            cells += [f"{row.tflops or 0.0:.1f}", f"{row.roofline or 0.0:.2f}"]
        cells += [str(row.baseline), f"{row.baseline_us or 0.0:.2f}", f"{row.estimate.speedup:.3f}", f"{low:.3f}-{high:.3f}"]
        table.add_row(*cells, Text(words, style=_COLOURS[words]))
    console.print(table)
    for row in rows:
        where = f"{row.kernel} at {shape_in_words(row.sizes)}"
        if row.message is not None:
            console.print(Text(printable(f"{where}: {row.status} at gate {row.message}")), soft_wrap=True)
        if row.percentiles_us:
            shares = ", ".join(f"{p} {ours:.1f} against {base:.1f} us" for p, (ours, base) in row.percentiles_us.items())
            console.print(Text(printable(f"{where}: {shares}")), soft_wrap=True)
    for who, words, n_shapes, mean in buckets(rows):
        shapes = f"{n_shapes} shape{'' if n_shapes == 1 else 's'}"
        text = f"{who}: {words}, {shapes}: geometric mean of the ratios {mean:.3f}"
        console.print(Text(printable(text)), soft_wrap=True)


def plain(row: Row) -> dict[str, object]:
    """A row as plain data."""
    data = asdict(row)
    estimate = row.estimate
    data["estimate"] = None
    data["ratio"] = estimate.speedup if estimate is not None else None
    data["interval"] = estimate.interval if estimate is not None else None
    data["standing"] = standing(estimate) if estimate is not None else None
    del data["estimate"]
    return data


_FIELDS = (
    "kernel", "digest", "layout", "accumulate", "m", "n", "k", "batch", "mode", "status", "time_us", "tflops", "roofline",
    "baseline", "baseline_us", "ratio", "low", "high", "standing", "message",
)  # fmt: skip


def rows_csv(rows: Sequence[Row]) -> str:
    """One line a row."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_FIELDS)
    for row in rows:
        value = row.estimate
        low, high = value.interval if value is not None else (None, None)
        ratio, words = (value.speedup, standing(value)) if value is not None else (None, None)
        about = (row.kernel, row.digest, row.layout, row.accumulate, *row.sizes, row.mode, row.status)
        times = (row.time_us, row.tflops, row.roofline, row.baseline, row.baseline_us)
        writer.writerow([*about, *times, ratio, low, high, words, row.message])
    return out.getvalue()


def cuda_l2_csv(rows: Sequence[Row]) -> str:
    """Speed-ups over every library in the columns of CUDA-L2's result files, the best kernel of each shape.

    Numbers here are ratios of medians that were not measured in pairs; a library that did not run leaves its column empty.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = ["mnk", "torch.matmul"]
    for name in _THEIRS.values():
        header += [f"{name}-tn", f"{name}-nn", f"{name}-max"]
    writer.writerow(header)
    for sizes in dict.fromkeys(row.sizes for row in rows):
        timed = [row for row in rows if row.sizes == sizes and row.time_us is not None]
        if not timed:
            continue
        best = min(timed, key=lambda row: row.time_us or math.inf)
        cells = ["_".join(map(str, sizes[:3])), _over(best, f"torch-{best.layout}")]
        for ours in _THEIRS:
            pair = [_over(best, f"{ours}-nt"), _over(best, f"{ours}-nn")]
            cells += [*pair, min((cell for cell in pair if cell), key=float, default="")]
        writer.writerow(cells)
    return out.getvalue()


def _over(row: Row, library: str) -> str:
    theirs = row.libraries_us.get(library)
    return f"{theirs / row.time_us:.3f}" if theirs is not None and row.time_us is not None else ""


def write_text(path: Path, text: str) -> None:
    """Writes a result.

    Raises:
        StorageError: It cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError("the results cannot be written", expected=f"to write {path}", found=str(error)) from error


def rows_json(rows: Sequence[Row], environment: dict[str, object]) -> str:
    """Everything, with the environment it was measured in."""
    found = [{"kernel": k, "sizes": w, "n_shapes": n, "geometric_mean": mean} for k, w, n, mean in buckets(rows)]
    return json.dumps({"environment": environment, "rows": [plain(row) for row in rows], "means": found}, indent=2) + "\n"
