"""Where the lines of an edit stand in a source: exactly, but for white space, or by likeness above a floor."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LIKENESS_FLOOR", "Span", "find"]

LIKENESS_FLOOR = 0.85
"""Lines that are less alike than this (`difflib` ratio of their text without white space) are never taken for one another."""
_LIKENESS_MARGIN = 0.05
"""The best place has to be this much more alike than the next, or the edit is ambiguous."""
_NEAREST_FLOOR = 0.5
"""Lines that are less alike than this are not even named as the nearest."""
_SHORTEST_FUZZY = 12
_LONGEST_FUZZY = 4000
"""Characters; shorter texts are alike by chance, longer ones take too long to compare."""
_MOST_COMPARED = 24
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a list of lines, from 0: lines `first` to `last`, or the characters `start` to `end` of one line."""

    first: int
    last: int
    start: int = 0
    end: int | None = None
    """None for whole lines."""
    indent: tuple[str, str] | None = None
    """Indentation as searched for and as found, when they differ."""

    def overlaps(self, other: Span) -> bool:
        """Whether the two have a line, or characters of one line, in common; `other` does not begin before this one."""
        if self.end is not None and other.end is not None and self.first == other.first:
            return other.start < self.end
        return other.first <= self.last

    def put(self, lines: list[str], new: Sequence[str]) -> None:
        """Replaces this place of `lines` by new lines."""
        if self.end is not None:
            text = lines[self.first]
            lines[self.first : self.first + 1] = (text[: self.start] + "\n".join(new) + text[self.end :]).split("\n")
            return
        if self.indent is not None:
            new = [_reindent(line, *self.indent) for line in new]
        lines[self.first : self.last + 1] = new


def find(lines: Sequence[str], search: Sequence[str]) -> Span | str:
    """The one place of `search` in `lines`; or, when there is none or more than one, a text that says so and what to do."""
    if not any(line.strip() for line in search):
        return "is empty. Copy into it the lines that are to be changed."
    exact = _windows(lines, search)
    if exact:
        return Span(exact[0], exact[0] + len(search) - 1) if len(exact) == 1 else _ambiguous(exact)
    if len(search) == 1:
        inside = _inside(lines, search[0].strip())
        if inside:
            return inside[0] if len(inside) == 1 else _ambiguous([span.first for span in inside])
    return _find_loosely(lines, search)


def _find_loosely(lines: Sequence[str], search: Sequence[str]) -> Span | str:
    """The second and third stage: blank lines and all white space between words and signs count for nothing."""
    rows = [(i, bare) for i, bare in enumerate(_bare(line) for line in lines) if bare]
    wanted = [bare for bare in (_bare(line) for line in search) if bare]
    texts = [bare for _, bare in rows]
    spaced = _windows(texts, wanted)
    if len(spaced) > 1:
        return _ambiguous([rows[at][0] for at in spaced])
    if spaced:
        return _span(lines, search, rows[spaced[0]][0], rows[spaced[0] + len(wanted) - 1][0])
    ranked = _alike(texts, wanted)
    if not ranked or ranked[0][0] < _NEAREST_FLOOR:
        return "matches no lines of the kernel. Copy the old lines exactly as they stand, without line numbers."
    likeness, at = ranked[0]
    last = rows[at + len(wanted) - 1][0]
    apart = [other for other, where in ranked[1:] if abs(where - at) >= len(wanted)]
    if likeness >= LIKENESS_FLOOR and len("".join(wanted)) >= _SHORTEST_FUZZY:
        if not apart or apart[0] <= likeness - _LIKENESS_MARGIN:
            return _span(lines, search, rows[at][0], last)
        places = [rows[where][0] for other, where in ranked if other > likeness - _LIKENESS_MARGIN]
        return _ambiguous(sorted(places))
    return _nearest(lines, search, rows[at][0], last, likeness)


def _windows(texts: Sequence[str], wanted: Sequence[str]) -> list[int]:
    size = len(wanted)
    return [i for i in range(len(texts) - size + 1) if texts[i] == wanted[0] and list(texts[i : i + size]) == list(wanted)]


def _inside(lines: Sequence[str], text: str) -> list[Span]:
    """Every place of a part of a line, whole words only."""
    head = r"(?<!\w)" if _WORD.match(text[0]) else ""
    tail = r"(?!\w)" if _WORD.match(text[-1]) else ""
    pattern = re.compile(head + re.escape(text) + tail)
    return [Span(i, i, m.start(), m.end()) for i, line in enumerate(lines) for m in pattern.finditer(line)]


def _bare(line: str) -> str:
    """The line without white space, but for one blank between two words."""
    return re.sub(r"(?<!\w) | (?!\w)", "", " ".join(line.split()))


def _alike(texts: Sequence[str], wanted: Sequence[str]) -> list[tuple[float, int]]:
    """Likeness and place of the windows that are most like the wanted lines, best first."""
    size = len(wanted)
    text = "\n".join(wanted)
    if not 0 < size <= len(texts) or len(text) > _LONGEST_FUZZY:
        return []
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(text)
    rough: list[tuple[float, int]] = []
    for i in range(len(texts) - size + 1):
        window = "\n".join(texts[i : i + size])
        if len(window) > 2 * _LONGEST_FUZZY:
            continue
        matcher.set_seq1(window)
        rough.append((matcher.quick_ratio(), i))
    rough.sort(key=lambda pair: (-pair[0], pair[1]))
    ranked: list[tuple[float, int]] = []
    for _, i in rough[:_MOST_COMPARED]:
        matcher.set_seq1("\n".join(texts[i : i + size]))
        ranked.append((matcher.ratio(), i))
    return sorted(ranked, key=lambda pair: (-pair[0], pair[1]))


def _span(lines: Sequence[str], search: Sequence[str], first: int, last: int) -> Span:
    wanted = _indent(next(line for line in search if line.strip()))
    found = _indent(lines[first])
    return Span(first, last, indent=(wanted, found) if wanted != found else None)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _reindent(line: str, wanted: str, found: str) -> str:
    """Moves a line from one base indentation to another; a line that is indented less keeps what it has."""
    if not line.strip():
        return line
    if line.startswith(wanted):
        return found + line[len(wanted) :]
    return line


def _ambiguous(places: Sequence[int]) -> str:
    shown = ", ".join(str(place + 1) for place in places[:4]) + (", ..." if len(places) > 4 else "")
    return f"fits {len(places)} places (lines {shown}). Add the lines before or after, so that it fits only one."


def _nearest(lines: Sequence[str], search: Sequence[str], first: int, last: int, likeness: float) -> str:
    """Names the nearest lines, the first that differs, and what to do."""
    wanted = [line for line in search if line.strip()]
    there = [(i, lines[i]) for i in range(first, last + 1) if lines[i].strip()]
    differing = ((i, line, want) for (i, line), want in zip(there, wanted, strict=False) if _bare(line) != _bare(want))
    number, line, want = next(differing, (first, lines[first], wanted[0]))
    where = f"line {first + 1}" if first == last else f"lines {first + 1}-{last + 1}"
    return (
        f"matches no lines of the kernel; nearest is {where} ({likeness:.0%} alike). "
        f"Line {number + 1} reads `{_clip(line)}`, the block has `{_clip(want)}`. Copy the old lines exactly as they stand."
    )


def _clip(line: str) -> str:
    text = line.strip()
    return text if len(text) <= 80 else text[:77] + "..."
