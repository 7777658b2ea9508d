"""Reads what the compiler made: digest, symbols, instructions; and refuses what may not run."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evo_l2.errors import ToolchainError
from evo_l2.evaluation import BuildReport, Status, Verdict
from evo_l2.targets.cpu.disassembly import count_instructions, forbidden_instructions, parse_disassembly
from evo_l2.targets.cpu.shim import ENTRY
from evo_l2.targets.cpu.toolchain import Toolchain
from evo_l2.targets.messages import some

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import Section, Symbol

__all__ = ["ALLOWED_SYMBOLS", "MachineCode", "gate_machine_code", "read_machine_code", "resources_of"]

_MATH = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "pow", "sqrt", "cbrt", "hypot", "sin", "cos", "tan", "tanh", "sinh",
    "cosh", "atan", "atan2", "erf", "erfc", "fma", "fmin", "fmax", "fabs", "fmod", "floor", "ceil", "trunc", "round",
    "roundeven", "rint", "nearbyint", "lrint", "lround", "ldexp", "frexp", "scalbn", "copysign",
)  # fmt: skip
ALLOWED_SYMBOLS = frozenset(
    {"memcpy", "memmove", "memset", "memcmp", "_GLOBAL_OFFSET_TABLE_"} | set(_MATH) | {f"{name}f" for name in _MATH}
)
"""What an object may take from outside: functions on memory and of mathematics. None of them enters the operating system."""
_HALF_CONVERSION = re.compile(
    r"__(extendhf[sdxt]f2|trunc[sdxt]fhf2|float(un)?[sd]ihf|fix(uns)?hf[sd]i|(eq|ne|lt|le|gt|ge|unord)hf2)"
)
"""The compiler's own functions for half precision on processors without the instructions."""
_CONSTRUCTORS = (".init", ".fini", ".preinit_array", ".ctors", ".dtors")
_LOADERS = frozenset({"_init", "_fini", "_start", "_dl_relocate_static_pie"})
"""Functions that linkers and loaders call by their names; a kernel has no business with them."""
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4
"""Section flags of the ELF standard."""
_LARGEST_STACK_BYTES = 1 << 20
_LARGEST_CODE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What an object file holds."""

    digest: str
    """SHA-256 over code, constants, relocations and the place of the entry; no name of the kernel's own, no path, no time."""
    undefined: tuple[str, ...]
    writable: tuple[str, ...]
    """Writable symbols, and writable sections with something in them."""
    constructors: tuple[str, ...]
    """Sections and symbols with code that would run at load time."""
    has_executable_stack: bool
    forbidden: tuple[str, ...]
    """Instructions that no kernel may use."""
    code_bytes: int
    counts: Mapping[str, int]
    """See `count_instructions`; empty for code over a megabyte, which is not disassembled."""


