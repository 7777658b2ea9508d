"""Machine code as people and programs read it: below its lines of source, or in the order of its addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from evo_l2.targets.cuda.reading.sass import Instruction, Sass

__all__ = ["annotate", "in_program_order", "plain"]

_PLACE = re.compile(r"`\((?P<name>[^()`]+)\)")
"""A place in the code that an instruction points to, as `nvdisasm` prints it."""
_NO_LINE = "(no line of the source)"


@dataclass(frozen=True, slots=True)
class _Row:
    """One instruction, the places that stand before it, and the place that it goes to."""

    function: str
    instruction: Instruction
    labels: tuple[str, ...]
    target: int | None
    """Address in the same section."""

    @property
    def label_lines(self) -> list[str]:
        """A line for each label."""
        return [f"          {label}:" for label in self.labels]

    def text(self, width: int) -> str:
        """Address, predicate, opcode, operands and the address of the target."""
        i = self.instruction
        name = f"{self.function:{width}} " if width else ""
        guard = f"@{i.predicate}" if i.predicate else ""
        target = f"  // to {self.target:04x}" if self.target is not None else ""
        return f"          {name}{i.address:04x} {guard:>5} {i.opcode} {i.operands}{target}".rstrip()


def annotate(sass: Sass, source: str) -> str:
    """The source, every line followed by the instructions that stand for it, by address; what has no line comes at the end.

    A label that an instruction points to stands before the instruction that has it.

    Args:
        sass: From a cubin with line information (`-lineinfo`), or all instructions come at the end.
        source: Text of the kernel's file.
    """
    lines = source.splitlines()
    by_line: dict[int | None, list[_Row]] = {}
    for row in _rows(sass):
        by_line.setdefault(_line_of(row.instruction, len(lines)), []).append(row)
    width = _width(sass)
    result = []
    for number, text in enumerate(lines, start=1):
        result.append(f"{number:5d}  {text}".rstrip())
        result += _shown(by_line.get(number, []), width)
    if None in by_line:
        result.append(f"       {_NO_LINE}")
        result += _shown(by_line[None], width)
    return "\n".join(result) + "\n"


def in_program_order(sass: Sass, source: str) -> str:
    """Every function's instructions by address, with labels; the line of source stands wherever it changes.

    Args:
        sass: See `annotate`.
        source: Text of the kernel's file.
    """
    lines = source.splitlines()
    result: list[str] = []
    function, shown = "", -1
    for row in _rows(sass):
        if row.function != function:
            function, shown = row.function, -1
            result.append(f"{function}:")
        result += row.label_lines
        line = _line_of(row.instruction, len(lines))
        if (line or 0) != shown:
            shown = line or 0
            result.append(f"{line:5d}  {lines[line - 1]}".rstrip() if line is not None else f"       {_NO_LINE}")
        result.append(row.text(0))
    return "\n".join(result) + "\n"


def plain(sass: Sass) -> list[dict[str, object]]:
    """Functions in the order of the file, with their instructions by address, as plain data.

    Returns:
        For each function `name`, `entry` (the kernel in whose code it stands) and `instructions`: `address` in bytes from
        the start of the section, `labels`, `predicate`, `opcode`, `operands`, `line` of the source, and `target`, the address
        that it points to.
    """
    functions: dict[str, list[dict[str, object]]] = {name: [] for name in sass.functions}
    for row in _rows(sass):
        i = row.instruction
        functions[row.function].append(
            {
                "address": i.address, "labels": list(row.labels), "predicate": i.predicate, "opcode": i.opcode,
                "operands": i.operands, "line": i.line, "target": row.target,
            }
        )  # fmt: skip
    return [{"name": name, "entry": sass.owners.get(name, name), "instructions": rows} for name, rows in functions.items()]


def _rows(sass: Sass) -> list[_Row]:
    """Every instruction, without the `NOP`s that fill the end of a function; labels that nothing points to are left out."""
    starts = {name: function[0].address for name, function in sass.functions.items() if function}
    places = {**starts, **sass.labels}
    kept = {name: _without_padding(function) for name, function in sass.functions.items()}
    at: dict[tuple[str, int], list[str]] = {}
    for name, function in kept.items():
        for label in sorted({label for i in function for label in _PLACE.findall(i.operands) if label in sass.labels}):
            key = (sass.owners.get(name, name), sass.labels[label])
            if label not in at.setdefault(key, []):
                at[key].append(label)
    return [
        _Row(name, i, tuple(at.get((sass.owners.get(name, name), i.address), ())), _target(i, places))
        for name, function in kept.items()
        for i in function
    ]


def _target(instruction: Instruction, places: dict[str, int]) -> int | None:
    return next((places[name] for name in _PLACE.findall(instruction.operands) if name in places), None)


def _shown(rows: list[_Row], width: int) -> list[str]:
    """The rows' text, each after its labels."""
    return [line for row in rows for line in (*row.label_lines, row.text(width))]


def _line_of(instruction: Instruction, n_lines: int) -> int | None:
    line = instruction.line
    return line if line is not None and 1 <= line <= n_lines else None


def _width(sass: Sass) -> int:
    """Of the column of names; 0 where there is one function."""
    return max((len(name) for name in sass.functions), default=0) if len(sass.functions) > 1 else 0


def _without_padding(function: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """Without the `NOP`s that fill the end of a section."""
    end = len(function)
    while end and function[end - 1].base == "NOP":
        end -= 1
    return function[:end]
