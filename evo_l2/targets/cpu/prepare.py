"""A candidate's way up to its first run: screen, build, read the machine code, gate."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from evo_l2.contracts import Prepared
from evo_l2.evaluation import BuildReport, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem
from evo_l2.targets.cpu.compiler import Compiler
from evo_l2.targets.cpu.machine_code import gate_machine_code, read_machine_code, resources_of
from evo_l2.targets.cpu.screen import screen
from evo_l2.targets.cpu.shared_object import gate_shared_object, read_shared_object

__all__ = ["prepare"]


def prepare(kernel: Kernel, problem: Problem, compiler: Compiler) -> Prepared:
    """Everything that can be known of a kernel before it runs.

    Raises:
        ToolchainError: Compiler or disassembler is at fault.
        StorageError: The build cache cannot be written.
    """
    refused = screen(kernel, problem)
    if refused is not None:
        return Prepared(kernel, None, refused)
    built = compiler.build(kernel, problem)
    if isinstance(built, Verdict):
        return Prepared(kernel, None, built)
    code = read_machine_code(built.kernel_object, compiler.toolchain)
    spaces = _workspaces(kernel, problem)
    resources = resources_of(code, built.stack_bytes)
    resources["workspace_bytes"] = max(sum(case) for case in spaces)
    build = BuildReport(built.seconds, built.log, code.digest, resources)
    measures = problem.measures("cpu").values(resources)
    identity = _identity(code.digest, kernel, spaces)
    shared = read_shared_object(built.library)
    refused = gate_machine_code(code, built.stack_bytes, build) or gate_shared_object(shared, build)
    if refused is not None:
        return Prepared(kernel, identity, replace(refused, measures=measures))
    return Prepared(kernel, identity, None, build, measures, built.library)


def _workspaces(kernel: Kernel, problem: Problem) -> list[list[int]]:
    """Bytes of every workspace, case by case."""
    constants = kernel.constants
    result = []
    for sizes in problem.cases:
        names = {**constants, **dict(zip(problem.size_symbols, sizes, strict=True))}
        result.append(list(kernel.launch.workspace_bytes(names).values()))
    return result


def _identity(machine_code: str, kernel: Kernel, spaces: list[list[int]]) -> str:
    """Machine code with its evaluated launch: what two sources share that behave alike."""
    launch = kernel.launch
    arguments = [[argument.name, argument.role.value] for call in launch.calls for argument in call.arguments]
    order = [space.name for space in launch.workspaces]
    for argument in arguments:
        if argument[0] in order:
            argument[0] = f"#{order.index(argument[0])}"
    text = json.dumps([machine_code, launch.layout, arguments, spaces, launch.deterministic], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
