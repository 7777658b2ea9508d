"""Reads a finished shared object the way the dynamic loader will, and refuses what loading it would run or leave writable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evo_l2.errors import ToolchainError
from evo_l2.evaluation import BuildReport, Status, Verdict
from evo_l2.targets.cpu.shim import ENTRY
from evo_l2.targets.messages import some

if TYPE_CHECKING:
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile
    from elftools.elf.segments import Segment

__all__ = ["LARGEST_OBJECT_BYTES", "SharedObject", "gate_shared_object", "measure_object", "read_shared_object"]

LARGEST_OBJECT_BYTES = 4 << 20
"""Of an object file and of a shared object."""
_MOST_SECTIONS = 1024
_MOST_ENTRIES = 20_000
"""Symbols, and relocations, of one file."""
_LONGEST_NAME = 255
"""Of a function, a variable or a section; disassemblers repeat it with every call."""
_TABLES = {"SHT_SYMTAB": "symbols", "SHT_DYNSYM": "symbols", "SHT_REL": "relocations", "SHT_RELA": "relocations"}

_TAGS = frozenset(
    {
        "DT_NULL", "DT_NEEDED", "DT_SONAME", "DT_RPATH", "DT_RUNPATH", "DT_HASH", "DT_GNU_HASH", "DT_STRTAB", "DT_STRSZ",
        "DT_SYMTAB", "DT_SYMENT", "DT_PLTGOT", "DT_PLTRELSZ", "DT_PLTREL", "DT_JMPREL", "DT_RELA", "DT_RELASZ", "DT_RELAENT",
        "DT_RELACOUNT", "DT_RELR", "DT_RELRSZ", "DT_RELRENT", "DT_FLAGS", "DT_FLAGS_1", "DT_BIND_NOW", "DT_VERNEED",
        "DT_VERNEEDNUM", "DT_VERSYM", "DT_DEBUG",
    }
)  # fmt: skip
"""What the loader reads of a plain library; none of it runs code, or makes code writable."""
_SEGMENTS = frozenset(
    {
        "PT_LOAD", "PT_DYNAMIC", "PT_NOTE", "PT_PHDR", "PT_NULL", "PT_GNU_STACK", "PT_GNU_RELRO", "PT_GNU_EH_FRAME",
        "PT_GNU_PROPERTY",
    }
)  # fmt: skip
_RELOCATIONS = {
    "EM_X86_64": {0: "NONE", 1: "64", 6: "GLOB_DAT", 7: "JUMP_SLOT", 8: "RELATIVE"},
    "EM_AARCH64": {0: "NONE", 257: "ABS64", 1025: "GLOB_DAT", 1026: "JUMP_SLOT", 1027: "RELATIVE"},
}
"""Relocations that only store an address."""
_LIBRARY = re.compile(r"lib[cm]\.(musl-\w+\.)?so(\.\d+)*")
_LINKERS_OWN = frozenset({"_end", "_edata", "_etext", "__bss_start", "__bss_start__", "_bss_end__", "__bss_end__", "__end__"})
"""Names that some linkers put into every shared object; they only mark places."""
_EXECUTE, _WRITE = 1, 2
"""Segment flags of the ELF standard."""
_TEXTREL = 4
_PAGE_BYTES = 4096
"""The smallest there is: the loader makes whole pages read-only."""


@dataclass(frozen=True, slots=True)
class SharedObject:
    """What loading does."""

    runs: tuple[str, ...]
    """What makes the loader call code of the object, or change it."""
    writable: tuple[str, ...]
    """Segments that can be written once everything is loaded."""
    strangers: tuple[str, ...]
    """Symbols, libraries and entries beside those of a plain kernel."""


def read_shared_object(path: Path) -> SharedObject:
    """Reads one shared object within the limits of `measure_object`.

    Raises:
        ToolchainError: It cannot be read.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            segments = tuple(elf.iter_segments())
            runs, strangers = set(), set()
            for segment in segments:
                if segment["p_type"] not in _SEGMENTS and not str(segment["p_type"]).startswith("PT_AARCH64"):
                    strangers.add(f"a segment {segment['p_type']}")
                if segment["p_type"] == "PT_DYNAMIC":
                    runs |= set(_runs(elf, segment))
                    strangers |= set(_strangers(segment))
            return SharedObject(tuple(sorted(runs)), tuple(_writable(segments)), tuple(sorted(strangers)))
    except (ELFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise _unreadable(error) from error


def gate_shared_object(shared: SharedObject, build: BuildReport) -> Verdict | None:
    """The reason not to load a kernel, or None."""
    for gate, found, what in (
        ("constructors", shared.runs, "has code that runs when it is loaded"),
        ("writable-globals", shared.writable, "has memory that can be written once it is loaded"),
        ("symbols", shared.strangers, "brings or asks for what a kernel may not"),
    ):
        if found:
            return Verdict(Status.UNLAUNCHABLE, gate, f"the kernel {what}: {some(found)}", build)
    return None


def measure_object(path: Path) -> str | None:
    """What a built file has too much of, in plain words, or None; asked before anything reads it item by item.

    Raises:
        ToolchainError: It cannot be read.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        n_bytes = path.stat().st_size
        if n_bytes > LARGEST_OBJECT_BYTES:
            return f"the code and its data take {n_bytes} bytes, at most {LARGEST_OBJECT_BYTES}"
        with path.open("rb") as file:
            elf = ELFFile(file)
            if elf.num_sections() > _MOST_SECTIONS:
                return f"the code has {elf.num_sections()} sections, at most {_MOST_SECTIONS}"
            counts = dict.fromkeys(_TABLES.values(), 0)
            for section in elf.iter_sections():
                if section["sh_type"] == "SHT_STRTAB" and max(map(len, section.data().split(b"\0"))) > _LONGEST_NAME:
                    return f"there is a name of more than {_LONGEST_NAME} characters"
                if section["sh_type"] in _TABLES:
                    counts[_TABLES[section["sh_type"]]] += section["sh_size"] // max(1, section["sh_entsize"])
    except (ELFError, OSError, ValueError, KeyError) as error:
        raise _unreadable(error) from error
    excess = (f"the code has {n} {what}, at most {_MOST_ENTRIES}" for what, n in counts.items() if n > _MOST_ENTRIES)
    return next(excess, None)


def _runs(elf: ELFFile, dynamic: DynamicSegment) -> Iterator[str]:
    from elftools.elf.relocation import RelrRelocationTable

    for tag in dynamic.iter_tags():
        name = str(tag["d_tag"])
        if name == "DT_FLAGS" and tag["d_val"] & _TEXTREL:
            yield "DT_TEXTREL"
        elif name not in _TAGS and not name.startswith("DT_AARCH64"):
            yield name
    allowed = _RELOCATIONS.get(elf["e_machine"])
    for table in dynamic.get_relocation_tables().values():
        if isinstance(table, RelrRelocationTable) or allowed is None:
            continue
        kinds = {entry["r_info_type"] for entry in table.iter_relocations()}
        yield from (f"relocation {kind}" for kind in kinds - allowed.keys())


def _strangers(dynamic: DynamicSegment) -> Iterator[str]:
    for tag in dynamic.iter_tags("DT_NEEDED"):
        if _LIBRARY.fullmatch(tag.needed) is None:
            yield tag.needed
    has_entry = False
    for symbol in dynamic.iter_symbols():
        if symbol["st_shndx"] == "SHN_UNDEF" or not symbol.name:
            continue
        if symbol.name == ENTRY and symbol["st_info"]["type"] == "STT_FUNC":
            has_entry = True
        elif symbol.name not in _LINKERS_OWN:
            yield symbol.name
    if not has_entry:
        yield f"no function {ENTRY}"


def _writable(segments: tuple[Segment, ...]) -> Iterator[str]:
    ranges = [(s["p_vaddr"], s["p_vaddr"] + s["p_memsz"]) for s in segments if s["p_type"] == "PT_GNU_RELRO"]
    for segment in segments:
        kind, flags, begin = segment["p_type"], segment["p_flags"], segment["p_vaddr"]
        if kind == "PT_GNU_STACK" and flags & _EXECUTE:
            yield "an executable stack"
        if kind != "PT_LOAD" or not flags & _WRITE or not segment["p_memsz"]:
            continue
        end = begin + segment["p_memsz"]
        if flags & _EXECUTE:
            yield f"{segment['p_memsz']} bytes of code"
        if not any(low <= begin and end <= high // _PAGE_BYTES * _PAGE_BYTES for low, high in ranges):
            yield f"{segment['p_memsz']} bytes at {begin:#x}"


def _unreadable(error: Exception) -> ToolchainError:
    hint = "remove the cache folder, then run again"
    return ToolchainError("what was built cannot be read", expected="ELF", found=str(error), hint=hint)
