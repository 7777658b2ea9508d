"""Checks of single rows: digests, JSON, and that candidate, verdict and session say the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from archive.codec import (
    load,
    load_build,
    load_cell,
    load_environment,
    load_measures,
    load_schema,
    load_text,
    text_digest,
    unpack_text,
)
from archive.keeping.findings import UNREADABLE, Finding, pages
from archive.store import Store
from evo_l2.contracts import AddStatus, Outcome
from evo_l2.evaluation import Status, Verdict
from evo_l2.kernel import Kernel

__all__ = [
    "check_calls",
    "check_candidates",
    "check_kernels",
    "check_provenance",
    "check_texts",
    "check_verdicts",
    "sequence_findings",
]

_WITHOUT_KERNEL = {Outcome.NO_KERNEL.value, Outcome.EDIT_FAILED.value, Outcome.GENERATOR_FAILED.value}
_GOOD = {status.value for status in Status if status.is_good}


def _readable(check: str, where: str, read: Callable[[], object]) -> Iterator[Finding]:
    try:
        read()
    except UNREADABLE as error:
        yield Finding(
            check, where, f"cannot be read as what it should be: {' '.join(str(error).split()) or type(error).__name__}"
        )


def _shape(value: object, kind: type | tuple[type, ...], what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"expected {what}, found {json.dumps(value)[:40]}")


def _object(text: str) -> None:
    _shape(load(text), dict, "an object")


def check_kernels(store: Store) -> Iterator[Finding]:
    """Every kernel's digest follows from its source."""
    for key, digest, target, source in pages(store, "SELECT id, digest, target, source FROM kernels WHERE id > ?"):
        where = f"kernel {key}"
        try:
            found = Kernel(load_text(source), target).digest
        except UNREADABLE as error:
            yield Finding("kernels", where, f"its source cannot be read: {error}")
            continue
        if found != digest:
            yield Finding("kernels", where, f"its source has digest {found[:12]}, its row says {str(digest)[:12]}")


def check_texts(store: Store) -> Iterator[Finding]:
    """Every prompt and reply can be unpacked, and has the digest and length of its row."""
    for key, digest, n_characters, content in pages(
        store, "SELECT id, digest, n_characters, content FROM texts WHERE id > ?"
    ):
        where = f"text {key}"
        try:
            text = unpack_text(content)
        except UNREADABLE as error:
            yield Finding("texts", where, f"cannot be unpacked: {error}")
            continue
        if text_digest(text) != bytes(digest):
            yield Finding("texts", where, "its content has another digest than its row says")
        elif len(text) != n_characters:
            yield Finding("texts", where, f"expected {n_characters} characters, found {len(text)}")


def check_provenance(store: Store) -> Iterator[Finding]:
    """Problems, environments, axes, runs and their states."""
    for key, definition in store.read("SELECT key, definition FROM problems ORDER BY id"):
        yield from _readable("provenance", f"problem {key}", partial(_object, definition))
    for key, target, identity in store.read("SELECT key, target, identity FROM environments ORDER BY id"):
        where = f"environment {key}"
        try:
            found = load_environment(target, identity, "{}").key
        except UNREADABLE as error:
            yield Finding("provenance", where, f"its identity cannot be read: {error}")
            continue
        if found != key:
            yield Finding("provenance", where, f"its identity has key {found}")
    for version, axes in store.read("SELECT version, axes FROM measures_schemas ORDER BY id"):
        where = f"axes {version}"
        try:
            found = load_schema(axes).version
        except UNREADABLE as error:
            yield Finding("provenance", where, f"cannot be read: {error}")
            continue
        if found != version:
            yield Finding("provenance", where, f"its axes have version {found}")
    yield from _check_runs(store)


