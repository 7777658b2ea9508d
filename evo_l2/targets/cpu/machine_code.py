"""Reads what the compiler made: digest, symbols, instructions; and refuses what may not run."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from evo_l2.errors import ToolchainError
from evo_l2.evaluation import BuildReport, Status, Verdict
from evo_l2.targets.cpu.toolchain import Toolchain

__all__ = ["Instruction", "MachineCode", "gate_machine_code", "parse_disassembly", "read_machine_code", "resources_of"]

ALLOWED_SYMBOLS = frozenset(
    {
        "memcpy", "memmove", "memset", "memcmp", "_GLOBAL_OFFSET_TABLE_",
        "expf", "exp2f", "logf", "log2f", "sqrtf", "fmaf", "tanhf", "fminf", "fmaxf", "fabsf", "floorf", "ceilf", "roundf",
        "truncf", "nearbyintf", "rintf", "exp", "log", "sqrt", "fma", "fmin", "fmax",
        "__extendhfsf2", "__truncsfhf2", "__truncdfhf2", "__extendhfdf2", "__extendhfxf2",
        "__eqhf2", "__nehf2", "__lthf2", "__lehf2", "__gthf2", "__gehf2", "__unordhf2",
    }
)  # fmt: skip
"""What an object may take from outside: memory and math, and the compiler's half-precision conversions and comparisons."""

_FORBIDDEN = re.compile(
    r"syscall|sysenter|sysexit|int\b.*|cpuid|rdtscp?|rdpmc|rdrand|rdseed|clflush(opt)?|clwb|cldemote|wrpkru|rdpkru|xgetbv|xsetbv|"
    r"v?ldmxcsr|fldcw|fldenv|fnldcw|frstor|fxrstor.*|xrstor.*|in[bwl]?|out[bwl]?|hlt|wr[fg]sbase|rd[fg]sbase|"
    r"svc|hvc|smc|msr|mrs|dc|ic|tlbi"
)
_LARGEST_STACK_BYTES = 1 << 20
_LINE = re.compile(r"^\s*[0-9a-f]+:\s+(?:[0-9a-f]{2} )*\s*(?P<mnemonic>[a-z][\w.]*)\s*(?P<operands>[^#<]*)")
_PREFIXES = frozenset({"lock", "rep", "repz", "repnz", "bnd", "notrack", "data16", "cs", "ds", "es"})
_PACKED = re.compile(r"v?(add|sub|mul|div|max|min|sqrt|fn?m(add|sub)\d*|dp)p[sdh]$|vfn?m(add|sub)\d{3}p[sdh]$")
_FMA = re.compile(r"vfn?m(add|sub)\d{3}p[sdh]$")
_SCALAR_FMA = re.compile(r"vfn?m(add|sub)\d{3}s[sdh]$")
_MULTIPLY = re.compile(r"v?mulp[sdh]$")
_CONVERT = re.compile(r"vcvt(ph2psx?|ps2phx?)$|fcvtn?l?2?$")
_SHUFFLE = re.compile(
    r"v?(perm\w*|shuf\w*|unpck\w*|broadcast\w*|insert\w*|extract\w*|pbroadcast\w*|punpck\w*|zip\d|uzp\d|dup)"
)
_ARM_FMA = re.compile(r"fml[as]l?2?$|fmadd$|fmsub$")
_ARM_ARITHMETIC = re.compile(r"f(mla|mls|mul|add|sub)$")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a disassembly."""

    mnemonic: str
    operands: str


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What an object file holds."""

    digest: str
    """SHA-256 over code, constants and relocations; no path, name of a file or time goes in."""
    undefined: tuple[str, ...]
    writable: tuple[str, ...]
    """Writable symbols and sections with something in them."""
    constructors: tuple[str, ...]
    """Sections and symbols that would run at load time."""
    instructions: tuple[Instruction, ...]
    code_bytes: int


def read_machine_code(path: Path, toolchain: Toolchain) -> MachineCode:
    """Reads one relocatable object.

    Raises:
        ToolchainError: The object or the disassembler's output cannot be read.
    """
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            digest, code_bytes = _digest(elf)
            undefined, writable, constructors = _symbols(elf)
    except (ELFError, OSError, ValueError) as error:
        hint = "remove the cache folder, then run again"
        raise ToolchainError("an object file cannot be read", expected="ELF", found=str(error), hint=hint) from error
    instructions = parse_disassembly(_disassemble(path, toolchain))
    return MachineCode(digest, undefined, writable, constructors, instructions, code_bytes)


def _digest(elf: ELFFile) -> tuple[str, int]:
    """Digest of everything that decides what the code does, and the bytes of code."""
    sha = hashlib.sha256()
    code_bytes = 0
    kept = {}
    for index, section in enumerate(elf.iter_sections()):
        if section["sh_flags"] & SH_FLAGS.SHF_ALLOC and section["sh_type"] == "SHT_PROGBITS" and section["sh_size"]:
            kept[index] = section.name
            data = section.data()
            sha.update(f"{section.name}\0{len(data)}\0".encode())
            sha.update(data)
            code_bytes += len(data) if section["sh_flags"] & SH_FLAGS.SHF_EXECINSTR else 0
    for section in elf.iter_sections():
        if not isinstance(section, RelocationSection) or section["sh_info"] not in kept:
            continue
        symbols = elf.get_section(section["sh_link"])
        for entry in section.iter_relocations():
            symbol = symbols.get_symbol(entry["r_info_sym"])
            name = symbol.name or _section_name(elf, symbol)
            addend = entry["r_addend"] if entry.is_RELA() else 0
            sha.update(
                f"{kept[section['sh_info']]}\0{entry['r_offset']}\0{entry['r_info_type']}\0{name}\0{addend}\0".encode()
            )
    return sha.hexdigest(), code_bytes


