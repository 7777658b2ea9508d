"""A run in numbers, kept up to date as it is written: what `stats` reads instead of every candidate.

Each table here is a pure function of candidates, verdicts and sessions: `computed_tallies` is that function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from archive.codec import load
from archive.database import Database
from evo_l2.evaluation import Status

__all__ = [
    "Record",
    "Tallies",
    "Tally",
    "computed_tallies",
    "count_candidate",
    "rebuild_tallies",
    "settle_candidates",
    "stored_tallies",
]

FIRST_CONCLUSIVE = "(SELECT MIN(t.id) FROM timing_sessions t WHERE t.verdict_id = c.verdict_id AND t.log_low IS NOT NULL)"
"""The first session of a candidate's kernel whose times can be trusted, whichever run measured it."""

_PAGE = 2000
_COUNT = (
    "UPDATE run_tallies SET n = n + 1, wall_us = wall_us + ? WHERE run_id = ? AND operator = ? AND outcome = ? AND status = ?"
    " AND added = ?"
)
_NEW_COUNT = "INSERT INTO run_tallies (wall_us, run_id, operator, outcome, status, added, n) VALUES (?, ?, ?, ?, ?, ?, 1)"
_UNCOUNT = (
    "UPDATE run_tallies SET n = n - 1, wall_us = wall_us - ? WHERE run_id = ? AND operator = ? AND outcome = ?"
    " AND status = ? AND added = ?"
)
_OPERATOR = (
    "INSERT INTO run_operators (run_id, operator, first_idx) VALUES (?, ?, ?) ON CONFLICT (run_id, operator) DO NOTHING"
)
_RECORD = "INSERT INTO run_records (run_id, idx, operator, log_low) VALUES (?, ?, ?, ?)"
_INCONCLUSIVE = Status.INCONCLUSIVE.value


@dataclass(frozen=True, slots=True, order=True)
class Tally:
    """Candidates of one run that are alike."""

    operator: str
    outcome: str
    status: str
    """Empty for candidates that were not evaluated; `inconclusive` for those without a conclusive session to this day."""
    added: str
    """What adding them did to the grid: the value of an `AddStatus`."""
    n: int
    wall_us: int
    """Wall microseconds of all of them, each rounded."""


@dataclass(frozen=True, slots=True, order=True)
class Record:
    """A candidate whose lower bound was higher than that of all before it in its run."""

    index: int
    operator: str
    log_low: float


@dataclass(frozen=True, slots=True)
class Tallies:
    """All of one run."""

    tallies: tuple[Tally, ...]
    """Sorted."""
    first_indices: Mapping[str, int]
    """By operator."""
    records: tuple[Record, ...]
    """In order of index."""


def stored_tallies(database: Database, run_id: int) -> Tallies:
    """What the tables say."""
    tallies = database.read(
        "SELECT operator, outcome, status, added, n, wall_us FROM run_tallies WHERE run_id = ?", (run_id,)
    )
    operators = database.read("SELECT operator, first_idx FROM run_operators WHERE run_id = ? ORDER BY first_idx", (run_id,))
    records = database.read("SELECT idx, operator, log_low FROM run_records WHERE run_id = ? ORDER BY idx", (run_id,))
    return Tallies(
        tuple(sorted(Tally(*row) for row in tallies)),
        dict(operators),
        tuple(Record(*row) for row in records),
    )


def computed_tallies(database: Database, run_id: int) -> Tallies:
    """What the tables should say, from the candidates, verdicts and sessions."""
    counts: dict[tuple[str, str, str, str], list[int]] = {}
    first: dict[str, int] = {}
    records: list[Record] = []
    last = -1
    while True:
        rows = database.read(
            "SELECT c.idx, c.operator, c.outcome, c.add_status, c.seconds, v.status, c.session_id, s.log_low"
            " FROM candidates c LEFT JOIN verdicts v ON v.id = c.verdict_id"
            f" LEFT JOIN timing_sessions s ON s.id = {FIRST_CONCLUSIVE}"
            " WHERE c.run_id = ? AND c.idx > ? ORDER BY c.idx LIMIT ?",
            (run_id, last, _PAGE),
        )
        if not rows:
            break
        last = rows[-1][0]
        for index, operator, outcome, added, seconds, status, session, log_low in rows:
            judged = _INCONCLUSIVE if session is not None and log_low is None else status or ""
            count = counts.setdefault((operator, outcome, judged, added), [0, 0])
            count[0] += 1
            count[1] += _wall_us(load(seconds))
            first.setdefault(operator, index)
            if log_low is not None and (not records or log_low > records[-1].log_low):
                records.append(Record(index, operator, log_low))
    tallies = sorted(Tally(*key, n, wall_us) for key, (n, wall_us) in counts.items())
    return Tallies(tuple(tallies), first, tuple(records))


