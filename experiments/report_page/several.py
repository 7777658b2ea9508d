"""The chapter of the archive's runs; those of different problems or environments never share an axis."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.report_page import counts_charts
from experiments.report_page.chapters import Chapter, Charts, chapter, interval, moment, p, speedup
from experiments.report_page.facts import RunRow
from experiments.report_page.markup import table, tag

__all__ = ["groups", "runs"]


def groups(rows: Sequence[RunRow]) -> tuple[tuple[RunRow, ...], ...]:
    """Runs whose numbers may be compared: one problem, one environment; in order of the first of each."""
    found: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        found.setdefault((row.problem_key, row.environment_key), []).append(row)
    return tuple(tuple(members) for members in found.values())


def runs(rows: Sequence[RunRow], n_runs: int, shown: str, drawn: Charts) -> Chapter:
    """All runs, by problem and environment.

    Args:
        rows: The runs.
        n_runs: How many the archive has.
        shown: The name of the run that the page is about.
        drawn: Where charts are gathered.
    """
    parts: list[object] = []
    if n_runs > len(rows):
        parts.append(p(f"The latest {len(rows)} of {n_runs:,} runs.", class_="note"))
    every = groups(rows)
    if len(every) > 1:
        parts.append(
            p("Numbers are compared within one problem and environment only; each has its own charts.", class_="note")
        )
    for place, group in enumerate(every):
        parts.append(tag("h3", f"{group[0].problem_title}, environment ", tag("code", group[0].environment_key)))
        timed = [run for run in group if run.best is not None and run.best.estimate is not None]
        if timed:
            parts.append(drawn.place(counts_charts.runs_chart(f"runs-{place}", timed)))
        if sum(bool(run.curve) for run in group) > 1:
            parts.append(drawn.place(counts_charts.runs_curves(f"curves-{place}", group)))
        heads = ("run", "started", "candidates", "cells", "best kernel", "speed-up", "95 % interval", "measured")
        caption = f"Runs of {group[0].problem_title}"
        parts.append(table(caption, heads, [_row(run, run.name == shown) for run in group], numbers=(2, 3, 5, 6)))
    parts.append(p("Another run's page: evo-l2 report DB --run NAME.", class_="note"))
    return chapter("runs", "Runs of this archive", *parts)


def _row(run: RunRow, is_shown: bool) -> tuple[object, ...]:
    best = run.best
    estimate = best.estimate if best is not None else None
    measured = ("again" if best is not None and best.is_final else "once") if estimate is not None else "–"
    return (
        tag("b", f"{run.name} (this page)") if is_shown else run.name,
        moment(run.created),
        f"{run.n_candidates:,}",
        f"{run.n_elites:,} of {run.n_cells:,}",
        tag("code", best.name) if best is not None else "–",
        speedup(estimate),
        interval(estimate),
        measured + (", from an earlier run" if run.is_inherited else ""),
    )
