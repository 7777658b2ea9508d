"""Charts of one run as plotly's plain data. Colours are names of the page's style, which has a light and a dark one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archive.mining import Ancestor
from evo_l2.contracts import Outcome
from evo_l2.evaluation import Estimate
from experiments.report_page.descent import Tree
from experiments.report_page.facts import CandidateRow, GridPoint
from experiments.report_page.markup import chart_text
from experiments.report_page.tallies import operator_order, records

__all__ = [
    "MOST_POINTS",
    "Chart",
    "coverage_chart",
    "line_chart",
    "log_axis",
    "progress_chart",
    "thin",
    "tree_chart",
]

MOST_POINTS = 1200
"""Points of a chart; the rest is left out evenly, records and seeds never."""
SYMBOLS = ("diamond", "circle", "square", "triangle-up", "cross", "star", "pentagon", "hexagram")
SPEEDUP = "speed-up (baseline time / kernel time)"


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with its words."""

    name: str
    """For its element; unique on the page."""
    figure: dict[str, Any]
    """`data` and `layout`."""
    label: str
    """What it shows, for those who do not see it."""
    height: int = 420
    """CSS pixels."""
    note: str | None = None
    """What is left out of it."""


def colour(place: int) -> str:
    """The colour of an operator by its place."""
    return f"var(--c{place % 8})"


def by_candidate(n: int) -> dict[str, Any]:
    """An axis of the indices of `n` candidates."""
    return {"title": {"text": "candidate"}, **({"dtick": 1} if n < 12 else {})}


def log_axis(values: Sequence[float]) -> dict[str, Any]:
    """An axis for speed-ups: logarithmic, with plain numbers at its ticks, where they span more than a factor of three."""
    known = [value for value in values if value > 0]
    low, high = (min(known), max(known)) if known else (0.5, 1.0)
    if high / low <= 3:
        margin = max((high - low) * 0.08, high * 0.01)
        return {"range": [max(0.0, low - margin), high + margin]}
    ends = [math.log10(low) - 0.06, math.log10(high) + 0.06]
    decades = range(math.floor(ends[0]), math.ceil(ends[1]) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    ticks = [tick for tick in ticks if ends[0] <= math.log10(tick) <= ends[1]]
    return {"type": "log", "range": ends, "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def thin(rows: Sequence[CandidateRow], kept: frozenset[int], most: int = MOST_POINTS) -> list[CandidateRow]:
    """At most about `most` of the rows, evenly spread, and all whose index is in `kept`."""
    step = max(1, math.ceil(len(rows) / most))
    return [row for place, row in enumerate(rows) if place % step == 0 or row.index in kept]


def bars(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Error bars from the ends of the intervals."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [digits(e.interval[1] - e.speedup) for e in estimates],
        "arrayminus": [digits(e.speedup - e.interval[0]) for e in estimates],
        "thickness": 1,
        "width": 0,
        "color": "var(--bar)",
    }


def digits(value: float) -> float:
    """Five digits, which is more than a picture shows."""
    return float(f"{value:.5g}")


def in_words(estimate: Estimate | None) -> str:
    """For instance `0.832 (0.793 to 0.863)`."""
    if estimate is None:
        return "not timed"
    low, high = estimate.interval
    return f"{estimate.speedup:.3f} ({low:.3f} to {high:.3f})"


def hover(row: CandidateRow, *more: object) -> str:
    """What a point says of its candidate."""
    name = row.digest[:12] if row.digest is not None else row.outcome.value.replace("_", " ")
    return chart_text(f"#{row.index} {row.operator}", name, *more)


def progress_chart(rows: Sequence[CandidateRow]) -> Chart:
    """Every timed candidate by operator, what came to nothing as ticks below, and the best so far."""
    rising = records(rows)
    kept = frozenset(row.index for row, _ in rising) | {row.index for row in rows if row.operator == "seed"}
    timed = [row for row in rows if row.estimate is not None]
    points = thin(timed, kept)
    others = [row for row in rows if row.estimate is None]
    ticks = thin(others, frozenset())
    values = [end for row in points if row.estimate is not None for end in row.estimate.interval]
    axis = log_axis([*values, 1.0] if values and max(values) > 0.4 else values)
    data: list[dict[str, Any]] = []
    for place, operator in enumerate(operator_order(rows)):
        mine = [(row, row.estimate) for row in points if row.operator == operator and row.estimate is not None]
        if mine:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": chart_text(operator, most=30),
                    "x": [row.index for row, _ in mine],
                    "y": [digits(estimate.speedup) for _, estimate in mine],
                    "error_y": bars([estimate for _, estimate in mine]),
                    "text": [hover(row, in_words(estimate)) for row, estimate in mine],
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {
                        "color": colour(place),
                        "symbol": SYMBOLS[place % len(SYMBOLS)],
                        "size": 11 if operator == "seed" else 7 if len(points) < 500 else 5,
                        "line": {"width": 1, "color": "var(--paper)"},
                    },
                }
            )
    if ticks:
        low = axis["range"][0]
        floor = (
            10 ** (low + 0.02 * (axis["range"][1] - low))
            if axis.get("type") == "log"
            else low + 0.02 * (axis["range"][1] - low)
        )
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "without a time",
                "x": [row.index for row in ticks],
                "y": [digits(floor)] * len(ticks),
                "text": [hover(row, _fate_in_words(row)) for row in ticks],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"color": "var(--muted)", "symbol": "line-ns-open", "size": 8},
            }
        )
    if rising:
        steps = [*((row.index, row.estimate) for row, _ in rising), (rows[-1].index, rising[-1][0].estimate)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "best so far (lower end)",
                "x": [index for index, _ in steps],
                "y": [digits(estimate.interval[0]) for _, estimate in steps if estimate is not None],
                "line": {"shape": "hv", "color": "var(--ink)", "width": 2},
                "hoverinfo": "skip",
            }
        )
    data += _parity(rows, axis)
    note = None
    if len(points) < len(timed) or len(ticks) < len(others):
        note = f"{len(points):,} of {len(timed):,} timed candidates are drawn, and {len(ticks):,} of {len(others):,} others."
    layout = {
        "xaxis": by_candidate(len(rows)),
        "yaxis": {"title": {"text": SPEEDUP}, **axis},
        "hovermode": "closest",
    }
    label = "Speed-up of every candidate with its 95 % interval, by operator, and the best so far."
    return Chart("progress", {"data": data, "layout": layout}, label, 460, note)


