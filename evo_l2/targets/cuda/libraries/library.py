"""The vendor's libraries that kernels on a card are timed against, as work that a stream takes.

All of them multiply the same buffers, with the same workspace, and none sums in half where the problem says single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from evo_l2.errors import ConfigurationError
from evo_l2.targets.cuda.libraries.cublas_library import CublasLibrary
from evo_l2.targets.cuda.libraries.cublaslt_library import CublasLtLibrary
from evo_l2.targets.cuda.libraries.gemm_call import Accumulate, GemmCall, Layout
from evo_l2.targets.cuda.libraries.torch_library import TorchLibrary

__all__ = ["Library", "baseline_names", "make_library"]


class Library(Protocol):
    """One baseline at one case. All calls come from one thread, with the device's primary context current."""

    @property
    def name(self) -> str:
        """One of `baseline_names()`."""
        ...

    @property
    def description(self) -> str:
        """Version of the library, the algorithm it runs (known once prepared) and its workspace."""
        ...

    def prepare(self, stream: int, sets: Sequence[Mapping[str, int]]) -> None:
        """Makes everything that a launch needs, and runs the product, so that its kernels are loaded. May be called again.

        What is tuned is tuned here, on these buffers: they should hold what will be timed, or the like, and more bytes than
        the L2. Every C is written over.

        Args:
            stream: Handle of a stream of one's own: the default one cannot be recorded.
            sets: Device addresses of `A`, `B` and `C`, one mapping a buffer set.

        Raises:
            ToolchainError: The library cannot do this product, or does not work here.
            DeviceError: The device fails, or has no room for the workspace.
        """
        ...

    def launch(self, stream: int, index: int) -> None:
        """Enqueues the product of one buffer set, and does nothing that a graph could not record.

        Raises:
            DeviceError: The library refuses.
        """
        ...

    def close(self) -> None:
        """Frees what `prepare` made, once the streams are idle; may be called twice."""
        ...


_MAKERS: Mapping[str, Callable[[GemmCall, int], Library]] = {
    "torch": TorchLibrary,
    "cublas": CublasLibrary,
    "cublaslt": lambda call, workspace_bytes: CublasLtLibrary(call, workspace_bytes, tuned=False),
    "cublaslt-tuned": lambda call, workspace_bytes: CublasLtLibrary(call, workspace_bytes, tuned=True),
}


def baseline_names() -> tuple[str, ...]:
    """`torch` (its `matmul`), `cublas`, `cublaslt` by its heuristic, and `cublaslt-tuned` over all that it offers."""
    return tuple(_MAKERS)


def make_library(
    name: str, *, layout: Layout, accumulate: Accumulate, sizes: tuple[int, int, int, int], workspace_bytes: int
) -> Library:
    """A baseline that is not prepared yet; loads the library, and touches no device.

    Args:
        name: One of `baseline_names()`.
        layout: `nn` for B as (BATCH, K, N), `nt` for (BATCH, N, K).
        accumulate: Format of the sums, `fp32` or `fp16`.
        sizes: M, N, K, BATCH.
        workspace_bytes: Scratch memory that the library may use; the same for all, so that none wins by it.

    Raises:
        ConfigurationError: There is no such baseline, layout, accumulator or size.
        ToolchainError: The library is missing, too old, or does not load.
    """
    if name not in _MAKERS:
        raise ConfigurationError("no such baseline", expected=f"one of {', '.join(_MAKERS)}", found=repr(name))
    if workspace_bytes < 0 or workspace_bytes % 1024:
        raise ConfigurationError("no such workspace", expected="a multiple of 1,024 bytes", found=str(workspace_bytes))
    return _MAKERS[name](GemmCall(layout, accumulate, sizes), workspace_bytes)
