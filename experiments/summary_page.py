"""Prints a run's summary, and the next commands to type."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.read_only import open_to_read
from evo_l2.evaluation import Estimate
from evo_l2.pipeline import Stop
from experiments.config import restore_config
from experiments.printable import printable
from experiments.run import Finished
from experiments.summary import Summary, summarise
from experiments.winners import KernelRow

__all__ = ["bare_in_words", "counted", "indented", "print_summary", "program", "rate_in_words", "refusal_in_words"]

_LONGEST_REASON = 300
_MOST_REFUSALS = 4
"""Gates named in the summary; kernels of the others are counted together."""


def counted(number: int, thing: str) -> str:
    """For instance `1 candidate` and `2 candidates`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def indented(text: str, width: int, n_spaces: int) -> str:
    """The text in lines of at most `width`, each behind some spaces."""
    return textwrap.fill(text, width, initial_indent=" " * n_spaces, subsequent_indent=" " * n_spaces)


def rate_in_words(gflops: float) -> str:
    """For instance `92.9 GFLOP/s`, or `752.9 TFLOP/s`."""
    return f"{gflops:.1f} GFLOP/s" if gflops < 1000 else f"{gflops / 1000:.1f} TFLOP/s"


def refusal_in_words(status: str, gate: str, message: str | None) -> str:
    """In one line: how a kernel failed, at which gate, and the first line of the reason."""
    reason = next((line.strip() for line in (message or "").splitlines() if line.strip()), "no reason given")
    return printable(f"{status} at gate {gate}: {reason[:_LONGEST_REASON]}")


def bare_in_words(bare_us: float | None) -> str:
    """What the baseline takes without its conversions, in brackets; nothing where there are none."""
    return f" ({bare_us:.1f} us without its conversions from and to half)" if bare_us is not None else ""


def program() -> str:
    """What to type for `evo-l2` in this shell: as it was started, where the shell would not find it by its name."""
    if shutil.which("evo-l2") is not None:
        return "evo-l2"
    started = Path(sys.argv[0])
    if started.name == "evo-l2":
        return shlex.quote(sys.argv[0])
    if (started.parent.name, started.name) == ("experiments", "__main__.py"):
        return f"{shlex.quote(sys.orig_argv[0])} -m experiments"
    return "evo-l2"


def print_summary(finished: Finished, *, as_json: bool = False, console: Console | None = None) -> None:
    """Prints the summary to stdout.

    Raises:
        StorageError: The archive cannot be read.
    """
    summary = summarise(finished)
    if as_json:
        print(json.dumps(_plain(finished, summary), indent=2))
        return
    console = console if console is not None else Console(highlight=False)
    stop = "stopped on request" if finished.stop is Stop.REQUESTED else finished.stop.value
    n_candidates = counted(finished.n_candidates, "candidate")
    console.print(Text.assemble((f"\n{finished.name}", "bold"), f": {stop} after {n_candidates}"))
    console.print(Text(f"{summary.problem}\n"))
    console.print(_kernels(summary))
    for row in summary.seeds:
        if row.gate is not None:
            words = f"seed {row.name}: {refusal_in_words(row.status, row.gate, row.message)}"
            console.print(Text(words, style="yellow"), soft_wrap=True)
    if summary.n_never_run:
        words = f"Nothing was run: {summary.n_never_run} kernels were built, read and gated, and have no times."
        console.print(Text(words, style="bold yellow"))
    if any(row.estimate is not None for row in (*summary.seeds, *([summary.best] if summary.best is not None else []))):
        console.print(Text("speed-up: baseline time over kernel time; again: after the search, by itself", style="dim"))
    if summary.best is not None:
        which = (
            "of those measured again after the search"
            if summary.best.is_final
            else "none was measured again after the search"
        )
        console.print(Text(f"best: {which}, by the lower end; archive top pools all sessions", style="dim"), soft_wrap=True)
    n_untimed = summary.n_untimed
    if n_untimed:
        kernels = "1 kernel is" if n_untimed == 1 else f"{n_untimed} kernels are"
        console.print(Text(f"{kernels} right but could not be timed: other work on this machine", style="yellow"))
    for line in _times(summary):
        console.print(Text(line), soft_wrap=True)
    console.print()
    console.print(_operators(summary))
    for refusal in summary.refusals[:_MOST_REFUSALS]:
        what = f"{refusal.status} at gate {refusal.gate}: {counted(refusal.n_kernels, 'kernel')}"
        console.print(Text(f"{what}, first {refusal.digest[:12]}", style="dim"))
    n_more = sum(refusal.n_kernels for refusal in summary.refusals[_MOST_REFUSALS:])
    if n_more:
        console.print(Text(f"other gates: {counted(n_more, 'kernel')}", style="dim"))
    gain = "" if _runs_nothing(summary) else "; gain: on the line from seed to best"
    console.print(Text(f"known: repeats; cells: opened or improved{gain}", style="dim"))
    if not _runs_nothing(summary):
        console.print(Text(_share(summary)))
    cost = f", ${summary.usd:.4f}" if summary.usd else ""
    console.print(Text(f"model: {counted(summary.n_calls, 'call')}, {counted(summary.n_tokens, 'token')}{cost}\n"))
    console.print(Text("next:"))
    limit = _raised_limit(finished)
    for command in _next(finished, summary, limit):
        console.print(Text(f"  {command}"), soft_wrap=True)
    if limit is not None:
        console.print(Text(f"  {limit[1]}", style="dim"), soft_wrap=True)


