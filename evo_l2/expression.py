"""Integer expressions of the launch grammar: parsed, bounded, and evaluated over names; nothing else is executed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evo_l2.errors import KernelError

__all__ = ["Expression"]

_TOKEN = re.compile(r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+)|(?P<name>[A-Za-z_]\w*)|(?P<symbol>[-+*/%(),]))", re.ASCII)
_LONGEST = 400
_DEEPEST = 32
_LARGEST = 2**62
_MOST_NAMES = 24


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return _ceil_div(a, b) * b


_FUNCTIONS: dict[str, tuple[int, Callable[..., int]]] = {
    "ceil_div": (2, _ceil_div),
    "round_up": (2, _round_up),
    "min": (2, min),
    "max": (2, max),
}


def _known(names: Mapping[str, int]) -> str:
    """Names in words; of a file with hundreds of constants, the first few."""
    shown = ", ".join(sorted(names)[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"one of {shown}{more}" if names else "no name, since none is known here"


@dataclass(frozen=True, slots=True)
class Expression:
    """An integer expression, kept as its text with the place where it stands.

    EBNF::

        expression = term, { ( "+" | "-" ), term } ;
        term       = factor, { ( "*" | "/" | "%" ), factor } ;
        factor     = integer | name | function, "(", expression, ",", expression, ")"
                   | "(", expression, ")" | "-", factor ;
        function   = "ceil_div" | "round_up" | "min" | "max" ;

    Division rounds down. Texts are at most 400 characters, nesting at most 32 deep, values at most 2**62 in size.
    """

    text: str
    line: int = 1
    column: int = 1

    def names(self) -> frozenset[str]:
        """Every name the expression reads, functions left out."""
        return frozenset(text for kind, text, _ in self._tokens() if kind == "name" and text not in _FUNCTIONS)

    def check(self) -> None:
        """Parses the text, whatever its names may stand for.

        Raises:
            KernelError: The text does not parse; with line and column.
        """
        _Parser(self, self._tokens(), None).run()

    def evaluate(self, names: Mapping[str, int]) -> int:
        """The value over the given names.

        Raises:
            KernelError: The text does not parse, a name is unknown, a divisor is zero, or a bound is passed; with line
                and column.
        """
        return _Parser(self, self._tokens(), names).run()

    def _tokens(self) -> list[tuple[str, str, int]]:
        if len(self.text) > _LONGEST:
            raise self.error("the expression is too long", 0, f"at most {_LONGEST} characters", str(len(self.text)))
        tokens, at = [], 0
        end = len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                raise self.error("the expression does not parse", at, "a number, name or operator", repr(self.text[at]))
            kind = match.lastgroup or ""
            tokens.append((kind, match.group(kind), match.start(kind)))
            at = match.end()
        return tokens

    def error(self, what: str, offset: int, expected: str, found: str, hint: str | None = None) -> KernelError:
        """An error that points at a character of the text."""
        column = self.column + offset
        return KernelError(what, expected=expected, found=found, hint=hint, line=self.line, column=column)


class _Parser:
    """Recursive descent; one instance a call. Without names, it only looks whether the text parses: every value is 1."""

    def __init__(self, source: Expression, tokens: list[tuple[str, str, int]], names: Mapping[str, int] | None) -> None:
        self._source = source
        self._tokens = tokens
        self._names = names
        self._at = 0
        self._depth = 0

    def run(self) -> int:
        value = self._sum()
        if self._at < len(self._tokens):
            raise self._unexpected("the end of the expression")
        return value

    def _peek(self) -> str | None:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else None

    def _offset(self) -> int:
        return self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._source.text)

    def _unexpected(self, expected: str) -> KernelError:
        found = repr(self._peek()) if self._peek() is not None else "the end"
        return self._source.error("the expression does not parse", self._offset(), expected, found)

    def _take(self, symbol: str) -> None:
        if self._peek() != symbol:
            raise self._unexpected(repr(symbol))
        self._at += 1

    def _bounded(self, value: int, offset: int) -> int:
        if self._names is None:
            return 1
        if abs(value) > _LARGEST:
            raise self._source.error("the value is out of bounds", offset, "at most 2**62", "a larger one")
        return value

    def _sum(self) -> int:
        value = self._product()
        while (symbol := self._peek()) in ("+", "-"):
            at = self._offset()
            self._at += 1
            right = self._product()
            value = self._bounded(value + right if symbol == "+" else value - right, at)
        return value

    def _product(self) -> int:
        value = self._factor()
        while (symbol := self._peek()) in ("*", "/", "%"):
            at = self._offset()
            self._at += 1
            right = self._factor()
            if symbol == "*":
                value = self._bounded(value * right, at)
                continue
            if self._names is None:
                continue
            if right == 0:
                raise self._source.error("the expression divides by zero", at, "a divisor other than zero", "0")
            value = value // right if symbol == "/" else value % right
        return value

    def _factor(self) -> int:
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                limit = f"at most {_DEEPEST} levels"
                raise self._source.error("the expression is nested too deep", self._offset(), limit, "more")
            return self._factor_inside()
        finally:
            self._depth -= 1

    def _factor_inside(self) -> int:
        if self._at >= len(self._tokens):
            raise self._unexpected("a number or name")
        kind, text, offset = self._tokens[self._at]
        if text == "-":
            self._at += 1
            return -self._factor()
        if text == "(":
            self._at += 1
            value = self._sum()
            self._take(")")
            return value
        if kind == "number":
            self._at += 1
            return self._bounded(int(text, 0) if text[:2] in ("0x", "0X") else int(text), offset)
        if kind != "name":
            raise self._unexpected("a number or name")
        self._at += 1
        if text in _FUNCTIONS:
            return self._call(text, offset)
        if self._peek() == "(":
            raise self._unknown_function(text, offset)
        if self._names is None:
            return 1
        if text not in self._names:
            raise self._source.error("the expression reads an unknown name", offset, _known(self._names), repr(text[:60]))
        return self._names[text]

    def _unknown_function(self, name: str, offset: int) -> KernelError:
        expected = f"one of {', '.join(sorted(_FUNCTIONS))}"
        near = difflib.get_close_matches(name.lower(), _FUNCTIONS, 1)
        hint = f"{near[0]}(a, b)" if near else None
        what = "the expression calls an unknown function"
        return self._source.error(what, offset, expected, repr(name[:60]), hint)

    def _call(self, name: str, offset: int) -> int:
        count, function = _FUNCTIONS[name]
        self._take("(")
        values = [self._sum()]
        for _ in range(count - 1):
            self._take(",")
            values.append(self._sum())
        self._take(")")
        if self._names is None:
            return 1
        if name in ("ceil_div", "round_up") and values[1] == 0:
            raise self._source.error("the expression divides by zero", offset, "a divisor other than zero", "0")
        return self._bounded(function(*values), offset)
