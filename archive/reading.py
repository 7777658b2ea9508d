"""Rows read back: a run's candidates, what it sees of the archive, and single kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from archive.codec import (
    load,
    load_build,
    load_measures,
    load_session,
    load_text,
    unpack_text,
)
from archive.database import Database
from evo_l2.contracts import Candidate, Message, ModelCall, Outcome, Remeasurement, Reply
from evo_l2.evaluation import Evaluation, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel

__all__ = [
    "GOOD",
    "VERDICT",
    "load_verdict",
    "read_calls",
    "read_candidates",
    "read_evaluation",
    "read_remeasurements",
    "read_sessions",
]

_PAGE = 256
GOOD = ", ".join(f"'{status.value}'" for status in Status if status.is_good)
VERDICT = "v.status, v.gate, v.message, v.build, v.measures"


def read_sessions(database: Database, keys: Sequence[int]) -> tuple[TimingSession, ...]:
    """Timing sessions by id, in order of the ids given."""
    if not keys:
        return ()
    marks = ",".join("?" * len(keys))
    rows = database.read(f"SELECT id, samples, purpose FROM timing_sessions WHERE id IN ({marks})", keys)
    found = {key: load_session(samples, purpose) for key, samples, purpose in rows}
    return tuple(found[key] for key in keys)


def read_evaluation(database: Database, problem_key: str, environment_key: str, digest: str) -> Evaluation | None:
    """The verdict of a kernel, with its first session when it passed; a verdict that it failed comes first."""
    rows = database.read(
        f"SELECT v.id, {VERDICT} FROM verdicts v JOIN kernels k ON k.id = v.kernel_id"
        " JOIN problems p ON p.id = v.problem_id JOIN environments e ON e.id = v.environment_id"
        f" WHERE k.digest = ? AND p.key = ? AND e.key = ? ORDER BY v.status IN ({GOOD}), v.attempt LIMIT 1",
        (digest, problem_key, environment_key),
    )
    if not rows:
        return None
    verdict_id, *verdict = rows[0]
    sessions = database.read(
        "SELECT s.id, c.evaluation_s FROM timing_sessions s LEFT JOIN candidates c"
        " ON c.run_id = s.run_id AND c.idx = s.candidate_index WHERE s.verdict_id = ? ORDER BY s.id LIMIT 1",
        (verdict_id,),
    )
    if sessions:
        key, seconds = sessions[0]
        return Evaluation(load_verdict(verdict), read_sessions(database, (key,))[0], seconds or 0.0)
    seconds = database.read(
        "SELECT c.evaluation_s FROM verdicts v JOIN candidates c ON c.kernel_id = v.kernel_id AND c.verdict_id = v.id"
        " WHERE v.id = ? ORDER BY c.id LIMIT 1",
        (verdict_id,),
    )
    return Evaluation(load_verdict(verdict), None, (seconds[0][0] or 0.0) if seconds else 0.0)


def read_candidates(database: Database, run_id: int) -> Iterator[Candidate]:
    """A run's candidates in order of index, in pages, so that memory does not grow with the run."""
    last = -1
    while True:
        rows = database.read(
            "SELECT c.id, c.idx, c.operator, c.asked_after, c.outcome, c.message, c.identity, c.evaluation_s, c.seconds,"
            f" k.source, k.target, o.digest, s.samples, s.purpose, {VERDICT}"
            " FROM candidates c LEFT JOIN kernels k ON k.id = c.kernel_id LEFT JOIN kernels o ON o.id = c.duplicate_of"
            " LEFT JOIN verdicts v ON v.id = c.verdict_id LEFT JOIN timing_sessions s ON s.id = c.session_id"
            " WHERE c.run_id = ? AND c.idx > ? ORDER BY c.idx LIMIT ?",
            (run_id, last, _PAGE),
        )
        if not rows:
            return
        first, last = rows[0][1], rows[-1][1]
        parents: dict[int, list[str]] = defaultdict(list)
        for index, parent in database.read(
            "SELECT c.idx, k.digest FROM candidate_parents p JOIN candidates c ON c.id = p.candidate_id"
            " JOIN kernels k ON k.id = p.kernel_id WHERE c.run_id = ? AND c.idx BETWEEN ? AND ? ORDER BY c.idx, p.position",
            (run_id, first, last),
        ):
            parents[index].append(parent)
        calls = read_calls(database, run_id, first, last)
        for row in rows:
            yield _candidate(row, tuple(parents[row[1]]), tuple(calls.get(row[1], ())))


