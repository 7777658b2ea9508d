"""The machine code of a cubin as instructions: read from `nvdisasm`, classified and digested.

Names of instructions are those of NVIDIA's CUDA Binary Utilities, chapter "Instruction Set Reference", and what toolkit
13.2 prints.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evo_l2.errors import ToolchainError
from evo_l2.targets.cuda.reading.cubin import Code, Cubin, Symbol, code_digest, read_code
from evo_l2.targets.cuda.tool_process import tool_output
from evo_l2.targets.messages import printable

__all__ = [
    "Instruction",
    "Sass",
    "first_line_of_use",
    "globals_in_use",
    "instruction_class",
    "instruction_mix",
    "machine_code_digest",
    "parse_binary",
    "parse_sass",
    "read_sass",
]

_PLACE = re.compile(r'"(?P<file>[^"]*)", line (?P<line>\d+)')
_TYPE = re.compile(r"\s*\.type\s+(?P<name>\S+),\s*@function")
_SECTION = re.compile(r"\s*\.section\s+\.text\.(?P<name>[^,\s]+)")
_LABEL = re.compile(r"(?P<name>[^\s:]+):")
_INSTRUCTION = re.compile(
    r"\s*/\*(?P<address>[0-9a-f]+)\*/\s+(?:\{\s*)?(?:@(?P<predicate>!?U?P\w+)\s+)?"
    r"(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);"
)
_INSTRUCTION_BYTES = 16
"""From compute capability 7.0 on."""
_MOST_BYTES = 256 << 20
_MOST_BYTES_PER_INSTRUCTION = 4096
"""Of a listing: an instruction has a line of its own, and one more for each call that was inlined around it."""
_MOST_BYTES_BESIDE = 1 << 20
_BANK_4 = re.compile(r"c\[0x4\]\[(?P<offset>[^\]]+)\]")

_CLASSES = {
    "matrix": "HMMA IMMA BMMA DMMA QMMA OMMA HGMMA IGMMA BGMMA QGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA UTCMXQMMA",
    "fp": "FADD FADD2 FADD32I FCHK FFMA FFMA2 FFMA32I FHADD FHFMA FMNMX FMNMX3 FMUL FMUL2 FMUL32I FSEL FSET FSETP FSWZADD "
    "MUFU HADD2 HADD2_32I HFMA2 HFMA2_32I HMNMX2 HMUL2 HMUL2_32I HSET2 HSETP2 DADD DFMA DMNMX DMUL DSETP UFADD UFFMA "
    "UFMNMX UFMUL UFSEL UFSET UFSETP",
    "convert": "F2F F2FP F2I F2IP FRND I2F I2FP I2I I2IP UF2F UF2FP UF2I UFRND UI2F UI2FP UI2I",
    "integer": "BMSK BREV FLO IABS IADD IADD2 IADD3 IADD32I IDP IDP4A IMAD IMNMX IMUL IMUL32I ISCADD ISCADD32I ISETP LEA "
    "LOP LOP3 LOP32I POPC SGXT SHF SHL SHR VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3 UBMSK UBREV UFLO UIABS "
    "UIADD3 UIMAD UIMNMX UISETP ULEA ULOP ULOP3 ULOP32I UPOPC USGXT USHF USHL USHR UVIADD UVIMNMX",
    "move": "MOV MOV32I MOVM PRMT SEL SHFL P2R R2P R2UR R2B B2R S2R S2UR CS2R CS2UR UCS2R UMOV UPRMT USEL UP2UR UR2UP "
    "UREDGR REDUX CREDUX VOTE VOTEU MATCH PLOP3 UPLOP3 PSETP PSET CSET CSETP FSETS LEPC GETLMEMBASE SETLMEMBASE ELECT "
    "USETMAXREG S2UP",
    "global": "LDG STG LD ST",
    "shared": "LDS STS LDSM STSM",
    "local": "LDL STL",
    "constant": "LDC LDCU ULDC LDCG",
    "atomic": "ATOM ATOMG ATOMS RED REDG REDAS UREDGR SULD SUST SURED SUATOM",
    "copy": "LDGSTS UBLKCP UBLKRED UTMALDG UTMASTG UTMAREDG STAS UBLKPF UTMAPF UTCCP UTCSHIFT UTCLDSWS UTCSTSWS",
    "tensor": "LDT STT LDTM STTM UTCATOMSWS",
    "sync": "BAR UCGABAR_ARV UCGABAR_WAIT UCGABAR_GET UCGABAR_SET DEPBAR LDGDEPBAR MEMBAR FENCE ERRBAR SYNCS SYNCSU "
    "ARRIVES WARPGROUP WARPGROUPSET WARPSYNC UTMACMDFLUSH UTCBAR ACQBULK ACQSHMINIT CCTL CCTLL CCTLT UTMACCTL NANOSLEEP "
    "PREEXIT CGAERRBAR ENDCOLLECTIVE UGETNEXTWORKID UVIRTCOUNT",
    "control": "BRA BRX BRXU BREAK BSSY BSYNC BMOV CALL EXIT JMP JMX JMXU KILL RET RPCMOV RTT YIELD BPT NOP UBRA",
    "texture": "TEX TLD TLD4 TMML TXD TXQ FOOTPRINT",
}
_CLASS_OF = {name: kind for kind, names in _CLASSES.items() for name in names.split()}


@functools.lru_cache(4096)
def _parts(opcode: str) -> tuple[str, tuple[str, ...]]:
    """An opcode's base and its modifiers; a kernel has thousands of instructions and a few dozen opcodes."""
    base, *modifiers = opcode.split(".")
    return base, tuple(modifiers)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, and the line of source it stands for where line information exists."""

    address: int
    """In bytes, from the start of its section."""
    predicate: str | None
    """`!P0`, `UP1`; None where it always runs."""
    opcode: str
    """With its modifiers: `HMMA.16816.F32`."""
    operands: str
    file: str | None = None
    """The kernel's file: for a function of a header that was inlined, this is where it was called."""
    line: int | None = None

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return _parts(self.opcode)[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """What follows the opcode: `16816`, `F32`."""
        return _parts(self.opcode)[1]

    @property
    def text(self) -> str:
        """As `nvdisasm` prints it, in one line."""
        head = f"@{self.predicate} {self.opcode}" if self.predicate else self.opcode
        return f"{head} {self.operands}".rstrip()


@dataclass(frozen=True, slots=True)
class Sass:
    """The machine code of one cubin."""

    functions: dict[str, tuple[Instruction, ...]]
    """Entries, and device functions that were not inlined, in the order of the file."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Device function to the entry in whose code it stands (or to itself where it stands alone)."""
    labels: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Name of a place in the code to its address; empty where instructions point to addresses themselves."""

    def of(self, entry: str) -> tuple[Instruction, ...]:
        """The entry's instructions and those of the functions that stand in its code."""
        names = [name for name in self.functions if self.owners.get(name, name) == entry]
        return tuple(i for name in names for i in self.functions[name])

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All of them."""
        return tuple(i for function in self.functions.values() for i in function)


def read_sass(cubin: Path, nvdisasm: Path, *, timeout_s: float = 60.0) -> Sass:
    """Disassembles one cubin; 0.25 to 0.5 s of processor time, nearly all of it the tool's own start.

    Raises:
        ToolchainError: The cubin cannot be read, or the disassembler is missing, fails, takes too long, writes without end,
            or does not show every instruction.
    """
    codes = read_code(cubin)
    n_instructions = sum(len(code.data) for code in codes) // _INSTRUCTION_BYTES
    most_bytes = min(_MOST_BYTES, _MOST_BYTES_BESIDE + _MOST_BYTES_PER_INSTRUCTION * n_instructions)
    # Without `-ndf` it follows data to find targets of jump tables, which doubles the time and changes nothing here. The
    # text is read, not `-json`, since only the text has line numbers.
    command = [str(nvdisasm), "-c", "-gi", "-ndf", str(cubin)]
    try:
        text = tool_output(command, with_errors=False, timeout_s=timeout_s, most_bytes=most_bytes)
    except ToolchainError as error:
        raise _broken(command[0], error.found or error.what) from error
    sass = parse_sass(text)
    if not sass.instructions:
        raise _broken(command[0], "no instruction in its output")
    for found in _missing(sass, codes):
        raise _broken(command[0], found)
    return sass


def _broken(tool: str, found: str) -> ToolchainError:
    return ToolchainError("the disassembler fails", expected=f"code from {tool}", found=found, hint="evo-l2 doctor")


def _missing(sass: Sass, codes: Iterable[Code]) -> Iterator[str]:
    """What a listing lacks, or has too much: there is one instruction for every 16 bytes of every section, and no other."""
    shown: dict[str, list[int]] = {code.name: [] for code in codes}
    for name, function in sass.functions.items():
        shown.setdefault(sass.owners.get(name, name), []).extend(instruction.address for instruction in function)
    sizes = {code.name: len(code.data) for code in codes}
    for name, addresses in shown.items():
        if addresses != list(range(0, sizes.get(name, 0), _INSTRUCTION_BYTES)):
            n_bytes = sizes.get(name, 0)
            yield f"a listing of {len(addresses)} instructions of {printable(name[:80])}, whose code has {n_bytes} bytes"


def parse_sass(text: str) -> Sass:
    """Every instruction of a listing by `nvdisasm -c`, with or without `-g` or `-gi`.

    Line information comes as comments: one of a function that was inlined first, then the places of its calls, outwards. Of
    these the first is kept that is in the file of the last, so that what a header does is shown where the kernel asks for
    it.
    """
    functions: dict[str, list[Instruction]] = {}
    owners: dict[str, str] = {}
    declared: set[str] = set()
    section = name = ""
    places: list[tuple[str, int]] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    is_open = False
    for text_line in text.splitlines():
        match = _INSTRUCTION.match(text_line)
        if match is not None and section:
            is_open = False
            labels.update(dict.fromkeys(pending, int(match["address"], 16)))
            pending.clear()
            file, line = next((p for p in places if p[0] == places[-1][0]), (None, None))
            functions.setdefault(name or section, []).append(
                Instruction(
                    int(match["address"], 16), match["predicate"], match["opcode"],
                    " ".join(match["operands"].split()), file, line,
                )
            )  # fmt: skip
        elif text_line.lstrip().startswith("//## File"):
            places = places if is_open else []
            is_open = True
            found = _PLACE.search(text_line)
            if found is not None:
                places.append((found["file"], int(found["line"])))
        elif match := _SECTION.match(text_line):
            section, name, places, is_open = match["name"], match["name"], [], False
        elif match := _TYPE.match(text_line):
            declared.add(match["name"])
            owners.setdefault(match["name"], section)
        elif match := _LABEL.match(text_line):
            if match["name"] in declared:
                name, places = match["name"], []
            else:
                pending.append(match["name"])
    kept = {key: tuple(rows) for key, rows in functions.items()}
    return Sass(kept, {key: owner for key, owner in owners.items() if key in kept}, labels)


def parse_binary(text: str, code: Code) -> dict[str, tuple[Instruction, ...]] | None:
    """Functions of a listing by `nvdisasm --binary` of one section; None unless every 16 bytes of it are an instruction.

    They are those of `parse_sass`, but know no lines, and point to addresses where those point to labels.
    """
    matches = [match for line in text.splitlines() if (match := _INSTRUCTION.match(line)) is not None]
    if [int(match["address"], 16) for match in matches] != list(range(0, len(code.data), _INSTRUCTION_BYTES)):
        return None
    starts = dict(code.functions)
    name = code.name
    functions: dict[str, list[Instruction]] = {}
    for address, match in zip(range(0, len(code.data), _INSTRUCTION_BYTES), matches, strict=True):
        name = starts.get(address, name)
        operands = " ".join(match["operands"].split())
        functions.setdefault(name, []).append(Instruction(address, match["predicate"], match["opcode"], operands))
    return {key: tuple(rows) for key, rows in functions.items()}


def instruction_class(instruction: Instruction) -> str:
    """What an instruction does: one of the classes that `instruction_mix` counts; `other` for one that is not known."""
    return _CLASS_OF.get(instruction.base, "other")


def instruction_mix(instructions: Iterable[Instruction]) -> dict[str, int]:
    """Static counts by class, zeros included; `NOP` counts nowhere.

    `matrix`, `fp`, `integer`, `convert`, `move` are arithmetic and what serves it; `global` (generic addresses too),
    `shared`, `local`, `constant`, `tensor` (tensor memory), `texture` are loads and stores by space; `copy` goes from one
    space to another without registers; `atomic`, `sync`, `control`, `other`.
    """
    counts = dict.fromkeys((*_CLASSES, "other"), 0)
    for instruction in instructions:
        if instruction.base != "NOP":
            counts[instruction_class(instruction)] += 1
    return counts


def globals_in_use(cubin: Cubin, instructions: Iterable[Instruction]) -> tuple[Symbol, ...]:
    """Variables of the file that an instruction can reach.

    An address gets into code only through constant bank 4, whose slots the ELF assigns; so a variable whose slot no
    instruction reads cannot be written. NVRTC keeps every unused `constexpr` of the file as such a variable, nvcc does not.
    """
    read: set[int] = set()
    for instruction in instructions:
        for match in _BANK_4.finditer(instruction.operands):
            if not re.fullmatch("0x[0-9a-f]+", match["offset"]):
                return cubin.symbols
            n_bytes = next((int(m) // 8 for m in instruction.modifiers if m in ("64", "128", "256")), 4)
            read.update(range(int(match["offset"], 16), int(match["offset"], 16) + n_bytes))
    return tuple(symbol for symbol in cubin.symbols if symbol.is_pinned or _is_read(symbol, read))


def first_line_of_use(symbol: Symbol, instructions: Iterable[Instruction]) -> int | None:
    """The line of the first instruction that reads the variable's address; None where none does, or where it has no line."""
    places = {f"{slot:#x}" for slot in symbol.slots}
    found = (i for i in instructions if any(match["offset"] in places for match in _BANK_4.finditer(i.operands)))
    return next((i.line for i in found if i.line is not None), None)


def _is_read(symbol: Symbol, read: set[int]) -> bool:
    if not symbol.section.startswith(".nv.global"):
        return True
    return any(not read.isdisjoint(range(slot, slot + 8)) for slot in symbol.slots)


def machine_code_digest(sass: Sass, cubin: Cubin, entries: Sequence[str] | None = None) -> str:
    """SHA-256 over all that decides what the code does and needs, and nothing of folder, user, process or line.

    In it: the architecture; of every entry the machine code as bytes (waiting and scheduling fields included), where it
    points, its own constants, registers, stack, shared memory, barriers, bounds, cluster and layout of arguments; constants
    that entries share; names of functions from outside; variables that the code can reach. Not in it: names of the kernel's
    own. Entries count in the order given, so with those of the launches, in launch order, two kernels that differ in names
    alone are equal; without, they are taken by name, and a renaming that changes this order changes the digest (never the
    other way round).

    Args:
        sass: Tells which variables are used: an unused `constexpr` does not matter, whatever its value.
        cubin: See `read_cubin`.
        entries: Entries in the order of the launches; None for all of them, by name.
    """
    used = {symbol.name for symbol in globals_in_use(cubin, sass.instructions)}
    return code_digest(cubin, used, entries)
