"""Looks in PTX and machine code for what no kernel may use: clocks, hints that outlive a launch, calls to the outside.

Names are those of NVIDIA's "PTX ISA" 9.2; names of machine instructions are what toolkit 13.2 makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evo_l2.targets.cuda.reading.ptx import FUNCTION, REGISTER, WRITTEN, plain, statements_of
from evo_l2.targets.cuda.reading.sass import Instruction, Sass

__all__ = ["RULES", "Finding", "lint_ptx", "lint_sass"]

RULES = {
    "clock": "reads a clock or a performance counter",
    "call-number": "reads which launch this is, or of what graph (gridid, envreg), or what stands beside the arguments",
    "cache-policy": "sets how long data stays in L2 (evict_last, or a policy that cannot be read off the code)",
    "prefetch": "fetches into a cache beyond the L2::128B hint of loads and prefetch.tensormap",
    "dependent-launch": "overlaps with the launch after it (griddepcontrol, PREEXIT)",
    "device-launch": "launches kernels",
    "outside-call": "calls a function that is not in the file (printf, malloc, assert)",
    "indirect-call": "calls through a pointer",
    "code-address": "takes the address of a function, by which machine code can be read and written",
    "local-memory": "takes local memory of a size that is not known before it runs (alloca), or reaches memory by a number",
    "trap": "stops the card on purpose (trap, breakpoint)",
    "texture": "reads or writes through a texture or a surface, of which the harness binds none",
    "system-memory": "writes for other devices (multimem) or changes lines of the cache (discard, applypriority)",
}
"""Rule to what a kernel does that falls under it, in plain words."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in the code that breaks a rule."""

    rule: str
    """One of `RULES`."""
    message: str
    """What the kernel does there, in plain words."""
    line_text: str
    """The line of PTX, or the machine instruction."""
    line: int | None
    """Line of the kernel's source, from 1; None without line information."""


_CLOCK = re.compile(r"%(?:clock(?:_hi|64)?|globaltimer(?:_lo|_hi)?|pm[0-7](?:_64)?)\b|\bpmevent\b")
_WAITS = (
    ", as the waits of cuda::barrier do before compute capability 9.0, and of a pipeline in shared memory: wait by"
    " __mbarrier_test_wait of cuda_awbarrier_primitives.h, or by mbarrier.test_wait or mbarrier.try_wait (cuda/ptx)"
)
_WHICH_CALL = re.compile(r"%(?:gridid|current_graph_exec|envreg\d+)\b")
_RESERVED = re.compile(r"%reserved_smem_\w+")
_EVICT_LAST = re.compile(r"\bL2::evict_last\b")
_POLICY = re.compile(rf"\bcreatepolicy\.(?P<form>\w+)\S*\s+(?P<register>{REGISTER})\s*(?:,|$)")
_HINTED = re.compile(r"\.L2::cache_hint\b(?:.*,)?\s*(?P<value>.*?)\s*$", re.DOTALL)
_MOVE = re.compile(rf"\bmov\.\w+\s+(?P<to>{REGISTER})\s*,\s*(?P<value>{REGISTER}|0[xX][0-9A-Fa-f]+|-?\d+)\s*$")
_CHOICE = re.compile(
    rf"\bselp\.[bsu]64\s+(?P<to>{REGISTER})\s*,\s*(?P<one>{REGISTER}|-?\d\w*)\s*,\s*(?P<two>{REGISTER}|-?\d\w*)\s*,\s*[\w$%]+\s*$"
)
_PASSED = re.compile(rf"\.reg\b[^,()]*?(?P<register>{REGISTER})\s*(?=[,)])")
"""A register that a function takes or gives back."""
_MAY_BE_ADDRESS = re.compile(r"\bcvta(?!\.(?:to|global|shared|local|const)\b)")
_ADDRESS = re.compile(rf"\bcvta\s*\.\s*param\s*\.\s*\w+\s+(?P<register>{REGISTER})")
_OF_MAPS = re.compile(
    r"(?:@\s*!?\s*[\w$%]+\s+)?(?:cp\.(?:reduce\.)?async\.bulk\.tensor|prefetch\.(?:\w+\.)?tensormap|fence\.proxy\.tensormap"
    r"|setp|isspacep)\b"
)
"""What may be done with the address of an argument: it is a tensor map's."""
_THROUGH = re.compile(r"(?:@\s*!?\s*[\w$%]+\s+)?(?:ldu?|st|atom|red|call|multimem|tensormap|cp|prefetchu?)\b")
"""What reads or writes at an address, or hands it on where it is not followed."""
_NUMBER = re.compile(r"-?(?:0[xX][0-9A-Fa-f]+|[1-9]\d*|0)U?")
_LONGEST_NUMBER = 24
"""Characters; 64 bits take fewer."""
_HARMLESS = (0x10, 0x12, 0x16)
"""Top bytes of encoded policies that keep nothing: evict_normal and evict_first, as `createpolicy` makes them."""
_LAST = 0x14
"""The same for evict_last."""
_PREFETCH = re.compile(r"\bprefetchu?\.(?!(?:\w+\.)?tensormap)\S+|\bcp\.async\.bulk\.prefetch\S*|\.L2::256B\b")
_DEPENDENT = re.compile(r"\bgriddepcontrol\.\w+")
_TRAP = re.compile(r"(?:^|\s)(?P<what>trap|brkpt)\s*$")
_ALLOCA = re.compile(r"(?:^|\s)(?P<what>alloca|stacksave|stackrestore)\b")
_CACHE_LINES = re.compile(r"\b(?:discard|applypriority|multimem)\.\S+")
_EXTERN = re.compile(r"\.extern\s+\.func\b(?:\s*\([^)]*\))?\s*(?P<name>[\w$]+)")
_OPCODE = re.compile(r"^(?:@\s*!?\s*[\w$%]+\s+)?[a-z][\w.:]*")
_DEFINED = re.compile(r"\.(?:entry|func)\b\s*(?:\([^)]*\)\s*)?(?P<name>[\w$]+)")
_CALL = re.compile(r"\bcall(?:\.uni)?(?![\w$])\s*(?:\([^)]*\)\s*,\s*)?(?P<target>%?[\w$]+)")
_DEVICE_LAUNCH = re.compile(
    r"cudaLaunchDevice|cudaGetParameterBuffer|cudaStreamCreate|cudaGraphLaunch|cudaCDP|cnp", re.IGNORECASE
)

