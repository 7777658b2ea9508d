"""A disassembler's listing as instructions, and what can be counted in them (x86-64 in AT&T syntax, and AArch64)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Instruction", "count_instructions", "forbidden_instructions", "parse_disassembly"]

_LINE = re.compile(r"^\s*[0-9a-f]+:\s+(?P<text>\S.*)$")
_PREFIX = re.compile(r"lock|rep(n?[ze])?|bnd|notrack|data16|addr32|[cdefgs]s|rex(\.\w+)?|\{\w+\}|xacquire|xrelease")
_COMMENT = re.compile(r"\s*(?:#|//|<).*$")
_OPERAND = re.compile(r"(?:[^,(\[{]|\([^)]*\)|\[[^\]]*\]|\{[^}]*\})+")

_FORBIDDEN = re.compile(
    r"syscall|sysenter|sysexit|sysret\w?|int\d*|into|cpuid|rdtscp?|rdpmc|rdmsr|wrmsr\w*|rdrand|rdseed|rdpid|rdpru|clflush(opt)?|"
    r"clwb|cldemote|clzero|w?b?invd|wbnoinvd|rdpkru|wrpkru|xgetbv|xsetbv|v?ldmxcsr|fldcw|fldenv|frstor|fxrstor\w*|xrstor\w*|"
    r"fn?init|(rd|wr)[fg]sbase\w?|swapgs|u?monitorx?|u?mwaitx?|tpause|xbegin|xend|xabort|ptwrite\w?|in[bwl]?|out[bwl]?|hlt|cli|"
    r"sti|l[gil]dtw?|lmsw|invlpg\w*|vm\w*call|enclu|clui|stui|senduipi|(bad)|\(bad\)|\.byte|\.inst|"
    r"svc|hvc|smc|mrs|msr|mrrs|msrr|sysl?|sysp|dc|ic|at|tlbi|wfi|wfe|wfit|wfet|sevl?|smstart|smstop|eret|drps"
)
"""What reads a clock, enters the kernel, or changes how the processor calculates, caches or maps memory."""
_SEGMENT = re.compile(r"%[fg]s:")

_X86_FMA = re.compile(r"vfn?m(add|sub|addsub|subadd)\d{3}p[sdh]|vdpbf16ps|vdpphps")
_X86_SCALAR_FMA = re.compile(r"vfn?m(add|sub)\d{3}s[sdh]")
_X86_MULTIPLY = re.compile(r"v?mulp[sdh]")
_X86_ADD = re.compile(r"v?(add|sub)p[sdh]")
_X86_ARITHMETIC = re.compile(r"v?(add|sub|mul|div|max|min|sqrt|hadd|dp)p[sdh]")
_X86_CONVERT = re.compile(r"v?cvt\w+")
_X86_BROADCAST = re.compile(r"vp?broadcast\w+|v?movddup")
_X86_SHUFFLE = re.compile(
    r"v?p?(unpck|shuf|blend|align|insert|extract)\w*|vp?(perm|compress|expand)\w*|v?mov(lh|hl|s[lh]du)p?s?|vp?(lld|rld)q"
)
_X86_VECTOR = re.compile(r"%[xyz]mm\d+")
_X86_MEMORY = re.compile(r"\(%|\(,%|%[c-gs]s:")
_X86_NO_ACCESS = re.compile(r"lea\w?|nop\w?|prefetch\w*")

_ARM_FMA = re.compile(r"fml[as](l[bt2]?)?|bfdot|bfmmla|bfmlal[bt]|fmmla|fdot|fmopa")
_ARM_SCALAR_FMA = re.compile(r"fn?m(add|sub)")
_ARM_ARITHMETIC = re.compile(r"f(mul|add|sub|div|max|min|sqrt)(nm|x)?")
_ARM_CONVERT = re.compile(r"b?fcvt\w*|[su]cvtf")
_ARM_BROADCAST = re.compile(r"dup|ld[1-4]r\w*|ld1rq\w*")
_ARM_SHUFFLE = re.compile(r"zip[12]|uzp[12]|trn[12]|ext|tb[lx]|rev\d*|ins")
_ARM_VECTOR = re.compile(r"\b[qvz]\d+\b")
_ARM_FULL = re.compile(r"\bv\d+\.(4s|8h|2d)|\bz\d+\.[hsd]")
_ARM_HALF = re.compile(r"\bv\d+\.(2s|4h)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a listing."""

    mnemonic: str
    operands: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The operands one by one; in AT&T syntax the last is the destination."""
        return tuple(part.strip() for part in _OPERAND.findall(self.operands) if part.strip())


def parse_disassembly(text: str) -> tuple[Instruction, ...]:
    """Every instruction of an `objdump -d --no-show-raw-insn` listing, GNU's or LLVM's, without prefixes and comments."""
    result = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        words = match.group("text").split(None, 1)
        while len(words) == 2 and _PREFIX.fullmatch(words[0]):
            words = words[1].split(None, 1)
        operands = _COMMENT.sub("", words[1]).strip() if len(words) == 2 else ""
        result.append(Instruction(words[0], operands))
    return tuple(result)


def forbidden_instructions(instructions: Iterable[Instruction]) -> tuple[str, ...]:
    """Mnemonics that no kernel may use, each once, sorted."""
    found = set()
    for instruction in instructions:
        if _FORBIDDEN.fullmatch(instruction.mnemonic):
            found.add(instruction.mnemonic)
        elif _SEGMENT.search(instruction.operands):
            found.add(f"{instruction.mnemonic} on %fs or %gs")
    return tuple(sorted(found))


def count_instructions(instructions: tuple[Instruction, ...], machine: str) -> dict[str, int]:
    """Static counts, over the whole code, that say how a kernel works.

    Args:
        instructions: See `parse_disassembly`.
        machine: `x86_64` or `aarch64`; for any other only the number of instructions is known.

    Returns:
        `n_instructions`; and `simd_bits`, the widest registers of packed floating arithmetic (0 without any); `n_fma`, packed
        multiply-adds (or pairs of packed multiply and add where there are none); `n_scalar_fma`; `n_vector_loads`,
        `n_vector_stores`; `n_vector_spills`, vector stores to the stack; `n_broadcasts`, `n_shuffles`, `n_converts`.
    """
    counts = {"n_instructions": len(instructions)}
    if machine == "x86_64":
        counts |= _count_x86(instructions)
    elif machine == "aarch64":
        counts |= _count_arm(instructions)
    return counts


def _count_x86(instructions: tuple[Instruction, ...]) -> dict[str, int]:
    framed = any(i.mnemonic in ("mov", "movq") and i.operands == "%rsp,%rbp" for i in instructions)
    stack = re.compile(r"\(%r(sp|bp)" if framed else r"\(%rsp")
    vector = [i for i in instructions if _X86_VECTOR.search(i.operands) and not _X86_NO_ACCESS.fullmatch(i.mnemonic)]
    memory = [(i, [bool(_X86_MEMORY.search(part)) for part in i.parts]) for i in vector]
    stores = [i for i, at in memory if at and at[-1]]
    packed = [i for i in vector if _X86_ARITHMETIC.fullmatch(i.mnemonic) or _X86_FMA.fullmatch(i.mnemonic)]
    n_fused = _count(packed, _X86_FMA)
    return {
        "simd_bits": max((_x86_bits(i) for i in packed), default=0),
        "n_fma": n_fused or min(_count(packed, _X86_MULTIPLY), _count(packed, _X86_ADD)),
        "n_scalar_fma": _count(vector, _X86_SCALAR_FMA),
        "n_vector_loads": sum(any(at[:-1]) for _, at in memory),
        "n_vector_stores": len(stores),
        "n_vector_spills": sum(bool(stack.search(i.parts[-1])) for i in stores),
        "n_broadcasts": _count(vector, _X86_BROADCAST),
        "n_shuffles": _count(vector, _X86_SHUFFLE),
        "n_converts": _count(vector, _X86_CONVERT),
    }


def _x86_bits(instruction: Instruction) -> int:
    widths = {"x": 128, "y": 256, "z": 512}
    return max(widths[name[1]] for name in _X86_VECTOR.findall(instruction.operands))


def _count_arm(instructions: tuple[Instruction, ...]) -> dict[str, int]:
    def is_packed(i: Instruction) -> bool:
        return bool(_ARM_FULL.search(i.operands) or _ARM_HALF.search(i.operands))

    arithmetic = [i for i in instructions if _ARM_ARITHMETIC.fullmatch(i.mnemonic) or _ARM_FMA.fullmatch(i.mnemonic)]
    packed = [i for i in arithmetic if is_packed(i)]
    vector = [i for i in instructions if _ARM_VECTOR.search(i.operands)]
    stores = [i for i in vector if i.mnemonic.startswith("st")]
    n_multiplies, n_adds = _count(packed, re.compile("fmul")), _count(packed, re.compile("fadd|fsub"))
    return {
        "simd_bits": max((128 if _ARM_FULL.search(i.operands) else 64 for i in packed), default=0),
        "n_fma": _count(packed, _ARM_FMA) or min(n_multiplies, n_adds),
        "n_scalar_fma": _count(instructions, _ARM_SCALAR_FMA),
        "n_vector_loads": sum(i.mnemonic.startswith("ld") for i in vector),
        "n_vector_stores": len(stores),
        "n_vector_spills": sum("[sp" in i.operands for i in stores),
        "n_broadcasts": _count(vector, _ARM_BROADCAST),
        "n_shuffles": _count(vector, _ARM_SHUFFLE),
        "n_converts": _count(instructions, _ARM_CONVERT),
    }


def _count(instructions: Iterable[Instruction], pattern: re.Pattern[str]) -> int:
    return sum(pattern.fullmatch(instruction.mnemonic) is not None for instruction in instructions)
