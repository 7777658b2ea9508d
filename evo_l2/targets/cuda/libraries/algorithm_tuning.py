"""Chooses the fastest of many ways to do one thing: all are timed once, the best of them again, in turns.

The fastest of many single times is fast by luck as well (docs/EVALUATION.md, "What it is compared with"), so that the
choice falls on second samples, which no entry was selected by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

__all__ = ["Choice", "Recording", "choose"]

_N_FINALISTS = 6
_N_ROUNDS = 9
_N_FIRST_SAMPLES = 3
_HOPELESS = 2.0
"""First time over the best one at which no more samples are taken."""


class Recording(Protocol):
    """Launches of one entry, ready to be run."""

    def sample_us(self) -> float:
        """Device time of one launch, averaged over all that were recorded."""
        ...

    def close(self) -> None:
        """Frees it."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of a tuning."""

    index: int
    """Of the fastest entry."""
    time_us: float
    """Median of its samples in the finals."""
    first_us: float | None
    """The same for entry 0; None when it failed."""
    n_timed: int
    """Entries that ran."""
    n_failed: int
    """Entries that did not, and were dropped."""


def choose(n_entries: int, record: Callable[[int], Recording | None]) -> Choice | None:
    """The fastest entry, or None when all fail. Entry 0 is in the finals whatever its time, so that luck alone beats it not.

    Args:
        n_entries: At least one.
        record: Makes an entry's recording, or None when it fails; asked for again in the finals.
    """
    firsts: dict[int, float] = {}
    for index in range(n_entries):
        recording = record(index)
        if recording is not None:
            try:
                firsts[index] = _first_us(recording, min(firsts.values(), default=float("inf")))
            finally:
                recording.close()
    ranked = sorted(firsts, key=lambda index: firsts[index])
    finalists = ranked[:_N_FINALISTS]
    if 0 in firsts and 0 not in finalists:
        finalists.append(0)
    medians = _finals(finalists, record)
    if not medians:
        return None
    best = min(medians, key=lambda index: medians[index])
    return Choice(best, medians[best], medians.get(0), len(firsts), n_entries - len(firsts))


def _first_us(recording: Recording, best_us: float) -> float:
    """The least of a few samples; of one when it is hopeless."""
    least = recording.sample_us()
    for _ in range(_N_FIRST_SAMPLES - 1):
        if least > _HOPELESS * best_us:
            break
        least = min(least, recording.sample_us())
    return least


def _finals(finalists: list[int], record: Callable[[int], Recording | None]) -> dict[int, float]:
    """Median time of each finalist, all of them in every round, each round begun by another one."""
    recordings: dict[int, Recording] = {}
    try:
        for index in finalists:
            recording = record(index)
            if recording is not None:
                recordings[index] = recording
        samples: dict[int, list[float]] = {index: [] for index in recordings}
        order = list(recordings)
        for number in range(_N_ROUNDS if len(order) > 1 else 1):
            turn = number % len(order) if order else 0
            for index in order[turn:] + order[:turn]:
                samples[index].append(recordings[index].sample_us())
        return {index: median(times) for index, times in samples.items()}
    finally:
        for recording in recordings.values():
            recording.close()
