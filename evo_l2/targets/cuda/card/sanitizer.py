"""Finalists under NVIDIA's compute-sanitizer: accesses out of bounds, races in shared memory, junk that is read, barriers.

A kernel can be right on every input that was tried, and still read beside its operands or trust a race that it has not lost
yet. The tool runs a process of its own (`sanitized_run`), which calls the kernel once on small inputs.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo_l2.errors import KernelError
from evo_l2.evaluation import Status
from evo_l2.judge import Failure
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance
from evo_l2.targets.cuda.card.sanitized_run import FAULT, REFUSED, Job
from evo_l2.targets.cuda.launching.plan import plan
from evo_l2.targets.messages import printable

__all__ = ["TOOLS", "SanitizerReport", "find_sanitizer", "read_report", "sanitize", "small_instance"]

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
"""In the order in which they are asked."""
_STATUS = {
    "memcheck": Status.RUNTIME_ERROR, "racecheck": Status.INCORRECT, "initcheck": Status.INCORRECT,
    "synccheck": Status.RUNTIME_ERROR,
}  # fmt: skip
_MOST = 512
"""Of M, N and K: the tools slow a kernel down by one to two orders of magnitude."""
_USUAL_TILE = 256
_TILE_NAMES = {"M": "BM", "N": "BN", "K": "BK"}
_MOST_BATCH = 2
_HOMES = ("CUDA_HOME", "CUDA_PATH")
_PREFIX = "========= "
_RACES = re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, \d+ warnings?\)")
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors?\s*$", re.MULTILINE)
_FIRST = re.compile(
    r"Invalid \S+ \w+ of size|Uninitialized .* read|Error: Race reported|Error: .*hazard|Barrier error|Invalid "
)
_MORE = re.compile(r"at |by thread|Address |Access |and is |and (Read|Write|read|write) |Divergent|Missing")


@dataclass(frozen=True, slots=True)
class SanitizerReport:
    """What the tools found in one kernel at one case."""

    sizes: tuple[int, ...]
    """The case that the kernel was run at."""
    failure: Failure | None
    """The first finding, at gate `sanitizer`."""
    checked: tuple[str, ...]
    """Tools that came to their end."""
    unchecked: dict[str, str]
    """Tool to the reason why it says nothing; for a kernel that passed, whatever is not in `checked`."""


def find_sanitizer() -> Path | None:
    """The tool on PATH, under CUDA_HOME or CUDA_PATH, or in /usr/local/cuda; None where it is not installed."""
    found = shutil.which("compute-sanitizer")
    homes = [Path(os.environ[name]) for name in _HOMES if os.environ.get(name)] + [Path("/usr/local/cuda")]
    places = [home / folder / "compute-sanitizer" for home in homes for folder in ("bin", "compute-sanitizer")]
    known = [Path(found)] if found else [place for place in places if place.is_file() and os.access(place, os.X_OK)]
    return known[0] if known else None


def small_instance(kernel: Kernel, instance: Instance, n_sms: int) -> Instance:
    """The case with M, N and K of at most 512 and their remainders modulo the tile as they were, and two matrices at most.

    The tile is the kernel's BM, BN or BK, else 256. The case itself where the launch cannot be planned at the small one.
    """
    constants = kernel.constants
    sizes = []
    for symbol, size in zip(instance.problem.size_symbols, instance.sizes, strict=True):
        tile = constants.get(_TILE_NAMES.get(symbol, ""), _USUAL_TILE)
        tile = tile if 0 < tile <= _MOST else _USUAL_TILE
        excess = max(0, size - _MOST)
        sizes.append(size - -(-excess // tile) * tile if symbol in _TILE_NAMES else min(size, _MOST_BATCH))
    small = Instance(instance.problem, tuple(sizes), instance.layout)
    try:
        plan(kernel, small.problem, small.sizes, n_sms)
    except KernelError:
        return instance
    return small


def sanitize(
    kernel: Kernel,
    cubin: bytes,
    instance: Instance,
    n_sms: int,
    device: int,
    *,
    tool: Path | None = None,
    tools: Sequence[str] = TOOLS,
    limit_s: float = 60.0,
) -> SanitizerReport:
    """Runs a built kernel once under each tool, until one finds something.

    Args:
        kernel: The source, for its launches.
        cubin: What was built from it.
        instance: Case and layout; made small.
        n_sms: Multiprocessors of the card.
        device: The card's index.
        tool: The tool's path; found when left out.
        tools: Some of `TOOLS`.
        limit_s: Seconds that one of them may take; one that takes longer says nothing.
    """
    small = small_instance(kernel, instance, n_sms)
    path = tool if tool is not None else find_sanitizer()
    if path is None:
        reason = "compute-sanitizer is neither on PATH nor under CUDA_HOME"
        return SanitizerReport(small.sizes, None, (), dict.fromkeys(tools, reason))
    launches = plan(kernel, small.problem, small.sizes, n_sms)
    checked: list[str] = []
    unchecked: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="evo-l2-sanitizer-") as folder:
        job = Path(folder, "job")
        job.write_bytes(pickle.dumps(Job(cubin, launches, small.problem.operands, small.names, small.layout, device)))
        for name in tools:
            if name == "racecheck" and launches.tensor_maps:
                unchecked[name] = "it does not follow copies by tensor maps"
                continue
            found = _ask(path, name, job, limit_s)
            if isinstance(found, Failure):
                return SanitizerReport(small.sizes, found, (*checked, name), unchecked)
            if found is not None:
                unchecked[name] = found
            else:
                checked.append(name)
    return SanitizerReport(small.sizes, None, tuple(checked), unchecked)


def _ask(path: Path, name: str, job: Path, limit_s: float) -> Failure | str | None:
    """A finding, the reason why there is no answer, or None for a clean run."""
    options = ["--tool", name, "--print-limit", "4", "--report-api-errors", "no"]
    command = [str(path), *options, sys.executable, "-P", "-m", "evo_l2.targets.cuda.card.sanitized_run", str(job)]
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        text = output.read(1 << 20).decode(errors="replace")
    if code is None:
        return f"it did not end within {time.monotonic() - begin:.0f} s"
    return read_report(name, text)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the tool and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_report(name: str, text: str) -> Failure | str | None:
    """What one tool's output says: a finding, the reason why it says nothing, or None for a clean run.

    Args:
        name: One of `TOOLS`.
        text: Everything that the tool and the process under it printed.
    """
    summary = (_RACES if name == "racecheck" else _ERRORS).search(text)
    faults = [line for line in text.splitlines() if line.startswith((FAULT, REFUSED))]
    if summary is not None and int(summary[1]):
        n_found = int(summary[1])
        more = f" (the first of {n_found} findings)" if n_found > 1 else ""
        return Failure(_STATUS[name], "sanitizer", f"{name}: {_first_finding(text)}{more}")
    if faults and faults[0].startswith(FAULT):
        return Failure(Status.RUNTIME_ERROR, "sanitizer", f"{name}: {printable(faults[0][len(FAULT) :].strip())[:200]}")
    if faults or summary is None:
        lines = faults or [line.removeprefix(_PREFIX) for line in text.splitlines() if line.strip("= ")]
        return f"it did not come to its end: {printable(' '.join(lines[-1:]))[:200] or 'no output'}"
    return None


def _first_finding(text: str) -> str:
    """The first error and what belongs to it, as one sentence."""
    lines = [line.removeprefix(_PREFIX).strip() for line in text.splitlines() if line.startswith(_PREFIX)]
    start = next((number for number, line in enumerate(lines) if _FIRST.match(line)), None)
    if start is None:
        return printable(next((line for line in lines if line and "COMPUTE-SANITIZER" not in line), "an error"))[:300]
    words = [lines[start].rstrip(".")]
    for line in lines[start + 1 :]:
        if not _MORE.match(line):
            break
        words.append(line)
    return printable(", ".join(words).replace(", and", " and"))[:400]