def rebuild_tallies(database: Database, run_id: int) -> None:
    """Writes `computed_tallies` in place of what the tables say; inside a transaction."""
    found = computed_tallies(database, run_id)
    for table in ("run_tallies", "run_operators", "run_records"):
        database.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
    for one in found.tallies:
        database.execute(
            "INSERT INTO run_tallies (run_id, operator, outcome, status, added, n, wall_us) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (run_id, one.operator, one.outcome, one.status, one.added, one.n, one.wall_us),
        )
    for operator, index in found.first_indices.items():
        database.execute(_OPERATOR, (run_id, operator, index))
    for record in found.records:
        database.execute(_RECORD, (run_id, record.index, record.operator, record.log_low))


def count_candidate(
    database: Database,
    run_id: int,
    index: int,
    operator: str,
    outcome: str,
    status: str | None,
    added: str,
    seconds: Mapping[str, float],
    log_low: float | None,
) -> None:
    """Counts a candidate that is being written.

    Args:
        database: The archive, inside a transaction.
        run_id: Its run.
        index: Its index.
        operator: Its operator.
        outcome: Its outcome.
        status: That of its evaluation, `inconclusive` among them; None where it was not evaluated.
        added: What it did to the grid.
        seconds: Its seconds by stage.
        log_low: The lower bound of its kernel's first conclusive session, where it has one.
    """
    if _count(database, (_wall_us(seconds), run_id, operator, outcome, status or "", added)):
        database.execute(_OPERATOR, (run_id, operator, index))
    if log_low is not None:
        _record(database, run_id, index, operator, log_low)


def settle_candidates(database: Database, verdict_id: int, log_low: float) -> None:
    """Counts the candidates of a verdict anew that has its first conclusive session now; inside a transaction."""
    for run_id, index, operator, outcome, added, seconds, status in database.read(
        "SELECT c.run_id, c.idx, c.operator, c.outcome, c.add_status, c.seconds, v.status FROM verdicts v"
        " JOIN candidates c ON c.kernel_id = v.kernel_id AND c.verdict_id = v.id"
        " WHERE v.id = ? AND c.session_id IS NOT NULL ORDER BY c.id",
        (verdict_id,),
    ):
        wall_us = _wall_us(load(seconds))
        database.execute(_UNCOUNT, (wall_us, run_id, operator, outcome, _INCONCLUSIVE, added))
        database.execute("DELETE FROM run_tallies WHERE run_id = ? AND n = 0", (run_id,))
        _count(database, (wall_us, run_id, operator, outcome, status, added))
        _record(database, run_id, index, operator, log_low)


def _count(database: Database, row: tuple[object, ...]) -> bool:
    """Counts one candidate; whether it is the first of its kind."""
    if database.execute(_COUNT, row).rowcount == 1:
        return False
    database.execute(_NEW_COUNT, row)
    return True


def _record(database: Database, run_id: int, index: int, operator: str, log_low: float) -> None:
    """Puts a candidate among the run's records, where it belongs; those after it that it beats are none any more."""
    before = database.read(
        "SELECT log_low FROM run_records WHERE run_id = ? AND idx < ? ORDER BY idx DESC LIMIT 1", (run_id, index)
    )
    if before and before[0][0] >= log_low:
        return
    database.execute("DELETE FROM run_records WHERE run_id = ? AND idx > ? AND log_low <= ?", (run_id, index, log_low))
    database.execute(_RECORD, (run_id, index, operator, log_low))


def _wall_us(seconds: Mapping[str, float]) -> int:
    """NaN and infinities count as nothing."""
    wall = seconds.get("wall", 0.0) * 1e6
    return round(wall) if abs(wall) < 1e18 else 0
