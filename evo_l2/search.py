"""Ask and tell: which operator works on which parents next, and what its offspring taught.

The search's state is a pure function of the candidates told so far, in order; every choice for candidate *i* draws from
`SeedSequence(seed, spawn_key=(i, ...))`. So a run can be replayed, and a run that was killed goes on as if it had not been.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from deap import base, tools

from evo_l2.contracts import AddResult, Archive, Candidate, Elite, Mutator, Outcome, Proposal, Request
from evo_l2.problem import Problem
from evo_l2.timing import log_ratio

__all__ = ["Search", "SearchSettings"]

_MOST_FEEDBACK = 2
"""Failures of one parent's offspring that are kept for its next prompt."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How parents and operators are chosen."""

    tournament: int = 3
    """Contestants in the tournament that picks a parent; 1 picks uniformly."""
    exploration: float = 0.2
    """Weight of the bonus for parents that had few offspring (UCB1), in units of log speed-up."""


class _Fitness(base.Fitness):  # type: ignore[misc]
    """DEAP's fitness, one objective, maximised."""

    weights = (1.0,)


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A failure, as the next prompt about the same parent tells it."""

    message: str
    operator: str | None
    """Set when it is about the form of this operator's replies, which would mislead another; None for a kernel's fault."""


@dataclass(slots=True)
class _Contestant:
    """An elite as DEAP's selection sees it."""

    elite: Elite
    fitness: _Fitness = field(default_factory=_Fitness)


class Search:
    """Steady-state search over the elites of an archive.

    Args:
        archive: What was told so far; `tell` adds to it, nothing else may.
        operators: Variation operators with their weights; weights are shares of the offspring.
        seed: The run's seed.
        settings: See `SearchSettings`.

    Raises:
        ValueError: There is no operator, or a weight is not positive.
    """

    def __init__(
        self, archive: Archive, operators: Mapping[str, tuple[Mutator, float]], seed: int, settings: SearchSettings
    ) -> None:
        if not operators or not all(weight > 0 for _, weight in operators.values()):
            raise ValueError("the search needs operators, each with a positive weight")
        self._archive = archive
        self._operators = operators
        self._seed = seed
        self._settings = settings
        self._n_offspring: defaultdict[str, int] = defaultdict(int)
        self._feedback: defaultdict[str, list[_Lesson]] = defaultdict(list)
        self._group: list[Candidate] = []
        self.toolbox = base.Toolbox()
        self.toolbox.register("select", tools.selTournament, tournsize=settings.tournament)
        for name, (mutator, _) in operators.items():
            self.toolbox.register(name, mutator.propose)
        self._statistics = tools.Statistics(key=_log_ratio)
        self._statistics.register("n", len)
        self._statistics.register("mean", _mean)
        self._statistics.register("best", _best)
        self.logbook = tools.Logbook()
        self.logbook.header = ["group", "told", "passed", "n", "mean", "best", "elites"]

    @property
    def operators(self) -> Mapping[str, Mutator]:
        """The variation operators by name."""
        return {name: mutator for name, (mutator, _) in self._operators.items()}

    def propose(self, problem: Problem, requests: Sequence[Request]) -> tuple[Proposal, ...]:
        """One proposal for each request, in order; all requests are for one operator."""
        proposals: tuple[Proposal, ...] = getattr(self.toolbox, requests[0].operator)(problem, requests)
        return proposals

    @property
    def archive(self) -> Archive:
        """What was told so far."""
        return self._archive

    def seed_sequence(self, index: int, stream: int) -> np.random.SeedSequence:
        """The source of chance of one candidate; streams: 0 choice and proposal, 1 judging and timing."""
        return np.random.SeedSequence(self._seed, spawn_key=(index, stream))

    def ask_group(self, first: int, count: int, without: frozenset[str] = frozenset()) -> tuple[Request, ...]:
        """The next `count` requests, numbered from `first`; those of model-free operators come first.

        A group is asked for at once, from one state of the archive. Operators are dealt so that shares follow the weights;
        `without` names operators that cannot be paid for any more.

        Raises:
            LookupError: The archive holds no elite, or no operator is left.
        """
        elites = self._archive.elites()
        if not elites:
            raise LookupError("the archive holds no kernel that passed")
        names = [name for name in self._operators if name not in without]
        if not names:
            raise LookupError("no operator is left")
        rng = np.random.default_rng(self.seed_sequence(first, 2))
        weights = np.array([self._operators[name][1] for name in names])
        dealt = [names[i] for i in _deal(weights / weights.sum(), count, rng)]
        dealt.sort(key=lambda name: self._operators[name][0].uses_model)
        return tuple(self._ask(first + i, name, elites) for i, name in enumerate(dealt))

    def _ask(self, index: int, operator: str, elites: Sequence[Elite]) -> Request:
        seed = self.seed_sequence(index, 0)
        rng = np.random.default_rng(seed.spawn(1)[0])
        mutator = self._operators[operator][0]
        fit = [elite for elite in elites if mutator.takes(elite.kernel)] or elites
        parents = self._select(fit, min(mutator.n_parents, len(fit)), rng)
        feedback = tuple(line for parent in parents for line in self._take_feedback(parent, operator))
        for parent in parents:
            self._n_offspring[parent.kernel.digest] += 1
        return Request(index, operator, parents, feedback, seed)

    def _take_feedback(self, parent: Elite, operator: str) -> list[str]:
        """Failures are said once, and only to an operator that can read."""
        if not self._operators[operator][0].uses_model:
            return []
        known = self._feedback.pop(parent.kernel.digest, [])
        self._feedback[parent.kernel.digest] = [lesson for lesson in known if lesson.operator not in (None, operator)]
        return [lesson.message for lesson in known if lesson.operator in (None, operator)]

    def _select(self, elites: Sequence[Elite], count: int, rng: np.random.Generator) -> tuple[Elite, ...]:
        """Tournaments over the lower bound plus a UCB1 bonus; different parents."""
        total = sum(self._n_offspring.values())
        pool = []
        for elite in elites:
            n_tries = self._n_offspring[elite.kernel.digest]
            bonus = self._settings.exploration * math.sqrt(2 * math.log(1 + total) / (1 + n_tries))
            contestant = _Contestant(elite)
            contestant.fitness.values = ((elite.estimate.log_low if elite.estimate is not None else 0.0) + bonus,)
            pool.append(contestant)
        chosen: list[Elite] = []
        while len(chosen) < count:
            winner = _with_state(rng, self.toolbox.select, pool, 1)[0]
            chosen.append(winner.elite)
            pool.remove(winner)
        return tuple(chosen)

    def tell(self, candidate: Candidate) -> AddResult:
        """Files one candidate; candidates come in order of index."""
        result = self._archive.add(candidate)
        lesson = _lesson(candidate)
        if lesson is not None and candidate.parents and candidate.operator in self._operators:
            known = self._feedback[candidate.parents[0]]
            known.append(lesson)
            del known[:-_MOST_FEEDBACK]
        self._group.append(candidate)
        return result

    def close_group(self, number: int) -> None:
        """Records the candidates told since the last call in the logbook."""
        passed = [c for c in self._group if c.evaluation is not None and c.evaluation.status.is_good]
        n_told = self._archive.n_candidates
        record = self._statistics.compile(passed)
        self.logbook.record(group=number, told=n_told, passed=len(passed), elites=len(self._archive.elites()), **record)
        self._group = []


