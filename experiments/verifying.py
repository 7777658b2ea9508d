"""`evo-l2 verify`: one kernel file through every stage, each shown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from evo_l2.contracts import Evaluator, Prepared
from evo_l2.errors import ConfigurationError, KernelError
from evo_l2.evaluation import Evaluation, Status, TimingSession
from evo_l2.judge import GateReport
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.timing import pooled_estimate
from experiments.kernel_notes import hint_for, notes, plain_tunables
from experiments.parts import cache_dir, check_target
from experiments.printable import printable
from experiments.summary_page import bare_in_words, counted, indented, rate_in_words

__all__ = [
    "announced_kernel",
    "built_in_words",
    "named_measures",
    "parse_shape",
    "problem_of",
    "read_kernel",
    "tile_in_words",
    "verify",
    "verify_on_cpu",
]


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the way from a file to a time."""

    name: str
    ok: bool | None
    """None when an earlier stage stopped the kernel, or when the stage came to no answer."""
    seconds: float | None = None
    is_inconclusive: bool = False
    """Whether it was reached and came to no answer: the machine did not hold still."""


_NUMBER = re.compile(r"\s*[0-9]{1,18}\s*")


def parse_shape(text: str) -> tuple[int, int, int, int]:
    """`M,N,K` or `M,N,K,BATCH`.

    Raises:
        ConfigurationError: It is neither.
    """
    parts = text.split(",")
    if len(parts) not in (3, 4) or not all(_NUMBER.fullmatch(part) for part in parts):
        raise ConfigurationError("the shape cannot be used", expected="M,N,K or M,N,K,BATCH", found=repr(text[:60]))
    m, n, k, *batch = (int(part) for part in parts)
    return m, n, k, batch[0] if batch else 1


def read_kernel(path: Path, target: str) -> Kernel:
    """A kernel file whose launch parses.

    Raises:
        ConfigurationError: It cannot be read, or is no kernel.
    """
    if path.is_fifo():
        raise ConfigurationError(f"{path} cannot be read", expected="a kernel file", found="a pipe")
    try:
        kernel = Kernel.from_file(path, target)
        _ = kernel.launch
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigurationError(f"{path} cannot be read", expected="a kernel file", found=found) from error
    except KernelError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    check_target(path, kernel, target)
    return kernel


def announced_kernel(path: Path, target: str, *, as_json: bool) -> Kernel:
    """A kernel file; one that is no kernel is told of in JSON too, where that was asked for, before the error is raised.

    Raises:
        ConfigurationError: See `read_kernel`.
    """
    try:
        return read_kernel(path, target)
    except ConfigurationError as error:
        fault = error.__cause__
        if as_json and isinstance(fault, KernelError):
            facts = {"status": Status.REJECTED.value, "gate": "launch", "message": str(fault), "line": fault.line}
            print(json.dumps({**facts, "column": fault.column, "file": str(path), "run": False}, indent=2))
        raise


def problem_of(kernel: Kernel, shape: str, accumulate: str) -> Hgemm:
    """HGEMM at one shape, in the layout that the kernel declares; in either where there is none of that name."""
    layout = kernel.launch.layout
    return Hgemm((parse_shape(shape),), accumulate, (layout,) if layout in ("nn", "nt") else ("nn", "nt"))


def named_measures(problem: Hgemm, target: str, values: Sequence[float | None] | None) -> dict[str, float | None] | None:
    """Measures by the names of their axes; None where nothing was measured."""
    if values is None:
        return None
    return {axis.name: value for axis, value in zip(problem.measures(target).axes, values, strict=True)}


def verify_on_cpu(path: Path, shape: str, accumulate: str, *, as_json: bool) -> bool:
    """Prints the report of a kernel in C; True when it passed.

    Raises:
        EvoL2Error: The file cannot be read or is no kernel, or the machine is at fault.
    """
    from evo_l2.targets.cpu.evaluator import CpuEvaluator

    kernel = announced_kernel(path, "cpu", as_json=as_json)
    problem = problem_of(kernel, shape, accumulate)
    reports: list[GateReport] = []
    with CpuEvaluator(problem, cache_dir() / "cpu", observe=reports.append) as evaluator:
        return verify(kernel, problem, evaluator, reports, as_json=as_json)


