"""The few calls of the CUDA driver that the runner and the judge make, by `cuda-bindings`, with errors as exceptions.

cupy has no tensor maps, no launches in clusters and no memory that two processes share with unmapped pages around it; all
three are the driver's, so that whatever touches a candidate goes through it. Both sides use the device's primary context,
which cupy, torch and the vendor's libraries share.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from evo_l2.errors import ToolchainError

__all__ = ["CudaError", "bindings", "checked", "encode_tensor_map", "recorded_graph", "retain_context"]


class CudaError(Exception):
    """A call of the driver failed.

    Attributes:
        code: The driver's number, for instance 700.
        name: Its name, for instance `CUDA_ERROR_ILLEGAL_ADDRESS`.
    """

    def __init__(self, code: int, name: str) -> None:
        self.code = code
        self.name = name
        super().__init__(f"{name} ({code})")


def bindings() -> Any:
    """The module `cuda.bindings.driver`.

    Raises:
        ToolchainError: It is not installed.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        hint = "pip install 'evo-l2[cuda13]' (or cuda12)"
        raise ToolchainError("kernels cannot be run", expected="cuda-bindings", found=str(error), hint=hint) from error
    return driver


def checked(result: Any) -> Any:
    """What a call returned behind its status: nothing, one value, or several.

    Raises:
        CudaError: The status is an error.
    """
    status, *values = result
    if int(status) != 0:
        raise CudaError(int(status), getattr(status, "name", str(status)))
    return values[0] if len(values) == 1 else tuple(values) if values else None


def retain_context(device: int) -> Any:
    """Makes a device's primary context this thread's; returns the device.

    Raises:
        CudaError: There is no driver, no such device, or no room on it.
    """
    cu = bindings()
    checked(cu.cuInit(0))
    handle = checked(cu.cuDeviceGet(device))
    checked(cu.cuCtxSetCurrent(checked(cu.cuDevicePrimaryCtxRetain(handle))))
    return handle


def recorded_graph(stream: Any, enqueue: Callable[[], None]) -> Any:
    """What `enqueue` puts on a stream, as a graph that can be launched and has been uploaded; to be destroyed by its owner.

    Raises:
        CudaError: It cannot be recorded.
    """
    cu = bindings()
    checked(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    try:
        enqueue()
    except BaseException:
        with contextlib.suppress(CudaError):
            checked(cu.cuGraphDestroy(checked(cu.cuStreamEndCapture(stream))))
        raise
    graph = checked(cu.cuStreamEndCapture(stream))
    try:
        executable = checked(cu.cuGraphInstantiate(graph, 0))
    finally:
        cu.cuGraphDestroy(graph)
    try:
        checked(cu.cuGraphUpload(executable, stream))
    except BaseException:
        cu.cuGraphExecDestroy(executable)
        raise
    return executable


_PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_TYPES = {"float16": "FLOAT16", "float32": "FLOAT32"}


def encode_tensor_map(
    dtype: str,
    address: int,
    shape: Sequence[int],
    strides_bytes: Sequence[int],
    box: Sequence[int],
    swizzle_bytes: int,
    promotion_bytes: int,
) -> bytes:
    """A `CUtensorMap` of an array in row-major order, as the 128 bytes that a kernel takes.

    Args:
        dtype: A numpy name.
        address: Where the array begins on the device.
        shape: Elements along each dimension, outermost first.
        strides_bytes: Of every dimension but the innermost, outermost first.
        box: Elements that one copy takes, outermost first.
        swizzle_bytes: 0, 32, 64 or 128.
        promotion_bytes: 0, 64, 128 or 256.

    Raises:
        CudaError: The driver does not take it.
    """
    cu = bindings()
    encoded = checked(
        cu.cuTensorMapEncodeTiled(
            getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[dtype]}"),
            len(shape),
            address,
            [cu.cuuint64_t(size) for size in reversed(shape)],
            [cu.cuuint64_t(stride) for stride in reversed(strides_bytes)],
            [cu.cuuint32_t(size) for size in reversed(box)],
            [cu.cuuint32_t(1)] * len(box),
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[swizzle_bytes]}"),
            getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{_PROMOTIONS[promotion_bytes]}"),
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(encoded.getPtr(), 128)
