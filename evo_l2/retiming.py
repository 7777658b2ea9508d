"""Kernels that are right but whose times could not be trusted are timed again, within bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set

import numpy as np

from evo_l2.contracts import Archive, Candidate, Evaluator, Outcome, Prepared, Remeasurement
from evo_l2.kernel import Kernel
from evo_l2.past import file_remeasurement
from evo_l2.quiet import Quiet
from evo_l2.search import Search

__all__ = ["Retiming"]

_MOST_RETIMINGS = 2
"""How often a run times a kernel again, each time after another group, until its times can be trusted."""
_SEED_RETIMINGS = 3
"""How often more, at each start, when no seed could be timed, since the run would end there."""
_STREAM = 4


class Retiming:
    """Which kernels of a run wait to be timed again, and how often that was tried.

    Args:
        search: Its archive is at the state before candidate 0.
        archive: The durable archive; gets every measurement before the search's.
        evaluator: Measures.
        quiet: Nothing else makes noise meanwhile.
    """

    def __init__(self, search: Search, archive: Archive, evaluator: Evaluator, quiet: Quiet) -> None:
        self._search = search
        self._archive = archive
        self._evaluator = evaluator
        self._quiet = quiet
        self._met: set[str] = set()
        self._n_retimed: Counter[str] = Counter()

    def meet(self, candidate: Candidate) -> None:
        """Takes note of a kernel that the run evaluated, or met again: an earlier run may have failed to time it."""
        if candidate.kernel is not None and candidate.outcome in (Outcome.EVALUATED, Outcome.DUPLICATE):
            self._met.add(candidate.duplicate_of or candidate.kernel.digest)

    def tell(self, past: Remeasurement) -> str:
        """Files what the run measured before it was stopped; the kernel's digest."""
        file_remeasurement(self._search.archive, past.digest, past.evaluation)
        self._n_retimed[past.digest] += 1
        return past.digest

    def untimed(self) -> list[Kernel]:
        """Kernels that this run met and that passed, but have no time yet."""
        return [kernel for kernel, _ in self._search.archive.untimed() if kernel.digest in self._met]

    def run(
        self,
        n_told: int,
        done: Set[str],
        prepare: Callable[[Kernel], Prepared],
        check_limits: Callable[[], None],
        *,
        for_seeds: bool,
    ) -> None:
        """Measures them again; one that fails now is withdrawn.

        Args:
            n_told: Candidates told so far; chance follows from it.
            done: Kernels that were measured again here before the run was stopped.
            prepare: Builds.
            check_limits: Called before each measurement; raises when the run has to stop.
            for_seeds: Whether only the seeds were told: then it is tried on until one of them has a time.
        """
        source = self._search.seed_sequence(n_told, _STREAM)

        def measure(kernel: Kernel) -> None:
            check_limits()
            self._n_retimed[kernel.digest] += 1
            key = (*source.spawn_key, int(kernel.digest[:16], 16), self._n_retimed[kernel.digest])
            self._measure(prepare(kernel), np.random.SeedSequence(source.entropy, spawn_key=key))

        for kernel in self.untimed():
            if self._n_retimed[kernel.digest] < _MOST_RETIMINGS and kernel.digest not in done:
                measure(kernel)
        for _ in range(_SEED_RETIMINGS if for_seeds else 0):
            if self._search.archive.elites():
                return
            for kernel in self.untimed():
                measure(kernel)

    def _measure(self, prepared: Prepared, seed: np.random.SeedSequence) -> None:
        if prepared.verdict is not None:
            return
        with self._quiet.silence():
            evaluation = self._evaluator.measure(prepared, seed, purpose="retime")
        for archive in (self._archive, self._search.archive):
            file_remeasurement(archive, prepared.kernel.digest, evaluation)
