"""What a built kernel uses, as plain facts for reports, prompts and measures: matrix kind, copies, spills, counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from evo_l2.targets.cuda.reading.cubin import Cubin
from evo_l2.targets.cuda.reading.reaching_constants import constants_in
from evo_l2.targets.cuda.reading.sass import Instruction, Sass, globals_in_use, instruction_mix

__all__ = [
    "COPY_KINDS",
    "MatrixOperation",
    "Usage",
    "accumulator",
    "complete",
    "copy_kind",
    "local_traffic_bytes",
    "matrix_kind",
    "matrix_operations",
    "narrow_instructions",
    "parse_usage",
    "resources_of",
]

COPY_KINDS = ("none", "staged", "cp.async", "tma")
"""From the plainest to the one that needs most of the hardware; see `copy_kind`."""

_FAMILIES = {"HMMA": "wmma/mma", "HGMMA": "wgmma", "UTCHMMA": "tcgen05"}
_OTHER_MATRIX = {
    "IMMA": ("wmma/mma", "integer"), "IGMMA": ("wgmma", "integer"), "UTCIMMA": ("tcgen05", "integer"),
    "QMMA": ("wmma/mma", "narrow"), "QGMMA": ("wgmma", "narrow"), "UTCQMMA": ("tcgen05", "narrow"),
    "OMMA": ("wmma/mma", "narrow"), "UTCOMMA": ("tcgen05", "narrow"), "UTCMXQMMA": ("tcgen05", "narrow"),
    "BMMA": ("wmma/mma", "binary"), "BGMMA": ("wgmma", "binary"), "DMMA": ("wmma/mma", "fp64"),
}  # fmt: skip
"""`narrow` is FP8, FP6 and FP4."""
_NARROW_FORMATS = frozenset(("E4M3", "E5M2", "E3M2", "E2M3", "E2M1", "E8M0", "UE8M0", "E8"))
_BYTE_PRODUCTS = frozenset(("IDP", "IDP4A"))
"""Sums of products of bytes outside the matrix units: `__dp4a`, `__dp2a`."""
_NARROW_SUMS = {"F32": "fp32", "F16": "fp16"}
_DESCRIPTOR = re.compile(r"idesc\[(?P<register>UR\d+)\]")
_NOT_DENSE = 0b1111 | 1 << 6 | 1 << 23 | 1 << 29
"""Bits of such a descriptor that are of sparse or integer products, or of none."""
_ZERO = re.compile(r"-?RZ")

_USAGE_OF = re.compile(r"(?:Compiling entry function '(?P<entry>[^']+)'|Function properties for (?P<function>\S+))")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[(\d+)\]")
_CUMULATIVE = re.compile(r"(\d+) bytes cumulative stack size")


@dataclass(frozen=True, slots=True)
class Usage:
    """What `ptxas -v` says of one function."""

    name: str
    is_entry: bool
    stack_bytes: int
    """The function's own frame."""
    spill_store_bytes: int
    """Four bytes for every register that is stored because there are too few; counted in the code, not in time."""
    spill_load_bytes: int
    n_registers: int | None = None
    """None for a function that is not an entry."""
    n_barriers: int = 0
    shared_bytes: int = 0
    cumulative_stack_bytes: int | None = None
    """With the functions it calls, where it calls any."""
    constant_bytes: Mapping[int, int] | None = None
    """Bank to bytes, where ptxas says so (it does up to compute capability 8.9)."""


@dataclass(frozen=True, slots=True)
class MatrixOperation:
    """One kind of matrix instruction in the code."""

    family: str
    """`wmma/mma` for a warp's (the two cannot be told apart), `wgmma`, `tcgen05`."""
    inputs: str
    """`fp16`, `bf16`, `tf32`, `integer`, `narrow` (FP8, FP6, FP4), `binary`, `fp64`; `unknown` by a hidden descriptor."""
    sums: str
    """`fp32`, `fp16`, `integer`, `fp64`, `unknown`."""
    instruction: Instruction
    """The first of its kind."""
    count: int = 1

    @property
    def kind(self) -> str:
        """In two words, as `wmma/mma fp32` for half-precision inputs with single-precision sums, or `wgmma bf16`."""
        return f"{self.family} {self.sums if self.inputs in ('fp16', 'unknown') else self.inputs}"