def read_machine_code(path: Path, toolchain: Toolchain) -> MachineCode:
    """Reads one relocatable object.

    Raises:
        ToolchainError: The object or the disassembler's output cannot be read.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            sections = tuple(elf.iter_sections())
            digest = _digest(elf, sections)
            code_bytes = sum(section["sh_size"] for section in sections if section["sh_flags"] & _EXECUTE)
            undefined, writable, constructors = _symbols(sections)
            executable = any(s.name == ".note.GNU-stack" and s["sh_flags"] & _EXECUTE for s in sections)
            machine = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}.get(elf["e_machine"], "other")
    except (ELFError, OSError, ValueError, KeyError) as error:
        hint = "remove the cache folder, then run again"
        raise ToolchainError("an object file cannot be read", expected="ELF", found=str(error), hint=hint) from error
    if code_bytes > _LARGEST_CODE_BYTES:
        return MachineCode(digest, undefined, writable, constructors, executable, (), code_bytes, {})
    instructions = parse_disassembly(_disassemble(path, toolchain))
    forbidden = forbidden_instructions(instructions)
    counts = count_instructions(instructions, machine)
    return MachineCode(digest, undefined, writable, constructors, executable, forbidden, code_bytes, counts)


def resources_of(code: MachineCode, stack_bytes: int) -> dict[str, int | float | str]:
    """What describes the code to the archive, to people and to models."""
    return {**code.counts, "code_bytes": code.code_bytes, "stack_bytes": stack_bytes}


def gate_machine_code(code: MachineCode, stack_bytes: int, build: BuildReport) -> Verdict | None:
    """The reason not to run a kernel by what was built, or None."""
    strangers = [name for name in code.undefined if name not in ALLOWED_SYMBOLS and not _HALF_CONVERSION.fullmatch(name)]
    stack = ["an executable stack, for the address of a nested function"] if code.has_executable_stack else []
    for gate, found, what in (
        ("symbols", strangers, "uses functions or data that a kernel may not use"),
        ("writable-globals", code.writable, "has writable global or static data (make it const, local, or a workspace)"),
        ("constructors", code.constructors, "has code that runs when it is loaded"),
        ("code-size", _above(code.code_bytes, _LARGEST_CODE_BYTES), "is too large"),
        ("instructions", [*code.forbidden, *stack], "uses what a kernel may not use"),
        ("stack", _above(stack_bytes, _LARGEST_STACK_BYTES), "needs too large a stack frame (use a workspace)"),
    ):
        if found:
            return Verdict(Status.UNLAUNCHABLE, gate, f"the kernel {what}: {some(found)}", build)
    return None


def _above(value: int, most: int) -> list[str]:
    return [f"{value} bytes, at most {most}"] if value > most else []


def _digest(elf: ELFFile, sections: tuple[Section, ...]) -> str:
    """Over everything that decides what the code does, in the order of the file."""
    from elftools.elf.relocation import RelocationSection

    sha = hashlib.sha256(f"{elf['e_machine']}\0".encode())
    kept = {}
    for index, section in enumerate(sections):
        is_loaded = section["sh_flags"] & _ALLOC and section["sh_type"] == "SHT_PROGBITS" and section["sh_size"]
        if is_loaded and not section.name.startswith((".eh_frame", ".note", ".comment")):
            kept[index] = section.name
            data = section.data()
            sha.update(f"{section.name}\0{section['sh_flags']}\0{len(data)}\0".encode() + data)
    for section in sections:
        if isinstance(section, RelocationSection) and section["sh_info"] in kept:
            symbols = elf.get_section(section["sh_link"])
            for entry in section.iter_relocations():
                target = _place(symbols.get_symbol(entry["r_info_sym"]), sections)
                addend = entry["r_addend"] if entry.is_RELA() else 0
                fields = (kept[section["sh_info"]], entry["r_offset"], entry["r_info_type"], target, addend)
                sha.update("\0".join(map(str, fields)).encode() + b"\0")
    for symbol in _all_symbols(sections):
        if symbol.name == ENTRY:
            sha.update(_place(symbol, sections).encode())
    return sha.hexdigest()


def _place(symbol: Symbol, sections: tuple[Section, ...]) -> str:
    """Where a symbol stands; its name only when it is none of the object's own."""
    index = symbol["st_shndx"]
    return f"{sections[index].name}+{symbol['st_value']}" if isinstance(index, int) else f"{index}:{symbol.name}"


def _all_symbols(sections: tuple[Section, ...]) -> Iterator[Symbol]:
    from elftools.elf.sections import SymbolTableSection

    for section in sections:
        if isinstance(section, SymbolTableSection):
            yield from section.iter_symbols()


def _symbols(sections: tuple[Section, ...]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Undefined symbols, writable symbols and sections, and what runs at load time."""
    writable_at = {i: s.name for i, s in enumerate(sections) if _is_writable(s)}
    constructors = {s.name for s in sections if s.name.startswith(_CONSTRUCTORS) and s["sh_size"]}
    undefined, writable = set(), set()
    named = set()
    for symbol in _all_symbols(sections):
        where, kind = symbol["st_shndx"], symbol["st_info"]["type"]
        if where == "SHN_UNDEF" and symbol.name:
            undefined.add(symbol.name)
        if where == "SHN_COMMON" or (where in writable_at and symbol.name and kind != "STT_SECTION"):
            writable.add(symbol.name)
            named.add(where)
        if kind in ("STT_GNU_IFUNC", "STT_LOOS") or symbol.name in _LOADERS:
            constructors.add(symbol.name)
    writable |= {name for index, name in writable_at.items() if index not in named}
    return tuple(sorted(undefined)), tuple(sorted(writable)), tuple(sorted(constructors))


def _is_writable(section: Section) -> bool:
    """Whether it can be written once it is loaded; the linker makes `.data.rel.ro` read-only before anything runs."""
    is_relro = f"{section.name}.".startswith(".data.rel.ro.") or section.name.startswith(_CONSTRUCTORS)
    return bool(section["sh_flags"] & _WRITE and section["sh_flags"] & _ALLOC and section["sh_size"] and not is_relro)


def _disassemble(path: Path, toolchain: Toolchain) -> str:
    command = [str(toolchain.objdump), "-d", "--no-show-raw-insn", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError("the disassembler fails", expected=command[0], found=str(error), hint="evo-l2 doctor") from error
    return done.stdout
