"""What is refused before the compiler sees a source: launches that do not fit, includes, directives, assembly, flags."""

from __future__ import annotations

import re

from evo_l2.errors import KernelError
from evo_l2.evaluation import Status, Verdict
from evo_l2.kernel import LONGEST_SOURCE_BYTES, Kernel
from evo_l2.launch import Launch, Role
from evo_l2.problem import Problem

__all__ = ["ALLOWED_FLAGS", "ALLOWED_HEADERS", "screen"]

ALLOWED_HEADERS = frozenset(
    {
        "stdint.h", "stddef.h", "stdbool.h", "limits.h", "float.h", "math.h", "string.h",
        "immintrin.h", "x86intrin.h", "emmintrin.h", "xmmintrin.h", "arm_neon.h",
    }
)  # fmt: skip

ALLOWED_FLAGS = frozenset(
    {
        "-O1", "-O2", "-O3", "-Ofast", "-ffast-math", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math",
        "-fno-math-errno", "-freciprocal-math", "-ffinite-math-only", "-ffp-contract=fast", "-ffp-contract=off",
        "-funroll-loops", "-fno-unroll-loops", "-fno-tree-vectorize", "-ftree-vectorize", "-fpeel-loops",
        "-fomit-frame-pointer", "-fno-strict-aliasing", "-fprefetch-loop-arrays", "-mprefer-vector-width=128",
        "-mprefer-vector-width=256", "-mprefer-vector-width=512", "-fopenmp-simd",
    }
)  # fmt: skip

_DIRECTIVES = frozenset({"define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning"})
_PRAGMA = re.compile(r"(GCC\s+(unroll\s+\w+|ivdep)|omp\s+simd\b.*|clang\s+loop\b.*|STDC\s+FP_CONTRACT\s+\w+|unroll\b.*)")
_WORDS = {
    "asm": ("assembly", "inline assembly"),
    "__asm": ("assembly", "inline assembly"),
    "__asm__": ("assembly", "inline assembly"),
    "__has_include": ("includes", "a look at the file system"),
    "__has_include_next": ("includes", "a look at the file system"),
    "__has_embed": ("includes", "a look at the file system"),
    "__FILE__": ("directives", "the name of a file"),
    "__BASE_FILE__": ("directives", "the name of a file"),
    "__DATE__": ("directives", "the date"),
    "__TIME__": ("directives", "the time"),
    "__TIMESTAMP__": ("directives", "the time"),
    "setjmp": ("symbols", "setjmp"),
    "longjmp": ("symbols", "longjmp"),
}
_ATTRIBUTES = ("constructor", "destructor", "ifunc", "section", "alias", "weak", "cleanup", "target_clones", "copy", "symver")
_ATTRIBUTE = re.compile(rf"\b_*({'|'.join(_ATTRIBUTES)})_*\b")
_PRAGMA_WORDS = re.compile(
    r"\b(dependency|pch_preprocess|poison|system_header|redefine_extname|weak|push_macro|pop_macro|include_alias|ident|target)\b"
)
"""A macro may hand any text to `_Pragma`, so where a file uses it these words are refused anywhere."""
_RAW_STRING = re.compile(r"\b(?:u8|[uUL])?R(?:\\[ \t]*\n)*\"")
"""A compiler ends a raw string elsewhere than any other, so what follows it would be read differently here."""
_TOKEN = re.compile(r"[A-Za-z_]\w*")
_DIGRAPHS = (("%:%:", "##"), ("%:", "#"), ("??=", "#"), ("??/", "\\"))
_ROLES = {Role.IN: "in", Role.OUT: "out"}


def screen(kernel: Kernel, problem: Problem) -> Verdict | None:
    """The reason to refuse a kernel by its source, or None."""
    if len(kernel.source) > LONGEST_SOURCE_BYTES:
        return _refused("size", f"the source is longer than {LONGEST_SOURCE_BYTES} bytes")
    try:
        launch = kernel.launch
        _ = kernel.tunables
        for sizes in problem.cases:
            names = dict(zip(problem.size_symbols, sizes, strict=True))
            launch.workspace_bytes({**kernel.constants, **names})
    except KernelError as error:
        return _refused("launch", str(error))
    return _check_launch(launch, problem) or _check_flags(launch) or _check_text(kernel.source)


def _refused(gate: str, message: str) -> Verdict:
    return Verdict(Status.REJECTED, gate, message)


def _check_launch(launch: Launch, problem: Problem) -> Verdict | None:
    if launch.layout not in problem.layouts:
        return _refused("launch", f"layout {launch.layout} is not admitted here; expected {' or '.join(problem.layouts)}")
    if len(launch.calls) != 1:
        return _refused("launch", f"expected one launch line on this target, found {len(launch.calls)}")
    call = launch.calls[0]
    operands = {operand.name: operand for operand in problem.operands}
    for argument in call.arguments:
        operand = operands.get(argument.name)
        if argument.role is Role.SIZE and argument.name not in problem.size_symbols:
            known = ", ".join(problem.size_symbols)
            return _refused("launch", f"{argument.name} is no size symbol ({known}) and has no role (in, out, workspace)")
        if argument.role in _ROLES and (operand is None or operand.role is not argument.role):
            known = ", ".join(f"{o.name}: {o.role.value}" for o in problem.operands)
            return _refused("launch", f"{argument.name}: {argument.role.value} is no operand here; expected {known}")
    missing = [o.name for o in problem.operands if o.name not in {a.name for a in call.arguments}]
    return _refused("launch", f"the launch does not pass {', '.join(missing)}") if missing else None


