"""Charts of counts and costs: operators, the funnel, failures by gate, seconds; and the archive's runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.report_page.charts import SPEEDUP, Chart, bars, digits, in_words, log_axis
from experiments.report_page.facts import FailureRow, RunRow
from experiments.report_page.markup import chart_text
from experiments.report_page.tallies import FATES, OperatorTally

__all__ = ["cost_chart", "failures_chart", "funnel_chart", "operators_chart", "runs_chart", "runs_curves"]

_FATE_COLOURS = {
    "took a cell": "var(--good)",
    "right, no cell": "var(--c1)",
    "right, not timed": "var(--c5)",
    "wrong or refused": "var(--bad)",
    "known before": "var(--c7)",
    "no kernel": "var(--c4)",
    "outage": "var(--c6)",
}
STAGES = ("propose", "build", "measure")
_STAGE_COLOURS = ("var(--c4)", "var(--c1)", "var(--c3)")


def counts(most: int) -> dict[str, Any]:
    """An axis of whole numbers of candidates."""
    return {"title": {"text": "candidates"}, "rangemode": "tozero", **({"dtick": 1} if most < 8 else {})}


def operators_chart(tallies: Sequence[OperatorTally]) -> Chart:
    """What became of each operator's candidates."""
    names = [chart_text(tally.operator, most=24) for tally in tallies]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": kind,
            "y": names,
            "x": [tally.fates[kind] for tally in tallies],
            "marker": {"color": _FATE_COLOURS[kind]},
            "hovertemplate": f"%{{y}}: %{{x}} {kind}<extra></extra>",
        }
        for kind in FATES
        if any(tally.fates[kind] for tally in tallies)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": counts(max((tally.n_asked for tally in tallies), default=0)),
        "yaxis": {"title": {"text": "operator"}, "autorange": "reversed", "type": "category"},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    label = "What became of the candidates of each operator."
    return Chart("operators", {"data": data, "layout": layout}, label, 190 + 34 * len(tallies))


def funnel_chart(stages: Sequence[tuple[str, int]]) -> Chart:
    """How many candidates came to each stage."""
    data = [
        {
            "type": "funnel",
            "name": "candidates",
            "y": [name for name, _ in stages],
            "x": [count for _, count in stages],
            "textinfo": "value+percent initial",
            "hovertemplate": "%{y}: %{x} (%{percentInitial:.1%} of those asked for)<extra></extra>",
            "marker": {"color": "var(--c1)"},
            "connector": {"line": {"width": 0}, "fillcolor": "var(--tint)"},
        }
    ]
    layout = {
        "yaxis": {"title": {"text": "stage"}, "type": "category"},
        "xaxis": {"title": {"text": "candidates"}},
        "showlegend": False,
    }
    return Chart("funnel", {"data": data, "layout": layout}, "How many candidates came to each stage.", 330)


def failures_chart(failures: Sequence[FailureRow]) -> Chart:
    """Failures by gate; the twenty most frequent."""
    shown = failures[:20]
    kinds = dict.fromkeys(failure.kind for failure in shown)
    names = [chart_text(_failure(failure), most=40) for failure in shown]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": kind.replace("_", " "),
            "y": [name for name, failure in zip(names, shown, strict=True) if failure.kind == kind],
            "x": [failure.count for failure in shown if failure.kind == kind],
            "hovertemplate": "%{y}: %{x}<extra></extra>",
            "marker": {"color": f"var(--c{place % 8})"},
        }
        for place, kind in enumerate(kinds, start=2)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": counts(max((failure.count for failure in shown), default=0)),
        "yaxis": {
            "title": {"text": "gate, or what was missing"},
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names[::-1],
        },
        "showlegend": True,
    }
    note = f"The {len(failures) - len(shown)} rarest are in the table only." if len(failures) > len(shown) else None
    return Chart("failures", {"data": data, "layout": layout}, "Failures by gate.", 180 + 30 * len(shown), note)


def _failure(failure: FailureRow) -> str:
    return failure.gate if failure.gate is not None else failure.kind.replace("_", " ")


def cost_chart(tallies: Sequence[OperatorTally]) -> Chart:
    """Seconds by stage and operator."""
    names = [chart_text(tally.operator, most=24) for tally in tallies]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": stage,
            "y": names,
            "x": [digits(float(tally.seconds[stage])) for tally in tallies],
            "marker": {"color": shade},
            "hovertemplate": f"%{{y}}: %{{x:.1f}} s to {stage}<extra></extra>",
        }
        for stage, shade in zip(STAGES, _STAGE_COLOURS, strict=True)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "seconds of all candidates together"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "operator"}, "autorange": "reversed", "type": "category"},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    label = "Seconds spent to propose, build and measure, by operator."
    return Chart("cost", {"data": data, "layout": layout}, label, 190 + 34 * len(tallies))


def runs_chart(name: str, runs: Sequence[RunRow]) -> Chart:
    """The bests of runs of one problem in one environment, with their intervals."""
    timed = [(run, run.best.estimate) for run in runs if run.best is not None and run.best.estimate is not None]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "best kernel, 95 % interval",
            "y": [chart_text(run.name, most=30) for run, _ in timed],
            "x": [digits(estimate.speedup) for _, estimate in timed],
            "error_x": {**bars([estimate for _, estimate in timed]), "thickness": 2, "width": 5, "color": "var(--c1)"},
            "text": [chart_text(run.name, run.best.name if run.best else "", in_words(e)) for run, e in timed],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"size": 10, "color": "var(--c1)"},
        }
    ]
    axis = log_axis([end for _, estimate in timed for end in estimate.interval])
    layout = {
        "xaxis": {"title": {"text": SPEEDUP}, **axis},
        "yaxis": {"title": {"text": "run"}, "type": "category", "autorange": "reversed"},
        "showlegend": True,
    }
    return Chart(name, {"data": data, "layout": layout}, "Best speed-up of each run.", 190 + 34 * len(timed))


def runs_curves(name: str, runs: Sequence[RunRow]) -> Chart:
    """How the bests of runs of one problem in one environment rose."""
    data: list[dict[str, Any]] = []
    for place, run in enumerate(run for run in runs if run.curve):
        steps = [*run.curve, (max(run.n_candidates - 1, run.curve[-1][0]), run.curve[-1][1])]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": chart_text(run.name, most=30),
                "x": [index for index, _ in steps],
                "y": [digits(value) for _, value in steps],
                "line": {
                    "shape": "hv",
                    "width": 2,
                    "color": f"var(--c{(place + 1) % 8})",
                    "dash": ("solid", "dash", "dot")[place // 8 % 3],
                },
                "hovertemplate": "#%{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
            }
        )
    axis = log_axis([value for run in runs for _, value in run.curve])
    layout = {
        "xaxis": {"title": {"text": "candidate"}},
        "yaxis": {"title": {"text": "best so far, lower end of the " + SPEEDUP.partition(" (")[0]}, **axis},
        "showlegend": True,
    }
    return Chart(name, {"data": data, "layout": layout}, "How the best of each run rose.", 380)
