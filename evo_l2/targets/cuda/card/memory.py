"""Device memory that the runner owns and the judge maps too: operands and workspaces with guards on both sides.

A region holds one operand of every buffer set, at equal distances, and ends where its last set does. Pages that are not
mapped lie before and behind it, so that an access outside faults; what lies between the sets, and from the first mapped byte
to the first set, is filled with a secret pattern, so that a write there shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from evo_l2.targets.cuda.driver import bindings, checked

__all__ = ["ALIGNMENT_BYTES", "GAP_BYTES", "Mapping", "Region", "close_all", "create", "import_region"]

ALIGNMENT_BYTES = 256
"""Every operand of every set begins at a multiple of it, as with `cudaMalloc`."""
GAP_BYTES = 1024
"""Least distance between the end of an operand and the next set's."""


@dataclass(frozen=True, slots=True)
class Region:
    """One operand, or workspace, of `n_sets` buffer sets."""

    name: str
    n_bytes: int
    """Of one set."""
    n_sets: int = 1

    @property
    def slot_bytes(self) -> int:
        """What one set takes without its gap."""
        return -(-max(self.n_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def stride_bytes(self) -> int:
        """From one set to the next."""
        return self.slot_bytes + GAP_BYTES

    def mapped_bytes(self, granularity: int) -> int:
        """Size of the mapping: a multiple of the driver's granularity that leaves a gap before the first set."""
        return -(-self.n_sets * self.stride_bytes // granularity) * granularity

    def first(self, granularity: int) -> int:
        """Where the first set begins in the mapping; the last one ends at its end, but for what alignment asks."""
        return self.mapped_bytes(granularity) - (self.n_sets - 1) * self.stride_bytes - self.slot_bytes

    def offset(self, index: int, granularity: int) -> int:
        """Where a set begins in the mapping."""
        return self.first(granularity) + index * self.stride_bytes


class Mapping:
    """A region's memory, mapped in this process with unmapped pages on both sides.

    Args:
        region: What it holds.
        device: Index of the device.
        handle: The driver's handle of the memory; given back where it cannot be mapped.
        granularity: The driver's grain of mappings, in bytes.

    Raises:
        CudaError: It cannot be mapped.
    """

    def __init__(self, region: Region, device: int, handle: Any, granularity: int) -> None:
        cu = bindings()
        self.region = region
        self._handle = handle
        self._granularity = granularity
        self._n_bytes = region.mapped_bytes(granularity)
        self._reserved: Any = None
        self._is_mapped = False
        access = cu.CUmemAccessDesc()
        access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = device
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        try:
            self._reserved = checked(cu.cuMemAddressReserve(self._n_bytes + 2 * granularity, granularity, 0, 0))
            self._base = int(self._reserved) + granularity
            checked(cu.cuMemMap(self._base, self._n_bytes, 0, handle, 0))
            self._is_mapped = True
            checked(cu.cuMemSetAccess(self._base, self._n_bytes, [access], 1))
        except BaseException:
            self.close()
            raise

    @property
    def base(self) -> int:
        """Address of the first mapped byte."""
        return self._base

    @property
    def n_bytes(self) -> int:
        """Mapped bytes."""
        return self._n_bytes

    @property
    def first(self) -> int:
        """Offset of the first set."""
        return self.region.first(self._granularity)

    def address(self, index: int = 0) -> int:
        """Where a set begins."""
        return self._base + self.region.offset(index, self._granularity)

    def export(self) -> int:
        """A file descriptor that another process can map the memory from; the caller closes it.

        Raises:
            CudaError: The driver does not share memory here.
        """
        cu = bindings()
        kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return int(checked(cu.cuMemExportToShareableHandle(self._handle, kind, 0)))

    def close(self) -> None:
        """Unmaps and frees it; may be called twice."""
        if self._handle is None:
            return
        cu = bindings()
        if self._is_mapped:
            cu.cuMemUnmap(self._base, self._n_bytes)
        if self._reserved is not None:
            cu.cuMemAddressFree(self._reserved, self._n_bytes + 2 * self._granularity)
        cu.cuMemRelease(self._handle)
        self._handle = None


def close_all(descriptors: Iterable[int]) -> None:
    """Closes what was exported or received."""
    for descriptor in descriptors:
        os.close(descriptor)


def create(region: Region, device: int) -> Mapping:
    """Fresh memory for a region.

    Raises:
        CudaError: There is no room, or the device cannot do it.
    """
    cu = bindings()
    properties, granularity = _properties(device)
    handle = checked(cu.cuMemCreate(region.mapped_bytes(granularity), properties, 0))
    return Mapping(region, device, handle, granularity)


def import_region(region: Region, device: int, descriptor: int) -> Mapping:
    """Maps what another process exported; closes the descriptor.

    Raises:
        CudaError: It cannot be mapped.
    """
    try:
        cu = bindings()
        kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        granularity = _properties(device)[1]
        handle = checked(cu.cuMemImportFromShareableHandle(descriptor, kind))
    finally:
        os.close(descriptor)
    return Mapping(region, device, handle, granularity)


def _properties(device: int) -> tuple[Any, int]:
    """What memory is asked for, and the grain of its mappings in bytes."""
    cu = bindings()
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    properties.requestedHandleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    flags = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return properties, int(checked(cu.cuMemGetAllocationGranularity(properties, flags)))
