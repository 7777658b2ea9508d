"""Finds the C compiler and the disassembler of this machine, and tries both."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evo_l2.errors import StorageError, ToolchainError
from evo_l2.targets.messages import is_out_of_space

__all__ = ["Toolchain", "find_toolchain"]

_NAMES = (
    "gcc", "clang", "cc",
    *(f"gcc-{n}" for n in range(16, 11, -1)),
    *(f"clang-{n}" for n in range(22, 14, -1)),
)  # fmt: skip
_PROBE_TIMEOUT_S = 30.0
_PROBE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
_Float16 evo_probe(_Float16 x, float y) { return (_Float16)(expf(y) * (float)x); }
"""
_SYSTEM_PATHS = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/etc/ld.so.cache",
                 "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")  # fmt: skip
"""Where compilers, linkers, their libraries and their headers are, and nothing of a user's."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C compiler that knows `_Float16`, and a disassembler; both were tried on this machine."""

    compiler: Path
    kind: str
    """`gcc` or `clang`."""
    version: str
    """The first line of what the compiler says of itself."""
    objdump: Path
    objdump_version: str
    native_flags: tuple[str, ...]
    """What asks for this very processor's instructions."""
    read_paths: tuple[Path, ...]
    """What a compiler in a sandbox has to read."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment in which the compiler runs: nothing of the user's but where programs and libraries are."""
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        fixed = {"LC_ALL": "C", "TMPDIR": ".", "HOME": ".", "SOURCE_DATE_EPOCH": "0", "CCACHE_DISABLE": "1"}
        return {"PATH": os.defpath, **kept, **fixed}

    @property
    def facts(self) -> Mapping[str, str]:
        """What is worth showing to a person."""
        return {
            "compiler": f"{self.compiler} ({self.version})",
            "disassembler": f"{self.objdump} ({self.objdump_version})",
            "native": " ".join(self.native_flags),
        }


def find_toolchain() -> Toolchain:
    """The compiler that `CC` names, else the first of gcc, clang, cc and numbered ones that works; found once a process.

    Raises:
        ToolchainError: No compiler or no disassembler works here; says for each why.
        StorageError: There is no room for temporary files.
    """
    return _find(os.environ.get("CC", "").strip(), os.environ.get("PATH", os.defpath))


@functools.cache
def _find(asked: str, path: str) -> Toolchain:
    reasons: list[str] = []
    for name in _asked(asked) if asked else _NAMES:
        compiler = shutil.which(name, path=path)
        if compiler is None:
            if asked:
                reasons.append(f"{name} is not on PATH")
            continue
        try:
            return _try(Path(compiler), path)
        except ToolchainError as error:
            reasons.append(f"{name}: {error.found or error.what}")
            if error.what.startswith("no disassembler"):
                raise
    raise ToolchainError(
        f"no C compiler that can be used{' (CC is set)' if asked else ''}",
        expected="gcc 12 or newer, or clang 15 or newer, with _Float16 and the C headers",
        found="; ".join(reasons[:4]) or "none on PATH",
        hint=_install("gcc libc6-dev binutils", "gcc glibc-devel binutils"),
    )


