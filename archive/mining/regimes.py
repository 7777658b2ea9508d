"""Elites per cell, shape regime and environment: kernels that were timed on shapes of one kind, whatever the problem."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archive.codec import load_session
from archive.grid import Entry
from archive.mining.members import Field, Member, fields, members
from archive.store import Store
from evo_l2.evaluation import Estimate, Status, TimingSession
from evo_l2.measures import Cell
from evo_l2.timing import pooled_estimate

__all__ = ["RegimeElite", "elites", "regime"]

_SMALL, _LARGE = 2**27, 2**33
"""Multiply-adds of one call: 512 cubed, and 2,048 cubed."""
_LONG = 4
"""From how many times the other extents on one extent makes the shape."""


@dataclass(frozen=True, slots=True)
class RegimeElite:
    """The best kernel of one cell for one kind of shapes in one environment."""

    environment_key: str
    family: str
    """The problem without its shapes, as JSON: kernels of one family compute the same."""
    regime: str
    schema_version: str
    cell: Cell
    cell_in_words: str
    problem_title: str
    """Where it was timed."""
    digest: str
    identity: str
    estimate: Estimate | None
    """Over the cases of this regime alone; None for one that was built and never run."""
    n_kernels: int
    """How many kernels lie in the cell."""


def regime(sizes: Sequence[int]) -> str:
    """The kind of one matrix product by its M, N, K and BATCH, such as `small square` or `large deep batched`.

    - *small*: fewer than 2^27 multiply-adds in all; *large*: 2^33 or more; *medium* between.
    - *deep*: K is at least four times M and N; *flat*: M and N are at least four times K; *skinny*: of M and N one is at
      least four times the other; else *square*. The first that applies.
    - *batched*: BATCH is above 1.

    Sizes that are not four positive numbers are of the regime `any`.
    """
    if len(sizes) != 4 or min(sizes) <= 0:
        return "any"
    m, n, k, batch = sizes
    work = math.prod(sizes)
    extent = "small" if work < _SMALL else "large" if work >= _LARGE else "medium"
    if k >= _LONG * max(m, n):
        form = "deep"
    elif min(m, n) >= _LONG * k:
        form = "flat"
    elif max(m, n) >= _LONG * min(m, n):
        form = "skinny"
    else:
        form = "square"
    return f"{extent} {form}{' batched' if batch > 1 else ''}"


def elites(store: Store) -> tuple[RegimeElite, ...]:
    """The elites of the whole file, in order of environment, family, regime, axes and cell.

    A kernel whose problem has cases in several regimes stands in each of them, with its times there.
    """
    found: dict[tuple[str, str, str, str, Cell], RegimeElite] = {}
    counts: dict[tuple[str, str, str, str, Cell], int] = {}
    for place in fields(store):
        family, cases = _family(place)
        version = place.schema.version
        for member in members(store, place):
            cell = place.schema.cell(member.measures(place.schema))
            for name, estimate in _by_regime(store, place, member, cases):
                key = (place.environment_key, family, name, version, cell)
                counts[key] = counts.get(key, 0) + 1
                entry, former = Entry(member.digest, member.identity, cell, estimate), found.get(key)
                if former is None or entry.rank < _rank(former):
                    words = place.schema.describe(cell)
                    title = place.problem_title
                    found[key] = RegimeElite(*key, words, title, member.digest, member.identity, estimate, 0)
    return tuple(replace(found[key], n_kernels=counts[key]) for key in sorted(found))


def _rank(elite: RegimeElite) -> tuple[float, str]:
    return Entry(elite.digest, elite.identity, elite.cell, elite.estimate).rank


def _family(place: Field) -> tuple[str, Mapping[str, tuple[int, ...]]]:
    """The problem without its cases; and which of its cases, by position, are of which regime."""
    definition: dict[str, Any] = json.loads(place.problem_definition)
    cases = definition.pop("cases", [])
    found: dict[str, tuple[int, ...]] = {}
    for i, sizes in enumerate(cases):
        name = regime(sizes)
        found[name] = (*found.get(name, ()), i)
    return json.dumps(definition, sort_keys=True), found or {"any": ()}


def _by_regime(
    store: Store, place: Field, member: Member, cases: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Estimate | None]]:
    if len(cases) == 1 or member.estimate is None:
        yield from ((name, member.estimate) for name in cases)
        return
    sessions = [session for session in _sessions(store, place, member.identity) if session.conclusive]
    for name, chosen in cases.items():
        parts = [TimingSession(tuple(s.cases[i] for i in chosen), s.purpose) for s in sessions]
        yield name, pooled_estimate(parts)


def _sessions(store: Store, place: Field, identity: str) -> Iterator[TimingSession]:
    for samples, purpose in store.read(
        "SELECT s.samples, s.purpose FROM timing_sessions s JOIN verdicts v ON v.id = s.verdict_id WHERE v.problem_id = ?"
        " AND v.environment_id = ? AND v.identity = ? AND s.log_low IS NOT NULL AND NOT EXISTS (SELECT 1 FROM verdicts w"
        " WHERE w.kernel_id = v.kernel_id AND w.problem_id = v.problem_id AND w.environment_id = v.environment_id"
        " AND w.status <> ?) ORDER BY s.id",
        (place.problem_id, place.environment_id, identity, Status.PASSED.value),
    ):
        yield load_session(samples, purpose)
