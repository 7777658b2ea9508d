"""An archive in memory: for tests, for trials, and wherever nothing has to outlive the process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archive.grid import Grid
from archive.view import View
from evo_l2.contracts import AddResult, Candidate, Elite
from evo_l2.evaluation import TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.measures import MeasuresSchema

__all__ = ["MemoryArchive"]


class _MemoryRecords:
    """Everything in dictionaries."""

    def __init__(self) -> None:
        self.kernels: dict[str, tuple[Kernel, Verdict]] = {}
        self.timings: list[TimingSession] = []

    def kernel(self, digest: str) -> tuple[Kernel, Verdict]:
        return self.kernels[digest]

    def sessions(self, keys: Sequence[int]) -> tuple[TimingSession, ...]:
        return tuple(self.timings[key] for key in keys)

    def append(self, session: TimingSession) -> int:
        self.timings.append(session)
        return len(self.timings) - 1


class MemoryArchive:
    """`evo_l2.contracts.Archive` without a file; starts empty.

    Args:
        schema: The axes of its grid.
    """

    def __init__(self, schema: MeasuresSchema) -> None:
        self._records = _MemoryRecords()
        self._view = View(schema, self._records)

    @property
    def n_candidates(self) -> int:
        """The next index."""
        return self._view.n_candidates

    @property
    def grid(self) -> Grid:
        """The grid, to be read."""
        return self._view.grid

    def add(self, candidate: Candidate) -> AddResult:
        """Files one candidate."""
        addition = self._view.plan(candidate)
        key = None
        evaluation = candidate.evaluation
        if evaluation is not None and evaluation.session is not None:
            assert candidate.kernel is not None
            assert addition.digest is not None
            self._records.kernels[addition.digest] = (candidate.kernel, evaluation.verdict)
            key = self._records.append(evaluation.session)
        return self._view.apply(addition, key)

    def add_session(self, digest: str, session: TimingSession) -> None:
        """Appends a timing session."""
        sight, estimate = self._view.plan_session(digest, session)
        self._view.apply_session(sight, self._records.append(session), estimate)

    def find(self, *, digest: str | None = None, identity: str | None = None) -> str | None:
        """Digest of the known kernel; a source that was added as a duplicate answers with the kernel that it repeats."""
        return self._view.find(digest, identity)

    def elites(self) -> tuple[Elite, ...]:
        """One elite for each filled cell, in order of cell."""
        return self._view.elites()

    def best(self) -> Elite | None:
        """The elite with the highest lower bound."""
        return self._view.best()

    def get(self, digest: str) -> Elite:
        """A kernel that passed and has a conclusive timing."""
        return self._view.get(digest)

    def ranked(self) -> Iterator[Elite]:
        """Every kernel that passed and has an objective, the best first."""
        return self._view.ranked()