def _asked(text: str) -> tuple[str, ...]:
    """The compiler that `CC` means; a compiler cache in front of it would only be in the way of our own."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ToolchainError(
            "CC does not parse", expected="a compiler's name or path", found=text, hint="unset CC"
        ) from error
    if len(words) == 2 and Path(words[0]).name in ("ccache", "sccache", "distcc"):
        words = words[1:]
    if len(words) != 1:
        expected = "a compiler's name or path, without options"
        raise ToolchainError("CC cannot be used", expected=expected, found=text, hint="export CC=gcc")
    return tuple(words)


def _install(debian: str, fedora: str) -> str:
    if shutil.which("dnf"):
        return f"dnf install {fedora}"
    return f"apt-get install {debian}" + ("" if shutil.which("apt-get") else f" (or dnf install {fedora}, or the like)")


def _try(compiler: Path, path: str) -> Toolchain:
    version = _first_line([str(compiler), "--version"])
    kind = "clang" if "clang" in version.lower() else "gcc"
    arm = platform.machine() in ("aarch64", "arm64")
    native = ("-mcpu=native",) if arm else ("-march=native",)
    with tempfile.TemporaryDirectory(prefix="evo-l2-") as folder:
        product = _probe(compiler, native, Path(folder), version)
        objdump, objdump_version = _objdump(compiler, product, path)
    return Toolchain(compiler, kind, version, objdump, objdump_version, native, _read_paths(compiler, objdump))


def _probe(compiler: Path, native: tuple[str, ...], folder: Path, version: str) -> Path:
    """A shared object of a small program that uses what kernels use."""
    (folder / "probe.c").write_text(_PROBE, encoding="utf-8")
    command = [str(compiler), "-std=gnu11", "-O2", *native, "-fPIC", "-shared", "-nostartfiles", "probe.c", "-o", "probe.so"]
    done = _run([*command, "-lm"], cwd=folder)
    product = folder / "probe.so"
    if done.returncode == 0 and product.exists():
        return product
    if is_out_of_space(done.stderr):
        found = next(line for line in done.stderr.splitlines() if is_out_of_space(line))
        expected = f"room in {folder.parent}"
        raise StorageError("the compiler cannot be tried", expected=expected, found=found, hint=f"df -h {folder.parent}")
    if done.returncode == -signal.SIGXFSZ or "File size limit exceeded" in done.stderr:
        expected, hint = "files of any length to be written", "ulimit -f unlimited"
        raise StorageError("the compiler cannot be tried", expected=expected, found="a limit on their length", hint=hint)
    lines = [line for line in (done.stderr or done.stdout).splitlines() if "error" in line] or ["no message"]
    if "_Float16" in done.stderr:
        raise ToolchainError("the C compiler is too old", found=f"{version} does not know _Float16")
    raise ToolchainError("the C compiler is broken", found=f"{version} does not build a small program: {lines[0][:200]}")


def _objdump(compiler: Path, product: Path, path: str) -> tuple[Path, str]:
    """The first disassembler that reads what the compiler made."""
    suffix = compiler.name.partition("-")[2]
    names = ["objdump", "llvm-objdump", *([f"llvm-objdump-{suffix}"] if suffix.isdigit() else [])]
    told = _run([str(compiler), "-print-prog-name=objdump"]).stdout.strip()
    for name in (*names, *([told] if os.path.isabs(told) else [])):
        found = shutil.which(name, path=path)
        if found is None:
            continue
        try:
            if "<evo_probe>" in _run([found, "-d", str(product)]).stdout:
                return Path(found), _first_line([found, "--version"])
        except ToolchainError:
            continue
    hint = _install("binutils", "binutils")
    raise ToolchainError("no disassembler", expected="objdump or llvm-objdump", found="none on PATH that works", hint=hint)


def _read_paths(compiler: Path, objdump: Path) -> tuple[Path, ...]:
    """System folders, and where the compiler and its parts are if they are elsewhere."""
    system = [Path(path) for path in _SYSTEM_PATHS]
    if all(tool.resolve().is_relative_to("/usr") for tool in (compiler, objdump)):
        return tuple(system)
    libraries = [Path(name) for name in os.environ.get("LD_LIBRARY_PATH", "").split(":") if os.path.isabs(name)]
    extra = list(dict.fromkeys([*(path for tool in _parts(compiler, objdump) for path in _homes(tool)), *libraries]))
    return (*system, *(path for path in extra if not any(path.is_relative_to(known) for known in system)))


def _parts(compiler: Path, objdump: Path) -> Iterator[Path]:
    yield compiler
    yield objdump
    for name in ("cc1", "as", "ld", "collect2"):
        told = _run([str(compiler), f"-print-prog-name={name}"]).stdout.strip()
        found = shutil.which(told) if told else None
        if found is not None:
            yield Path(found)
    told = _run([str(compiler), "-print-file-name=include"]).stdout.strip()
    if os.path.isabs(told):
        yield Path(told)


def _homes(tool: Path) -> Iterator[Path]:
    """The tool's folder, and the installation it belongs to when that looks like one."""
    for path in dict.fromkeys((tool.absolute(), tool.resolve())):
        yield path.parent
        prefix = path.parent.parent
        if path.parent.name == "bin" and (prefix / "lib").is_dir() and prefix not in (Path("/"), Path.home()):
            yield prefix


def _first_line(command: list[str]) -> str:
    done = _run(command)
    if done.returncode != 0:
        raise ToolchainError("a tool does not run", found=f"{command[0]} --version returns {done.returncode}")
    return (done.stdout.splitlines() or ["unknown version"])[0].strip()


def _run(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LC_ALL": "C", "CCACHE_DISABLE": "1"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PROBE_TIMEOUT_S, cwd=cwd, env=environ,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ToolchainError("a tool does not answer", found=f"{command[0]} ran for {_PROBE_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise ToolchainError("a tool does not run", found=f"{command[0]}: {error.strerror}") from error
