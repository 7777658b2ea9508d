"""Launches that give no dynamic shared memory to kernels that use it: they would read and write beyond what they have."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evo_l2.evaluation import Status, Verdict
from evo_l2.launch import Call
from evo_l2.products import read_product
from evo_l2.targets.cuda.launching.plan import Plan
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt
from evo_l2.targets.cuda.toolchain.nvcc import MOST_PTX_BYTES

__all__ = ["check_dynamic_shared", "dynamic_arrays"]

_ARRAY = re.compile(r"^[ \t]*\.extern\s+\.shared\b[^;\n]*?([\w$]+)[ \t]*\[[ \t]*\][ \t]*;", re.MULTILINE)
_FUNCTION = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak|extern|common)\s+)*\.(?:entry|func)\b\s*(?:\([^)]*\)\s*)?([\w$]+)", re.MULTILINE
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def check_dynamic_shared(calls: Sequence[Call], plans: Sequence[Plan], built: CudaBuilt) -> Verdict | None:
    """The reason why one of the launches has too little, or None.

    Args:
        calls: The launches as they are declared.
        plans: The same launches, evaluated at each case of the problem.
        built: What they launch; an array that no launched code uses is not in its PTX.
    """
    without = [(call, plan) for plan in plans for call, it in zip(calls, plan.launches, strict=True) if it.shared_bytes == 0]
    if not without:
        return None
    arrays = dynamic_arrays(read_product(built.ptx, MOST_PTX_BYTES).decode("utf-8", "replace"))
    for call, plan in without:
        names = arrays.get(call.entry, ())
        if names:
            shown = ", ".join(name[:60] for name in names[:4])
            at = " x ".join(map(str, plan.sizes))
            found = "none" if call.shared is None else f"'//! shared {call.shared.text}', which is 0 bytes at {at}"
            message = (
                f"line {call.line}: {call.entry}: the kernel uses dynamic shared memory (extern __shared__ {shown}) and the "
                f"launch gives it none: expected a line '//! shared BYTES' below the launch line, found {found}"
            )
            return Verdict(Status.UNLAUNCHABLE, "shared-memory", message)
    return None


def dynamic_arrays(ptx: str) -> dict[str, tuple[str, ...]]:
    """The `extern __shared__` arrays that each function of a PTX text uses, by itself or through what it calls."""
    arrays = dict.fromkeys(_ARRAY.findall(ptx))
    if not arrays:
        return {}
    # Comments name functions too: nvcc puts `.globl` with the next one's name behind each.
    ptx = _COMMENT.sub("", ptx)
    heads = list(_FUNCTION.finditer(ptx))
    ends = [*(head.start() for head in heads[1:]), len(ptx)]
    words: dict[str, set[str]] = {}
    for head, end in zip(heads, ends, strict=True):
        words.setdefault(head[1], set()).update(_NAME.findall(ptx, head.end(), end))
    return {name: tuple(array for array in arrays if array in _reached(name, words)) for name in words}


def _reached(name: str, words: dict[str, set[str]]) -> set[str]:
    """Every name that stands in a function, or in one whose name stands there, and so on."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = words.get(waiting.pop(), set()) - found
        found |= new
        waiting += [word for word in new if word in words]
    return found
