"""One run of an archive's file: what it was started with, what it adds, and its past."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from archive.background import stored_view
from archive.codec import dump, load, load_cell, load_estimate, load_text, now, store_session
from archive.database import Database
from archive.face import Face
from archive.keeping.held import not_at_home
from archive.reading import read_calls, read_candidates, read_remeasurements
from archive.rows import Scope, insert_candidate, insert_kernel, insert_session, insert_withdrawal
from evo_l2.contracts import AddResult, AddStatus, Candidate, ModelCall, Remeasurement
from evo_l2.errors import StorageError
from evo_l2.evaluation import Environment, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.measures import MeasuresSchema

__all__ = ["Rewound", "RunHandle", "RunInfo"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is stored of a run as a whole."""

    name: str
    problem_key: str
    problem_title: str
    problem_definition: Mapping[str, Any]
    environment: Environment
    target: str
    schema: MeasuresSchema
    config: Mapping[str, Any]
    seed: int
    created: str
    """UTC, ISO 8601."""
    finished: str | None
    summary: Any
    """What `finish` was given; None while the run is not finished."""
    n_candidates: int


class _Stored(Face):
    """A run's view over the rows of its database."""

    def __init__(self, database: Database, scope: Scope, schema: MeasuresSchema, *, own: bool) -> None:
        self._database = database
        self._scope = scope
        super().__init__(stored_view(database, scope, schema, own=own))


class Rewound(_Stored):
    """A run as it was before its first candidate. What is added has to be stored by the run already; nothing is written."""

    def __init__(self, database: Database, scope: Scope, schema: MeasuresSchema) -> None:
        super().__init__(database, scope, schema, own=False)
        self._last_session = 0

    def add(self, candidate: Candidate) -> AddResult:
        """Takes the run's next candidate.

        Raises:
            ValueError: The index is not the next one, or the run has not stored this candidate.
        """
        with self._lock:
            rows = self._database.read(
                "SELECT k.digest, s.id, s.log_ratio, s.log_low, s.log_high, s.n_blocks FROM candidates c"
                " LEFT JOIN kernels k ON k.id = c.kernel_id LEFT JOIN timing_sessions s ON s.id = c.session_id"
                " WHERE c.run_id = ? AND c.idx = ?",
                (self._scope.run_id, candidate.index),
            )
            estimate = load_estimate(*rows[0][2:]) if rows else None
            addition = self._view.plan(candidate, estimate)
            if not rows or rows[0][0] != addition.digest:
                raise ValueError(f"candidate {candidate.index} is not the one that the run has stored")
            return self._view.apply(addition, rows[0][1])

    def add_session(self, digest: str, session: TimingSession) -> None:
        """Takes the next session that the run has stored for a kernel.

        Raises:
            KeyError: No such kernel passed here.
            ValueError: The run has not stored this session.
        """
        with self._lock:
            sight, estimate = self._view.plan_session(digest, session)
            rows = self._database.read(
                "SELECT s.id FROM timing_sessions s JOIN verdicts v ON v.id = s.verdict_id JOIN kernels k ON"
                " k.id = v.kernel_id WHERE s.run_id = ? AND s.id > ? AND s.candidate_index IS NULL AND k.digest = ?"
                " AND s.samples = ? AND s.purpose = ? ORDER BY s.id LIMIT 1",
                (self._scope.run_id, self._last_session, digest, store_session(session), session.purpose),
            )
            if not rows:
                raise ValueError(f"the run has not stored this session of {digest[:12]}")
            self._last_session = rows[0][0]
            self._view.apply_session(sight, rows[0][0], estimate)

    def withdraw(self, digest: str, verdict: Verdict) -> None:
        """Takes a withdrawal that the run has stored.

        Raises:
            KeyError: No such kernel passed here.
            ValueError: The run has not stored it, or the verdict is that it passed.
        """
        with self._lock:
            sight = self._view.plan_withdrawal(digest, verdict)
            if not self._database.read(
                "SELECT 1 FROM verdicts v JOIN kernels k ON k.id = v.kernel_id WHERE v.run_id = ? AND v.after IS NOT NULL"
                " AND k.digest = ? AND v.status = ? AND v.gate = ?",
                (self._scope.run_id, digest, verdict.status.value, verdict.gate),
            ):
                raise ValueError(f"the run has not stored that {digest[:12]} was withdrawn")
            self._view.apply_withdrawal(sight)


