"""Rows written: one candidate, one session, with what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from archive.codec import (
    Text,
    dump,
    now,
    pack_text,
    store_build,
    store_measures,
    store_session,
    store_text,
    text_digest,
)
from archive.database import Database
from archive.standings import is_alone, mark_revisit, put_pending, put_standing, rebuild_standings, refresh_standing
from archive.tallies import count_candidate, settle_candidates
from archive.view import Addition
from evo_l2.contracts import ModelCall
from evo_l2.evaluation import Estimate, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.measures import MeasuresSchema
from evo_l2.timing import pooled_estimate

__all__ = [
    "Scope",
    "insert_candidate",
    "insert_kernel",
    "insert_session",
    "insert_withdrawal",
    "rebuild_standings",
    "refresh_standing",
]

_INSERT_KERNEL = "INSERT INTO kernels (digest, target, source, created) VALUES (?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING"
_INSERT_VERDICT = (
    "INSERT INTO verdicts (kernel_id, problem_id, environment_id, attempt, run_id, identity, status, gate, message, build,"
    " measures, after, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (kernel_id, problem_id, environment_id, attempt) DO NOTHING"
)
_INSERT_SESSION = (
    "INSERT INTO timing_sessions (verdict_id, run_id, after, candidate_index, purpose, samples, log_ratio, log_low, log_high,"
    " n_blocks, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_CANDIDATE = (
    "INSERT INTO candidates (run_id, idx, operator, asked_after, outcome, message, kernel_id, identity, verdict_id,"
    " session_id, evaluation_s, duplicate_of, seconds, add_status, add_value, cell, created)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_PARENT = (
    "INSERT INTO candidate_parents (candidate_id, position, kernel_id) SELECT ?, ?, id FROM kernels WHERE digest = ?"
)
_INSERT_CALL = (
    "INSERT INTO model_calls (candidate_id, position, generator, prompt, reply_id, n_prompt_tokens, n_reply_tokens,"
    " latency_s, cost_usd, n_retries, error, seed, max_tokens, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The ids that place a run's rows, and the rows of others that it sees."""

    run_id: int
    problem_id: int
    environment_id: int
    schema_id: int
    base_verdict: int
    """The last verdict, session and candidate of the file when the run was started; what came later from other runs is
    not seen, so that a run depends on nothing that happens beside it."""
    base_session: int
    base_candidate: int
    merged: str | None = None
    """When the run was merged into this file, in ISO 8601; None where it was started."""
    seen: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    """Of a merged run: the last verdict, session and candidate that it had seen at home of each other run, by their ids."""

    def last_verdict(self, run: str) -> str:
        """SQL for the last verdict of a run that this one sees, `run` being SQL for that run's id."""
        return self._last(0, self.base_verdict, run)

    def last_session(self, run: str) -> str:
        """The same for sessions."""
        return self._last(1, self.base_session, run)

    def last_candidate(self, run: str) -> str:
        """The same for candidates."""
        return self._last(2, self.base_candidate, run)

    def _last(self, which: int, base: int, run: str) -> str:
        if self.merged is None:
            return str(int(base))
        cases = " ".join(f"WHEN {int(key)} THEN {int(last[which])}" for key, last in sorted(self.seen.items()) if last[which])
        return f"CASE {run} {cases} ELSE 0 END" if cases else "0"