def _section_name(elf: ELFFile, symbol: object) -> str:
    index = symbol["st_shndx"]  # type: ignore[index]
    return elf.get_section(index).name if isinstance(index, int) else str(index)


def _symbols(elf: ELFFile) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    undefined, writable, constructors = set(), set(), set()
    writable_sections = set()
    for index, section in enumerate(elf.iter_sections()):
        if section.name.startswith((".init_array", ".fini_array", ".preinit_array", ".ctors", ".dtors", ".init", ".fini")):
            constructors.add(section.name)
        is_writable = section["sh_flags"] & SH_FLAGS.SHF_WRITE and section["sh_flags"] & SH_FLAGS.SHF_ALLOC
        if is_writable and section["sh_size"] and not section.name.startswith(".data.rel.ro"):
            writable_sections.add(index)
            writable.add(section.name)
    for section in elf.iter_sections():
        if not isinstance(section, SymbolTableSection):
            continue
        for symbol in section.iter_symbols():
            where = symbol["st_shndx"]
            if where == "SHN_UNDEF" and symbol.name:
                undefined.add(symbol.name)
            elif where == "SHN_COMMON" or (where in writable_sections and symbol.name):
                writable.add(symbol.name)
            if symbol["st_info"]["type"] in ("STT_GNU_IFUNC", "STT_LOOS"):
                constructors.add(symbol.name)
    return tuple(sorted(undefined)), tuple(sorted(writable)), tuple(sorted(constructors))


def _disassemble(path: Path, toolchain: Toolchain) -> str:
    command = [str(toolchain.objdump), "-d", "--no-show-raw-insn", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError("the disassembler fails", expected=command[0], found=str(error), hint="evo-l2 doctor") from error
    return done.stdout


def parse_disassembly(text: str) -> tuple[Instruction, ...]:
    """Every instruction of an `objdump -d` listing; labels, headers and prefixes are passed over."""
    result = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        mnemonic, operands = match.group("mnemonic"), match.group("operands").strip()
        while mnemonic in _PREFIXES and operands:
            mnemonic, _, operands = operands.partition(" ")
        result.append(Instruction(mnemonic, operands.strip()))
    return tuple(result)


def _width(instruction: Instruction) -> int:
    """Bits of the vector registers that a packed floating-point instruction works on; 0 for any other."""
    if _ARM_ARITHMETIC.match(instruction.mnemonic):
        return 128 if re.search(r"\.(4s|8h|2d)", instruction.operands) else 0
    if not _PACKED.match(instruction.mnemonic):
        return 0
    return 512 if "zmm" in instruction.operands else 256 if "ymm" in instruction.operands else 128


def resources_of(code: MachineCode, stack_bytes: int) -> dict[str, int | float | str]:
    """Counts that describe the code to the archive, to people and to models."""
    names = Counter(instruction.mnemonic for instruction in code.instructions)
    n_fused = _count(names, _FMA) + sum(
        1 for i in code.instructions if _ARM_FMA.match(i.mnemonic) and re.search(r"\.(4s|8h|2d)", i.operands)
    )
    vector_moves = [i for i in code.instructions if i.mnemonic.startswith(("vmov", "movaps", "movups", "ldr", "str"))]
    return {
        "simd_bits": max((_width(i) for i in code.instructions), default=0),
        "n_fma": n_fused or _count(names, _MULTIPLY),
        "n_scalar_fma": _count(names, _SCALAR_FMA),
        "n_converts": _count(names, _CONVERT),
        "n_shuffles": _count(names, _SHUFFLE),
        "n_vector_spills": sum(1 for i in vector_moves if re.search(r"[xyz]mm\d+,.*\(%r[sb]p", i.operands)),
        "n_instructions": len(code.instructions),
        "code_bytes": code.code_bytes,
        "stack_bytes": stack_bytes,
    }


def _count(names: Counter[str], pattern: re.Pattern[str]) -> int:
    return sum(count for name, count in names.items() if pattern.match(name))


def gate_machine_code(code: MachineCode, stack_bytes: int, build: BuildReport) -> Verdict | None:
    """The reason not to run a kernel by what was built, or None."""
    strangers = [name for name in code.undefined if name not in ALLOWED_SYMBOLS]
    forbidden = sorted({i.mnemonic for i in code.instructions if _FORBIDDEN.fullmatch(i.mnemonic)})
    for gate, found, what in (
        ("symbols", strangers, "calls functions that a kernel may not use"),
        ("writable-globals", code.writable, "has writable global or static data"),
        ("constructors", code.constructors, "has code that runs when it is loaded"),
        ("instructions", forbidden, "uses instructions that a kernel may not use"),
        ("stack", _too_large(stack_bytes), "needs too large a stack frame (use a workspace)"),
    ):
        if found:
            return Verdict(Status.UNLAUNCHABLE, gate, f"the kernel {what}: {_some(found)}", build)
    return None


def _too_large(stack_bytes: int) -> tuple[str, ...]:
    return (f"{stack_bytes} bytes, at most {_LARGEST_STACK_BYTES}",) if stack_bytes > _LARGEST_STACK_BYTES else ()


def _some(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")
