"""The launch grammar: how a kernel's first comment block says what is called, and with what."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from evo_l2.expression import Expression
from evo_l2.fragment import IDENTIFIER, Fragment
from evo_l2.tunables import Tunable, constants, substitute, tunables

__all__ = [
    "Argument",
    "Call",
    "Launch",
    "Role",
    "TensorMap",
    "Tunable",
    "Workspace",
    "constants",
    "parse_launch",
    "substitute",
    "tunables",
]

_CALL = re.compile(rf"(?P<entry>{IDENTIFIER})[ \t]*\((?P<arguments>[^()]*)\)")
_ARGUMENT = re.compile(rf"(?P<name>{IDENTIFIER})[ \t]*(?::[ \t]*(?P<role>\w+))?")
_TENSOR_MAP = re.compile(rf"(?P<name>{IDENTIFIER})[ \t]*:[ \t]*(?P<operand>{IDENTIFIER})[ \t]*,")
_ZEROED = re.compile(r"(?:(?<=[\s)])|^)zeroed$")
_ROLES = ("in", "out", "workspace", "map")
_MOST_LINES = 64
_LARGEST_WORKSPACE_BYTES = 2**30
_NONE = Expression("0")


class Role(StrEnum):
    """What an argument of a launch is."""

    IN = "in"
    OUT = "out"
    WORKSPACE = "workspace"
    MAP = "map"
    """A tensor map, passed by value (CUDA, from sm_90)."""
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an entry: an operand of the problem, a declared workspace or tensor map, or a size symbol."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Call:
    """One entry and its arguments, in order; on CUDA, with the shape of its launch."""

    entry: str
    arguments: tuple[Argument, ...]
    grid: tuple[Expression, ...] = ()
    """Blocks along x, y, z; those left out are 1. Empty where the launch has no grid."""
    block: tuple[Expression, ...] = ()
    """Threads along x, y, z, alike."""
    shared: Expression | None = None
    """Bytes of dynamic shared memory; None for none."""
    cluster: tuple[Expression, ...] = ()
    """Blocks of one cluster along x, y, z; empty for a launch without clusters."""
    line: int = 1
    """Line of the `launch` directive, from 1."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory that the harness owns, sized in bytes and filled with junk before every call."""

    name: str
    size_bytes: Expression
    zeroed: bool = False
    """Whether the harness sets it to zero before the launches of every call, within the time that counts."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A view of an operand for the tensor memory accelerator, which the harness encodes for the kernel."""

    name: str
    operand: str
    box: tuple[Expression, ...]
    """Elements that one copy takes along each dimension, outermost first.

    Two for the operand as one matrix of BATCH times rows by columns, three for BATCH, rows and columns.
    """
    swizzle: Expression = _NONE
    """Span of the swizzle in shared memory, in bytes: 0 (none), 32, 64 or 128."""
    promotion: Expression = _NONE
    """Bytes that the L2 cache fetches at once: 0 (as asked), 64, 128 or 256."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What the `//!` lines of a kernel say."""

    layout: str
    calls: tuple[Call, ...]
    """In the order in which they run."""
    workspaces: tuple[Workspace, ...] = ()
    flags: tuple[str, ...] = ()
    """Compiler flags asked for; the target checks them against its own list."""
    deterministic: bool = True
    """False when the kernel declares that two runs may differ."""
    max_registers: Expression | None = None
    """Most registers a thread, over the file's constants alone: it is part of the build."""
    tensor_maps: tuple[TensorMap, ...] = ()
    layout_line: int = field(default=1, compare=False)
    """Line of the `layout` directive, from 1."""

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


def parse_launch(source: str) -> Launch:
    """Reads the `//!` lines of the first comment block.

    EBNF (one directive a line; `//` comments and blank lines may stand between them)::

        header    = { "//!", directive, newline } ;
        directive = "layout", name
                  | "launch", name, "(", argument, { ",", argument }, ")"
                  | ( "grid" | "block" | "cluster" ), expression, [ ",", expression, [ ",", expression ] ]
                  | "shared", expression                       (* these four belong to the launch above *)
                  | "workspace", name, expression, [ "zeroed" ]
                  | "tensormap", name, ":", name, ",", "box", expression, ",", expression, [ ",", expression ],
                                 [ ",", "swizzle", expression ], [ ",", "promotion", expression ]   (* in either order *)
                  | "registers", expression
                  | "flags", { flag }
                  | "nondeterministic" ;
        argument  = name, [ ":", ( "in" | "out" | "workspace" | "map" ) ] ;   (* without a role: a size symbol *)

    What a directive means on a target, or that a target has none such, is the target's business.

    Raises:
        KernelError: A directive is unknown, repeated, missing or malformed; with line and column.
    """
    builder = _Builder()
    in_header = True
    for number, text in enumerate(source.split("\n"), start=1):
        stripped = text.strip()
        if stripped.startswith("//!"):
            fragment = Fragment(text, number, 1).strip()
            if not in_header:
                raise fragment.error("a launch line stands too late", "every //! line before the first line of code")
            builder.directive(fragment.part(3))
        elif stripped and not stripped.startswith("//"):
            in_header = False
    return builder.launch()


class _Builder:
    """Collects directives; one instance a file."""

    def __init__(self) -> None:
        self._layout: str | None = None
        self._layout_line = 1
        self._calls: list[_CallBuilder] = []
        self._workspaces: list[Workspace] = []
        self._tensor_maps: list[TensorMap] = []
        self._max_registers: Expression | None = None
        self._flags: tuple[str, ...] | None = None
        self._deterministic = True
        self._declared: dict[str, tuple[Role, Fragment]] = {}
        self._passed: dict[str, tuple[Role, Fragment]] = {}
        self._n_lines = 0
        self._last = Fragment("", 1, 1)
        self._takers: Mapping[str, Callable[[Fragment], None]] = {
            "layout": self._take_layout,
            "launch": self._take_launch,
            "grid": lambda rest: self._call("grid", rest).take_shape("grid", rest),
            "block": lambda rest: self._call("block", rest).take_shape("block", rest),
            "shared": lambda rest: self._call("shared", rest).take_shared(rest),
            "cluster": lambda rest: self._call("cluster", rest).take_shape("cluster", rest),
            "registers": self._take_registers,
            "tensormap": self._take_tensor_map,
            "workspace": self._take_workspace,
            "flags": self._take_flags,
            "nondeterministic": self._take_nondeterministic,
        }

    def directive(self, text: Fragment) -> None:
        """Takes what follows `//!` on one line."""
        self._n_lines += 1
        self._last = text
        if self._n_lines > _MOST_LINES:
            raise text.error("the launch is too long", f"at most {_MOST_LINES} lines", "more")
        first = text.first_word()
        if first is None or first[0] not in self._takers:
            raise text.strip().error("unknown directive", f"one of {', '.join(self._takers)}")
        word, rest = first
        self._takers[word](rest)

    def launch(self) -> Launch:
        """The whole, once every line was taken."""
        if not self._calls:
            example = "//! launch hgemm(A: in, B: in, C: out, M, N, K)"
            raise self._last.error("the file is no kernel", f"a line like '{example}'", "none")
        if self._layout is None:
            raise self._last.error("the launch has no layout", "a line '//! layout nn'", "none")
        self._check_names()
        return Launch(
            self._layout,
            tuple(call.call() for call in self._calls),
            tuple(self._workspaces),
            self._flags or (),
            self._deterministic,
            self._max_registers,
            tuple(self._tensor_maps),
            self._layout_line,
        )

    def _check_names(self) -> None:
        """Whatever is declared is passed to a launch, and the other way round."""
        for name, (role, place) in self._passed.items():
            if self._declared.get(name, (None,))[0] is not role:
                raise place.error(f"{name} is not declared", f"a line '//! {_directive_of(role)} {name} ...'", "none")
        for name, (role, place) in self._declared.items():
            if name not in self._passed:
                raise place.error(f"{name} is not used", f"a launch with the argument '{name}: {role.value}'", "none")

    def _declare(self, name: str, role: Role, place: Fragment) -> None:
        if name in self._declared:
            raise place.error("a name is declared twice", "a name that no other workspace or tensor map has")
        self._declared[name] = (role, place)

    def _call(self, word: str, rest: Fragment) -> _CallBuilder:
        if not self._calls:
            raise rest.error(f"the {word} belongs to no launch", f"a '//! launch' line above the '//! {word}' line", "none")
        return self._calls[-1]

    def _take_layout(self, rest: Fragment) -> None:
        if self._layout is not None or not re.fullmatch(IDENTIFIER, rest.text):
            raise rest.error("the layout does not parse", "one layout, named once")
        self._layout, self._layout_line = rest.text, rest.line

    def _take_launch(self, rest: Fragment) -> None:
        match = _CALL.fullmatch(rest.text)
        if match is None:
            raise rest.error("the launch does not parse", "entry(argument, ...)")
        arguments: dict[str, Argument] = {}
        for piece in rest.part(*match.span("arguments")).pieces():
            argument = _argument(piece)
            if argument.name in arguments:
                raise piece.error("an argument is named twice", "each name once")
            arguments[argument.name] = argument
            if argument.role in (Role.WORKSPACE, Role.MAP):
                self._passed.setdefault(argument.name, (argument.role, piece))
        self._calls.append(_CallBuilder(match.group("entry"), tuple(arguments.values()), rest.line))

    def _take_workspace(self, rest: Fragment) -> None:
        first = rest.first_word()
        if first is None or not first[1].text:
            raise rest.error("the workspace does not parse", "a name and a size in bytes, and 'zeroed' if it has to be")
        name, size = first
        zeroed = _ZEROED.search(size.text)
        if zeroed is not None:
            size = size.part(0, zeroed.start()).strip()
        self._declare(name, Role.WORKSPACE, rest)
        self._workspaces.append(Workspace(name, size.expression(), zeroed is not None))

    def _take_tensor_map(self, rest: Fragment) -> None:
        match = _TENSOR_MAP.match(rest.text)
        if match is None:
            raise rest.error("the tensor map does not parse", "name: operand, box rows, columns")
        name, operand = match.group("name", "operand")
        pieces = rest.part(match.end()).pieces()
        first = pieces[0].first_word()
        if first is None or first[0] != "box":
            raise pieces[0].error("the tensor map does not parse", "'box' and its elements, outermost dimension first")
        box = [first[1].expression()]
        options: dict[str, Expression] = {}
        for piece in pieces[1:]:
            word, value = piece.first_word() or ("", piece)
            if word in ("swizzle", "promotion") and word not in options:
                options[word] = value.expression()
            elif options:
                raise piece.error("the tensor map does not parse", "'swizzle' and 'promotion', once each, at the end")
            else:
                box.append(piece.expression())
        if len(box) not in (2, 3):
            expected = "a box of two elements (rows, columns) or three (batch, rows, columns)"
            raise pieces[0].error("the box does not parse", expected, str(len(box)))
        self._declare(name, Role.MAP, rest)
        self._tensor_maps.append(TensorMap(name, operand, tuple(box), **options))

    def _take_registers(self, rest: Fragment) -> None:
        if self._max_registers is not None:
            raise rest.error("registers are given twice", "one registers line a file")
        self._max_registers = rest.expression()

    def _take_flags(self, rest: Fragment) -> None:
        if self._flags is not None:
            raise rest.error("flags are given twice", "one flags line")
        self._flags = tuple(rest.text.split())

    def _take_nondeterministic(self, rest: Fragment) -> None:
        if rest.text:
            raise rest.error("nondeterministic takes no value", "nothing after it")
        self._deterministic = False


class _CallBuilder:
    """One launch line with the lines that belong to it."""

    def __init__(self, entry: str, arguments: tuple[Argument, ...], line: int) -> None:
        self._entry = entry
        self._arguments = arguments
        self._line = line
        self._shapes: dict[str, tuple[Expression, ...]] = {}
        self._shared: Expression | None = None

    def call(self) -> Call:
        """The whole, once every line was taken."""
        shapes = self._shapes
        grid, block, cluster = (shapes.get(word, ()) for word in ("grid", "block", "cluster"))
        return Call(self._entry, self._arguments, grid, block, self._shared, cluster, self._line)

    def take_shape(self, word: str, rest: Fragment) -> None:
        """Takes a grid, a block or a cluster."""
        pieces = rest.pieces()
        if len(pieces) > 3:
            raise pieces[3].error(f"the {word} does not parse", "one to three expressions: x, y, z", f"{len(pieces)}")
        if word in self._shapes:
            raise rest.error(f"the {word} is given twice", f"one {word} line for each launch line")
        self._shapes[word] = tuple(piece.expression() for piece in pieces)

    def take_shared(self, rest: Fragment) -> None:
        """Takes the bytes of dynamic shared memory."""
        if self._shared is not None:
            raise rest.error("shared is given twice", "one shared line for each launch line")
        self._shared = rest.expression()


def _argument(piece: Fragment) -> Argument:
    match = _ARGUMENT.fullmatch(piece.text)
    role = match.group("role") if match else None
    if match is None or role not in (None, *_ROLES):
        expected = "'name' for a size, or 'name: role' with one of the roles " + ", ".join(_ROLES)
        raise piece.error("an argument does not parse", expected)
    return Argument(match.group("name"), Role(role) if role else Role.SIZE)


def _directive_of(role: Role) -> str:
    return "workspace" if role is Role.WORKSPACE else "tensormap"
