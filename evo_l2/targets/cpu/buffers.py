"""The memory that harness and kernel share: every buffer ends at a page without access, and has canaries in its slack."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evo_l2.errors import DeviceError

__all__ = ["BufferSpec", "Memory"]

_ALIGNMENT = 64
_CANARY = 0xC5
_F_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 1, 2, 4


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One buffer of a kernel."""

    name: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class _Region:
    """Whole pages around one buffer, between two guard pages; offsets count from the start of a set, or of the memory."""

    name: str
    offset: int
    n_bytes: int
    data: int
    """Where the buffer starts in the region: it ends with the region, but for what its alignment leaves over."""
    n_data: int

    @property
    def words(self) -> tuple[int, int, int]:
        """As the runner reads it."""
        return self.offset, self.n_bytes, self.data


def _regions(specs: Sequence[BufferSpec], at: int) -> tuple[list[_Region], int]:
    """Lays buffers out from `at` on, a guard page before each; returns them and the offset of the guard page after them."""
    page = mmap.PAGESIZE
    regions = []
    for spec in specs:
        aligned = math.ceil(spec.n_bytes / _ALIGNMENT) * _ALIGNMENT
        n_bytes = max(page, math.ceil(aligned / page) * page)
        regions.append(_Region(spec.name, at + page, n_bytes, n_bytes - aligned, spec.n_bytes))
        at += page + n_bytes
    return regions, at


def _available_bytes() -> int | None:
    """What may still be allocated on this machine and in this process's control group; None where neither is known."""
    limits = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").split("0::/")[1].splitlines()[0]
        folder = Path("/sys/fs/cgroup") / group
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        limits.append(max(0, limit - int((folder / "memory.current").read_text(encoding="ascii"))))
    return min(limits, default=None)


