"""What the chapters of the page are made of: paragraphs, links, places for charts, and numbers in words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from evo_l2.evaluation import Estimate
from experiments.report_page.charts import Chart
from experiments.report_page.markup import Markup, joined, tag

__all__ = [
    "Chapter",
    "Charts",
    "between",
    "chapter",
    "duration",
    "folded",
    "frame",
    "interval",
    "kernel_link",
    "moment",
    "p",
    "speedup",
]

Chapter = tuple[str, str, Markup]
"""Its name in the address, its title, and what is in it."""


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


def folded(summary: str, *parts: object) -> Markup:
    """Parts that a click unfolds."""
    return tag("details", tag("summary", summary), *parts)
