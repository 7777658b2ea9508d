"""What machine code reads of constant bank 0 beside a kernel's arguments, where the driver keeps what it knows of a launch.

Offsets are what toolkit 13.0 compiles special registers and address spaces to; the tests hold the comparison. What is not
known here is refused: the number of the launch stands among it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evo_l2.targets.cuda.reading.reaching_constants import targets
from evo_l2.targets.cuda.reading.rules import Finding
from evo_l2.targets.cuda.reading.sass import Instruction, Sass

__all__ = ["constant_addresses", "lint_header"]

_OPERAND = re.compile(r"(?<!\w)cx?\[(?P<bank>[^\]]*)\]\[(?P<at>[^\]]*)\]")
_DIRECT = re.compile(r"(?:U?RZ)?\+?(?P<offset>-?0x[0-9a-f]+)?")
_INDEXED = re.compile(r"(?P<register>U?R\d+)(?:\+(?P<offset>0x[0-9a-f]+))?")
_CLUSTER_SIZE = re.compile(r"U?R\d+, (?P<source>U?R\d+)(?:\.reuse)?, -0xa0, U?RZ")


@dataclass(frozen=True, slots=True)
class _Header:
    """The part of the bank that is the driver's, for one generation of cards."""

    first_argument: int
    """Byte at which the arguments begin."""
    known: frozenset[int]
    """Bytes of what does not tell one launch from the next: shapes, sizes, windows of address spaces, stack, descriptor."""
    constants: range
    """Bytes of the address at which constant memory can be reached like any other."""
    by_cluster: range = range(0)
    """What is chosen among by the size of the cluster: the compiler reads it at an index."""


def _bytes(*words: int) -> frozenset[int]:
    return frozenset(byte for word in words for byte in range(word, word + 4))


_SHAPE = (0x0, 0x4, 0x8, 0xC, 0x10, 0x14)
_COMMON = _bytes(*_SHAPE, 0x18, 0x1C, 0x20, 0x24, 0x28, 0x2C, 0x10C, 0x114)
_AMPERE = _Header(0x160, _COMMON | _bytes(0x40, 0x44, 0x118, 0x11C), range(0x50, 0x58))
_HOPPER = _Header(
    0x210,
    _COMMON | _bytes(0x13C, 0x188, 0x198, 0x19C, 0x208, 0x20C, *range(0x140, 0x168, 4)),
    range(0xD0, 0xD8),
)
_BLACKWELL = _Header(
    0x380,
    _bytes(0x16C, 0x2D0, 0x2F8, 0x2FC, 0x348, 0x34C, *range(0x358, 0x380, 4)),
    range(0x120, 0x128),
    range(0x2A0, 0x2D0),
)


def lint_header(sass: Sass, arch: str, banks: Mapping[str, Mapping[int, int]] | None = None) -> Iterator[Finding]:
    """Reads of what the driver keeps there, other than of what every kernel may know; none of constant memory's address.

    Args:
        sass: The machine code.
        arch: What it was built for.
        banks: Entry to bank to its bytes, as in `Entry.constant_bytes`; what lies behind is refused too. None: not known.
    """
    header = _header(arch)
    for name, function in sass.functions.items():
        ends = None if banks is None else banks.get(sass.owners.get(name, name), {})
        for index, instruction in enumerate(function):
            message = _bad(instruction, function, index, sass.labels, header, ends)
            if message is not None:
                yield Finding("call-number", message, instruction.text, instruction.line)


def _bad(
    instruction: Instruction,
    function: Sequence[Instruction],
    index: int,
    labels: Mapping[str, int],
    header: _Header,
    ends: Mapping[int, int] | None,
) -> str | None:
    for operand in _operands(instruction):
        bad = not operand[1] <= header.known | set(header.constants)
        if operand[0] == "index":
            bad = not _is_by_cluster(operand[2], function, index, labels, header)
        first = min(operand[1], default=0)
        if bad and not (operand[0] == "direct" and first >= header.first_argument):
            return "reads constant bank 0 beside its arguments, where the driver keeps what it knows of the launch"
        # A wide read of a narrow last argument is the compiler's own.
        if bad and ends is not None and first >= ends.get(0, header.first_argument):
            return "reads constant bank 0 behind its arguments, where lies what the driver or an earlier launch left"
    if ends is not None and any(_is_behind(match, ends) for match in _OPERAND.finditer(instruction.operands)):
        return "reads constant memory outside the tables that it declares"
    return None


