"""The chapters of counts and costs: operators, failures, cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from archive.mining import LedgerLine
from experiments.report_page import counts_charts
from experiments.report_page.chapters import (
    Chapter,
    Charts,
    chapter,
    kernel_link,
    p,
)
from experiments.report_page.facts import RunFacts
from experiments.report_page.markup import joined, table, tag
from experiments.report_page.tallies import OperatorTally, funnel, tally_operators

__all__ = ["cost", "failures", "operators"]


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
        "Cells: offspring that opened a cell or took one. Records: how often the run's best lower end rose; gain: by how much"
        " in all. Seconds: proposing, building and measuring, of all candidates together; those of several overlap."
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
        rows.append(
            (
                failure.gate or "–",
                failure.kind.replace("_", " "),
                f"{failure.count:,}",
                example,
                tag("code", words, class_="wrap"),
            )
        )
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
