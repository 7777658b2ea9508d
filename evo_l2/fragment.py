"""A piece of a launch line with the place where it stands, so that an error can point at it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from evo_l2.errors import KernelError
from evo_l2.expression import Expression

__all__ = ["IDENTIFIER", "Fragment"]

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
"""A name, as C has it, in ASCII."""
_FIRST_WORD = re.compile(rf"[ \t]*(?P<word>{IDENTIFIER})(?![^\s:,(])[ \t]*")
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Fragment:
    """Text of one line. `line` and `column`, of its first character, count from 1."""

    text: str
    line: int
    column: int

    def error(self, what: str, expected: str, found: str | None = None) -> KernelError:
        """An error that points at the first character; without `found`, it shows the text itself."""
        shown = repr(self.text[:_LONGEST_SHOWN]) if self.text else "nothing"
        return KernelError(what, expected=expected, found=found or shown, line=self.line, column=self.column)

    def part(self, start: int, end: int | None = None) -> Fragment:
        """The characters from `start` to `end`."""
        return Fragment(self.text[start:end], self.line, self.column + start)

    def strip(self) -> Fragment:
        """The text without blanks around it."""
        text = self.text.rstrip()
        return self.part(len(text) - len(text.lstrip()), len(text))

    def pieces(self) -> tuple[Fragment, ...]:
        """What stands between commas, those within parentheses left alone; one piece where there is no comma."""
        result, start, depth = [], 0, 0
        for at, character in enumerate(self.text):
            depth += {"(": 1, ")": -1}.get(character, 0)
            if character == "," and depth <= 0:
                result.append(self.part(start, at).strip())
                start = at + 1
        return (*result, self.part(start).strip())

    def first_word(self) -> tuple[str, Fragment] | None:
        """The name that the text begins with, and what follows it; None when it begins otherwise."""
        match = _FIRST_WORD.match(self.text)
        return (match.group("word"), self.part(match.end()).strip()) if match is not None else None

    def expression(self) -> Expression:
        """The text as an expression.

        Raises:
            KernelError: It is none.
        """
        result = Expression(self.text, self.line, self.column)
        result.check()
        return result
