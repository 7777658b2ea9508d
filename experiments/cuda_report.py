"""`evo-l2 verify` and `evo-l2 sass` for CUDA kernels: everything that is known without a launch."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

from rich.console import Console
from rich.text import Text

from evo_l2.contracts import Prepared
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Status, Verdict
from evo_l2.judge import GateReport
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.build_only import BuildOnlyEvaluator
from evo_l2.targets.cuda.cards import Card, card_for
from evo_l2.targets.cuda.devices import present_devices
from evo_l2.targets.cuda.reading.gates import GATES
from evo_l2.targets.cuda.reading.listing import annotate, in_program_order, plain
from evo_l2.targets.cuda.reading.sass import read_sass
from evo_l2.targets.cuda.screen import SCREEN_GATES, screen
from evo_l2.targets.cuda.toolchain.compiler import DEFAULT_ARCH
from experiments.kernel_notes import hint_for, notes, plain_tunables
from experiments.parts import cache_dir, note_passed_over, open_rig
from experiments.printable import printable
from experiments.sections import CudaConfig, LimitsConfig, TimingConfig
from experiments.verifying import announced_kernel, named_measures, problem_of, read_kernel, verify

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
        "copy_kind", "n_global_load", "widest_global_load_bits", "n_async_copy", "widest_async_copy_bits", "n_bulk_copy",
        "n_global_store", "n_shared_load", "n_shared_store", "n_matrix_load", "n_local_load", "n_local_store", "n_atomic",
    ),
    "code": ("arch", "code_bytes", "n_entries", "n_instructions", "n_barrier_wait", "n_branch", "n_unknown"),
}  # fmt: skip
"""Facts by subject, in the order in which they are shown; what is in none comes last."""
_RESOURCES = re.compile(r"ptxas info|ptxas +\.|.*bytes stack frame")
"""Lines of the compiler's log that say what the facts say."""


def verify_cuda(
    path: Path, arch: str | None, device: int | None, builder: str | None, shape: str, accumulate: str, *, as_json: bool
) -> bool:
    """Prints the report; True when no gate has anything against the kernel.

    It is run where this machine has a card and no architecture was named; else it is built for that one, or for sm_80.

    Raises:
        EvoL2Error: The file cannot be read or is no kernel, or the toolkit or the card is at fault.
    """
    kernel = announced_kernel(path, "cuda", as_json=as_json)
    problem = problem_of(kernel, shape, accumulate)
    if arch is None and (device is not None or any(found.card is not None for found in present_devices())):
        return _verify_on_card(kernel, problem, device, builder, as_json=as_json)
    card = _card(arch if arch is not None else DEFAULT_ARCH)
    with BuildOnlyEvaluator(problem, cache_dir() / "cuda", card, builder=_builder(builder)) as evaluator:
        note_passed_over(evaluator.compiler.toolkit)
        prepared = evaluator.prepare(kernel)
        compiler = evaluator.compiler.builder
    if as_json:
        print(json.dumps(_plain(problem, prepared, card, compiler), indent=2))
    else:
        _print(problem, prepared, card, compiler)
    return prepared.verdict is None


def _verify_on_card(kernel: Kernel, problem: Hgemm, device: int | None, builder: str | None, *, as_json: bool) -> bool:
    from evo_l2.targets.cuda.evaluator import CudaEvaluator

    settings = CudaConfig.model_validate({"device": device, "builder": builder or "auto"})
    reports: list[GateReport] = []
    rig = open_rig(settings, TimingConfig(), LimitsConfig())
    with CudaEvaluator(problem, rig, observe=reports.append) as evaluator:
        return verify(kernel, problem, evaluator, reports, as_json=as_json)


def _builder(asked: str | None) -> str | None:
    """None for `auto`, too."""
    return None if asked == "auto" else asked


def print_sass(path: Path, arch: str, builder: str | None, *, by_address: bool, as_json: bool) -> None:
    """Prints the annotated machine code; also of a kernel that a gate refuses.

    Args:
        path: The kernel.
        arch: What it is built for.
        builder: `nvcc` or `nvrtc`; None or `auto` for nvcc where it is installed.
        by_address: Whether instructions stand in program order, with the line of source where it changes, or else below the
            lines of the source.
        as_json: Whether to print plain data.

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
    with BuildOnlyEvaluator(problem, cache_dir() / "cuda", card, builder=_builder(builder)) as it:
        note_passed_over(it.compiler.toolkit)
        built = it.compiler.build(kernel, it.environment.identity["arch"])
        if isinstance(built, Verdict):
            hint = f"evo-l2 verify {path} --arch {arch}"
            found = _first_fault(built.message or "")
            raise ConfigurationError(f"{path} does not build", expected="a kernel that compiles", found=found, hint=hint)
        sass = read_sass(built.cubin, it.compiler.toolkit.tool("nvdisasm"))
        compiler = it.compiler.builder
    if as_json:
        about = {"digest": kernel.digest, "card": card.name, "arch": card.arch, "compiler": compiler}
        print(json.dumps({**about, "functions": plain(sass)}, indent=2))
        return
    show = in_program_order if by_address else annotate
    print(printable(show(sass, kernel.source)), end="")


def _first_fault(log: str) -> str:
    """The compiler's first complaint, without the line of source that it quotes and the caret below that."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\b(error|fatal)\b", line)), lines[0] if lines else "another result")


