"""Launches recorded into a CUDA graph and timed by events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evo_l2.targets.cuda.driver import bindings, checked, recorded_graph

__all__ = ["LaunchGraph"]


class LaunchGraph:
    """A number of launches as one graph.

    Args:
        stream: Handle of the stream that records and runs it.
        n_launches: How many.
        launch: Enqueues the launch of a number, from 0.

    Raises:
        CudaError: The launches cannot be recorded.
    """

    def __init__(self, stream: int, n_launches: int, launch: Callable[[int], None]) -> None:
        cu = bindings()
        self._stream = stream
        self._n_launches = n_launches
        self._events: tuple[Any, ...] = ()

        def enqueue() -> None:
            for number in range(n_launches):
                launch(number)

        self._executable: Any = recorded_graph(stream, enqueue)
        try:
            self._events = tuple(checked(cu.cuEventCreate(0)) for _ in range(2))
            checked(cu.cuStreamSynchronize(stream))
        except BaseException:
            self.close()
            raise

    def sample_us(self) -> float:
        """Device time of one launch, averaged over the graph's.

        Raises:
            CudaError: The device fails.
        """
        cu = bindings()
        start, end = self._events
        checked(cu.cuEventRecord(start, self._stream))
        checked(cu.cuGraphLaunch(self._executable, self._stream))
        checked(cu.cuEventRecord(end, self._stream))
        checked(cu.cuEventSynchronize(end))
        return float(checked(cu.cuEventElapsedTime(start, end))) * 1000.0 / self._n_launches

    def close(self) -> None:
        """Frees it; may be called twice."""
        cu = bindings()
        for event in self._events:
            cu.cuEventDestroy(event)
        if self._executable is not None:
            cu.cuGraphExecDestroy(self._executable)
        self._executable, self._events = None, ()
