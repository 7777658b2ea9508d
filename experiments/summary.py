"""What a run came to: a table at the end, and the next commands to type."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from archive.store import Store
from evo_l2.contracts import AddStatus, Candidate, Elite, Outcome
from evo_l2.evaluation import Estimate, Status
from evo_l2.timing import estimate
from experiments.run import Finished

__all__ = ["OperatorRow", "Summary", "print_summary", "ratio", "summarise"]

_MODEL_FREE = frozenset({"parametric", "seed"})


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """What one operator did in a run."""

    name: str
    n_offspring: int
    n_passed: int
    n_duplicates: int
    n_failed_replies: int
    """Replies without a kernel, edits that did not apply, outages."""
    n_cells: int
    """Offspring that opened or improved a cell."""
    gain: float
    """Sum of the log speed-ups it added on the line from a seed to the best kernel."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All the numbers of the table."""

    best: Estimate | None
    best_digest: str | None
    best_seed: Estimate | None
    over_seed: tuple[float, float, float] | None
    """Best kernel over best seed: value, and the ends of an interval that is not too narrow."""
    model_share: float | None
    """Share of the gain on the best kernel's line that came from the model; None without gain."""
    operators: tuple[OperatorRow, ...]
    n_tokens: int
    usd: float


def ratio(above: Estimate, below: Estimate) -> tuple[float, float, float]:
    """One speed-up over another: value, low and high; the ends take each side's interval at its worse end."""
    return (
        math.exp(above.log_ratio - below.log_ratio),
        math.exp(above.log_low - below.log_high),
        math.exp(above.log_high - below.log_low),
    )


def summarise(finished: Finished) -> Summary:
    """Reads the run's candidates again and adds them up."""
    with Store.open(finished.db, create=False) as store:
        run = store.open_run(finished.name)
        candidates = list(run.history())
        added = [result.status is not AddStatus.NOT_ADDED for result in run.results()]
    best, seed = finished.best, finished.best_seed
    gains = _gains(candidates, best) if best is not None else {}
    names = sorted({c.operator for c in candidates}, key=lambda name: (name == "seed", name))
    positive = sum(gains.values())
    calls = [call for c in candidates for call in c.calls]
    return Summary(
        best=best.estimate if best is not None else None,
        best_digest=best.kernel.digest if best is not None else None,
        best_seed=seed.estimate if seed is not None else None,
        over_seed=ratio(best.estimate, seed.estimate) if best is not None and seed is not None else None,
        model_share=sum(g for name, g in gains.items() if name not in _MODEL_FREE) / positive if positive > 0 else None,
        operators=tuple(_row(name, candidates, added, gains) for name in names),
        n_tokens=sum(call.reply.n_prompt_tokens + call.reply.n_reply_tokens for call in calls),
        usd=sum(call.reply.cost_usd for call in calls),
    )


def _row(name: str, candidates: Sequence[Candidate], added: Sequence[bool], gains: Mapping[str, float]) -> OperatorRow:
    mine = [(c, a) for c, a in zip(candidates, added, strict=True) if c.operator == name]
    outcomes = Counter(c.outcome for c, _ in mine)
    failed = outcomes[Outcome.NO_KERNEL] + outcomes[Outcome.EDIT_FAILED] + outcomes[Outcome.GENERATOR_FAILED]
    n_passed = sum(1 for c, _ in mine if c.evaluation is not None and c.evaluation.verdict.status is Status.PASSED)
    n_cells = sum(1 for _, a in mine if a)
    return OperatorRow(name, len(mine), n_passed, outcomes[Outcome.DUPLICATE], failed, n_cells, gains.get(name, 0.0))


def _gains(candidates: Sequence[Candidate], best: Elite) -> dict[str, float]:
    """Log speed-up added by each operator on the line from the best kernel back to its seed, by first measurements."""
    made = {c.kernel.digest: c for c in reversed(candidates) if c.kernel is not None and c.evaluation is not None}
    gains: dict[str, float] = {}
    digest: str | None = best.kernel.digest
    while digest in made:
        child = made.pop(digest)
        digest = child.parents[0] if child.parents else None
        above, below = _value(child), _value(made.get(digest)) if digest is not None else None
        if above is not None and below is not None:
            gains[child.operator] = gains.get(child.operator, 0.0) + above - below
    return gains


