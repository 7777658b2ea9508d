"""Filter expressions over flat rows, such as `operator == 'edit' and speedup > 1.2`: a small part of Python, and no more.

An expression may use columns by name, numbers, strings, `True`, `False`, `None`, `and`, `or`, `not`, comparisons (chained
too, `in` and `is None` among them), `+ - * / // %`, lists, and the functions of `FUNCTIONS`. What is missing compares as
false and computes to missing, so that `speedup > 1` leaves out what was never timed, and so does `speedup <= 1`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evo_l2.errors import ConfigurationError

__all__ = ["FUNCTIONS", "Filter", "parse_filter"]

Row = Mapping[str, Any]
_Value = Callable[[Row], Any]

_LONGEST = 4000
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_COMPUTE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "exp": math.exp,
    "len": len,
    "log": math.log,
    "lower": lambda text: text.lower(),
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
    "startswith": lambda text, start: text.startswith(start),
}
"""What an expression may call; each is missing when one of its arguments is."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that was parsed."""

    text: str
    names: tuple[str, ...]
    """The columns that it asks for, in the order in which they stand."""
    evaluate: Callable[[Row], Any]

    def accepts(self, row: Row) -> bool:
        """Whether the expression is true of a row.

        Raises:
            ConfigurationError: It compares or computes what cannot be, such as a word with a number.
        """
        try:
            return bool(self.evaluate(row))
        except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
            shown = ", ".join(f"{name} = {row.get(name)!r}"[:60] for name in self.names)
            expected = "numbers with numbers, words with words"
            raise ConfigurationError(
                "the expression cannot be worked out", expected=expected, found=f"{error} ({shown})"
            ) from error


def parse_filter(text: str) -> Filter:
    """Reads an expression; see the module for what it may hold.

    Raises:
        ConfigurationError: It does not parse, or holds something else.
    """
    expected = "an expression such as operator == 'edit' and speedup > 1.2"
    hint = "evo-l2 archive query DB, for the columns"
    if len(text) > _LONGEST:
        raise ConfigurationError(
            "the expression is too long", expected=f"at most {_LONGEST} characters", found=str(len(text))
        )
    try:
        tree = ast.parse(text.strip(), mode="eval")
        names: dict[str, None] = {}
        evaluate = _value(tree.body, names)
        return Filter(text, tuple(names), evaluate)
    except SyntaxError as error:
        found = f"{text.strip()!r}, {error.msg} at column {error.offset}"
        raise ConfigurationError("the expression does not parse", expected=expected, found=found, hint=hint) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigurationError(
            "the expression does not parse", expected=expected, found=str(error)[:200], hint=hint
        ) from error


def _value(node: ast.expr, names: dict[str, None]) -> _Value:
    """A function of a row for one node; `names` collects the columns."""
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as constant):
            return lambda row: constant
        case ast.Name(id=name):
            names.setdefault(name)
            return lambda row: row.get(name)
        case ast.BoolOp(op=op, values=nodes):
            return _together(isinstance(op, ast.And), [_value(part, names) for part in nodes])
        case ast.UnaryOp(op=ast.Not(), operand=part):
            inner = _value(part, names)
            return lambda row: not inner(row)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=part):
            sign = -1 if isinstance(op, ast.USub) else 1
            return _present(lambda value: sign * _number(value), [_value(part, names)])
        case ast.BinOp(left=left, op=arithmetic, right=right) if type(arithmetic) in _COMPUTE:
            compute = _COMPUTE[type(arithmetic)]
            return _present(
                lambda a, b: _divided(compute, _number(a), _number(b)), [_value(left, names), _value(right, names)]
            )
        case ast.Compare(left=left, ops=ops, comparators=nodes):
            return _chain(_value(left, names), [(op, _value(part, names)) for op, part in zip(ops, nodes, strict=True)])
        case ast.List(elts=nodes) | ast.Tuple(elts=nodes) | ast.Set(elts=nodes):
            parts = [_value(part, names) for part in nodes]
            return lambda row: tuple(part(row) for part in parts)
        case ast.Call(func=ast.Name(id=name), args=nodes, keywords=[]) if name in FUNCTIONS:
            return _present(FUNCTIONS[name], [_value(part, names) for part in nodes])
        case ast.Call():
            raise ValueError(f"{ast.unparse(node)!r}; functions are {', '.join(FUNCTIONS)}")
    raise ValueError(f"{ast.unparse(node)!r}, which no expression may hold")


def _together(every: bool, parts: list[_Value]) -> _Value:
    return (lambda row: all(part(row) for part in parts)) if every else (lambda row: any(part(row) for part in parts))


def _present(compute: Callable[..., Any], parts: list[_Value]) -> _Value:
    def value(row: Row) -> Any:
        values = [part(row) for part in parts]
        return None if any(found is None for found in values) else compute(*values)

    return value


def _number(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _divided(compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """The result; missing where something is divided by zero."""
    try:
        return compute(a, b)
    except ZeroDivisionError:
        return None


def _chain(first: _Value, rest: list[tuple[ast.cmpop, _Value]]) -> _Value:
    def value(row: Row) -> bool:
        left = first(row)
        for op, part in rest:
            right = part(row)
            if isinstance(op, ast.Is | ast.IsNot):
                holds = (left is right or left == right) == isinstance(op, ast.Is)
            elif left is None or right is None:
                holds = False
            else:
                holds = _COMPARE[type(op)](left, right)
            if not holds:
                return False
            left = right
        return True

    return value
