"""Compiles the C runner once, and asks it what this machine offers to confine kernels with."""

from __future__ import annotations

import subprocess
from importlib import resources
from pathlib import Path

from evo_l2.errors import DeviceError
from evo_l2.targets.cpu.native import compile_cached

__all__ = ["RunnerBinary"]

_SOURCES = ("runner.c", "trace.h", "child.h", "confine.h")
_FLAGS = ("-O2", "-std=gnu11", "-fno-strict-aliasing")
_LIBRARIES = ("-Wl,-z,relro", "-Wl,-z,now", "-Wl,--no-as-needed", "-ldl", "-lm")
"""Kernels may call libm; loaded with the runner, it is there when no file can be opened any more."""


class RunnerBinary:
    """The compiled runner."""

    @staticmethod
    def ensure(compiler: Path, cache_dir: Path) -> Path:
        """The runner's executable; compiled when the cache has none of this source and compiler.

        Raises:
            ToolchainError: The compiler is missing or fails.
            StorageError: The cache cannot be written.
        """
        folder = resources.files("evo_l2.targets.cpu")
        texts = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in _SOURCES}
        return compile_cached(compiler, cache_dir, "runner", texts, _FLAGS, _LIBRARIES)

    @staticmethod
    def capabilities(binary: Path) -> dict[str, str | bool]:
        """What the running kernel offers: `seccomp`, `landlock` (its version, or False), `clock` (how exact it is).

        Raises:
            DeviceError: The runner does not run here.
        """
        try:
            done = subprocess.run([str(binary), "--probe"], capture_output=True, text=True, timeout=10, check=True)
            found = dict(line.split("=", 1) for line in done.stdout.splitlines())
            traced = found["traced"] == "1"
            return {
                "seccomp": found["seccomp"] == "1",
                "landlock": f"version {found['landlock']}" if found["landlock"] != "0" else False,
                "clock": "stops as the child begins to exit" if traced else "includes the end of the child",
            }
        except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            hint = "remove the cache folder, then evo-l2 doctor"
            raise DeviceError("the runner does not run", expected=str(binary), found=str(error), hint=hint) from error
