"""The launch grammar: how a kernel's first comment block says what is called, and with what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from evo_l2.errors import KernelError
from evo_l2.expression import Expression

__all__ = [
    "Argument",
    "Call",
    "Launch",
    "Role",
    "Tunable",
    "Workspace",
    "constants",
    "parse_launch",
    "substitute",
    "tunables",
]

_IDENTIFIER = r"[A-Za-z_]\w*"
_CONSTANT = re.compile(
    rf"^[ \t]*(?:(?:static[ \t]+)?constexpr[ \t]+int[ \t]+(?P<n1>{_IDENTIFIER})[ \t]*=[ \t]*(?P<v1>[^;\n]+?)[ \t]*;"
    rf"|\#[ \t]*define[ \t]+(?P<n2>{_IDENTIFIER})[ \t]+(?P<v2>[^\n]*?))"
    r"[ \t]*(?://(?P<mark>\??)(?P<rest>[^\n]*))?$"
)
_CALL = re.compile(rf"(?P<entry>{_IDENTIFIER})[ \t]*\((?P<arguments>[^()]*)\)[ \t]*")
_ARGUMENT = re.compile(rf"[ \t]*(?P<name>{_IDENTIFIER})[ \t]*(?::[ \t]*(?P<role>\w+)[ \t]*)?")
_MOST_LINES = 64
_LARGEST_WORKSPACE_BYTES = 2**30


class Role(StrEnum):
    """What an argument of a launch is."""

    IN = "in"
    OUT = "out"
    WORKSPACE = "workspace"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an entry: an operand of the problem, a declared workspace, or a size symbol."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Call:
    """One entry and its arguments, in order."""

    entry: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory that the harness owns, sized in bytes and filled with junk before every call."""

    name: str
    size_bytes: Expression


@dataclass(frozen=True, slots=True)
class Launch:
    """What the `//!` lines of a kernel say."""

    layout: str
    calls: tuple[Call, ...]
    workspaces: tuple[Workspace, ...] = ()
    flags: tuple[str, ...] = ()
    """Compiler flags asked for; the target checks them against its own list."""
    deterministic: bool = True
    """False when the kernel declares that two runs may differ."""

    def workspace_bytes(self, names: Mapping[str, int]) -> dict[str, int]:
        """Bytes of each workspace over the given names (the file's constants and the size symbols).

        Raises:
            KernelError: An expression does not evaluate, or a size is negative or above 1 GiB.
        """
        sizes = {}
        for space in self.workspaces:
            value = space.size_bytes.evaluate(names)
            if not 0 <= value <= _LARGEST_WORKSPACE_BYTES:
                raise space.size_bytes.error("the workspace has no usable size", 0, "0 to 2**30 bytes", str(value))
            sizes[space.name] = value
        return sizes


@dataclass(frozen=True, slots=True)
class Tunable:
    """A named integer that the file declares with `//?`, with the values it may take (its present one included)."""

    name: str
    value: int
    domain: tuple[int, ...]
    line: int
    """Line of the declaration, from 1."""


def parse_launch(source: str) -> Launch:
    """Reads the `//!` lines of the first comment block.

    EBNF (one directive a line; `//` comments and blank lines may stand between them)::

        header    = { "//!", directive, newline } ;
        directive = "layout", name
                  | "launch", name, "(", argument, { ",", argument }, ")"
                  | "workspace", name, expression
                  | "flags", { flag }
                  | "nondeterministic" ;
        argument  = name, [ ":", ( "in" | "out" | "workspace" ) ] ;   (* without a role: a size symbol *)

    Raises:
        KernelError: A directive is unknown, repeated, missing or malformed; with line and column.
    """
    builder = _Builder()
    in_header = True
    for number, text in enumerate(source.split("\n"), start=1):
        stripped = text.strip()
        if stripped.startswith("//!"):
            if not in_header:
                expected = "every //! line before the first line of code"
                raise KernelError("a launch line stands too late", expected=expected, found=stripped, line=number)
            builder.directive(text.rstrip("\r"), number)
        elif stripped and not stripped.startswith("//"):
            in_header = False
    return builder.launch()


