"""Moves: which edits gained, by kind."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from archive.codec import load_estimate, load_text
from archive.mining.edits import KINDS, edit
from archive.mining.gains import Gain, Mean, Share, gain, mean_gain, share
from archive.store import Store
from evo_l2.contracts import AddStatus, Outcome
from evo_l2.evaluation import Status

__all__ = ["Move", "MoveStats", "iter_moves", "moves", "tally"]

_PAGE = 500
_GOOD = (Status.PASSED.value, Status.BUILT.value)


@dataclass(frozen=True, slots=True)
class Move:
    """One kind of change that one candidate made to its first parent; a candidate with several kinds makes several moves."""

    run: str
    index: int
    operator: str
    kind: str
    """One of `archive.mining.edits.KINDS`."""
    name: str | None
    """The tunable's; None for other kinds."""
    before: int | None
    """The tunable's value in the parent."""
    after: int | None
    n_kinds: int
    """How many moves the candidate made: where it is 1, what it gained is this move's."""
    n_added: int
    """Lines of the whole edit that the parent has not."""
    n_removed: int
    parent: str
    digest: str
    is_known: bool
    """Whether it repeats a known kernel, so that nothing was judged."""
    status: str | None
    """Of the verdict; None for a repeat."""
    is_filed: bool
    """Whether it opened or improved a cell when it was added."""
    gain: Gain | None
    """Over the parent; None unless both were timed."""

    @property
    def direction(self) -> str | None:
        """`up` or `down` for a tunable."""
        if self.before is None or self.after is None:
            return None
        return "up" if self.after > self.before else "down"

    @property
    def is_valid(self) -> bool:
        """Whether it passed, or was built where nothing is run."""
        return self.status in _GOOD


@dataclass(frozen=True, slots=True)
class MoveStats:
    """What moves of one kind brought."""

    kind: str
    name: str | None
    direction: str | None
    n: int
    n_known: int
    """Repeats of known kernels; they are in no share."""
    n_filed: int
    """How many opened or improved a cell."""
    validity: Share | None
    """Of those that were judged: how many passed (or were built)."""
    gained: Share | None
    """Of those with a gain: for how many the whole interval lies above no gain."""
    lost: Share | None
    """The same below."""
    mean: Mean | None
    """The mean log gain of those with one."""
    mean_alone: Mean | None
    """The same over candidates that made no other move."""
    best: Move | None
    """The one whose gain has the highest lower bound."""


def iter_moves(store: Store, run_name: str | None = None) -> Iterator[Move]:
    """Every move of a run, or of the whole file, in order of run and index, in pages.

    Candidates without a kernel, without a parent, or equal to their parent made none. Gains are over all sessions.

    Args:
        store: The archive.
        run_name: The run; None for every run.

    Raises:
        StorageError: No such run.
    """
    name = store.run_info(run_name).name if run_name is not None else None
    source = _sources(store)
    last = 0
    while True:
        rows = store.read(
            "SELECT c.id, r.name, c.idx, c.operator, c.outcome, c.add_status, k.id, k.digest, q.id, q.digest, v.status,"
            " t.log_ratio, t.log_low, t.log_high, t.n_blocks, u.log_ratio, u.log_low, u.log_high, u.n_blocks"
            " FROM candidates c JOIN runs r ON r.id = c.run_id JOIN kernels k ON k.id = c.kernel_id"
            " JOIN candidate_parents p ON p.candidate_id = c.id AND p.position = 0 JOIN kernels q ON q.id = p.kernel_id"
            " LEFT JOIN verdicts v ON v.id = c.verdict_id LEFT JOIN standings t ON t.problem_id = r.problem_id"
            " AND t.environment_id = r.environment_id AND t.identity = v.identity AND v.status = 'passed'"
            " LEFT JOIN verdicts w ON w.kernel_id = q.id AND w.problem_id = r.problem_id"
            " AND w.environment_id = r.environment_id AND w.attempt = 0"
            " LEFT JOIN standings u ON u.problem_id = r.problem_id AND u.environment_id = r.environment_id"
            " AND u.identity = w.identity AND w.status = 'passed'"
            f" WHERE c.id > ? {'AND r.name = ?' if name is not None else ''} ORDER BY c.id LIMIT ?",
            (last, *((name,) if name is not None else ()), _PAGE),
        )
        for row in rows:
            yield from _moves_of(row, source(row[6]), source(row[8]))
        if len(rows) < _PAGE:
            return
        last = rows[-1][0]


def _sources(store: Store) -> Any:
    @functools.lru_cache(maxsize=512)
    def source(kernel_id: int) -> str:
        return load_text(store.read("SELECT source FROM kernels WHERE id = ?", (kernel_id,))[0][0])

    return source


def _moves_of(row: Sequence[Any], source: str, parent_source: str) -> Iterator[Move]:
    _, run, index, operator, outcome, added, _, digest, _, parent, status, *columns = row
    own, former = load_estimate(*columns[:4]), load_estimate(*columns[4:])
    made = edit(parent_source, source)
    what: list[tuple[str, str | None, int | None, int | None]] = [
        ("tunable", change.name, change.before, change.after) for change in made.tunables
    ]
    what += [(kind, None, None, None) for kind in made.kinds if kind != "tunable"]
    for kind, name, before, after in what:
        yield Move(
            run=run,
            index=index,
            operator=operator,
            kind=kind,
            name=name,
            before=before,
            after=after,
            n_kinds=len(what),
            n_added=made.n_added,
            n_removed=made.n_removed,
            parent=parent,
            digest=digest,
            is_known=outcome == Outcome.DUPLICATE.value,
            status=status,
            is_filed=added != AddStatus.NOT_ADDED.value,
            gain=gain(own, former) if own is not None and former is not None else None,
        )


def moves(store: Store, run_name: str | None = None) -> tuple[MoveStats, ...]:
    """What each kind of move brought to a run, or to the whole file (None), kind by kind, tunables by name and direction.

    Raises:
        StorageError: No such run.
    """
    return tally(iter_moves(store, run_name))


def tally(made: Iterable[Move]) -> tuple[MoveStats, ...]:
    """What moves brought, by kind, name and direction."""
    groups: dict[tuple[str, str, str], list[Move]] = defaultdict(list)
    for move in made:
        groups[(move.kind, move.name or "", move.direction or "")].append(move)
    ordered = sorted(groups, key=lambda key: (KINDS.index(key[0]), key[1], key[2]))
    return tuple(_stats(groups[key]) for key in ordered)


def _stats(group: Sequence[Move]) -> MoveStats:
    judged = [move for move in group if move.status is not None]
    timed = [(move, move.gain) for move in group if move.gain is not None]
    return MoveStats(
        kind=group[0].kind,
        name=group[0].name,
        direction=group[0].direction,
        n=len(group),
        n_known=sum(move.is_known for move in group),
        n_filed=sum(move.is_filed for move in group),
        validity=share(sum(move.is_valid for move in judged), len(judged)),
        gained=share(sum(found.is_sure for _, found in timed), len(timed)),
        lost=share(sum(found.is_loss for _, found in timed), len(timed)),
        mean=mean_gain([found.log_ratio for _, found in timed]),
        mean_alone=mean_gain([found.log_ratio for move, found in timed if move.n_kinds == 1]),
        best=max(timed, key=lambda pair: (pair[1].log_low, -pair[0].index), default=(None, None))[0],
    )