class Memory:
    """Buffer sets and workspaces in one anonymous shared file.

    Guard pages are holes of the file that nobody maps with access on the kernel's side; they take no memory.

    Raises:
        DeviceError: There is not enough memory.
    """

    def __init__(self, buffers: Sequence[BufferSpec], n_sets: int, shared: Sequence[BufferSpec]) -> None:
        names = [spec.name for spec in (*buffers, *shared)]
        if len(set(names)) != len(names) or n_sets < 1 or any(spec.n_bytes < 0 for spec in (*buffers, *shared)):
            raise ValueError(f"expected one or more sets of buffers with different names, found {n_sets} of {names}")
        self._shared, self._sets_at = _regions(shared, 0)
        self._operands, self._set_bytes = _regions(buffers, 0)
        self._n_sets = n_sets
        self._n_bytes = self._sets_at + n_sets * self._set_bytes + mmap.PAGESIZE
        self.descriptor = os.memfd_create("evo-l2", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """The file, to be handed to the runner; -1 once closed."""
        try:
            self._allocate()
            self._map: mmap.mmap | None = mmap.mmap(self.descriptor, self._n_bytes)
        except OSError as error:
            os.close(self.descriptor)
            found = f"{self._n_bytes / 2**20:.0f} MiB asked for: {error}"
            # The file in memory counts as a file to the shell's limit of their size.
            too_large = error.errno == errno.EFBIG
            hint = "ulimit -f unlimited" if too_large else "free memory, or choose fewer or smaller shapes"
            raise DeviceError("no memory for the buffers", found=found, hint=hint) from error
        for _, start, region in self._places():
            self._paint(start, region)

    def _allocate(self) -> None:
        """Takes every page now, so that a machine without enough of them says so here.

        Asked for first, because the system grants such memory until it has to kill a process for it.
        """
        available = _available_bytes()
        if available is not None and self._n_bytes > available:
            raise OSError(errno.ENOMEM, f"{available / 2**20:.0f} MiB are free")
        os.ftruncate(self.descriptor, self._n_bytes)
        for _, start, region in self._places():
            os.posix_fallocate(self.descriptor, start, region.n_bytes)
        fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW)

    def _places(self) -> Iterator[tuple[int | None, int, _Region]]:
        """Set (None for a workspace), offset in the file, region."""
        for region in self._shared:
            yield None, region.offset, region
        for index in range(self._n_sets):
            for region in self._operands:
                yield index, self._sets_at + index * self._set_bytes + region.offset, region

    def setup(self, core: int, trusted: bool, n_sets: int, sizes: Sequence[int]) -> bytes:
        """The runner's first message, but for its magic word."""
        head = [core, int(trusted), n_sets, len(self._operands), len(self._shared), len(sizes)]
        head += [self._n_bytes, self._sets_at, self._set_bytes]
        regions = [word for region in (*self._operands, *self._shared) for word in region.words]
        words = [*head, *regions, *sizes]
        return struct.pack(f"={len(words)}q", *words)

    def array(self, set_index: int, name: str, dtype: DTypeLike, shape: Sequence[int]) -> NDArray[np.generic]:
        """A view of one buffer. See `Runner.array`."""
        start, region = self._find(set_index, name)
        kind = np.dtype(dtype)
        n_items = math.prod(shape)
        if n_items * kind.itemsize > region.n_data:
            raise ValueError(f"expected at most {region.n_data} bytes of {name}, found {tuple(shape)} of {kind}")
        view: NDArray[np.generic] = np.frombuffer(self._mapped(), kind, n_items, start + region.data).reshape(tuple(shape))
        return view

    def stacked(self, first: int, n_sets: int, name: str, dtype: DTypeLike, shape: Sequence[int]) -> NDArray[np.generic]:
        """A view of one buffer in several sets in a row, stacked along a new first axis."""
        if n_sets < 1 or first + n_sets > self._n_sets or all(region.name != name for region in self._operands):
            raise KeyError(f"{name} of {n_sets} sets from {first} on")
        one = self.array(first, name, dtype, shape)
        strides = (self._set_bytes, *one.strides)
        return np.lib.stride_tricks.as_strided(one, (n_sets, *one.shape), strides)

    def damaged_guard(self, set_index: int) -> str | None:
        """See `Runner.damaged_guard`."""
        base = self._sets_at + set_index * self._set_bytes
        regions = [(base + region.offset, region) for region in self._operands]
        for start, region in (*regions, *((region.offset, region) for region in self._shared)):
            if any((piece != _CANARY).any() for piece in self._canaries(start, region)):
                self._paint(start, region)
                return region.name
        return None

    def place(self, offset: int) -> str | None:
        """Where a byte of the memory lies, in words: within, before or after which buffer; None when far from all of them."""
        near = None
        for index, start, region in self._places():
            first = start + region.data
            last = first + region.n_data
            name = region.name if index is None or self._n_sets == 1 else f"{region.name} of set {index}"
            if first <= offset < last:
                return f"to byte {offset - first} of {name}, a set that was not handed over"
            distance, words = (first - offset, "before the start") if offset < first else (offset - last, "after the end")
            if near is None or distance < near[0]:
                near = distance, f"{distance} bytes {words} of {name}"
        return near[1] if near is not None and near[0] <= max(self._set_bytes, 1 << 20) else None

    def close(self) -> None:
        """Gives the memory back even while views of it are held; they read as zeros from then on. May be called twice."""
        if self.descriptor < 0:
            return
        mapped, self._map = self._map, None
        if mapped is not None:
            with contextlib.suppress(OSError):
                mapped.madvise(mmap.MADV_REMOVE)
            with contextlib.suppress(BufferError):
                mapped.close()
        os.close(self.descriptor)
        self.descriptor = -1

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            raise DeviceError("the runner is closed", hint="open a new one")
        return self._map

    def _find(self, set_index: int, name: str) -> tuple[int, _Region]:
        for region in self._shared:
            if region.name == name:
                return region.offset, region
        if not 0 <= set_index < self._n_sets:
            raise KeyError(f"set {set_index}")
        for region in self._operands:
            if region.name == name:
                return self._sets_at + set_index * self._set_bytes + region.offset, region
        raise KeyError(name)

    def _canaries(self, start: int, region: _Region) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The slack before and after a buffer."""
        whole = np.frombuffer(self._mapped(), np.uint8, region.n_bytes, start)
        return whole[: region.data], whole[region.data + region.n_data :]

    def _paint(self, start: int, region: _Region) -> None:
        for piece in self._canaries(start, region):
            piece[:] = _CANARY