def _is_behind(match: re.Match[str], ends: Mapping[int, int]) -> bool:
    """Whether an operand lies in a bank of constants, and at a place that no table of the file has."""
    if match["bank"] == "0x0" or not re.fullmatch("0x[0-9a-f]+", match["bank"]):
        return False
    end, direct = ends.get(int(match["bank"], 16), 0), _DIRECT.fullmatch(match["at"])
    return end == 0 if direct is None else not 0 <= int(direct["offset"] or "0", 16) < end


def constant_addresses(sass: Sass, arch: str) -> Iterator[Instruction]:
    """What takes the address at which constant memory can be written."""
    window = set(_header(arch).constants)
    for instruction in sass.instructions:
        if any(kind == "direct" and not window.isdisjoint(read) for kind, read, _ in _operands(instruction)):
            yield instruction


def _header(arch: str) -> _Header:
    number = re.search(r"\d+", arch)
    major = int(number[0]) // 10 if number is not None else 0
    return _AMPERE if major <= 8 else _HOPPER if major == 9 else _BLACKWELL


def _operands(instruction: Instruction) -> Iterator[tuple[str, frozenset[int], str]]:
    """Operands in bank 0, or in one that is not known: `direct` with the bytes that are read, or `index` with what it is."""
    if "c[" not in instruction.operands and "cx[" not in instruction.operands:
        return
    for match in _OPERAND.finditer(instruction.operands):
        if match["bank"] not in ("0x0", "RZ", "URZ") and re.fullmatch("0x[0-9a-f]+", match["bank"]):
            continue
        direct = _DIRECT.fullmatch(match["at"])
        if direct is None or match["bank"] != "0x0":
            yield "index", frozenset(), match["at"] if match["bank"] == "0x0" else ""
            continue
        offset = int(direct["offset"] or "0", 16)
        yield "direct", frozenset(range(offset, offset + _n_bytes(instruction, offset))), ""


def _n_bytes(instruction: Instruction, offset: int) -> int:
    widths = [int(m) // 8 for m in instruction.modifiers if m in ("64", "128", "256")]
    is_double = instruction.base[0] == "D" or "WIDE" in instruction.modifiers
    return max(widths, default=8 if is_double and offset % 8 == 0 else 4)


def _is_by_cluster(index: str, function: Sequence[Instruction], at: int, labels: Mapping[str, int], header: _Header) -> bool:
    """Whether the compiler reads there by the size of the cluster, and nothing else can have set the register."""
    match = _INDEXED.fullmatch(index)
    if match is None or int(match["offset"] or "0", 16) not in header.by_cluster or "32" not in _sizes(function[at]):
        return False
    joins = {place for instruction in function for place in targets(instruction, labels)}
    register, is_scaled = match["register"], False
    for back in range(at - 1, -1, -1):
        if function[back + 1].address in joins or targets(function[back], labels):
            return False
        instruction = function[back]
        if not re.match(rf"{register}\b", instruction.operands):
            continue
        if instruction.predicate is not None:
            return False
        if instruction.base == "R2UR" and register.startswith("U"):
            register = instruction.operands.partition(", ")[2].removesuffix(".reuse")
            continue
        scaled = _CLUSTER_SIZE.fullmatch(instruction.operands)
        if instruction.opcode in ("IMAD", "UIMAD") and scaled is not None and not is_scaled:
            register, is_scaled = scaled["source"], True
            continue
        return is_scaled and instruction.opcode == "CS2R.32" and instruction.operands.endswith("SR_CgaSize")
    return False


def _sizes(instruction: Instruction) -> tuple[str, ...]:
    return tuple(m for m in instruction.modifiers if m in ("64", "128", "256")) or ("32",)
