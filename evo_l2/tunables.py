"""A source's integer constants, and those of them that it declares as tunables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo_l2.errors import KernelError
from evo_l2.expression import Expression

__all__ = ["Tunable", "constants", "substitute", "tunables"]

_IDENTIFIER = r"[A-Za-z_]\w*"
_LONGEST_LINE = 2000
"""Characters; a longer line defines no constant."""
_CONSTANT = re.compile(
    rf"^[ \t]*(?:(?:static[ \t]+)?constexpr[ \t]+int[ \t]+(?P<n1>{_IDENTIFIER})[ \t]*=[ \t]*(?P<v1>[^;\n]+?)[ \t]*;"
    rf"|\#[ \t]*define[ \t]+(?P<n2>{_IDENTIFIER})[ \t]+(?P<v2>[^\n]*?))"
    r"[ \t]*(?://(?P<mark>\??)(?P<rest>[^\n]*))?$"
)


@dataclass(frozen=True, slots=True)
class Tunable:
    """A named integer that the file declares with `//?`, with the values it may take (its present one included)."""

    name: str
    value: int
    domain: tuple[int, ...]
    line: int
    """Line of the declaration, from 1."""
    joined: bool = False
    """Whether the present value is not among those written, and was added to the domain."""


def constants(source: str) -> dict[str, int]:
    """The file's integer constants: `constexpr int NAME = value;` and `#define NAME value`, in order.

    A definition whose value is no integer expression over the ones before it is passed over.
    """
    values: dict[str, int] = {}
    for text in source.split("\n"):
        found = _constant(text)
        if found is None:
            continue
        try:
            values[found[0]] = Expression(found[1]).evaluate(values)
        except KernelError:
            values.pop(found[0], None)
    return values


def tunables(source: str) -> tuple[Tunable, ...]:
    """Every constant of the file that declares its domain with `//?`, in order.

    Raises:
        KernelError: A domain holds something other than integers, a value is no integer, or a name is declared twice.
    """
    result: list[Tunable] = []
    for number, text in enumerate(source.split("\n"), start=1):
        found = _constant(text) if "//?" in text else None
        if found is None or found[2] is None:
            continue
        name, value, domain = found
        assert domain is not None
        words = domain.replace(",", " ").split()
        if not words or not all(re.fullmatch(r"-?\d{1,12}", word) for word in (*words, value)):
            expected = "an integer value and a domain of integers, as in '#define BM 64 //? 32 64 128'"
            raise KernelError("the tunable does not parse", expected=expected, found=repr(text.strip()), line=number)
        if any(t.name == name for t in result):
            raise KernelError("a tunable is declared twice", expected="each name once", found=name, line=number)
        written = {int(word) for word in words}
        values = tuple(sorted({int(value), *written}))
        result.append(Tunable(name, int(value), values, number, int(value) not in written))
    return tuple(result)


def substitute(source: str, declared: Sequence[Tunable], values: Mapping[str, int]) -> str:
    """The source with tunables, those that it declares, set to new values; all other text stays as it is.

    Raises:
        KernelError: A name is no tunable of the source, or a value is not in its domain.
    """
    known = {t.name: t for t in declared}
    lines = source.split("\n")
    for name, value in values.items():
        if name not in known:
            raise KernelError("no such tunable", expected=f"one of {', '.join(known) or 'none'}", found=name)
        if value not in known[name].domain:
            expected = f"{name} in {known[name].domain}"
            raise KernelError("the value is out of the tunable's domain", expected=expected, found=str(value))
        at = known[name].line - 1
        match = _CONSTANT.match(lines[at].rstrip("\r"))
        assert match is not None
        start, end = match.span("v1" if match.group("v1") is not None else "v2")
        lines[at] = lines[at][:start] + str(value) + lines[at][end:]
    return "\n".join(lines)


def _constant(text: str) -> tuple[str, str, str | None] | None:
    """Name, value text and the text of the domain (None without `//?`) of a line that defines a constant."""
    # The pattern takes time with the square of a run of blanks.
    match = _CONSTANT.match(text.rstrip("\r")) if len(text) <= _LONGEST_LINE else None
    if match is None:
        return None
    name = match.group("n1") or match.group("n2")
    value = match.group("v1") if match.group("v1") is not None else match.group("v2")
    domain: str | None = match.group("rest") if match.group("mark") else None
    return name, value, domain
