"""What the vendor's libraries share: their bindings, their number formats, and their scratch memory."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evo_l2.errors import DeviceError, ToolchainError
from evo_l2.targets.cuda.driver import CudaError, bindings, checked
from evo_l2.targets.cuda.libraries.gemm_call import Accumulate

__all__ = ["HALF", "Arithmetic", "Workspace", "load_bindings", "version_of"]

HALF = 2
"""`CUDA_R_16F` of `cudaDataType`."""
_SINGLE = 0
"""`CUDA_R_32F`."""
_COMPUTE_16F = 64
_COMPUTE_32F = 68
"""Of `cublasComputeType_t`."""


class Arithmetic:
    """Formats of one class of products, and the scalars that a call takes: alpha is one, beta zero.

    Attributes:
        compute_type: A `cublasComputeType_t`.
        scale_type: A `cudaDataType`. A scale in half makes cuBLASLt refuse single-precision sums, and the reverse.
        alpha: Host address of a one, which lives as long as this object.
        beta: Host address of a zero.
    """

    def __init__(self, accumulate: Accumulate) -> None:
        self.compute_type, self.scale_type = (_COMPUTE_32F, _SINGLE) if accumulate == "fp32" else (_COMPUTE_16F, HALF)
        self._scalars: NDArray[np.generic] = np.array([1, 0], np.float32 if accumulate == "fp32" else np.float16)
        self.alpha = int(self._scalars.ctypes.data)
        self.beta = self.alpha + self._scalars.itemsize


class Workspace:
    """Device memory of one library.

    Args:
        n_bytes: May be 0.

    Raises:
        DeviceError: There is no room.
    """

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.address = 0
        if n_bytes:
            try:
                self.address = int(checked(bindings().cuMemAlloc(n_bytes)))
            except CudaError as error:
                raise DeviceError(
                    "no workspace for a baseline", expected=f"{n_bytes} free bytes", found=str(error)
                ) from error

    def close(self) -> None:
        """Frees it; may be called twice."""
        if self.address:
            bindings().cuMemFree(self.address)
            self.address = 0


def load_bindings(name: str) -> Any:
    """A module of `nvmath.bindings`, its library loaded.

    Args:
        name: `cublas` or `cublasLt`.

    Raises:
        ToolchainError: The bindings or the library are missing, or do not fit together.
    """
    hint = "pip install 'evo-l2[cuda13]' (or cuda12)"
    try:
        module: Any = importlib.import_module(f"nvmath.bindings.{name}")
        module.get_property(0)
    except (ImportError, OSError, RuntimeError) as error:
        expected = f"nvmath-python and a lib{name} that it finds"
        raise ToolchainError("a baseline is missing", expected=expected, found=str(error), hint=hint) from error
    return module


def version_of(module: Any) -> str:
    """Of the library behind the bindings: `13.1.0`."""
    return ".".join(str(module.get_property(part)) for part in range(3))
