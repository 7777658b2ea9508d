"""How much of each run a file holds, how much of it is to be copied, and what a copy had seen at home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evo_l2.errors import StorageError

__all__ = ["Held", "Read", "RunCopy", "not_at_home", "read_held", "read_seen"]

Read = Callable[..., list[Any]]
"""Rows of a query, as `Store.read` gives them."""

_LAST_CANDIDATE = (
    "SELECT c.operator, c.outcome, c.created, c.message, k.digest FROM candidates c LEFT JOIN kernels k ON k.id = c.kernel_id"
    " WHERE c.run_id = ? AND c.idx = ?"
)
_LAST_VERDICT = (
    "SELECT k.digest, v.status, v.created FROM verdicts v JOIN kernels k ON k.id = v.kernel_id WHERE v.run_id = ?"
    " ORDER BY v.id LIMIT 1 OFFSET ?"
)
_LAST_SESSION = "SELECT samples, purpose, created FROM timing_sessions WHERE run_id = ? ORDER BY id LIMIT 1 OFFSET ?"


@dataclass(frozen=True, slots=True)
class Held:
    """A run as one file holds it."""

    key: int
    uid: str
    name: str
    n_verdicts: int
    n_sessions: int
    n_candidates: int

    def candidate(self, read: Read, other: Held) -> object:
        """The last candidate that this copy and another have in common, in a few columns."""
        return self._last(read, _LAST_CANDIDATE, min(self.n_candidates, other.n_candidates))

    def verdict(self, read: Read, other: Held) -> object:
        """The same for verdicts."""
        return self._last(read, _LAST_VERDICT, min(self.n_verdicts, other.n_verdicts))

    def session(self, read: Read, other: Held) -> object:
        """The same for sessions."""
        return self._last(read, _LAST_SESSION, min(self.n_sessions, other.n_sessions))

    def _last(self, read: Read, sql: str, n_common: int) -> object:
        return [tuple(row) for row in read(sql, (self.key, n_common - 1))] if n_common else None


@dataclass(slots=True)
class RunCopy:
    """How much of a run is to be copied."""

    run: Held
    """As the source holds it."""
    target: int | None
    """Its row here; None until it is made."""
    n_verdicts: int
    """How many are here."""
    n_sessions: int
    n_candidates: int
    is_new: bool

    @property
    def grows(self) -> bool:
        """Whether the source has more."""
        return (self.n_verdicts, self.n_sessions, self.n_candidates) != (
            self.run.n_verdicts,
            self.run.n_sessions,
            self.run.n_candidates,
        )


def read_held(read: Read) -> tuple[Held, ...]:
    """Every run of a file, in order of id."""
    counts = [
        dict(read(f"SELECT run_id, COUNT(*) FROM {table} GROUP BY run_id"))
        for table in ("verdicts", "timing_sessions", "candidates")
    ]
    rows = read("SELECT id, uid, name FROM runs ORDER BY id")
    return tuple(Held(key, uid, name, *(count.get(key, 0) for count in counts)) for key, uid, name in rows)


def read_seen(read: Read, run_id: int) -> dict[int, tuple[int, int, int]]:
    """Of a merged run: the last verdict, session and candidate that it had seen of each other run, by their ids here.

    A run's rows are written in order, so the first so many of them are those up to one id.
    """
    last: dict[str, dict[int, int]] = {}
    for table, count in (("verdicts", "n_verdicts"), ("timing_sessions", "n_sessions")):
        rows = read(
            f"SELECT t.run_id, t.id FROM (SELECT id, run_id, ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY id) AS n"
            f" FROM {table} WHERE run_id IN (SELECT seen_run_id FROM run_bases WHERE run_id = ?)) t"
            f" JOIN run_bases b ON b.run_id = ? AND b.seen_run_id = t.run_id AND b.{count} = t.n ORDER BY t.run_id",
            (run_id, run_id),
        )
        last[table] = {row[0]: row[1] for row in rows}
    found = {}
    for seen, candidate in read(
        "SELECT b.seen_run_id, c.id FROM run_bases b LEFT JOIN candidates c ON c.run_id = b.seen_run_id"
        " AND c.idx = b.n_candidates - 1 WHERE b.run_id = ? ORDER BY b.seen_run_id",
        (run_id,),
    ):
        found[seen] = (last["verdicts"].get(seen, 0), last["timing_sessions"].get(seen, 0), candidate or 0)
    return found


def not_at_home(name: str, merged: str) -> StorageError:
    """Why a merged run takes nothing more: it would go on in two files, and the two could never be merged again."""
    return StorageError(
        f"run {name} was merged into this archive and goes on at home only",
        expected="the file that it was started in",
        found=f"a copy, merged {merged}",
        hint="evo-l2 resume there and merge again, or evo-l2 run, to start a new run from what is here",
    )
