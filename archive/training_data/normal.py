"""Sources and replies brought to one form, so that copies are seen to be copies."""

from __future__ import annotations

import hashlib
import re

__all__ = ["normal_digest", "normal_source", "normal_text"]

_PIECE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_BLANKS = re.compile(r"\s+")
_BLANKS_IN_LINE = re.compile(r"[^\S\n]+")
_NEEDLESS = re.compile(r" (?=[^\w ])|(?<=[^\w ]) ")


def normal_source(source: str) -> str:
    """The source without comments and without white space that means nothing; launch lines and directives stay lines.

    Domains of tunables are comments: two kernels that differ in nothing else compile to the same.
    """
    text = _BLANKS_IN_LINE.sub(" ", _PIECE.sub(_without_comment, source.replace("\r\n", "\n")))
    parts: list[str] = []
    code: list[str] = []
    for line in (line.strip() for line in text.split("\n")):
        if line.startswith(("#", "//!")):
            # In these a blank before a bracket may mean something.
            parts += [_NEEDLESS.sub("", " ".join(code)), line]
            code = []
        elif line:
            code.append(line)
    parts.append(_NEEDLESS.sub("", " ".join(code)))
    return "\n".join(part for part in parts if part)


def _without_comment(match: re.Match[str]) -> str:
    piece = match.group()
    return piece if piece[0] in "\"'" or piece.startswith("//!") else " "


def normal_text(text: str) -> str:
    """A reply with every run of white space as one blank."""
    return _BLANKS.sub(" ", text).strip()


def normal_digest(text: str) -> str:
    """Thirty-two hexadecimal digits over a text that was brought to its form."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
