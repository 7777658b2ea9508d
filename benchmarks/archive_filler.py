"""Fills an archive fast: the rows that as many calls of `add` would have written, in bulk and without their checks.

`tests/test_archive_scale.py` shows on a small archive that the rows are the same.
"""

import dataclasses
import math
import sqlite3

import archive_cases as cases

from archive.codec import (
    dump,
    now,
    pack_text,
    store_build,
    store_measures,
    store_session,
    store_text,
    text_digest,
)
from archive.store import RunHandle, Store
from archive.tallies import rebuild_tallies
from archive.view import View
from evo_l2.evaluation import Status
from evo_l2.timing import pooled_estimate

N_BYTES = 6000
_N_SESSIONS = 499
_BATCH = 5000


def candidate(index: int, n_calls: int = 0, offset: int = 0):
    """The candidate of one index: a new 6 KB kernel, every second one timed; measures spread over the grid.

    Another offset makes other kernels of all those that are not reached by both.
    """
    number = index + offset
    measures = (float(128 * (number % 5)), float(number * 7 % 90), float(number * 4099 % 900_000))
    status = Status.PASSED if number % 2 == 0 else Status.INCORRECT
    timed = _session(number % _N_SESSIONS)
    return cases.evaluated(index, number, measures=measures, status=status, n_bytes=N_BYTES, n_calls=n_calls, timed=timed)


_SESSIONS: dict[int, object] = {}


def _session(number: int):
    if number not in _SESSIONS:
        _SESSIONS[number] = cases.session(number, 0.5 + (number * 7919 % 1000) / 1000)
    return _SESSIONS[number]


@dataclasses.dataclass(slots=True)
class _Rows:
    """Rows of each table that are still to be written."""

    kernels: list = dataclasses.field(default_factory=list)
    verdicts: list = dataclasses.field(default_factory=list)
    sessions: list = dataclasses.field(default_factory=list)
    standings: list = dataclasses.field(default_factory=list)
    candidates: list = dataclasses.field(default_factory=list)
    texts: list = dataclasses.field(default_factory=list)
    calls: list = dataclasses.field(default_factory=list)