class _Builder:
    """Collects directives; one instance a file."""

    def __init__(self) -> None:
        self._layout: str | None = None
        self._calls: list[Call] = []
        self._workspaces: list[Workspace] = []
        self._flags: tuple[str, ...] | None = None
        self._deterministic = True
        self._n_lines = 0
        self._last_line = 1

    def directive(self, text: str, line: int) -> None:
        """Takes one `//!` line."""
        self._n_lines += 1
        self._last_line = line
        if self._n_lines > _MOST_LINES:
            raise KernelError("the launch is too long", expected=f"at most {_MOST_LINES} lines", found="more", line=line)
        at = text.index("//!") + 3
        match = re.compile(rf"[ \t]*({_IDENTIFIER})[ \t]*").match(text, at)
        known = {
            "layout": self._take_layout,
            "launch": self._take_launch,
            "workspace": self._take_workspace,
            "flags": self._take_flags,
            "nondeterministic": self._take_nondeterministic,
        }
        word = match.group(1) if match else text[at:].strip()
        if match is None or word not in known:
            column = (match.start(1) if match else at) + 1
            expected = "one of " + ", ".join(known)
            raise KernelError("unknown directive", expected=expected, found=repr(word), line=line, column=column)
        known[word](text[match.end() :].rstrip(), line, match.end() + 1)

    def launch(self) -> Launch:
        """The whole, once every line was taken."""
        example = "//! launch hgemm(A: in, B: in, C: out, M, N, K)"
        if not self._calls:
            raise KernelError(
                "the file is no kernel", expected=f"a line like '{example}'", found="none", line=self._last_line
            )
        if self._layout is None:
            raise KernelError(
                "the launch has no layout", expected="a line '//! layout nn'", found="none", line=self._last_line
            )
        declared = {space.name for space in self._workspaces}
        used = {a.name for call in self._calls for a in call.arguments if a.role is Role.WORKSPACE}
        if declared != used:
            odd = ", ".join(sorted(declared ^ used))
            expected = "every workspace declared by a '//! workspace' line and passed to a launch"
            raise KernelError("the workspaces do not match", expected=expected, found=odd, line=self._last_line)
        return Launch(self._layout, tuple(self._calls), tuple(self._workspaces), self._flags or (), self._deterministic)

    def _take_layout(self, rest: str, line: int, column: int) -> None:
        if self._layout is not None or not re.fullmatch(_IDENTIFIER, rest):
            expected = "one layout, named once"
            raise KernelError("the layout does not parse", expected=expected, found=repr(rest), line=line, column=column)
        self._layout = rest

    def _take_launch(self, rest: str, line: int, column: int) -> None:
        match = _CALL.fullmatch(rest)
        if match is None:
            expected = "entry(argument, ...)"
            raise KernelError("the launch does not parse", expected=expected, found=repr(rest), line=line, column=column)
        arguments = []
        start = column + match.start("arguments")
        for piece in match.group("arguments").split(","):
            arguments.append(_argument(piece, line, start))
            start += len(piece) + 1
        names = [a.name for a in arguments]
        if len(set(names)) != len(names):
            raise KernelError("an argument is named twice", expected="each name once", found=rest, line=line, column=column)
        self._calls.append(Call(match.group("entry"), tuple(arguments)))

    def _take_workspace(self, rest: str, line: int, column: int) -> None:
        match = re.match(rf"({_IDENTIFIER})[ \t]+(?=\S)", rest)
        if match is None or any(w.name == match.group(1) for w in self._workspaces):
            expected = "a new name and a size in bytes"
            raise KernelError("the workspace does not parse", expected=expected, found=repr(rest), line=line, column=column)
        size = Expression(rest[match.end() :], line, column + match.end())
        size.names()
        self._workspaces.append(Workspace(match.group(1), size))

    def _take_flags(self, rest: str, line: int, column: int) -> None:
        if self._flags is not None:
            raise KernelError("flags are given twice", expected="one flags line", found=rest, line=line, column=column)
        self._flags = tuple(rest.split())

    def _take_nondeterministic(self, rest: str, line: int, column: int) -> None:
        if rest:
            expected = "nothing after it"
            raise KernelError("nondeterministic takes no value", expected=expected, found=rest, line=line, column=column)
        self._deterministic = False


def _argument(piece: str, line: int, column: int) -> Argument:
    match = _ARGUMENT.fullmatch(piece)
    role = match.group("role") if match else None
    if match is None or role not in (None, "in", "out", "workspace"):
        expected = "'name', 'name: in', 'name: out' or 'name: workspace'"
        found = repr(piece.strip())
        raise KernelError("an argument does not parse", expected=expected, found=found, line=line, column=column)
    return Argument(match.group("name"), Role(role) if role else Role.SIZE)


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
        values = sorted({int(value), *(int(word) for word in words)})
        result.append(Tunable(name, int(value), tuple(values), number))
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
    match = _CONSTANT.match(text.rstrip("\r"))
    if match is None:
        return None
    name = match.group("n1") or match.group("n2")
    value = match.group("v1") if match.group("v1") is not None else match.group("v2")
    domain: str | None = match.group("rest") if match.group("mark") else None
    return name, value, domain
