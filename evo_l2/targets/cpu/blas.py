"""Finds the OpenBLAS that kernels are timed against, and builds a problem's baseline on it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evo_l2.errors import ToolchainError
from evo_l2.targets.cpu.native import compile_cached

__all__ = ["BLAS_ENVIRON", "Blas", "baseline_library", "find_blas"]

BLAS_ENVIRON: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1"}
"""The whole environment of a runner that loads a baseline: one thread, and nothing of the user's that changes its choices."""

_SYMBOLS = ("scipy_cblas_sgemm64_", "scipy_cblas_sgemm", "cblas_sgemm64_", "cblas_sgemm")

# In a process of its own: OpenBLAS starts threads and reads the environment when it is loaded.
_PROBE = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
name = sys.argv[1].rsplit("/", 1)[-1].split(".so")[0]
paths = [line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if name in line]
symbol = next((s for s in sys.argv[2:] if hasattr(library, s)), None)
def ask(what):
    function = getattr(library, symbol.replace("cblas_sgemm", what), None)
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return (function() or b"").decode(errors="replace")
if symbol is not None:
    print(json.dumps([paths[0], symbol, ask("openblas_get_config"), ask("openblas_get_corename")]))
"""


@dataclass(frozen=True, slots=True)
class Blas:
    """A BLAS with a row-major single-precision GEMM."""

    path: Path
    symbol: str
    """Its `cblas_sgemm`, under the name that this build gives it."""
    int_bits: int
    """Width of its integers: 32 or 64."""
    description: str
    """Version, build options and the processor type it chose here; part of the environment's key."""


def find_blas(libraries: Iterable[str] | None = None) -> Blas:
    """The OpenBLAS in numpy's wheel, else that of the scipy-openblas wheels, else the system's.

    Args:
        libraries: Paths or names to try instead, in order.

    Raises:
        ToolchainError: There is none.
    """
    seen = []
    for library in _candidates() if libraries is None else libraries:
        blas = _probe(library)
        if blas is not None:
            return blas
        seen.append(library)
    raise ToolchainError(
        "no OpenBLAS to time kernels against",
        expected="the one in numpy's wheel, scipy-openblas64, or the system's libopenblas",
        found=", ".join(seen) or "none",
        hint=f"{sys.executable} -m pip install scipy-openblas64",
    )


def _candidates() -> Iterator[str]:
    """Paths, or the name of the system's library, best first."""
    numpy = importlib.util.find_spec("numpy")
    if numpy is not None and numpy.origin is not None:
        site = Path(numpy.origin).parent.parent
        yield from sorted(str(path) for path in (site / "numpy.libs").glob("lib*openblas*.so*"))
    for package in ("scipy_openblas64", "scipy_openblas32"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from sorted(str(path) for path in (Path(folder) / "lib").glob("libscipy_openblas*.so"))
    from ctypes.util import find_library

    system = find_library("openblas")
    if system is not None:
        yield system


def _probe(library: str) -> Blas | None:
    """What a library says of itself; None when it does not load or has no GEMM."""
    command = [sys.executable, "-I", "-S", "-c", _PROBE, library, *_SYMBOLS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(BLAS_ENVIRON), check=True)
        path, symbol, config, core = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    wide = symbol.endswith("64_") or "USE64BITINT" in config
    version = " ".join(config.split()) or Path(path).name
    return Blas(Path(path), symbol, 64 if wide else 32, f"{version}; core {core or 'unknown'}; one thread")


def baseline_library(source: str, blas: Blas, compiler: Path, cache_dir: Path) -> Path:
    """Compiles a baseline (trusted code of this project) and links it with the BLAS; from the cache when it is there.

    The source is that of `Problem.baseline`. It defines `evo_entry`, and may define `evo_entry_bare`, which leaves
    conversions out and works on what the workspaces hold: fill them before it is timed, since junk may be slow to multiply.

    Raises:
        ToolchainError: The compiler is missing or fails.
        StorageError: The cache cannot be written.
    """
    integer = {32: "int32_t", 64: "int64_t"}[blas.int_bits]
    flags = ("-O3", "-std=gnu11", "-shared", "-fPIC", *_simd_flags(), f"-DEVO_SGEMM={blas.symbol}", f"-DEVO_INT={integer}")
    libraries = (str(blas.path), f"-Wl,-rpath,{blas.path.parent}")
    return compile_cached(compiler, cache_dir, "baseline", {"baseline.c": source}, flags, libraries)


def _simd_flags() -> tuple[str, ...]:
    """Named one by one, not `-march=native`: they are part of the cache's key, and a cache may be shared by machines."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    words = set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())
    return ("-mavx2", "-mf16c") if {"avx2", "f16c"} <= words else ()
