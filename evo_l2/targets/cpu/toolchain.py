"""Finds the C compiler and the disassembler, once a process."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from evo_l2.errors import ToolchainError

__all__ = ["Toolchain", "find_toolchain"]

_INSTALL = "apt-get install gcc binutils libc6-dev (or dnf install gcc binutils glibc-devel)"
_PROBE = "_Float16 twice(_Float16 x) { return (_Float16)(2.0f * (float)x); }\n"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler that knows `_Float16`, and a disassembler."""

    compiler: Path
    kind: str
    """`gcc` or `clang`."""
    version: str
    """The first line of what the compiler says of itself."""
    objdump: Path


@functools.cache
def find_toolchain() -> Toolchain:
    """The compiler that `CC` names, else gcc, clang or cc from the path; with objdump or llvm-objdump.

    Raises:
        ToolchainError: One of them is missing, or the compiler is too old for `_Float16`.
    """
    asked = os.environ.get("CC")
    names = [asked] if asked else ["gcc", "clang", "cc"]
    found = next((path for name in names if (path := shutil.which(name)) is not None), None)
    if found is None:
        raise ToolchainError("no C compiler", expected=" or ".join(names), found="none on PATH", hint=_INSTALL)
    objdump = shutil.which("objdump") or shutil.which("llvm-objdump")
    if objdump is None:
        raise ToolchainError("no disassembler", expected="objdump or llvm-objdump", found="none on PATH", hint=_INSTALL)
    version = _version(found)
    _check_half(found, version)
    return Toolchain(Path(found), "clang" if "clang" in version else "gcc", version, Path(objdump))


def _version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError("the C compiler does not run", expected=compiler, found=str(error), hint=_INSTALL) from error
    return (done.stdout.splitlines() or ["unknown version"])[0]


def _check_half(compiler: str, version: str) -> None:
    with tempfile.TemporaryDirectory(prefix="evo-l2-") as folder:
        source = Path(folder) / "probe.c"
        source.write_text(_PROBE, encoding="utf-8")
        command = [compiler, "-std=gnu11", "-c", "-o", os.devnull, str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            raise ToolchainError("the C compiler does not run", expected=compiler, found=str(error), hint=_INSTALL) from error
    if done.returncode != 0:
        expected = "a compiler with _Float16 and C headers: gcc 12 or clang 15, or newer"
        raise ToolchainError("the C compiler is too old or broken", expected=expected, found=version, hint=_INSTALL)
