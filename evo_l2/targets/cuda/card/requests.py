"""What the runner is asked, and how faults of a launch are named.

Requests are pickled by the parent, which the runner trusts; answers are JSON, since the parent trusts nothing that comes out
of a process in which candidates run.
"""

from __future__ import annotations

from dataclasses import dataclass

from evo_l2.targets.cuda.card.memory import Region
from evo_l2.targets.cuda.launching.plan import Plan
from evo_l2.targets.cuda.libraries.gemm_call import Accumulate, Layout

__all__ = [
    "Allocate",
    "Host",
    "LibrarySpec",
    "LoadKernel",
    "LoadLibrary",
    "Probe",
    "Replay",
    "Request",
    "Run",
    "Serve",
    "fault_in_words",
]


@dataclass(frozen=True, slots=True)
class Allocate:
    """Fresh memory, instead of what there was. Answer: `granularity`, and one descriptor for each region."""

    operands: tuple[Region, ...]
    workspaces: tuple[Region, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadKernel:
    """A cubin and its launches, instead of what was loaded."""

    cubin: bytes
    plan: Plan


@dataclass(frozen=True, slots=True)
class LibrarySpec:
    """One baseline at one case."""

    name: str
    layout: Layout
    accumulate: Accumulate
    sizes: tuple[int, int, int, int]
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class LoadLibrary:
    """A baseline, instead of what was loaded. Answer: `description`."""

    spec: LibrarySpec


@dataclass(frozen=True, slots=True)
class Run:
    """Calls on consecutive sets, launched one by one. Answer: `ns` of all together, by events on the stream."""

    first: int
    n_calls: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay of a graph with a call on each of the first sets. Answer: `ns` of all together and `clock_mhz`."""

    n_calls: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """Calls on the sets in turn, each waited for. Answer: `ns`, a list: wall time from before the launch to the end."""

    n_calls: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Serve:
    """Calls that arrive at given times on one stream. Answer: `ns`, a list: from arrival to the end of each."""

    arrivals_ns: tuple[int, ...]
    """From the first moment on, in order."""
    limit_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """A known-good kernel. Answer: `sms`, the multiprocessors that ran it."""


Request = Allocate | LoadKernel | LoadLibrary | Run | Replay | Host | Serve | Probe

_WORDS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "the kernel reached memory that is not mapped",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "the kernel made an access that is not aligned to its size",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "the kernel reached memory of another kind than the instruction is for",
    "CUDA_ERROR_INVALID_PC": "the kernel jumped to where there is no code",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "the kernel's stack overflowed or was damaged",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "the kernel ran an instruction that this card does not have, or a trap",
    "CUDA_ERROR_LAUNCH_FAILED": "the kernel trapped, or the card stopped it",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "the launch asks for more registers or shared memory than the card has",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "the card does not launch clusters of this size",
    "CUDA_ERROR_INVALID_VALUE": "the card does not take the launch",
    "CUDA_ERROR_INVALID_IMAGE": "the driver does not load the cubin",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the cubin is for another card",
    "CUDA_ERROR_NOT_FOUND": "the cubin has no such entry",
    "CUDA_ERROR_OUT_OF_MEMORY": "the card has no memory left",
}


def fault_in_words(name: str) -> str:
    """What one of the driver's errors means for the kernel that caused it."""
    words = _WORDS.get(name)
    return f"{words} ({name})" if words is not None else f"the driver says {name}"
