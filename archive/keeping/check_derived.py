"""Checks of what follows from other rows: a session's estimate, derived tables, and what every addition did."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from archive.codec import dump, load_estimate, load_schema, load_session
from archive.database import Database
from archive.keeping.findings import UNREADABLE, Finding, Note, pages
from archive.keeping.rework import Material, Standing, expected_standings, replay_results
from archive.standings import computed_revisits, current_axes, mark_revisit, refresh_standing
from archive.store import Store
from archive.tallies import Tallies, computed_tallies, rebuild_tallies, stored_tallies
from evo_l2.evaluation import Estimate
from evo_l2.measures import MeasuresSchema
from evo_l2.timing import single_estimates

__all__ = ["Mend", "check_results", "check_revisits", "check_sessions", "check_standings", "check_tallies"]

_LOOSE = 0.5
"""Ends of an interval that another version drew from other resamples differ by less than this share of its width."""
_MOST = 20
"""Results that are named for each run; one that is wrong makes all that follow suspect."""


Mend = Callable[[Database], None]
"""Works a derived row out again; inside a transaction."""


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
_PENDING = (
    "SELECT t.identity, t.kernel_id, t.verdict_id, t.schema_id, t.cell, t.digest, t.is_run FROM pending t"
    " WHERE t.problem_id = ? AND t.environment_id = ? ORDER BY t.identity"
)


def check_standings(store: Store, material: Mapping[tuple[int, int], Material]) -> Iterator[tuple[Finding, Mend | None]]:
    """Every standing, which cells and bests are read from, is what verdicts and sessions say; and what mends it."""
    schemas = {}
    for key, axes in store.read("SELECT id, axes FROM measures_schemas ORDER BY id"):
        try:
            schemas[key] = load_schema(axes)
        except UNREADABLE:
            continue
    for place in material.values():
        where = (place.problem, place.environment)
        timed = {row[0]: row for row in store.read(_STANDINGS, where)}
        pending = {row[0]: row for row in store.read(_PENDING, where)}
        for expected in expected_standings(store, place):
            if isinstance(expected, str):
                timed.pop(expected, None)
                pending.pop(expected, None)
                continue
            row, other = timed.pop(expected.identity, None), pending.pop(expected.identity, None)
            if expected.estimate is None:
                row, other = other, row
            wrong = _differences(row, expected, schemas) if row is not None else ["is missing"]
            if other is not None:
                wrong.append("stands with and without an estimate" if row is not None else "stands among the wrong ones")
            if wrong:
                yield _stale(place, expected.identity, "; ".join(wrong))
        for identity in (*timed, *pending):
            yield _stale(place, identity, "has a standing, and nothing it follows from")
    for table in ("standings", "pending"):
        for problem, environment, count in store.read(
            f"SELECT problem_id, environment_id, COUNT(*) FROM {table} GROUP BY problem_id, environment_id"
            " ORDER BY problem_id, environment_id"
        ):
            if (problem, environment) not in material:
                yield Finding("standings", f"problem {problem}", f"{count} {table} of a problem without verdicts"), None


def _stale(place: Material, identity: str, what: str) -> tuple[Finding, Mend]:
    def mend(database: Database) -> None:
        schema_id, schema = current_axes(database, place.problem, place.environment)
        refresh_standing(database, place.problem, place.environment, identity, schema_id, schema)

    return Finding("standings", f"kernel {str(identity)[:12]}", what, repairable=True), mend


def _differences(row: Any, expected: Standing, schemas: Mapping[int, MeasuresSchema]) -> list[str]:
    _, kernel, verdict, schema_id, cell, *rest = row
    wrong = []
    if kernel != expected.kernel or verdict != expected.verdict:
        wrong.append(f"names kernel {kernel} by verdict {verdict}, expected {expected.kernel} by {expected.verdict}")
    schema = schemas.get(schema_id)
    expected_cell = expected.cell(schema) if schema is not None else None
    if schema is not None and cell != (dump(expected_cell) if expected_cell is not None else None):
        wrong.append(f"cell {cell}, expected {expected_cell}")
    if expected.estimate is None:
        if rest != [expected.digest, int(expected.is_run)]:
            wrong.append(f"says {rest}, expected {[expected.digest, int(expected.is_run)]}")
        return wrong
    log_ratio, log_low, log_high, n_blocks, *speedups, n_sessions = rest
    try:
        stored = load_estimate(log_ratio, log_low, log_high, n_blocks)
        same = stored is not None and _same_interval(stored, expected.estimate)[0]
        speeds = all(
            math.isclose(s, math.exp(v), rel_tol=1e-9) for s, v in zip(speedups, (log_ratio, log_low, log_high), strict=True)
        )
    except UNREADABLE:
        return [*wrong, "its numbers cannot be read"]
    if not same:
        wrong.append(f"log speed-up {_words(stored)}, expected {_words(expected.estimate)}")
    if not speeds:
        wrong.append("its speed-up is not that of its logarithm")
    if n_sessions != expected.n_sessions:
        wrong.append(f"{n_sessions} sessions, expected {expected.n_sessions}")
    return wrong


def check_revisits(store: Store, material: Mapping[tuple[int, int], Material]) -> Iterator[tuple[Finding, Mend]]:
    """Every kernel that more than one row speaks of is listed; one that is listed for nothing costs only time."""
    for place in material.values():
        where = (place.problem, place.environment)
        sql = "SELECT identity FROM revisits WHERE problem_id = ? AND environment_id = ?"
        listed = {row[0] for row in store.read(sql, where)}
        for identity in sorted(computed_revisits(store._database, *where) - listed):
            what = "several rows speak of it, and it is not listed as such"
            mend = partial(mark_revisit, problem_id=where[0], environment_id=where[1], identity=identity)
            yield Finding("revisits", f"kernel {identity[:12]}", what, repairable=True), mend


def check_tallies(store: Store) -> Iterator[tuple[Finding, Mend]]:
    """Every run's counts and records are those of its candidates."""
    for key, name in store.read("SELECT id, name FROM runs ORDER BY id"):
        try:
            expected = computed_tallies(store._database, key)
        except UNREADABLE:  # the candidate is named by another check
            continue
        try:
            wrong = _parted(stored_tallies(store._database, key), expected)
        except UNREADABLE:
            wrong = ["cannot be read"]
        if wrong:
            yield Finding("tallies", f"run {name}", "; ".join(wrong), repairable=True), partial(rebuild_tallies, run_id=key)


def _parted(stored: Tallies, expected: Tallies) -> list[str]:
    wrong = []
    if stored.tallies != expected.tallies:
        counts = [sum(tally.n for tally in tallies.tallies) for tallies in (stored, expected)]
        wrong.append(f"its counts, of {counts[0]} candidates, are not those of its {counts[1]} candidates")
    if dict(stored.first_indices) != dict(expected.first_indices):
        wrong.append("an operator's first candidate is another one")
    if stored.records != expected.records:
        wrong.append(f"{len(stored.records)} records, expected {len(expected.records)}, or others")
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
