"""What is refused before a compiler reads a CUDA source: launches that do not fit, text that asks for more than computing.

What a kernel cannot get around are the gates on what was built (`gates.py`). This comes first because it can say in plain
words, and with a line, what is wrong; and because files can be asked for while the compiler runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from evo_l2.errors import KernelError
from evo_l2.evaluation import Verdict
from evo_l2.kernel import Kernel
from evo_l2.launch import Role
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

__all__ = ["ALLOWED_HEADERS", "SCREEN_GATES", "screen"]

ALLOWED_HEADERS = frozenset(
    {
        "cuda_fp16.h", "cuda_bf16.h", "cuda_pipeline.h", "cuda_pipeline_primitives.h",
        "cuda_awbarrier_primitives.h", "cooperative_groups.h", "cooperative_groups/memcpy_async.h",
        "cooperative_groups/reduce.h", "mma.h",
        "vector_types.h", "cuda.h", "math_constants.h", "cuda/barrier", "cuda/pipeline", "cuda/ptx",
        "cuda/std/cstdint", "cuda/std/type_traits", "cuda/std/utility",
    }
)  # fmt: skip
"""Headers of the toolkit that a kernel may include. They hold device code, or types; `cuda.h` is there for `CUtensorMap`."""

_LIBRARY_HEADER = re.compile(r"(cute|cutlass)(/[a-z0-9_]+)+\.(hpp|h)")
"""CuTe and CUTLASS, where they are installed."""
_OF_HOST = {
    "cstdint": "cuda/std/cstdint", "stdint.h": "cuda/std/cstdint", "type_traits": "cuda/std/type_traits",
    "utility": "cuda/std/utility", "barrier": "cuda/std/barrier",
}  # fmt: skip
"""Headers of the host's library to those that a card has instead."""
_LIBRARIES = re.compile(r"(cublas|cudnn|cufft|curand|cusparse|cusolver|cutensor|nccl|thrust/|cub/|torch/|ATen/)[\w./-]*")
_PRAGMA = re.compile(r"unroll\b.*|nounroll|nv_diag_(suppress|default|error|warning)\s+[\w, ]+|once", re.DOTALL)
_ROLES = (Role.IN, Role.OUT, Role.WORKSPACE, Role.MAP)
_STRING = re.compile(r"\"(?:\\.|[^\"\\])*\"")
_WORDS = Words((
    ("includes", "a look at the file system", r"__has_include(_next)?|__has_embed|__has_cpp_attribute"),
    ("directives", "the name of a file, the date or the time",
     r"__(BASE_)?FILE(_NAME)?__|__DATE__|__TIME__|__TIMESTAMP__|__builtin_(FILE(_NAME)?|source_location)"),
    ("host-code", "host code; a kernel is device code, and the harness launches it", r"__host__|main|__managed__"),
    ("device-launch", "a launch from the device", r"cudaLaunch\w*|cudaGraph\w*|cudaStream\w*|cudaGetParameterBuffer\w*"),
    ("host-code", "the CUDA runtime", r"cuda(Malloc|Free|Memcpy|Memset|Event|Device|Func|Host|Get|Set)\w*"),
    ("output", "printing or ending the program", r"v?printf|puts|assert|__assert\w*|__trap|__brkpt|abort|exit"),
    ("memory", "memory that the harness does not own", r"malloc|free|alloca|__builtin_alloca|new|delete|__nv_\w*malloc"),
    ("clocks", "a clock", r"clock|clock64|__clock\w*|globaltimer|__globaltimer\w*|clock_t|steady_clock|system_clock"),
    ("language", "an exception, a module or run-time type information", r"throw|try|catch|typeid|dynamic_cast|import|module"),
))  # fmt: skip
"""Gate, plain words, and the names refused for it. Macros can make the same names; the gates on what was built see those."""
_PASTES = re.compile(r"##|%:%:|\b\w*(?:CAT|PASTE|JOIN|GLUE)\w*\s*\(", re.IGNORECASE)
_PIECES = frozenset(
    word[:length]
    for word in ("__BASE_FILE__", "__FILE__", "__FILE_NAME__", "__DATE__", "__TIME__", "__TIMESTAMP__")
    for length in range(1, len(word))
)
"""What the names of files and times begin with: without one of these no macro can put such a name together."""
SCREEN_GATES = frozenset({"size", "text", "launch", "includes", "directives", *_WORDS.gates})
"""Everything by which a source is refused here."""