def _deal(shares: np.ndarray[tuple[int], np.dtype[np.float64]], count: int, rng: np.random.Generator) -> list[int]:
    """`count` indices whose numbers follow the shares: the whole part surely, the rest by lot."""
    exact = shares * count
    sure = np.floor(exact).astype(int)
    rest = count - int(sure.sum())
    left = exact - sure
    extra: Sequence[int] = rng.choice(len(shares), size=rest, replace=True, p=left / left.sum()).tolist() if rest else []
    return [i for i, n in enumerate(sure) for _ in range(n)] + list(extra)


def _with_state(rng: np.random.Generator, select: object, pool: Sequence[_Contestant], count: int) -> list[_Contestant]:
    """Calls a selection of DEAP, which draws from the global `random`, with that state set from `rng` and restored."""
    state = random.getstate()
    random.seed(int(rng.integers(2**63)))
    try:
        return select(pool, count)  # type: ignore[operator,no-any-return]
    finally:
        random.setstate(state)


def _lesson(candidate: Candidate) -> _Lesson | None:
    """What the next prompt about the parent should say of this offspring; None when there is nothing to learn."""
    if not candidate.calls:
        return None
    if candidate.outcome in (Outcome.NO_KERNEL, Outcome.EDIT_FAILED) and candidate.message is not None:
        return _Lesson(candidate.message, candidate.operator)
    if candidate.evaluation is None or candidate.evaluation.verdict.message is None:
        return None
    verdict = candidate.evaluation.verdict
    return _Lesson(f"{verdict.status.value} ({verdict.gate}): {verdict.message}", None)


def _log_ratio(candidate: Candidate) -> float:
    assert candidate.evaluation is not None
    session = candidate.evaluation.session
    value = log_ratio([session]) if session is not None else None
    return value if value is not None else math.nan


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return float(np.exp(np.mean(known))) if known else None


def _best(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return float(np.exp(max(known))) if known else None
