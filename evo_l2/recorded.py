"""An evaluator that gives back what was measured before, so that a run can be replayed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from evo_l2.contracts import Candidate, Prepared, Remeasurement
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Environment, Evaluation
from evo_l2.kernel import Kernel

__all__ = ["RecordedEvaluator"]


class RecordedEvaluator:
    """Answers from the candidates of an earlier run; builds and runs nothing.

    Args:
        candidates: The earlier run's candidates.
        environment: Where they were measured.
        remeasured: The earlier run's later measurements, in order.
    """

    def __init__(
        self, candidates: Iterable[Candidate], environment: Environment, remeasured: Iterable[Remeasurement] = ()
    ) -> None:
        self._environment = environment
        self._identities: dict[str, str | None] = {}
        self._evaluations: dict[str, Evaluation] = {}
        for candidate in candidates:
            if candidate.kernel is None:
                continue
            self._identities.setdefault(candidate.kernel.digest, candidate.identity)
            if candidate.evaluation is not None:
                self._evaluations[candidate.kernel.digest] = candidate.evaluation
        self._remeasured: defaultdict[str, deque[Evaluation]] = defaultdict(deque)
        for again in remeasured:
            self._remeasured[again.digest].append(again.evaluation)

    @property
    def environment(self) -> Environment:
        """The earlier run's environment."""
        return self._environment

    def prepare(self, kernel: Kernel) -> Prepared:
        """The recorded build.

        Raises:
            ConfigurationError: The kernel was never seen: the replay has left the recording.
        """
        digest = kernel.digest
        if digest not in self._identities:
            raise _left_recording("a kernel that the earlier run evaluated", digest)
        evaluation = self._evaluations.get(digest)
        verdict = evaluation.verdict if evaluation is not None and evaluation.session is None else None
        build = evaluation.verdict.build if evaluation is not None else None
        measures = evaluation.verdict.measures if evaluation is not None else None
        artefact = None if verdict is not None else Path(digest)
        return Prepared(kernel, self._identities[digest], verdict, build, measures, artefact)

    def measure(self, prepared: Prepared, seed: np.random.SeedSequence, *, purpose: str = "search") -> Evaluation:
        """The recorded evaluation, whatever the seed; where the purpose is not `search`, the next of the later ones.

        Raises:
            ConfigurationError: The kernel was not measured again: the replay has left the recording.
        """
        digest = prepared.kernel.digest
        if purpose == "search":
            return self._evaluations[digest]
        if not self._remeasured[digest]:
            raise _left_recording("a kernel that the earlier run measured again", digest)
        return self._remeasured[digest].popleft()

    def close(self) -> None:
        """Nothing to end."""


def _left_recording(expected: str, digest: str) -> ConfigurationError:
    return ConfigurationError(
        "the replay has left the recording",
        expected=expected,
        found=f"digest {digest[:12]}",
        hint="replay with the configuration and version that made the recording",
    )