def parse_usage(log: str) -> dict[str, Usage]:
    """The functions of a `ptxas -v` log, by their names in PTX; other lines, such as warnings, are passed over."""
    result: dict[str, Usage] = {}
    entries: set[str] = set()
    name = entry = ""
    for line in log.splitlines():
        if match := _USAGE_OF.search(line):
            if match["entry"]:
                entry = name = match["entry"]
                entries.add(entry)
            else:
                name = match["function"]
        elif (match := _STACK.search(line)) and name:
            stack, stores, loads = map(int, match.groups())
            result[name] = Usage(name, name in entries, stack, stores, loads)
        elif (match := _REGISTERS.search(line)) and entry in result:
            barriers, shared, total = (p.search(line) for p in (_BARRIERS, _SHARED, _CUMULATIVE))
            banks = {int(bank): int(n_bytes) for n_bytes, bank in _CONSTANT.findall(line)}
            result[entry] = replace(
                result[entry],
                n_registers=int(match[1]),
                n_barriers=int(barriers[1]) if barriers else 0,
                shared_bytes=int(shared[1]) if shared else 0,
                cumulative_stack_bytes=int(total[1]) if total else None,
                constant_bytes=banks or None,
            )
    return result


def complete(cubin: Cubin, sass: Sass, log: str = "") -> Cubin:
    """The cubin with what the ELF alone does not tell: spills by ptxas's log, and which variables the code can reach.

    An entry's spills are its own and those of the functions that stand in its code; None without a log that names it.
    """
    usage = parse_usage(log)
    used = {symbol.name for symbol in globals_in_use(cubin, sass.instructions)}
    entries = {}
    for name, entry in cubin.entries.items():
        called = [_plain_name(f) for f, owner in sass.owners.items() if owner == name and f != name]
        parts = [usage[part] for part in (name, *called) if part in usage]
        spills = sum(p.spill_store_bytes + p.spill_load_bytes for p in parts) if name in usage else None
        entries[name] = replace(entry, spill_bytes=spills)
    symbols = tuple(replace(s, writable=s.writable and s.name in used) for s in cubin.symbols)
    return replace(cubin, entries=entries, symbols=symbols)


def _plain_name(function: str) -> str:
    """A device function as the source's compiler named it: the linker puts `$entry$` before the name."""
    return function.rsplit("$", 1)[-1]


def matrix_operations(sass: Sass) -> tuple[MatrixOperation, ...]:
    """Every kind of matrix instruction in the code, in order of first use."""
    found: dict[tuple[str, str, str], MatrixOperation] = {}
    for function in sass.functions.values():
        for index, instruction in enumerate(function):
            operation = _matrix_operation(instruction, function, index, sass.labels)
            if operation is not None:
                key = (operation.family, operation.inputs, operation.sums)
                known = found.get(key)
                found[key] = replace(known, count=known.count + 1) if known else operation
    return tuple(found.values())


def narrow_instructions(sass: Sass) -> tuple[Instruction, ...]:
    """What calculates with fewer bits than half precision has, or converts to or from such formats (FP8, FP6, FP4).

    Conversions count because a warp's FP8 product becomes a half-precision one after them on Hopper and Blackwell (compute
    capability 9.0 and 10.0), so that its matrix instruction alone is beyond suspicion.
    """
    return tuple(
        i
        for i in sass.instructions
        if _OTHER_MATRIX.get(i.base, ("", "fp64"))[1] != "fp64"
        or i.base in _BYTE_PRODUCTS
        or not _NARROW_FORMATS.isdisjoint(i.modifiers)
    )


def _matrix_operation(
    instruction: Instruction, function: Sequence[Instruction], index: int, labels: Mapping[str, int]
) -> MatrixOperation | None:
    base, modifiers = instruction.base, instruction.modifiers
    if base in _OTHER_MATRIX:
        family, inputs = _OTHER_MATRIX[base]
        sums = {"integer": "integer", "binary": "integer", "fp64": "fp64"}.get(inputs, "unknown")
        if inputs == "narrow":
            sums = next((_NARROW_SUMS[m] for m in modifiers if m in _NARROW_SUMS), "unknown")
        return MatrixOperation(family, inputs, sums, instruction)
    if base not in _FAMILIES:
        return None
    if base == "UTCHMMA":
        inputs, sums = _described(instruction, function, index, labels)
        return MatrixOperation(_FAMILIES[base], inputs, sums, instruction)
    inputs = "bf16" if "BF16" in modifiers else "tf32" if "TF32" in modifiers else "fp16"
    sums = next((_NARROW_SUMS[m] for m in modifiers if m in _NARROW_SUMS), "unknown")
    return MatrixOperation(_FAMILIES[base], inputs, sums, instruction)


