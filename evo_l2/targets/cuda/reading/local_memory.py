"""Looks for local memory that a kernel reaches by a number: beside its own variables lies what earlier launches left there.

What the compiler makes of local arrays and of registers that it spills goes out from a variable (PTX) or from the stack
pointer `R1` (machine code). An index that leads out of a variable, and a variable that is read before it is written, are not
seen here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evo_l2.targets.cuda.reading.ptx import FUNCTION, REGISTER, WRITTEN, plain, statements_of
from evo_l2.targets.cuda.reading.rules import Finding
from evo_l2.targets.cuda.reading.sass import Instruction, Sass

__all__ = ["frame_bytes", "lint_frames", "lint_local"]

_WORTH_A_LOOK = re.compile(r"\.local\b|\bcvta(?!\.(?:to\.(?:global|shared|const)|global|const|param)\b)")
_STATEMENT = re.compile(
    r"(?:@\s*!?\s*[\w$%]+\s+)?(?P<base>[a-z]\w*)(?P<modifiers>(?:\s?\.[\w:]+)*)\s*(?P<operands>.*)", re.DOTALL
)
_NAMED = re.compile(rf"(?P<name>{REGISTER})(?:\s?\+\s?-?\w+)?")
"""A register or a variable, with or without a number that is added."""
_PLACE = re.compile(rf"(?P<before>{REGISTER})?\s?\[\s?(?P<inside>[^\]]*?)\s?\]")
_PARAMETER = re.compile(rf"\.param\b[^,()]*?(?P<name>{REGISTER})\s?(?:\[[^\]]*\]\s?)*(?=[,)])")
_TYPES = re.compile(r"^\s*(?:\.\w+(?:\s\d+)?\s*)*")
"""What stands before the names in a declaration."""
_NUMBER = re.compile(r"[-+(~!\d]|WARP_SZ")
_ARITHMETIC = frozenset(("mov", "cvt", "cvta", "add", "sub", "mul", "mad", "shl", "shr", "or", "and", "xor", "selp"))

_STACK = re.compile(r"\[R1(?:\.reuse)?(?:\+(?P<offset>-?0x[0-9a-f]+))?\]")
_BY_NUMBER = re.compile(r"\[(?:U?RZ\+?)?(?:-?0x[0-9a-f]+)?\]")
_FRAME = re.compile(r"R1, (?:PT, PT, )?R1(?:\.reuse)?, (?P<bytes>-?0x[0-9a-f]+)(?:, RZ)?")


@dataclass(frozen=True, slots=True)
class _Definition:
    """One statement that writes a register, as far as it matters where its value comes from."""

    to: str
    sources: tuple[str, ...]
    n_needed: int
    """How many of the sources have to be of the kind in question for the register to be."""


def lint_local(text: str) -> Iterator[Finding]:
    """Statements of PTX that reach local memory at an address which no variable of the kernel's gives.

    Registers are followed by name within one function: one counts where all that is ever put into it is the address of a
    local variable, or what is computed from one by adding.
    """
    if _WORTH_A_LOOK.search(text) is None:
        return
    statements = tuple(statements_of(plain(text)))
    others = _others(statements)
    heads = [at for at, (statement, _) in enumerate(statements) if FUNCTION.search(statement)]
    for begin, end in zip(heads, (*heads[1:], len(statements)), strict=True):
        yield from _of_function(statements[begin:end], others)


def _of_function(statements: Sequence[tuple[str, int | None]], others: frozenset[str]) -> Iterator[Finding]:
    if not any(_WORTH_A_LOOK.search(statement) for statement, _ in statements):
        return
    parsed = [(statement, line, _STATEMENT.fullmatch(statement)) for statement, line in statements]
    definitions = [one for statement, _, match in parsed for one in _definitions(statement, match)]
    addresses = _kind([_as_address(*one) for one in definitions], _variables(statements, others))
    numbers = _kind([_as_number(*one) for one in definitions], frozenset())
    for statement, line, match in parsed:
        if match is None:
            continue
        words = _words(match)
        operands = match["operands"]
        if match["base"] == "cvta":
            source = operands.partition(",")[2].strip()
            if "local" in words:
                is_bad = _name(source) not in addresses
            else:
                is_bad = "to" not in words and (_name(source) is None or _name(source) in numbers)
            message = "makes an address out of a number, which leads to what earlier launches left in local memory"
        else:
            is_bad = "local" in words and match["base"] != "isspacep" and _at(operands) not in addresses
            message = "reaches local memory at an address that no variable of its own gives"
        if is_bad:
            yield Finding("local-memory", message, statement, line)


def _words(match: re.Match[str]) -> list[str]:
    """The modifiers of a statement."""
    return [word.strip() for word in match["modifiers"].split(".")[1:]]


def _name(operand: str) -> str | None:
    match = _NAMED.fullmatch(operand.strip())
    return match["name"] if match is not None and match["name"] != "WARP_SZ" else None


def _at(operands: str) -> str | None:
    """What an address in brackets goes out from; in `v[4]` it is `v`."""
    match = _PLACE.search(operands)
    return None if match is None else match["before"] or _name(match["inside"])


def _definitions(statement: str, match: re.Match[str] | None) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Every register that a statement writes, with what is done and to which operands; `` for what is not followed."""
    written = WRITTEN.match(statement)
    if written is None:
        return
    if match is not None and match["base"] in _ARITHMETIC:
        to, *sources = (operand.strip() for operand in match["operands"].split(","))
        if re.fullmatch(REGISTER, to):
            yield to, match["base"], tuple(sources)
            return
    for to in re.findall(REGISTER, written["to"]):
        yield to, "", ()


