"""A runner as the judge sees it: operands and workspaces of one problem at one of its cases."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from evo_l2.draws import HostDraws
from evo_l2.judge import Fault, FaultKind
from evo_l2.problem import Instance
from evo_l2.targets.cpu.blas import BLAS_ENVIRON
from evo_l2.targets.cpu.runner import BufferSpec, RunKind, Runner

__all__ = ["CpuStage"]

_MOST_STACKED = 1 << 17

_FAULTS = {
    RunKind.SIGNAL: FaultKind.CRASH,
    RunKind.TIMEOUT: FaultKind.TIME_LIMIT,
    RunKind.FORBIDDEN: FaultKind.SYSTEM_CALL,
    RunKind.EXITED: FaultKind.EARLY_EXIT,
}


class CpuStage:
    """One library loaded in one runner process, with buffers for one case. A context manager.

    Args:
        binary: The compiled runner.
        library: What is run.
        instance: Case and layout.
        workspace_bytes: Size of every workspace, in the order in which the entry takes them.
        n_sets: Number of buffer sets.
        core: Processor that calls run on.
        call_s: Seconds that one call may take.
        trusted: For a baseline.
        entry: Name of the entry in the library.

    Raises:
        LoadFailed: The library does not load.
        DeviceError: The runner does not start.
    """

    def __init__(
        self,
        binary: Path,
        library: Path,
        instance: Instance,
        workspace_bytes: Mapping[str, int],
        *,
        n_sets: int,
        core: int,
        call_s: float,
        trusted: bool = False,
        entry: str = "evo_entry",
    ) -> None:
        self._instance = instance
        self._workspace_bytes = dict(workspace_bytes)
        self._call_s = call_s
        self._shapes = {operand.name: (operand.dtype, instance.shape(operand)) for operand in instance.problem.operands}
        self._runner = Runner(
            binary,
            library,
            [BufferSpec(n, math.prod(shape) * np.dtype(dtype).itemsize) for n, (dtype, shape) in self._shapes.items()],
            n_sets,
            [BufferSpec(name, n_bytes) for name, n_bytes in workspace_bytes.items()],
            instance.sizes,
            core,
            trusted=trusted,
            environ=BLAS_ENVIRON if trusted else None,
            entry=entry,
        )

    def __enter__(self) -> CpuStage:
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
        return self._runner.n_sets

    @property
    def most_stacked(self) -> int:
        """What the processor's caches hold."""
        return _MOST_STACKED

    @property
    def most_checked(self) -> int:
        """See `evo_l2.judge.Stage`: all."""
        return sys.maxsize

    def draws(self, seed: np.random.SeedSequence) -> HostDraws:
        """See `evo_l2.judge.Stage`."""
        return HostDraws(np.random.default_rng(seed))

    def stacked(self, first: int, n_sets: int) -> dict[str, NDArray[np.generic]]:
        """See `evo_l2.judge.Stage`."""
        shapes = self._shapes.items()
        return {name: self._runner.stacked(first, n_sets, name, dtype, shape) for name, (dtype, shape) in shapes}

    def workspaces(self) -> dict[str, NDArray[np.uint8]]:
        """See `evo_l2.judge.Stage`."""
        views = {name: self._runner.array(0, name, np.uint8, (size,)) for name, size in self._workspace_bytes.items()}
        return {name: view.view(np.uint8) for name, view in views.items()}

    def run(self, first: int, n_calls: int) -> int | Fault:
        """See `evo_l2.judge.Stage`."""
        result = self._runner.run(first, n_calls, wall_s=self._call_s * n_calls)
        if result.kind is RunKind.OK and result.ns is not None:
            return result.ns
        return Fault(_FAULTS[result.kind], result.detail)

    def damaged_guard(self, index: int) -> str | None:
        """See `evo_l2.judge.Stage`."""
        return self._runner.damaged_guard(index)

    def close(self) -> None:
        """Ends the runner; may be called twice."""
        self._runner.close()