def _described(
    instruction: Instruction, function: Sequence[Instruction], index: int, labels: Mapping[str, int]
) -> tuple[str, str]:
    """Inputs and sums of a `tcgen05` product, from its instruction descriptor, when every path there sets it to a constant.

    The descriptor's fields are those of the PTX ISA, "Instruction descriptor" for `.kind::f16` and `.kind::tf32`: bits 4-5
    are the type of D (0 half, 1 single), bits 7-9 the type of A (0 half, 1 bfloat16, 2 TF32), bits 10-12 that of B.
    """
    match = _DESCRIPTOR.search(instruction.operands)
    values = constants_in(match["register"], function, index, labels) if match else None
    found = {_read(value) for value in values or ()}
    return found.pop() if len(found) == 1 else ("unknown", "unknown")


def _read(descriptor: int) -> tuple[str, str]:
    """Inputs and sums of one descriptor."""
    of_a, of_b = descriptor >> 7 & 7, descriptor >> 10 & 7
    if descriptor & _NOT_DENSE or of_a != of_b:
        return "unknown", "unknown"
    inputs = {0: "fp16", 1: "bf16", 2: "tf32"}.get(of_a, "unknown")
    return inputs, {0: "fp16", 1: "fp32"}.get(descriptor >> 4 & 3, "unknown")


def matrix_kind(sass: Sass) -> str:
    """How the code multiplies matrices, in two words; see `MatrixOperation.kind`.

    `none` without any such instruction; `<family> mixed` where sums or inputs differ, `mixed` where families do.
    """
    operations = matrix_operations(sass)
    kinds, families = {o.kind for o in operations}, {o.family for o in operations}
    if not operations:
        return "none"
    if len(kinds) == 1:
        return kinds.pop()
    return f"{families.pop()} mixed" if len(families) == 1 else "mixed"


def accumulator(sass: Sass) -> str:
    """What matrix instructions add up in: `none`, `fp32`, `fp16`, `integer`, `fp64`, `unknown`, or `mixed`."""
    sums = {o.sums for o in matrix_operations(sass)}
    return "none" if not sums else sums.pop() if len(sums) == 1 else "mixed"


def copy_kind(instructions: Iterable[Instruction]) -> str:
    """How operands come from global to shared memory, by the most advanced means in the code; one of `COPY_KINDS`.

    `tma`: the bulk copy engine (`UTMALDG` by tensor map, `UBLKCP` by address); `cp.async`: `LDGSTS`; `staged`: loaded into
    registers and stored from there (there are both global loads and shared stores); `none`: shared memory is not filled.
    """
    bases = {i.base + (".S" if i.base == "UBLKCP" and "S" in i.modifiers[:1] else "") for i in instructions}
    if bases & {"UTMALDG", "UBLKCP.S"}:
        return "tma"
    if "LDGSTS" in bases:
        return "cp.async"
    return "staged" if bases & {"LDG", "LD"} and bases & {"STS", "STSM"} else "none"


