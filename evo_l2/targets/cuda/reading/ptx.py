"""Takes PTX apart into statements, each with the line of source that it stands for.

Names are those of NVIDIA's "PTX ISA" 9.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["FUNCTION", "REGISTER", "WRITTEN", "plain", "statements_of"]

REGISTER = r"%?[A-Za-z_$][\w$]*"
WRITTEN = re.compile(r"(?:@\s*!?\s*[\w$%]+\s+)?[a-z][\w.:]*(?:\s+|(?=[({]))(?P<to>\([^)]*\)|\{[^}]*\}|[^,\[(]+)")
"""What a statement writes: its first operand, or all in braces; of a call, what stands in parentheses."""
FUNCTION = re.compile(r"\.(?:entry|func)\b")
_COMMENT = re.compile(r"\"[^\"]*\"|//[^\n]*|/\*.*?\*/", re.DOTALL)
"""And strings, in which comments do not begin; ptxas ends one at the next quote, backslash or not, line or not."""
_LOC = re.compile(
    r"\.loc\s+(?P<file>\d{1,9})\s+(?P<line>\d{1,9})(?:\s+\d+)?(?:\s*,\s*function_name\s+[\w$.]+(?:\s*\+\s*\w+)?)?"
    r"(?:\s*,\s*inlined_at\s+(?P<at_file>\d{1,9})\s+(?P<at_line>\d{1,9})(?:\s+\d+)?)?"
)
_FILE = re.compile(r"\.file\s+\d+(?:\s*,\s*\d+)*")
_SCOPE = re.compile(r"\{(?=[^{}]*(?:\{[^{}]*\}[^{}]*)*$)|^\s*\}")
"""A brace that opens and does not close before the semicolon, or one that closes what was opened before."""
_REGISTER_BEHIND = re.compile(r"(?<=[\w$])%")
"""The name of a register may stand right behind a type (`mov.u64%rd1, 16`), where patterns expect a blank."""
_LABEL = re.compile(r"^(?:[\w$%]+\s*:(?!:)\s*)+")


def plain(text: str) -> str:
    """The text without comments, strings and empty lines, and with one blank for many; its lines stay lines.

    Patterns take long over many blanks, of which a macro makes a million.
    """
    bare = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return "\n".join(row for row in (" ".join(row.split()) for row in bare.split("\n")) if row)


def statements_of(text: str) -> Iterator[tuple[str, int | None]]:
    """Statements, without labels and the braces of scopes, and the line of source that holds for each."""
    line: int | None = None
    pending = ""
    # Line information needs no line of its own: a statement may stand right behind it.
    text = _LOC.sub(lambda match: f"\n{' '.join(match[0].split())}\n", _FILE.sub("\n", text))
    text = _REGISTER_BEHIND.sub(" %", text)
    for row in text.split("\n"):
        if match := _LOC.match(row):
            if match["file"] == "1":
                line = int(match["line"])
            elif match["at_file"] == "1":
                line = int(match["at_line"])
            continue
        *whole, rest = row.split(";")
        for piece in whole:
            for part in _scopes(pending + piece):
                yield " ".join(part.split()), line
            pending = ""
        pending += rest + "\n"
    for part in _scopes(pending):
        yield " ".join(part.split()), line


def _scopes(piece: str) -> Iterator[str]:
    """The heads of scopes that open in a piece without a semicolon, and the statement after them; braces of lists stay."""
    while (match := _SCOPE.search(piece)) is not None:
        yield piece[: match.start()].strip()
        piece = piece[match.end() :]
    yield _LABEL.sub("", piece.strip()).strip()
