"""A source cut down to what a small model needs to see: its launch, its tunables, and the function at hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mutators.replies import elision

__all__ = ["Slicer"]

_TUNABLE = re.compile(r"//\?")
_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Function:
    first: int
    last: int
    """Lines from 0, both included."""
    heart: int
    """The first of its most deeply nested lines."""

    @property
    def n_lines(self) -> int:
        return self.last - self.first + 1


class Slicer:
    """Ranks the lines of one source, once, and cuts it to any budget.

    Lines are kept in this order: launch and tunables; the head of the function at hand; its other lines, the nearest to its
    innermost loop first; then the rest of the file, the nearest to that function first.

    Args:
        source: The kernel's source.
        draw: Picks the function at hand when there are several; longer ones are likelier.
    """

    def __init__(self, source: str, draw: int) -> None:
        self._lines = source.rstrip("\n").split("\n")
        self._order = _ranked(self._lines, _functions(source), draw)

    @property
    def n_lines(self) -> int:
        """Lines of the whole source."""
        return len(self._lines)

    def cut(self, fits: Callable[[str], bool]) -> tuple[str, int]:
        """The longest slice that fits, and how many of its source's lines it shows.

        `fits` need not be monotone to the last token; what is returned was tried and fits, or is empty.
        """
        whole = "\n".join(self._lines)
        if fits(whole):
            return whole, len(self._lines)
        best, n_best = "", 0
        low, high = 1, len(self._lines) - 1
        while low <= high:
            middle = (low + high) // 2
            text, n_shown = self._show(middle)
            if fits(text):
                best, n_best, low = text, n_shown, middle + 1
            else:
                high = middle - 1
        return best, n_best

    def _show(self, n_lines: int) -> tuple[str, int]:
        """The first lines by rank, in order of the source, and how many there are.

        A line that alone stands between two of them is shown too, where leaving it out would cost as much.
        """
        ends = {-1, len(self._lines)}
        shown = ends | set(self._order[:n_lines])
        for number, line in enumerate(self._lines):
            if len(line) <= len(elision(1)) and number - 1 in shown and number + 1 in shown:
                shown.add(number)
        shown -= ends
        parts: list[str] = []
        before = -1
        for number in (*sorted(shown), len(self._lines)):
            if number - before > 1:
                parts.append(elision(number - before - 1))
            if number < len(self._lines):
                parts.append(self._lines[number])
            before = number
        return "\n".join(parts), len(shown)


def _ranked(lines: list[str], functions: list[_Function], draw: int) -> list[int]:
    focus = _pick(functions, draw) or _Function(0, len(lines) - 1, len(lines) // 2)

    def rank(number: int) -> tuple[int, int]:
        text = lines[number].strip()
        if text.startswith("//!"):
            return 0, number
        if _TUNABLE.search(text):
            return 1, number
        if number == focus.first:
            return 2, number
        if focus.first < number <= focus.last:
            return 3, abs(number - focus.heart)
        return 4, min(abs(number - focus.first), abs(number - focus.last))

    return sorted(range(len(lines)), key=lambda number: (*rank(number), number))


def _pick(functions: list[_Function], draw: int) -> _Function | None:
    if not functions:
        return None
    left = draw % sum(function.n_lines for function in functions)
    for function in functions:
        left -= function.n_lines
        if left < 0:
            return function
    raise AssertionError("the draw is below the sum of all lines")


def _functions(source: str) -> list[_Function]:
    """Every brace block at file scope with parentheses in its head; comments and strings are passed over."""
    bare = _NOISE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), source)
    functions: list[_Function] = []
    depth, deepest, first, head_from = 0, 0, 0, 0
    heart = 0
    head: list[str] = []
    for number, line in enumerate(bare.split("\n")):
        if depth == 0 and line.lstrip().startswith("#"):
            head = []
            continue
        for sign in line:
            if sign == "{":
                if depth == 0:
                    first, deepest, heart = head_from if head else number, 0, number
                depth += 1
            elif sign == "}" and depth > 0:
                depth -= 1
                if depth == 0:
                    if "(" in "".join(head):
                        functions.append(_Function(first, number, min(heart, number)))
                    head = []
            elif depth == 0 and sign == ";":
                head = []
            elif depth == 0 and (head or not sign.isspace()):
                if not head:
                    head_from = number
                head.append(sign)
        # By the depth at the line's end, so that the braces of an initialiser do not count as nesting.
        if depth > deepest:
            deepest, heart = depth, number + 1
    return functions