def _as_address(to: str, base: str, sources: tuple[str, ...]) -> _Definition:
    """When what is written is the address of a variable: where what it is made from is one."""
    if base in ("add", "or"):
        return _Definition(to, tuple(name for source in sources if (name := _name(source)) is not None), 1)
    followed = {"mov": sources[:1], "cvt": sources[:1], "cvta": sources[:1], "sub": sources[:1], "mad": sources[2:]}
    names = [_name(source) for source in followed.get(base, sources[:2] if base == "selp" else ())]
    return _Definition(to, tuple(name for name in names if name is not None), max(len(names), 1))


def _as_number(to: str, base: str, sources: tuple[str, ...]) -> _Definition:
    """When what is written is a number that the code sets: where all that it is made from are."""
    names = tuple(name for source in sources if (name := _name(source)) is not None)
    is_followed = base in _ARITHMETIC and all(_name(s) is not None or _NUMBER.match(s) for s in sources)
    return _Definition(to, names, len(names) if is_followed else len(names) + 1)


def _kind(definitions: Sequence[_Definition], seeds: frozenset[str]) -> frozenset[str]:
    """Registers of which every definition has enough sources of the same kind; it begins with seeds, or with no source.

    What nothing but itself leads to is of no kind.
    """
    written = {one.to for one in definitions}
    seeds -= written
    users: dict[str, list[int]] = {}
    for index, definition in enumerate(definitions):
        for source in definition.sources:
            users.setdefault(source, []).append(index)
    # First everything is taken for one, and what has a definition that is not is taken away, with all that follows.
    n_left = [sum(source in written or source in seeds for source in one.sources) for one in definitions]
    bad = {one.to for one, n in zip(definitions, n_left, strict=True) if n < one.n_needed}
    todo = list(bad)
    while todo:
        for index in users.get(todo.pop(), ()):
            n_left[index] -= 1
            to = definitions[index].to
            if n_left[index] < definitions[index].n_needed and to not in bad:
                bad.add(to)
                todo.append(to)
    # Then what nothing leads to.
    found = set(seeds)
    todo = [*seeds, *dict.fromkeys(one.to for one in definitions if one.n_needed == 0 and one.to not in bad)]
    found.update(todo)
    while todo:
        for index in users.get(todo.pop(), ()):
            to = definitions[index].to
            if to not in bad and to not in found:
                found.add(to)
                todo.append(to)
    return frozenset(found)


def _variables(statements: Sequence[tuple[str, int | None]], others: frozenset[str]) -> frozenset[str]:
    """Local variables of a function, and what it is handed, which may have an address."""
    head = statements[0][0]
    found = {match["name"] for match in _PARAMETER.finditer(head)} if ".entry" not in head else set()
    for statement, _ in statements:
        if statement.startswith(".local"):
            found.update(_declared(statement))
    numbered = tuple(name.removesuffix("<") for name in others if name.endswith("<"))
    return frozenset(
        name for name in found - others if not any(name.startswith(n) and name.removeprefix(n).isdigit() for n in numbered)
    )


def _others(statements: Sequence[tuple[str, int | None]]) -> frozenset[str]:
    """Names that anywhere in the file stand for something else: in another scope, such a name has another meaning."""
    found: set[str] = set()
    for statement, _ in statements:
        if FUNCTION.search(statement):
            found.update(match["name"] for match in _PARAMETER.finditer(statement) if ".entry" in statement)
        elif statement.startswith(".") and not statement.startswith(".local"):
            found.update(_declared(statement))
    return frozenset(found)


def _declared(text: str) -> Iterator[str]:
    """Names that a declaration makes; that of all of `r<4>` is `r<`."""
    for part in _TYPES.sub("", text).split(","):
        match = re.match(rf"{REGISTER}<?", part.replace(" ", ""))
        if match is not None:
            yield match[0]


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
