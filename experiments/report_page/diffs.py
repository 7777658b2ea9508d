"""What changed between two sources, as HTML that needs no script."""

from __future__ import annotations

import difflib

from experiments.report_page.markup import Markup, joined, tag

__all__ = ["diff_markup", "n_changed"]

_CLASSES = {"+": "add", "-": "del", "@": "hunk"}


def diff_lines(old: str, new: str) -> list[str]:
    """A unified diff without its two heads; empty where nothing changed."""
    return list(difflib.unified_diff(old.split("\n"), new.split("\n"), n=2, lineterm=""))[2:]


def n_changed(old: str, new: str) -> tuple[int, int]:
    """Lines that came, and lines that went."""
    lines = diff_lines(old, new)
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


def diff_markup(old: str, new: str) -> Markup:
    """The diff, each line with its sign."""
    lines = diff_lines(old, new)
    if not lines:
        return tag("p", "The sources are the same.")
    spans = [tag("span", line or " ", class_=_CLASSES.get(line[:1])) for line in lines]
    return tag("pre", joined(spans), class_="diff", tabindex="0")