_WORDS = (
    "%clock", "%globaltimer", "%pm", "pmevent", "%gridid", "%current_graph_exec", "%envreg", "%reserved_smem", "evict_last",
    "cache_hint", "prefetch", "L2::256B", "griddepcontrol", "discard", "applypriority", "multimem", "alloca", "stacksave",
    "stackrestore",
    "trap", "brkpt", "call",
)  # fmt: skip
"""Every statement that breaks a rule holds one of these, which is why most files need no second look."""

_TEXTURES = frozenset(("TEX", "TLD", "TLD4", "TXD", "TXQ", "TMML", "FOOTPRINT", "SULD", "SUST", "SURED", "SUATOM", "SUQUERY"))
_SASS_CLOCK = re.compile(r"\bSR_(?:CLOCK|GLOBALTIMER|PM\d)\w*")


def lint_ptx(text: str) -> tuple[Finding, ...]:
    """Everything in a file of PTX that breaks a rule, in the order of the file, each statement once a rule.

    Comments are passed over. The line of source is that of the last `.loc` before it; for what was inlined from a header,
    that of the call.
    """
    words = [word for word in _WORDS if word in text]
    has_addresses = _MAY_BE_ADDRESS.search(text) is not None
    names_code = _names_code(text)
    if not words and not has_addresses and names_code is None:
        return ()
    suspicious = re.compile("|".join(map(re.escape, words)) if words else r"(?!)")
    bare = plain(text)
    outside = {match["name"] for match in _EXTERN.finditer(bare)}
    statements = tuple(statements_of(bare))
    policies = _policies([statement for statement, _ in statements]) if "cache_hint" in bare else {}
    of_clocks = _WAITS if "mbarrier." in bare else ""
    found = (
        Finding(rule, message + (of_clocks if rule == "clock" else ""), statement, line)
        for statement, line in statements
        if suspicious.search(statement) is not None
        for rule, message in _broken_by(statement, outside, policies)
    )
    by_name = (_names_code_of(statement, names_code) for statement, _ in statements) if names_code is not None else ()
    return (
        *found,
        *(_by_address(statements) if has_addresses else ()),
        *(
            Finding("code-address", _OWN_NAME if statement.startswith(".reg") else _TAKEN, statement, line)
            for (statement, line), is_found in zip(statements, by_name, strict=False)
            if is_found
        ),
    )


_TAKEN = "takes the address of a function"
_OWN_NAME = "gives a register the name of a function, whose address it may take by it: rename the register"