def _kernels(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for name in ("kernel", "speed-up", "95 % interval", "measured"):
        table.add_column(name, justify="right" if name == "speed-up" else "left")
    for row in summary.seeds:
        is_best = summary.best_seed is not None and row.digest == summary.best_seed.digest
        _add(table, f"seed {row.name}" + (" (best seed)" if is_best else ""), row)
    if summary.best is not None:
        _add(table, f"best {summary.best.name}", summary.best)
    if summary.over_seed is None:
        is_known = summary.best is not None and summary.best_seed is not None
        table.add_row("best kernel over best seed", "no gain" if is_known else "unknown", "", "", style="bold")
    else:
        interval = f"{summary.over_seed.low:.3f} to {summary.over_seed.high:.3f}"
        table.add_row("best kernel over best seed", f"{summary.over_seed.value:.3f}", interval, "", style="bold green")
    return table


def _add(table: Table, name: str, row: KernelRow) -> None:
    if row.estimate is None:
        table.add_row(name, "-", row.status, "")
        return
    low, high = row.estimate.interval
    table.add_row(name, f"{row.estimate.speedup:.3f}", f"{low:.3f} to {high:.3f}", "again" if row.is_final else "once")


def _times(summary: Summary) -> list[str]:
    lines = []
    for case in summary.cases[:8]:
        sizes = " x ".join(str(size) for size in case.sizes[:3]) + (f" x {case.sizes[3]}" if case.sizes[3:] != (1,) else "")
        bare = bare_in_words(case.bare_baseline_us)
        best = f"best {case.kernel_us:.1f} us ({rate_in_words(case.kernel_gflops)})"
        lines.append(f"{sizes}: {best}, baseline {case.baseline_us:.1f} us{bare}")
    return lines


def _operators(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1))
    only_built = _runs_nothing(summary)
    good, bad = ("built", "refused") if only_built else ("passed", "wrong")
    names = ("operator", "asked", good, bad, "known", "no kernel", "cells")
    for name in names if only_built else (*names, "gain"):
        table.add_column(name, justify="left" if name == "operator" else "right")
    for row in summary.operators:
        gain = "" if row.name == "seed" else f"{math.exp(row.gain):.3f}x" if row.gain else "none"
        numbers = (row.n_asked, row.n_passed, row.n_wrong, row.n_known, row.n_without_kernel, row.n_cells)
        table.add_row(row.name, *(str(n) for n in numbers), *([] if only_built else [gain]))
    return table