def _value(candidate: Candidate | None) -> float | None:
    if candidate is None or candidate.evaluation is None or candidate.evaluation.session is None:
        return None
    value = estimate([candidate.evaluation.session])
    return value.log_ratio if value is not None else None


def print_summary(finished: Finished, *, as_json: bool = False) -> None:
    """Prints the summary to stdout."""
    summary = summarise(finished)
    if as_json:
        print(json.dumps(_plain(finished, summary), indent=2))
        return
    console = Console(highlight=False)
    console.print(f"\n[bold]{finished.name}[/bold]: {finished.stop.value} after {finished.n_candidates} candidates\n")
    console.print(_kernels(summary))
    console.print(_operators(summary))
    console.print("known: repeats; cells: opened or improved; gain: on the line from a seed to the best kernel", style="dim")
    console.print(_share(summary))
    if summary.n_tokens:
        console.print(f"model: {summary.n_tokens:,} tokens, ${summary.usd:.4f}")
    console.print("\nnext:")
    for command in _next(finished, summary):
        console.print(f"  {command}", soft_wrap=True)


def _kernels(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2))
    for name, justify in (("", "left"), ("speed-up", "right"), ("95 % interval", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    rows = (("best kernel over baseline", summary.best), ("best seed over baseline", summary.best_seed))
    for name, value in rows:
        if value is not None:
            low, high = value.interval
            table.add_row(name, f"{value.speedup:.3f}", f"{low:.3f} to {high:.3f}")
    if summary.over_seed is not None:
        value_, low, high = summary.over_seed
        table.add_row("best kernel over best seed", f"{value_:.3f}", f"{low:.3f} to {high:.3f}", style="bold green")
    return table


def _operators(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2), title_justify="left")
    for name in ("operator", "asked", "passed", "known", "no kernel", "cells", "gain"):
        table.add_column(name, justify="left" if name == "operator" else "right")
    for row in summary.operators:
        gain = f"{math.exp(row.gain):.3f}x" if row.gain else "none"
        numbers = (row.n_offspring, row.n_passed, row.n_duplicates, row.n_failed_replies, row.n_cells)
        table.add_row(row.name, *(str(n) for n in numbers), gain if row.name != "seed" else "")
    return table


def _share(summary: Summary) -> str:
    if summary.model_share is None:
        return "gain that came from the model: none (there was no gain)"
    return f"gain that came from the model: {100 * summary.model_share:.0f} %"


def _next(finished: Finished, summary: Summary) -> list[str]:
    db = finished.db
    commands = [f"evo-l2 archive top {db}"]
    if summary.best_digest is not None:
        commands.append(f"evo-l2 archive show {db} {summary.best_digest[:12]}")
    folder = Path(db).with_suffix("")
    commands += [f"evo-l2 archive export {db} --to {folder}-elites", f"evo-l2 resume {db} --wall SECONDS"]
    return commands


def _plain(finished: Finished, summary: Summary) -> dict[str, object]:
    def shown(value: Estimate | None) -> dict[str, float] | None:
        if value is None:
            return None
        low, high = value.interval
        return {"speedup": value.speedup, "low": low, "high": high, "n_blocks": value.n_blocks}

    return {
        "run": finished.name,
        "archive": str(finished.db),
        "stop": finished.stop.value,
        "n_candidates": finished.n_candidates,
        "best": shown(summary.best),
        "best_digest": summary.best_digest,
        "best_seed": shown(summary.best_seed),
        "over_seed": summary.over_seed,
        "model_share": summary.model_share,
        "operators": [{name: getattr(row, name) for name in OperatorRow.__dataclass_fields__} for row in summary.operators],
        "n_tokens": summary.n_tokens,
        "usd": summary.usd,
    }