def _check_runs(store: Store) -> Iterator[Finding]:
    for name, config, seed, provenance, summary, uid in store.read(
        "SELECT name, config, seed, provenance, summary, uid FROM runs ORDER BY id"
    ):
        where = f"run {name}"

        def read(values: tuple[str, str, str, str | None] = (config, provenance, seed, summary)) -> None:
            _shape(load(values[0]), dict, "an object as its configuration")
            _shape(load(values[1]), dict, "an object as its provenance")
            int(values[2])
            load(values[3])

        yield from _readable("provenance", where, read)
        if not uid:
            yield Finding("provenance", where, "has no id of its own")
    for run, name, value in store.read(
        "SELECT r.name, s.name, s.value FROM run_states s JOIN runs r ON r.id = s.run_id ORDER BY s.run_id, s.name"
    ):
        yield from _readable("provenance", f"state {name} of run {run}", partial(load, value))
    for run, found, last in store.read(
        "SELECT r.name, COUNT(*), MAX(s.position) FROM run_seeds s JOIN runs r ON r.id = s.run_id GROUP BY r.name"
        " ORDER BY r.name"
    ):
        if found != last + 1:
            yield Finding("provenance", f"run {run}", f"its seeds have gaps: {found} of {last + 1}")


def check_verdicts(store: Store) -> Iterator[Finding]:
    """Every verdict's status, gate, build and measures fit together, and it belongs to its run."""
    sql = (
        "SELECT v.id, v.identity, v.status, v.gate, v.message, v.build, v.measures, v.problem_id = r.problem_id,"
        " v.environment_id = r.environment_id, v.after FROM verdicts v JOIN runs r ON r.id = v.run_id WHERE v.id > ?"
    )
    for key, identity, status, gate, message, build, measures, same_problem, same_environment, after in pages(store, sql):
        where = f"verdict {key}"
        try:
            text = load_text(message) if message is not None else None
            values = load_measures(measures)
            for value in values or ():
                _shape(value, (int, float, type(None)), "numbers as measures")
            report = load_build(build)
            if report is not None:
                _shape(report.seconds, (int, float), "a number of seconds")
                _shape(report.log, str, "text as a log")
                _shape(report.resources, dict, "an object as resources")
            verdict = Verdict(Status(status), gate, text, report, values)
        except UNREADABLE as error:
            yield Finding("candidates", where, f"cannot be read as what it should be: {error}")
            continue
        if verdict.status.is_good and identity is None:
            yield Finding("candidates", where, f"a kernel that {status} has an identity, this has none")
        if after is not None and verdict.status.is_good:
            yield Finding("candidates", where, f"a withdrawal is a failure, and this is {status}")
        if not same_problem or not same_environment:
            yield Finding("candidates", where, "is of another problem or environment than its run")


_CANDIDATES = (
    "SELECT c.id, c.run_id, c.idx, c.asked_after, c.outcome, c.kernel_id, c.identity, c.verdict_id, c.session_id,"
    " c.duplicate_of, c.seconds, c.add_status, c.cell, c.message, v.kernel_id, v.identity, v.status, v.problem_id,"
    " v.environment_id, s.verdict_id, s.run_id, s.candidate_index"
    " FROM candidates c LEFT JOIN verdicts v ON v.id = c.verdict_id LEFT JOIN timing_sessions s ON s.id = c.session_id"
    " WHERE c.id > ?"
)


def check_candidates(store: Store) -> Iterator[Finding]:
    """Candidates come without gaps, and outcome, verdict and session say the same."""
    runs = {row[0]: row for row in store.read("SELECT id, name, problem_id, environment_id FROM runs")}
    n_found: dict[int, int] = {}
    for row in pages(store, _CANDIDATES):
        run = runs.get(row[1], (row[1], f"number {row[1]}", None, None))
        where = f"candidate {row[2]} of run {run[1]}"
        expected = n_found.get(row[1], 0)
        if row[2] != expected:
            yield Finding("candidates", where, f"expected candidate {expected} in its place")
        n_found[row[1]] = row[2] + 1
        for what in _contradictions(row, run):
            yield Finding("candidates", where, what)
    for name, index, found, last in store.read(
        "SELECT r.name, c.idx, COUNT(*), MAX(p.position) FROM candidate_parents p JOIN candidates c ON c.id = p.candidate_id"
        " JOIN runs r ON r.id = c.run_id GROUP BY r.name, c.idx HAVING COUNT(*) <> MAX(p.position) + 1 ORDER BY r.name, c.idx"
    ):
        yield Finding("candidates", f"candidate {index} of run {name}", f"its parents have gaps: {found} of {last + 1}")
    for name, index, key in store.read(
        "SELECT r.name, s.candidate_index, s.id FROM timing_sessions s JOIN runs r ON r.id = s.run_id"
        " LEFT JOIN candidates c ON c.session_id = s.id WHERE s.candidate_index IS NOT NULL AND c.id IS NULL ORDER BY s.id"
    ):
        yield Finding("candidates", f"session {key}", f"its candidate {index} of run {name} does not name it")


