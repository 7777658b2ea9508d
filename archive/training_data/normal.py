"""Sources and replies brought to one form, so that copies are seen to be copies."""

from __future__ import annotations

import hashlib
import re

__all__ = ["normal_digest", "normal_source", "normal_text"]

_PIECE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_BLANKS = re.compile(r"\s+")
_APART = re.compile(r" ?([^\w ]) ?")


def normal_source(source: str) -> str:
    """The source without comments and without white space that means nothing; launch lines and directives stay lines.

    Domains of tunables are comments: two kernels that differ in nothing else compile to the same.
    """
    lines = []
    for line in _PIECE.sub(_without_comment, source.replace("\r\n", "\n")).split("\n"):
        text = _APART.sub(r"\1", _BLANKS.sub(" ", line).strip())
        if text.startswith(("#", "//!")):
            text = f"\n{text}\n"
        lines.append(text)
    return _APART.sub(r"\1", re.sub(r"(?: ?\n)+ ?", "\n", " ".join(line for line in lines if line))).strip()


def _without_comment(match: re.Match[str]) -> str:
    piece = match.group()
    return piece if piece[0] in "\"'" or piece.startswith("//!") else " "


def normal_text(text: str) -> str:
    """A reply with every run of white space as one blank."""
    return _BLANKS.sub(" ", text).strip()


def normal_digest(text: str) -> str:
    """Thirty-two hexadecimal digits over a text that was brought to its form."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