def _check_flags(launch: Launch) -> Verdict | None:
    for flag in launch.flags:
        if flag not in ALLOWED_FLAGS:
            return _refused("flags", f"the compiler flag {flag[:60]} is not on the list: {' '.join(sorted(ALLOWED_FLAGS))}")
    return None


def _check_text(source: str) -> Verdict | None:
    for old, new in _DIGRAPHS:
        source = source.replace(old, new)
    raw = _RAW_STRING.search(source)
    if raw is not None:
        at = source.count("\n", 0, raw.start()) + 1
        return _refused("directives", f"line {at}: raw strings are not allowed")
    for number, line in _lines(source):
        verdict = _check_directive(number, line) if line.lstrip().startswith("#") else None
        verdict = verdict or _check_words(number, line)
        if verdict is not None:
            return verdict
    return _check_whole(source)


def _check_whole(source: str) -> Verdict | None:
    """Attributes and pragmas may be spread over lines and macros, so names are refused anywhere once a file has any."""
    text = "\n".join(line for _, line in _lines(source))
    pragma = _PRAGMA_WORDS.search(text) if "_Pragma" in text else None
    if pragma is not None:
        return _refused("directives", f"the pragma {pragma.group(1)} is not allowed")
    match = _ATTRIBUTE.search(text) if "__attribute" in text or "[[" in text else None
    if match is None:
        return None
    return _refused("attributes", f"the attribute {match.group(1)} is not allowed")


def _lines(source: str) -> list[tuple[int, str]]:
    """Logical lines without comments, with the number of the line each begins on."""
    spliced: list[tuple[int, str]] = []
    pending: tuple[int, str] | None = None
    for number, text in enumerate(source.split("\n"), start=1):
        start, head = pending if pending is not None else (number, "")
        stripped = text.rstrip(" \t\r\v\f")
        if stripped.endswith("\\"):
            pending = (start, head + stripped[:-1])
            continue
        spliced.append((start, head + text))
        pending = None
    if pending is not None:
        spliced.append(pending)
    result = []
    in_comment = False
    for number, text in spliced:
        clean, in_comment = _strip_comments(text, in_comment)
        result.append((number, clean))
    return result


def _strip_comments(text: str, in_comment: bool) -> tuple[str, bool]:
    """The line without comments and string contents; whether a block comment goes on after it."""
    out: list[str] = []
    at = 0
    while at < len(text):
        if in_comment:
            end = text.find("*/", at)
            if end < 0:
                return "".join(out), True
            at, in_comment = end + 2, False
            out.append(" ")
        elif text.startswith("//", at):
            break
        elif text.startswith("/*", at):
            at, in_comment = at + 2, True
        elif text[at] in "\"'":
            match = re.compile(rf"{text[at]}(?:\\.|[^\\{text[at]}])*{text[at]}?").match(text, at)
            assert match is not None
            out.append(match.group())
            at = match.end()
        else:
            out.append(text[at])
            at += 1
    return "".join(out), in_comment


def _check_directive(number: int, line: str) -> Verdict | None:
    match = re.match(r"\s*#\s*(\w*)\s*(.*?)\s*$", line, re.DOTALL)
    assert match is not None
    word, rest = match.groups()
    if word == "include":
        header = re.fullmatch(r"[<\"]([\w./+-]+)[>\"]", rest)
        if header is None or header.group(1) not in ALLOWED_HEADERS:
            known = ", ".join(sorted(ALLOWED_HEADERS))
            return _refused("includes", f"line {number}: only these headers may be included: {known}")
        return None
    if word == "pragma":
        return None if _PRAGMA.fullmatch(rest) else _refused("directives", f"line {number}: this pragma is not allowed")
    if not word and not rest:
        return None
    return None if word in _DIRECTIVES else _refused("directives", f"line {number}: #{word or rest[:20]} is not allowed")


def _check_words(number: int, line: str) -> Verdict | None:
    bare = re.sub(r"\"(?:\\.|[^\\\"])*\"?", '""', line)
    if "##" in bare:
        return _refused("directives", f"line {number}: pasting tokens with ## is not allowed")
    words = set(_TOKEN.findall(bare))
    for word in words:
        if word in _WORDS:
            gate, what = _WORDS[word]
            return _refused(gate, f"line {number}: {what} is not allowed")
        if word in ("include_next", "import", "embed") and bare.lstrip().startswith("#"):
            return _refused("includes", f"line {number}: #{word} is not allowed")
    return None
