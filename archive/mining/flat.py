"""The rows of the flat tables, one dictionary each, read in pages."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from archive.codec import dump, load, load_build, load_estimate, load_session, load_text
from archive.mining.gains import Gain, gain
from archive.mining.moves import iter_moves
from archive.mining.regimes import elites, regime
from archive.mining.sessions import FIRST
from archive.store import Store
from evo_l2.evaluation import CaseTiming, Estimate, Status

__all__ = ["Row", "candidate_rows", "cell_rows", "kernel_rows", "move_rows", "session_rows"]

Row = dict[str, Any]
"""One row by column; a column that is missing is null."""

_PAGE = 1000
_FAILED = "{0}.status NOT IN ('passed', 'built')"
_ONE_VERDICT = (
    " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.kernel_id = v.kernel_id AND w.problem_id = v.problem_id"
    f" AND w.environment_id = v.environment_id AND ({_FAILED.format('w')} AND (NOT {_FAILED.format('v')} OR w.id < v.id)"
    f" OR NOT {_FAILED.format('w')} AND NOT {_FAILED.format('v')} AND w.id < v.id))"
)
"""Of several verdicts on one kernel the first that it failed, or else the first."""
_STANDING = "t.log_ratio, t.log_low, t.log_high, t.n_blocks, t.n_sessions"


def _pages(store: Store, sql: str, key: str, run_name: str | None, condition: str = "") -> Iterator[list[Any]]:
    """Rows in pages: `sql` ends in its last `JOIN`, its first column is `key`, and the run is `r`."""
    last = 0
    where = f" WHERE {key} > ?" + (" AND r.name = ?" if run_name is not None else "") + condition
    while True:
        parameters = (last, *((run_name,) if run_name is not None else ()), _PAGE)
        rows = store.read(f"{sql}{where} ORDER BY {key} LIMIT ?", parameters)
        if rows:
            yield rows
        if len(rows) < _PAGE:
            return
        last = rows[-1][0]


def candidate_rows(store: Store, run_name: str | None) -> Iterator[Row]:
    """Every candidate, with what its build reports."""
    for rows in _pages(
        store,
        "SELECT c.id, r.name, c.idx, p.title, e.key, r.target, c.operator, c.outcome, v.status,"
        f" c.session_id IS NOT NULL AND t.identity IS NULL AND {FIRST} IS NULL, v.gate, COALESCE(c.message, v.message),"
        f" k.digest, c.identity, o.digest, c.cell, c.add_status, {_STANDING}, c.evaluation_s, c.seconds, c.created, v.build"
        " FROM candidates c JOIN runs r ON r.id = c.run_id JOIN problems p ON p.id = r.problem_id"
        " JOIN environments e ON e.id = r.environment_id LEFT JOIN kernels k ON k.id = c.kernel_id"
        " LEFT JOIN kernels o ON o.id = c.duplicate_of LEFT JOIN verdicts v ON v.id = c.verdict_id"
        " LEFT JOIN standings t ON t.problem_id = r.problem_id AND t.environment_id = r.environment_id"
        f" AND t.identity = v.identity AND v.status = '{Status.PASSED.value}'",
        "c.id",
        run_name,
    ):
        parents = _parents(store, rows[0][0], rows[-1][0], run_name)
        calls = _call_sums(store, rows[0][0], rows[-1][0])
        for row in rows:
            yield _candidate(row, parents.get(row[0], ()), calls.get(row[0]))


def _candidate(row: Sequence[Any], parents: Sequence[tuple[str, Estimate | None]], calls: Sequence[Any] | None) -> Row:
    _, run, index, title, environment, target, operator, outcome, status, is_untimed, gate, message = row[:12]
    digest, identity, original, cell, added, *standing = row[12:22]
    evaluation_s, seconds, created, build = row[22:]
    estimate = load_estimate(*standing[:4])
    former = parents[0][1] if parents else None
    return {
        **_resources(build),
        "run": run,
        "idx": index,
        "problem": title,
        "environment": environment,
        "target": target,
        "operator": operator,
        "outcome": outcome,
        "status": Status.INCONCLUSIVE.value if is_untimed else status,
        "gate": gate,
        "message": _text(message),
        "digest": digest,
        "identity": identity,
        "duplicate_of": original,
        "parent": parents[0][0] if parents else None,
        "parent_2": parents[1][0] if len(parents) > 1 else None,
        "cell": cell,
        "added": added,
        **_speed(estimate),
        "n_sessions": standing[4] or 0,
        **_gain(gain(estimate, former) if estimate is not None and former is not None else None),
        **(dict(zip(_CALL_SUMS, calls, strict=True)) if calls is not None else {"n_calls": 0}),
        "wall_s": load(seconds).get("wall"),
        "evaluation_s": evaluation_s,
        "created": created,
    }


_CALL_SUMS = ("generator", "n_calls", "n_prompt_tokens", "n_reply_tokens", "cost_usd")


def _call_sums(store: Store, first: int, last: int) -> Mapping[int, Sequence[Any]]:
    rows = store.read(
        "SELECT candidate_id, MIN(generator), COUNT(*), SUM(n_prompt_tokens), SUM(n_reply_tokens), SUM(cost_usd)"
        " FROM model_calls WHERE candidate_id BETWEEN ? AND ? GROUP BY candidate_id",
        (first, last),
    )
    return {row[0]: row[1:] for row in rows}


def _parents(
    store: Store, first: int, last: int, run_name: str | None
) -> Mapping[int, Sequence[tuple[str, Estimate | None]]]:
    """Digest and estimate of the parents of the candidates `first` to `last`, by candidate."""
    found: dict[int, list[tuple[str, Estimate | None]]] = {}
    for key, digest, *estimate in store.read(
        "SELECT p.candidate_id, q.digest, u.log_ratio, u.log_low, u.log_high, u.n_blocks FROM candidate_parents p"
        " JOIN candidates c ON c.id = p.candidate_id JOIN runs r ON r.id = c.run_id JOIN kernels q ON q.id = p.kernel_id"
        " LEFT JOIN verdicts w ON w.kernel_id = q.id AND w.problem_id = r.problem_id"
        " AND w.environment_id = r.environment_id AND w.attempt = 0"
        " LEFT JOIN standings u ON u.problem_id = r.problem_id AND u.environment_id = r.environment_id"
        f" AND u.identity = w.identity AND w.status = '{Status.PASSED.value}'"
        " WHERE p.candidate_id BETWEEN ? AND ? ORDER BY p.candidate_id, p.position",
        (first, last),
    ):
        found.setdefault(key, []).append((digest, load_estimate(*estimate)))
    return found


def kernel_rows(store: Store, run_name: str | None) -> Iterator[Row]:
    """Every kernel that was judged, once for each problem and environment, with what its build reports.

    With a run: those that it judged. Of several verdicts on one kernel, one that it failed counts.
    """
    for rows in _pages(
        store,
        f"SELECT v.id, k.digest, v.identity, p.title, e.key, k.target, v.status, v.gate, v.message, t.cell, {_STANDING},"
        " v.build, r.name, v.created, k.source, v.status <> 'passed' OR EXISTS (SELECT 1 FROM timing_sessions s WHERE"
        " s.verdict_id = v.id AND s.log_low IS NOT NULL) FROM verdicts v JOIN kernels k ON k.id = v.kernel_id"
        " JOIN runs r ON r.id = v.run_id JOIN problems p ON p.id = v.problem_id"
        " JOIN environments e ON e.id = v.environment_id LEFT JOIN standings t ON t.problem_id = v.problem_id"
        f" AND t.environment_id = v.environment_id AND t.identity = v.identity AND v.status = '{Status.PASSED.value}'",
        "v.id",
        run_name,
        condition=_ONE_VERDICT,
    ):
        for row in rows:
            digest, identity, title, environment, target, status, gate, message, cell, *standing = row[1:15]
            build, run, created, source, is_settled = row[15:]
            report = load_build(build)
            yield {
                **_resources(build),
                "digest": digest,
                "identity": identity,
                "problem": title,
                "environment": environment,
                "target": target,
                "status": status if is_settled else Status.INCONCLUSIVE.value,
                "gate": gate,
                "message": _text(message),
                "cell": cell,
                **_speed(load_estimate(*standing[:4])),
                "n_sessions": standing[4] or 0,
                "build_s": report.seconds if report is not None else None,
                "first_run": run,
                "created": created,
                "source": _text(source),
            }


def session_rows(store: Store, run_name: str | None) -> Iterator[Row]:
    """Every case of every timing session, with its samples."""
    for rows in _pages(
        store,
        "SELECT s.id, k.digest, p.title, e.key, k.target, r.name, s.purpose, s.samples, s.created FROM timing_sessions s"
        " JOIN runs r ON r.id = s.run_id JOIN verdicts v ON v.id = s.verdict_id JOIN kernels k ON k.id = v.kernel_id"
        " JOIN problems p ON p.id = v.problem_id JOIN environments e ON e.id = v.environment_id",
        "s.id",
        run_name,
    ):
        for key, digest, title, environment, target, run, purpose, samples, created in rows:
            for case in load_session(samples, purpose).cases:
                yield {
                    "digest": digest,
                    "problem": title,
                    "environment": environment,
                    "target": target,
                    "run": run,
                    "session": key,
                    "purpose": purpose,
                    **_case(case),
                    "created": created,
                }


def _case(case: CaseTiming) -> Row:
    kept = [i for i, is_kept in enumerate(case.kept) if is_kept]
    return {
        "sizes": dump(case.sizes),
        "regime": regime(case.sizes),
        "kernel_us": statistics.median(case.kernel_us[i] for i in kept) if kept else None,
        "baseline_us": statistics.median(case.baseline_us[i] for i in kept) if kept else None,
        "bare_baseline_us": case.bare_baseline_us,
        "n_blocks": len(case.kept),
        "n_kept": len(kept),
        "kernel_samples_us": list(case.kernel_us),
        "baseline_samples_us": list(case.baseline_us),
    }


def cell_rows(store: Store, run_name: str | None) -> Iterator[Row]:
    """The elite of each cell, shape regime and environment; with a run, of its environment alone."""
    environment = store.run_info(run_name).environment.key if run_name is not None else None
    for elite in elites(store):
        if environment in (None, elite.environment_key):
            yield {
                "environment": elite.environment_key,
                "family": elite.family,
                "regime": elite.regime,
                "axes": elite.schema_version,
                "cell": json.dumps(elite.cell),
                "cell_in_words": elite.cell_in_words,
                "problem": elite.problem_title,
                "digest": elite.digest,
                "identity": elite.identity,
                **_speed(elite.estimate),
                "n_kernels": elite.n_kernels,
            }


def move_rows(store: Store, run_name: str | None) -> Iterator[Row]:
    """Every move; see `archive.mining.moves`."""
    for move in iter_moves(store, run_name):
        yield {
            "run": move.run,
            "idx": move.index,
            "operator": move.operator,
            "kind": move.kind,
            "name": move.name,
            "direction": move.direction,
            "before": move.before,
            "after": move.after,
            "n_kinds": move.n_kinds,
            "n_added": move.n_added,
            "n_removed": move.n_removed,
            "parent": move.parent,
            "digest": move.digest,
            "known": move.is_known,
            "status": move.status,
            "filed": move.is_filed,
            **_gain(move.gain),
        }


def _speed(estimate: Estimate | None) -> Row:
    if estimate is None:
        return {"n_blocks": 0}
    logs = (estimate.log_ratio, estimate.log_low, estimate.log_high)
    speed = dict(zip(("speedup", "speedup_low", "speedup_high"), map(math.exp, logs), strict=True))
    return {**speed, "n_blocks": estimate.n_blocks}


def _gain(found: Gain | None) -> Row:
    if found is None:
        return {}
    return {"gain": found.ratio, "gain_low": found.interval[0], "gain_high": found.interval[1]}


def _resources(text: str | None) -> Row:
    build = load_build(text)
    return dict(build.resources) if build is not None else {}


def _text(value: str | bytes | None) -> str | None:
    return load_text(value) if value is not None else None
