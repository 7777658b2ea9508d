"""A CUDA candidate's way up to its first launch: screen, plan, build, read the machine code, gate."""

from __future__ import annotations

from dataclasses import replace

from evo_l2.contracts import Prepared
from evo_l2.evaluation import BuildReport, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem
from evo_l2.targets.cuda.cards import Card
from evo_l2.targets.cuda.inspection import inspect
from evo_l2.targets.cuda.launching.dynamic_shared import check_dynamic_shared
from evo_l2.targets.cuda.launching.measures import launch_facts
from evo_l2.targets.cuda.launching.plan import check_plan, identity, plan_cases
from evo_l2.targets.cuda.reading.gates import first_refusal
from evo_l2.targets.cuda.screen import screen
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler

__all__ = ["prepare"]

_LONGEST_LOG = 4000


def prepare(
    kernel: Kernel, problem: Problem, compiler: CudaCompiler, card: Card, skip: frozenset[str] = frozenset()
) -> Prepared:
    """Everything that can be known of a kernel before it is launched.

    Args:
        kernel: The source.
        problem: What is computed.
        compiler: Builds it.
        card: What it would run on; its architecture is built for.
        skip: Gates on source and machine code to leave out; for tests of the gates.

    Raises:
        ToolchainError: Compiler or disassembler is at fault.
        StorageError: The build cache cannot be written.
    """
    refused = screen(kernel, problem, skip)
    if refused is not None:
        return Prepared(kernel, None, refused)
    plans = plan_cases(kernel, problem, card.n_sms)
    if isinstance(plans, Verdict):
        return Prepared(kernel, None, plans)
    built = compiler.build(kernel, card.arch)
    if isinstance(built, Verdict):
        return Prepared(kernel, None, built)
    found = inspect(built, plans[0].entries, compiler.toolkit, problem, compiler.disassembler)
    build = BuildReport(built.seconds, built.log[:_LONGEST_LOG], found.digest, found.resources)
    name = identity(found.digest, kernel, plans)
    axes = problem.measures("cuda")
    refused = first_refusal(found.refusals, skip)
    for plan in plans:
        refused = refused or check_plan(plan, found.code, card)
    refused = refused or check_dynamic_shared(kernel.launch.calls, plans, built)
    if refused is not None:
        return Prepared(kernel, name, replace(refused, build=build, measures=axes.values(found.resources)))
    facts = launch_facts(kernel, problem, plans, found.code, card, str(found.resources["copy_kind"]))
    build = replace(build, resources={**found.resources, **facts})
    return Prepared(kernel, name, None, build, axes.values(build.resources), built.cubin)
