"""Which constants a uniform register may hold at an instruction, over every path that leads there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from evo_l2.targets.cuda.reading.sass import Instruction, instruction_class

__all__ = ["constants_in", "targets"]

_PLACE = re.compile(r"\(?(?P<label>\.L[\w.$]*)|\b(?P<address>0x[0-9a-f]+)\b")
_INDIRECT = frozenset(("BRX", "BRXU", "JMX", "JMXU"))
_LAST = frozenset(("EXIT", "RET", "KILL"))
_PREDICATE = re.compile(r"!?U?P(\d|T)\b")
_COMPARES = frozenset(("UISETP", "UFSETP", "UR2UP"))
"""What writes predicates alone."""
_WIDTHS = {"64": 2, "128": 4, "256": 8, "WIDE": 2, "F64": 2}


def targets(instruction: Instruction, labels: Mapping[str, int]) -> tuple[int, ...]:
    """Addresses that an instruction names as places to go on at; a few others too, where a number looks like one."""
    if instruction_class(instruction) not in ("control", "sync"):
        return ()
    found = _PLACE.finditer(instruction.operands)
    places = (labels.get(m["label"]) if m["label"] else int(m["address"], 16) for m in found)
    return tuple(place for place in places if place is not None)


def constants_in(
    register: str, function: Sequence[Instruction], index: int, labels: Mapping[str, int]
) -> frozenset[int] | None:
    """Every constant that a uniform register may hold just before an instruction of a function.

    Args:
        register: Its name: `UR9`.
        function: The instructions, in order.
        index: Which of them.
        labels: As in `Sass`.

    Returns:
        At least one constant; None where a path leads there on which the register was not set to a constant.
    """
    if any(i.base in _INDIRECT for i in function):
        return None
    before = _predecessors(function, labels)
    found: set[int] = set()
    seen: set[tuple[int, str]] = set()
    todo = [(index, register)]
    while todo:
        at, name = todo.pop()
        if (at, name) in seen:
            continue
        seen.add((at, name))
        if at == 0:
            return None
        for one in before[at]:
            value = _value(function[one], name)
            if value is None:
                return None
            if isinstance(value, int):
                found.add(value)
            else:
                todo.append((one, value))
    return frozenset(found) or None


def _predecessors(function: Sequence[Instruction], labels: Mapping[str, int]) -> list[list[int]]:
    """For each instruction those that may come right before it."""
    at = {instruction.address: index for index, instruction in enumerate(function)}
    before: list[list[int]] = [[] for _ in function]
    joins = tuple(place for i in function if i.base == "BSSY" for place in targets(i, labels))
    for index, instruction in enumerate(function):
        places = () if instruction.base == "BSSY" else joins if instruction.base == "BSYNC" else targets(instruction, labels)
        if index + 1 < len(function) and _goes_on(instruction):
            before[index + 1].append(index)
        for place in places:
            if place in at:
                before[at[place]].append(index)
    return before


def _goes_on(instruction: Instruction) -> bool:
    """Whether the next instruction may be what comes after this one."""
    if instruction.predicate is not None:
        return True
    if instruction.base in ("BRA", "JMP"):
        return "," in instruction.operands
    return instruction.base not in _LAST


def _value(instruction: Instruction, register: str) -> int | str | None:
    """What the register holds after an instruction: a constant, what another (or itself) held before, or None: unknown."""
    if instruction.base == "CALL":
        return None
    words = [word.strip().removesuffix(".reuse") for word in instruction.operands.split(",")]
    while words and _PREDICATE.fullmatch(words[0]):
        words.pop(0)
    if not words or register not in _written(words[0], instruction):
        return register
    if instruction.opcode != "UMOV" or instruction.predicate is not None or len(words) != 2:
        return None
    if words[1] == "URZ":
        return 0
    if re.fullmatch(r"UR\d+", words[1]):
        return words[1]
    return int(words[1], 16) if re.fullmatch("0x[0-9a-f]+", words[1]) else None


def _written(word: str, instruction: Instruction) -> Iterator[str]:
    """The uniform registers that an instruction writes from this one, its first operand, on; rather too many than too few."""
    match = re.fullmatch(r"UR(\d+)", word)
    if match is None or instruction.base in _COMPARES:
        return
    width = max((_WIDTHS.get(modifier, 1) for modifier in instruction.modifiers), default=1)
    for number in range(int(match[1]), int(match[1]) + width):
        yield f"UR{number}"
