"""Search/replace edits: the blocks of a reply, and what they make of a source.

The format, one block a change, markers alone on their lines::

    <<<<<<< SEARCH
    lines as they stand in the source
    =======
    lines that take their place
    >>>>>>> REPLACE

It is the format that code models have seen most. Small models get details wrong, so markers may have three or more signs, any
words or none behind them, and a code fence around or inside; a closing fence also ends a block. A line of the source that
looks like a marker cannot be edited.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mutators.matching import Span, find

__all__ = ["Edited", "ParsedEdits", "Replacement", "apply_edits", "parse_edits", "render_edits"]

_OPEN = re.compile(r"[ \t]*<{3,}[\w \t:]*")
_MIDDLE = re.compile(r"[ \t]*={3,}[\w \t:]*")
_CLOSE = re.compile(r"[ \t]*>{3,}[\w \t:]*")
_FENCE = re.compile(r"[ \t]*(```+|~~~+)[ \t]*[\w+\-.]*[ \t]*")
_MOST_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Replacement:
    """Some lines of a source, and the lines that take their place."""

    search: str
    replace: str


@dataclass(frozen=True, slots=True)
class ParsedEdits:
    """The blocks of a reply; none when `fault` says what is wrong with one, or when the reply has none."""

    replacements: tuple[Replacement, ...]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Edited:
    """The edited source, or why there is none."""

    source: str | None
    fault: str | None = None

    def __post_init__(self) -> None:
        if (self.source is None) != (self.fault is not None):
            raise ValueError("edits give either a source or a fault")


def render_edits(replacements: Sequence[Replacement]) -> str:
    """The blocks as text; what a model is asked to write.

    Raises:
        ValueError: A line looks like a marker or a fence.
    """
    lines: list[str] = []
    for replacement in replacements:
        search, replace = _lines(replacement.search), _lines(replacement.replace)
        for line in (*search, *replace):
            if any(pattern.fullmatch(line) for pattern in (_OPEN, _MIDDLE, _CLOSE, _FENCE)):
                raise ValueError(f"the line {line!r} looks like a marker")
        lines += ["<<<<<<< SEARCH", *search, "=======", *replace, ">>>>>>> REPLACE"]
    return "\n".join(lines)


def parse_edits(text: str) -> ParsedEdits:
    """Reads every block of a reply; never raises. What stands outside of blocks is passed over."""
    reader = _Reader()
    for line in text.replace("\r\n", "\n").split("\n"):
        reader.take(line)
    return reader.result()


class _Reader:
    """Line by line through a reply; one instance a reply."""

    def __init__(self) -> None:
        self._done: list[Replacement] = []
        self._search: list[str] | None = None
        self._replace: list[str] | None = None
        self._fault: str | None = None

    def take(self, line: str) -> None:
        """Takes the next line."""
        if _OPEN.fullmatch(line):
            self._open()
        elif self._search is None:
            return
        elif self._replace is None:
            self._in_search(line, self._search)
        else:
            self._in_replace(line, self._replace)

    def result(self) -> ParsedEdits:
        """What was read, once every line was taken."""
        if self._search is not None:
            missing = "'======='" if self._replace is None else "'>>>>>>> REPLACE'"
            self._blame(f"it was cut off before {missing}")
        if len(self._done) > _MOST_BLOCKS:
            return ParsedEdits((), f"The reply has {len(self._done)} SEARCH/REPLACE blocks; write at most {_MOST_BLOCKS}.")
        return ParsedEdits((), self._fault) if self._fault is not None else ParsedEdits(tuple(self._done))

    def _open(self) -> None:
        if self._search is not None:
            missing = "'======='" if self._replace is None else "'>>>>>>> REPLACE'"
            self._blame(f"the next block begins before its {missing}")
        self._search, self._replace = [], None

    def _in_search(self, line: str, search: list[str]) -> None:
        if _MIDDLE.fullmatch(line):
            self._replace = []
        elif _CLOSE.fullmatch(line):
            self._blame("it has no '=======' line between the old lines and the new")
            self._search = None
        elif not _FENCE.fullmatch(line):
            search.append(line)

    def _in_replace(self, line: str, replace: list[str]) -> None:
        fence = _FENCE.fullmatch(line)
        if fence is not None and not replace:
            return
        if _CLOSE.fullmatch(line) or fence is not None:
            assert self._search is not None
            self._done.append(Replacement("\n".join(self._search), "\n".join(replace)))
            self._search = self._replace = None
        elif _MIDDLE.fullmatch(line):
            self._blame("it has two '=======' lines")
        else:
            replace.append(line)

    def _blame(self, why: str) -> None:
        if self._fault is None:
            self._fault = f"SEARCH/REPLACE block {len(self._done) + 1} is not whole: {why}."


def apply_edits(source: str, replacements: Sequence[Replacement]) -> Edited:
    """Applies all replacements, or none; every one is looked up in the source as it was given.

    A block's lines are searched for exactly, then without regard to white space (the new lines take over the indentation that
    was found), then by likeness; see `mutators.matching`. A block that is said twice counts once.
    """
    lines = source.split("\n")
    unique = list(dict.fromkeys(replacements))
    if not unique:
        return Edited(None, "The reply has no SEARCH/REPLACE block.")
    placed: list[tuple[Span, Replacement]] = []
    for number, replacement in enumerate(unique, start=1):
        found = find(lines, _lines(replacement.search))
        if isinstance(found, str):
            return Edited(None, f"SEARCH block {number} of {len(unique)} {found}")
        placed.append((found, replacement))
    placed.sort(key=lambda pair: (pair[0].first, pair[0].start))
    for (before, _), (after, _) in itertools.pairwise(placed):
        if before.overlaps(after):
            text = f"Two SEARCH blocks change the same lines (line {after.first + 1}). Join them into one block."
            return Edited(None, text)
    for span, replacement in reversed(placed):
        span.put(lines, _lines(replacement.replace))
    result = "\n".join(lines)
    if result == source:
        return Edited(None, "The edits change nothing: the new lines are the old ones. Write lines that differ.")
    return Edited(result)


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []
