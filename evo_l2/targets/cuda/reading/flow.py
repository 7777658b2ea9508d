"""Follows values through the registers of PTX, by name, from function to function: what is made of what.

Names are those of NVIDIA's "PTX ISA" 9.2. What goes through memory is not followed, other than the parameters of a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from evo_l2.targets.cuda.reading.ptx import FUNCTION, REGISTER, WRITTEN

__all__ = ["Flow", "Function", "Operand", "Statement", "Step", "declared", "flow_of", "solve"]

Value = TypeVar("Value")

_STATEMENT = re.compile(
    r"(?:@\s*!?\s*[\w$%]+\s+)?(?P<base>[a-z]\w*)(?P<modifiers>(?:\s?\.[\w:]+)*)\s*(?P<operands>.*)", re.DOTALL
)
_NAMED = re.compile(rf"[-!~]?\s?(?P<name>{REGISTER})(?:\.[a-z]\d?)?(?:\s?\+\s?(?P<offset>-?\w+))?")
"""A register or a variable, with or without a number that is added."""
_PLACE = re.compile(rf"(?:(?<![\w$%])(?P<before>{REGISTER}))?\s?\[\s?(?P<inside>[^\]]*?)\s?\]")
_PARTS = re.compile(r"(?:\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^,\[{(])+")
_CALL = re.compile(
    r"(?:\((?P<back>[^)]*)\)\s*,\s*)?(?P<target>%?[\w$]+)\s*(?:,\s*\((?P<given>[^)]*)\))?(?:\s*,.*)?", re.DOTALL
)
_HEAD = re.compile(
    rf"\.(?:entry|func)\b(?:\s*\.\w+)*\s*(?:\((?P<back>[^)]*)\)\s*)?(?P<name>{REGISTER})\s*(?:\((?P<given>[^)]*)\))?"
)
_PARAMETER = re.compile(rf"(?P<name>{REGISTER})\s?(?:\[[^\]]*\]\s?)*$")
_NARROW = re.compile(r"\.param\s*\.[usbf](?:8|16|32)\b")
_TYPES = re.compile(r"^\s*(?:\.\w+(?:\s\d+)?\s*)*")
"""What stands before the names in a declaration."""
_SPECIAL = re.compile(
    r"%(?:n?tid|n?ctaid|n?clusterid|cluster_n?ctaid|cluster_n?ctarank|is_explicit_cluster|laneid|n?warpid|n?smid"
    r"|lanemask_\w+|(?:total|dynamic|aggr)_smem_size|reserved_smem_\w+)(?:\.[xyzw])?"
)
_NUMBER = re.compile(r"[-+(~!\d]|WARP_SZ")
_MOST_LISTS = 64
"""Lists and addresses in one statement; no instruction has as many, and patterns take long over them."""
_WIDTH = re.compile(r"[usbf](?P<bits>8|16|32|64|128)")


@dataclass(frozen=True, slots=True)
class Operand:
    """What a statement reads, or an address goes out from."""

    name: str | None
    """Of a register or a variable, with its function; None for a number, and for what was loaded."""
    number: int | None = None
    """A number that stands there, or that is added to what the name stands for."""
    is_loaded: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One register, or part of a parameter, that is written."""

    to: str
    base: str
    words: tuple[str, ...]
    sources: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement taken apart."""

    text: str
    line: int | None
    base: str
    words: tuple[str, ...]
    """Its modifiers."""
    sources: tuple[Operand, ...]
    """What stands behind the first operand, outside brackets."""
    places: tuple[Operand, ...]
    """What addresses in brackets go out from."""


@dataclass(slots=True)
class Function:
    """A function or an entry."""

    number: int
    is_entry: bool
    handed: list[str]
    """Names of its parameters, in order."""
    given_back: list[str]
    narrow: frozenset[str]
    """Parameters of at most 32 bits."""
    local: set[str] = field(default_factory=set)
    """Local variables that it declares."""

    def own(self, name: str) -> str:
        """A name, told from the same in other functions."""
        return f"{self.number}:{name}"


@dataclass(frozen=True, slots=True)
class Flow:
    """A file of PTX."""

    functions: tuple[Function, ...]
    statements: tuple[Statement, ...]
    steps: tuple[Step, ...]
    cells: frozenset[str]
    """Parts of parameters of functions that nothing in the file puts a value into."""


def flow_of(statements: Sequence[tuple[str, int | None]]) -> Flow:
    """Takes a file apart.

    Args:
        statements: As `ptx.statements_of` gives them.
    """
    reader = _Reader()
    for text, line in statements:
        reader.add(text, line)
    return reader.end()


def declared(text: str) -> Iterator[str]:
    """Names that a declaration makes; that of all of `r<4>` is `r<`."""
    for part in _TYPES.sub("", text).split(","):
        match = re.match(rf"{REGISTER}<?", part.replace(" ", ""))
        if match is not None:
            yield match[0]


def solve(
    steps: Sequence[Step],
    known: Mapping[str, Value],
    unknown: Value,
    of_step: Callable[[Step, Sequence[Value]], Value],
    of_number: Value,
    meet: Callable[[Value, Value], Value],
) -> dict[str, Value]:
    """What holds of every name, whichever of the steps that write it came last.

    Args:
        steps: All of the file.
        known: What holds of names that no step writes.
        unknown: What holds of the others that no step writes, and of what is loaded.
        of_step: What holds of the name that a step writes, by what holds of its sources.
        of_number: What holds of a number.
        meet: What is left of two; has to lead nowhere but down.

    Returns:
        Name to value, for all that is written; a name that nothing but itself leads to is left out.
    """
    written = {step.to for step in steps}
    users: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        for name in {source.name for source in step.sources if source.name in written}:
            users.setdefault(name or "", []).append(index)
    found: dict[str, Value] = {}
    todo = list(range(len(steps)))
    while todo:
        step = steps[todo.pop()]
        values = []
        for source in step.sources:
            if source.name is None:
                values.append(unknown if source.is_loaded else of_number)
            elif source.name not in written:
                values.append(known.get(source.name, unknown))
            elif source.name in found:
                values.append(found[source.name])
        if len(values) < len(step.sources):
            continue
        value = of_step(step, values)
        if step.to in found:
            value = meet(found[step.to], value)
            if value == found[step.to]:
                continue
        found[step.to] = value
        todo.extend(users.get(step.to, ()))
    return found


class _Reader:
    """Reads statements one after another."""

    def __init__(self) -> None:
        self._functions: list[Function] = []
        self._by_name: dict[str, Function] = {}
        self._statements: list[Statement] = []
        self._steps: list[Step] = []
        self._here = Function(0, True, [], [], frozenset())
        self._turns: dict[str, int] = {}
        """Parameters of calls, to which of the calls by this name it is; names repeat from call to call."""
        self._called: set[str] = set()
        self._calls: list[tuple[Function, str, list[str], list[str]]] = []

    def add(self, text: str, line: int | None) -> None:
        if FUNCTION.search(text):
            self._head(text)
        elif text.startswith("."):
            self._declaration(text)
        elif (match := _STATEMENT.fullmatch(text)) is not None:
            words = tuple(word.strip() for word in match["modifiers"].split(".")[1:])
            self._instruction(text, line, match["base"], words, match["operands"])

    def end(self) -> Flow:
        stored = {step.to for step in self._steps}
        read = {source.name for step in self._steps for source in step.sources if source.name is not None}
        cells: dict[str, list[str]] = {}
        for cell in sorted(read):
            if "[" in cell:
                cells.setdefault(cell.partition("+")[0], []).append(cell)
        for here, target, given, back in self._calls:
            callee = self._by_name.get(target)
            known = callee.given_back if callee is not None else ()
            loaded = (Operand(None, None, True),)
            self._steps.extend(Step(here.own(to), "call", (), loaded) for to in back[len(known) :] if "#" not in to)
            if callee is None:
                continue
            for name, to in zip(given, callee.handed, strict=False):
                self._hand(here, name, cells.get(callee.own(f"[{to}"), ()), callee.own(to), stored)
            for name, to in zip(callee.given_back, back, strict=False):
                self._hand(callee, name, cells.get(here.own(f"[{to}"), ()), here.own(to), stored)
        written = {step.to for step in self._steps}
        unset = frozenset(cell for row in cells.values() for cell in row if cell not in written)
        return Flow(tuple(self._functions), tuple(self._statements), tuple(self._steps), unset)

    def _hand(self, here: Function, name: str, cells: Sequence[str], to: str, stored: set[str]) -> None:
        """What one side of a call puts into a parameter, the other reads from the one in the same place."""
        whole = tuple(_operands(name, here))[:1] if "#" not in name else ()
        for cell in cells:
            source = here.own(f"[{name}+{cell.partition('+')[2]}")
            if source in stored:
                self._steps.append(Step(cell, "mov", (), (Operand(source),)))
            elif whole and not here.given_back.count(name):
                self._steps.append(Step(cell, "mov", (), whole))
        if whole and "#" not in to:
            self._steps.append(Step(to, "mov", (), whole))

    def _head(self, text: str) -> None:
        match = _HEAD.search(text)
        number, is_entry = len(self._functions) + 1, ".entry" in text
        if match is None:
            self._here = Function(number, is_entry, [], [], frozenset())
        else:
            parts = (match["given"] or "").split(",")
            narrow = frozenset(name for part in parts if _NARROW.search(part) and "[" not in part for name in _names([part]))
            self._here = Function(number, is_entry, _names(parts), _names((match["back"] or "").split(",")), narrow)
            self._by_name[match["name"]] = self._here
        self._functions.append(self._here)
        self._turns, self._called = {}, set()

    def _declaration(self, text: str) -> None:
        if text.startswith(".local"):
            self._here.local.update(declared(text))
        elif text.startswith(".param"):
            for name in declared(text):
                if name not in self._turns or name in self._called:
                    self._turns[name] = self._turns.get(name, 0) + 1
                    self._called.discard(name)

    def _instruction(self, text: str, line: int | None, base: str, words: tuple[str, ...], operands: str) -> None:
        here = self._here
        if max(operands.count("["), operands.count("{")) > _MOST_LISTS:
            return
        if base == "call":
            match = _CALL.fullmatch(operands)
            if match is not None:
                back, given = ((match[group] or "").split(",") for group in ("back", "given"))
                found = [[self._turned(name.strip()) for name in names if name.strip()] for names in (given, back)]
                self._called.update(name.strip() for name in (*back, *given))
                self._calls.append((here, match["target"], found[0], found[1]))
            return
        first, *rest = _PARTS.findall(operands) or [""]
        places = tuple(_place(match, here) for match in _PLACE.finditer(operands))
        sources = tuple(o for part in rest if "[" not in part for o in _operands(part, here))
        self._statements.append(Statement(text, line, base, words, sources, places))
        if base in ("ld", "st") and "param" in {word.partition("::")[0] for word in words}:
            self._parameter(base, words, operands, first, sources)
        elif (written := WRITTEN.match(text)) is not None and "[" not in first:
            loads = (Operand(None, None, True),) if places else sources
            for name in re.findall(REGISTER, written["to"]):
                self._steps.append(Step(here.own(name), base, words, loads))

    def _parameter(self, base: str, words: tuple[str, ...], operands: str, first: str, sources: tuple[Operand, ...]) -> None:
        """What is put into a parameter or read from one, in parts as wide as the statement says."""
        here = self._here
        place = _PLACE.search(operands)
        inside = re.fullmatch(rf"(?P<name>{REGISTER})(?:\s?\+\s?(?P<offset>-?\d+))?", place["inside"]) if place else None
        widths = [int(match["bits"]) // 8 for word in words if (match := _WIDTH.fullmatch(word))]
        names = re.findall(REGISTER, first) if base == "ld" else []
        if inside is None or not widths or (place is not None and place["before"]):
            self._steps.extend(Step(here.own(name), base, words, (Operand(None, None, True),)) for name in names)
            return
        start, name = int(inside["offset"] or 0), self._turned(inside["name"])
        if base == "st":
            for at, source in enumerate(sources):
                self._steps.append(Step(here.own(f"[{name}+{start + at * widths[-1]}]"), "mov", (), (source,)))
            return
        for at, to in enumerate(names):
            source = Operand(here.own(f"[{name}+{start + at * widths[-1]}]"))
            if here.is_entry and "#" not in name:
                source = Operand(None, None, inside["name"] not in here.narrow)
            self._steps.append(Step(here.own(to), "mov" if source.name else base, () if source.name else words, (source,)))

    def _turned(self, name: str) -> str:
        return f"{name}#{self._turns[name]}" if name in self._turns else name


def _names(parts: Iterable[str]) -> list[str]:
    return [match["name"] for part in parts if (match := _PARAMETER.search(part.strip()))]


def _operands(part: str, here: Function) -> Iterator[Operand]:
    """What one operand names; of a list in braces each."""
    for piece in re.split(r"[,{}|]", part):
        piece = piece.strip()
        match = _NAMED.fullmatch(piece)
        if not piece or piece == "_":
            continue
        if _SPECIAL.fullmatch(piece) or (_NUMBER.match(piece) and (match is None or piece.lstrip("-~! ")[0].isdigit())):
            yield Operand(None, _value(piece))
        elif match is not None and match["name"] != "WARP_SZ":
            yield Operand(here.own(match["name"]), _value(match["offset"]))
        else:
            yield Operand(None, None, match is None)


def _place(match: re.Match[str], here: Function) -> Operand:
    """What an address in brackets goes out from; in `v[4]` it is `v`, in `[map, {0, 0}]` it is `map`."""
    if match["before"]:
        return Operand(here.own(match["before"]))
    return next(_operands(match["inside"].split(",")[0], here), Operand(None))


def _value(text: str | None) -> int | None:
    if text is None or len(text) > 24:
        return None
    try:
        return int(text.strip().rstrip("U"), 0)
    except ValueError:
        return None
