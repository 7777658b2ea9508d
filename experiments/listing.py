"""What `evo-l2 archive` prints."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from archive.run import RunHandle
from archive.store import Store
from evo_l2.contracts import Elite
from evo_l2.errors import ConfigurationError, StorageError
from experiments.config import RunConfig
from experiments.documents import keys, preset_names, preset_text

__all__ = ["export_elites", "print_kernel", "print_keys", "print_presets", "print_stats", "print_top"]


def print_stats(db: Path, *, as_json: bool) -> None:
    """Every run with its outcomes, cells and cost.

    Raises:
        StorageError: The database cannot be read.
    """
    with Store.open(db, create=False) as store:
        rows = [_stats(store.open_run(info.name), info.problem_title) for info in store.runs()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    console = Console(highlight=False)
    for row in rows:
        console.print(f"[bold]{row['run']}[/bold]: {row['problem']}")
        for name in ("candidates", "cells", "QD score", "best", "tokens", "usd"):
            console.print(f"  {name:12} {row[name]}")
        for name in ("outcomes", "operators"):
            counts = row[name]
            assert isinstance(counts, dict)
            console.print(f"  {name:12} " + ", ".join(f"{key} {value}" for key, value in counts.items()))


def _stats(run: RunHandle, title: str) -> dict[str, object]:
    outcomes: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    n_tokens, usd = 0, 0.0
    for candidate in run.history():
        status = candidate.evaluation.status if candidate.evaluation is not None else candidate.outcome
        outcomes[status.value] += 1
        operators[candidate.operator] += 1
        for call in candidate.calls:
            n_tokens += call.reply.n_prompt_tokens + call.reply.n_reply_tokens
            usd += call.reply.cost_usd
    best = run.best()
    elites = run.elites()
    return {
        "run": run.name,
        "problem": title,
        "candidates": run.n_candidates,
        "cells": f"{len(elites)} of {run.schema.n_cells}",
        "QD score": round(sum(elite.estimate.speedup for elite in elites), 4),
        "best": round(best.estimate.speedup, 4) if best is not None else None,
        "outcomes": dict(outcomes.most_common()),
        "operators": dict(operators.most_common()),
        "tokens": n_tokens,
        "usd": usd,
    }


def print_top(db: Path, count: int, run_name: str | None, *, as_json: bool) -> None:
    """The best elites, one a cell.

    Raises:
        StorageError: The database cannot be read, or has no such run.
    """
    with Store.open(db, create=False) as store:
        run = store.open_run(run_name)
        elites = sorted(run.elites(), key=lambda elite: -elite.estimate.log_low)[:count]
        cells = [run.schema.describe(elite.cell) for elite in elites]
    if as_json:
        print(json.dumps([_facts(elite, cell) for elite, cell in zip(elites, cells, strict=True)], indent=2))
        return
    table = Table(box=None, header_style="bold", padding=(0, 2))
    for name in ("kernel", "speed-up", "95 % interval", "cell"):
        table.add_column(name, justify="right" if name == "speed-up" else "left")
    for elite, cell in zip(elites, cells, strict=True):
        low, high = elite.estimate.interval
        table.add_row(elite.kernel.digest[:12], f"{elite.estimate.speedup:.3f}", f"{low:.3f} to {high:.3f}", cell)
    Console(highlight=False).print(table)


def print_kernel(db: Path, digest: str, run_name: str | None, *, as_json: bool) -> None:
    """One kernel of the archive.

    Raises:
        ConfigurationError: No kernel, or more than one, begins with these digits.
        StorageError: The database cannot be read.
    """
    with Store.open(db, create=False) as store:
        run = store.open_run(run_name)
        elite = _find(run, digest)
        cell = run.schema.describe(elite.cell)
        makers = [c for c in run.history() if c.kernel is not None and c.kernel.digest == elite.kernel.digest]
    facts = _facts(elite, cell)
    facts["made_by"] = makers[0].operator if makers else None
    facts["parents"] = list(makers[0].parents) if makers else []
    if as_json:
        print(json.dumps({**facts, "source": elite.kernel.source}, indent=2))
        return
    console = Console(highlight=False)
    for name, value in facts.items():
        console.print(f"[bold]{name:12}[/bold] {value}", soft_wrap=True)
    console.print(Syntax(elite.kernel.source, "c", background_color="default"))


def _find(run: RunHandle, digest: str) -> Elite:
    found = [elite for elite in run.ranked() if elite.kernel.digest.startswith(digest)] if digest else []
    if len(found) != 1:
        expected = "the first digits of one kernel that passed"
        raise ConfigurationError(
            "no such kernel", expected=expected, found=f"{len(found)} with {digest!r}", hint="evo-l2 archive top DB"
        )
    return found[0]


def _facts(elite: Elite, cell: str) -> dict[str, object]:
    low, high = elite.estimate.interval
    build = elite.verdict.build
    return {
        "digest": elite.kernel.digest,
        "speedup": elite.estimate.speedup,
        "interval": [low, high],
        "n_blocks": elite.estimate.n_blocks,
        "sessions": [session.purpose for session in elite.sessions],
        "cell": cell,
        "tunables": {tunable.name: tunable.value for tunable in elite.kernel.tunables},
        "resources": dict(build.resources) if build is not None else {},
    }


def export_elites(db: Path, folder: Path, run_name: str | None) -> int:
    """Writes one source file an elite, and `kernels.jsonl` with a line of facts for each; returns their number.

    Raises:
        StorageError: The database cannot be read, or the folder exists or cannot be written.
    """
    suffix = {"cpu": ".c", "cuda": ".cu"}
    with Store.open(db, create=False) as store:
        run = store.open_run(run_name)
        elites = run.elites()
        try:
            folder.mkdir(parents=True)
            with (folder / "kernels.jsonl").open("w", encoding="utf-8") as lines:
                for elite in elites:
                    name = elite.kernel.digest[:12] + suffix[elite.kernel.target]
                    (folder / name).write_text(elite.kernel.source, encoding="utf-8")
                    facts = _facts(elite, run.schema.describe(elite.cell))
                    lines.write(json.dumps({"file": name, "problem": dict(run.problem_definition), **facts}) + "\n")
        except OSError as error:
            found = error.strerror or str(error)
            hint = "name another folder"
            raise StorageError(
                "the export cannot be written", expected=f"a new folder {folder}", found=found, hint=hint
            ) from error
    return len(elites)


def print_presets(name: str | None, *, as_json: bool) -> None:
    """Every preset with what it is for, or the text of one.

    Raises:
        ConfigurationError: There is no such preset.
    """
    if name is not None:
        text = preset_text(name)
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
        print(json.dumps([{"key": key.path, "default": key.default, "what": key.what} for key in known], indent=2))
        return
    table = Table(box=None, header_style="bold", padding=(0, 2))
    for name in ("key", "default", "meaning"):
        table.add_column(name, no_wrap=name == "key")
    for key in known:
        table.add_row(key.path, Text(json.dumps(key.default) if key.default is not None else ""), Text(key.what))
    Console(highlight=False).print(table)
