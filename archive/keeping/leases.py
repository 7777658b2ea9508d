"""Work in hand: what is to be done once, taken by one worker at a time, for a time, and taken again when that has passed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from archive.codec import now
from archive.store import Store
from evo_l2.errors import StorageError

__all__ = ["Lease", "LeaseLostError", "SteadyClock", "Work", "WorkCounts", "WorkQueue"]


class LeaseLostError(StorageError):
    """A lease ended before its work was done: another worker has it, or has done it. What was found must not be filed."""


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to do with one kernel; there is one of each (kernel, problem, environment, purpose), for ever."""

    digest: str
    """The kernel, which the archive holds."""
    problem_key: str
    environment_key: str
    """Where it is to be done."""
    purpose: str
    """What is to be done, for instance `reverify:RUN`; workers ask by it."""
    note: str = ""
    """Whatever the worker has to know beside; plain text."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Work that a worker may do until a moment."""

    key: int
    work: Work
    token: int
    """Rises each time that the work is taken: who brings an older one has lost it."""
    expires_s: float
    """In the queue's time, see `SteadyClock`."""


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """How much there is, by its state."""

    n_waiting: int
    """Never taken, given back, or taken under a lease that has expired."""
    n_taken: int
    n_done: int


class SteadyClock:
    """Seconds since the epoch, but never backwards, and never still while the machine's clock is set back.

    It goes by the wall clock where that leads, and by the monotonic clock from the latest moment seen elsewhere; so a
    lease that was taken before a clock was set back still expires in the seconds it was given, counted at the latest from
    when a worker first looks. Clocks of several hosts that differ lengthen or shorten a lease by as much.

    Args:
        wall: The machine's clock; another one in tests.
        monotonic: One that nobody sets.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._latest = wall()
        self._at = monotonic()

    def read(self, seen_s: float = 0.0) -> float:
        """The moment, not before one that was seen elsewhere."""
        at = self._monotonic()
        self._latest = max(self._latest + (at - self._at), self._wall(), seen_s)
        self._at = at
        return self._latest


class WorkQueue:
    """The work of one archive. Every method is one transaction; several processes and hosts may use one queue.

    A worker's death, a clock set back or forth, or a lease that ran out can make work be tried twice; it is done once: only
    the latest lease can end it, and one that ended is never given out again.

    Args:
        store: The archive.
        clock: Where the time comes from.
    """

    def __init__(self, store: Store, clock: SteadyClock | None = None) -> None:
        self._database = store._database
        self._clock = clock if clock is not None else SteadyClock()

    def put(self, work: Iterable[Work]) -> int:
        """Queues what is not queued yet, in order; how many that were.

        Raises:
            StorageError: A kernel, problem or environment is not in the archive; nothing is queued then.
        """
        n_new = 0
        with self._database.write():
            for one in work:
                ids = []
                for table, column, value in (
                    ("kernels", "digest", one.digest),
                    ("problems", "key", one.problem_key),
                    ("environments", "key", one.environment_key),
                ):
                    rows = self._database.read(f"SELECT id FROM {table} WHERE {column} = ?", (value,))
                    if not rows:
                        what = f"one of the archive's {table}"
                        raise StorageError("work cannot be queued", expected=what, found=value[:16])
                    ids.append(rows[0][0])
                key = self._database.insert(
                    "INSERT INTO work (kernel_id, problem_id, environment_id, purpose, note, created, token)"
                    " VALUES (?, ?, ?, ?, ?, ?, 0) ON CONFLICT (kernel_id, problem_id, environment_id, purpose) DO NOTHING",
                    (*ids, one.purpose, one.note, now()),
                )
                n_new += key is not None
        return n_new

    def take(self, purpose: str, holder: str, seconds: float) -> Lease | None:
        """The oldest work of a purpose that nobody holds; None when there is none now.

        Args:
            purpose: Which work.
            holder: Who takes it, for people to read.
            seconds: For how long; work that takes longer has to be renewed in time.
        """
        if not seconds > 0:
            raise ValueError("a lease lasts longer than no time")
        with self._database.write():
            moment = self._now()
            rows = self._database.read(
                "SELECT w.id, k.digest, p.key, e.key, w.note, w.token FROM work w JOIN kernels k ON k.id = w.kernel_id"
                " JOIN problems p ON p.id = w.problem_id JOIN environments e ON e.id = w.environment_id"
                " WHERE w.purpose = ? AND w.done IS NULL AND (w.expires_s IS NULL OR w.expires_s <= ?)"
                " ORDER BY w.id LIMIT 1",
                (purpose, moment),
            )
            if not rows:
                return None
            key, digest, problem, environment, note, token = rows[0]
            self._database.execute(
                "UPDATE work SET token = ?, holder = ?, taken_s = ?, expires_s = ? WHERE id = ?",
                (token + 1, holder, moment, moment + seconds, key),
            )
        return Lease(key, Work(digest, problem, environment, purpose, note), token + 1, moment + seconds)

    def renew(self, lease: Lease, seconds: float) -> Lease:
        """The lease, from now on for so many seconds; also one that has run out, while nobody else took it.

        Raises:
            LeaseLostError: Another worker has the work, or it is done.
        """
        if not seconds > 0:
            raise ValueError("a lease lasts longer than no time")
        with self._database.write():
            self._check(lease)
            expires_s = self._now() + seconds
            self._database.execute(
                "UPDATE work SET taken_s = ?, expires_s = ? WHERE id = ?", (expires_s - seconds, expires_s, lease.key)
            )
        return Lease(lease.key, lease.work, lease.token, expires_s)

    def check(self, lease: Lease) -> None:
        """Makes sure that the lease is the latest one of its work, whether or not it has run out.

        Raises:
            LeaseLostError: Another worker has the work, or it is done.
        """
        self._check(lease)

    def finish(self, lease: Lease) -> None:
        """Marks the work as done.

        Raises:
            LeaseLostError: Another worker has the work, or it is done.
        """
        with self._database.write():
            self._check(lease)
            self._database.execute("UPDATE work SET done = ?, expires_s = NULL WHERE id = ?", (now(), lease.key))

    def give_back(self, lease: Lease) -> None:
        """Lets another worker have it at once; a lease that was lost has nothing to give back."""
        with self._database.write():
            self._database.execute(
                "UPDATE work SET holder = NULL, expires_s = NULL WHERE id = ? AND token = ? AND done IS NULL",
                (lease.key, lease.token),
            )

    def release(self, holder: str) -> int:
        """Gives back all that a holder has, who is known to be dead; how much that was."""
        with self._database.write():
            rows = self._database.read("SELECT COUNT(*) FROM work WHERE holder = ? AND done IS NULL", (holder,))
            self._database.execute(
                "UPDATE work SET holder = NULL, expires_s = NULL WHERE holder = ? AND done IS NULL", (holder,)
            )
        return int(rows[0][0])

    def counts(self, purpose: str) -> WorkCounts:
        """How much there is of a purpose."""
        moment = self._now()
        rows = self._database.read(
            "SELECT COUNT(*), COUNT(done), COALESCE(SUM(CASE WHEN done IS NULL AND expires_s > ? THEN 1 ELSE 0 END), 0)"
            " FROM work WHERE purpose = ?",
            (moment, purpose),
        )
        n_all, n_done, n_taken = rows[0]
        return WorkCounts(n_all - n_done - n_taken, n_taken, n_done)

    def _now(self) -> float:
        seen = self._database.read("SELECT MAX(taken_s) FROM work")[0][0]
        return self._clock.read(seen if seen is not None else 0.0)

    def _check(self, lease: Lease) -> None:
        rows = self._database.read("SELECT token, holder, done FROM work WHERE id = ?", (lease.key,))
        if not rows or rows[0][2] is not None or rows[0][0] != lease.token:
            found = (
                "none" if not rows else f"it done at {rows[0][2]}" if rows[0][2] else f"{rows[0][1]} with lease {rows[0][0]}"
            )
            raise LeaseLostError(
                f"the lease on kernel {lease.work.digest[:12]} is lost; what was found is not filed",
                expected=f"lease {lease.token} to be the latest",
                found=found,
            )