def read_remeasurements(database: Database, run_id: int) -> Iterator[Remeasurement]:
    """The later measurements of a run's kernels, by the number of candidates told before them.

    Among those with one number sessions come first, each kind in the order in which it was filed: a kernel has no session
    after it was withdrawn, and kernels do not depend on each other.
    """
    rows = database.read(
        f"SELECT s.after, k.digest, s.id, {VERDICT} FROM timing_sessions s"
        " JOIN verdicts v ON v.id = s.verdict_id JOIN kernels k ON k.id = v.kernel_id"
        " WHERE s.run_id = ? AND s.candidate_index IS NULL ORDER BY s.id",
        (run_id,),
    )
    rows += database.read(
        f"SELECT v.after, k.digest, NULL, {VERDICT} FROM verdicts v JOIN kernels k ON k.id = v.kernel_id"
        " WHERE v.run_id = ? AND v.after IS NOT NULL ORDER BY v.id",
        (run_id,),
    )
    for after, digest, key, *verdict in sorted(rows, key=lambda row: (row[0], row[2] is None)):
        session = read_sessions(database, (key,))[0] if key is not None else None
        yield Remeasurement(after, digest, Evaluation(load_verdict(verdict), session))


def _candidate(row: Sequence[Any], parents: tuple[str, ...], calls: tuple[ModelCall, ...]) -> Candidate:
    _, index, operator, asked_after, outcome, message, identity, evaluation_s, seconds = row[:9]
    source, target, original, samples, purpose, *verdict = row[9:]
    evaluation = None
    if outcome == Outcome.EVALUATED.value:
        session = load_session(samples, purpose) if samples is not None else None
        evaluation = Evaluation(load_verdict(verdict), session, evaluation_s)
    return Candidate(
        index=index,
        operator=operator,
        parents=parents,
        asked_after=asked_after,
        outcome=Outcome(outcome),
        message=load_text(message) if message is not None else None,
        kernel=Kernel(load_text(source), target) if source is not None else None,
        identity=identity,
        evaluation=evaluation,
        duplicate_of=original,
        calls=calls,
        seconds=load(seconds),
    )


def load_verdict(row: Sequence[Any]) -> Verdict:
    """A verdict from its columns `VERDICT`."""
    status, gate, message, build, measures = row
    text = load_text(message) if message is not None else None
    return Verdict(Status(status), gate, text, load_build(build), load_measures(measures))


def read_calls(database: Database, run_id: int, first: int, last: int) -> dict[int, list[ModelCall]]:
    """The model calls of the candidates `first` to `last`, by index."""
    rows = database.read(
        "SELECT c.idx, m.generator, m.prompt, m.reply_id, m.n_prompt_tokens, m.n_reply_tokens, m.latency_s, m.cost_usd,"
        " m.n_retries, m.error, m.seed, m.max_tokens FROM model_calls m JOIN candidates c ON c.id = m.candidate_id"
        " WHERE c.run_id = ? AND c.idx BETWEEN ? AND ? ORDER BY c.idx, m.position",
        (run_id, first, last),
    )
    prompts = [load(row[2]) for row in rows]
    texts = _texts(database, {row[3] for row in rows} | {key for prompt in prompts for _, key in prompt})
    calls: dict[int, list[ModelCall]] = defaultdict(list)
    for row, prompt in zip(rows, prompts, strict=True):
        index, generator, _, reply_id, n_prompt, n_reply, latency_s, cost_usd, n_retries, error, seed, max_tokens = row
        reason = load_text(error) if error is not None else None
        reply = Reply(texts[reply_id], n_prompt, n_reply, latency_s, cost_usd, n_retries, reason)
        messages = tuple(Message(role, texts[key]) for role, key in prompt)
        calls[index].append(ModelCall(generator, messages, reply, int(seed), max_tokens))
    return calls


def _texts(database: Database, keys: set[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    ordered = sorted(keys)
    for start in range(0, len(ordered), _PAGE):
        page = ordered[start : start + _PAGE]
        marks = ",".join("?" * len(page))
        found.update(
            (key, unpack_text(content))
            for key, content in database.read(f"SELECT id, content FROM texts WHERE id IN ({marks})", page)
        )
    return found
