"""Candidates between ask and tell, and what of their work need not wait for a turn: builds, and measurements on cards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from evo_l2.contracts import Evaluator, Prepared, Proposal, Request
from evo_l2.evaluation import Evaluation
from evo_l2.futures import done_future
from evo_l2.kernel import Kernel
from evo_l2.quiet import Quiet

__all__ = ["Flight", "Lanes", "Measured", "work_ahead"]

Measured = tuple[Evaluation, float]
"""An evaluation and its wall seconds, with the wait for silence."""


@dataclass(slots=True)
class Flight:
    """One candidate between ask and tell."""

    request: Request | None
    """None for a seed."""
    asked_after: int
    proposal: Future[Proposal] | None = None
    prepared: Future[Prepared] | None = None
    measured: Future[Measured] | None = None

    @property
    def stage(self) -> Future[Any] | None:
        """What was begun last."""
        return self.measured or self.prepared or self.proposal


class Lanes:
    """Where kernels are measured: on each of several cards at once, or one at a time on a machine that is otherwise still.

    Args:
        evaluator: Measures.
        quiet: What makes noise beside it.
        seed_of: Where the chance of a candidate's measurement comes from, by index.
        n_cards: How many kernels the evaluator measures at once, before their turn to be told has come; 0 where each has to
            wait for its turn, since asking, building and telling would disturb it.
    """

    def __init__(
        self, evaluator: Evaluator, quiet: Quiet, seed_of: Callable[[int], np.random.SeedSequence], n_cards: int
    ) -> None:
        self._evaluator = evaluator
        self._quiet = quiet
        self._seed_of = seed_of
        self._pool = ThreadPoolExecutor(n_cards, thread_name_prefix="measure") if n_cards else None
        self._most = n_cards + 1 if n_cards else 0

    def n_free(self, flights: Mapping[int, Flight]) -> int:
        """How many more may be begun ahead; one more than there are cards, so that none waits for another look."""
        return self._most - sum(flight.measured is not None and not flight.measured.done() for flight in flights.values())

    def begin(self, index: int, prepared: Prepared) -> Future[Measured]:
        """The measurement of a candidate; one that has to wait for its turn is done when this returns."""
        if self._pool is None:
            return done_future(self._measure(index, prepared))
        return self._pool.submit(self._measure, index, prepared)

    def close(self) -> None:
        """Waits for what has begun: whoever closes the evaluator next would do so under a kernel that is being measured."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _measure(self, index: int, prepared: Prepared) -> Measured:
        begin = time.perf_counter()
        with self._quiet.silence():
            evaluation = self._evaluator.measure(prepared, self._seed_of(index))
        return evaluation, time.perf_counter() - begin


def work_ahead(
    flights: Mapping[int, Flight],
    lanes: Lanes,
    build: Callable[[Kernel], Future[Prepared]],
    find: Callable[[str | None, str | None], str | None],
) -> set[Future[Any]]:
    """Begins what need not wait for a turn, in order of index.

    A kernel that is known, or that one before it may turn out to be, waits all the same: it will be told as a duplicate.

    Args:
        flights: By index.
        lanes: Where kernels are measured.
        build: Begins a build.
        find: The known kernel of a source digest or identity.

    Returns:
        The stages that have not ended: another look is due when one of them does.
    """
    n_free = lanes.n_free(flights)
    met: set[str] = set()
    for index, flight in sorted(flights.items()):
        if flight.prepared is None:
            kernel = _proposed(flight)
            if kernel is None or kernel.digest in met or find(kernel.digest, None) is not None:
                continue
            flight.prepared = build(kernel)
            met.add(kernel.digest)
        elif flight.prepared.done() and flight.prepared.exception() is None:
            prepared = flight.prepared.result()
            met.add(prepared.kernel.digest)
            if prepared.identity is None or prepared.identity in met:
                continue
            met.add(prepared.identity)
            waits = prepared.verdict is not None or flight.measured is not None or n_free <= 0
            if not waits and find(prepared.kernel.digest, prepared.identity) is None:
                flight.measured = lanes.begin(index, prepared)
                n_free -= 1
    return {stage for flight in flights.values() if (stage := flight.stage) is not None and not stage.done()}


def _proposed(flight: Flight) -> Kernel | None:
    """What a reply that has come says."""
    proposal = flight.proposal
    return proposal.result().kernel if proposal is not None and proposal.done() and proposal.exception() is None else None
