"""Reads a cubin from the ELF itself: entries with what each needs, symbols, and a digest of the machine code.

The layout is NVIDIA's own. Names of attributes are those that `cuobjdump -elf` prints, values were worked out by comparing
its output, `cuobjdump -res-usage` and `ptxas -v` with the bytes, for toolkits 13.0 and 13.2; the tests hold the comparison.
The two layouts of the ELF flags are those of LLVM's `BinaryFormat/ELF.h` (`EF_CUDA_SM`, `ELFABIVERSION_CUDA_V1` and `_V2`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from evo_l2.errors import ToolchainError
from evo_l2.targets.cuda.reading.nv_info import Attribute, attributes, parameter_rows, triple

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import Section

__all__ = ["RESERVED_SHARED_BYTES", "Code", "Cubin", "Entry", "Parameter", "Symbol", "code_digest", "read_code", "read_cubin"]

_T = TypeVar("_T")

RESERVED_SHARED_BYTES = 1024
"""Shared memory of every block that the system keeps for itself from compute capability 8.0 on (CUDA programming guide)."""

_MAX_THREADS, _REQUIRED_THREADS, _EXTERNS = 0x05, 0x10, 0x0F
_FRAME_SIZE, _MIN_STACK_SIZE, _REGISTERS = 0x11, 0x12, 0x2F
_CLUSTER, _BARRIERS = 0x3D, 0x4C
_COMPAT_ACCELERATOR = 0x09
_ENTRY = 0x10
"""`STO_CUDA_ENTRY` in a symbol's `st_other`."""
_WRITABLE = (".nv.global", ".nv.global.init")
_CONSTANTS = ".nv.constant3"
"""What the source declares `__constant__`."""
_ADDRESSES = ".nv.constant4"
"""The bank that holds the addresses of globals and of functions from outside."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an entry: where it stands among the arguments, and its length, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One `__global__` function and what a launch of it needs."""

    name: str
    n_registers: int
    """Registers a thread, those of the functions that it calls included."""
    stack_bytes: int
    """Stack of one thread, callees included as far as the linker could add them up (not through recursion)."""
    spill_bytes: int | None
    """Bytes of the instructions that spill and fill registers, as ptxas says; None until `complete` was told its log."""
    static_shared_bytes: int
    """What the entry declares; the reserved kibibyte is not counted."""
    local_bytes: int
    """Frames of the entry and of every function that stands in its code, each counted once."""
    n_barriers: int
    max_threads: int | None
    """Most threads a block, from `__launch_bounds__` or `__block_size__`; None where the source says nothing."""
    parameters: tuple[Parameter, ...]
    constant_bytes: dict[int, int]
    """Bank to bytes; bank 0 holds the arguments behind a header of the driver's."""
    cluster: tuple[int, int, int] | None = None
    """Blocks of a cluster along x, y and z when `__cluster_dims__` fixes them."""
    required_block: tuple[int, int, int] | None = None
    """Threads along x, y and z when the source asks for exactly these."""
    code_bytes: int = 0
    fingerprint: str = field(default="", repr=False)
    """SHA-256 over machine code and needs, without any name; see `code_digest`."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """One variable of the file with a place in memory of its own."""

    name: str
    size: int
    writable: bool
    """Whether it stands where a kernel may write; `complete` clears this for one that no instruction can reach, such as the
    unused `constexpr` that NVRTC keeps as an initialised global."""
    section: str
    slots: tuple[int, ...] = ()
    """Byte offsets in constant bank 4 at which its address stands; instructions read it from there."""
    is_pinned: bool = False
    """Whether code or data refer to it otherwise, so that its use cannot be told from instructions."""
    fingerprint: str = field(default="", repr=False)
    """SHA-256 over size and initial value."""


@dataclass(frozen=True, slots=True)
class Cubin:
    """What one cubin holds."""

    arch: str
    """`sm_80`; with the suffix `a` where the code uses what only that architecture has."""
    entries: dict[str, Entry]
    symbols: tuple[Symbol, ...]
    functions: tuple[str, ...] = ()
    """Device functions that were not inlined, as the linker names them."""
    undefined: tuple[str, ...] = ()
    """Functions from outside: `vprintf`, `malloc`, `cudaLaunchDeviceV2` and the like."""
    fingerprint: str = field(default="", repr=False)
    """SHA-256 over the constants that all entries share."""

    @property
    def code_bytes(self) -> int:
        """Machine code of all entries."""
        return sum(entry.code_bytes for entry in self.entries.values())


@dataclass(frozen=True, slots=True)
class Code:
    """One section of machine code."""

    name: str
    """The entry's, or that of a device function which stands alone."""
    data: bytes
    functions: tuple[tuple[int, str], ...]
    """Where functions begin, in bytes, and their names: the entry first, then device functions that stand in its code."""