_INSERT = {
    "kernels": "INSERT INTO kernels (digest, target, source, created) VALUES (?, ?, ?, ?)",
    "verdicts": "INSERT INTO verdicts (kernel_id, problem_id, environment_id, attempt, run_id, identity, status, gate,"
    " message, build, measures, after, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "sessions": "INSERT INTO timing_sessions (verdict_id, run_id, after, candidate_index, purpose, samples, log_ratio,"
    " log_low, log_high, n_blocks, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "standings": "INSERT INTO standings (problem_id, environment_id, identity, kernel_id, verdict_id, schema_id, cell,"
    " log_ratio, log_low, log_high, speedup, speedup_low, speedup_high, n_blocks, n_sessions)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "candidates": "INSERT INTO candidates (run_id, idx, operator, asked_after, outcome, message, kernel_id, identity,"
    " verdict_id, session_id, evaluation_s, duplicate_of, seconds, add_status, add_value, cell, created)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "texts": "INSERT INTO texts (digest, n_characters, content) VALUES (?, ?, ?)",
    "calls": "INSERT INTO model_calls (candidate_id, position, generator, prompt, reply_id, n_prompt_tokens, n_reply_tokens,"
    " latency_s, cost_usd, n_retries, error, seed, max_tokens, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
}


class _Filler:
    """Turns candidates into rows; ids count up from what a file holds."""

    def __init__(self, connection: sqlite3.Connection, run: RunHandle) -> None:
        self.connection = connection
        self.scope = run._scope
        self.view = View(run.schema, _NoRecords())
        self.view.n_candidates = run.n_candidates
        self.ids = {table: self._last(table) for table in ("kernels", "verdicts", "timing_sessions", "candidates", "texts")}
        self.known_texts: dict[bytes, int] = {}
        self.samples = {}
        self.rows = _Rows()

    def _last(self, table: str) -> int:
        return self.connection.execute(f"SELECT COALESCE(MAX(id), 0) FROM {table}").fetchone()[0]

    def _next(self, table: str) -> int:
        self.ids[table] += 1
        return self.ids[table]

    def take(self, one) -> None:
        """Adds the rows of one candidate."""
        scope, moment = self.scope, now()
        session, verdict = one.evaluation.session, one.evaluation.verdict
        estimate = cell = session_id = None
        if session is not None:
            if session not in self.samples:
                self.samples[session] = (store_session(session), pooled_estimate((session,)))
            samples, estimate = self.samples[session]
        addition = self.view.plan(one, estimate)
        self.view.apply(addition, 0 if session is not None else None)
        self.view._known.clear(), self.view._identities.clear(), self.view._passed.clear()
        kernel_id, verdict_id = self._next("kernels"), self._next("verdicts")
        self.rows.kernels.append((addition.digest, one.kernel.target, store_text(one.kernel.source), moment))
        judged = (one.identity, verdict.status.value, verdict.gate, store_text(verdict.message))
        judged += (store_build(verdict.build), store_measures(verdict.measures))
        place = (scope.problem_id, scope.environment_id)
        self.rows.verdicts.append((kernel_id, *place, 0, scope.run_id, *judged, None, moment))
        if session is not None:
            session_id, cell = self._next("timing_sessions"), dump(addition.cell)
            logs = (estimate.log_ratio, estimate.log_low, estimate.log_high)
            where = (verdict_id, scope.run_id, one.index, one.index, session.purpose, samples)
            self.rows.sessions.append((*where, *logs, estimate.n_blocks, moment))
            standing = (*place, one.identity, kernel_id, verdict_id, scope.schema_id, cell, *logs)
            self.rows.standings.append((*standing, *(math.exp(value) for value in logs), estimate.n_blocks, 1))
        result = addition.result
        kept = (result.status.value, result.value, dump(result.cell) if result.cell is not None else None)
        self.rows.candidates.append(
            (
                *(scope.run_id, one.index, one.operator, one.asked_after, one.outcome.value, None, kernel_id, one.identity),
                *(verdict_id, session_id, one.evaluation.seconds, None, dump(dict(one.seconds)), *kept, moment),
            )
        )
        self._take_calls(one, self._next("candidates"), moment)

    def _take_calls(self, one, candidate_id: int, moment: str) -> None:
        for position, call in enumerate(one.calls):
            prompt = dump([[message.role, self._text(message.content)] for message in call.prompt])
            reply = call.reply
            numbers = (reply.n_prompt_tokens, reply.n_reply_tokens, reply.latency_s, reply.cost_usd, reply.n_retries)
            row = (candidate_id, position, call.generator, prompt, self._text(reply.text), *numbers)
            self.rows.calls.append((*row, reply.error, str(call.seed), call.max_tokens, moment))

    def _text(self, text: str) -> int:
        digest = text_digest(text)
        if digest not in self.known_texts:
            self.known_texts[digest] = self._next("texts")
            self.rows.texts.append((digest, len(text), pack_text(text)))
        return self.known_texts[digest]

    def write(self) -> None:
        """Writes what was taken."""
        for field in dataclasses.fields(self.rows):
            self.connection.executemany(_INSERT[field.name], getattr(self.rows, field.name))
        self.rows = _Rows()


class _NoRecords:
    """Records of an empty file: every candidate is new."""

    def known(self, digest):
        return None

    def identified(self, identity):
        return None


def fill(store: Store, run: RunHandle, count: int, n_calls: int = 0, offset: int = 0) -> RunHandle:
    """Adds candidates to a run of a new SQLite file until it has `count`; the run opened anew.

    The grid that `add` answers from is kept by a view of its own, so the run must be the first of its file.
    """
    connection = store._database._driver
    for pragma in ("synchronous=OFF", "cache_size=-1000000", "foreign_keys=OFF", "wal_autocheckpoint=400000"):
        connection.execute(f"PRAGMA {pragma}")
    filler = _Filler(connection, run)
    for start in range(run.n_candidates, count, _BATCH):
        connection.execute("BEGIN IMMEDIATE")
        for index in range(start, min(start + _BATCH, count)):
            filler.take(candidate(index, n_calls, offset))
        filler.write()
        connection.execute("COMMIT")
    with store._database.write():
        rebuild_tallies(store._database, run._scope.run_id)
    for pragma in ("synchronous=NORMAL", "cache_size=-32768", "foreign_keys=ON", "wal_autocheckpoint=64000"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store.open_run(run.name)