class RunHandle(_Stored):
    """The durable `evo_l2.contracts.Archive` of one run. Made by `archive.store.Store`.

    It sees what its file held for the same problem and environment when it was started, and what it added itself; nothing
    that other runs add beside it. So several runs in one file stay reproducible. One that was merged into the file sees what
    it saw at home, and cannot be added to.
    """

    def __init__(self, database: Database, scope: Scope, info: RunInfo) -> None:
        super().__init__(database, scope, info.schema, own=True)
        self._info = info

    @property
    def name(self) -> str:
        """Unique in its file."""
        return self._info.name

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration that it was started with."""
        return self._info.config

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self._info.seed

    @property
    def target(self) -> str:
        """`cpu` or `cuda`."""
        return self._info.target

    @property
    def problem_key(self) -> str:
        """The problem's key."""
        return self._info.problem_key

    @property
    def problem_definition(self) -> Mapping[str, Any]:
        """Plain data from which the problem can be made again."""
        return self._info.problem_definition

    @property
    def environment(self) -> Environment:
        """Where its numbers are measured."""
        return self._info.environment

    @property
    def environment_key(self) -> str:
        """The environment's key."""
        return self._info.environment.key

    @property
    def schema(self) -> MeasuresSchema:
        """The axes of its grid."""
        return self._info.schema

    def _write(self) -> AbstractContextManager[None]:
        if self._scope.merged is not None:
            raise not_at_home(self.name, self._scope.merged)
        return self._database.write()

    # --- adding -------------------------------------------------------------------------------------------------------

    def add(self, candidate: Candidate) -> AddResult:
        """Files one candidate in one transaction.

        Raises:
            StorageError: The file cannot be written, or another process adds to this run; nothing is stored then.
            ValueError: The index is not the next one, the kernel is known already, or a parent or original is not.
        """
        with self._lock:
            addition = self._view.plan(candidate)
            with self._write():
                session = insert_candidate(self._database, self._scope, self._info.schema, addition)
            return self._view.apply(addition, session)

    def add_session(self, digest: str, session: TimingSession) -> None:
        """Appends a timing session in one transaction.

        Raises:
            KeyError: No such kernel passed here.
            StorageError: The file cannot be written.
            ValueError: The session timed other cases than the kernel's first session.
        """
        with self._lock:
            sight, estimate = self._view.plan_session(digest, session)
            verdict = self._verdict_of(digest)
            with self._write():
                key = insert_session(
                    self._database,
                    self._scope,
                    self._info.schema,
                    verdict,
                    sight.identity,
                    self._view.n_candidates,
                    session,
                )
            self._view.apply_session(sight, key, estimate)

    def withdraw(self, digest: str, verdict: Verdict) -> None:
        """Files a failure of a kernel that had passed, in one transaction.

        Raises:
            KeyError: No such kernel passed here.
            StorageError: The file cannot be written.
            ValueError: The verdict is that it passed.
        """
        with self._lock:
            sight = self._view.plan_withdrawal(digest, verdict)
            with self._write():
                insert_withdrawal(
                    self._database,
                    self._scope,
                    self._info.schema,
                    digest,
                    sight.identity,
                    self._view.n_candidates,
                    verdict,
                )
            self._view.apply_withdrawal(sight)

    def _verdict_of(self, digest: str) -> int:
        """The verdict that this run sees of a kernel that passed."""
        scope = self._scope
        rows = self._database.read(
            "SELECT v.id FROM verdicts v JOIN kernels k ON k.id = v.kernel_id"
            " LEFT JOIN candidates c ON c.kernel_id = k.id AND c.verdict_id = v.id AND c.run_id = ?"
            " WHERE k.digest = ? AND v.problem_id = ? AND v.environment_id = ? AND v.status = 'passed'"
            f" AND (v.id <= {scope.last_verdict('v.run_id')} OR c.id IS NOT NULL)"
            " ORDER BY c.id IS NULL, v.id LIMIT 1",
            (scope.run_id, digest, scope.problem_id, scope.environment_id),
        )
        return int(rows[0][0])

    def add_seed(self, kernel: Kernel) -> None:
        """Appends a kernel to those that open the run, so that a run killed before it told them can go on.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._lock, self._write():
            position = self._database.read("SELECT COUNT(*) FROM run_seeds WHERE run_id = ?", (self._scope.run_id,))[0][0]
            kernel_id = insert_kernel(self._database, kernel, kernel.digest, now())
            self._database.execute("INSERT INTO run_seeds VALUES (?, ?, ?)", (self._scope.run_id, position, kernel_id))

    def put_state(self, name: str, value: object) -> None:
        """Keeps a small value (JSON) under a name, in place of the former.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._write():
            self._database.execute(
                "INSERT INTO run_states (run_id, name, value, updated) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (run_id, name) DO UPDATE SET value = excluded.value, updated = excluded.updated",
                (self._scope.run_id, name, dump(value), now()),
            )

    def finish(self, summary: object) -> None:
        """Marks the run as finished, with a summary (JSON); a run that goes on may be finished again.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._write():
            self._database.execute(
                "UPDATE runs SET finished = ?, summary = ? WHERE id = ?", (now(), dump(summary), self._scope.run_id)
            )

    # --- its past -----------------------------------------------------------------------------------------------------

    def rewind(self) -> Rewound:
        """The run as it was before its first candidate, to be told its history again."""
        return Rewound(self._database, self._scope, self._info.schema)

    def history(self) -> Iterator[Candidate]:
        """Its candidates in order of index, as they were added."""
        return read_candidates(self._database, self._scope.run_id)

    def results(self) -> Iterator[AddResult]:
        """What each candidate did to the grid when it was added, in order of index."""
        for status, value, cell in self._database.read(
            "SELECT add_status, add_value, cell FROM candidates WHERE run_id = ? ORDER BY idx", (self._scope.run_id,)
        ):
            yield AddResult(AddStatus(status), value, load_cell(cell))

    def remeasurements(self) -> Iterator[Remeasurement]:
        """Its `add_session` and `withdraw` calls, in order."""
        return read_remeasurements(self._database, self._scope.run_id)

    def seeds(self) -> tuple[Kernel, ...]:
        """The kernels that open the run, in order."""
        rows = self._database.read(
            "SELECT k.source, k.target FROM run_seeds s JOIN kernels k ON k.id = s.kernel_id WHERE s.run_id = ?"
            " ORDER BY s.position",
            (self._scope.run_id,),
        )
        return tuple(Kernel(load_text(source), target) for source, target in rows)

    def model_calls(self, index: int) -> tuple[ModelCall, ...]:
        """The model calls of one candidate, in order; empty where there are none."""
        return tuple(read_calls(self._database, self._scope.run_id, index, index).get(index, ()))

    def get_state(self, name: str) -> Any:
        """The value kept under a name; None where there is none."""
        rows = self._database.read("SELECT value FROM run_states WHERE run_id = ? AND name = ?", (self._scope.run_id, name))
        return load(rows[0][0]) if rows else None

    def check(self, problem_key: str, environment_key: str) -> None:
        """Makes sure that the run is of this problem and environment.

        Raises:
            StorageError: It is of another one.
        """
        for what, expected, found in (
            ("problem", problem_key, self.problem_key),
            ("environment", environment_key, self.environment_key),
        ):
            if expected != found:
                raise StorageError(
                    f"run {self.name} is of another {what}; its numbers cannot be compared with new ones",
                    expected=f"{what} {expected}",
                    found=found,
                    hint="evo-l2 run, to start a new run",
                )
