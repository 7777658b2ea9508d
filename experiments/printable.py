"""Text of others on a terminal: what could move the cursor, change colours or turn the reading direction is written out."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]

_KEPT = "\n\t"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode's categories of control, format (bidi among them), surrogate, private use, line and paragraph separators."""


def printable(text: str) -> str:
    """The text with every character that shows nothing of its own as an escape, ESC for one; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in _KEPT or unicodedata.category(c) not in _HIDDEN else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
