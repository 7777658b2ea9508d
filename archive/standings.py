"""What all runs together know of each kernel that passed: tables that follow from verdicts and sessions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from archive.codec import dump, load_measures, load_schema, load_session
from archive.database import Database
from archive.tallies import rebuild_tallies
from evo_l2.evaluation import Estimate, Status, TimingSession
from evo_l2.measures import MeasuresSchema
from evo_l2.timing import pooled_estimates

__all__ = [
    "DERIVED",
    "computed_revisits",
    "current_axes",
    "fill_derived",
    "has_other_axes",
    "is_alone",
    "mark_revisit",
    "put_pending",
    "put_standing",
    "rebuild_derived",
    "rebuild_standings",
    "refresh_standing",
    "refresh_standings",
]

DERIVED = ("standings", "pending", "revisits", "run_tallies", "run_operators", "run_records")
"""The tables that `rebuild_derived` makes from all others: `fsck` works them out again, digests of content leave them out."""

_PAGE = 200
_GOOD = ", ".join(f"'{status.value}'" for status in Status if status.is_good)
_INSERT_STANDING = (
    "INSERT INTO standings (problem_id, environment_id, identity, kernel_id, verdict_id, schema_id, cell, log_ratio,"
    " log_low, log_high, speedup, speedup_low, speedup_high, n_blocks, n_sessions)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_PENDING = (
    "INSERT INTO pending (problem_id, environment_id, identity, kernel_id, digest, verdict_id, schema_id, cell, is_run)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_REVISITS = (
    # Several verdicts that it is good, several sessions, several candidates on one verdict, or a verdict that came later.
    f"SELECT identity FROM verdicts WHERE problem_id = ? AND environment_id = ? AND status IN ({_GOOD})"
    " GROUP BY identity HAVING COUNT(*) > 1",
    "SELECT v.identity FROM timing_sessions s JOIN verdicts v ON v.id = s.verdict_id"
    " WHERE v.problem_id = ? AND v.environment_id = ? GROUP BY v.identity HAVING COUNT(*) > 1",
    "SELECT MAX(v.identity) FROM candidates c JOIN verdicts v ON v.id = c.verdict_id WHERE v.problem_id = ?"
    " AND v.environment_id = ? AND v.identity IS NOT NULL GROUP BY v.id HAVING COUNT(*) > 1",
    "SELECT v.identity FROM verdicts w JOIN verdicts v ON v.kernel_id = w.kernel_id AND v.problem_id = w.problem_id"
    " AND v.environment_id = w.environment_id WHERE w.problem_id = ? AND w.environment_id = ? AND w.attempt > 0"
    " AND v.identity IS NOT NULL",
)

Place = tuple[int, int, str, int, int, int, str | None]
"""Problem, environment, identity, kernel, verdict, schema, and the cell as JSON."""


def has_other_axes(database: Database, problem_id: int, environment_id: int, schema_id: int) -> bool:
    """Whether kernels stand in cells of other axes than these."""
    where = "WHERE problem_id = ? AND environment_id = ?"
    for table in ("standings", "pending"):
        # Apart from each other, since SQLite takes a step through the index for one of them and reads all of it for both.
        found = database.read(
            f"SELECT (SELECT MIN(schema_id) FROM {table} {where}), (SELECT MAX(schema_id) FROM {table} {where})",
            2 * (problem_id, environment_id),
        )
        if not set(found[0]) <= {None, schema_id}:
            return True
    return False


def is_alone(database: Database, problem_id: int, environment_id: int, identity: str, verdict_id: int) -> bool:
    """Whether no other verdict says that a kernel of this identity is good."""
    return not database.read(
        f"SELECT 1 FROM verdicts WHERE identity = ? AND problem_id = ? AND environment_id = ? AND status IN ({_GOOD})"
        " AND id <> ? LIMIT 1",
        (identity, problem_id, environment_id, verdict_id),
    )


def put_standing(database: Database, place: Place, estimate: Estimate, n_sessions: int) -> None:
    """Writes the standing of a kernel that has none."""
    database.execute(_INSERT_STANDING, (*place, *_columns(estimate), n_sessions))


def put_pending(database: Database, place: Place, digest: str, *, is_run: bool) -> None:
    """Writes that a kernel is good and has no estimate: it was never run, or no session was conclusive."""
    problem_id, environment_id, identity, kernel_id, verdict_id, schema_id, cell = place
    row = (problem_id, environment_id, identity, kernel_id, digest, verdict_id, schema_id, cell, int(is_run))
    database.execute(_INSERT_PENDING, row)


def mark_revisit(database: Database, problem_id: int, environment_id: int, identity: str) -> None:
    """Writes that more than one verdict, session or candidate speaks of an identity, or once more.

    The row gets a new id each time, since open runs look at those that came since they last did.
    """
    key = (problem_id, environment_id, identity)
    database.execute("DELETE FROM revisits WHERE problem_id = ? AND environment_id = ? AND identity = ?", key)
    database.execute("INSERT INTO revisits (problem_id, environment_id, identity) VALUES (?, ?, ?)", key)


def refresh_standing(
    database: Database, problem_id: int, environment_id: int, identity: str, schema_id: int, schema: MeasuresSchema
) -> None:
    """Works out one kernel's standing from its verdicts and sessions, those of every run; inside a transaction.

    A source that failed once, in any run, does not count.
    """
    refresh_standings(database, problem_id, environment_id, (identity,), schema_id, schema)


def refresh_standings(
    database: Database,
    problem_id: int,
    environment_id: int,
    identities: Sequence[str],
    schema_id: int,
    schema: MeasuresSchema,
) -> None:
    """`refresh_standing` of several kernels, which is faster than of one after the other."""
    for start in range(0, len(identities), _PAGE):
        _refresh(database, (problem_id, environment_id), identities[start : start + _PAGE], schema_id, schema)


def _refresh(
    database: Database, where: tuple[int, int], identities: Sequence[str], schema_id: int, schema: MeasuresSchema
) -> None:
    marks = ",".join("?" * len(identities))
    for table in ("standings", "pending"):
        database.execute(
            f"DELETE FROM {table} WHERE problem_id = ? AND environment_id = ? AND identity IN ({marks})",
            (*where, *identities),
        )
    members: dict[str, list[Any]] = defaultdict(list)
    for identity, *row in database.read(
        "SELECT v.identity, k.digest, k.id, v.id, v.status, v.measures FROM verdicts v JOIN kernels k ON k.id = v.kernel_id"
        f" WHERE v.problem_id = ? AND v.environment_id = ? AND v.identity IN ({marks}) AND NOT EXISTS (SELECT 1 FROM"
        " verdicts w WHERE w.kernel_id = v.kernel_id AND w.problem_id = v.problem_id AND w.environment_id = v.environment_id"
        f" AND w.status <> v.status) AND v.status IN ({_GOOD}) ORDER BY k.digest, v.id",
        (*where, *identities),
    ):
        members[identity].append(row)
    passed = {name: [row for row in rows if row[3] == Status.PASSED.value] for name, rows in members.items()}
    sessions = _conclusive(database, [row[2] for rows in passed.values() for row in rows])
    timed = {name: [one for row in rows for one in sessions.get(row[2], ())] for name, rows in passed.items()}
    estimates = dict(zip(timed, pooled_estimates(list(timed.values())), strict=True))
    for identity, rows in members.items():
        digest, kernel_id, verdict_id, _, text = (passed[identity] or rows)[0]
        measures = load_measures(text)
        fits = measures is not None and len(measures) == len(schema.axes)
        cell = dump(schema.cell(measures)) if fits and measures is not None else None
        place = (*where, identity, kernel_id, verdict_id, schema_id, cell)
        estimate = estimates[identity]
        if estimate is None:
            put_pending(database, place, digest, is_run=bool(passed[identity]))
        else:
            put_standing(database, place, estimate, len(timed[identity]))


def _conclusive(database: Database, verdicts: Sequence[int]) -> dict[int, list[TimingSession]]:
    """Sessions whose times can be trusted, by verdict."""
    found: dict[int, list[TimingSession]] = defaultdict(list)
    for start in range(0, len(verdicts), _PAGE):
        page = verdicts[start : start + _PAGE]
        for verdict, samples, purpose in database.read(
            f"SELECT verdict_id, samples, purpose FROM timing_sessions WHERE verdict_id IN ({','.join('?' * len(page))})"
            " AND log_low IS NOT NULL ORDER BY id",
            page,
        ):
            found[verdict].append(load_session(samples, purpose))
    return found


def rebuild_standings(
    database: Database, problem_id: int, environment_id: int, schema_id: int, schema: MeasuresSchema
) -> None:
    """Works out every standing of a problem in an environment again; inside a transaction."""
    place = (problem_id, environment_id)
    for table in ("standings", "pending"):
        database.execute(f"DELETE FROM {table} WHERE problem_id = ? AND environment_id = ?", place)
    identities = database.read(
        "SELECT DISTINCT identity FROM verdicts WHERE problem_id = ? AND environment_id = ? AND identity IS NOT NULL"
        f" AND status IN ({_GOOD}) ORDER BY identity",
        place,
    )
    refresh_standings(database, problem_id, environment_id, [row[0] for row in identities], schema_id, schema)
    _add_revisits(database, problem_id, environment_id)


def _add_revisits(database: Database, problem_id: int, environment_id: int) -> None:
    """Adds what is missing; open runs know these rows by their ids, so none is written anew."""
    place = (problem_id, environment_id)
    rows = database.read("SELECT identity FROM revisits WHERE problem_id = ? AND environment_id = ?", place)
    for identity in sorted(computed_revisits(database, *place) - {row[0] for row in rows}):
        mark_revisit(database, problem_id, environment_id, identity)


def computed_revisits(database: Database, problem_id: int, environment_id: int) -> set[str]:
    """The identities of which more than one verdict, session or candidate speaks, from these rows."""
    found: set[str] = set()
    for sql in _REVISITS:
        found.update(row[0] for row in database.read(sql, (problem_id, environment_id)))
    return found


def rebuild_derived(database: Database) -> None:
    """Works out all tables that follow from the others; inside a transaction."""
    for place, schema_id, schema in _places(database):
        rebuild_standings(database, *place, schema_id, schema)
    for (run_id,) in database.read("SELECT id FROM runs ORDER BY id"):
        rebuild_tallies(database, run_id)


def fill_derived(database: Database) -> None:
    """Fills the tables that revision 0004 brought, and leaves the standings of kernels with an estimate as they are."""
    for place, schema_id, schema in _places(database):
        missing = database.read(
            "SELECT DISTINCT v.identity FROM verdicts v WHERE v.problem_id = ? AND v.environment_id = ?"
            f" AND v.status IN ({_GOOD}) AND NOT EXISTS (SELECT 1 FROM standings t WHERE t.problem_id = v.problem_id"
            " AND t.environment_id = v.environment_id AND t.identity = v.identity) ORDER BY v.identity",
            place,
        )
        refresh_standings(database, *place, [row[0] for row in missing], schema_id, schema)
        _add_revisits(database, *place)
    for (run_id,) in database.read("SELECT id FROM runs ORDER BY id"):
        rebuild_tallies(database, run_id)


def current_axes(database: Database, problem_id: int, environment_id: int) -> tuple[int, MeasuresSchema]:
    """The axes by which kernels stand there, with their id: those of the run that was started last, wherever that was.

    Raises:
        KeyError: There is no run.
    """
    rows = database.read(
        "SELECT m.id, m.axes FROM runs r JOIN measures_schemas m ON m.id = r.schema_id WHERE r.problem_id = ?"
        " AND r.environment_id = ? ORDER BY r.created DESC, r.uid DESC LIMIT 1",
        (problem_id, environment_id),
    )
    if not rows:
        raise KeyError("no run")
    return rows[0][0], load_schema(rows[0][1])


def _places(database: Database) -> list[tuple[tuple[int, int], int, MeasuresSchema]]:
    """Every problem and environment, with the axes by which kernels stand there."""
    places = database.read("SELECT DISTINCT problem_id, environment_id FROM runs ORDER BY problem_id, environment_id")
    return [((row[0], row[1]), *current_axes(database, row[0], row[1])) for row in places]


def _columns(estimate: Estimate) -> tuple[float, ...]:
    logs = (estimate.log_ratio, estimate.log_low, estimate.log_high)
    return (*logs, *(math.exp(value) for value in logs), estimate.n_blocks)