def _fate_in_words(row: CandidateRow) -> str:
    if row.status is None:
        return "known before" if row.outcome is Outcome.DUPLICATE else row.outcome.value.replace("_", " ")
    if row.status.is_good:
        return "right, not timed"
    return f"{row.status.value.replace('_', ' ')} at gate {row.gate}"


def _parity(rows: Sequence[CandidateRow], axis: dict[str, Any]) -> list[dict[str, Any]]:
    """A line where kernel and baseline are equally fast, where the axis comes so far."""
    top = 10 ** axis["range"][1] if axis.get("type") == "log" else axis["range"][1]
    if top < 1 or not rows:
        return []
    line = {"color": "var(--muted)", "width": 1, "dash": "dash"}
    ends = [rows[0].index, rows[-1].index]
    return [
        {"type": "scatter", "mode": "lines", "name": "as fast as the baseline", "x": ends, "y": [1, 1], "line": line,
         "hoverinfo": "skip"}
    ]  # fmt: skip


def coverage_chart(history: Sequence[GridPoint], n_cells: int, *, is_run: bool) -> Chart:
    """Filled cells, and below them the QD score, by candidate."""
    index = [point.index for point in history]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "filled cells",
            "x": index,
            "y": [point.n_elites for point in history],
            "text": [f"{point.n_elites / n_cells:.2%} of {n_cells:,} cells" for point in history],
            "hovertemplate": "#%{x}: %{y} cells, %{text}<extra></extra>",
            "line": {"shape": "hv", "color": "var(--c1)", "width": 2},
        }
    ]
    layout: dict[str, Any] = {
        "xaxis": by_candidate(history[-1].index + 1 if history else 0),
        "yaxis": {"title": {"text": "filled cells"}, "rangemode": "tozero"},
    }
    if is_run:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "QD score",
                "x": index,
                "y": [digits(point.qd_score) for point in history],
                "yaxis": "y2",
                "hovertemplate": "#%{x}: QD score %{y:.3f}<extra></extra>",
                "line": {"shape": "hv", "color": "var(--c2)", "width": 2},
            }
        )
        layout["xaxis"]["anchor"] = "y2"
        layout["yaxis"]["domain"] = [0.56, 1]
        layout["yaxis2"] = {"title": {"text": "QD score"}, "rangemode": "tozero", "domain": [0, 0.44]}
    return Chart("coverage", {"data": data, "layout": layout}, "Filled cells and QD score by candidate.", 420)


