"""`evo-l2 archive stats`."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.address import Address
from archive.mining import EnvironmentFacts, RunStats, ledger, stats
from archive.read_only import open_to_read
from archive.store import Store
from evo_l2.evaluation import Status
from experiments.archive_pages.frames import say
from experiments.archive_pages.words import estimate_facts, estimate_in_words
from experiments.summary_page import counted

__all__ = ["print_stats"]


def print_stats(db: Address, run_name: str | None, *, as_json: bool) -> None:
    """Every run, or one, with its outcomes, cells, operators and cost.

    Raises:
        StorageError: The database cannot be read, or has no such run.
    """
    with open_to_read(db) as store:
        names = [run_name] if run_name is not None else [info.name for info in store.runs()]
        runs = [_stats(store, name) for name in names]
    if as_json:
        print(json.dumps(runs, indent=2))
        return
    console = Console(highlight=False)
    if not runs:
        say(console, f"no run in {db}")
    for run in runs:
        _print_run(console, run)
    n_environments = len({run["environment"] for run in runs})
    if n_environments > 1:
        say(console, f"{n_environments} environments: compare numbers within one; archive top and cells show one", "dim")


def _stats(store: Store, name: str) -> dict[str, object]:
    """Plain facts of one run."""
    found = stats(store, name)
    lines = ledger(store, name)
    return {
        "run": found.run.name,
        "problem": found.run.problem_title,
        "environment": found.run.environment.key,
        "machine": EnvironmentFacts(found.run.environment.key, found.run.target, found.run.environment.identity, ()).machine,
        "created": found.run.created,
        "finished": found.run.finished,
        "candidates": found.run.n_candidates,
        "cells": found.n_elites,
        "all_cells": found.n_cells,
        "qd_score": found.qd_score,
        "best": estimate_facts(found.best.estimate) if found.best is not None else None,
        "best_in_words": estimate_in_words(found.best.estimate) if found.best is not None else "none",
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
        "environment": f"{run['environment']}, {run['machine']}",
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
    say(console, "records: offspring that raised the run's best; QD score: sum of the cells' best speed-ups", "dim")
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