def _names_code(text: str) -> re.Pattern[str] | None:
    """What finds the names of functions, where one stands in more places than where it is defined and called."""
    names = {match["name"] for match in _DEFINED.finditer(text)}
    if not names:
        return None
    # A kernel may have the name of an instruction, behind which its types stand.
    pattern = re.compile(rf"(?<![\w$.%])(?:{'|'.join(map(re.escape, sorted(names)))})(?![\w$.])")
    expected = sum(match["name"] in names for match in _DEFINED.finditer(text))
    expected += sum(match["target"] in names for match in _CALL.finditer(text))
    return pattern if sum(1 for _ in pattern.finditer(text)) != expected else None


def _names_code_of(statement: str, names: re.Pattern[str]) -> bool:
    """Whether a statement names a function other than to define it or to call it."""
    left = _DEFINED.sub(" ", statement)
    called = _CALL.search(left)
    if called is not None:
        left = left[: called.start("target")] + left[called.end("target") :]
    return names.search(_OPCODE.sub("", left)) is not None


def lint_sass(sass: Sass) -> tuple[Finding, ...]:
    """Everything in machine code that breaks a rule; finds what inline assembly hid from `lint_ptx`.

    Policies are constants in registers there, so `cache-policy` is PTX's alone. Traps in functions that the compiler adds
    for itself (`$__internal_...`, around tensor memory) do not count.
    """
    findings = []
    for name, function in sass.functions.items():
        for instruction in function:
            found = _machine_rule(instruction)
            if found is not None and not (found[0] == "trap" and "$__internal_" in name):
                findings.append(Finding(*found, instruction.text, instruction.line))
    return tuple(findings)