def line_chart(line: Sequence[Ancestor]) -> Chart:
    """Speed-up at each step from seed to best, by first sessions."""
    timed = [(place, step, step.estimate) for place, step in enumerate(line) if step.estimate is not None]
    ticks = range(0, len(line), max(1, math.ceil(len(line) / 16)))
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "on the line to the best",
            "x": [place for place, _, _ in timed],
            "y": [digits(estimate.speedup) for _, _, estimate in timed],
            "error_y": bars([estimate for _, _, estimate in timed]),
            "text": [
                chart_text(f"{step.operator}, {step.run} #{step.index}", step.digest[:12], in_words(estimate))
                for _, step, estimate in timed
            ],
            "hovertemplate": "%{text}<extra></extra>",
            "line": {"color": "var(--c1)", "width": 2},
            "marker": {"size": 8, "color": "var(--c1)"},
        }
    ]
    values = [end for _, _, estimate in timed for end in estimate.interval]
    layout = {
        "xaxis": {
            "title": {"text": "step, with the candidate that brought it"},
            "tickvals": list(ticks),
            "ticktext": [f"{place}: #{line[place].index}" for place in ticks],
        },
        "yaxis": {"title": {"text": SPEEDUP}, **log_axis(values)},
        "showlegend": True,
    }
    return Chart("line", {"data": data, "layout": layout}, "Speed-up at each step from seed to best.", 340)


def tree_chart(tree: Tree, line: Sequence[Ancestor], operators: Sequence[str]) -> Chart:
    """Kernels by depth of descent; the line to the best is drawn thick."""
    on_line = {step.digest for step in line}
    plain = [pair for pair in tree.edges if not {tree.nodes[i].row.digest for i in pair} <= on_line]
    thick = [pair for pair in tree.edges if {tree.nodes[i].row.digest for i in pair} <= on_line]
    data = [
        _edges(tree, plain, "first parent", "var(--edge)", 1.2),
        _edges(tree, tree.further, "further parent", "var(--edge)", 1.2, dash="dot"),
        _edges(tree, thick, "line to the best", "var(--ink)", 3),
    ]
    values = [node.row.estimate.log_ratio for node in tree.nodes if node.row.estimate is not None]
    for place, operator in enumerate(operators):
        mine = [node for node in tree.nodes if node.row.operator == operator]
        if mine:
            marker: dict[str, Any] = {
                "symbol": SYMBOLS[place % len(SYMBOLS)],
                "size": 12 if operator == "seed" else 9,
                "color": colour(place),
                "line": {"width": 1, "color": "var(--ink)"},
            }
            if values:
                marker |= {"color": [_logarithm(node.row.estimate) for node in mine], "coloraxis": "coloraxis"}
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": chart_text(operator, most=30),
                    "x": [node.depth for node in mine],
                    "y": [-node.height for node in mine],
                    "text": [hover(node.row, in_words(node.row.estimate)) for node in mine],
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": marker,
                }
            )
    deepest = max((node.depth for node in tree.nodes), default=0)
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": "depth of descent (steps from a seed)"},
            "range": [-0.5, deepest + 0.5],
            "dtick": 1 if deepest < 20 else None,
        },
        "yaxis": {"title": {"text": "kernels, by family"}, "showticklabels": False, "showgrid": False},
        "hovermode": "closest",
    }
    if values:
        ticks = log_axis([math.exp(value) for value in values]).get("tickvals")
        ticks = ticks if ticks and len(ticks) > 1 else [math.exp(min(values)), math.exp(max(values))]
        layout["coloraxis"] = {
            "colorscale": "Viridis",
            "colorbar": {
                "title": {"text": "speed-up", "side": "right", "font": {"size": 13}},
                "tickvals": [math.log(tick) for tick in ticks],
                "ticktext": [f"{tick:.3g}" for tick in ticks],
                "thickness": 12,
            },
        }
    note = f"{tree.n_left_out:,} right kernels that are no ancestors of the best are left out." if tree.n_left_out else None
    height = max(320, min(1100, 120 + 11 * tree.n_leaves))
    return Chart("tree", {"data": data, "layout": layout}, "The tree of descent of the right kernels.", height, note)


def _logarithm(estimate: Estimate | None) -> float | None:
    return digits(estimate.log_ratio) if estimate is not None else None


def _edges(
    tree: Tree, pairs: Sequence[tuple[int, int]], name: str, colour: str, width: float, *, dash: str = "solid"
) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    for pair in pairs:
        for end in pair:
            x.append(tree.nodes[end].depth)
            y.append(-tree.nodes[end].height)
        x.append(None)
        y.append(None)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": colour, "width": width, "dash": dash},
        "hoverinfo": "skip",
        "showlegend": bool(pairs),
    }
