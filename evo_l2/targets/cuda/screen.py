"""What is refused before a compiler reads a CUDA source: launches that do not fit, text that asks for more than computing.

What a kernel cannot get around are the gates on what was built (`gates.py`). This comes first because it can say in plain
words, and with a line, what is wrong; and because files can be asked for while the compiler runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from evo_l2.errors import KernelError
from evo_l2.evaluation import Status, Verdict
from evo_l2.kernel import LONGEST_SOURCE_BYTES, Kernel
from evo_l2.launch import Launch, Role
from evo_l2.problem import Problem
from evo_l2.targets.cpu.source import Line, SourceError, logical_lines

__all__ = ["ALLOWED_HEADERS", "SCREEN_GATES", "screen"]

ALLOWED_HEADERS = frozenset(
    {
        "cuda_fp16.h", "cuda_bf16.h", "cuda_pipeline.h", "cuda_pipeline_primitives.h", "cuda_awbarrier.h",
        "cuda_awbarrier_primitives.h", "cooperative_groups.h", "cooperative_groups/memcpy_async.h",
        "cooperative_groups/reduce.h", "mma.h",
        "vector_types.h", "cuda.h", "math_constants.h", "cuda/barrier", "cuda/pipeline", "cuda/ptx",
        "cuda/std/barrier", "cuda/std/cstdint", "cuda/std/type_traits", "cuda/std/utility",
    }
)  # fmt: skip
"""Headers of the toolkit that a kernel may include. They hold device code, or types; `cuda.h` is there for `CUtensorMap`."""

_LIBRARY_HEADER = re.compile(r"(cute|cutlass)(/[a-z0-9_]+)+\.(hpp|h)")
"""CuTe and CUTLASS, where they are installed."""
_DIRECTIVES = frozenset({"define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning"})
_PRAGMA = re.compile(r"unroll\b.*|nounroll|nv_diag_(suppress|default|error|warning)\s+[\w, ]+|once", re.DOTALL)
_PRAGMA_OPERATOR = re.compile(r"\b_Pragma\s*\(\s*\"((?:\\.|[^\"\\])*)\"\s*\)")
_STRING = re.compile(r"\"(?:\\.|[^\"\\])*\"")
_INCLUDE = re.compile(r"\s*(?:#|%:)\s*include\s*<([\w./+-]+)>\s*")
_DIRECTIVE = re.compile(r"\s*(?:#|%:|\?\?=)\s*([^\W\d]\w*)?\s*(.*?)\s*", re.DOTALL)
_WORDS: tuple[tuple[str, str, str], ...] = (
    ("includes", "a look at the file system", r"__has_include(_next)?|__has_embed|__has_cpp_attribute"),
    ("directives", "the name of a file, the date or the time", r"__(BASE_)?FILE(_NAME)?__|__DATE__|__TIME__|__TIMESTAMP__"),
    ("host-code", "host code; a kernel is device code, and the harness launches it", r"__host__|main|__managed__"),
    ("device-launch", "a launch from the device", r"cudaLaunch\w*|cudaGraph\w*|cudaStream\w*|cudaGetParameterBuffer\w*"),
    ("host-code", "the CUDA runtime", r"cuda(Malloc|Free|Memcpy|Memset|Event|Device|Func|Host|Get|Set)\w*"),
    ("output", "printing or ending the program", r"v?printf|puts|assert|__assert\w*|__trap|__brkpt|abort|exit"),
    ("memory", "memory that the harness does not own", r"malloc|free|alloca|__builtin_alloca|new|delete|__nv_\w*malloc"),
    ("clocks", "a clock", r"clock|clock64|__clock\w*|globaltimer|__globaltimer\w*|clock_t|steady_clock|system_clock"),
    ("language", "an exception, a module or run-time type information", r"throw|try|catch|typeid|dynamic_cast|import|module"),
)  # fmt: skip
"""Gate, plain words, and the names refused for it. Macros can make the same names; the gates on what was built see those."""
SCREEN_GATES = frozenset({"size", "text", "launch", "includes", "directives", *(gate for gate, _, _ in _WORDS)})
"""Everything by which a source is refused here."""
_WORD = re.compile("|".join(f"(?P<w{i}>{names})" for i, (_, _, names) in enumerate(_WORDS)))


def screen(kernel: Kernel, problem: Problem, skip: frozenset[str] = frozenset()) -> Verdict | None:
    """The reason to refuse a kernel by its source, or None.

    The launch itself is evaluated by `plan.plan`, which refuses what does not evaluate.

    Args:
        kernel: The source.
        problem: What is computed.
        skip: Some of `SCREEN_GATES` to leave out, for tests of the gates. What does not parse is refused all the same.
    """
    if "size" not in skip and len(kernel.source.encode("utf-8", "replace")) > LONGEST_SOURCE_BYTES:
        return _refused("size", f"the source is longer than {LONGEST_SOURCE_BYTES} bytes")
    if not kernel.source.isascii() and any("\ud800" <= c <= "\udfff" for c in kernel.source):
        return _refused("text", "the source is not valid Unicode")
    try:
        launch = kernel.launch
        _ = kernel.tunables
    except KernelError as error:
        return _refused("launch", str(error))
    refused = None if "launch" in skip else _check_launch(launch, problem)
    return refused or _check_text(kernel.source, skip)


def _refused(gate: str, message: str) -> Verdict:
    return Verdict(Status.REJECTED, gate, message)


def _at(line: int, gate: str, message: str) -> Verdict:
    return _refused(gate, f"line {line}: {message}")


def _check_launch(launch: Launch, problem: Problem) -> Verdict | None:
    """Whether layout and arguments are the problem's."""
    if launch.layout not in problem.layouts:
        return _refused("launch", f"layout {launch.layout} is not admitted here; expected {' or '.join(problem.layouts)}")
    operands = {operand.name: operand for operand in problem.operands}
    maps = {tensor.name: tensor for tensor in launch.tensor_maps}
    spaces = {space.name for space in launch.workspaces}
    reached = {tensor.operand for tensor in launch.tensor_maps}
    for tensor in launch.tensor_maps:
        if tensor.operand not in operands:
            return _refused("launch", f"tensor map {tensor.name} is of {tensor.operand}, which is no operand here")
    for call in launch.calls:
        for argument in call.arguments:
            reached.add(argument.name)
            operand = operands.get(argument.name)
            known = ", ".join(f"{o.name}: {o.role.value}" for o in problem.operands)
            if argument.role is Role.SIZE and argument.name not in problem.size_symbols:
                sizes = ", ".join(problem.size_symbols)
                roles = "in, out, workspace, map"
                return _refused("launch", f"{argument.name} is no size symbol ({sizes}) and has no role ({roles})")
            if argument.role in (Role.IN, Role.OUT) and (operand is None or operand.role is not argument.role):
                return _refused("launch", f"{argument.name}: {argument.role.value} is no operand here; expected {known}")
            if argument.role is Role.WORKSPACE and (operand is not None or argument.name not in spaces):
                hint = "declare it with another name: '//! workspace W bytes'"
                return _refused("launch", f"{argument.name} is no workspace; {hint}")
            if argument.role is Role.MAP and argument.name not in maps:
                hint = "declare it: '//! tensormap TA: A, box BM, BK, swizzle 128, promotion 256'"
                return _refused("launch", f"{argument.name} is no tensor map; {hint}")
    missing = [operand.name for operand in problem.operands if operand.name not in reached]
    return _refused("launch", f"the launches do not pass {', '.join(missing)}") if missing else None


