"""The first chapter: what came out, against what, and where it ran."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evo_l2.evaluation import Status
from experiments.report_page.chapters import (
    between,
    duration,
    folded,
    interval,
    kernel_link,
    moment,
    p,
    speedup,
)
from experiments.report_page.facts import RunFacts
from experiments.report_page.markup import Markup, joined, tag
from experiments.winners import Ratio

__all__ = ["result"]


def tile(title: str, value: object, more: object = "") -> Markup:
    """One figure of the head."""
    return tag("div", tag("dt", title), tag("dd", tag("strong", value), tag("span", more)), class_="tile")


def ratio_in_words(ratio: Ratio | None) -> tuple[str, str]:
    """Value and interval."""
    return (f"{ratio.value:.3f}×", f"{ratio.low:.3f} to {ratio.high:.3f}") if ratio is not None else ("–", "")


def result(facts: RunFacts, anchors: Mapping[str, str]) -> Markup:
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
        if any(row.status is Status.BUILT for row in facts.rows):
            return p("Nothing was run: kernels were built, read and gated, and have no speed-ups.")
        return p("No kernel has a time that can be trusted so far, so there are no speed-ups.")
    again = (
        "from measurements after the search alone, which its choice does not flatter"
        if best.is_final
        else "from the sessions that it was chosen by, so luck flatters it"
    )
    words = [
        "The best kernel is ", kernel_link(best.digest, anchors, best.name),
        f", at {speedup(best.estimate)} of the speed of ",
        tag("b", baseline), f" (95\u00a0% interval {interval(best.estimate)},",
        f" {best.estimate.n_blocks:,} paired blocks, {again}).",
    ]  # fmt: skip
    if facts.best_seed is not None and facts.over_seed is not None:
        value, ends = ratio_in_words(facts.over_seed)
        words += [" It is ", tag("b", value), f" as fast as the best seed, {facts.best_seed.name} ({ends})."]
    if facts.is_inherited:
        words.append(" The archive held it before this run began.")
    note = (
        "Speed-up: baseline time over kernel time, the geometric mean over the problem's cases; 1 is as fast as the baseline."
    )
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
    where = folded("Where it ran, which does not part results", _pairs(provenance.items())) if provenance else ""
    return tag("details", tag("summary", "Problem and environment"), _pairs(rows), where, class_="setting", open="")


def _pairs(rows: object) -> Markup:
    assert hasattr(rows, "__iter__")
    return tag("dl", *(joined([tag("dt", name), tag("dd", value)]) for name, value in rows), class_="pairs")
