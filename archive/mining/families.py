"""Families: a kernel's ancestors and descendants, and what each gained over its parents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archive.codec import load_estimate
from archive.mining.digests import resolve
from archive.mining.gains import Gain, gain
from archive.store import Store
from evo_l2.evaluation import Estimate, rank

__all__ = ["Family", "Relative", "family"]

_BIRTH = (
    "SELECT c.id, k.digest, r.name, c.idx, c.operator, v.status, r.problem_id, r.environment_id, t.log_ratio, t.log_low,"
    " t.log_high, t.n_blocks, (SELECT COUNT(*) FROM candidate_parents o WHERE o.kernel_id = k.id)"
    " FROM candidates c JOIN kernels k ON k.id = c.kernel_id JOIN runs r ON r.id = c.run_id"
    " LEFT JOIN verdicts v ON v.id = c.verdict_id LEFT JOIN standings t ON t.problem_id = r.problem_id"
    " AND t.environment_id = r.environment_id AND t.identity = v.identity AND v.status = 'passed'"
)


@dataclass(frozen=True, slots=True)
class Relative:
    """A kernel of a family, and the candidate that first brought it."""

    digest: str
    depth: int
    """Generations from the kernel asked about, by the shortest way."""
    run: str
    index: int
    operator: str
    parents: tuple[str, ...]
    status: str | None
    """Of its verdict; None for a source that repeats a known kernel."""
    estimate: Estimate | None
    """Over all sessions; None when it did not pass, or was never timed."""
    gains: tuple[Gain | None, ...]
    """Over each parent; None where one of the two has no time in this environment."""
    n_offspring: int
    """How many candidates name it as a parent, whether or not they are kernels."""


@dataclass(frozen=True, slots=True)
class Family:
    """A kernel with its ancestors and descendants."""

    kernel: Relative | None
    """None for a seed that no run has told yet."""
    ancestors: tuple[Relative, ...]
    """The nearest first."""
    descendants: tuple[Relative, ...]
    """The nearest first; of one generation the fastest first."""
    n_left_out: int
    """Descendants beyond the limit, their own offspring not counted."""


def family(store: Store, prefix: str, *, depth: int | None = None, limit: int = 100) -> Family:
    """A kernel with its ancestors and descendants over all runs.

    A kernel that several runs brought has the parents that it had the first time.

    Args:
        store: The archive.
        prefix: The first digits of the kernel's digest.
        depth: How many generations up and down; None for all.
        limit: The most descendants.

    Raises:
        ConfigurationError: The prefix does not name one kernel.
    """
    digest = resolve(store, prefix)
    kernel = _relative(store, digest, 0)
    ancestors = _ancestors(store, kernel, depth) if kernel is not None else ()
    descendants, n_left_out = _descendants(store, digest, depth, limit)
    return Family(kernel, ancestors, descendants, n_left_out)


def _ancestors(store: Store, kernel: Relative, depth: int | None) -> tuple[Relative, ...]:
    found: list[Relative] = []
    level: Sequence[Relative] = [kernel]
    seen = {kernel.digest}
    while level and (depth is None or level[0].depth < depth):
        parents = dict.fromkeys(parent for relative in level for parent in relative.parents if parent not in seen)
        seen.update(parents)
        relatives = [_relative(store, parent, level[0].depth + 1) for parent in parents]
        level = [relative for relative in relatives if relative is not None]
        found.extend(level)
    return tuple(found)


def _descendants(store: Store, digest: str, depth: int | None, limit: int) -> tuple[tuple[Relative, ...], int]:
    found: list[Relative] = []
    seen, level, steps, n_left_out = {digest}, [digest], 0, 0
    while level and (depth is None or steps < depth):
        steps += 1
        fresh: dict[str, Sequence[Any]] = {}
        for parent in level:
            for row in _offspring(store, parent):
                if row[1] not in seen:
                    fresh.setdefault(row[1], row)
        ordered = sorted(fresh.values(), key=lambda row: rank(load_estimate(*row[8:12]), row[1]))
        room = limit - len(found)
        n_left_out += max(0, len(ordered) - room)
        taken = ordered[: max(0, room)]
        found.extend(_read(store, row, steps) for row in taken)
        seen.update(fresh)
        level = [row[1] for row in taken if row[12]]
    return tuple(found), n_left_out


def _offspring(store: Store, parent: str) -> list[Any]:
    """The births of the kernels that a parent was there for; not those of kernels that another candidate brought before."""
    return store.read(
        f"{_BIRTH} WHERE c.id IN (SELECT p.candidate_id FROM candidate_parents p JOIN kernels q ON q.id = p.kernel_id"
        " WHERE q.digest = ?) AND NOT EXISTS (SELECT 1 FROM candidates b WHERE b.kernel_id = c.kernel_id AND b.id < c.id)"
        " ORDER BY c.id",
        (parent,),
    )


def _relative(store: Store, digest: str, depth: int) -> Relative | None:
    rows = store.read(f"{_BIRTH} WHERE k.digest = ? ORDER BY c.id LIMIT 1", (digest,))
    return _read(store, rows[0], depth) if rows else None


def _read(store: Store, row: Sequence[Any], depth: int) -> Relative:
    key, digest, run, index, operator, status, problem_id, environment_id, *columns, n_offspring = row
    estimate = load_estimate(*columns)
    parents = store.read(
        "SELECT k.digest, t.log_ratio, t.log_low, t.log_high, t.n_blocks FROM candidate_parents p"
        " JOIN kernels k ON k.id = p.kernel_id LEFT JOIN verdicts v ON v.kernel_id = k.id AND v.problem_id = ?"
        " AND v.environment_id = ? AND v.attempt = 0 LEFT JOIN standings t ON t.problem_id = v.problem_id"
        " AND t.environment_id = v.environment_id AND t.identity = v.identity AND v.status = 'passed'"
        " WHERE p.candidate_id = ? ORDER BY p.position",
        (problem_id, environment_id, key),
    )
    gains = []
    for _, *before in parents:
        former = load_estimate(*before)
        gains.append(gain(estimate, former) if estimate is not None and former is not None else None)
    names = tuple(parent[0] for parent in parents)
    return Relative(digest, depth, run, index, operator, names, status, estimate, tuple(gains), n_offspring)