def _runs_nothing(summary: Summary) -> bool:
    return summary.is_build_only or summary.n_never_run > 0


def _share(summary: Summary) -> str:
    what = "gain that came from the model:"
    if summary.is_inherited:
        return f"{what} none (the best kernel was there before this run)"
    if summary.model_share is None:
        return f"{what} none (there was no gain)"
    if summary.model_share == 0:
        return f"{what} none"
    return f"{what} {100 * summary.model_share:.0f} %"


def _next(finished: Finished, summary: Summary, limit: tuple[str, str] | None) -> list[str]:
    name, db = program(), shlex.quote(str(finished.db))
    beside = finished.db.with_suffix("") if isinstance(finished.db, Path) else finished.name
    folder = shlex.quote(f"{beside}-elites")
    looks = [f"{name} archive top {db}"]
    if summary.best is not None:
        looks.append(f"{name} archive show {db} {summary.best.digest[:12]}")
    elif summary.refusals:
        looks.append(f"{name} archive show {db} {summary.refusals[0].digest[:12]}")
    looks.append(f"{name} archive export {db} --to {folder}")
    go_on = f"{name} resume {db} {shlex.quote(finished.name)}" + (f" {limit[0]}" if limit is not None else "")
    return [go_on, *looks] if finished.stop is Stop.REQUESTED else [*looks, go_on]


def _raised_limit(finished: Finished) -> tuple[str, str] | None:
    """The option that doubles a spent budget, and what its number counts; None where no such budget is spent."""
    if finished.stop is Stop.EVALUATIONS:
        whole = 2 * finished.n_candidates
        return f"--evaluations {whole}", f"({whole} in all: {finished.n_candidates} of them are spent)"
    if finished.stop is Stop.WALL:
        spent_s = _spent_s(finished)
        whole = 10 * math.ceil(2 * spent_s / 10)
        return f"--wall {whole}", f"({whole} s in all: {math.ceil(spent_s)} of them are spent)"
    return None


def _spent_s(finished: Finished) -> float:
    """Seconds of wall time that the whole run took, or its limit where that is more; a resumed run's limit is not stored."""
    with open_to_read(finished.db) as store:
        run = store.open_run(finished.name)
        told_s = sum(candidate.seconds.get("wall", 0.0) for candidate in run.history())
        return max(told_s, restore_config(run.config).budget.wall_s or 0.0)


def _plain(finished: Finished, summary: Summary) -> dict[str, object]:
    def kernel(row: KernelRow | None) -> dict[str, object] | None:
        if row is None:
            return None
        return {"name": row.name, "digest": row.digest, "status": row.status, "gate": row.gate,
                "message": row.message, "final": row.is_final, **_ends(row.estimate)}  # fmt: skip

    return {
        "run": finished.name,
        "archive": str(finished.db),
        "problem": summary.problem,
        "stop": finished.stop.name.lower(),
        "n_candidates": finished.n_candidates,
        "seeds": [kernel(row) for row in summary.seeds],
        "best": kernel(summary.best),
        "best_seed": kernel(summary.best_seed),
        "over_seed": asdict(summary.over_seed) if summary.over_seed is not None else None,
        "is_inherited": summary.is_inherited,
        "model_share": summary.model_share,
        "cases": [asdict(case) for case in summary.cases],
        "operators": [asdict(row) for row in summary.operators],
        "n_calls": summary.n_calls,
        "n_tokens": summary.n_tokens,
        "usd": summary.usd,
        "n_untimed": summary.n_untimed,
        "n_never_run": summary.n_never_run,
        "refusals": [asdict(row) for row in summary.refusals],
    }


def _ends(value: Estimate | None) -> dict[str, float | None]:
    if value is None:
        return {"speedup": None, "low": None, "high": None}
    low, high = value.interval
    return {"speedup": value.speedup, "low": low, "high": high}
