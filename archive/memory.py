"""An archive in memory: for tests, for trials, and wherever nothing has to outlive the process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from archive.face import Face
from archive.view import Passed, View
from evo_l2.contracts import AddResult, Candidate
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

    def known(self, digest: str) -> str | None:
        return None

    def identified(self, identity: str) -> str | None:
        return None

    def passed(self, digest: str) -> Iterable[Passed]:
        return ()

    def untimed(self) -> Iterable[Passed]:
        return ()

    def append(self, session: TimingSession) -> int:
        self.timings.append(session)
        return len(self.timings) - 1


class MemoryArchive(Face):
    """`evo_l2.contracts.Archive` without a file; starts empty.

    Args:
        schema: The axes of its grid.
    """

    def __init__(self, schema: MeasuresSchema) -> None:
        self._records = _MemoryRecords()
        super().__init__(View(schema, self._records))

    def add(self, candidate: Candidate) -> AddResult:
        """Files one candidate."""
        addition = self._view.plan(candidate)
        key = None
        evaluation = candidate.evaluation
        if evaluation is not None and evaluation.verdict.status.is_good:
            assert candidate.kernel is not None
            assert addition.digest is not None
            self._records.kernels[addition.digest] = (candidate.kernel, evaluation.verdict)
            if evaluation.session is not None:
                key = self._records.append(evaluation.session)
        return self._view.apply(addition, key)

    def add_session(self, digest: str, session: TimingSession) -> None:
        """Appends a timing session."""
        sight, estimate = self._view.plan_session(digest, session)
        self._view.apply_session(sight, self._records.append(session), estimate)

    def withdraw(self, digest: str, verdict: Verdict) -> None:
        """Files a failure of a kernel that had passed."""
        self._view.apply_withdrawal(self._view.plan_withdrawal(digest, verdict))
