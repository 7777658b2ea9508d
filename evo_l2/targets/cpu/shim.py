"""The harness's entry of a kernel: calls the kernel's own entry with its arguments in its order."""

from __future__ import annotations

from evo_l2.errors import ConfigurationError
from evo_l2.kernel import Kernel
from evo_l2.launch import Argument, Role
from evo_l2.problem import Problem

__all__ = ["ENTRY", "shim"]

ENTRY = "evo_entry"
"""Takes the operands' and then the workspaces' addresses, and the sizes, all in the order of the problem and the launch."""
_C_TYPES = {
    "float16": "_Float16", "float32": "float", "float64": "double", "int8": "signed char", "uint8": "unsigned char",
    "int16": "short", "int32": "int", "int64": "long long",
}  # fmt: skip


def shim(kernel: Kernel, problem: Problem) -> str:
    """C text to stand behind the preprocessed kernel, where no macro of the kernel's reaches it.

    In the kernel's own translation unit the compiler knows the entry's declaration: it checks the types of the operands, and
    converts sizes to whatever integer type the entry takes. Errors are reported at the launch line.

    Raises:
        ConfigurationError: An operand's type has no name in C.
    """
    launch = kernel.launch
    call = launch.calls[0]
    spaces = [space.name for space in launch.workspaces]
    values = ", ".join(_value(argument, problem, spaces) for argument in call.arguments)
    return (
        ";\n"
        f'__attribute__((visibility("default"))) void {ENTRY}(void *const *buffers, const long long *sizes);\n'
        f"void {ENTRY}(void *const *buffers, const long long *sizes)\n"
        "{\n(void)buffers; (void)sizes;\n"
        f'# {_launch_line(kernel.source)} "kernel.c"\n'
        f"{call.entry}({values});\n"
        "}\n"
    )


def _value(argument: Argument, problem: Problem, spaces: list[str]) -> str:
    if argument.role is Role.SIZE:
        return f"sizes[{problem.size_symbols.index(argument.name)}]"
    if argument.role is Role.WORKSPACE:
        return f"buffers[{len(problem.operands) + spaces.index(argument.name)}]"
    index, operand = next((i, o) for i, o in enumerate(problem.operands) if o.name == argument.name)
    if operand.dtype not in _C_TYPES:
        known = ", ".join(_C_TYPES)
        raise ConfigurationError("an operand's type cannot be used on this target", expected=known, found=operand.dtype)
    return f"({_C_TYPES[operand.dtype]} *)buffers[{index}]"


def _launch_line(source: str) -> int:
    lines = enumerate(source.split("\n"), start=1)
    return next(
        (n for n, line in lines if line.lstrip().startswith("//!") and line.split("//!", 1)[1].split()[:1] == ["launch"]), 1
    )
