"""What kind of processor this machine has."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Processor", "parse_cpuinfo", "read_processor"]

_SIMD = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_fp16", "avx512_bf16", "avx512_vnni",
    "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "fphp", "asimdhp", "asimdfhm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
_ARM_NAME = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")
_X86_NAME = ("cpu family", "model", "stepping")


@dataclass(frozen=True, slots=True)
class Processor:
    """One processor, as the operating system describes it."""

    model: str
    simd: tuple[str, ...]
    """Vector extensions that matter here, in a fixed order."""
    features_digest: str
    """Sixteen hexadecimal digits over all its features: what a compiler's idea of *native* depends on."""


def read_processor() -> Processor:
    """The processor of this machine; as much as can be known where there is no `/proc/cpuinfo`."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> Processor:
    """The first processor of a `/proc/cpuinfo`; x86 and Arm write it differently."""
    facts: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    features = frozenset(facts.get("flags", facts.get("Features", "")).split())
    model = _model(facts)
    digest = hashlib.sha256("\n".join([model, *sorted(features)]).encode()).hexdigest()[:16]
    return Processor(model, tuple(name for name in _SIMD if name in features), digest)


def _model(facts: Mapping[str, str]) -> str:
    if facts.get("CPU part"):
        return "Arm " + " ".join(facts[name] for name in _ARM_NAME if name in facts)
    numbers = "-".join(facts[name] for name in _X86_NAME if name in facts)
    name = " ".join(facts.get("model name", "").split())
    return f"{name} ({numbers})" if name and numbers else name or numbers or platform.machine() or "unknown"
