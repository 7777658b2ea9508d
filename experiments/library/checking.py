"""What a library is put through before it is said to be done: compilers, and the tests that travel with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from evo_l2.errors import ToolchainError
from evo_l2.targets.messages import is_out_of_space

__all__ = ["Checked", "compile_c", "require_pytest", "run_tests"]

_COMPILE_S = 300.0
_TESTS_S = 1800.0


@dataclass(frozen=True, slots=True)
class Checked:
    """What the library's own tests came to."""

    n_passed: int
    n_skipped: int
    """For want of a card, of cupy, or of torch."""


def compile_c(command: Sequence[str], folder: Path, what: str) -> None:
    """Runs a compiler, or a tool of its kind, in a folder.

    Raises:
        ToolchainError: It fails; with its first message.
        OSError: It found no room.
    """
    environ = {**os.environ, "LC_ALL": "C", "TMPDIR": ".", "SOURCE_DATE_EPOCH": "0", "CCACHE_DISABLE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_COMPILE_S)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{what} cannot be built", expected=f"{command[0]} to run", found=str(error)) from error
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
    if is_out_of_space(done.stderr):
        raise OSError(next(line for line in done.stderr.splitlines() if is_out_of_space(line)))
    raise ToolchainError(f"{what} cannot be built", expected=f"{command[0]} to compile it", found=lines[0][:300])


def require_pytest() -> None:
    """Makes sure that the library's tests can be run.

    Raises:
        ToolchainError: pytest is not installed.
    """
    if find_spec("pytest") is None:
        hint = f"{sys.executable} -m pip install pytest"
        raise ToolchainError("a library cannot be checked", expected="pytest, which its tests need", found="none", hint=hint)


def run_tests(folder: Path) -> Checked:
    """Runs the tests of a library in its folder, and leaves nothing behind there.

    Raises:
        ToolchainError: One of them fails; names the first.
    """
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "tests"]
    path = os.pathsep.join([str(folder.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        environ.pop(name, None)
    try:
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_TESTS_S)
    except subprocess.TimeoutExpired as error:
        raise ToolchainError("the library is not right", expected="its tests to end", found=f"{_TESTS_S:.0f} s") from error
    lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
    summary = next((line for line in reversed(lines) if " passed" in line), "")
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|skipped)", summary)}
    if done.returncode != 0 or not counts.get("passed"):
        failures = [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))]
        found = " ".join((failures[0] if failures else lines[-1]).split())
        if is_out_of_space("\n".join(lines)):
            raise OSError(found)
        raise ToolchainError("the library is not right", expected="its own tests to pass", found=found[:300])
    return Checked(counts["passed"], counts.get("skipped", 0))