def verify(kernel: Kernel, problem: Hgemm, evaluator: Evaluator, reports: list[GateReport], *, as_json: bool) -> bool:
    """Takes a kernel through every stage and prints them; True when it passed.

    Args:
        kernel: What is verified.
        problem: What it computes.
        evaluator: Puts the gates to it.
        reports: Where the evaluator puts what each gate came to.
        as_json: Whether to print plain data.

    Raises:
        EvoL2Error: The machine is at fault.
    """
    prepared = evaluator.prepare(kernel)
    evaluation = Evaluation(prepared.verdict) if prepared.verdict is not None else None
    if evaluation is None:
        evaluation = evaluator.measure(prepared, np.random.SeedSequence())
    if as_json:
        print(json.dumps(_plain(problem, prepared, reports, evaluation), indent=2))
    else:
        _print(kernel, problem, reports, evaluation)
    return evaluation.verdict.status is Status.PASSED


def _stages(problem: Hgemm, reports: list[GateReport], evaluation: Evaluation) -> list[Stage]:
    """Every stage in order, reached or not."""
    verdict = evaluation.verdict
    stages: list[Stage] = []
    stopped_before_run = {Status.REJECTED: "screen", Status.BUILD_ERROR: "build", Status.UNLAUNCHABLE: "inspect"}
    stop = stopped_before_run.get(verdict.status) if not reports else None
    for name in ("screen", "build", "inspect"):
        done = bool(stages) and stages[-1].ok is not True
        stages.append(Stage(name, None if done else name != stop))
    by_name = {report.gate: report for report in reports}
    for name in [gate.name for gate in problem.gates] + ["determinism"]:
        report = by_name.get(name)
        stages.append(Stage(name, None) if report is None else Stage(name, report.failure is None, report.seconds))
    judged = bool(reports) and reports[-1].failure is None
    is_inconclusive = evaluation.status is Status.INCONCLUSIVE
    timed = evaluation.status is Status.PASSED if judged and not is_inconclusive else None
    stages.append(Stage("timing", timed, is_inconclusive=is_inconclusive))
    return stages


_FAILED = ("failed      ", "red")


def _print(kernel: Kernel, problem: Hgemm, reports: list[GateReport], evaluation: Evaluation) -> None:
    console = Console(highlight=False)
    console.print(Text(problem.title, style="bold"))
    verdict = evaluation.verdict
    stages = _stages(problem, reports, evaluation)
    reached = [stage for stage in stages if stage.ok is not None or stage.is_inconclusive]
    for stage in reached:
        mark = ("inconclusive", "yellow") if stage.ok is None else ("ok          ", "green") if stage.ok else _FAILED
        seconds = f"{stage.seconds:8.3f} s" if stage.seconds is not None else ""
        console.print(Text.assemble("  ", mark, f" {stage.name:18}{seconds}".rstrip()))
    if len(reached) < len(stages):
        console.print(Text(f"  {counted(len(stages) - len(reached), 'later stage')} not reached", style="dim"))
    if verdict.status is not Status.PASSED:
        console.print(
            Text.assemble((verdict.status.value, "bold red"), f" at gate {verdict.gate}: {printable(verdict.message or '')}"),
            soft_wrap=True,
        )
        tile = tile_in_words(kernel, verdict.message or "")
        if tile is not None:
            console.print(Text(tile), soft_wrap=True)
        whys = {gate.name: gate.why for gate in problem.gates}
        if verdict.gate in whys:
            console.print(Text(f"why it matters: {whys[verdict.gate]}"), soft_wrap=True)
    if verdict.build is not None and verdict.build.resources:
        console.print(Text("built:"))
        console.print(Text(indented(built_in_words(verdict.build.resources), console.width, 2)), soft_wrap=True)
    for note in notes(kernel, problem, verdict.build.resources if verdict.build is not None else {}):
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
    hint = hint_for(verdict, problem)
    if hint is not None:
        console.print(Text(f"try: {hint}"), soft_wrap=True)
    if verdict.status is Status.PASSED:
        _print_times(console, problem, evaluation)


def built_in_words(resources: Mapping[str, int | float | str]) -> str:
    """What the compiler made, for people: `instructions 706, SIMD bits 256, ... code 3,297 bytes`."""
    words = []
    for name, value in resources.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        if name.endswith("_bytes"):
            name, shown = name.removesuffix("_bytes"), f"{shown} bytes"
        name = name.removeprefix("n_").replace("_", " ").replace("simd", "SIMD").replace("fma", "FMA")
        words.append(f"{name} {shown}")
    return ", ".join(words)


