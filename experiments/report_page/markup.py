"""HTML whose text cannot become markup: what comes out of an archive was written by models and by strangers."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence

from experiments.printable import printable

__all__ = ["Markup", "attribute", "chart_text", "joined", "json_block", "shown", "table", "tag", "text"]


class Markup(str):
    """Text that is HTML already; any other string is escaped where it meets one."""

    __slots__ = ()


def text(value: object) -> Markup:
    """A value as text of the page: markup stays as it is, control and bidirectional characters are written out."""
    return value if isinstance(value, Markup) else Markup(html.escape(printable(str(value))))


def attribute(value: object) -> str:
    """A value between double quotes."""
    return html.escape(printable(str(value)).replace("\n", " "))


def joined(parts: Iterable[object]) -> Markup:
    """Parts one after the other."""
    return Markup("".join(text(part) for part in parts))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. Attributes that are None are left out; a trailing underscore goes, others become hyphens."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{attribute(value)}"' for key, value in attributes.items() if value is not None
    )
    return Markup(f"<{name}{words}>{joined(children)}</{name}>")


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    class_: str | None = None,
) -> Markup:
    """A table with a caption, in a frame that scrolls where the screen is narrow; the first cell of a row names it.

    Args:
        caption: What it shows.
        head: A heading for each column.
        rows: The cells.
        numbers: The columns that are set flush right.
        class_: For the style.
    """
    flush = frozenset(numbers)
    heading = joined(tag("th", word, scope="col", class_="n" if i in flush else None) for i, word in enumerate(head))
    lines = []
    for row in rows:
        first, *rest = row
        cells = [tag("th", first, scope="row", class_="n" if 0 in flush else None)]
        cells += [tag("td", cell, class_="n" if i in flush else None) for i, cell in enumerate(rest, start=1)]
        lines.append(tag("tr", *cells))
    body = tag("table", tag("caption", caption), tag("thead", tag("tr", heading)), tag("tbody", *lines), class_=class_)
    return tag("div", body, class_="scroll", role="region", tabindex="0", aria_label=caption)


def shown(value: object) -> str:
    """A fact as it is read: whole numbers in groups of three, others to four digits, nothing for what is not known."""
    if value is None:
        return "unknown"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def chart_text(*lines: object, most: int = 200) -> str:
    """Lines for a chart's label. Plotly reads a few tags there, so each line is escaped, and cut where it is long."""
    words = (printable(str(line)).replace("\n", " ") for line in lines)
    return "<br>".join(html.escape(word if len(word) <= most else word[: most - 1] + "…") for word in words)


def json_block(value: object, **attributes: object) -> Markup:
    """Data in a script element that runs nothing. ASCII alone, and no character that could end the element or a string.

    Raises:
        ValueError: The data holds something that JSON has not.
    """
    data = json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Markup(data), type="application/json", **attributes)


def _plain(value: object) -> object:
    """NaN and infinities, which JSON has not, become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