def _check_text(source: str, skip: frozenset[str]) -> Verdict | None:
    try:
        lines = logical_lines(source)
    except SourceError as error:
        return None if "text" in skip else _refused("text", str(error))
    found = (verdict for line in lines for verdict in _faults(line))
    return next((verdict for verdict in found if verdict.gate not in skip), None)


def _faults(line: Line) -> Iterator[Verdict]:
    """Everything that there is against one line."""
    directive = _check_directive(line) if line.is_directive else None
    if directive is not None:
        yield directive
    yield from _check_pragmas(line)
    yield from _check_words(line)


def _check_directive(line: Line) -> Verdict | None:
    match = _DIRECTIVE.fullmatch(line.text)
    word, rest = (match.group(1) or "", match.group(2)) if match is not None else ("", line.text)
    if word == "pragma":
        shown = " ".join(rest.split())[:60]
        return None if _PRAGMA.fullmatch(rest) else _at(line.number, "directives", f"#pragma {shown} is not allowed")
    if word == "include":
        header = _INCLUDE.fullmatch(line.text)
        name = header.group(1) if header is not None else ""
        if name not in ALLOWED_HEADERS and _LIBRARY_HEADER.fullmatch(name) is None:
            known = ", ".join(sorted(ALLOWED_HEADERS))
            message = f"only these headers may be included, between < and >: {known}, and those of cute/ and cutlass/"
            return _at(line.number, "includes", message)
        return None
    if word in _DIRECTIVES or not (word or rest):
        return None
    return _at(line.number, "directives", f"#{word or rest[:20]} is not allowed")


def _check_pragmas(line: Line) -> Iterator[Verdict]:
    """Pragmas written as operators."""
    for match in _PRAGMA_OPERATOR.finditer(line.text):
        verdict = _check_directive(Line(line.number, "#pragma " + re.sub(r"\\(.)", r"\1", match.group(1))))
        if verdict is not None:
            yield verdict


def _check_words(line: Line) -> Iterator[Verdict]:
    for name in sorted(line.names):
        match = _WORD.fullmatch(name)
        if match is not None:
            gate, what = next(_WORDS[i][:2] for i in range(len(_WORDS)) if match.group(f"w{i}") is not None)
            yield _at(line.number, gate, f"{name} is not allowed: {what}")
    if "<<<" in _STRING.sub("", line.text):
        yield _at(line.number, "device-launch", "<<< is not allowed: a launch from the device")
