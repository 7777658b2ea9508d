"""The whole page: head, chapters, style, data and script in one file that asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from experiments.printable import printable
from experiments.report_page import counts_chapters, kernels, search_chapters, several
from experiments.report_page.chapters import Chapter, Charts
from experiments.report_page.facts import RunFacts, RunRow
from experiments.report_page.markup import Markup, joined, json_block, tag
from experiments.report_page.result_chapter import result

__all__ = ["MARK", "default_axes", "page"]

MARK = "<!-- made by evo-l2 report -->"
"""In the second line of every page: a file that has it may be written over."""
MOST_SQUARES = 3000
"""Cells of the heat map, the best."""


def page(facts: RunFacts, rows: Sequence[RunRow], n_runs: int, plotly: str, made: str) -> str:
    """The page as text.

    Args:
        facts: The run.
        rows: The archive's runs.
        n_runs: How many the archive has.
        plotly: The text of plotly's library.
        made: The moment at which it is made, and by what.
    """
    drawn = Charts()
    anchors = kernels.anchors(facts.kernels)
    parts: list[Chapter] = [
        search_chapters.progress(facts, drawn, anchors),
        search_chapters.grid(facts, drawn, anchors),
        search_chapters.descent(facts, drawn, anchors),
        counts_chapters.operators(facts, drawn),
        counts_chapters.failures(facts, drawn, anchors),
        counts_chapters.cost(facts, drawn),
        kernels.compare(facts),
        kernels.sources(facts),
    ]
    if n_runs > 1:
        parts.append(several.runs(rows, n_runs, facts.info.name, drawn))
    title = f"{facts.info.name}: {facts.info.problem_title}"
    links = [tag("li", tag("a", words, href=f"#{name}")) for name, words, _ in parts]
    body = [
        tag("a", "To the content", href="#content", class_="skip"),
        tag(
            "header",
            tag("h1", facts.info.name),
            tag("p", facts.info.problem_title, class_="subtitle"),
            tag("p", made, class_="note"),
        ),
        tag("nav", tag("ul", *links), aria_label="Chapters"),
        tag(
            "main",
            tag("noscript", tag("p", "Charts need JavaScript; every table and text is here without it.", class_="note")),
            tag("section", tag("h2", "Result"), result(facts, anchors), id="result"),
            *(tag("section", tag("h2", words), content, id=name) for name, words, content in parts),
            id="content",
        ),
        json_block(_data(facts, drawn, anchors), id="data"),
    ]
    scripts = [plotly, _asset("page.js")]
    style = _asset("page.css")
    heading = [
        Markup('<meta charset="utf-8">'),
        _policy(scripts),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup('<link rel="icon" href="data:,">'),
        tag("title", f"{title} · evo-l2"),
        tag("style", Markup(style)),
    ]
    script = joined(tag("script", Markup(text)) for text in scripts)
    return f'<!doctype html>\n{MARK}\n<html lang="en">\n{tag("head", *heading)}\n{tag("body", *body, script)}\n</html>\n'


def _policy(scripts: Sequence[str]) -> Markup:
    """Nothing is loaded, nothing is sent, and no script runs but the two that the page was made with."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts)
    words = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )
    return Markup(f'<meta http-equiv="Content-Security-Policy" content="{words}">')


def _asset(name: str) -> str:
    return resources.files("experiments.report_page").joinpath(name).read_text(encoding="utf-8")


def _data(facts: RunFacts, drawn: Charts, anchors: dict[str, str]) -> dict[str, object]:
    return {
        "charts": [{"name": chart.name, "height": chart.height, **chart.figure} for chart in drawn.drawn],
        "cells": _cells(facts, anchors),
        "kernels": kernels.compare_data(facts),
        "pair": _pair(facts, anchors),
    }


def _pair(facts: RunFacts, anchors: dict[str, str]) -> list[str]:
    """The kernels that are side by side at first: the best seed, or any other, and the best."""
    best = anchors.get(facts.best.digest) if facts.best is not None else None
    seed = anchors.get(facts.best_seed.digest) if facts.best_seed is not None else None
    names = list(anchors.values())
    after = best if best is not None else names[0] if names else None
    before = seed if seed is not None and seed != after else next((name for name in names if name != after), None)
    return [before, after] if before is not None and after is not None else []


def _cells(facts: RunFacts, anchors: dict[str, str]) -> dict[str, object] | None:
    if not facts.cells:
        return None
    squares = facts.cells[:MOST_SQUARES]
    schema = facts.info.schema
    return {
        "axes": [
            {"name": printable(axis.name), "labels": [printable(axis.label(i)) for i in range(axis.n_cells)]}
            for axis in schema.axes
        ],
        "first": default_axes([square.cell for square in squares], len(schema.axes)),
        "squares": [
            {
                "cell": square.cell,
                "name": printable(square.digest[:12]),
                "at": anchors.get(square.digest),
                "speedup": None if square.estimate is None else [square.estimate.speedup, *square.estimate.interval],
            }
            for square in squares
        ],
        "left_out": len(facts.cells) - len(squares),
    }


def default_axes(cells: Sequence[Sequence[int]], n_axes: int) -> list[int]:
    """The two axes on which the filled cells take most values, in their order; one twice where there is but one."""
    spread = sorted(range(n_axes), key=lambda axis: (-len({cell[axis] for cell in cells}), axis))[:2]
    return sorted(spread) if len(spread) > 1 else [0, 0]
