"""C text as a compiler's first phases see it: lines joined, comments gone, split into tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from evo_l2.targets.messages import UNPRINTABLE

__all__ = ["Line", "SourceError", "check_characters", "logical_lines", "preprocessed_lines"]

_SPLICE = re.compile(r"\\[ \t\v\f]*\n")
"""Compilers join lines over blanks after the backslash too, with no more than a warning."""
_CONTROL = re.compile(f"(?![\x0b\x0c\r])[{UNPRINTABLE}]|\r(?!\n)")
_UNUSUAL = re.compile(f"[{UNPRINTABLE}]")
"""All that `_CONTROL` finds and more, in a tenth of its time."""
_BLANKS = re.compile(r"[ \t\v\f]{201}")
"""Patterns that look for the end of a value, the launch's too, take time as the square of a run of blanks."""
_RAW_PREFIX = re.compile(r"(?<![\w$])(?:u8|[uUL])?R$")
_PIECE = re.compile(r"//[^\n]*|/\*(?s:.*?)\*/|\"(?:\\[^\n]|[^\"\\\n])*\"|'(?:\\[^\n]|[^'\\\n])*'|(?P<open>/\*|[\"'])")
_TOKEN = re.compile(
    r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\.?\d(?:[eEpP][+-]|[\w.])*|(?P<name>[^\W\d][\w$]*|\$[\w$]*)|"
    r"%:%:|##|%:|<:|:>|\S"
)
_MARKER = re.compile(r"#(?:line)? (\d+) \"((?:\\.|[^\"\\])*)\"[ \d]*")
_DIGRAPHS = {"%:%:": "##", "%:": "#", "<:": "[", ":>": "]"}
_SWALLOWED = "\x01"
"""Stands for the end of a line inside a comment or splice while lines are counted; the text itself cannot hold it."""


class SourceError(Exception):
    """Text that compilers of different makes could read differently, or cannot read."""

    def __init__(self, line: int, what: str) -> None:
        self.line = line
        self.what = what
        super().__init__(f"line {line}: {what}")


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line, without comments."""

    number: int
    """Where it begins, from 1."""
    text: str

    @property
    def tokens(self) -> tuple[str, ...]:
        """Its tokens in order, digraphs in their usual spelling."""
        return tuple(_DIGRAPHS.get(match.group(), match.group()) for match in _TOKEN.finditer(self.text))

    @property
    def names(self) -> frozenset[str]:
        """Its identifiers and keywords."""
        return frozenset(match.group("name") for match in _TOKEN.finditer(self.text) if match.group("name"))

    @property
    def is_directive(self) -> bool:
        """Whether the preprocessor takes it, or would under a flag that turns trigraphs on."""
        return self.text.lstrip().startswith(("#", "%:", "??="))


def check_characters(source: str) -> None:
    """Refuses what a terminal would obey, and what would show people another text than compilers read.

    Raises:
        SourceError: Control characters, marks that turn the direction of text, line ends that C does not know; or long runs
            of blanks.
    """
    found = _CONTROL.search(source) if _UNUSUAL.search(source) is not None else None
    if found is not None:
        line = 1 + source.count("\n", 0, found.start())
        raise SourceError(line, f"there is a control character (U+{ord(found.group()):04X})")
    found = _BLANKS.search(source)
    if found is not None:
        raise SourceError(1 + source.count("\n", 0, found.start()), "there are more than 200 blanks in a row")


def logical_lines(source: str) -> tuple[Line, ...]:
    """The lines that are left when lines are joined and comments are gone; empty ones are left out.

    Raises:
        SourceError: See `check_characters`; raw strings, or a comment or quote that is not closed.
    """
    check_characters(source)
    text = _joined(_SPLICE.sub(_SWALLOWED, source.replace("\r\n", "\n")))
    return tuple(_numbered(_PIECE.sub(_without_comment, text)))


def _joined(text: str) -> str:
    """Splices taken out of the middle of tokens: their line ends move to the end of the logical line."""
    lines = []
    for line in text.split("\n"):
        n_spliced = line.count(_SWALLOWED)
        lines.append(line.replace(_SWALLOWED, "") + _SWALLOWED * n_spliced if n_spliced else line)
    return "\n".join(lines)


def _without_comment(match: re.Match[str]) -> str:
    piece = match.group()
    if piece[0] == '"' and _RAW_PREFIX.search(match.string, max(0, match.start() - 4), match.start()):
        raise SourceError(_line_of(match.string, match.start()), "raw strings are not allowed")
    if match.group("open"):
        what = "a comment is not closed" if piece == "/*" else f"a quote ({piece}) is not closed on its line"
        raise SourceError(_line_of(match.string, match.start()), what)
    if piece[0] in "\"'":
        return piece
    return " " + _SWALLOWED * (piece.count("\n") + piece.count(_SWALLOWED))


def _line_of(text: str, at: int) -> int:
    return 1 + text.count("\n", 0, at) + text.count(_SWALLOWED, 0, at)


def _numbered(text: str) -> Iterator[Line]:
    number = 1
    for line in text.split("\n"):
        clean = line.replace(_SWALLOWED, "")
        if clean.strip():
            yield Line(number, clean)
        number += 1 + line.count(_SWALLOWED)


def preprocessed_lines(text: str, file_name: str) -> Iterator[Line]:
    """The lines of a preprocessor's output that come from one file, numbered as there; headers' lines are passed over."""
    inside = False
    number = 1
    for line in text.split("\n"):
        match = _MARKER.fullmatch(line) if line.startswith("#") else None
        if match is not None:
            number, inside = int(match.group(1)), match.group(2) == file_name
            continue
        if inside and line.strip():
            yield Line(number, line)
        number += 1
