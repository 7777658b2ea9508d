"""What a run did before it was stopped, to be told again when it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from evo_l2.contracts import Archive, Candidate, Remeasurement
from evo_l2.evaluation import Evaluation

__all__ = ["Past", "file_remeasurement"]


class Past:
    """A run's candidates and later measurements, read once and in order; only those in flight are kept at hand.

    Args:
        n_candidates: How many candidates there are.
        candidates: All of them, in order of index; taken as they are needed.
        remeasured: Later measurements, in the order in which they were filed.
    """

    def __init__(
        self, n_candidates: int, candidates: Iterable[Candidate] = (), remeasured: Iterable[Remeasurement] = ()
    ) -> None:
        self.n_candidates = n_candidates
        self._candidates = iter(candidates)
        self._at_hand: dict[int, Candidate] = {}
        self._remeasured = deque(remeasured)

    def candidate(self, index: int) -> Candidate:
        """One candidate, as often as it is asked for until it is forgotten.

        Raises:
            LookupError: There are fewer candidates than was said.
        """
        while index not in self._at_hand:
            candidate = next(self._candidates, None)
            if candidate is None:
                raise LookupError(f"the run's past ends before candidate {index}")
            self._at_hand[candidate.index] = candidate
        return self._at_hand[index]

    def forget(self, index: int) -> None:
        """Lets go of a candidate that was told."""
        self._at_hand.pop(index, None)

    def remeasured(self, n_told: int) -> Iterator[Remeasurement]:
        """The later measurements that were filed by the time that `n_told` candidates had been told; each comes once."""
        while self._remeasured and self._remeasured[0].after <= n_told:
            yield self._remeasured.popleft()


def file_remeasurement(archive: Archive, digest: str, evaluation: Evaluation) -> None:
    """Files a later measurement of a kernel that had passed: its session, or that it failed this time."""
    if evaluation.session is not None:
        archive.add_session(digest, evaluation.session)
    else:
        archive.withdraw(digest, evaluation.verdict)
