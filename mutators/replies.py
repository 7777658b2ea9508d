"""The kernel in a model's reply, or why there is none."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from evo_l2.errors import KernelError
from evo_l2.kernel import Kernel

__all__ = ["Extracted", "elision", "is_unfinished_thought", "kernel_from", "read_kernel", "without_thoughts"]

_THOUGHT = r"(?:think|thinking|thought|reasoning)"
_WHOLE_THOUGHT = re.compile(rf"<({_THOUGHT})>.*?</\1>", re.DOTALL | re.IGNORECASE)
_LATE_THOUGHT = re.compile(rf"<{_THOUGHT}>.*\Z", re.DOTALL | re.IGNORECASE)
_EARLY_THOUGHT = re.compile(rf"\A.*</{_THOUGHT}>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"[ \t]*(?P<signs>`{3,}|~{3,})(?P<info>[^`~]*)")
_LAUNCH_LINE = re.compile(r"^[ \t]*//![ \t]*launch\b", re.MULTILINE)
_HEADER_LINE = re.compile(r"^[ \t]*//!", re.MULTILINE)
_ELISION = re.compile(r"^[ \t]*// \.\.\. \d+ lines? not shown", re.MULTILINE)

_CUT_OFF = "The reply was cut off before the code block ended. Write a shorter kernel, and no text before it."
_NO_BLOCK = "The reply has no code block. Write the whole kernel in one block between ``` lines."
_NO_LAUNCH = "The code block has no '//! launch' line. Begin the kernel with its '//! layout' and '//! launch' lines."
_ELIDED = "The new kernel has a '... lines not shown' line in it. Write out every line, and leave that one out."


@dataclass(frozen=True, slots=True)
class Extracted:
    """A kernel, or the fault of the text that should have held one."""

    kernel: Kernel | None
    fault: str | None = None

    def __post_init__(self) -> None:
        if (self.kernel is None) != (self.fault is not None):
            raise ValueError("a reply gives either a kernel or a fault")


@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    closed: bool

    @property
    def launches(self) -> bool:
        return _LAUNCH_LINE.search(self.text) is not None


def elision(n_lines: int) -> str:
    """The line that stands in a prompt for lines that are left out; a kernel that has one is not whole."""
    return f"// ... {n_lines} line{'' if n_lines == 1 else 's'} not shown"


def without_thoughts(text: str) -> str:
    """The reply without what a reasoning model thought first, whole or cut off, with or without its opening tag."""
    text = _WHOLE_THOUGHT.sub("", text)
    text = _LATE_THOUGHT.sub("", text)
    return _EARLY_THOUGHT.sub("", text)


def is_unfinished_thought(text: str) -> bool:
    """Whether the reply ends before its thoughts do, or with them."""
    return bool(text.strip()) and not without_thoughts(text).strip()


def read_kernel(reply: str, parent: Kernel) -> Extracted:
    """The whole kernel that a reply holds, for the parent's target; never raises.

    Of several code blocks that declare a launch, the last whole one that differs from the parent counts: models repeat the
    old kernel before the new. A block without its closing fence was cut off, and counts for nothing. Without any fence, the
    text from the first `//!` line to the last closing brace is taken if its braces are balanced.
    """
    text = without_thoughts(reply.replace("\r\n", "\n"))
    if is_unfinished_thought(reply):
        return Extracted(None, "The reply was cut off while it was still thinking. Think less, then write the kernel.")
    blocks = _blocks(text) or _unfenced(text)
    launching = [block for block in blocks if block.launches]
    whole = [block for block in launching if block.closed]
    chosen = next((block for block in reversed(whole) if block.text.strip() != parent.source.strip()), None)
    if chosen is None:
        if any(not block.closed for block in blocks):
            return Extracted(None, _CUT_OFF)
        if not whole:
            return Extracted(None, _NO_LAUNCH if blocks else _NO_BLOCK)
        chosen = whole[-1]
    return kernel_from(chosen.text, parent.target)


def kernel_from(source: str, target: str) -> Extracted:
    """A kernel from text that a model wrote, checked as the bytes of a file would be."""
    if _ELISION.search(source):
        return Extracted(None, _ELIDED)
    try:
        return Extracted(Kernel.from_bytes(source.encode("utf-8", "surrogatepass"), target))
    except KernelError as error:
        return Extracted(None, f"The new kernel cannot be read: {error}.")


def _blocks(text: str) -> list[_Block]:
    """Every fenced block, in order."""
    blocks: list[_Block] = []
    signs: str | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if signs is None:
            if fence is not None:
                signs, lines = fence.group("signs"), []
        elif fence is not None and fence.group("signs").startswith(signs) and not fence.group("info").strip():
            blocks.append(_block(lines, closed=True))
            signs = None
        else:
            lines.append(line)
    if signs is not None:
        blocks.append(_block(lines, closed=False))
    return blocks


def _block(lines: list[str], *, closed: bool) -> _Block:
    return _Block(textwrap.dedent("\n".join(lines)).strip("\n") + "\n", closed)


def _unfenced(text: str) -> list[_Block]:
    """The kernel of a reply without fences, as one block; cut off when its braces are not balanced."""
    header = _HEADER_LINE.search(text)
    if header is None:
        return []
    code = text[header.start() :]
    end = code.rfind("}") + 1
    code = code[:end] if end else code
    return [_Block(code.strip("\n") + "\n", closed=0 < code.count("{") == code.count("}"))]