def _broken_by(statement: str, outside: set[str], policies: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Rules that one statement breaks, each with a message."""
    if match := _CLOCK.search(statement):
        yield "clock", f"reads {match[0]}"
    if match := _WHICH_CALL.search(statement):
        yield "call-number", f"reads {match[0]}"
    if match := _RESERVED.search(statement):
        message = f"reads {match[0]}, where shared memory of the system's lies: declare a __shared__ array"
        yield "local-memory", f"{message} (tiles of cooperative groups of more than 32 threads need it)"
    if _EVICT_LAST.search(statement):
        yield "cache-policy", "keeps data in L2 beyond its turn (evict_last)"
    elif match := _HINTED.search(statement):
        kind = _policy_kind(match["value"], policies)
        if kind != "harmless":
            yield "cache-policy", f"gives a hint to L2 by a policy that {_POLICY_WORDS[kind]}"
    if match := _PREFETCH.search(statement):
        yield "prefetch", f"fetches ahead with {match[0].strip('.')}"
    if match := _DEPENDENT.search(statement):
        yield "dependent-launch", f"overlaps launches with {match[0]}"
    if match := _CACHE_LINES.search(statement):
        yield "system-memory", f"changes lines of the cache, or writes for other devices, with {match[0]}"
    if match := _ALLOCA.search(statement):
        yield "local-memory", f"takes local memory with {match['what']}"
    if match := _TRAP.search(statement):
        yield "trap", f"stops the card with {match['what']}"
    match = _CALL.search(statement)
    if match is None or statement.startswith("."):
        return
    if match["target"].startswith("%"):
        yield "indirect-call", "calls a function through a pointer"
    elif match["target"] in outside:
        rule = "device-launch" if _DEVICE_LAUNCH.search(match["target"]) else "outside-call"
        yield rule, f"calls {match['target']}, which is not in the file"


_POLICY_WORDS = {
    "last": "keeps data in L2 beyond its turn",
    "unknown": "cannot be followed to where it is made: use what createpolicy makes in the same function, as it is or chosen "
    "between two, not through memory, a call or arithmetic",
}


def _policies(statements: list[str]) -> dict[str, str]:
    """Register to `harmless`, `last` or `unknown`, for all that a policy, a constant or another such register is put into.

    A register that is set more than once (names in scopes of inline assembly repeat) is as bad as the worst of them; one that
    anything else writes to, arithmetic for instance, is unknown.
    """
    rank = ("harmless", "unknown", "last")
    kinds: dict[str, str] = {}
    moves: list[tuple[str, str]] = []

    def add(register: str, kind: str) -> bool:
        worst = max(kinds.get(register, kind), kind, key=rank.index)
        changed = kinds.get(register) != worst
        kinds[register] = worst
        return changed

    for statement in statements:
        if match := _POLICY.search(statement):
            is_last = _EVICT_LAST.search(statement) is not None
            add(match["register"], "last" if is_last else "unknown" if match["form"] == "cvt" else "harmless")
        elif FUNCTION.search(statement):
            for match in _PASSED.finditer(statement):
                add(match["register"], "unknown")
        elif match := _MOVE.search(statement):
            if re.match(r"-?\d", match["value"]):
                add(match["to"], _policy_kind(match["value"], {}))
            else:
                moves.append((match["to"], match["value"]))
        elif match := _CHOICE.search(statement):
            for value in (match["one"], match["two"]):
                if re.match(r"-?\d", value):
                    add(match["to"], _policy_kind(value, {}))
                else:
                    moves.append((match["to"], value))
        elif match := WRITTEN.match(statement):
            for register in re.findall(REGISTER, match["to"]):
                add(register, "unknown")
    known = {*kinds, *(to for to, _ in moves)}
    for to, source in moves:
        if source not in known:
            add(to, "unknown")
    for _ in range(len(moves)):
        changes = [add(to, kinds[source]) for to, source in moves if source in kinds]
        if True not in changes:
            break
    return kinds


def _policy_kind(value: str, policies: dict[str, str]) -> str:
    if not _NUMBER.fullmatch(value):
        return policies.get(value, "unknown")  # a number in another base than 10 or 16 is no register, so it is unknown too
    if len(value) > _LONGEST_NUMBER:
        return "unknown"
    top = (int(value.rstrip("U"), 0) & (1 << 64) - 1) >> 56
    return "harmless" if top in _HARMLESS else "last" if top == _LAST else "unknown"


def _by_address(statements: Sequence[tuple[str, int | None]]) -> Iterator[Finding]:
    """What is done with the address of an argument, other than to hand it to the copy engine as that of a tensor map.

    What the driver keeps lies beside the arguments, so that an address leads there. Registers are followed by name, through
    whatever is computed from them, within one function.
    """
    start = 0
    heads = [at for at, (statement, _) in enumerate(statements) if FUNCTION.search(statement)]
    for end in (*heads, len(statements)):
        part, start = statements[start:end], end
        names = {match["register"] for statement, _ in part if (match := _ADDRESS.search(statement))}
        if names:
            yield from _followed(part, names)


def _followed(statements: Sequence[tuple[str, int | None]], names: set[str]) -> Iterator[Finding]:
    rows = []
    for statement, line in statements:
        if not _OF_MAPS.match(statement):
            match = WRITTEN.match(statement)
            written = set(re.findall(REGISTER, match["to"])) if match is not None else set()
            rows.append((written, set(re.findall(REGISTER, statement)), statement, line))
    n_before = -1
    while len(names) != n_before:
        n_before = len(names)
        for written, every, statement, _ in rows:
            if not names.isdisjoint(every) and not _THROUGH.match(statement) and not names >= written:
                names |= written
    for _, every, statement, line in rows:
        if _THROUGH.match(statement) and not names.isdisjoint(every):
            yield Finding(
                "call-number", "follows the address of an argument, beside which the driver keeps more", statement, line
            )


def _machine_rule(instruction: Instruction) -> tuple[str, str] | None:
    """The rule that one machine instruction breaks, and a message."""
    base, modifiers = instruction.base, instruction.modifiers
    if match := _SASS_CLOCK.search(instruction.operands):
        return "clock", f"reads {match[0]}"
    if base == "PMTRIG":
        return "clock", "counts an event"
    if base in ("UBLKPF", "UTMAPF") or "LTC256B" in modifiers:
        return "prefetch", f"fetches ahead with {instruction.opcode}"
    if base == "CCTL" and any(m.startswith("PF") or m == "PML2" for m in modifiers):
        return "prefetch", f"fetches ahead with {instruction.opcode}"
    if base == "CCTL" and any(m in ("DML2", "RML2") for m in modifiers):
        return "system-memory", f"changes lines of the cache with {instruction.opcode}"
    if base in ("PREEXIT", "ACQBULK"):
        return "dependent-launch", f"overlaps launches with {base}"
    if base in _TEXTURES:
        return "texture", f"uses a texture or a surface with {instruction.opcode}"
    if base == "BPT":
        return "trap", f"stops the card with {instruction.opcode}"
    if base == "CALL" and re.match(r"U?R\d", instruction.operands):
        return "outside-call", "calls a function that is not in the file, or one through a pointer"
    return None
