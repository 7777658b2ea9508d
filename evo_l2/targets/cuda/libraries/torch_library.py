"""`torch.matmul` as a baseline, on tensors that stand for buffers of ours."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from evo_l2.errors import DeviceError, ToolchainError
from evo_l2.targets.cuda.libraries.gemm_call import GemmCall, checked_sets

__all__ = ["TorchLibrary"]

_WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Tells torch where an array lies on the device."""

    __cuda_array_interface__: Mapping[str, object]


class TorchLibrary:
    """`torch.matmul(a, b, out=c)`. See `evo_l2.targets.cuda.libraries.library.Library`.

    torch takes the size of its workspace from the environment at its first product and keeps it, so that `prepare` sets
    `CUBLAS_WORKSPACE_CONFIG` for the whole process. The stream and the format of sums are states of torch as well. They are
    set when they change rather than around every launch, which a user of torch would not pay for either.
    """

    _state: ClassVar[tuple[int, bool] | None] = None
    """Stream and whether sums may be in half, as some library of this process set them last."""

    def __init__(self, call: GemmCall, workspace_bytes: int) -> None:
        self._torch = _load_torch()
        self._call = call
        self._workspace_bytes = workspace_bytes
        self._switches = self._torch.backends.cuda.matmul
        if call.accumulate == "fp16" and not hasattr(self._switches, "allow_fp16_accumulation"):
            raise _missing("torch 2.7 or newer, which can sum in half", f"torch {self._torch.__version__}")
        self._operands: tuple[tuple[Any, Any, Any], ...] = ()
        self._half_sums = call.accumulate == "fp16"
        self._is_prepared = False

    @property
    def name(self) -> str:
        """See `Library`."""
        return "torch"

    @property
    def description(self) -> str:
        """See `Library`."""
        version = f"torch {self._torch.__version__} (CUDA {self._torch.version.cuda})"
        return f"{version}, matmul, its own choice, workspace {self._workspace_bytes} bytes"

    def prepare(self, stream: int, sets: Sequence[Mapping[str, int]]) -> None:
        """See `Library`."""
        self.close()
        whole = checked_sets(sets)
        os.environ[_WORKSPACE_VARIABLE] = f":{self._workspace_bytes // 1024}:1"
        try:
            self._operands = tuple(self._tensors(buffers) for buffers in whole)
            self._is_prepared = True
            self.launch(stream, 0)
            self._torch.cuda.current_stream().synchronize()
        except RuntimeError as error:
            self.close()
            raise DeviceError("torch fails", expected="a product", found=str(error)) from error
        except BaseException:
            self.close()
            raise

    def launch(self, stream: int, index: int) -> None:
        """See `Library`."""
        if TorchLibrary._state != (stream, self._half_sums):
            self._switch(stream)
        a, b, c = self._operands[index]
        try:
            self._torch.matmul(a, b, out=c)
        except RuntimeError as error:
            raise DeviceError("torch refuses a product", expected=f"{self._call}", found=str(error)) from error

    def close(self) -> None:
        """See `Library`."""
        self._operands = ()
        if TorchLibrary._state is not None and self._is_prepared:
            self._torch.cuda.set_stream(self._torch.cuda.default_stream())
            TorchLibrary._state = None
        self._is_prepared = False

    def _switch(self, stream: int) -> None:
        self._torch.cuda.set_stream(self._torch.cuda.ExternalStream(stream))
        self._switches.allow_fp16_reduced_precision_reduction = self._half_sums
        if hasattr(self._switches, "allow_fp16_accumulation"):
            self._switches.allow_fp16_accumulation = self._half_sums
        TorchLibrary._state = (stream, self._half_sums)

    def _tensors(self, buffers: Mapping[str, int]) -> tuple[Any, Any, Any]:
        """A, B and C as torch multiplies them: matrices where there is one of each, else batches."""
        a, b, c = (self._tensor(name, buffers[name]) for name in ("A", "B", "C"))
        return a, b if self._call.layout == "nn" else b.transpose(-2, -1), c

    def _tensor(self, name: str, address: int) -> Any:
        shape = self._call.row_major(name)
        interface = {
            "shape": shape if self._call.batch > 1 else shape[1:],
            "typestr": "<f2",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
        tensor = self._torch.as_tensor(_Buffer(interface), device="cuda")
        if tensor.data_ptr() != address:
            raise DeviceError("torch copies a buffer", expected=hex(address), found=hex(tensor.data_ptr()))
        return tensor


def _load_torch() -> Any:
    """The module.

    Raises:
        ToolchainError: It is missing, or was built without CUDA.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise _missing("torch, built for CUDA", str(error)) from error
    if torch.version.cuda is None:
        raise _missing("torch, built for CUDA", f"torch {torch.__version__}")
    return torch


def _missing(expected: str, found: str) -> ToolchainError:
    hint = "pip install torch (https://pytorch.org/get-started tells the index), or leave the baseline torch out"
    return ToolchainError("a baseline is missing", expected=expected, found=found, hint=hint)
