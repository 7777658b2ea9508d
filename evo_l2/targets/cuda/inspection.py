"""What the machine code of one build says, read once and kept beside it, since reading takes up to a third of a second."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evo_l2.problem import Problem
from evo_l2.products import read_product
from evo_l2.targets.cuda.reading.cubin import Cubin, Entry, Parameter, Symbol, read_cubin
from evo_l2.targets.cuda.reading.gates import Refusal, refusals
from evo_l2.targets.cuda.reading.resources import complete, parse_usage, resources_of
from evo_l2.targets.cuda.reading.sass import Sass, machine_code_digest, read_sass
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt
from evo_l2.targets.cuda.toolchain.disassembler import Disassembler
from evo_l2.targets.cuda.toolchain.nvcc import MOST_PTX_BYTES
from evo_l2.targets.cuda.toolchain.toolkit import Toolkit

__all__ = ["Inspection", "inspect"]

_READERS = (
    "cubin", "nv_info", "disassembler", "sass", "reaching", "header", "resources", "ptx", "ptx_statements", "local_memory",
    "gates", "inspection",
)  # fmt: skip
"""Modules that decide what an inspection says."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is known of a build without its launches."""

    code: Cubin
    digest: str
    """Of the machine code; see `machine_code_digest`."""
    resources: Mapping[str, int | float | str]
    refusals: tuple[Refusal, ...]
    """What the gates on machine code have against it."""


def inspect(
    built: CudaBuilt,
    entries: tuple[str, ...],
    toolkit: Toolkit,
    problem: Problem,
    disassembler: Disassembler | None = None,
) -> Inspection:
    """Reads a build, or what an earlier reading left beside it.

    Args:
        built: What the compiler made.
        entries: Those of the launches, in order of launch.
        toolkit: Has the disassembler.
        problem: Says which matrix instructions its kernels may use.
        disassembler: Reads code faster, without lines; code that is refused is read again with them. May be left out.

    Raises:
        ToolchainError: The disassembler is missing or broken, or the cubin cannot be read.
    """
    admitted = sorted(problem.matrix_classes) if problem.matrix_classes is not None else None
    parts = json.dumps([_version(), toolkit.version, str(toolkit.nvdisasm), entries, admitted])
    memo = built.cubin.with_name(f"inspection-{hashlib.sha256(parts.encode()).hexdigest()[:16]}.json")
    known = _read(memo)
    if known is not None:
        return known
    code = read_cubin(built.cubin)
    sass = disassembler.read(built.cubin, code.arch) if disassembler is not None else None
    inspection = _inspected(built, entries, code, sass, problem) if sass is not None else None
    if inspection is None or inspection.refusals:
        inspection = _inspected(built, entries, code, read_sass(built.cubin, toolkit.tool("nvdisasm")), problem)
    _write(memo, inspection)
    return inspection


def _inspected(built: CudaBuilt, entries: tuple[str, ...], code: Cubin, sass: Sass, problem: Problem) -> Inspection:
    code = complete(code, sass, built.log)
    found = tuple(refusals(code, sass, read_product(built.ptx, MOST_PTX_BYTES).decode("utf-8", "replace"), problem))
    digest = machine_code_digest(sass, code, [entry for entry in entries if entry in code.entries])
    return Inspection(code, digest, resources_of(code, sass, parse_usage(built.log)), found)


@functools.cache
def _version() -> str:
    """A digest over the code that reads and judges, so that no earlier code's reading is taken for this one's."""
    folder = Path(__file__).parent
    return hashlib.sha256(b"".join((folder / f"{name}.py").read_bytes() for name in _READERS)).hexdigest()


def _write(memo: Path, inspection: Inspection) -> None:
    """Keeps a reading. A cache that cannot be written costs the next reading, and nothing else."""
    with contextlib.suppress(OSError):
        text = json.dumps(asdict(inspection))
        handle, name = tempfile.mkstemp(dir=memo.parent, prefix=".inspection-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{_digest(text)}\n{text}")
        os.replace(name, memo)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(memo: Path) -> Inspection | None:
    """An earlier reading; None when there is none, or when it is damaged."""
    try:
        digest, _, text = read_product(memo).decode("utf-8").partition("\n")
        if digest != _digest(text):
            return None
        found = json.loads(text)
        code = _cubin(found["code"])
        return Inspection(code, found["digest"], found["resources"], tuple(Refusal(**row) for row in found["refusals"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _cubin(row: dict[str, Any]) -> Cubin:
    entries = {}
    for name, entry in row["entries"].items():
        entry["parameters"] = tuple(Parameter(**parameter) for parameter in entry["parameters"])
        entry["constant_bytes"] = {int(bank): size for bank, size in entry["constant_bytes"].items()}
        for key in ("cluster", "required_block"):
            entry[key] = tuple(entry[key]) if entry[key] is not None else None
        entries[name] = Entry(**entry)
    symbols = tuple(Symbol(**{**symbol, "slots": tuple(symbol["slots"])}) for symbol in row["symbols"])
    functions, undefined = tuple(row["functions"]), tuple(row["undefined"])
    return Cubin(**{**row, "entries": entries, "symbols": symbols, "functions": functions, "undefined": undefined})
