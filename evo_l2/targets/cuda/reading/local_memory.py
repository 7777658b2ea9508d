"""Looks for memory that a kernel reaches by a number: beside its own variables lies what earlier launches left there.

What the compiler makes of local arrays and of registers that it spills goes out from a variable (PTX) or from the stack
pointer `R1` (machine code); what it makes of shared memory goes out from a variable too, and all else from an argument.

No rule over code can be complete here. An index that leads out of a variable, a variable that is read before it is written, a
number that comes from memory or as the difference of two arguments, are not seen. What keeps launches apart on a card is that
local and shared memory are overwritten between them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial

from evo_l2.targets.cuda.reading.flow import Function, Operand, Statement, Step, declared, flow_of, solve
from evo_l2.targets.cuda.reading.ptx import FUNCTION, REGISTER, plain, statements_of
from evo_l2.targets.cuda.reading.rules import Finding
from evo_l2.targets.cuda.reading.sass import Instruction, Sass

__all__ = ["frame_bytes", "lint_frames", "lint_local", "lint_shared"]

_WORTH_A_LOOK = re.compile(r"\.local\b|\bcvta\b|\.shared\b|\b(?:ldu?|st|atom|red|cp)\b(?!\.param)")
_MOST_SHARED_BYTES = 228 * 1024
"""Of a multiprocessor, on any card; what lies further from a shared variable is not shared memory."""
_PARAMETER = re.compile(rf"\.param\b[^,()]*?(?P<name>{REGISTER})\s?(?:\[[^\]]*\]\s?)*(?=[,)])")
_SPACES = frozenset(("local", "shared", "param", "const", "global"))
_REACHES = frozenset(("ld", "ldu", "st", "atom", "red", "cp"))
_TESTS = frozenset(("setp", "set", "isspacep", "testp"))
_NONE: int | None = 0
_HIGHEST = 3
"""Addresses of which one is the sum; more are none."""

_IN_SHARED = frozenset(("LDS", "STS", "LDSM", "STSM", "ATOMS", "REDS", "LDGSTS"))
_AS_LAUNCHED = re.compile(r"\.extern\s*\.shared\b")
"""A variable that has as many bytes as a launch asks for."""
_STACK = re.compile(r"\[R1(?:\.reuse)?(?:\+(?P<offset>-?0x[0-9a-f]+))?\]")
_BY_NUMBER = re.compile(r"\[(?:U?RZ\+?)?(?:-?0x[0-9a-f]+)?\]")
_FRAME = re.compile(r"R1, (?:PT, PT, )?R1(?:\.reuse)?, (?P<bytes>-?0x[0-9a-f]+)(?:, RZ)?")


class _Kind(IntEnum):
    """How far a value is known to go out from a shared variable."""

    NO = 0
    MADE_OF_ONE = 1
    """Or it comes from memory, where nobody follows it."""
    ADDRESS = 2
    """What is added to is the address of one."""


def lint_local(text: str) -> Iterator[Finding]:
    """Statements of PTX that reach memory at an address which no variable and no argument of the kernel's gives.

    Values are followed by name; see `flow`. What counts is all that may ever be put into a register.
    """
    if _WORTH_A_LOOK.search(text) is None:
        return
    statements = tuple(statements_of(plain(text)))
    flow = flow_of(statements)
    others = _others(statements)
    locals_: dict[str, int | None] = {
        f.own(name): 1 for f in flow.functions for name in f.local | _handed(f) if not _is_other(name, others)
    }
    shared = _shared(statements)
    cells = dict.fromkeys(flow.cells, 1)
    of_tiles = {
        f.own(name): _Kind.ADDRESS for f in flow.functions for name in shared if not _is_other(name, others - shared)
    } | dict.fromkeys(flow.cells, _Kind.MADE_OF_ONE)
    numbers = solve(flow.steps, {}, False, _as_number, True, lambda one, two: one and two)
    sums = {**locals_, **solve(flow.steps, {**locals_, **cells}, _NONE, _as_sum, _NONE, _same)}
    kinds = of_tiles | solve(flow.steps, of_tiles, _Kind.NO, partial(_as_shared, numbers), _Kind.NO, min)
    constants: dict[str, int | None] = solve(flow.steps, {}, None, _as_constant, None, _same)
    for statement in flow.statements:
        message = _bad(statement, numbers, sums, kinds, constants)
        if message is not None:
            yield Finding("local-memory", message, statement.text, statement.line)


def _bad(
    statement: Statement,
    numbers: Mapping[str, bool],
    sums: Mapping[str, int | None],
    kinds: Mapping[str, _Kind],
    constants: Mapping[str, int | None],
) -> str | None:
    """What is wrong with an address that a statement makes or goes to."""
    spaces = _spaces(statement.words)
    made_of_a_number = "makes an address out of a number, which leads to what earlier launches left in local memory"
    if statement.base == "cvta":
        source = statement.sources[0] if statement.sources else Operand(None)
        if "local" in spaces:
            is_bad = sums.get(source.name or "") != 1
        elif "shared" in spaces:
            is_bad = "to" not in statement.words and kinds.get(source.name or "", _Kind.NO) == _Kind.NO
        else:
            is_bad = "to" not in statement.words and _is_number(source, numbers)
        if is_bad:
            return made_of_a_number
    elif statement.base != "isspacep" and "local" in spaces:
        place = statement.places[0] if statement.places else Operand(None)
        if sums.get(place.name or "") != 1:
            return "reaches local memory at an address that no variable of its own gives"
    elif statement.base in _REACHES:
        for at, place in enumerate(statement.places):
            space = spaces[at] if at < len(spaces) else "" if not spaces else "shared"
            if space in ("", "global") and _is_number(place, numbers):
                return "reaches memory at a number, where no argument and no variable of its own lies"
    if statement.base in ("add", "sub", "mov", *_REACHES) and _is_far(statement, kinds, constants):
        return f"leaves shared memory: it goes {_MOST_SHARED_BYTES} bytes or more from its own variable"
    return None


def _spaces(words: Sequence[str]) -> list[str]:
    return [space for word in words if (space := word.partition("::")[0]) in _SPACES]


def _is_number(operand: Operand, numbers: Mapping[str, bool]) -> bool:
    return not operand.is_loaded if operand.name is None else numbers.get(operand.name, False)


def _is_far(statement: Statement, kinds: Mapping[str, _Kind], constants: Mapping[str, int | None]) -> bool:
    """Whether a number is added to the address of a shared variable that leads out of all shared memory."""
    operands = (*statement.sources, *statement.places)
    addresses = [one for one in operands if kinds.get(one.name or "") == _Kind.ADDRESS]
    added = [one.number for one in addresses]
    if addresses and statement.base in ("add", "sub"):
        added += [one.number if one.name is None else constants.get(one.name) for one in operands if one not in addresses]
    # What is added to a word of 32 bits may be a negative number.
    bits = 64 if any(word.endswith("64") for word in statement.words) else 32
    return any(_MOST_SHARED_BYTES <= number % (1 << bits) <= (1 << bits) - _MOST_SHARED_BYTES for number in added if number)


def _as_constant(step: Step, values: Sequence[int | None]) -> int | None:
    """The one number that is written, as far as it can be told."""
    numbers = [one.number if one.name is None else value for one, value in zip(step.sources, values, strict=True)]
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return None
    found: int | None = None
    if step.base in ("mov", "cvt"):
        found = known[0]
    elif step.base == "add":
        found = sum(known)
    elif step.base == "shl" and 0 <= known[-1] < 64:
        found = known[0] << known[-1]
    return found if found is not None and abs(found) < 1 << 64 else None


def _as_number(step: Step, values: Sequence[bool]) -> bool:
    """Whether what is written is made of nothing but numbers, sizes and special registers."""
    return step.base in _TESTS or all(values)


def _same(one: int | None, two: int | None) -> int | None:
    return one if one == two else None


def _as_sum(step: Step, values: Sequence[int | None]) -> int | None:
    """Of how many addresses of local variables a value is the sum, those that are taken away taken away; None: of none.

    One is an address. The difference of two is a number, which may be added to an address.
    """
    if step.base in _TESTS:
        return 0
    known = [value for value in values if value is not None]
    if step.base in ("selp", "min", "max") and len(values) >= 2:
        return _same(values[0], values[1])
    if len(known) < len(values):
        return None
    first = known[0] if known else 0
    found: int | None = None
    if not any(known):
        found = 0
    elif step.base in ("mov", "cvta") and len(known) == 1:
        found = first
    elif step.base == "cvt":
        widths = [int(match[0]) for word in step.words if (match := re.search(r"\d+$", word))]
        found = first if all(width >= 32 for width in widths) else None
    elif step.base in ("add", "or"):
        found = sum(known)
    elif step.base == "xor":
        found = sum(known) % 2
    elif step.base == "sub":
        found = first - sum(known[1:])
    elif step.base == "neg":
        found = -first
    elif step.base == "mad" and len(known) == 3 and not any(known[:2]):
        found = known[2]
    return found if found is not None and abs(found) <= _HIGHEST else None


def _as_shared(numbers: Mapping[str, bool], step: Step, values: Sequence[_Kind]) -> _Kind:
    """How far what is written goes out from a shared variable."""
    best = max(values, default=_Kind.NO)
    is_turned = step.base == "mapa" or (step.base == "cvta" and "to" in step.words and "shared" in _spaces(step.words))
    if is_turned and best < _Kind.ADDRESS:
        is_made = any(_is_number(source, numbers) for source in step.sources[:1])
        return _Kind.NO if is_made else _Kind.ADDRESS
    if any(source.is_loaded for source in step.sources):
        return _Kind.NO if {"global", "const", "param"}.intersection(_spaces(step.words)) else _Kind.MADE_OF_ONE
    if step.base == "selp":
        return min(values[:2])
    if step.base == "sub":
        is_difference = values[0] == _Kind.NO or max(values[1:]) == _Kind.ADDRESS
        return _Kind.NO if is_difference else values[0]
    if step.base in ("neg", "not", "mul", *_TESTS):
        return _Kind.NO
    if step.base in ("mov", "cvt", "cvta", "add", "mapa"):
        return best
    if step.base == "mad":
        return values[2]
    return min(best, _Kind.MADE_OF_ONE)


def _handed(function: Function) -> set[str]:
    """What a function is handed, which may have an address."""
    return set(() if function.is_entry else function.handed)


def _shared(statements: Sequence[tuple[str, int | None]]) -> frozenset[str]:
    """Shared variables anywhere in the file."""
    is_shared = re.compile(r"(?:\.(?:extern|visible|weak|common) )*\.shared\b")
    return frozenset(name for statement, _ in statements if is_shared.match(statement) for name in declared(statement))


def _is_other(name: str, others: frozenset[str]) -> bool:
    return name in others or f"{name.rstrip('0123456789')}<" in others


def _others(statements: Sequence[tuple[str, int | None]]) -> frozenset[str]:
    """Names that anywhere in the file stand for something else: in another scope, such a name has another meaning."""
    found: set[str] = set()
    for statement, _ in statements:
        if FUNCTION.search(statement):
            found.update(match["name"] for match in _PARAMETER.finditer(statement) if ".entry" in statement)
        elif statement.startswith(".") and not statement.startswith(".local"):
            found.update(declared(statement))
    return frozenset(found)


def lint_frames(sass: Sass, local_bytes: Mapping[str, int]) -> Iterator[Finding]:
    """Machine instructions that reach local memory outside what the code around them has taken of it.

    Args:
        sass: The machine code.
        local_bytes: Entry to what it needs of local memory, as the ELF says; more is let pass where the code takes more.
    """
    taken = frame_bytes(sass)
    for name, function in sass.functions.items():
        owner = sass.owners.get(name, name)
        limit = max(local_bytes.get(owner, 0), taken.get(owner, 0))
        for instruction in function:
            if instruction.base in ("LDL", "STL") and not _is_inside(instruction, limit):
                message = f"reaches local memory outside the {limit} bytes that are its own"
                yield Finding("local-memory", message, instruction.text, instruction.line)


def frame_bytes(sass: Sass) -> dict[str, int]:
    """Entry to the bytes by which it, and every function that stands in its code, moves the stack pointer, each once.

    The ELF says of a function that calls itself that it needs none, where it is built for Hopper or Blackwell.
    """
    taken: Counter[str] = Counter()
    for name, function in sass.functions.items():
        taken[sass.owners.get(name, name)] += max((_frame(instruction) for instruction in function), default=0)
    return dict(taken)


def _frame(instruction: Instruction) -> int:
    """By how many bytes an instruction moves the stack pointer down."""
    match = _FRAME.fullmatch(instruction.operands)
    if match is None:
        return 0
    by = int(match["bytes"], 16)
    return max(0, -by if by < 1 << 31 else (1 << 32) - by)


def _is_inside(instruction: Instruction, limit: int) -> bool:
    """Whether a load or a store may be at a place of the code's own; where that is computed, there has to be one at all."""
    if limit == 0 or _BY_NUMBER.search(instruction.operands):
        return False
    match = _STACK.search(instruction.operands)
    return match is None or 0 <= int(match["offset"] or "0", 16) < limit


def lint_shared(sass: Sass, static_bytes: Mapping[str, int], ptx: str) -> Iterator[Finding]:
    """The first machine instruction of each entry that reaches shared memory though the file declares none for it.

    Args:
        sass: The machine code.
        static_bytes: Entry to what it declares of shared memory.
        ptx: The text that it was made from.
    """
    if _AS_LAUNCHED.search(plain(ptx)) is not None:
        return
    found = set()
    for name, function in sass.functions.items():
        owner = sass.owners.get(name, name)
        for instruction in function:
            if instruction.base in _IN_SHARED and owner not in found and static_bytes.get(owner, 0) == 0:
                found.add(owner)
                message = "reaches shared memory and declares none, where lies what earlier launches left"
                yield Finding("local-memory", message, instruction.text, instruction.line)
