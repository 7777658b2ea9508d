"""How much of each run a file holds, and how much of it is to be copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Held", "Read", "RunCopy", "read_held"]

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