def insert_candidate(database: Database, scope: Scope, schema: MeasuresSchema, addition: Addition) -> int | None:
    """Writes a candidate with all that belongs to it; inside a transaction. The key of its session, where it has one."""
    candidate, moment = addition.candidate, now()
    kernel_id = verdict_id = session_id = original_id = log_low = None
    evaluation = candidate.evaluation
    status = evaluation.verdict.status if evaluation is not None else None
    estimate = addition.entry.estimate if addition.entry is not None else None
    if candidate.kernel is not None:
        assert addition.digest is not None
        kernel_id = insert_kernel(database, candidate.kernel, addition.digest, moment)
    if evaluation is not None:
        assert kernel_id is not None
        verdict_id, stale = _insert_verdict(database, scope, kernel_id, candidate.identity, evaluation.verdict, moment)
        if evaluation.session is not None:
            session_id = _insert_session(
                database, scope, verdict_id, candidate.index, candidate.index, evaluation.session, estimate, moment
            )
            log_low = _settled(database, verdict_id, estimate) if stale else estimate.log_low if estimate else None
            if log_low is None:
                status = Status.INCONCLUSIVE
        if evaluation.verdict.status.is_good and not stale:
            assert candidate.identity is not None
            cell = dump(addition.cell) if addition.cell is not None else None
            where = (scope.problem_id, scope.environment_id, candidate.identity, kernel_id, verdict_id, scope.schema_id, cell)
            # What is new and alone stands as it is; anything else was written by runs blind to each other.
            if not is_alone(database, *where[:3], verdict_id):
                stale = frozenset({candidate.identity})
            elif estimate is not None:
                put_standing(database, where, estimate, 1)
            else:
                assert addition.digest is not None
                put_pending(database, where, addition.digest, is_run=evaluation.session is not None)
        for identity in sorted(stale):
            mark_revisit(database, scope.problem_id, scope.environment_id, identity)
            refresh_standing(database, scope.problem_id, scope.environment_id, identity, scope.schema_id, schema)
    if candidate.duplicate_of is not None:
        original_id = _kernel_id(database, candidate.duplicate_of)
    candidate_id = database.insert(
        _INSERT_CANDIDATE,
        (
            scope.run_id,
            candidate.index,
            candidate.operator,
            candidate.asked_after,
            candidate.outcome.value,
            store_text(candidate.message),
            kernel_id,
            candidate.identity,
            verdict_id,
            session_id,
            evaluation.seconds if evaluation is not None else None,
            original_id,
            dump(dict(candidate.seconds)),
            addition.result.status.value,
            addition.result.value,
            dump(addition.result.cell) if addition.result.cell is not None else None,
            moment,
        ),
    )
    assert candidate_id is not None
    for position, parent in enumerate(candidate.parents):
        database.execute(_INSERT_PARENT, (candidate_id, position, parent))
    _insert_calls(database, candidate_id, candidate.calls, moment)
    count_candidate(
        database,
        scope.run_id,
        candidate.index,
        candidate.operator,
        candidate.outcome.value,
        status.value if status is not None else None,
        addition.result.status.value,
        candidate.seconds,
        log_low,
    )
    return session_id


def _settled(database: Database, verdict_id: int, estimate: Estimate | None) -> float | None:
    """The lower bound of a verdict's first conclusive session; candidates of before are counted anew where that is new."""
    rows = database.read(
        "SELECT log_low FROM timing_sessions WHERE verdict_id = ? AND log_low IS NOT NULL ORDER BY id LIMIT 2", (verdict_id,)
    )
    if len(rows) == 1 and estimate is not None:
        settle_candidates(database, verdict_id, rows[0][0])
    return float(rows[0][0]) if rows else None


def insert_kernel(database: Database, kernel: Kernel, digest: str, moment: str) -> int:
    """The kernel's id; written when it is new."""
    row = (digest, kernel.target, store_text(kernel.source), moment)
    key = database.insert(_INSERT_KERNEL, row)
    return key if key is not None else _kernel_id(database, digest)


def insert_session(
    database: Database,
    scope: Scope,
    schema: MeasuresSchema,
    verdict_id: int,
    identity: str,
    after: int,
    session: TimingSession,
) -> int:
    """Writes a session that is not a candidate's first; inside a transaction. Its key."""
    estimate = pooled_estimate((session,))
    key = _insert_session(database, scope, verdict_id, after, None, session, estimate, now())
    _settled(database, verdict_id, estimate)
    mark_revisit(database, scope.problem_id, scope.environment_id, identity)
    refresh_standing(database, scope.problem_id, scope.environment_id, identity, scope.schema_id, schema)
    return key


