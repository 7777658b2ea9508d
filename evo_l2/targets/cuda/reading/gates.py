"""What is refused by what was built: writable variables, matrix instructions of another class, and what `rules.RULES` names.

A source can hide words behind macros; what the compiler made of it cannot. Each gate gives its reason in plain words, with
the line of source and the instruction or statement where they are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evo_l2.evaluation import Status, Verdict
from evo_l2.problem import Problem
from evo_l2.targets.cuda.reading.cubin import Cubin
from evo_l2.targets.cuda.reading.driver_constants import constant_addresses, lint_header
from evo_l2.targets.cuda.reading.local_memory import frame_bytes, lint_frames, lint_local, lint_shared
from evo_l2.targets.cuda.reading.resources import matrix_operations, narrow_instructions
from evo_l2.targets.cuda.reading.rules import RULES, Finding, lint_ptx, lint_sass
from evo_l2.targets.cuda.reading.sass import Sass, first_line_of_use
from evo_l2.targets.cuda.reading.variable_names import plain_name

__all__ = ["GATES", "Refusal", "first_refusal", "refusals"]

GATES = {
    "symbols": "a variable that outlives the call lets a kernel remember results instead of computing them",
    "matrix-class": "products or sums in another format than the class declares solve another problem, and are wrong where "
    "the tests do not look",
    "narrow-formats": "operands rounded to 8 bits or fewer pass for half precision where few values are looked at",
    "local-memory": "the driver sets local memory aside for every thread that may be resident, and fails when there is none; "
    "beside a kernel's own variables lies there what earlier launches left",
    **{rule: f"no kernel may do this: it {what}" for rule, what in RULES.items() if rule != "local-memory"},
}
"""Gate to the reason why it is there, in the order in which they are asked."""

_MOST_LOCAL_BYTES = 16 * 1024
"""Of a thread. With 2,048 resident threads on each of 132 multiprocessors that is 4.3 GB; spilling every register is 1 KB."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that a gate has against built code."""

    gate: str
    """One of `GATES`."""
    message: str


def refusals(code: Cubin, sass: Sass, ptx: str, problem: Problem) -> Iterator[Refusal]:
    """Everything that the gates have against built code.

    Args:
        code: As `resources.complete` leaves it, so that variables which nothing can reach do not count.
        sass: The machine code of the same cubin.
        ptx: The text that it was made from.
        problem: Says which matrix instructions its kernels may use.
    """
    for symbol in code.symbols:
        if symbol.writable:
            instead = _instead_of(symbol.name)
            if symbol.section.startswith(".nv.constant"):
                instead = "its address stands among the file's data; read __constant__ tables by their names and an index"
            where = _at(first_line_of_use(symbol, sass.instructions)).replace(" in", ", used in")
            what = f"{plain_name(symbol.name)} ({symbol.size} bytes) is a variable that kernels can write{where}"
            yield Refusal("symbols", f"{what}; {instead}")
    for instruction in constant_addresses(sass, code.arch):
        instead = "read __constant__ tables by their names and an index"
        message = f"the kernel takes an address by which constant memory can be written{_at(instruction.line)}; {instead}"
        yield Refusal("symbols", f"{message}: {instruction.text}")
    admitted = problem.matrix_classes
    for operation in matrix_operations(sass):
        if admitted is not None and (operation.inputs, operation.sums) not in admitted:
            known = " or ".join(f"{inputs} products with {sums} sums" for inputs, sums in sorted(admitted)) or "none"
            found = f"{operation.inputs} products with {operation.sums} sums"
            where = f"{operation.count} times, first {operation.instruction.text}{_at(operation.instruction.line)}"
            message = f"matrix instructions of another class: expected {known}, found {found} ({where})"
            if operation.sums == "unknown" and operation.family == "tcgen05":
                message += "; every path to it has to set the instruction descriptor to a constant that says the same"
            yield Refusal("matrix-class", message)
    for instruction in narrow_instructions(sass):
        message = f"the kernel works with numbers of less than 16 bits{_at(instruction.line)}: {instruction.text}"
        if admitted is not None:
            yield Refusal("narrow-formats", message)
    taken = frame_bytes(sass)
    for name, entry in code.entries.items():
        n_bytes = max(entry.local_bytes, taken.get(name, 0))
        if n_bytes > _MOST_LOCAL_BYTES:
            found = f"expected at most {_MOST_LOCAL_BYTES} bytes a thread, found {n_bytes}"
            yield Refusal("local-memory", f"{name} needs too much local memory (arrays, spills): {found}")
    local_bytes = {name: entry.local_bytes for name, entry in code.entries.items()}
    shared_bytes = {name: entry.static_shared_bytes for name, entry in code.entries.items()}
    in_local_memory = (*lint_local(ptx), *lint_frames(sass, local_bytes), *lint_shared(sass, shared_bytes, ptx))
    banks = {name: entry.constant_bytes for name, entry in code.entries.items()}
    for finding in (*lint_ptx(ptx), *lint_sass(sass), *lint_header(sass, code.arch, banks), *in_local_memory):
        yield Refusal(finding.rule, _words(finding))


def _instead_of(name: str) -> str:
    """What to write for a variable, by its name."""
    if name.startswith("__cudart_i2opi"):
        return "sin, cos and tan keep a table for large arguments: write __sinf or __cosf, or build with --use_fast_math"
    if name.startswith("$str"):
        return "it is the text of a string: write the characters as a local array"
    return "use a workspace, and for tables __constant__ or a plain const array in the function (not static constexpr)"


def first_refusal(found: Iterable[Refusal], skip: frozenset[str] = frozenset()) -> Verdict | None:
    """The verdict over what was found, or None; `skip` leaves gates out, for tests of the gates."""
    for refusal in found:
        if refusal.gate not in skip:
            return Verdict(Status.UNLAUNCHABLE, refusal.gate, refusal.message)
    return None


def _words(finding: Finding) -> str:
    return f"the kernel {finding.message}{_at(finding.line)}: {finding.line_text[:200]}"


def _at(line: int | None) -> str:
    return f" in line {line}" if line is not None else ""