def screen(kernel: Kernel, problem: Problem, skip: frozenset[str] = frozenset()) -> Verdict | None:
    """The reason to refuse a kernel by its source, or None.

    The launch itself is evaluated by `launching.plan.plan`, which refuses what does not evaluate.

    Args:
        kernel: The source.
        problem: What is computed.
        skip: Some of `SCREEN_GATES` to leave out, for tests of the gates. What does not parse is refused all the same.
    """
    verdict = next((verdict for verdict in check_source(kernel.source) if verdict.gate not in skip), None)
    if verdict is not None:
        return verdict
    try:
        launch = kernel.launch
        _ = kernel.tunables
    except KernelError as error:
        return refused("launch", str(error))
    if "launch" not in skip:
        verdict = check_layout(launch, problem) or check_operands(launch, problem, roles=_ROLES, subject="the launches do")
    return verdict or _check_text(kernel.source, skip)


def _check_text(source: str, skip: frozenset[str]) -> Verdict | None:
    try:
        lines = logical_lines(source)
    except SourceError as error:
        return None if "text" in skip else refused("text", str(error))
    # Most sources hold nothing that is looked for, which one look at the whole tells; then only directives are left.
    text = "\n".join(line.text for line in lines)
    if "directives" not in skip and _PASTES.search(text) is not None:
        for line in lines:
            for name in sorted(line.names & _PIECES):
                what = "a piece of the name of a file, the date or the time, which a macro can put together"
                return refused_at(line.number, "directives", f"{name} is not allowed: {what}")
    if not (_WORDS.may_be_in(text) or "_Pragma" in text or "<<<" in text):
        lines = tuple(line for line in lines if line.is_directive)
    found = (verdict for line in lines for verdict in _faults(line))
    return next((verdict for verdict in found if verdict.gate not in skip), None)


def _faults(line: Line) -> Iterator[Verdict]:
    """Everything that there is against one line."""
    for one in (*((line,) if line.is_directive else ()), *pragmas(line)):
        verdict = _check_directive(one)
        if verdict is not None:
            yield verdict
    yield from _WORDS.faults((line.number, name) for name in sorted(line.names))
    if "<<<" in _STRING.sub("", line.text):
        yield refused_at(line.number, "device-launch", "<<< is not allowed: a launch from the device")


def _check_directive(line: Line) -> Verdict | None:
    word, rest = directive(line)
    if word == "pragma":
        shown = " ".join(rest.split())[:60]
        return None if _PRAGMA.fullmatch(rest) else refused_at(line.number, "directives", f"#pragma {shown} is not allowed")
    if word == "include":
        name = included(line) or ""
        if name not in ALLOWED_HEADERS and _LIBRARY_HEADER.fullmatch(name) is None:
            message = not_included(rest, ALLOWED_HEADERS, ", and those of cute/ and cutlass/", _advice(name))
            return refused_at(line.number, "includes", message)
        return None
    if word in DIRECTIVES or not (word or rest):
        return None
    return refused_at(line.number, "directives", f"#{word or rest[:20]} is not allowed")


def _advice(header: str) -> str:
    """What to do instead of including a header that is often asked for; empty for any other."""
    if header in _OF_HOST:
        return f"write #include <{_OF_HOST[header]}>"
    return "no libraries: a kernel computes the product itself" if _LIBRARIES.fullmatch(header) else ""
