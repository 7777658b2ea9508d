"""The chapters of the page: words, tables and the places where charts are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from archive.mining import LedgerLine
from evo_l2.evaluation import Estimate
from experiments.report_page import charts, counts_charts
from experiments.report_page.charts import Chart
from experiments.report_page.descent import lay_out
from experiments.report_page.diffs import diff_markup, n_changed
from experiments.report_page.facts import RunFacts
from experiments.report_page.markup import Markup, joined, shown, table, tag
from experiments.report_page.tallies import OperatorTally, funnel, operator_order, records, tally_operators
from experiments.winners import KernelRow, Ratio

__all__ = ["Chapter", "Charts", "chapter", "cost", "descent", "failures", "grid", "head", "operators", "progress"]

Chapter = tuple[str, str, Markup]
"""Its name in the address, its title, and what is in it."""
MOST_CELLS = 60
"""Rows of the table of elites."""
MOST_STEPS = 60
"""Steps of the line to the best that are shown with their diffs: the last."""


class Charts:
    """The charts of a page, gathered while its chapters are written."""

    def __init__(self) -> None:
        self.drawn: list[Chart] = []

    def place(self, chart: Chart) -> Markup:
        """Where a chart goes: an empty frame that the script fills, and what is left out of it."""
        self.drawn.append(chart)
        return frame(chart.name, chart.label, chart.height, chart.note)


def frame(name: str, label: str, height: int, note: str | None = None) -> Markup:
    """An empty frame for a chart."""
    box = tag("div", id=f"chart-{name}", class_="chart", role="img", aria_label=label, style=f"min-height:{height}px")
    return tag("figure", box, tag("figcaption", note) if note is not None else "")


def chapter(name: str, title: str, *parts: object) -> Chapter:
    """A chapter of its parts."""
    return name, title, joined(parts)


def p(*parts: object, class_: str | None = None) -> Markup:
    """A paragraph."""
    return tag("p", *parts, class_=class_)


def kernel_link(digest: str, anchors: Mapping[str, str], name: str | None = None) -> Markup:
    """A link to a kernel of the page, or its first digits where it is not on it."""
    words = tag("code", name if name is not None else digest[:12])
    return tag("a", words, href=f"#{anchors[digest]}") if digest in anchors else words


def speedup(estimate: Estimate | None) -> str:
    """Three digits after the point, which is what intervals allow; nothing where there is none."""
    return f"{estimate.speedup:.3f}" if estimate is not None else "–"


def interval(estimate: Estimate | None) -> str:
    """The ends of the interval."""
    return "{:.3f} to {:.3f}".format(*estimate.interval) if estimate is not None else "–"


def duration(seconds: float) -> str:
    """For instance `1:02:03`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def moment(text: str | None) -> str:
    """UTC to the minute."""
    return f"{text[:16].replace('T', ' ')} UTC" if text else "never"


