"""`evo-l2 verify` and `evo-l2 sass` for CUDA kernels: everything that is known without a launch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from evo_l2.contracts import Prepared
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Status, Verdict
from evo_l2.targets.cuda.build_only import BuildOnlyEvaluator
from evo_l2.targets.cuda.cards import Card, card_for
from evo_l2.targets.cuda.gates import GATES
from evo_l2.targets.cuda.sass import annotate, read_sass
from evo_l2.targets.cuda.screen import SCREEN_GATES, screen
from experiments.parts import cache_dir, note_passed_over
from experiments.printable import printable
from experiments.verifying import problem_of, read_kernel

__all__ = ["print_sass", "verify_cuda"]

_GROUPS = {
    "launch": ("block_threads", "dynamic_shared_bytes", "workspace_bytes", "n_launches", "stages", "tile_area"),
    "occupancy": ("occupancy", "blocks_per_sm", "occupancy_limit"),
    "resources": (
        "n_registers", "spill_bytes", "stack_bytes", "local_bytes", "static_shared_bytes", "constant_bytes",
        "parameter_bytes", "n_barriers",
    ),
    "arithmetic": ("matrix_kind", "accumulator", "n_matrix", "n_fma", "n_half_math", "n_narrow", "n_integer"),
    "memory": (
        "copy_kind", "n_global_load", "widest_global_load_bits", "n_global_store", "n_shared_load", "n_shared_store",
        "n_matrix_load", "n_async_copy", "n_bulk_copy", "n_local_load", "n_local_store", "n_atomic",
    ),
    "code": ("arch", "code_bytes", "n_entries", "n_instructions", "n_barrier_wait", "n_branch"),
}  # fmt: skip
"""Facts by subject, in the order in which they are shown; what is in none comes last."""


def verify_cuda(path: Path, arch: str, builder: str | None, shape: str, accumulate: str, *, as_json: bool) -> bool:
    """Prints the report; True when no gate has anything against the kernel.

    Raises:
        EvoL2Error: The file cannot be read or is no kernel, or the toolkit is at fault.
    """
    kernel = read_kernel(path, "cuda")
    problem = problem_of(kernel, shape, accumulate)
    card = _card(arch)
    with BuildOnlyEvaluator(problem, cache_dir() / "cuda", card, builder=builder) as evaluator:
        note_passed_over(evaluator.compiler.toolkit)
        prepared = evaluator.prepare(kernel)
        compiler = evaluator.compiler.builder
    if as_json:
        print(json.dumps(_plain(prepared, card, compiler), indent=2))
    else:
        _print(problem.title, prepared, card, compiler)
    return prepared.verdict is None


def print_sass(path: Path, arch: str, builder: str | None) -> None:
    """Prints the annotated machine code; also of a kernel that a gate refuses.

    Raises:
        EvoL2Error: The file is no kernel or does not build, or the toolkit is at fault.
    """
    kernel = read_kernel(path, "cuda")
    problem = problem_of(kernel, "256,256,256", "fp16")
    refused = screen(kernel, problem, SCREEN_GATES - {"size", "text", "includes"})
    if refused is not None:
        hint = f"evo-l2 verify {path} --arch {arch}"
        raise ConfigurationError(f"{path} is not built", expected="a kernel", found=refused.message, hint=hint)
    card = _card(arch)
    with BuildOnlyEvaluator(problem, cache_dir() / "cuda", card, builder=builder) as it:
        note_passed_over(it.compiler.toolkit)
        built = it.compiler.build(kernel, it.environment.identity["arch"])
        if isinstance(built, Verdict):
            hint = f"evo-l2 verify {path} --arch {arch}"
            raise ConfigurationError(f"{path} does not build", expected="a kernel", found=built.message, hint=hint)
        sass = read_sass(built.cubin, it.compiler.toolkit.tool("nvdisasm"))
    print(printable(annotate(sass, kernel.source)), end="")


def _card(arch: str) -> Card:
    """The card of an architecture; says so where that is built for under another name."""
    card = card_for(arch)
    if arch.startswith("sm_") and arch != card.arch:
        print(f"evo-l2: {arch} is built for as {card.arch} ({card.name})", file=sys.stderr)
    return card


def _print(title: str, prepared: Prepared, card: Card, compiler: str) -> None:
    console = Console(highlight=False)
    console.print(Text(title, style="bold"))
    console.print(Text(f"built by {compiler} for {card.name} ({card.arch}); nothing was run"))
    resources = dict(prepared.build.resources) if prepared.build is not None else {}
    for group, names in _GROUPS.items():
        facts = [f"{name} {_shown(resources.pop(name))}" for name in names if name in resources]
        if facts:
            console.print(Text.assemble((f"  {group:11}", "dim"), ", ".join(facts)), soft_wrap=True)
    if resources:
        rest = ", ".join(f"{name} {_shown(value)}" for name, value in resources.items())
        console.print(Text.assemble((f"  {'more':11}", "dim"), rest), soft_wrap=True)
    if prepared.build is not None and prepared.build.log:
        for line in prepared.build.log.splitlines()[:12]:
            console.print(Text.assemble((f"  {'compiler':11}", "dim"), line), soft_wrap=True)
    verdict = prepared.verdict
    if verdict is None:
        console.print(Text.assemble((Status.BUILT.value, "bold green"), ": every gate before the launch was passed"))
        return
    words = f" at gate {verdict.gate}: {verdict.message}"
    console.print(Text.assemble((verdict.status.value, "bold red"), words), soft_wrap=True)
    if verdict.gate in GATES:
        console.print(Text(f"why it matters: {GATES[verdict.gate]}"), soft_wrap=True)


def _shown(value: int | float | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def _plain(prepared: Prepared, card: Card, compiler: str) -> dict[str, object]:
    verdict, build = prepared.verdict, prepared.build
    return {
        "digest": prepared.kernel.digest,
        "identity": prepared.identity,
        "card": card.name,
        "arch": card.arch,
        "compiler": compiler,
        "status": verdict.status.value if verdict is not None else Status.BUILT.value,
        "gate": verdict.gate if verdict is not None else None,
        "message": verdict.message if verdict is not None else None,
        "machine_code": build.machine_code if build is not None else None,
        "resources": dict(build.resources) if build is not None else None,
        "measures": prepared.measures,
        "log": build.log if build is not None else None,
        "seconds": build.seconds if build is not None else None,
        "run": False,
    }
