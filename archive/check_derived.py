"""Checks of what follows from other rows: a session's estimate, every standing, and what every addition did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archive.codec import dump, load_estimate, load_schema, load_session
from archive.findings import UNREADABLE, Finding, Note, pages
from archive.rework import Material, Standing, expected_standings, replay_results
from archive.store import Store
from evo_l2.evaluation import Estimate
from evo_l2.measures import MeasuresSchema
from evo_l2.timing import single_estimates

__all__ = ["Stale", "check_results", "check_sessions", "check_standings"]

_LOOSE = 0.5
"""Ends of an interval that another version drew from other resamples differ by less than this share of its width."""
_MOST = 20
"""Results that are named for each run; one that is wrong makes all that follow suspect."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A standing to be worked out again."""

    problem: int
    environment: int
    identity: str


def _same_interval(stored: Estimate, found: Estimate) -> tuple[bool, bool]:
    """Whether two estimates agree as far as they are fixed, and whether to the last digits."""
    if not math.isclose(stored.log_ratio, found.log_ratio, rel_tol=1e-9, abs_tol=1e-12) or stored.n_blocks != found.n_blocks:
        return False, False
    slack = _LOOSE * (found.log_high - found.log_low) + 1e-9
    offset = max(abs(stored.log_low - found.log_low), abs(stored.log_high - found.log_high))
    return offset <= slack and stored.log_low <= stored.log_ratio <= stored.log_high, offset <= 1e-9


def check_sessions(store: Store) -> Iterator[Finding | Note]:
    """Samples can be read, and a session's estimate follows from them."""
    n_redrawn = 0
    sql = "SELECT id, samples, purpose, log_ratio, log_low, log_high, n_blocks FROM timing_sessions WHERE id > ?"
    for batch in _batches(pages(store, sql)):
        sessions = []
        readable = []
        for row in batch:
            try:
                sessions.append(load_session(row[1], row[2]))
                readable.append(row)
            except UNREADABLE as error:
                yield Finding("sessions", f"session {row[0]}", f"its samples cannot be read: {error}")
        for (key, _, _, *columns), found in zip(readable, single_estimates(sessions), strict=True):
            where = f"session {key}"
            stored = load_estimate(*columns)
            if stored is None or found is None:
                if stored is not found or any(column is not None for column in columns):
                    yield Finding("sessions", where, f"its samples say {_words(found)}, its row says {_words(stored)}")
                continue
            same, exact = _same_interval(stored, found)
            if not same:
                yield Finding("sessions", where, f"its samples say {_words(found)}, its row says {_words(stored)}")
            n_redrawn += same and not exact
    if n_redrawn:
        yield Note(f"{n_redrawn} sessions have an interval that an earlier version drew; this one draws other resamples")


def _batches(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Rows, so many at a time that their resamples take a few megabytes."""
    batch: list[Any] = []
    for row in rows:
        batch.append(row)
        if len(batch) == 256:
            yield batch
            batch = []
    yield batch


def _words(estimate: Estimate | None) -> str:
    if estimate is None:
        return "no estimate"
    return f"{estimate.log_ratio:.9g} [{estimate.log_low:.9g}, {estimate.log_high:.9g}] of {estimate.n_blocks} blocks"


_STANDINGS = (
    "SELECT t.identity, t.kernel_id, t.verdict_id, t.schema_id, t.cell, t.log_ratio, t.log_low, t.log_high, t.n_blocks,"
    " t.speedup, t.speedup_low, t.speedup_high, t.n_sessions FROM standings t WHERE t.problem_id = ? AND t.environment_id = ?"
    " ORDER BY t.identity"
)


def check_standings(store: Store, material: Mapping[tuple[int, int], Material]) -> Iterator[tuple[Finding, Stale | None]]:
    """Every standing, which cells and bests are read from, is what verdicts and sessions say; what has to be mended."""
    schemas = {}
    for key, axes in store.read("SELECT id, axes FROM measures_schemas ORDER BY id"):
        try:
            schemas[key] = load_schema(axes)
        except UNREADABLE:
            continue
    for place in material.values():
        rows = {row[0]: row for row in store.read(_STANDINGS, (place.problem, place.environment))}
        for expected in expected_standings(store, place):
            if isinstance(expected, str):
                rows.pop(expected, None)
                continue
            row = rows.pop(expected.identity, None)
            wrong = _differences(row, expected, schemas) if row is not None else ["is missing"]
            if wrong:
                finding = Finding("standings", f"kernel {expected.identity[:12]}", "; ".join(wrong), repairable=True)
                yield finding, Stale(place.problem, place.environment, expected.identity)
        for identity in rows:
            finding = Finding("standings", f"kernel {identity[:12]}", "has a standing, and nothing it follows from", True)
            yield finding, Stale(place.problem, place.environment, identity)
    places = {(place.problem, place.environment) for place in material.values()}
    for problem, environment, count in store.read(
        "SELECT problem_id, environment_id, COUNT(*) FROM standings GROUP BY problem_id, environment_id"
        " ORDER BY problem_id, environment_id"
    ):
        if (problem, environment) not in places:
            yield Finding("standings", f"problem {problem}", f"{count} standings of a problem without verdicts"), None


def _differences(row: Any, expected: Standing, schemas: Mapping[int, MeasuresSchema]) -> list[str]:
    _, kernel, verdict, schema_id, cell, log_ratio, log_low, log_high, n_blocks, *speedups, n_sessions = row
    wrong = []
    if kernel != expected.kernel or verdict != expected.verdict:
        wrong.append(f"names kernel {kernel} by verdict {verdict}, expected {expected.kernel} by {expected.verdict}")
    schema = schemas.get(schema_id)
    expected_cell = expected.cell(schema) if schema is not None else None
    if schema is not None and cell != (dump(expected_cell) if expected_cell is not None else None):
        wrong.append(f"cell {cell}, expected {expected_cell}")
    try:
        stored = load_estimate(log_ratio, log_low, log_high, n_blocks)
        same = stored is not None and _same_interval(stored, expected.estimate)[0]
        speeds = all(math.isclose(s, math.exp(v), rel_tol=1e-9) for s, v in zip(speedups, row[5:8], strict=True))
    except UNREADABLE:
        return [*wrong, "its numbers cannot be read"]
    if not same:
        wrong.append(f"log speed-up {_words(stored)}, expected {_words(expected.estimate)}")
    if not speeds:
        wrong.append("its speed-up is not that of its logarithm")
    if n_sessions != expected.n_sessions:
        wrong.append(f"{n_sessions} sessions, expected {expected.n_sessions}")
    return wrong


def check_results(store: Store, material: Mapping[tuple[int, int], Material]) -> Iterator[Finding]:
    """What every candidate did to its run's grid, told again from the run's start."""
    for place in material.values():
        for run in place.runs:
            for count, (index, stored, found) in enumerate(replay_results(store, place, run)):
                where = f"candidate {index} of run {run.name}"
                if count == _MOST:
                    yield Finding("results", where, "and later ones of this run: the rest is not listed")
                    break
                what = f"its row says {stored.status.value} {stored.value} in {stored.cell}, its run's history says"
                yield Finding("results", where, f"{what} {found.status.value} {found.value} in {found.cell}")