def read_cubin(path: Path) -> Cubin:
    """Reads one cubin.

    Raises:
        ToolchainError: The file is no cubin, or one of a layout that is not known here.
    """
    return _read(path, lambda reader: reader.cubin())


def read_code(path: Path) -> tuple[Code, ...]:
    """The machine code of one cubin, in the order of the file.

    Raises:
        ToolchainError: See `read_cubin`.
    """
    return _read(path, lambda reader: tuple(reader.code()))


def _read(path: Path, what: Callable[[_Reader], _T]) -> _T:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            return what(_Reader(ELFFile(file)))
    except (ELFError, OSError, ValueError, KeyError, IndexError, struct.error, AttributeError) as error:
        hint = f"remove {path.parent}, then run again"
        found = f"{path.name}: {error or type(error).__name__}"
        raise ToolchainError("a cubin cannot be read", expected="an ELF for CUDA", found=found, hint=hint) from error


def code_digest(cubin: Cubin, used: Collection[str], entries: Sequence[str] | None = None) -> str:
    """SHA-256 over what decides how the code runs; see `machine_code_digest`, which knows the globals that are used."""
    names = sorted(cubin.entries) if entries is None else entries
    parts = [cubin.arch, cubin.fingerprint]
    parts += [f"{s.section} {s.slots} {s.fingerprint}" for s in cubin.symbols if s.name in used]
    parts += [cubin.entries[name].fingerprint for name in names]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Relocation:
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class _Name:
    """One row of the symbol table."""

    name: str
    kind: str
    is_entry: bool
    section: int | str
    value: int
    size: int


