"""What one run sees of an archive: known kernels and the grid, from the candidates and sessions it was told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from archive.grid import Background, Entry, Grid
from evo_l2.contracts import AddResult, AddStatus, Candidate, Elite
from evo_l2.evaluation import Estimate, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.measures import Cell, MeasuresSchema
from evo_l2.timing import pooled_estimate

__all__ = ["Addition", "Passed", "Records", "Sight", "View"]


@dataclass(frozen=True, slots=True)
class Passed:
    """What rows say of one kernel that passed, or was built."""

    identity: str
    digests: tuple[str, ...]
    """Its sources, in order; the first stands for all. More than one only from runs blind to each other."""
    measures: tuple[float | None, ...] | None
    """Those of the first source."""
    sessions: tuple[int, ...]
    """Keys of all its sessions, oldest first."""
    estimate: Estimate | None
    """The estimate over them; None when none is conclusive."""
    is_run: bool = True
    """False for a kernel that was built and never run."""


class Records(Protocol):
    """Where a view looks up what it does not keep in memory."""

    def kernel(self, digest: str) -> tuple[Kernel, Verdict]:
        """A kernel of the view and its verdict."""
        ...

    def sessions(self, keys: Sequence[int]) -> tuple[TimingSession, ...]:
        """Timing sessions by key, in order of the keys."""
        ...

    def known(self, digest: str) -> str | None:
        """The judged kernel that a source is, or repeats."""
        ...

    def identified(self, identity: str) -> str | None:
        """The smallest digest of the judged kernels of an identity."""
        ...

    def passed(self, digest: str) -> Iterable[Passed]:
        """A source that passed, with all that is stored of its identity; nothing when it did not pass."""
        ...

    def untimed(self) -> Iterable[Passed]:
        """Kernels that passed and have no conclusive session."""
        ...


@dataclass(frozen=True, slots=True)
class Addition:
    """What adding a candidate will do; worked out before it is stored."""

    candidate: Candidate
    digest: str | None
    result: AddResult
    entry: Entry | None
    cell: Cell | None


@dataclass(slots=True)
class Sight:
    """A kernel that passed, as the view keeps it: no source, and sessions by key."""

    identity: str
    digest: str
    cell: Cell | None
    """None when its measures do not fit the axes of the view."""
    sessions: tuple[int, ...]
    is_run: bool = True
    """False for a kernel that was built and never run."""
    digests: tuple[str, ...] = ()
    """All its sources, where there are several."""


class View:
    """The state behind every archive: pure, single-threaded, and small (sources and samples stay with `Records`).

    It keeps what it was told itself, and the elites; the rest of what it started from is looked up when it is needed.

    Args:
        schema: The axes.
        records: Where sources, verdicts and samples are.
        background: The kernels that it starts from, for the grid; None where there are none, or they are loaded.
    """

    def __init__(self, schema: MeasuresSchema, records: Records, background: Background | None = None) -> None:
        self._records = records
        self._known: dict[str, str] = {}
        self._identities: dict[str, str] = {}
        self._passed: dict[str, Sight] = {}
        self._withdrawn: set[str] = set()
        self._untimed: dict[str, Sight] = {}
        self._untimed_loaded = False
        self._cache: dict[Cell, Elite] = {}
        self._elites: tuple[Elite, ...] | None = None
        self._best: Elite | None = None
        self.n_candidates = 0
        self._grid = Grid(schema, background)

    @property
    def grid(self) -> Grid:
        """The grid, to be read."""
        return self._grid

    # --- loading what other runs left ---------------------------------------------------------------------------------

    def load_passed(self, passed: Passed) -> None:
        """Takes it as given that a kernel passed, or was built."""
        sight = self._sight_of(passed)
        for digest in passed.digests:
            self._passed[digest] = sight
        self._put(sight, passed.estimate)

    def _sight_of(self, passed: Passed) -> Sight:
        digests = passed.digests
        return Sight(
            passed.identity, digests[0], self._cell(passed.measures), passed.sessions, passed.is_run, digests[1:] and digests
        )

    def holds(self, identity: str) -> bool:
        """Whether what the view says of a kernel is in its memory, not in the background."""
        return self._grid.holds(identity)

    def load_gone(self, identity: str) -> None:
        """Takes it as given that a kernel is not on the grid, whatever the background says."""
        former = self._grid.entry(identity)
        if former is not None:
            self._changed(former.cell)
        self._grid.drop(identity)

    # --- adding -------------------------------------------------------------------------------------------------------

    def plan(self, candidate: Candidate, estimate: Estimate | None = None) -> Addition:
        """Checks a candidate and works out what adding it will do; changes nothing.

        Args:
            candidate: The next candidate.
            estimate: The estimate of its session, where it is known already.

        Raises:
            ValueError: The index is not the next one, the kernel is known already, or a parent or original is not.
        """
        if candidate.index != self.n_candidates:
            raise ValueError(f"candidate {candidate.index} was added where {self.n_candidates} is the next index")
        for parent in candidate.parents:
            if self._find(parent) is None:
                raise ValueError(f"candidate {candidate.index} has a parent that is not known here: {parent[:12]}")
        original = candidate.duplicate_of
        if original is not None and self._find(original) != original:
            raise ValueError(f"candidate {candidate.index} repeats a kernel that is not known here: {original[:12]}")
        digest = candidate.kernel.digest if candidate.kernel is not None else None
        evaluation = candidate.evaluation
        if evaluation is None:
            return Addition(candidate, digest, AddResult(AddStatus.NOT_ADDED, None), None, None)
        if digest is None:
            raise ValueError(f"candidate {candidate.index} was evaluated but has no kernel")
        if self.find(digest, candidate.identity) is not None:
            raise ValueError(f"candidate {candidate.index} was evaluated though its kernel is known: {digest[:12]}")
        if not evaluation.verdict.status.is_good:
            return Addition(candidate, digest, AddResult(AddStatus.NOT_ADDED, None), None, None)
        if candidate.identity is None:
            raise ValueError(f"candidate {candidate.index} passed, so it needs an identity")
        assert evaluation.verdict.measures is not None
        cell = self._grid.schema.cell(evaluation.verdict.measures)
        if evaluation.session is None:
            entry = Entry(digest, candidate.identity, cell, None)
            return Addition(candidate, digest, self._grid.preview(entry), entry, cell)
        estimate = estimate or pooled_estimate((evaluation.session,))
        if estimate is None:
            return Addition(candidate, digest, AddResult(AddStatus.NOT_ADDED, None, cell), None, cell)
        if not math.isfinite(estimate.log_low):
            raise ValueError(f"candidate {candidate.index} has an estimate that is not finite")
        entry = Entry(digest, candidate.identity, cell, estimate)
        return Addition(candidate, digest, self._grid.preview(entry), entry, cell)

    def apply(self, addition: Addition, session: int | None) -> AddResult:
        """Takes a planned candidate; `session` is the key of its timing session, where it has one."""
        candidate = addition.candidate
        digest = addition.digest
        if candidate.evaluation is not None:
            assert digest is not None
            self._known[digest] = digest
            if candidate.identity is not None:
                self._identities[candidate.identity] = digest
            if candidate.evaluation.session is not None and session is not None:
                assert candidate.identity is not None
                sight = self._passed[digest] = Sight(candidate.identity, digest, addition.cell, (session,))
                if addition.entry is None:
                    self._untimed[candidate.identity] = sight
                    self._grid.drop(candidate.identity)
            elif addition.entry is not None:
                assert candidate.identity is not None
                self._passed[digest] = Sight(candidate.identity, digest, addition.cell, (), is_run=False)
        elif candidate.duplicate_of is not None and digest is not None:
            self._known.setdefault(digest, candidate.duplicate_of)
        if addition.entry is not None:
            self._grid.put(addition.entry)
            if addition.result.status is not AddStatus.NOT_ADDED:
                self._changed(addition.entry.cell)
                self._keep(addition)
        self.n_candidates += 1
        return addition.result

    def _keep(self, addition: Addition) -> None:
        """Keeps the elite that was just added, since all that is known of it is at hand."""
        candidate, entry = addition.candidate, addition.entry
        assert entry is not None
        assert candidate.kernel is not None
        assert candidate.evaluation is not None
        session = candidate.evaluation.session
        self._cache[entry.cell] = Elite(
            candidate.kernel,
            entry.identity,
            entry.cell,
            candidate.evaluation.verdict,
            entry.estimate,
            (session,) if session is not None else (),
        )

    def plan_session(self, digest: str, session: TimingSession) -> tuple[Sight, Estimate | None]:
        """The kernel that a session belongs to and its estimate with it; changes nothing.

        Raises:
            KeyError: No such kernel passed here.
            ValueError: The session timed other cases than the kernel's first session.
        """
        sight = self._sight(digest)
        if not sight.is_run:
            raise KeyError(f"kernel {digest} was built and never run here")
        sessions = self._records.sessions(sight.sessions)
        if [case.sizes for case in sessions[0].cases] != [case.sizes for case in session.cases]:
            raise ValueError(f"the session timed other cases than the first session of {digest[:12]}")
        return sight, pooled_estimate((*sessions, session))

    def apply_session(self, sight: Sight, key: int, estimate: Estimate | None) -> None:
        """Takes a planned session."""
        sight.sessions = (*sight.sessions, key)
        self._put(sight, estimate)

    def plan_withdrawal(self, digest: str, verdict: Verdict) -> Sight:
        """The kernel that a failure takes off the grid; changes nothing.

        Raises:
            KeyError: No such kernel passed here.
            ValueError: The verdict is that it passed.
        """
        if verdict.status is Status.PASSED:
            raise ValueError(f"a kernel is withdrawn for a failure, and {digest[:12]} passed")
        return self._sight(digest)

    def apply_withdrawal(self, sight: Sight) -> None:
        """Takes a planned withdrawal."""
        self.load_gone(sight.identity)
        self._untimed.pop(sight.identity, None)
        for digest in sight.digests or (sight.digest,):
            self._passed.pop(digest, None)
            self._withdrawn.add(digest)

    # --- asking -------------------------------------------------------------------------------------------------------

    def find(self, digest: str | None, identity: str | None) -> str | None:
        """See `evo_l2.contracts.Archive.find`."""
        found = self._find(digest) if digest is not None else None
        if found is None and identity is not None:
            found = self._identities.get(identity) or self._records.identified(identity)
        return found

    def _find(self, digest: str) -> str | None:
        found = self._known.get(digest)
        if found is None:
            found = self._records.known(digest)
            if found is not None:
                self._known[digest] = found
        return found

    def elites(self) -> tuple[Elite, ...]:
        """See `evo_l2.contracts.Archive.elites`."""
        if self._elites is None:
            self._elites = tuple(self._elite(cell) for cell in sorted(self._grid.elites))
        return self._elites

    def best(self) -> Elite | None:
        """See `evo_l2.contracts.Archive.best`."""
        if self._best is None:
            entry = self._grid.best()
            self._best = self._elite(entry.cell) if entry is not None else None
        return self._best

    def get(self, digest: str) -> Elite:
        """See `evo_l2.contracts.Archive.get`."""
        sight = self._sight(digest)
        entry = self._grid.entry(sight.identity)
        if entry is None:
            raise KeyError(f"no conclusive timing of kernel {digest}")
        if self._grid.elites[entry.cell] is entry:
            return self._elite(entry.cell)
        return self._fetch(entry, sight)

    def untimed(self) -> tuple[tuple[Kernel, int], ...]:
        """See `evo_l2.contracts.Archive.untimed`."""
        if not self._untimed_loaded:
            for passed in self._records.untimed():
                if passed.digests[0] not in self._passed and passed.digests[0] not in self._withdrawn:
                    self.load_passed(passed)
            self._untimed_loaded = True
        sights = sorted(self._untimed.values(), key=lambda sight: sight.digest)
        return tuple((self._records.kernel(sight.digest)[0], len(sight.sessions)) for sight in sights)

    def ranked(self) -> Iterator[Elite]:
        """Every kernel that passed and has an objective, the best first."""
        for entry in self._grid.ranked():
            sight = self._passed.get(entry.digest)
            if sight is not None:
                yield self.get(entry.digest)
            else:
                for passed in self._records.passed(entry.digest):
                    yield self._fetch(entry, self._sight_of(passed))

    def _sight(self, digest: str) -> Sight:
        if digest not in self._passed and digest not in self._withdrawn:
            for passed in self._records.passed(digest):
                self.load_passed(passed)
        sight = self._passed.get(digest)
        if sight is None:
            raise KeyError(f"no kernel {digest} passed here")
        return sight

    def _elite(self, cell: Cell) -> Elite:
        elite = self._cache.get(cell)
        if elite is None:
            entry = self._grid.elites[cell]
            elite = self._cache[cell] = self._fetch(entry, self._sight(entry.digest))
        return elite

    def _fetch(self, entry: Entry, sight: Sight) -> Elite:
        kernel, verdict = self._records.kernel(entry.digest)
        sessions = self._records.sessions(sight.sessions)
        return Elite(kernel, entry.identity, entry.cell, verdict, entry.estimate, sessions)

    def _put(self, sight: Sight, estimate: Estimate | None) -> None:
        entry = None
        if sight.cell is not None and (estimate is not None or not sight.is_run):
            entry = Entry(sight.digest, sight.identity, sight.cell, estimate)
        # An elite that is only taken into memory keeps its cell without asking who would be next.
        if entry is None or self._grid.entry(sight.identity) != entry:
            self.load_gone(sight.identity)
        if entry is not None:
            self._grid.put(entry)
            self._changed(entry.cell)
        if estimate is None and sight.is_run:
            self._untimed.setdefault(sight.identity, sight)
        else:
            self._untimed.pop(sight.identity, None)

    def _changed(self, cell: Cell) -> None:
        self._cache.pop(cell, None)
        self._elites = None
        self._best = None

    def _cell(self, measures: tuple[float | None, ...] | None) -> Cell | None:
        if measures is None or len(measures) != len(self._grid.schema.axes):
            return None
        return self._grid.schema.cell(measures)