def local_traffic_bytes(instructions: Iterable[Instruction]) -> tuple[int, int]:
    """Bytes that the code's local stores and loads move for a thread, each instruction counted once.

    Without local arrays these are the spills, and equal what ptxas reports.
    """
    stores = loads = 0
    for instruction in instructions:
        width = next((int(m) // 8 for m in instruction.modifiers if m in ("64", "128", "256")), 0)
        width = width or next((int(m[1:]) // 8 for m in instruction.modifiers if re.fullmatch(r"[US](8|16)", m)), 4)
        stores += width if instruction.base == "STL" else 0
        loads += width if instruction.base == "LDL" else 0
    return stores, loads


def resources_of(cubin: Cubin, sass: Sass, usage: Mapping[str, Usage] | None = None) -> dict[str, int | float | str]:
    """Flat facts for `BuildReport.resources`, over all entries: the most of what a launch needs, sums of counts.

    Args:
        cubin: See `read_cubin`.
        sass: See `read_sass`.
        usage: See `parse_usage`; without it, or when it does not name every entry, spills are those of the machine code.

    Returns:
        `arch`; `matrix_kind`, `accumulator`, `copy_kind` in words; `n_registers`, `n_barriers`, `stack_bytes`,
        `local_bytes`, `static_shared_bytes`, `constant_bytes`, `parameter_bytes` (most of any entry); `spill_bytes`,
        `code_bytes`, `n_entries`; `n_instructions` and other static counts: `n_matrix`, `n_fma` (single precision),
        `n_half_math` (sums and products of half precision or bfloat16 outside the matrix units), `n_narrow` (see
        `narrow_instructions`),
        `n_integer`, `n_global_load`, `n_global_store`, `n_shared_load`, `n_shared_store`, `n_matrix_load` (`ldmatrix`),
        `n_local_load`, `n_local_store`, `n_async_copy`, `n_bulk_copy`, `n_atomic`, `n_barrier_wait`, `n_branch`,
        `n_unknown` (of no class that is known: what they do, no gate has looked at);
        `widest_global_load_bits` (into registers), `widest_async_copy_bits` (by `cp.async`), 0 without any.
    """
    entries = tuple(cubin.entries.values())
    instructions = tuple(i for i in sass.instructions if i.base != "NOP")
    frames = [u.stack_bytes for u in (usage or {}).values()]
    facts: dict[str, int | float | str] = {
        "arch": cubin.arch,
        "matrix_kind": matrix_kind(sass),
        "accumulator": accumulator(sass),
        "copy_kind": copy_kind(instructions),
        "n_registers": max((e.n_registers for e in entries), default=0),
        "n_barriers": max((e.n_barriers for e in entries), default=0),
        "stack_bytes": max([e.stack_bytes for e in entries] + frames, default=0),
        "local_bytes": max((e.local_bytes for e in entries), default=0),
        "spill_bytes": _spill_bytes(cubin, sass, usage),
        "static_shared_bytes": max((e.static_shared_bytes for e in entries), default=0),
        "constant_bytes": max((sum(e.constant_bytes.values()) for e in entries), default=0),
        "parameter_bytes": max((sum(p.size for p in e.parameters) for e in entries), default=0),
        "code_bytes": cubin.code_bytes,
        "n_entries": len(entries),
    }
    return facts | _counts(instructions) | {"n_narrow": len(narrow_instructions(sass))}


def _spill_bytes(cubin: Cubin, sass: Sass, usage: Mapping[str, Usage] | None) -> int:
    known = [entry.spill_bytes for entry in cubin.entries.values()]
    if usage and all(name in usage for name in cubin.entries):
        return sum(u.spill_store_bytes + u.spill_load_bytes for u in usage.values())
    if known and all(spills is not None for spills in known):
        return sum(spills for spills in known if spills is not None)
    return sum(local_traffic_bytes(sass.instructions))


def _counts(instructions: Sequence[Instruction]) -> dict[str, int]:
    bases: dict[str, int] = {}
    for instruction in instructions:
        bases[instruction.base] = bases.get(instruction.base, 0) + 1

    def count(*names: str) -> int:
        return sum(bases.get(name, 0) for name in names)

    mix = instruction_mix(instructions)
    loads = [i for i in instructions if i.base in ("LDG", "LD")]
    copies = [i for i in instructions if i.base == "LDGSTS"]
    return {
        "n_instructions": len(instructions),
        "n_matrix": mix["matrix"],
        "n_fma": count("FFMA", "FFMA32I") + 2 * count("FFMA2"),
        "n_half_math": sum(_is_half_math(i) for i in instructions),
        "n_integer": mix["integer"],
        "n_global_load": len(loads),
        "n_global_store": count("STG", "ST"),
        "n_shared_load": count("LDS", "LDSM"),
        "n_shared_store": count("STS", "STSM"),
        "n_matrix_load": count("LDSM"),
        "n_local_load": count("LDL"),
        "n_local_store": count("STL"),
        "n_async_copy": count("LDGSTS"),
        "n_bulk_copy": count("UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED"),
        "n_atomic": mix["atomic"],
        "n_barrier_wait": count("BAR", "SYNCS", "WARPGROUP", "DEPBAR"),
        "n_unknown": mix["other"],
        "n_branch": count("BRA", "BRX", "BRXU", "CALL", "UBRA"),
        "widest_global_load_bits": max((_width_bits(i) for i in loads), default=0),
        "widest_async_copy_bits": max((_width_bits(i) for i in copies), default=0),
    }


def _width_bits(instruction: Instruction) -> int:
    """What one thread loads; 32 where the opcode names no width, less where it names a narrower one."""
    named = (re.fullmatch(r"[US]?(8|16|64|128|256)", m) for m in instruction.modifiers)
    return next((int(match[1]) for match in named if match is not None), 32)


def _is_half_math(instruction: Instruction) -> bool:
    """Arithmetic on pairs of halves, or of bfloat16; not the same opcodes where they widen a half or make a constant."""
    if instruction.base not in ("HFMA2", "HADD2", "HMUL2", "HFMA2_32I", "HADD2_32I", "HMUL2_32I"):
        return False
    if "F32" in instruction.modifiers:
        return False
    words = [word.strip() for word in instruction.operands.split(",")]
    return not any(_ZERO.match(word) for word in words[1:3])
