"""Compilers' messages: what is wrong first, cut to a length, and nothing of this machine in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "LONGEST_LOG",
    "UNPRINTABLE",
    "blames_source",
    "errors_first",
    "is_out_of_memory",
    "is_out_of_space",
    "plain_lines",
    "printable",
    "ranked",
    "some",
]

LONGEST_LOG = 4096
"""Characters that are kept of a compiler's messages."""
_LONGEST_LINE = 1000
UNPRINTABLE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""What a terminal obeys instead of showing it, and what turns the order of the text around: inside a pattern's brackets."""
_UNPRINTABLE = re.compile(f"[{UNPRINTABLE}]")
_HEADLINE = re.compile(r"^(?:\S+?:(?:\d+:){0,2} )?(?P<kind>fatal error|error|warning|note): |^\S*ld\S*: |undefined reference")
_LOCATED = re.compile(r"^kernel\.c:\d+:.*\berror: ", re.MULTILINE)
_UNRESOLVED = re.compile(r"undefined reference to|undefined symbol|multiple definition of|hidden symbol")
_TEMPORARY = re.compile(r"(?:\./|/(?:[^\s/]+/)*)cc\w{6}\.(\w+)")
_NOISE = re.compile(r"Please submit a full bug report|See <file:|compilation terminated\.|cc1: some warnings being treated")
_MEMORY = re.compile(r"out of memory|(virtual )?memory exhausted|cannot allocate memory|bad_alloc", re.IGNORECASE)
_SPACE = re.compile(r"no space left on device|disk quota exceeded|read-only file system", re.IGNORECASE)


def blames_source(output: str) -> bool:
    """Whether the message finds fault with a place in the kernel, or with a name that it uses."""
    return "internal compiler error" not in output and bool(_LOCATED.search(output) or _UNRESOLVED.search(output))


def is_out_of_memory(output: str) -> bool:
    """Whether a tool says that it had no more memory."""
    return _MEMORY.search(output) is not None


def is_out_of_space(output: str) -> bool:
    """Whether a tool says that it could not write because of the disk."""
    return _SPACE.search(output) is not None


def printable(text: str) -> str:
    """The text with every character that a terminal would obey named instead; ends of lines and tabs stay."""
    return _UNPRINTABLE.sub(lambda match: f"<U+{ord(match.group()):04X}>", text)


def some(names: Sequence[str]) -> str:
    """The first few of many names."""
    return printable(", ".join(name[:80] for name in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else ""))


def errors_first(output: str, folder: str) -> str:
    """The messages with errors before warnings, temporary paths named plainly, at most `LONGEST_LOG` characters.

    Args:
        output: What the tools wrote.
        folder: Where they ran; its path does not stay in the text.
    """
    lines = output.replace(folder.rstrip("/") + "/", "").replace("\r\n", "\n").split("\n")
    lines = [_TEMPORARY.sub(r"kernel.\1", line) for line in plain_lines(lines)]
    return ranked((line for line in lines if not _NOISE.match(line)), _rank)


def _rank(line: str) -> int | None:
    match = _HEADLINE.search(line)
    kind = (match.group("kind") or "error") if match is not None else "note"
    return None if kind == "note" else 1 if kind == "warning" else 0


def plain_lines(lines: Iterable[str]) -> list[str]:
    """Lines of a tool, cut, since patterns take long over longer ones, and printable."""
    return [printable(line[:_LONGEST_LINE]) for line in lines]


def ranked(lines: Iterable[str], rank: Callable[[str], int | None]) -> str:
    """Messages with the gravest first, at most `LONGEST_LOG` characters.

    Args:
        lines: Those of all messages.
        rank: 0 for the first line of an error, 1 for that of a warning; None for a line that belongs to what comes before.
    """
    blocks: list[tuple[int, list[str]]] = []
    for line in lines:
        found = rank(line)
        if found is not None or not blocks:
            blocks.append((1 if found is None else found, []))
        blocks[-1][1].append(line.rstrip())
    blocks.sort(key=lambda block: block[0])
    whole = "\n".join(line for _, block in blocks for line in block).strip()
    return whole if len(whole) <= LONGEST_LOG else whole[: LONGEST_LOG - 4].rstrip() + "\n..."
