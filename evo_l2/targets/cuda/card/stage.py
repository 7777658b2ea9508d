"""A runner as the judge sees it: operands and workspaces of one case, in device memory that both processes map.

The judge's own context draws inputs straight into the runner's buffers and reads outputs there; references never leave it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from evo_l2.errors import DeviceError, ToolchainError
from evo_l2.judge import Fault, FaultKind
from evo_l2.problem import Instance
from evo_l2.targets.cuda.card.draws import CardDraws
from evo_l2.targets.cuda.card.memory import Mapping as Mapped
from evo_l2.targets.cuda.card.memory import Region, close_all, import_region
from evo_l2.targets.cuda.card.runner import Runner, RunnerFault, Sample
from evo_l2.targets.cuda.driver import CudaError

__all__ = ["CardStage", "load_cupy"]

T = TypeVar("T")

_PATTERN_BYTES = 256
_MOST_STACKED = 1 << 25
_MOST_CHECKED = 1 << 26
_GUARD_BYTES = 64 * 1024
"""How far before the first set of a region is looked for writes."""


def load_cupy() -> Any:
    """The module cupy, which makes and checks what kernels multiply.

    Raises:
        ToolchainError: It is missing, or does not load.
    """
    try:
        return importlib.import_module("cupy")
    except (ImportError, OSError, RuntimeError) as error:
        hint = "pip install 'evo-l2[cuda13]' (or cuda12)"
        raise ToolchainError("kernels cannot be judged", expected="cupy", found=str(error), hint=hint) from error


class CardStage:
    """Memory of one case in a runner, mapped in this process. A context manager; the runner stays open.

    Args:
        runner: Whose context owns the memory.
        device: The card's index.
        instance: Case and layout.
        workspace_bytes: Size of every workspace.
        n_sets: Number of buffer sets.
        call_s: Seconds that one call may take.

    Raises:
        DeviceError: There is no room, or the memory cannot be shared.
        ToolchainError: cupy is missing.
    """

    def __init__(
        self,
        runner: Runner,
        device: int,
        instance: Instance,
        workspace_bytes: Mapping[str, int],
        *,
        n_sets: int,
        call_s: float,
    ) -> None:
        cupy = self._cupy = load_cupy()
        self._runner = runner
        self._instance = instance
        self._n_sets = n_sets
        self._call_s = call_s
        self._mapped: dict[str, Mapped] = {}
        self._whole: dict[str, Any] = {}
        self._operands = {o.name: (np.dtype(o.dtype), instance.shape(o)) for o in instance.problem.operands}
        self._workspace_bytes = dict(workspace_bytes)
        operands = tuple(Region(n, math.prod(shape) * t.itemsize, n_sets) for n, (t, shape) in self._operands.items())
        workspaces = tuple(Region(name, n_bytes) for name, n_bytes in workspace_bytes.items())
        cupy.cuda.Device(device).use()
        descriptors = runner.allocate(operands, workspaces)
        try:
            with _in_words(), _closing(descriptors):
                for region in (*operands, *workspaces):
                    self._mapped[region.name] = import_region(region, device, descriptors.pop(0))
            pattern = np.frombuffer(os.urandom(_PATTERN_BYTES), dtype=np.uint8)
            self._pattern = cupy.asarray(np.tile(pattern, 2 + _GUARD_BYTES // _PATTERN_BYTES))
            for name, mapped in self._mapped.items():
                memory = cupy.cuda.UnownedMemory(mapped.base, mapped.n_bytes, mapped, device)
                whole = cupy.ndarray((mapped.n_bytes,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))
                whole.reshape(-1, _PATTERN_BYTES)[:] = self._pattern[:_PATTERN_BYTES]
                self._whole[name] = whole
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CardStage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def instance(self) -> Instance:
        """See `evo_l2.judge.Stage`."""
        return self._instance

    @property
    def n_sets(self) -> int:
        """See `evo_l2.judge.Stage`."""
        return self._n_sets

    def draws(self, seed: np.random.SeedSequence) -> CardDraws:
        """See `evo_l2.judge.Stage`."""
        return CardDraws(seed)

    @property
    def most_stacked(self) -> int:
        """See `evo_l2.judge.Stage`."""
        return _MOST_STACKED

    @property
    def most_checked(self) -> int:
        """See `evo_l2.judge.Stage`: a pass in double precision over more takes longer than what is timed."""
        return _MOST_CHECKED

    def stacked(self, first: int, n_calls: int) -> dict[str, Any]:
        """See `evo_l2.judge.Stage`."""
        stacked = {}
        for name, (dtype, shape) in self._operands.items():
            mapped = self._mapped[name]
            begin = mapped.address(first) - mapped.base
            flat = self._whole[name][begin:].data
            strides = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
            stride = mapped.region.stride_bytes
            stacked[name] = self._cupy.ndarray((n_calls, *shape), dtype, flat, (stride, *strides))
        return stacked

    def workspaces(self) -> dict[str, Any]:
        """See `evo_l2.judge.Stage`."""
        spaces = {}
        for name, n_bytes in self._workspace_bytes.items():
            begin = self._mapped[name].first
            spaces[name] = self._whole[name][begin : begin + n_bytes]
        return spaces

    def run(self, first: int, n_calls: int) -> int | Fault:
        """See `evo_l2.judge.Stage`.

        Raises:
            Refused: The driver refuses the launch.
        """
        return self._asked(lambda: self._runner.run(first, n_calls, self._call_s * n_calls))

    def replay(self, n_calls: int) -> Sample | Fault:
        """Device time of one call on each of the first sets, by a graph. Raises as `run` does."""
        return self._asked(lambda: self._runner.replay(n_calls, self._call_s * n_calls))

    def host(self, n_calls: int) -> list[int] | Fault:
        """Nanoseconds of one call on each of the first sets, from before its launch until it was waited for."""
        return self._asked(lambda: self._runner.host(n_calls, self._call_s * n_calls))

    def serve(self, arrivals_ns: tuple[int, ...]) -> list[int] | Fault:
        """Nanoseconds of each call from its arrival to its end, on the sets in turn."""
        return self._asked(lambda: self._runner.serve(arrivals_ns, arrivals_ns[-1] * 1e-9 + self._call_s * len(arrivals_ns)))

    def damaged_guard(self, index: int) -> str | None:
        """See `evo_l2.judge.Stage`."""
        for name, mapped in self._mapped.items():
            region, own = mapped.region, index if name in self._operands else 0
            begin = mapped.address(own) - mapped.base
            end = begin + region.n_bytes
            last = own == region.n_sets - 1
            before = max(0, begin - (_GUARD_BYTES if own == 0 else region.stride_bytes - region.n_bytes))
            pieces = ((before, begin), (end, mapped.n_bytes if last else begin + region.stride_bytes))
            if any(not self._is_intact(name, *piece) for piece in pieces):
                return name
        return None

    def settle(self) -> None:
        """Waits until what this process enqueued is done."""
        self._cupy.cuda.get_current_stream().synchronize()

    def close(self) -> None:
        """Unmaps this process's view; may be called twice."""
        self.settle()
        self._whole.clear()
        for mapped in self._mapped.values():
            mapped.close()
        self._mapped.clear()

    def _asked(self, ask: Callable[[], T]) -> T | Fault:
        """What the runner answers once this process has done with the memory; a fault in the kernel is an answer, too."""
        self.settle()
        try:
            return ask()
        except RunnerFault as error:
            return _fault(error, self._call_s)

    def _is_intact(self, name: str, begin: int, end: int) -> bool:
        if begin >= end:
            return True
        start = begin % _PATTERN_BYTES
        expected = self._pattern[start : start + end - begin]
        return bool((self._whole[name][begin:end] == expected).all())


def _fault(error: RunnerFault, call_s: float) -> Fault:
    if error.is_time_limit:
        return Fault(FaultKind.TIME_LIMIT, f"a call took longer than {call_s:g} s")
    return Fault(FaultKind.CRASH, str(error))


@contextlib.contextmanager
def _closing(descriptors: list[int]) -> Iterator[None]:
    """Closes what is left of them."""
    try:
        yield
    finally:
        close_all(descriptors)


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except CudaError as error:
        hint = "evo-l2 doctor"
        raise DeviceError("device memory cannot be shared between two processes", found=str(error), hint=hint) from error
