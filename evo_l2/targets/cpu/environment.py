"""What makes two CPU measurements comparable, and what is worth knowing beside it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from evo_l2.evaluation import HARNESS_VERSION, Environment
from evo_l2.targets.cpu.toolchain import Toolchain

__all__ = ["cpu_environment"]

_FEATURES = (
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx512f",
    "avx512_fp16",
    "avx512_bf16",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "sve",
)


def cpu_environment(toolchain: Toolchain, blas_description: str) -> Environment:
    """Processor, compiler, baseline and harness are the key; host, kernel release, cores and memory are provenance."""
    facts = _cpuinfo()
    words = set((facts.get("flags") or facts.get("Features") or "").split())
    identity = {
        "processor": facts.get("model name") or facts.get("CPU part") or platform.processor() or "unknown",
        "machine": platform.machine(),
        "features": " ".join(name for name in _FEATURES if name in words),
        "cache": facts.get("cache size", "unknown"),
        "compiler": toolchain.version,
        "baseline": blas_description,
        "harness": HARNESS_VERSION,
    }
    provenance = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f}",
        "python": platform.python_version(),
    }
    return Environment("cpu", identity, provenance)


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
