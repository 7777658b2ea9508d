"""Device code out of a PyTorch extension, as Sakana's AI CUDA Engineer archive holds them, where it fits our launch grammar.

An extension is host and device code in one: tensors are checked, a grid is worked out, one or several kernels are launched.
What can be taken over is one kernel whose operands are those of the problem and whose launch can be said in the grammar; for
everything else the reason is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["COLUMNS", "Taken", "take_over"]

COLUMNS = (
    "Op_Name", "Level_ID", "Task_ID", "Kernel_Name", "CUDA_Runtime", "PyTorch_Native_Runtime", "PyTorch_Compile_Runtime",
    "CUDA_Speedup_Native", "CUDA_Speedup_Compile", "CUDA_Code", "PyTorch_Code_Module", "PyTorch_Code_Functional", "Correct",
    "Max_Diff", "Error", "NCU_Profile", "Torch_Profile", "Clang_Tidy", "__index_level_0__",
)  # fmt: skip
"""The columns of the archive; `CUDA_Code` holds the extension."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HOST_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10|pybind11|cuda_runtime|vector|iostream)[^\n]*\n?", re.M
)
_KERNEL = re.compile(
    r"(?P<template>template[ \t]*<[^>]*>\s*)?(?:extern[ \t]*\"C\"\s*)?(?:static\s+|inline\s+)*__global__\s+"
    r"(?:void\s+)?(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:void\s+)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)"
)
_LAUNCH = re.compile(r"(?P<name>\w+)\s*(?:<[^<>;]*>\s*)?<<<(?P<shape>.*?)>>>\s*\(", re.DOTALL)
_DIM3 = re.compile(
    r"\bdim3\s+(?P<name>\w+)\s*(?:\((?P<round>[^;]*)\)|\{(?P<curly>[^;]*)\}|=\s*dim3\s*\((?P<equals>[^;]*)\))\s*;"
)
_HALF = re.compile(r"\b(?:__half|half|at::Half|c10::Half)\b")
_SIZES = ("M", "N", "K", "BATCH")
_HOST_BLOCK = re.compile(r"^[^\n#;{}]*(?:torch::|at::|std::vector)[^;{}]*\{|^[ \t]*PYBIND11_MODULE[^{]*\{", re.M)


@dataclass(frozen=True, slots=True)
class Taken:
    """A source in the launch grammar, or why there is none."""

    source: str | None
    reason: str | None = None


def take_over(code: str) -> Taken:
    """The device code of an extension with our launch lines before it; never raises."""
    text = _COMMENT.sub(" ", code.replace("\r\n", "\n"))
    kernels = list(_KERNEL.finditer(text))
    if not kernels:
        return Taken(None, "it has no __global__ function: what it computes is done by a library or by the host")
    launches = list(_LAUNCH.finditer(text))
    if len(kernels) != 1 or len(launches) != 1:
        found = f"{len(kernels)} kernels and {len(launches)} launches"
        return Taken(None, f"it has {found}; one kernel that is launched once can be taken over")
    kernel, launch = kernels[0], launches[0]
    if kernel["template"]:
        return Taken(None, "its kernel is a template, which only host code makes a kernel of")
    arguments = _arguments(kernel["parameters"])
    if isinstance(arguments, str):
        return Taken(None, arguments)
    shape = _shape(text, launch["shape"])
    if isinstance(shape, str):
        return Taken(None, shape)
    device = _device_code(text)
    if device is None:
        return Taken(None, "its host code cannot be told from its device code: braces are not balanced")
    grid, block, shared = shape
    lines = [
        "//! layout nn",
        f"//! launch {kernel['name']}({', '.join(arguments)})",
        f"//! grid {grid}",
        f"//! block {block}",
    ]
    lines += [f"//! shared {shared}"] if shared not in ("0", "") else []
    return Taken("\n".join(lines) + "\n#include <cuda_fp16.h>\n" + device)


def _arguments(parameters: str) -> list[str] | str:
    """The arguments of the launch line, in order of the kernel's parameters; or the reason why there are none."""
    inputs = iter(("A", "B"))
    arguments: list[str] = []
    for parameter in (" ".join(part.split()) for part in parameters.split(",")):
        if "*" in parameter:
            if _HALF.search(parameter) is None:
                kind = parameter.replace("const", "").split("*")[0].strip() or parameter
                return f"its operands are {kind}, the problem's are half"
            name = next(inputs, None) if "const" in parameter else "C"
            if name is None:
                return "it reads more than two operands"
            arguments.append(f"{name}: {'out' if name == 'C' else 'in'}")
            continue
        words = parameter.split()
        size = words[-1].upper() if words else ""
        if size not in _SIZES or not set(words[:-1]) <= {"const", "int", "int32_t"}:
            return f"its parameter '{parameter}' is neither an operand nor one of the sizes {', '.join(_SIZES)}"
        arguments.append(size)
    if [argument[0] for argument in arguments if ":" in argument].count("C") != 1 or "A: in" not in arguments:
        return "its operands are not two that are read and one that is written"
    return arguments if "B: in" in arguments else "its operands are not two that are read and one that is written"


def _shape(text: str, shape: str) -> tuple[str, str, str] | str:
    """Grid, block and shared memory as expressions; or why they cannot be said."""
    named = {m["name"]: " ".join((m["round"] or m["curly"] or m["equals"] or "").split()) for m in _DIM3.finditer(text)}
    parts = _split(shape)
    if len(parts) < 2:
        return "its launch has no grid and block"
    grid, block = (_dimensions(part, named) for part in parts[:2])
    for said in (grid, block):
        if re.search(r"\b(?:size|sizes|data_ptr|std|static_cast|ceil)\b|\.|->|::", said):
            return f"its launch is worked out by host code: '{said}'"
    return grid, block, parts[2] if len(parts) > 2 else "0"


def _dimensions(part: str, named: Mapping[str, str]) -> str:
    inside = re.fullmatch(r"dim3\s*\((.*)\)", part)
    return named.get(part, inside.group(1) if inside else part)


def _split(text: str) -> list[str]:
    """What stands between the commas that no bracket holds."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [" ".join(part.split()) for part in parts]


def _device_code(text: str) -> str | None:
    """The text without includes of the host's headers, without functions on tensors, and without the module."""
    text = _HOST_INCLUDE.sub("", text)
    while (found := _HOST_BLOCK.search(text)) is not None:
        depth, at = 1, found.end()
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if depth:
            return None
        text = text[: found.start()] + text[at:]
    kernel = _KERNEL.search(text)
    if kernel is None:
        return None
    if 'extern "C"' not in kernel.group():
        text = text[: kernel.start()] + 'extern "C" ' + text[kernel.start() :].lstrip()
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip()) + "\n"