def _contradictions(row: Any, run: Any) -> Iterator[str]:
    """What is wrong with one candidate by itself."""
    _, run_id, index, asked_after, outcome, kernel_id, identity, verdict_id, session_id, original, seconds = row[:11]
    add_status, cell, message, v_kernel, v_identity, v_status, v_problem, v_environment, s_verdict, s_run, s_index = row[11:]
    try:
        Outcome(outcome)
        AddStatus(add_status)
        stages = load(seconds)
        _shape(stages, dict, "an object as seconds")
        for value in stages.values():
            _shape(value, (int, float), "numbers as seconds")
        for number in load_cell(cell) or ():
            _shape(number, int, "whole numbers as a cell")
        if message is not None:
            load_text(message)
    except UNREADABLE as error:
        yield f"cannot be read as what it should be: {error}"
        return
    if not 0 <= asked_after <= index:
        yield f"it was asked for after {asked_after} candidates"
    if (outcome == Outcome.EVALUATED.value) != (verdict_id is not None):
        yield f"its outcome is {outcome} and it has {'a' if verdict_id is not None else 'no'} verdict"
    if (outcome == Outcome.DUPLICATE.value) != (original is not None):
        yield f"its outcome is {outcome} and it names {'a' if original is not None else 'no'} original"
    if (kernel_id is None) != (outcome in _WITHOUT_KERNEL):
        yield f"its outcome is {outcome} and it has {'a' if kernel_id is not None else 'no'} kernel"
    if verdict_id is not None and v_kernel is not None:
        if v_kernel != kernel_id or v_identity != identity:
            yield "its verdict is of another kernel"
        if (v_problem, v_environment) != (run[2], run[3]):
            yield "its verdict is of another problem or environment than its run"
        if (v_status == Status.PASSED.value) != (session_id is not None):
            yield f"its verdict is {v_status} and it has {'a' if session_id is not None else 'no'} session"
        if v_status not in _GOOD and cell is not None:
            yield f"its verdict is {v_status} and it has a cell"
    if session_id is not None and s_run is not None and (s_verdict, s_run, s_index) != (verdict_id, run_id, index):
        yield "its session is that of another candidate or verdict"


def check_calls(store: Store) -> Iterator[Finding]:
    """Every model call's prompt names texts that are there, and calls of one candidate have no gaps."""
    texts = {row[0] for row in store.read("SELECT id FROM texts")}
    positions: dict[int, int] = {}
    sql = "SELECT id, candidate_id, position, prompt, reply_id, seed, error FROM model_calls WHERE id > ?"
    for key, candidate_id, position, prompt, reply_id, seed, error in pages(store, sql):
        where = f"model call {key}"
        expected = positions.get(candidate_id, 0)
        if position != expected:
            yield Finding("calls", where, f"expected call {expected} of its candidate, found {position}")
        positions[candidate_id] = position + 1
        try:
            int(seed)
            if error is not None:
                load_text(error)
            missing = [text for _, text in load(prompt) if text not in texts]
        except UNREADABLE as reason:
            yield Finding("calls", where, f"cannot be read as what it should be: {reason}")
            continue
        if missing or reply_id not in texts:
            yield Finding("calls", where, f"names texts that are not there: {(missing or [reply_id])[:3]}")


def sequence_findings(store: Store, sequences: Mapping[str, int]) -> Iterator[Finding]:
    """Ids are given once: none is above the highest that the file says it has given."""
    for table, given in sorted(sequences.items()):
        highest = store.read(f"SELECT COALESCE(MAX(id), 0) FROM {table}")[0][0]
        if highest > given:
            yield Finding("tables", table, f"row {highest} is above the highest id given, {given}")
