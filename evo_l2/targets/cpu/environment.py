"""What makes two CPU measurements comparable, and what is worth knowing beside it."""

from __future__ import annotations

import math
import os
import platform

from evo_l2.evaluation import HARNESS_VERSION, Environment
from evo_l2.targets.cpu.processor import read_processor
from evo_l2.targets.cpu.toolchain import Toolchain

__all__ = ["cpu_environment"]


def cpu_environment(toolchain: Toolchain, blas_description: str) -> Environment:
    """Processor, memory class, compiler, baseline and harness are the key; host, kernel and libraries are provenance."""
    processor = read_processor()
    identity = {
        "processor": processor.model,
        "machine": platform.machine(),
        "simd": " ".join(processor.simd),
        "features": processor.features_digest,
        "memory": f"{_memory_class_gib()} GiB",
        "compiler": toolchain.version,
        "baseline": blas_description,
        "harness": HARNESS_VERSION,
    }
    provenance = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "n_cores": str(os.cpu_count() or 1),
        "disassembler": toolchain.objdump_version,
        "python": platform.python_version(),
    }
    return Environment("cpu", identity, provenance)


def _memory_class_gib() -> int:
    """Memory rounded up to a power of two: what a kernel reserves differs from boot to boot."""
    try:
        n_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
    return 1 << max(0, math.ceil(math.log2(n_bytes / 2**30)))