def between(first: str, last: str) -> float | None:
    """Seconds between two moments; None where one cannot be read or the clock went back."""
    try:
        seconds = (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    except (TypeError, ValueError):
        return None
    return seconds if seconds >= 0 else None


def tile(title: str, value: object, more: object = "") -> Markup:
    """One figure of the head."""
    return tag("div", tag("dt", title), tag("dd", tag("strong", value), tag("span", more)), class_="tile")


def ratio_in_words(ratio: Ratio | None) -> tuple[str, str]:
    """Value and interval."""
    return (f"{ratio.value:.3f}×", f"{ratio.low:.3f} to {ratio.high:.3f}") if ratio is not None else ("–", "")


def head(facts: RunFacts, anchors: Mapping[str, str]) -> Markup:
    """Run, problem, environment, the best kernel and the cost in figures."""
    info, best = facts.info, facts.best
    calls = sum(line.n_calls for line in facts.ledger)
    tokens = sum(line.n_prompt_tokens + line.n_reply_tokens for line in facts.ledger)
    dollars = math.fsum(line.cost_usd for line in facts.ledger)
    tiles = []
    if best is not None and best.estimate is not None:
        tiles.append(tile("best over baseline", f"{speedup(best.estimate)}×", f"95 %: {interval(best.estimate)}"))
        value, ends = ratio_in_words(facts.over_seed)
        words = "no seed was timed" if facts.best_seed is None else f"95 %: {ends}" if ends else "it is the best seed"
        tiles.append(tile("best over best seed", value, words))
    elif facts.rows:
        n_built = sum(row.is_right for row in facts.rows)
        tiles.append(tile("past every gate", f"{n_built:,}", "kernels; none was timed"))
    share = len(facts.cells) / info.schema.n_cells
    tiles.append(tile("cells filled", f"{len(facts.cells):,}", f"of {info.schema.n_cells:,} ({share:.2%})"))
    tiles.append(tile("candidates", f"{len(facts.rows):,}", f"{sum(row.is_right for row in facts.rows):,} right"))
    elapsed = between(info.created, facts.rows[-1].created) if facts.rows else None
    tiles.append(tile("wall time", duration(elapsed) if elapsed is not None else "–", "to the last candidate"))
    tiles.append(tile("model", f"${dollars:,.4f}", f"{calls:,} calls, {tokens:,} tokens"))
    return joined([tag("dl", *tiles, class_="tiles"), _compared(facts, anchors), _setting(facts)])


def _compared(facts: RunFacts, anchors: Mapping[str, str]) -> Markup:
    best = facts.best
    baseline = facts.info.environment.identity.get("baseline", "the vendor's library")
    if not facts.rows:
        return p("The run has no candidates yet.")
    if best is None or best.estimate is None:
        return p("Nothing was timed: kernels were built, read and gated, or none came so far. There are no speed-ups.")
    again = (
        "from measurements after the search alone, which its choice does not flatter"
        if best.is_final
        else "from the sessions that it was chosen by, so luck flatters it"
    )
    words = [
        "The best kernel is ", kernel_link(best.digest, anchors, best.name), f", at {speedup(best.estimate)} of the speed of ",
        tag("b", baseline), f" (95 % interval {interval(best.estimate)}, {best.estimate.n_blocks:,} paired blocks, {again}).",
    ]  # fmt: skip
    if facts.best_seed is not None and facts.over_seed is not None:
        value, ends = ratio_in_words(facts.over_seed)
        words += [" It is ", tag("b", value), f" as fast as the best seed, {facts.best_seed.name} ({ends})."]
    if facts.is_inherited:
        words.append(" The archive held it before this run began.")
    note = "Speed-up: baseline time over kernel time, the geometric mean over the problem's cases; 1 is as fast as the baseline."
    return joined([p(*words), p(note, class_="note")])


def _setting(facts: RunFacts) -> Markup:
    info = facts.info
    rows: list[tuple[object, object]] = [
        ("problem", info.problem_title),
        ("environment", tag("code", info.environment.key)),
        *info.environment.identity.items(),
        ("started", moment(info.created)),
        ("finished", moment(info.finished)),
        ("seed of chance", info.seed),
    ]
    provenance = info.environment.provenance
    more = [tag("h4", "Where it ran (does not part results)"), _pairs(provenance.items())] if provenance else []
    body = [_pairs(rows), *more]
    return tag("details", tag("summary", "Problem and environment"), *body, class_="setting", open="")


def _pairs(rows: object) -> Markup:
    assert hasattr(rows, "__iter__")
    return tag("dl", *(joined([tag("dt", name), tag("dd", value)]) for name, value in rows), class_="pairs")


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
        "Points are first measurements; one that was inconclusive counts from its first conclusive session on. The line is the"
        " highest lower end so far: a first look that is lucky does not move it far."
    )
    heads = ("candidate", "operator", "kernel", "speed-up", "95 % interval", "lower end rose by")
    return chapter(
        "progress",
        "Progress",
        drawn.place(charts.progress_chart(facts.rows)),
        p(note, class_="note"),
        _seeds(facts.seeds, anchors),
        _folded(f"The best rose {len(rising)} times", table("When the best rose", heads, rows[-100:], numbers=(3, 4, 5))),
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


def _folded(summary: str, *parts: object) -> Markup:
    return tag("details", tag("summary", summary), *parts)


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
    behind = " Where more than one cell lies behind a square, the best of them is shown." if axes > 2 else ""
    words = f"Each square is the best kernel of one combination of measures.{behind} A click leads to the kernel."
    left_out = len(facts.cells) - len(rows)
    return chapter(
        "cells",
        "Cells",
        tag("div", id="cells-axes", class_="controls"),
        frame("cells", "Heat map of the filled cells.", 420),
        p(words, class_="note"),
        _folded(
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
        parts.append(p("There is no best kernel yet."))
    tree = lay_out(facts.rows, facts.cells)
    if len(tree.nodes) > 1:
        words = "Right kernels by their first parents; the farther right, the more steps from a seed."
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
        words: list[object] = [tag("b", step.operator), f" {where} ", kernel_link(step.digest, anchors), f" {speedup(step.estimate)}"]
        if before is not None and before.estimate is not None and step.estimate is not None:
            words.append(f", {math.exp(step.estimate.log_ratio - before.estimate.log_ratio):.3f}× its parent")
        if len(step.parents) > 1:
            words += [", also of ", joined(kernel_link(parent, anchors) for parent in step.parents[1:])]
        if before is not None and step.digest in sources and before.digest in sources:
            old, new = sources[before.digest], sources[step.digest]
            came, went = n_changed(old, new)
            items.append(_folded_step(joined(words), f"{came} lines came, {went} went", diff_markup(old, new)))
        else:
            items.append(tag("li", p(*words)))
        before = step
    first = "" if len(facts.line) <= MOST_STEPS else p(f"The first {len(facts.line) - MOST_STEPS} steps are left out.", class_="note")
    return joined([tag("h3", "From seed to best, step by step"), first, tag("ol", *items, class_="steps")])


def _folded_step(words: Markup, changed: str, diff: Markup) -> Markup:
    return tag("li", p(words), tag("details", tag("summary", f"what changed: {changed}"), diff))


def operators(facts: RunFacts, drawn: Charts) -> Chapter:
    """What the operators brought, and the funnel."""
    if not facts.rows:
        return chapter("operators", "Operators", p("No operator was asked yet."))
    tallies = tally_operators(facts.rows)
    spent = _spent(facts.ledger)
    rows = [_operator(tally, spent.get(tally.operator, (0, 0.0))) for tally in tallies]
    heads = (
        "operator", "asked", "right", "cells", "records", "gain", "seconds", "seconds a right kernel", "tokens", "dollars",
    )  # fmt: skip
    words = (
        "Cells: offspring that opened a cell or took one. Records: how often the run's best lower end rose, and gain by how much"
        " in all. Seconds: proposing, building and measuring, of all candidates together; those of several candidates overlap."
    )
    return chapter(
        "operators",
        "Operators",
        drawn.place(counts_charts.operators_chart(tallies)),
        table("What each operator brought and cost", heads, rows, numbers=range(1, 10)),
        p(words, class_="note"),
        tag("h3", "How far candidates came"),
        drawn.place(counts_charts.funnel_chart(funnel(facts.rows))),
        table("Candidates by stage", ("stage", "candidates", "of those asked for"), _funnel(facts), numbers=(1, 2)),
    )


def _operator(tally: OperatorTally, spent: tuple[int, float]) -> tuple[object, ...]:
    seconds = math.fsum(tally.seconds[stage] for stage in counts_charts.STAGES)
    return (
        tally.operator,
        f"{tally.n_asked:,}",
        f"{tally.n_right:,}",
        f"{tally.fates['took a cell']:,}",
        f"{tally.n_records:,}",
        f"{math.exp(tally.gain):.3f}×" if tally.gain else "–",
        f"{seconds:,.1f}",
        f"{seconds / tally.n_right:,.2f}" if tally.n_right else "–",
        f"{spent[0]:,}" if spent[0] else "–",
        f"{spent[1]:,.4f}" if spent[1] else "–",
    )


def _spent(ledger: Sequence[LedgerLine]) -> dict[str, tuple[int, float]]:
    spent: dict[str, tuple[int, float]] = {}
    for line in ledger:
        tokens, dollars = spent.get(line.operator, (0, 0.0))
        spent[line.operator] = tokens + line.n_prompt_tokens + line.n_reply_tokens, dollars + line.cost_usd
    return spent


def _funnel(facts: RunFacts) -> list[tuple[str, str, str]]:
    return [(name, f"{count:,}", f"{count / len(facts.rows):.1%}") for name, count in funnel(facts.rows)]


def failures(facts: RunFacts, drawn: Charts, anchors: Mapping[str, str]) -> Chapter:
    """Failures by gate, each with an example."""
    if not facts.failures:
        return chapter("failures", "Failures", p("No candidate failed." if facts.rows else "There are no candidates yet."))
    rows = []
    for failure in facts.failures:
        message = failure.message or ""
        words = message if len(message) <= 400 else message[:399] + "…"
        example = joined([f"#{failure.index} ", kernel_link(failure.digest, anchors) if failure.digest is not None else ""])
        rows.append((failure.gate or "–", failure.kind.replace("_", " "), f"{failure.count:,}", example, tag("code", words, class_="wrap")))
    heads = ("gate", "kind", "count", "first", "its message")
    return chapter(
        "failures",
        "Failures",
        drawn.place(counts_charts.failures_chart(facts.failures)),
        table("Ways to fail, the most frequent first", heads, rows, numbers=(2,), class_="failures"),
    )


def cost(facts: RunFacts, drawn: Charts) -> Chapter:
    """Seconds by stage, calls, tokens and dollars."""
    if not facts.rows:
        return chapter("cost", "Cost", p("Nothing was spent yet."))
    rows = [
        (
            line.generator,
            line.operator,
            f"{line.n_calls:,}",
            f"{line.n_errors:,}",
            f"{line.n_retries:,}",
            f"{line.n_prompt_tokens:,}",
            f"{line.n_reply_tokens:,}",
            f"{line.latency_s:,.1f}",
            f"{line.cost_usd:,.4f}",
        )
        for line in facts.ledger
    ]
    heads = ("generator", "operator", "calls", "outages", "retries", "prompt tokens", "reply tokens", "seconds", "dollars")
    model = table("Calls of the model", heads, rows, numbers=range(2, 9)) if rows else p("The model was not asked.")
    return chapter(
        "cost",
        "Cost",
        drawn.place(counts_charts.cost_chart(tally_operators(facts.rows))),
        p("Stages of several candidates overlap, so that the seconds add up to more than the wall time.", class_="note"),
        model,
    )


