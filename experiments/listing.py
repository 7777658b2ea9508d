"""What `evo-l2 archive` and `evo-l2 presets` print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from archive.export import export
from archive.mining import KernelFacts, RunStats, ledger, show, stats, top
from archive.store import Store
from evo_l2.contracts import Elite
from evo_l2.evaluation import Estimate, Status
from evo_l2.kernel import Kernel
from evo_l2.measures import Axis
from experiments.config import RunConfig
from experiments.documents import keys, preset_names, preset_text
from experiments.printable import printable
from experiments.report import counted, indented
from experiments.verifying import built_in_words

__all__ = ["export_kernels", "print_kernel", "print_keys", "print_presets", "print_stats", "print_top"]


def print_stats(db: Path, run_name: str | None, *, as_json: bool) -> None:
    """Every run, or one, with its outcomes, cells, operators and cost.

    Raises:
        StorageError: The database cannot be read, or has no such run.
    """
    with Store.open(db, create=False) as store:
        names = [run_name] if run_name is not None else [info.name for info in store.runs()]
        runs = [_stats(store, name) for name in names]
    if as_json:
        print(json.dumps(runs, indent=2))
        return
    console = Console(highlight=False)
    if not runs:
        console.print(Text(f"no run in {db}"), soft_wrap=True)
    for run in runs:
        _print_run(console, run)


def _stats(store: Store, name: str) -> dict[str, object]:
    """Plain facts of one run."""
    found = stats(store, name)
    lines = ledger(store, name)
    return {
        "run": found.run.name,
        "problem": found.run.problem_title,
        "environment": found.run.environment.key,
        "created": found.run.created,
        "finished": found.run.finished,
        "candidates": found.run.n_candidates,
        "cells": found.n_elites,
        "all_cells": found.n_cells,
        "qd_score": found.qd_score,
        "best": _estimate(found.best.estimate) if found.best is not None else None,
        "best_in_words": _words(found.best.estimate) if found.best is not None else "none",
        "outcomes": {outcome.value: n for outcome, n in found.outcomes.items()},
        "statuses": {status.value: n for status, n in found.statuses.items()},
        "operators": _operators(found),
        "calls": sum(line.n_calls for line in lines),
        "tokens": sum(line.n_prompt_tokens + line.n_reply_tokens for line in lines),
        "usd": sum(line.cost_usd for line in lines),
        "file_bytes": found.n_bytes,
    }


def _operators(found: RunStats) -> list[dict[str, object]]:
    return [
        {
            "operator": row.operator,
            "asked": row.n_candidates,
            "passed": row.n_passed,
            "known": row.n_duplicates,
            "no_kernel": row.n_without_kernel + row.n_outages,
            "cells": row.n_new_cells + row.n_improved_cells,
            "records": row.n_records,
            "seconds": round(row.seconds, 3),
        }
        for row in found.operators
    ]


def _print_run(console: Console, run: dict[str, object]) -> None:
    operators, statuses = run["operators"], run["statuses"]
    assert isinstance(operators, list)
    assert isinstance(statuses, dict)
    good = Status.BUILT.value if Status.BUILT.value in statuses else "passed"
    console.print(Text.assemble((str(run["run"]), "bold"), f": {run['problem']}"))
    ended = f"finished {_moment(run['finished'])}" if run["finished"] is not None else "not finished"
    rows = {
        "started": f"{_moment(run['created'])}, {ended}",
        "candidates": run["candidates"],
        "cells": f"{run['cells']} of {run['all_cells']}, QD score {run['qd_score']:.3f}",
        "best": run["best_in_words"],
        "outcomes": _counts(run["outcomes"]),
        "verdicts": _counts(statuses),
        "model": f"{counted(_whole(run['calls']), 'call')}, {counted(_whole(run['tokens']), 'token')}, ${run['usd']:.4f}",
    }
    for name, value in rows.items():
        console.print(Text(f"  {name:12} {value}"))
    table = Table(box=None, header_style="bold", padding=(0, 1))
    names = ("operator", "asked", "passed", "known", "no_kernel", "cells", "records", "seconds")
    for name in names:
        heading = good if name == "passed" else name.replace("_", " ")
        table.add_column(heading, justify="left" if name == "operator" else "right")
    for row in operators:
        shown = {**row, "seconds": f"{row['seconds']:.1f}"}
        table.add_row(*(str(shown[name]) for name in names))
    console.print(table)
    console.print(
        Text("records: offspring that raised the run's best; QD score: sum of the cells' best speed-ups", style="dim"),
        soft_wrap=True,
    )
    console.print()


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _moment(text: object) -> str:
    """UTC to the minute."""
    return str(text)[:16].replace("T", " ")


def _counts(counts: object) -> str:
    assert isinstance(counts, dict)
    return ", ".join(f"{name} {n}" for name, n in counts.items()) or "none"


def print_top(db: Path, count: int, run_name: str | None, *, all_kernels: bool, as_json: bool) -> None:
    """The best elites, one a cell; or the best kernels, whether they hold a cell or not.

    Raises:
        StorageError: The database cannot be read, or has no such run.
    """
    with Store.open(db, create=False) as store:
        run = store.open_run(run_name)
        ranked = top(store, run_name, count=count) if all_kernels else run.elites()
        elites = sorted(ranked, key=lambda elite: elite.rank)[:count]
        schema = run.schema
    if as_json:
        print(json.dumps([_facts(elite, schema.describe(elite.cell)) for elite in elites], indent=2))
        return
    _print_elites(Console(highlight=False), elites, schema.axes)


def _print_elites(console: Console, elites: Sequence[Elite], axes: Sequence[Axis]) -> None:
    """A table, or two where one is wider than the terminal; without times where nothing has one."""
    timed = any(elite.estimate is not None for elite in elites)
    whole = _table(elites, axes, timed=timed)
    if timed and console.measure(whole, options=console.options.update(width=1000)).maximum > console.width:
        console.print(_table(elites, (), timed=True))
        console.print()
        whole = _table(elites, axes, timed=False)
    console.print(whole)
    if elites and not timed:
        console.print(Text("none of them was ever run", style="dim"))


def _table(elites: Sequence[Elite], axes: Sequence[Axis], *, timed: bool) -> Table:
    """A row for each elite, with its times or without, and a column for each measure."""
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("kernel", "speed-up", "95 % interval", "blocks")[: 4 if timed else 1]:
        table.add_column(name, justify="right" if name in ("speed-up", "blocks") else "left", no_wrap=True)
    for axis in axes:
        table.add_column(axis.name.replace("_", " "), overflow="fold")
    for elite in elites:
        times: tuple[str, ...] = ("never run", "", "")
        if elite.estimate is not None:
            low, high = elite.estimate.interval
            times = (f"{elite.estimate.speedup:.3f}", f"{low:.3f} to {high:.3f}", str(elite.estimate.n_blocks))
        labels = [axis.label(index) for axis, index in zip(axes, elite.cell, strict=False)]
        table.add_row(elite.kernel.digest[:12], *(times if timed else ()), *labels)
    return table


def best_kernels(db: Path, count: int) -> list[Kernel]:
    """The best elites of the last run, whether they hold a cell or not.

    Raises:
        StorageError: The database cannot be read, or has no run.
    """
    with Store.open(db, create=False) as store:
        return [elite.kernel for elite in top(store, None, count=count)]


def _facts(elite: Elite, cell: str) -> dict[str, object]:
    build = elite.verdict.build
    return {
        "digest": elite.kernel.digest,
        **_estimate(elite.estimate),
        "sessions": [session.purpose for session in elite.sessions],
        "cell": cell,
        "tunables": {tunable.name: tunable.value for tunable in elite.kernel.tunables},
        "resources": dict(build.resources) if build is not None else {},
    }


def _estimate(value: Estimate | None) -> dict[str, object]:
    if value is None:
        return {"speedup": None, "interval": None, "n_blocks": 0}
    return {"speedup": value.speedup, "interval": list(value.interval), "n_blocks": value.n_blocks}


def _words(value: Estimate | None) -> str:
    if value is None:
        return "built and never run"
    low, high = value.interval
    return f"{value.speedup:.3f}x of the baseline's speed ({low:.3f} to {high:.3f}, {value.n_blocks} blocks)"


def print_kernel(db: Path, digest: str, *, as_json: bool) -> None:
    """One kernel of the archive, right or wrong, over all runs.

    Raises:
        ConfigurationError: No kernel, or more than one, begins with these digits.
        StorageError: The database cannot be read.
    """
    with Store.open(db, create=False) as store:
        facts = show(store, digest)
    if as_json:
        print(json.dumps(_kernel(facts), indent=2))
        return
    console = Console(highlight=False)
    console.print(Text.assemble(("kernel ", "bold"), facts.digest), soft_wrap=True)
    for found in facts.judgements:
        console.print(Text(f"{found.problem_title}, environment {found.environment_key}", style="bold"))
        if found.estimate is not None:
            console.print(Text(f"  {_words(found.estimate)}, {counted(found.n_sessions, 'session')}"))
        else:
            console.print(
                Text(
                    f"  {found.status.value}"
                    + (f" at gate {found.gate}: {printable(found.message or '')}" if found.gate else "")
                )
            )
        if found.cell is not None:
            console.print(Text(f"  cell: {found.cell}"))
        if found.resources:
            console.print(Text("  built:"))
            console.print(Text(indented(built_in_words(found.resources), console.width, 4)), soft_wrap=True)
    console.print(Text("descent", style="bold"))
    for ancestor in facts.lineage:
        speed = f"{ancestor.estimate.speedup:.3f}x at first" if ancestor.estimate is not None else "no time of its own"
        indent = "  " * min(ancestor.depth + 1, 12)
        console.print(Text(f"{indent}{ancestor.digest[:12]} {ancestor.operator}, {ancestor.run} #{ancestor.index}, {speed}"))
    if console.is_terminal:
        console.print(Syntax(printable(facts.kernel.source), "c", background_color="default"))
    else:
        print(f"\n{printable(facts.kernel.source)}")


def _kernel(facts: KernelFacts) -> dict[str, object]:
    return {
        "digest": facts.digest,
        "target": facts.kernel.target,
        "judgements": [
            {
                "problem": found.problem_title,
                "environment": found.environment_key,
                "status": found.status.value,
                "gate": found.gate,
                "message": found.message,
                "resources": dict(found.resources),
                "cell": found.cell,
                "estimate": _estimate(found.estimate) if found.estimate is not None else None,
                "n_sessions": found.n_sessions,
            }
            for found in facts.judgements
        ],
        "lineage": [
            {
                "digest": ancestor.digest,
                "depth": ancestor.depth,
                "run": ancestor.run,
                "index": ancestor.index,
                "operator": ancestor.operator,
                "parents": list(ancestor.parents),
                "estimate": _estimate(ancestor.estimate) if ancestor.estimate is not None else None,
            }
            for ancestor in facts.lineage
        ],
        "source": facts.kernel.source,
    }


def export_kernels(db: Path, folder: Path, run_name: str | None, count: int | None, *, as_json: bool) -> None:
    """Writes the elites, or the best kernels, as files, with `kernels.jsonl` beside them.

    Raises:
        StorageError: The database cannot be read, or the folder is not empty or cannot be written.
    """
    with Store.open(db, create=False) as store:
        done = export(store, folder, run_name, count=count)
    if as_json:
        print(json.dumps({"folder": str(done.directory), "kernels": done.n_kernels, "table": str(done.table)}, indent=2))
    else:
        print(f"{counted(done.n_kernels, 'kernel')} in {done.directory}, listed in {done.table.name}")
        print("files: RANK-CELL-DIGEST, the cell as one index for each measure")


def print_presets(name: str | None, *, as_json: bool) -> None:
    """Every preset with what it is for, or the text of one.

    Raises:
        ConfigurationError: There is no such preset.
    """
    if name is not None:
        text = preset_text(name, "evo-l2 presets")
        print(json.dumps({name: text}, indent=2) if as_json else text, end="\n" if as_json else "")
        return
    texts = {known: preset_text(known) for known in preset_names()}
    if as_json:
        print(json.dumps(texts, indent=2))
        return
    table = Table(box=None, show_header=False, padding=(0, 2))
    for known, text in texts.items():
        comment = [line.removeprefix("#").strip() for line in text.split("\n") if line.startswith("#")]
        table.add_row(known, " ".join(comment))
    Console(highlight=False).print(table, markup=False)


def print_keys(*, as_json: bool) -> None:
    """Every key of a configuration, with its default and meaning."""
    known = list(keys(RunConfig))
    if as_json:
        print(
            json.dumps(
                [{"key": key.path, "default": key.default, "what": key.what, "values": list(key.values)} for key in known],
                indent=2,
            )
        )
        return
    console = Console(highlight=False)
    for key in known:
        default = f"  (default {json.dumps(key.default)})" if key.default is not None else ""
        console.print(Text.assemble((key.path, "bold"), default), soft_wrap=True)
        console.print(Text(indented(key.what, console.width, 4)), soft_wrap=True)
        if key.values:
            console.print(Text(indented(f"one of: {', '.join(key.values)}", console.width, 4)), soft_wrap=True)