_ELEMENT = re.compile(r"C\[(\d+)\]\[(\d+)\]")


def tile_in_words(kernel: Kernel, message: str) -> str | None:
    """Where in its block tile the first element that a message names lies; None without such, or without BM and BN."""
    element = _ELEMENT.search(message)
    rows, columns = (kernel.constants.get(name, 0) for name in ("BM", "BN"))
    if element is None or rows < 1 or columns < 1:
        return None
    i, j = int(element[1]), int(element[2])
    return f"C[{i}][{j}] is element {i % rows}, {j % columns} of block tile {i // rows}, {j // columns} ({rows} x {columns})"


def _rough_speedup(session: TimingSession) -> float:
    """Baseline time over kernel time by all blocks, disturbed ones included: the geometric mean over cases of the medians."""
    logs = [np.median(np.log(np.array(case.baseline_us) / np.array(case.kernel_us))) for case in session.cases]
    return math.exp(float(np.mean(logs)))


def _print_times(console: Console, problem: Hgemm, evaluation: Evaluation) -> None:
    assert evaluation.session is not None
    value = pooled_estimate([evaluation.session])
    if value is None:
        cases = evaluation.session.cases
        n_kept, n_blocks = sum(sum(case.kept) for case in cases), sum(len(case.kept) for case in cases)
        words = f": right, but the machine did not hold still while it was timed ({n_kept} of {n_blocks} samples are usable)"
        console.print(Text.assemble(("inconclusive", "bold yellow"), words), soft_wrap=True)
        rough = f"roughly {_rough_speedup(evaluation.session):.2f}x of the baseline's speed, disturbed samples included"
        console.print(
            Text(f"{rough}: unreliable; end what else runs here, then verify again", style="yellow"), soft_wrap=True
        )
        return
    low, high = value.interval
    words = f": {value.speedup:.3f}x of the baseline's speed ({low:.3f} to {high:.3f})"
    console.print(Text.assemble(("passed", "bold green"), words))
    for case in evaluation.session.cases:
        micros = float(np.median(case.kernel_us))
        gflops = problem.work(case.sizes).n_flops / micros / 1e3
        rate = rate_in_words(gflops)
        bare = bare_in_words(case.bare_baseline_us)
        base = float(np.median(case.baseline_us))
        console.print(Text(f"{micros:.1f} us a call, {rate}; baseline {base:.1f} us{bare}"), soft_wrap=True)


def _plain(problem: Hgemm, prepared: Prepared, reports: list[GateReport], evaluation: Evaluation) -> dict[str, object]:
    verdict = evaluation.verdict
    session = evaluation.session
    value = pooled_estimate([session]) if session is not None else None
    return {
        "problem": dict(problem.definition),
        "tunables": plain_tunables(prepared.kernel),
        "digest": prepared.kernel.digest,
        "identity": prepared.identity,
        "status": evaluation.status.value,
        "gate": verdict.gate,
        "message": verdict.message,
        "hint": hint_for(verdict, problem),
        "notes": list(notes(prepared.kernel, problem, verdict.build.resources if verdict.build is not None else {})),
        "resources": dict(verdict.build.resources) if verdict.build is not None else None,
        "measures": named_measures(problem, "cpu", verdict.measures),
        "stages": [
            {"stage": s.name, "ok": s.ok, "inconclusive": s.is_inconclusive, "seconds": s.seconds}
            for s in _stages(problem, reports, evaluation)
        ],
        "gates": [
            {"gate": r.gate, "sizes": r.sizes, "seconds": r.seconds, "failure": r.failure.message if r.failure else None}
            for r in reports
        ],
        "speedup": value.speedup if value is not None else None,
        "unreliable_speedup": _rough_speedup(session) if session is not None and value is None else None,
        "interval": value.interval if value is not None else None,
        "cases": [
            {"sizes": c.sizes, "kernel_us": c.kernel_us, "baseline_us": c.baseline_us, "bare_baseline_us": c.bare_baseline_us}
            for c in (session.cases if session is not None else ())
        ],
    }
