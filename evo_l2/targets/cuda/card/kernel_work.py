"""What the runner launches for one call: a kernel's launches on a buffer set, arguments and tensor maps made beforehand."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from evo_l2.launch import Role
from evo_l2.targets.cuda.driver import bindings, checked, encode_tensor_map
from evo_l2.targets.cuda.launching.plan import Plan, PlannedLaunch

__all__ = ["KernelWork", "Work"]

_PORTABLE_CLUSTER = 8
_MAP_ALIGNMENT = 64


class Work(Protocol):
    """Something that can be called on any of its buffer sets, inside a graph too."""

    def launch(self, stream: int, index: int) -> None:
        """Enqueues one call on one set.

        Raises:
            CudaError: It cannot be launched.
        """
        ...

    def close(self) -> None:
        """Unloads it; may be called twice."""
        ...


class KernelWork:
    """A candidate's launches.

    Args:
        cubin: What is loaded.
        plan: Its launches at one case.
        sets: Addresses of the operands, for each buffer set.
        workspaces: Addresses of the workspaces, which all sets share.

    Raises:
        CudaError: It does not load, or has no such entry.
    """

    def __init__(self, cubin: bytes, plan: Plan, sets: Sequence[Mapping[str, int]], workspaces: Mapping[str, int]) -> None:
        cu = bindings()
        self._cu = cu
        self._zeroed = [
            (workspaces[space.name], space.n_bytes) for space in plan.workspaces if space.zeroed and space.n_bytes
        ]
        self._module = checked(cu.cuModuleLoadData(cubin))
        try:
            self._functions = {entry: checked(cu.cuModuleGetFunction(self._module, entry.encode())) for entry in plan.entries}
            for entry, function in self._functions.items():
                self._allow(function, [launch for launch in plan.launches if launch.entry == entry])
            self._calls = [self._bind(plan, {**workspaces, **operands}) for operands in sets]
        except BaseException:
            self.close()
            raise

    def launch(self, stream: int, index: int) -> None:
        """See `Work`."""
        for address, n_bytes in self._zeroed:
            checked(self._cu.cuMemsetD8Async(address, 0, n_bytes, stream))
        for config, function, arguments in self._calls[index]:
            config.hStream = self._cu.CUstream(stream)
            checked(self._cu.cuLaunchKernelEx(config, function, arguments.pointers, 0))

    def close(self) -> None:
        """See `Work`."""
        if self._module is not None:
            self._cu.cuModuleUnload(self._module)
            self._module = None

    def _allow(self, function: Any, launches: Sequence[PlannedLaunch]) -> None:
        """Asks for what an entry's launches need and not every kernel may have."""
        attributes = self._cu.CUfunction_attribute
        shared_bytes = max(launch.shared_bytes for launch in launches)
        # Without being asked for, 48 KiB are allowed, but its static arrays are taken off that.
        if shared_bytes > 0:
            wanted = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(self._cu.cuFuncSetAttribute(function, wanted, shared_bytes))
        if max(math.prod(launch.cluster or (1,)) for launch in launches) > _PORTABLE_CLUSTER:
            wanted = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            checked(self._cu.cuFuncSetAttribute(function, wanted, 1))

    def _bind(self, plan: Plan, addresses: Mapping[str, int]) -> list[tuple[Any, Any, _Arguments]]:
        """The launches of one call."""
        maps = {
            tensor.name: encode_tensor_map(
                tensor.dtype,
                addresses[tensor.operand],
                tensor.shape,
                tensor.strides_bytes,
                tensor.box,
                tensor.swizzle_bytes,
                tensor.promotion_bytes,
            )
            for tensor in plan.tensor_maps
        }
        return [
            (self._config(launch), self._functions[launch.entry], _Arguments(launch, addresses, maps))
            for launch in plan.launches
        ]

    def _config(self, launch: PlannedLaunch) -> Any:
        cu = self._cu
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes = launch.shared_bytes
        if launch.cluster is not None:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            shape = attribute.value.clusterDim
            shape.x, shape.y, shape.z = launch.cluster
            config.attrs = [attribute]
            config.numAttrs = 1
        return config


class _Arguments:
    """Arguments of one launch in the host's memory, as the driver takes them."""

    def __init__(self, launch: PlannedLaunch, addresses: Mapping[str, int], maps: Mapping[str, bytes]) -> None:
        self._values: list[Any] = []
        places = []
        for argument in launch.arguments:
            if argument.role is Role.MAP:
                place = self._aligned(maps[argument.name])
            else:
                size = argument.value
                holder = ctypes.c_int(size) if size is not None else ctypes.c_uint64(addresses[argument.name])
                self._values.append(holder)
                place = ctypes.addressof(holder)
            places.append(place)
        self._pointers = (ctypes.c_void_p * max(1, len(places)))(*places)
        self.pointers = ctypes.addressof(self._pointers)
        """Address of the array of pointers to the arguments."""

    def _aligned(self, content: bytes) -> int:
        """Copies bytes to where a tensor map may lie."""
        memory = ctypes.create_string_buffer(len(content) + _MAP_ALIGNMENT)
        self._values.append(memory)
        place = -(-ctypes.addressof(memory) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        ctypes.memmove(place, content, len(content))
        return place
