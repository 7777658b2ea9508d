"""Counts over a run's candidates: by operator, and how many came through each stage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from evo_l2.contracts import AddStatus, Outcome
from evo_l2.evaluation import Status
from experiments.report_page.facts import CandidateRow

__all__ = ["FATES", "OperatorTally", "funnel", "operator_order", "records", "tally_operators"]

FATES = ("took a cell", "right, no cell", "right, not timed", "wrong or refused", "known before", "no kernel", "outage")
"""What can become of a candidate; each has exactly one of them."""


@dataclass(frozen=True, slots=True)
class OperatorTally:
    """What one operator did."""

    operator: str
    fates: Counter[str] = field(default_factory=Counter)
    n_asked: int = 0
    n_right: int = 0
    n_records: int = 0
    """How often its offspring raised the best lower bound."""
    gain: float = 0.0
    """By how much, in log speed-up; 0 for seeds."""
    seconds: Counter[str] = field(default_factory=Counter)
    """Wall seconds by stage."""


def fate(row: CandidateRow) -> str:
    """One of `FATES`."""
    if row.outcome is Outcome.GENERATOR_FAILED:
        return "outage"
    if row.outcome is Outcome.DUPLICATE:
        return "known before"
    if row.outcome is not Outcome.EVALUATED:
        return "no kernel"
    if not row.is_right:
        return "wrong or refused"
    if row.added is not AddStatus.NOT_ADDED:
        return "took a cell"
    return "right, not timed" if row.is_timed and row.early is None else "right, no cell"


def operator_order(rows: Sequence[CandidateRow]) -> tuple[str, ...]:
    """Seeds first, then the others by name: the order that fixes their colours."""
    return tuple(sorted({row.operator for row in rows}, key=lambda name: (name != "seed", name)))


def records(rows: Sequence[CandidateRow]) -> tuple[tuple[CandidateRow, float], ...]:
    """The candidates that raised the best lower bound, each with that bound's rise in log speed-up; 0 for the first."""
    found: list[tuple[CandidateRow, float]] = []
    best: float | None = None
    for row in rows:
        if row.estimate is not None and (best is None or row.estimate.log_low > best):
            found.append((row, row.estimate.log_low - best if best is not None else 0.0))
            best = row.estimate.log_low
    return tuple(found)


def tally_operators(rows: Sequence[CandidateRow]) -> tuple[OperatorTally, ...]:
    """One for each operator, in `operator_order`."""
    rises: dict[str, list[float]] = {}
    for row, rise in records(rows):
        rises.setdefault(row.operator, []).append(rise)
    tallies = []
    for operator in operator_order(rows):
        mine = [row for row in rows if row.operator == operator]
        seconds: Counter[str] = Counter()
        for row in mine:
            seconds.update(row.seconds)
        tallies.append(
            OperatorTally(
                operator=operator,
                fates=Counter(fate(row) for row in mine),
                n_asked=len(mine),
                n_right=sum(row.is_right for row in mine),
                n_records=len(rises.get(operator, ())),
                gain=0.0 if operator == "seed" else math.fsum(rises.get(operator, ())),
                seconds=seconds,
            )
        )
    return tuple(tallies)


def funnel(rows: Sequence[CandidateRow]) -> tuple[tuple[str, int], ...]:
    """How many candidates came to each stage. What was built and not run has no stages *right* and *timed*."""
    evaluated = [row for row in rows if row.outcome is Outcome.EVALUATED]
    right = [row for row in evaluated if row.is_right]
    stages = [
        ("asked for", len(rows)),
        ("a kernel", sum(row.has_kernel for row in rows)),
        ("a new one", len(evaluated)),
        ("built", sum(row.is_built for row in evaluated)),
    ]
    if right and all(row.status is Status.BUILT for row in right):
        stages.append(("past every gate", len(right)))
    else:
        stages.append(("right", len(right)))
        stages.append(("timed", sum(row.estimate is not None or row.status is Status.BUILT for row in right)))
    return (*stages, ("took a cell", sum(row.added is not AddStatus.NOT_ADDED for row in right)))
