"""`evo-l2 verify`: one kernel file through every stage, each shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console

from evo_l2.contracts import Prepared
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Evaluation, Status
from evo_l2.judge import GateReport
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.timing import estimate
from experiments.run import cache_dir

__all__ = ["parse_shape", "verify_file"]


def parse_shape(text: str) -> tuple[int, int, int, int]:
    """`M,N,K` or `M,N,K,BATCH`.

    Raises:
        ConfigurationError: It is neither.
    """
    parts = text.split(",")
    if len(parts) not in (3, 4) or not all(part.strip().isdigit() for part in parts):
        raise ConfigurationError("the shape cannot be used", expected="M,N,K or M,N,K,BATCH", found=repr(text))
    m, n, k, *batch = (int(part) for part in parts)
    return m, n, k, batch[0] if batch else 1


def verify_file(path: Path, target: str, shape: str, accumulate: str, *, as_json: bool) -> bool:
    """Prints the report; True when the kernel passed.

    Raises:
        EvoL2Error: The file cannot be read or is no kernel, or the machine is at fault.
    """
    from evo_l2.targets.cpu.evaluator import CpuEvaluator

    try:
        kernel = Kernel.from_bytes(path.read_bytes(), target)
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigurationError(f"{path} cannot be read", expected="a kernel file", found=found) from error
    layout = kernel.launch.layout
    problem = Hgemm((parse_shape(shape),), accumulate, (layout if layout in ("nn", "nt") else "nn",))
    reports: list[GateReport] = []
    console = Console(highlight=False)
    with CpuEvaluator(problem, cache_dir() / "cpu", observe=reports.append) as evaluator:
        prepared = evaluator.prepare(kernel)
        evaluation = Evaluation(prepared.verdict) if prepared.verdict is not None else None
        if evaluation is None:
            evaluation = evaluator.measure(prepared, np.random.SeedSequence())
    if as_json:
        print(json.dumps(_plain(problem, prepared, reports, evaluation), indent=2))
    else:
        _print(console, problem, prepared, reports, evaluation)
    return evaluation.verdict.status is Status.PASSED


def _print(console: Console, problem: Hgemm, prepared: Prepared, reports: list[GateReport], evaluation: Evaluation) -> None:
    console.print(f"[bold]{problem.title}[/bold]")
    verdict = evaluation.verdict
    if verdict.build is not None and verdict.build.resources:
        facts = ", ".join(f"{name} {value}" for name, value in verdict.build.resources.items())
        console.print(f"built: {facts}", soft_wrap=True)
    whys = {gate.name: gate.why for gate in problem.gates}
    for report in reports:
        mark = "[green]ok    [/green]" if report.failure is None else "[red]failed[/red]"
        console.print(f"  {mark} {report.gate:18} {report.seconds:6.3f} s")
    reached = {report.gate for report in reports}
    for gate in problem.gates:
        if gate.name not in reached:
            console.print(f"  [dim]not reached {gate.name}[/dim]")
    if verdict.status is not Status.PASSED:
        console.print(f"[red]{verdict.status.value}[/red] at gate {verdict.gate}:", style="bold")
        console.print(f"  {verdict.message}", markup=False, soft_wrap=True)
        if verdict.gate in whys:
            console.print(f"  why it matters: {whys[verdict.gate]}", soft_wrap=True)
        return
    assert evaluation.session is not None
    value = estimate([evaluation.session])
    if value is None:
        console.print("[yellow]right, but the machine did not hold still while it was timed[/yellow]")
        return
    low, high = value.interval
    console.print(f"[green]passed[/green]: {value.speedup:.3f}x of the baseline's speed ({low:.3f} to {high:.3f})")
    for case in evaluation.session.cases:
        micros = float(np.median(case.kernel_us))
        gflops = problem.work(case.sizes).n_flops / micros / 1e3
        bare = f", {case.bare_baseline_us:.1f} us without conversions" if case.bare_baseline_us is not None else ""
        base = float(np.median(case.baseline_us))
        console.print(f"  {case.sizes}: {micros:.1f} us, {gflops:.1f} GFLOP/s; baseline {base:.1f} us{bare}")


def _plain(problem: Hgemm, prepared: Prepared, reports: list[GateReport], evaluation: Evaluation) -> dict[str, object]:
    verdict = evaluation.verdict
    value = estimate([evaluation.session]) if evaluation.session is not None else None
    return {
        "problem": dict(problem.definition),
        "digest": prepared.kernel.digest,
        "identity": prepared.identity,
        "status": evaluation.status.value,
        "gate": verdict.gate,
        "message": verdict.message,
        "resources": dict(verdict.build.resources) if verdict.build is not None else None,
        "measures": verdict.measures,
        "gates": [
            {"gate": r.gate, "sizes": r.sizes, "seconds": r.seconds, "failure": r.failure.message if r.failure else None}
            for r in reports
        ],
        "speedup": value.speedup if value is not None else None,
        "interval": value.interval if value is not None else None,
        "cases": [
            {"sizes": c.sizes, "kernel_us": c.kernel_us, "baseline_us": c.baseline_us, "bare_baseline_us": c.bare_baseline_us}
            for c in (evaluation.session.cases if evaluation.session is not None else ())
        ],
    }
