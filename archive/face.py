"""What every archive answers, whatever it keeps its rows in."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from archive.grid import Grid
from archive.view import View
from evo_l2.contracts import Elite
from evo_l2.kernel import Kernel

__all__ = ["Face"]


class Face:
    """The reading half of `evo_l2.contracts.Archive`, from a view. Methods may be called from several threads."""

    def __init__(self, view: View) -> None:
        self._lock = threading.RLock()
        self._view = view

    @property
    def n_candidates(self) -> int:
        """The next index."""
        return self._view.n_candidates

    @property
    def grid(self) -> Grid:
        """The grid, to be read."""
        return self._view.grid

    def find(self, *, digest: str | None = None, identity: str | None = None) -> str | None:
        """Digest of the known kernel; a source that was added as a duplicate answers with the kernel that it repeats."""
        return self._view.find(digest, identity)

    def elites(self) -> tuple[Elite, ...]:
        """One elite for each filled cell, in order of cell."""
        with self._lock:
            return self._view.elites()

    def best(self) -> Elite | None:
        """The elite with the highest lower bound."""
        with self._lock:
            return self._view.best()

    def get(self, digest: str) -> Elite:
        """A kernel that passed and has a conclusive timing."""
        with self._lock:
            return self._view.get(digest)

    def untimed(self) -> tuple[tuple[Kernel, int], ...]:
        """Kernels that passed but have no conclusive timing, in order of digest, each with its number of sessions."""
        with self._lock:
            return self._view.untimed()

    def ranked(self) -> Iterator[Elite]:
        """Every kernel that passed and has an objective, the best first."""
        with self._lock:
            yield from self._view.ranked()
