"""The chapters of the search itself: progress, cells, descent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.report_page import charts
from experiments.report_page.chapters import (
    Chapter,
    Charts,
    chapter,
    folded,
    frame,
    interval,
    kernel_link,
    p,
    speedup,
)
from experiments.report_page.descent import lay_out
from experiments.report_page.diffs import diff_markup, n_changed
from experiments.report_page.facts import RunFacts
from experiments.report_page.markup import Markup, joined, table, tag
from experiments.report_page.tallies import operator_order, records
from experiments.summary_page import counted
from experiments.winners import KernelRow

__all__ = ["descent", "grid", "progress"]

MOST_CELLS = 60
"""Rows of the table of elites."""
MOST_STEPS = 60
"""Steps of the line to the best that are shown with their diffs: the last."""


def progress(facts: RunFacts, drawn: Charts, anchors: Mapping[str, str]) -> Chapter:
    """Candidates and the best so far; the seeds; when the best rose."""
    if not any(row.estimate is not None for row in facts.rows):
        words = "No candidate of this run has a time." if facts.rows else "The run has no candidates yet."
        return chapter("progress", "Progress", p(words), _seeds(facts.seeds, anchors))
    rising = records(facts.rows)
    rows = [
        (
            f"#{row.index}",
            row.operator,
            kernel_link(row.digest or "", anchors),
            speedup(row.estimate),
            interval(row.estimate),
            f"{math.exp(rise):.3f}×" if rise else "first",
        )
        for row, rise in rising
    ]
    note = (
        "Points are first measurements, those that were inconclusive left out. The line is the highest lower end so far:"
        " a first look that is lucky does not move it far."
    )
    heads = ("candidate", "operator", "kernel", "speed-up", "95 % interval", "lower end rose by")
    return chapter(
        "progress",
        "Progress",
        drawn.place(charts.progress_chart(facts.rows)),
        p(note, class_="note"),
        _seeds(facts.seeds, anchors),
        folded(f"The best rose {len(rising)} times", table("When the best rose", heads, rows[-100:], numbers=(3, 4, 5))),
    )


def _seeds(seeds: Sequence[KernelRow], anchors: Mapping[str, str]) -> Markup:
    rows = [
        (
            kernel_link(seed.digest, anchors, seed.name),
            seed.status.replace("_", " "),
            speedup(seed.estimate),
            interval(seed.estimate),
            ("again" if seed.is_final else "once") if seed.estimate is not None else "–",
        )
        for seed in seeds
    ]
    heads = ("seed", "status", "speed-up", "95 % interval", "measured")
    return table("The seeds", heads, rows, numbers=(2, 3)) if rows else Markup("")


def grid(facts: RunFacts, drawn: Charts, anchors: Mapping[str, str]) -> Chapter:
    """The heat map, its table, and how the grid filled."""
    schema = facts.info.schema
    if not facts.cells:
        return chapter("cells", "Cells", p(f"None of the {schema.n_cells:,} cells is filled."))
    axes = len(schema.axes)
    rows = [
        (
            place,
            kernel_link(cell.digest, anchors),
            speedup(cell.estimate),
            interval(cell.estimate),
            *(axis.label(i) for axis, i in zip(schema.axes, cell.cell, strict=True)),
        )
        for place, cell in enumerate(facts.cells[:MOST_CELLS], start=1)
    ]
    heads = ("rank", "elite", "speed-up", "95 % interval", *(axis.name for axis in schema.axes))
    timed = any(cell.estimate is not None for cell in facts.cells)
    behind = " Where more than one cell lies behind a square, the best of them is shown." if axes > 2 else ""
    words = f"Each square is the best kernel of one combination of measures.{behind} A click leads to the kernel."
    if not timed:
        words = "Each square says how many filled cells lie behind it. A click leads to the kernel of one of them."
    left_out = len(facts.cells) - len(rows)
    return chapter(
        "cells",
        "Cells",
        tag("div", id="cells-axes", class_="controls"),
        frame("cells", "Heat map of the filled cells.", 420),
        p(words, class_="note"),
        folded(
            f"The {len(rows)} best of {len(facts.cells):,} filled cells",
            table("Elites, the best first", heads, rows, numbers=(0, 2, 3)),
            p(f"{left_out:,} more: evo-l2 archive top", class_="note") if left_out else "",
        ),
        tag("h3", "Coverage and QD score"),
        drawn.place(charts.coverage_chart(facts.history, schema.n_cells, is_run=facts.is_run)) if facts.history else "",
        p(
            "QD score: the sum of the speed-ups of the cells' elites. Both start from what the archive held before the run.",
            class_="note",
        ),
    )


def descent(facts: RunFacts, drawn: Charts, anchors: Mapping[str, str]) -> Chapter:
    """The line from seed to best with its diffs, and the tree."""
    parts: list[object] = []
    sources = {sheet.digest: sheet.source for sheet in facts.kernels}
    if facts.line:
        if sum(step.estimate is not None for step in facts.line) > 1:
            parts.append(drawn.place(charts.line_chart(facts.line)))
        parts.append(_steps(facts, anchors, sources))
    else:
        parts.append(p("There is no best kernel: none has a time."))
    tree = lay_out(facts.rows, facts.cells)
    if len(tree.nodes) > 1:
        words = "Right kernels by their first parents; the farther right, the more steps from a seed."
        times = [node.row.estimate is not None for node in tree.nodes]
        if any(times) and not all(times):
            words += " Those without a colour of the scale have no time that can be trusted."
        parts += [
            tag("h3", "Tree of descent"),
            drawn.place(charts.tree_chart(tree, facts.line, operator_order(facts.rows))),
            p(words, class_="note"),
        ]
    return chapter("descent", "Descent", *parts)


def _steps(facts: RunFacts, anchors: Mapping[str, str], sources: Mapping[str, str]) -> Markup:
    shown_steps = facts.line[-MOST_STEPS:]
    items = []
    before = facts.line[-MOST_STEPS - 1] if len(facts.line) > MOST_STEPS else None
    for step in shown_steps:
        where = f"#{step.index}" if step.run == facts.info.name else f"{step.run} #{step.index}"
        words: list[object] = [
            tag("b", step.operator),
            f" {where} ",
            kernel_link(step.digest, anchors),
            f" {speedup(step.estimate)}",
        ]
        if before is not None and before.estimate is not None and step.estimate is not None:
            words.append(f", {math.exp(step.estimate.log_ratio - before.estimate.log_ratio):.3f}× its parent")
        if len(step.parents) > 1:
            words += [", also of ", joined(kernel_link(parent, anchors) for parent in step.parents[1:])]
        if before is not None and step.digest in sources and before.digest in sources:
            old, new = sources[before.digest], sources[step.digest]
            came, went = n_changed(old, new)
            items.append(_folded_step(joined(words), f"{counted(came, 'line')} came, {went} went", diff_markup(old, new)))
        else:
            items.append(tag("li", p(*words)))
        before = step
    first = (
        ""
        if len(facts.line) <= MOST_STEPS
        else p(f"The first {len(facts.line) - MOST_STEPS} steps are left out.", class_="note")
    )
    return joined([tag("h3", "From seed to best, step by step"), first, tag("ol", *items, class_="steps")])


def _folded_step(words: Markup, changed: str, diff: Markup) -> Markup:
    return tag("li", p(words), tag("details", tag("summary", f"what changed: {changed}"), diff))