def insert_withdrawal(
    database: Database,
    scope: Scope,
    schema: MeasuresSchema,
    digest: str,
    identity: str,
    after: int,
    verdict: Verdict,
) -> None:
    """Writes a failure of a kernel that had passed; inside a transaction."""
    place = (_kernel_id(database, digest), scope.problem_id, scope.environment_id)
    n_verdicts = database.read(
        "SELECT COUNT(*) FROM verdicts WHERE kernel_id = ? AND problem_id = ? AND environment_id = ?", place
    )[0][0]
    database.insert(_INSERT_VERDICT, (*place, n_verdicts, scope.run_id, *_judged(identity, verdict), after, now()))
    mark_revisit(database, scope.problem_id, scope.environment_id, identity)
    refresh_standing(database, scope.problem_id, scope.environment_id, identity, scope.schema_id, schema)


def _kernel_id(database: Database, digest: str) -> int:
    return int(database.read("SELECT id FROM kernels WHERE digest = ?", (digest,))[0][0])


def _insert_verdict(
    database: Database, scope: Scope, kernel_id: int, identity: str | None, verdict: Verdict, moment: str
) -> tuple[int, frozenset[str]]:
    """The verdict's id, and the identities whose standing has to be worked out again.

    Two runs that were blind to each other may judge one kernel twice. When they agree, the first verdict stands for both;
    when they do not, both are kept.
    """
    judged = _judged(identity, verdict)
    place = (kernel_id, scope.problem_id, scope.environment_id)
    first = database.insert(_INSERT_VERDICT, (*place, 0, scope.run_id, *judged, None, moment))
    if first is not None:
        return first, frozenset()
    rows = database.read(
        "SELECT id, identity, status, gate, measures FROM verdicts WHERE kernel_id = ? AND problem_id = ?"
        " AND environment_id = ? ORDER BY attempt",
        place,
    )
    for row in rows:
        if tuple(row[1:]) == (identity, verdict.status.value, verdict.gate, judged[-1]):
            return int(row[0]), _present(identity)
    another = database.insert(_INSERT_VERDICT, (*place, len(rows), scope.run_id, *judged, None, moment))
    assert another is not None
    return another, _present(identity, *(row[1] for row in rows))


def _judged(identity: str | None, verdict: Verdict) -> tuple[Text | None, ...]:
    message, build, measures = store_text(verdict.message), store_build(verdict.build), store_measures(verdict.measures)
    return (identity, verdict.status.value, verdict.gate, message, build, measures)


def _present(*identities: str | None) -> frozenset[str]:
    return frozenset(identity for identity in identities if identity is not None)


def _insert_session(
    database: Database,
    scope: Scope,
    verdict_id: int,
    after: int,
    index: int | None,
    session: TimingSession,
    estimate: Estimate | None,
    moment: str,
) -> int:
    values: tuple[float | None, ...] = (None, None, None, None)
    if estimate is not None:
        values = (estimate.log_ratio, estimate.log_low, estimate.log_high, estimate.n_blocks)
    row = (verdict_id, scope.run_id, after, index, session.purpose, store_session(session), *values, moment)
    key = database.insert(_INSERT_SESSION, row)
    assert key is not None
    return key


def _insert_calls(database: Database, candidate_id: int, calls: Iterable[ModelCall], moment: str) -> None:
    for position, call in enumerate(calls):
        reply = call.reply
        prompt = dump([[message.role, _insert_text(database, message.content)] for message in call.prompt])
        row = (
            candidate_id,
            position,
            call.generator,
            prompt,
            _insert_text(database, reply.text),
            reply.n_prompt_tokens,
            reply.n_reply_tokens,
            reply.latency_s,
            reply.cost_usd,
            reply.n_retries,
            store_text(reply.error),
            str(call.seed),
            call.max_tokens,
            moment,
        )
        database.execute(_INSERT_CALL, row)


def _insert_text(database: Database, text: str) -> int:
    """The text's id; a text that is known already is not written again."""
    digest = text_digest(text)
    rows = database.read("SELECT id FROM texts WHERE digest = ?", (digest,))
    if rows:
        return int(rows[0][0])
    row = (digest, len(text), pack_text(text))
    key = database.insert("INSERT INTO texts (digest, n_characters, content) VALUES (?, ?, ?)", row)
    assert key is not None
    return key
