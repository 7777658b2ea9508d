"""Compiles C files of our own (the runner, baselines) once, into a cache folder that several processes may share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evo_l2.errors import StorageError, ToolchainError
from evo_l2.products import is_product
from evo_l2.sandbox import launcher_source
from evo_l2.targets.messages import is_out_of_space

__all__ = ["build_launcher", "compile_cached"]

_TIMEOUT_S = 120
_STALE_S = 3600
"""Age from which a folder of a build belongs to nobody: its compiler was ended long before."""


def compile_cached(
    compiler: Path, cache_dir: Path, name: str, texts: Mapping[str, str], flags: Sequence[str], libraries: Sequence[str] = ()
) -> Path:
    """What the compiler makes of the texts, by file name, the first of which it is given; from the cache when it is there.

    The cache's key covers texts, flags, and the compiler's path and version. Only whole files appear under their final name.

    Raises:
        ToolchainError: The compiler is missing or fails.
        StorageError: The cache folder cannot be written.
    """
    parts = [str(compiler.resolve()), _version(compiler), *flags, "", *libraries]
    parts += [part for pair in texts.items() for part in pair]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    product = cache_dir / f"{name}-{key}"
    _remove_stale(cache_dir, name)
    if product.exists():
        return product
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache_dir))
    except OSError as error:
        raise _unwritable(cache_dir, error) from error
    try:
        for file_name, text in texts.items():
            (folder / file_name).write_text(text, encoding="utf-8")
        command = [str(compiler), *flags, "-o", "product", next(iter(texts)), *libraries]
        _compile(command, folder, name)
        os.replace(folder / "product", product)
    except OSError as error:
        raise _unwritable(cache_dir, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return product


def build_launcher(compiler: Path, cache_dir: Path) -> Path:
    """The program that confines and limits compilers; see `evo_l2.sandbox`.

    Raises:
        ToolchainError: The compiler is missing or fails.
        StorageError: The cache folder cannot be written.
    """
    texts = {"launcher.c": launcher_source()}
    return compile_cached(compiler, cache_dir, "launcher", texts, ("-O2", "-std=gnu11"))


def _remove_stale(cache_dir: Path, name: str) -> None:
    """Removes the folders of builds that were killed."""
    for path in cache_dir.glob(f".{name}-????????"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)


def _version(compiler: Path) -> str:
    """What the compiler says of itself."""
    try:
        done = subprocess.run([str(compiler), "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        hint = "apt-get install gcc (or the like), or set CC"
        raise ToolchainError("no usable C compiler", expected=str(compiler), found=str(error), hint=hint) from error
    return done.stdout


def _unwritable(cache_dir: Path, error: OSError) -> StorageError:
    hint = "free space, or export XDG_CACHE_HOME=/a/folder/that/may/be/written"
    return StorageError("the cache cannot be written", expected=f"to write in {cache_dir}", found=str(error), hint=hint)


def _compile(command: Sequence[str], folder: Path, name: str) -> None:
    """Runs the compiler with its temporary files in the same folder.

    Raises:
        ToolchainError: It fails.
        OSError: It found no room.
    """
    try:
        environ = {**os.environ, "LC_ALL": "C", "TMPDIR": "."}
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"{name} does not compile", found=f"no end after {_TIMEOUT_S} s") from error
    if done.returncode != 0 or not is_product(folder / "product", command[0], "set CC"):
        if is_out_of_space(done.stderr):
            raise OSError(next(line for line in done.stderr.splitlines() if is_out_of_space(line)))
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
        raise ToolchainError(
            f"{name} does not compile",
            expected="a working C compiler with its headers",
            found="; ".join(errors[:3])[:600],
            hint="apt-get install gcc libc6-dev (or the like)",
        )
