"""Descent: whose offspring a kernel is, and how fast each ancestor was at first."""

from __future__ import annotations

from dataclasses import dataclass

from archive.codec import load_estimate
from archive.mining.digests import resolve
from archive.mining.sessions import FIRST
from archive.store import Store
from evo_l2.evaluation import Estimate

__all__ = ["Ancestor", "lineage"]


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A kernel in a line of descent, and the candidate that brought it."""

    digest: str
    depth: int
    """0 for the kernel asked about, 1 for its parents, and so on; the shortest way counts."""
    run: str
    index: int
    operator: str
    parents: tuple[str, ...]
    estimate: Estimate | None
    """From its first session; None when it did not pass."""


def lineage(store: Store, prefix: str) -> tuple[Ancestor, ...]:
    """A kernel and its ancestors, the nearest first; seeds have no parents.

    A kernel that several runs brought has the parents that it had the first time.

    Raises:
        ConfigurationError: The prefix does not name one kernel.
    """
    line: list[Ancestor] = []
    level = [resolve(store, prefix)]
    seen = set(level)
    depth = 0
    while level:
        born = [_born(store, digest, depth) for digest in level]
        line.extend(ancestor for ancestor in born if ancestor is not None)
        parents = [parent for ancestor in born if ancestor is not None for parent in ancestor.parents]
        level = [parent for parent in dict.fromkeys(parents) if parent not in seen]
        seen.update(level)
        depth += 1
    return tuple(line)


def _born(store: Store, digest: str, depth: int) -> Ancestor | None:
    """The candidate that first brought a kernel; None for one that no run has told yet."""
    rows = store.read(
        "SELECT c.id, r.name, c.idx, c.operator, s.log_ratio, s.log_low, s.log_high, s.n_blocks FROM candidates c"
        " JOIN kernels k ON k.id = c.kernel_id JOIN runs r ON r.id = c.run_id"
        f" LEFT JOIN timing_sessions s ON s.id = {FIRST} WHERE k.digest = ? ORDER BY c.id LIMIT 1",
        (digest,),
    )
    if not rows:
        return None
    key, run, index, operator, *estimate = rows[0]
    parents = store.read(
        "SELECT k.digest FROM candidate_parents p JOIN kernels k ON k.id = p.kernel_id WHERE p.candidate_id = ?"
        " ORDER BY p.position",
        (key,),
    )
    return Ancestor(digest, depth, run, index, operator, tuple(row[0] for row in parents), load_estimate(*estimate))
