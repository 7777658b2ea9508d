"""What is refused before a compiler reads a source, or once its preprocessor has.

That is launches that do not fit, and text that asks for more than computing.

The gates of the machine code are what a kernel cannot get around. This comes first because it can say in plain words, and
with a line, what is wrong; and because assembly and files can be asked for while the compiler runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from evo_l2.errors import KernelError
from evo_l2.evaluation import Verdict
from evo_l2.kernel import Kernel
from evo_l2.launch import Launch, Role
from evo_l2.problem import Problem
from evo_l2.targets.screening import (
    DIRECTIVES,
    Words,
    check_layout,
    check_operands,
    check_source,
    directive,
    included,
    not_included,
    pragmas,
    refused,
    refused_at,
)
from evo_l2.targets.source import Line, SourceError, logical_lines

__all__ = ["ALLOWED_ATTRIBUTES", "ALLOWED_FLAGS", "ALLOWED_HEADERS", "screen", "screen_preprocessed"]

ALLOWED_HEADERS = frozenset(
    {
        "stdint.h", "stddef.h", "stdbool.h", "stdalign.h", "limits.h", "float.h", "math.h", "string.h",
        "immintrin.h", "x86intrin.h", "xmmintrin.h", "emmintrin.h", "pmmintrin.h", "tmmintrin.h", "smmintrin.h",
        "nmmintrin.h", "arm_neon.h", "arm_fp16.h", "arm_sve.h",
    }
)  # fmt: skip
"""Headers that a kernel may include."""

ALLOWED_FLAGS = (
    r"-O[123]", r"-Ofast", r"-ffast-math", r"-f(no-)?associative-math", r"-f(no-)?reciprocal-math", r"-f(no-)?signed-zeros",
    r"-f(no-)?trapping-math", r"-f(no-)?math-errno", r"-f(no-)?finite-math-only", r"-f(no-)?unsafe-math-optimizations",
    r"-ffp-contract=(fast|on|off)", r"-f(no-)?unroll-(all-)?loops", r"-f(no-)?peel-loops", r"-f(no-)?split-loops",
    r"-f(no-)?unswitch-loops", r"-f(no-)?tree-(loop-|slp-)?vectorize", r"-f(no-)?tree-loop-distribut(ion|e-patterns)",
    r"-f(no-)?loop-(interchange|unroll-and-jam)", r"-fvect-cost-model=(unlimited|dynamic|cheap|very-cheap)",
    r"-f(no-)?prefetch-loop-arrays", r"-f(no-)?schedule-insns2?", r"-f(no-)?ivopts", r"-f(no-)?rename-registers",
    r"-f(no-)?inline-functions", r"-f(no-)?strict-aliasing", r"-f(no-)?omit-frame-pointer", r"-f(no-)?modulo-sched",
    r"-falign-(loops|functions|jumps)=\d{1,4}", r"-fopenmp-simd", r"-mprefer-vector-width=(none|128|256|512)",
    r"-mtune=(native|generic)", r"-mno-(avx512f|avx2|fma|vzeroupper)",
)  # fmt: skip
"""Compiler flags that a launch may ask for: how to optimise, never what to read, write, link or define. Patterns of the whole
flag."""

ALLOWED_ATTRIBUTES = frozenset(
    {
        "aligned", "always_inline", "artificial", "assume_aligned", "cold", "const", "ext_vector_type", "fallthrough",
        "flatten", "gnu_inline", "hot", "leaf", "may_alias", "mode", "neon_vector_type", "noclone", "noinline", "noipa",
        "nonnull", "nothrow", "optimize", "packed", "pure", "target", "unused", "vector_size", "warn_unused_result",
    }
)  # fmt: skip
"""Attributes that shape code; all others (constructor, section, alias, ifunc, cleanup, weak, ...) are refused."""

_OPTIONS = r"(optimize|target)\s*\(?\s*\"[\w,=+.-]*\"(\s*,\s*\"[\w,=+.-]*\")*\s*\)?"
_PRAGMA = re.compile(
    rf"GCC\s+(unroll\s+\(?\w+\)?|ivdep|{_OPTIONS}|(push|pop|reset)_options)"
    r"|omp\s+simd\b.*|clang\s+(loop|fp)\b.*|STDC\s+FP_CONTRACT\s+\w+|(no)?unroll\b.*",
    re.DOTALL,
)
_BEFORE_INCLUDES = frozenset({"include", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning", "pragma", ""})
_MACRO = re.compile(r"(?:define|undef)\s+([\w$]+)")
_RESERVED = re.compile(r"__\w*|_[A-Z]\w*")
_WORDS = Words((
    ("assembly", "assembly", r"asm|__asm|__asm__"),
    ("includes", "a look at the file system", r"__has_include(_next)?|__has_embed"),
    ("directives", "the name of a file, the date or the time", r"__(BASE_)?FILE(_NAME)?__|__DATE__|__TIME__|__TIMESTAMP__"),
    ("symbols", "a jump out of the kernel", r"setjmp|longjmp|__builtin_(set|long)jmp|__builtin_eh_return"),
    (
        "builtins", "a look at the caller",
        r"__builtin_(frame_address|return_address|extract_return_addr|frob_return_addr|thread_pointer|apply\w*|return|"
        r"unwind_init|dwarf_\w+|call_with_static_chain|stack_address)",
    ),
))  # fmt: skip
"""Gate, plain words, and the names refused for it, in the source and in what its macros make. Clocks and the like are left to
the gate on instructions, which no spelling gets past."""


def screen(kernel: Kernel, problem: Problem) -> Verdict | None:
    """The reason to refuse a kernel by its source, or None."""
    verdict = next(check_source(kernel.source), None)
    if verdict is not None:
        return verdict
    try:
        launch = kernel.launch
        _ = kernel.tunables
        for sizes in problem.cases:
            names = dict(zip(problem.size_symbols, sizes, strict=True))
            launch.workspace_bytes({**kernel.constants, **names})
    except KernelError as error:
        return refused("launch", str(error))
    return (
        check_layout(launch, problem)
        or _check_plain(launch)
        or check_operands(launch, problem, roles=(Role.IN, Role.OUT, Role.WORKSPACE), subject="the launch does")
        or _check_flags(launch)
        or _check_text(kernel.source)
    )


def screen_preprocessed(lines: Iterable[Line]) -> Verdict | None:
    """The reason to refuse a kernel by what its macros made of it, or None.

    Args:
        lines: Those of the preprocessor's output that come from the kernel itself.
    """
    tokens: list[tuple[int, str]] = []
    for line in lines:
        if line.is_directive:
            verdict = _check_directive(line, pragmas_only=True)
            if verdict is not None:
                return verdict
        else:
            tokens += ((line.number, token) for token in line.tokens)
    return next(_WORDS.faults(tokens), None) or _check_attributes(tokens)


def _check_plain(launch: Launch) -> Verdict | None:
    """Whether it is one plain call, with nothing that only a card has."""
    if len(launch.calls) != 1:
        return refused("launch", f"expected one launch line on this target, found {len(launch.calls)}")
    for_cards = _first_line_for_cards(launch)
    if for_cards is not None:
        line, word = for_cards
        message = f"expected a plain call on this target, found '{word}', which is for CUDA alone; remove it"
        return refused_at(line, "launch", message)
    return None


def _first_line_for_cards(launch: Launch) -> tuple[int, str] | None:
    """Line and word of the first thing in a launch that only a card has."""
    call = launch.calls[0]
    found = [(expression.line, "shared") for expression in (call.shared,) if expression is not None]
    found += [(expression.line, "registers") for expression in (launch.max_registers,) if expression is not None]
    for word, shape in (("grid", call.grid), ("block", call.block), ("cluster", call.cluster)):
        found += [(expression.line, word) for expression in shape]
    found += [(tensor.box[0].line, "tensormap") for tensor in launch.tensor_maps]
    found += [(space.size_bytes.line, "zeroed") for space in launch.workspaces if space.zeroed]
    return min(found, default=None)


def _check_flags(launch: Launch) -> Verdict | None:
    allowed = re.compile("|".join(ALLOWED_FLAGS))
    for flag in launch.flags:
        if allowed.fullmatch(flag) is None:
            examples = "-O2 -O3 -Ofast -ffast-math -funroll-loops -mprefer-vector-width=256"
            return refused("flags", f"the compiler flag {flag[:60]} is not allowed; allowed are, for instance, {examples}")
    return None


def _check_text(source: str) -> Verdict | None:
    try:
        lines = logical_lines(source)
    except SourceError as error:
        return refused("text", str(error))
    for line in lines:
        faults = (_check_directive(one) for one in (*((line,) if line.is_directive else ()), *pragmas(line)))
        verdict = next((fault for fault in faults if fault is not None), None)
        verdict = verdict or next(_WORDS.faults((line.number, name) for name in sorted(line.names)), None)
        if verdict is not None:
            return verdict
    return _check_order(lines)


def _check_order(lines: Iterable[Line]) -> Verdict | None:
    """Headers come first: macros and code that stand before one would reach its text, which is not screened."""
    first = 0
    for line in lines:
        word = directive(line)[0] if line.is_directive else None
        if word == "include" and first:
            what = f"#include has to stand before the first #define, #undef and line of code (line {first})"
            return refused_at(line.number, "includes", f"{what}; move it to the top")
        if word not in _BEFORE_INCLUDES:
            first = first or line.number
    return None


def _check_directive(line: Line, *, pragmas_only: bool = False) -> Verdict | None:
    word, rest = directive(line)
    if word == "pragma":
        shown = " ".join(rest.split())[:60]
        return None if _PRAGMA.fullmatch(rest) else refused_at(line.number, "directives", f"#pragma {shown} is not allowed")
    if word == "include" and not pragmas_only:
        if included(line) not in ALLOWED_HEADERS:
            return refused_at(line.number, "includes", not_included(rest, ALLOWED_HEADERS))
        return None
    if not pragmas_only and word in ("define", "undef"):
        name = _MACRO.match(f"{word} {rest}")
        if name is not None and _RESERVED.fullmatch(name.group(1)):
            what = "names with __ or _ and a capital in front belong to the compiler"
            return refused_at(line.number, "directives", f"#{word} {name.group(1)[:40]} is not allowed: {what}")
    if not pragmas_only and (word in DIRECTIVES or not (word or rest)):
        return None
    return refused_at(
        line.number, "directives", f"#{word or rest[:20]} is not allowed{' in a macro' if pragmas_only else ''}"
    )


def _check_attributes(tokens: list[tuple[int, str]]) -> Verdict | None:
    for number, name in _attribute_names(tokens):
        if name not in ALLOWED_ATTRIBUTES:
            known = ", ".join(sorted(ALLOWED_ATTRIBUTES))
            return refused_at(number, "attributes", f"the attribute {name[:40]} is not allowed; allowed are {known}")
    for at, (number, token) in enumerate(tokens):
        if token in ("__declspec", "_Noreturn") or (token == "[" and [t for _, t in tokens[at + 1 : at + 2]] == ["["]):
            return refused_at(
                number, "attributes", f"{token if token != '[' else '[[ ]]'} is not allowed; write __attribute__((...))"
            )
    return None


def _attribute_names(tokens: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Names of all attributes, without their arguments and underscores, each with the line where its list begins.

    One pass, whatever stands within what: a list that is open while another one begins goes on after that.
    """
    open_lists: list[tuple[int, int]] = []
    before = ""
    for number, token in tokens:
        while open_lists and open_lists[-1][1] == 0 and token != "(":
            open_lists.pop()
        if token in ("__attribute__", "__attribute"):
            open_lists.append((number, 0))
        elif open_lists:
            begin, depth = open_lists.pop()
            if depth == 2 and token not in ("(", ")", ",") and before in ("(", ","):
                yield begin, token[2:-2] if len(token) > 4 and token.startswith("__") and token.endswith("__") else token
            depth += {"(": 1, ")": -1}.get(token, 0)
            if depth > 0:
                open_lists.append((begin, depth))
        before = token
