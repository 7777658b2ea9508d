"""The loop: proposals, builds and measurements side by side, told strictly in order.

Candidates are asked for in groups. Group 0 is the seeds; a later group is asked for once the group `lookahead` before it was
told in full, so that a model can write while its last offspring are built and timed. Because the state at every ask depends
on the number of candidates told and on nothing else, a run is a pure function of its seed, its model's replies and its
measurements: it can be replayed, and it can go on after a kill under the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from evo_l2.budget import Budget
from evo_l2.contracts import (
    AddResult,
    Archive,
    Candidate,
    Evaluator,
    Mutator,
    Outcome,
    Prepared,
    Proposal,
    Remeasurement,
    Request,
)
from evo_l2.errors import DeviceError
from evo_l2.evaluation import Evaluation
from evo_l2.flights import Flight, Lanes, work_ahead
from evo_l2.futures import done_future, picked_future
from evo_l2.kernel import Kernel
from evo_l2.past import Past
from evo_l2.problem import Problem
from evo_l2.quiet import Quiet
from evo_l2.retiming import Retiming
from evo_l2.search import Search

__all__ = ["Pipeline", "PipelineSettings", "Stop"]

T = TypeVar("T")
_MOST_DRAWS = 16
"""How often a model-free operator may draw again when it proposes what is known already."""


class Stop(StrEnum):
    """Why a run ended."""

    EVALUATIONS = "the budget of evaluations is spent"
    WALL = "the time is spent"
    COST = "the budget of tokens or money is spent, and no operator is left that costs none"
    REQUESTED = "a stop was asked for"


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """How work overlaps."""

    batch: int = 16
    """Candidates asked for at once."""
    lookahead: int = 1
    """1: a group is asked for while the one before it is measured (steady state); 0: after it (generations)."""
    build_workers: int = 2
    n_cards: int = 0
    """Kernels that the evaluator measures at once, before their turn to be told has come. 0 where each waits for its turn, as
    everything else has to stand still meanwhile."""


class _Stopped(Exception):
    def __init__(self, stop: Stop) -> None:
        self.stop = stop


class Pipeline:
    """Runs one search to the end of its budget.

    Args:
        problem: What is computed.
        seeds: Kernels that open the run, candidates 0 and up.
        search: Asks and tells; its archive is at the state before candidate 0.
        archive: The durable archive; gets every new candidate before the search is told. What it holds of the run is past.
        evaluator: Builds, judges and times.
        quiet: Shared with whatever else makes noise.
        budget: What may be spent.
        settings: See `PipelineSettings`.
        told: Called after every candidate, old ones (`replayed=True`) included.
    """

    def __init__(
        self,
        *,
        problem: Problem,
        seeds: Sequence[Kernel],
        search: Search,
        archive: Archive,
        evaluator: Evaluator,
        quiet: Quiet,
        budget: Budget,
        settings: PipelineSettings,
        told: Callable[[Candidate, AddResult, bool], None],
    ) -> None:
        self._problem = problem
        self._seeds = seeds
        self._search = search
        self._operators = search.operators
        self._archive = archive
        self._evaluator = evaluator
        self._quiet = quiet
        self._budget = budget
        self._settings = settings
        self._told = told
        self._stop_requested = False
        self._flights: dict[int, Flight] = {}
        self._starts = [0, len(seeds)]
        """First index of every group asked for so far, and of the next one."""
        self._n_told = 0
        self._n_groups_told = 0
        self._in_flight_digests: dict[str, int] = {}
        self._build_s: dict[str, float] = {}
        self._lanes = Lanes(evaluator, quiet, lambda index: search.seed_sequence(index, 1), settings.n_cards)
        self._retiming = Retiming(search, archive, evaluator, quiet)
        self._past = Past(0)

    def request_stop(self) -> None:
        """Ends the run at the next candidate; what is in flight is dropped and can be resumed."""
        self._stop_requested = True

    def run(self, history: Iterable[Candidate] = (), remeasured: Iterable[Remeasurement] = ()) -> Stop:
        """Tells the past again, then goes on until a limit is reached.

        Args:
            history: The candidates that the durable archive holds, in order of index; taken as they are needed.
            remeasured: What it holds of later measurements, in order.

        Raises:
            EvoL2Error: The machine, a model or the store is at fault; everything told so far is stored.
        """
        self._past = Past(self._archive.n_candidates, history, remeasured)
        proposers = ThreadPoolExecutor(max(1, len(self._operators)), thread_name_prefix="propose")
        builders = ThreadPoolExecutor(self._settings.build_workers, thread_name_prefix="build")
        self._proposers, self._builders = proposers, builders
        try:
            return self._loop()
        except _Stopped as stopped:
            return stopped.stop
        finally:
            for pool in (proposers, builders):
                pool.shutdown(wait=False, cancel_futures=True)
            self._lanes.close()

    def _loop(self) -> Stop:
        for index, kernel in enumerate(self._seeds):
            flight = Flight(None, 0)
            self._flights[index] = flight
            if index >= self._past.n_candidates:
                flight.prepared = self._build(kernel)
        self._budget.start_clock()
        while True:
            self._ask_groups()
            if self._n_told not in self._flights:
                return Stop.EVALUATIONS
            if self._n_told < self._past.n_candidates:
                self._tell(self._past.candidate(self._n_told), replayed=True)
                if self._n_told == self._past.n_candidates:
                    self._budget.start_clock()
                continue
            self._check_limits()
            self._tell(self._finish(self._n_told), replayed=False)

    def _ask_groups(self) -> None:
        """Asks for every group whose time has come."""
        while self._n_told >= max(self._starts[1], self._starts[-1 - min(self._settings.lookahead, len(self._starts) - 2)]):
            first = self._starts[-1]
            left = self._budget.evaluations_left(first)
            count = self._settings.batch if left is None else min(self._settings.batch, left)
            if count == 0:
                return
            self._ask_group(first, count)
            self._starts.append(first + count)

    def _ask_group(self, first: int, count: int) -> None:
        requests = self._search.ask_group(first, count, self._unaffordable(count))
        models: dict[str, list[Request]] = {}
        for request in requests:
            mutator = self._operators[request.operator]
            flight = Flight(request, self._n_told)
            self._flights[request.index] = flight
            if mutator.uses_model:
                self._budget.reserve(request.index, mutator.most_tokens)
            if request.index < self._past.n_candidates:
                self._remember(self._past.candidate(request.index), mutator)
                continue
            if mutator.uses_model:
                models.setdefault(request.operator, []).append(request)
            else:
                proposal = self._propose_new(request)
                flight.proposal = done_future(proposal)
                if proposal.kernel is not None:
                    flight.prepared = self._build(proposal.kernel)
        for batch in models.values():
            batched = self._proposers.submit(self._search.propose, self._problem, batch)
            for position, request in enumerate(batch):
                self._flights[request.index].proposal = picked_future(batched, position)

    def _unaffordable(self, count: int) -> frozenset[str]:
        """Operators whose calls might overrun the budget if the whole group were theirs."""
        dear = {name for name, m in self._operators.items() if not self._budget.can_afford(count * m.most_tokens)}
        if len(dear) == len(self._operators):
            raise _Stopped(Stop.COST)
        return frozenset(dear)

    def _propose_new(self, request: Request) -> Proposal:
        """A model-free proposal; drawn again while it repeats what is known or in flight."""
        proposal = self._search.propose(self._problem, [request])[0]
        for draw in range(1, _MOST_DRAWS):
            if proposal.kernel is None or not self._is_known(proposal.kernel):
                break
            seed = np.random.SeedSequence(request.seed.entropy, spawn_key=(*request.seed.spawn_key, draw))
            again = Request(request.index, request.operator, request.parents, request.feedback, seed)
            proposal = self._search.propose(self._problem, [again])[0]
        if proposal.kernel is not None:
            self._in_flight_digests.setdefault(proposal.kernel.digest, request.index)
        return proposal

    def _remember(self, candidate: Candidate, mutator: Mutator) -> None:
        """Puts an old proposal in flight, so that new ones beside it are drawn as they were when it was new."""
        if candidate.kernel is not None and not mutator.uses_model:
            self._in_flight_digests.setdefault(candidate.kernel.digest, candidate.index)

    def _is_known(self, kernel: Kernel) -> bool:
        digest = kernel.digest
        return digest in self._in_flight_digests or self._search.archive.find(digest=digest) is not None

    def _prepare(self, kernel: Kernel) -> Prepared:
        begin = time.perf_counter()
        with self._quiet.noise():
            prepared = self._evaluator.prepare(kernel)
        self._build_s[kernel.digest] = time.perf_counter() - begin
        return prepared

    def _check_limits(self) -> None:
        if self._stop_requested:
            raise _Stopped(Stop.REQUESTED)
        left = self._budget.time_left()
        if left is not None and left <= 0:
            raise _Stopped(Stop.WALL)

    def _await(self, future: Future[T]) -> T:
        """The future's result, unless the time runs out or a stop is asked for first."""
        while not future.done():
            begun = work_ahead(self._flights, self._lanes, self._build, self._find)
            if not wait({future, *begun}, timeout=0.2, return_when=FIRST_COMPLETED).done:
                self._check_limits()
        return future.result()

    def _build(self, kernel: Kernel) -> Future[Prepared]:
        return self._builders.submit(self._prepare, kernel)

    def _find(self, digest: str | None, identity: str | None) -> str | None:
        return self._search.archive.find(digest=digest, identity=identity)

    def _finish(self, index: int) -> Candidate:
        """Takes one candidate from wherever it is to its end."""
        flight = self._flights[index]
        seconds: dict[str, float] = {}
        request, proposal = flight.request, None
        kernel: Kernel | None
        if request is None:
            kernel = self._seeds[index]
        else:
            assert flight.proposal is not None
            begin = time.perf_counter()
            proposal = self._await(flight.proposal)
            seconds["propose"] = time.perf_counter() - begin
            kernel = proposal.kernel
        if kernel is None:
            assert proposal is not None
            assert proposal.failure is not None
            return self._candidate(index, flight, proposal, proposal.failure, seconds, message=proposal.message)
        known = self._search.archive.find(digest=kernel.digest)
        if known is not None:
            return self._candidate(
                index, flight, proposal, Outcome.DUPLICATE, seconds, kernel=kernel, duplicate_of=known,
                message="the same source was evaluated before",
            )  # fmt: skip
        return self._evaluate(index, flight, proposal, kernel, seconds)

    def _evaluate(
        self, index: int, flight: Flight, proposal: Proposal | None, kernel: Kernel, seconds: dict[str, float]
    ) -> Candidate:
        future = flight.prepared or self._build(kernel)
        prepared = self._await(future)
        seconds["build"] = self._build_s.pop(kernel.digest, 0.0)
        if prepared.identity is not None:
            known = self._search.archive.find(identity=prepared.identity)
            if known is not None:
                return self._candidate(
                    index, flight, proposal, Outcome.DUPLICATE, seconds, kernel=kernel, identity=prepared.identity,
                    duplicate_of=known, message="its machine code and launch were evaluated before",
                )  # fmt: skip
        if prepared.verdict is not None:
            evaluation = Evaluation(prepared.verdict)
        else:
            if flight.measured is None:
                flight.measured = self._lanes.begin(index, prepared)
            evaluation, seconds["measure"] = self._await(flight.measured)
        return self._candidate(
            index, flight, proposal, Outcome.EVALUATED, seconds, kernel=kernel, identity=prepared.identity,
            evaluation=evaluation,
        )  # fmt: skip

    def _candidate(
        self,
        index: int,
        flight: Flight,
        proposal: Proposal | None,
        outcome: Outcome,
        seconds: dict[str, float],
        *,
        message: str | None = None,
        kernel: Kernel | None = None,
        identity: str | None = None,
        evaluation: Evaluation | None = None,
        duplicate_of: str | None = None,
    ) -> Candidate:
        seconds["wall"] = self._budget.lap()
        return Candidate(
            index=index,
            operator=flight.request.operator if flight.request is not None else "seed",
            parents=tuple(p.kernel.digest for p in flight.request.parents) if flight.request is not None else (),
            asked_after=flight.asked_after,
            outcome=outcome,
            message=message,
            kernel=kernel,
            identity=identity,
            evaluation=evaluation,
            duplicate_of=duplicate_of,
            calls=proposal.calls if proposal is not None else (),
            seconds=seconds,
        )

    def _tell(self, candidate: Candidate, *, replayed: bool) -> None:
        if not replayed:
            self._archive.add(candidate)
        result = self._search.tell(candidate)
        self._budget.tell(candidate)
        self._flights.pop(candidate.index, None)
        self._past.forget(candidate.index)
        if candidate.kernel is not None:
            self._in_flight_digests.pop(candidate.kernel.digest, None)
        self._n_told += 1
        self._retiming.meet(candidate)
        self._told(candidate, result, replayed)
        done = {self._retiming.tell(past) for past in self._past.remeasured(self._n_told)}
        while self._n_groups_told + 1 < len(self._starts) and self._n_told >= self._starts[self._n_groups_told + 1]:
            if self._n_told >= self._past.n_candidates:
                self._retiming.run(self._n_told, done, self._prepare, self._check_limits, for_seeds=self._n_groups_told == 0)
            self._search.close_group(self._n_groups_told)
            self._n_groups_told += 1
            if self._n_groups_told == 1 and not self._search.archive.elites():
                raise _no_seed(candidate, is_untimed=bool(self._retiming.untimed()))


def _no_seed(last: Candidate, *, is_untimed: bool) -> DeviceError:
    expected = "at least one kernel that is right and can be timed"
    evaluation = last.evaluation
    if is_untimed:
        found, hint = "a machine that did not hold still", "end other work on this machine, then evo-l2 resume"
    else:
        verdict = evaluation.verdict if evaluation is not None else None
        found = f"{verdict.status.value} ({verdict.gate}): {verdict.message}" if verdict is not None else last.outcome.value
        hint = "evo-l2 verify FILE, for each seed"
    return DeviceError("no seed passed", expected=expected, found=found, hint=hint)