def _card(arch: str) -> Card:
    """The card of an architecture; says so where that is built for under another name.

    Raises:
        ConfigurationError: No card has it, or it is one of PTX, which no card runs as it is.
    """
    card = card_for(arch)
    if arch.strip().lower().startswith("compute_"):
        what = "that is an architecture of PTX, and kernels are built to machine code"
        raise ConfigurationError(what, expected=f"--arch {card.arch}", found=repr(arch), hint=f"--arch {card.arch}")
    if arch != card.arch:
        print(f"evo-l2: {arch} is built for as {card.arch} ({card.name})", file=sys.stderr)
    return card


def _print(problem: Hgemm, prepared: Prepared, card: Card, compiler: str) -> None:
    console = Console(highlight=False)
    console.print(Text(problem.title, style="bold"))
    verdict = prepared.verdict
    build = prepared.build if verdict is None else verdict.build
    made = "built" if build is not None and build.machine_code is not None else "to be built"
    console.print(Text(f"{made} by {compiler} for {card.name} ({card.arch}); nothing was run"))
    tunables = [f"{t.name} {t.value} of {' '.join(map(str, t.domain))}" for t in prepared.kernel.tunables]
    _print_row(console, "tunables", tunables)
    resources = dict(build.resources) if build is not None else {}
    for group, names in _GROUPS.items():
        _print_row(console, group, [f"{name} {_shown(resources.pop(name))}" for name in names if name in resources])
    _print_row(console, "more", [f"{name} {_shown(value)}" for name, value in resources.items()])
    if prepared.build is not None:
        for line in [line for line in prepared.build.log.splitlines() if not _RESOURCES.match(line)][:12]:
            console.print(Text.assemble((f"  {'compiler':11}", "dim"), line), soft_wrap=True)
    for note in notes(prepared.kernel, problem, build.resources if build is not None else {}):
        console.print(Text.assemble((f"  {'note':11}", "yellow"), note), soft_wrap=True)
    if verdict is None:
        console.print(Text.assemble((Status.BUILT.value, "bold green"), ": every gate before the launch was passed"))
        return
    words = f" at gate {verdict.gate}: {verdict.message}"
    console.print(Text.assemble((verdict.status.value, "bold red"), words), soft_wrap=True)
    if verdict.gate in GATES:
        console.print(Text(f"why it matters: {GATES[verdict.gate]}"), soft_wrap=True)
    hint = hint_for(verdict, problem)
    if hint is not None:
        console.print(Text(f"try: {hint}"), soft_wrap=True)


def _print_row(console: Console, name: str, facts: list[str]) -> None:
    """Facts behind a name, in lines that break between them; nothing where there are none."""
    # Blanks within a fact are told apart from those between facts by a character that no fact has.
    text = ", ".join(fact.replace(" ", "\0") for fact in facts)
    for number, line in enumerate(
        textwrap.wrap(text, max(40, console.width - 13), break_long_words=False, break_on_hyphens=False)
    ):
        head = f"  {name if number == 0 else '':11}"
        console.print(Text.assemble((head, "dim"), line.replace("\0", " ")), soft_wrap=True)


def _shown(value: int | float | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def _plain(problem: Hgemm, prepared: Prepared, card: Card, compiler: str) -> dict[str, object]:
    verdict = prepared.verdict
    build = prepared.build if verdict is None else verdict.build
    m, n, k, batch = problem.cases[0]
    return {
        "problem": dict(problem.definition),
        "shape": {"M": m, "N": n, "K": k, "BATCH": batch},
        "accumulate": problem.accumulate,
        "layout": prepared.kernel.launch.layout,
        "tunables": plain_tunables(prepared.kernel),
        "digest": prepared.kernel.digest,
        "identity": prepared.identity,
        "card": card.name,
        "arch": card.arch,
        "compiler": compiler,
        "status": verdict.status.value if verdict is not None else Status.BUILT.value,
        "gate": verdict.gate if verdict is not None else None,
        "message": verdict.message if verdict is not None else None,
        "hint": hint_for(verdict, problem) if verdict is not None else None,
        "notes": list(notes(prepared.kernel, problem, build.resources if build is not None else {})),
        "machine_code": build.machine_code if build is not None else None,
        "resources": dict(build.resources) if build is not None else None,
        "measures": named_measures(problem, "cuda", prepared.measures),
        "log": build.log if build is not None else None,
        "seconds": build.seconds if build is not None else None,
        "run": False,
    }