class _Reader:
    """One pass over an ELF; sections and symbols are found by number, not by name, since names are the kernel's."""

    def __init__(self, elf: ELFFile) -> None:
        if elf["e_machine"] != "EM_CUDA":
            raise ValueError(f"the machine is {elf['e_machine']}")
        self._elf = elf
        self._sections: tuple[Section, ...] = tuple(elf.iter_sections())
        self._names = tuple(self._symbol_table())
        self._relocations = self._read_relocations()
        self._by_symbol: dict[int, dict[int, int]] = {}
        for section in self._sections:
            if section.name == ".nv.info":
                for attribute in attributes(section.data()):
                    if len(attribute.value) == 8:
                        symbol, value = attribute.words()
                        self._by_symbol.setdefault(attribute.key, {})[symbol] = value

    def cubin(self) -> Cubin:
        arch = self._arch()
        entries = {n.name: self._entry(i, n) for i, n in enumerate(self._names) if n.is_entry}
        functions = [n.name for n in self._names if n.kind == "STT_FUNC" and not n.is_entry and isinstance(n.section, int)]
        undefined = [n.name for n in self._names if n.section == "SHN_UNDEF" and n.kind == "STT_FUNC" and n.name]
        sha = hashlib.sha256()
        for section in self._sections:
            if section.name.startswith(".nv.constant") and section["sh_info"] == 0 and section.name != _ADDRESSES:
                sha.update(f"{section.name}\0".encode() + section.data())
        sha.update("\0".join(sorted(undefined)).encode())
        symbols = tuple(self._symbols())
        return Cubin(arch, entries, symbols, tuple(sorted(functions)), tuple(sorted(undefined)), sha.hexdigest())

    def code(self) -> Iterator[Code]:
        for index, section in enumerate(self._sections):
            if section.name.startswith(".text."):
                starts = [(n.value, n.name) for n in self._names if n.section == index and n.kind == "STT_FUNC"]
                yield Code(section.name.removeprefix(".text."), section.data(), tuple(sorted(starts)))

    def _arch(self) -> str:
        flags, abi = self._elf["e_flags"], self._elf["e_ident"]["EI_ABIVERSION"]
        number = flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF
        special = abi < 8 and bool(flags & 0x800)
        for section in self._sections:
            if section.name == ".nv.compat":
                special |= any(a.key == _COMPAT_ACCELERATOR and a.value[0] == 1 for a in attributes(section.data()))
        if not 50 <= number <= 200:
            raise ValueError(f"flags {flags:#x} name no architecture")
        return f"sm_{number}{'a' if special else ''}"

    def _symbol_table(self) -> Iterator[_Name]:
        for table in self._sections:
            if table["sh_type"] != "SHT_SYMTAB":
                continue
            raw, step = table.data(), table["sh_entsize"]
            for index, symbol in enumerate(table.iter_symbols()):
                kind, other = symbol["st_info"]["type"], raw[index * step + 5]
                is_entry = kind == "STT_FUNC" and bool(other & _ENTRY) and isinstance(symbol["st_shndx"], int)
                place, value, size = symbol["st_shndx"], symbol["st_value"], symbol["st_size"]
                yield _Name(symbol.name, kind, is_entry, place, value, size)

    def _read_relocations(self) -> dict[int, list[_Relocation]]:
        """By the section that they change, in the order of their places."""
        from elftools.elf.relocation import RelocationSection

        result: dict[int, list[_Relocation]] = {}
        for section in self._sections:
            if isinstance(section, RelocationSection):
                rows = result.setdefault(section["sh_info"], [])
                for row in section.iter_relocations():
                    addend = row["r_addend"] if row.is_RELA() else 0
                    rows.append(_Relocation(row["r_offset"], row["r_info_type"], row["r_info_sym"], addend))
                rows.sort(key=lambda r: (r.offset, r.kind))
        return result

    def _of(self, text: int) -> Iterator[Section]:
        """Sections that belong to one section of code."""
        for section in self._sections:
            is_kind = section.name.startswith((".nv.info.", ".nv.shared.", ".nv.constant", ".nv.local."))
            if is_kind and section["sh_info"] == text:
                yield section

    def _entry(self, index: int, symbol: _Name) -> Entry:
        assert isinstance(symbol.section, int)
        text = self._sections[symbol.section]
        found: dict[int, list[Attribute]] = {}
        constants: dict[int, int] = {}
        shared = local = 0
        banks: list[tuple[int, bytes]] = []
        for section in self._of(symbol.section):
            if section.name.startswith(".nv.info."):
                for attribute in attributes(section.data()):
                    found.setdefault(attribute.key, []).append(attribute)
            elif section.name.startswith(".nv.shared."):
                shared += section["sh_size"]
            elif section.name.startswith(".nv.local."):
                local += section["sh_size"]
            else:
                bank = int(section.name.removeprefix(".nv.constant").partition(".")[0])
                constants[bank] = constants.get(bank, 0) + section["sh_size"]
                banks.append((bank, section.data()))
        for section in self._sections:
            if section.name.startswith(".nv.constant") and section["sh_info"] == 0:
                bank = int(section.name.removeprefix(".nv.constant"))
                constants[bank] = constants.get(bank, 0) + section["sh_size"]
        if shared and self._is_reserved_inside():
            shared -= min(shared, RESERVED_SHARED_BYTES)
        frames = self._by_symbol.get(_FRAME_SIZE, {})
        local += sum(frames.get(i, 0) for i, n in enumerate(self._names) if n.section == symbol.section)
        bounds, required = triple(found, _MAX_THREADS), triple(found, _REQUIRED_THREADS)
        limit = required or bounds
        barriers = found.get(_BARRIERS)
        n_registers = self._by_symbol.get(_REGISTERS, {}).get(index, 0)
        stack = self._by_symbol.get(_MIN_STACK_SIZE, {}).get(index, frames.get(index, 0))
        n_barriers = barriers[0].value[0] if barriers else 0
        parameters, cluster = tuple(Parameter(*row) for row in parameter_rows(found)), triple(found, _CLUSTER)
        needs = (n_registers, stack, shared, local, n_barriers, limit, required, cluster)
        sha = hashlib.sha256(repr((needs, [(p.offset, p.size) for p in parameters])).encode())
        sha.update(text.data())
        for bank, data in sorted(banks):
            sha.update(f"{bank} {len(data)}\0".encode() + data)
        for row in self._relocations.get(symbol.section, ()):
            sha.update(f"{row.offset} {row.kind} {row.addend} {self._target(row, symbol.section)}\0".encode())
        return Entry(
            symbol.name, n_registers, stack, None, shared, local, n_barriers,
            limit[0] * limit[1] * limit[2] if limit else None,
            parameters, dict(sorted(constants.items())), cluster, required, text["sh_size"], sha.hexdigest(),
        )  # fmt: skip

    def _is_reserved_inside(self) -> bool:
        """Whether shared sections begin with the reserved kibibyte: so it is from Hopper on."""
        return any(n.name == "__nv_reservedSMEM_offset_0_alias" for n in self._names)

    def _target(self, row: _Relocation, text: int) -> str:
        """Where a relocation points, without a name of the kernel's own."""
        name = self._names[row.symbol]
        if not isinstance(name.section, int):
            return f"outside {name.name}"
        section = self._sections[name.section]
        if name.section == text:
            return f"here {name.value}"
        if section.name.startswith(".text"):
            return f"code {hashlib.sha256(section.data()).hexdigest()} {name.value}"
        return f"{section.name.split('.')[1:3]} {name.value}"

    def _symbols(self) -> Iterator[Symbol]:
        slots: dict[int, list[int]] = {}
        pinned = set()
        kept = False
        for index, rows in self._relocations.items():
            name = self._sections[index].name
            for row in rows:
                if name == _ADDRESSES:
                    slots.setdefault(row.symbol, []).append(row.offset)
                elif name.startswith((".text", ".nv.constant", ".nv.global")):
                    pinned.add(row.symbol)
                    kept |= not name.startswith(".text") and self._is_constant(self._names[row.symbol].section)
        for number, symbol in enumerate(self._names):
            if symbol.kind != "STT_OBJECT" or not isinstance(symbol.section, int):
                continue
            section = self._sections[symbol.section]
            if section.name.startswith(".nv.shared.reserved"):
                continue
            is_filled = section["sh_type"] != "SHT_NOBITS"
            value = section.data()[symbol.value : symbol.value + symbol.size] if is_filled else b""
            digest = hashlib.sha256(f"{symbol.size}\0".encode() + value).hexdigest()
            # Through an address among a file's own data, constant memory is written like any other.
            is_writable = section.name in _WRITABLE or (kept and self._is_constant(symbol.section))
            at = tuple(sorted(slots.get(number, ())))
            yield Symbol(symbol.name, symbol.size, is_writable, section.name, at, number in pinned, digest)

    def _is_constant(self, section: int | str) -> bool:
        return isinstance(section, int) and self._sections[section].name == _CONSTANTS
