"""An archive seen through its content: one digest that no id, no order of merging and no place on disk has a part in."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from archive.codec import load
from archive.keeping.findings import pages
from archive.store import Store

__all__ = ["Bases", "content_digest", "ordinals", "run_bases", "run_digests"]

Bases = dict[str, tuple[int, int, int]]
"""By the id of a run: how many of its verdicts, sessions and candidates another run had seen when it was started."""


def ordinals(store: Store, table: str) -> dict[int, tuple[int, int]]:
    """Run and number within it, from 0, of every row of `verdicts` or `timing_sessions`, by id.

    A run's rows are written in order and never taken away, so this names a row in every copy of the run.
    """
    found: dict[int, tuple[int, int]] = {}
    counts: dict[int, int] = defaultdict(int)
    for key, run in pages(store, f"SELECT id, run_id FROM {table} WHERE id > ?"):
        found[key] = (run, counts[run])
        counts[run] += 1
    return found


def run_bases(store: Store) -> dict[int, Bases]:
    """What every run saw of others when it was started, by the run's row and the other's id.

    In the file where it was started it is what came before it; a merged run brought it along.
    """
    runs = store.read(
        "SELECT id, uid, problem_id, environment_id, base_verdict, base_session, base_candidate, merged FROM runs ORDER BY id"
    )
    uids = {row[0]: row[1] for row in runs}
    found: dict[int, Bases] = {row[0]: {} for row in runs}
    for run, seen, *counts in store.read(
        "SELECT run_id, seen_run_id, n_verdicts, n_sessions, n_candidates FROM run_bases ORDER BY run_id, seen_run_id"
    ):
        found[run][uids[seen]] = (counts[0], counts[1], counts[2])
    here = [row for row in runs if row[7] is None and any(row[4:7])]
    if here:
        rows = [_keys(store, table) for table in ("verdicts", "timing_sessions", "candidates")]
        for key, _, problem, environment, *bases, _ in here:
            for other in runs:
                if other[0] != key and (other[2], other[3]) == (problem, environment):
                    n = tuple(_count(keys.get(other[0], ()), base) for keys, base in zip(rows, bases, strict=True))
                    if any(n):
                        found[key][other[1]] = (n[0], n[1], n[2])
    return found


def _keys(store: Store, table: str) -> dict[int, list[int]]:
    """Ids of a table's rows by run, rising."""
    found: dict[int, list[int]] = defaultdict(list)
    for key, run in pages(store, f"SELECT id, run_id FROM {table} WHERE id > ?"):
        found[run].append(key)
    return found


def _count(keys: Iterable[int], base: int) -> int:
    return sum(key <= base for key in keys)


def content_digest(store: Store) -> str:
    """SHA-256 over the whole content of an archive, as 64 hexadecimal digits.

    Two archives agree exactly when they hold the same runs with the same candidates, verdicts, sessions, calls, states and
    bases. Ids, derived rows, names that runs were given by a merge, leases, and what nothing refers to have no part in it.
    """
    digest = hashlib.sha256()
    for uid, part in sorted(run_digests(store).items()):
        digest.update(f"{uid}\0{part}\n".encode())
    return digest.hexdigest()


def run_digests(store: Store) -> dict[str, str]:
    """A digest over the content of every run, by the run's id."""
    uids = {row[0]: row[1] for row in store.read("SELECT id, uid FROM runs")}
    digests = {key: hashlib.sha256() for key in uids}
    for run, record in _records(store, uids):
        digests[run].update(json.dumps(record, separators=(",", ":"), default=_plain).encode("utf-8", "surrogatepass"))
        digests[run].update(b"\n")
    return {uids[key]: digest.hexdigest() for key, digest in digests.items()}


def _plain(value: object) -> str:
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    raise TypeError(f"no plain value: {value!r}")


def _records(store: Store, uids: dict[int, str]) -> Iterator[tuple[int, list[Any]]]:
    """Everything that belongs to a run, each row with what it refers to named by content; those of one run in their order."""
    bases = run_bases(store)
    for key, home, problem, environment, version, *rest in store.read(
        "SELECT r.id, COALESCE(r.home_name, r.name), p.key, e.key, m.version, r.target, r.config, r.seed, r.provenance,"
        " r.created, r.finished, r.summary FROM runs r JOIN problems p ON p.id = r.problem_id"
        " JOIN environments e ON e.id = r.environment_id JOIN measures_schemas m ON m.id = r.schema_id ORDER BY r.id"
    ):
        yield key, ["run", uids[key], home, problem, environment, version, *rest, sorted(bases[key].items())]
    for run, *row in store.read("SELECT run_id, name, value, updated FROM run_states ORDER BY run_id, name"):
        yield run, ["state", *row]
    for run, *row in store.read(
        "SELECT s.run_id, s.position, k.digest FROM run_seeds s JOIN kernels k ON k.id = s.kernel_id"
        " ORDER BY s.run_id, s.position"
    ):
        yield run, ["seed", *row]
    verdicts, sessions = ordinals(store, "verdicts"), ordinals(store, "timing_sessions")

    def named(places: dict[int, tuple[int, int]], key: int | None) -> Any:
        if key is None:
            return None
        run, number = places.get(key, (-1, key))
        return [uids.get(run), number]

    sql = (
        "SELECT v.id, v.run_id, k.digest, v.identity, v.status, v.gate, v.message, v.build, v.measures, v.after, v.created"
        " FROM verdicts v JOIN kernels k ON k.id = v.kernel_id WHERE v.id > ?"
    )
    for key, run, *row in pages(store, sql):
        yield run, ["verdict", named(verdicts, key)[1], *row]
    sql = (
        "SELECT id, run_id, verdict_id, after, candidate_index, purpose, samples, log_ratio, log_low, log_high,"
        " n_blocks, created"
        " FROM timing_sessions WHERE id > ?"
    )
    for key, run, verdict, *row in pages(store, sql):
        yield run, ["session", named(sessions, key)[1], named(verdicts, verdict), *row]
    sql = (
        "SELECT c.id, c.run_id, c.verdict_id, c.session_id, c.idx, c.operator, c.asked_after, c.outcome, c.message, k.digest,"
        " c.identity, c.evaluation_s, o.digest, c.seconds, c.add_status, c.add_value, c.cell, c.created FROM candidates c"
        " LEFT JOIN kernels k ON k.id = c.kernel_id LEFT JOIN kernels o ON o.id = c.duplicate_of WHERE c.id > ?"
    )
    for _, run, verdict, session, *row in pages(store, sql):
        yield run, ["candidate", *row, named(verdicts, verdict), named(sessions, session)]
    yield from _parents_and_calls(store)


def _parents_and_calls(store: Store) -> Iterator[tuple[int, list[Any]]]:
    sql = (
        "SELECT c.id, c.run_id, c.idx, p.position, k.digest FROM candidates c JOIN candidate_parents p ON p.candidate_id"
        " = c.id"
        " JOIN kernels k ON k.id = p.kernel_id WHERE c.run_id = ? ORDER BY c.idx, p.position"
    )
    runs = [row[0] for row in store.read("SELECT id FROM runs ORDER BY id")]
    for run in runs:
        for _, _, *row in store.read(sql, (run,)):
            yield run, ["parent", *row]
    texts: dict[int, str] = {
        key: bytes(digest).hex() for key, digest in pages(store, "SELECT id, digest FROM texts WHERE id > ?")
    }
    sql = (
        "SELECT m.id, c.run_id, c.idx, m.position, m.prompt, m.reply_id, m.generator, m.n_prompt_tokens, m.n_reply_tokens,"
        " m.latency_s, m.cost_usd, m.n_retries, m.error, m.seed, m.max_tokens, m.created FROM model_calls m"
        " JOIN candidates c ON c.id = m.candidate_id WHERE m.id > ?"
    )
    for _, run, index, position, prompt, reply, *row in pages(store, sql):
        messages = [[role, texts.get(key)] for role, key in load(prompt)]
        yield run, ["call", index, position, messages, texts.get(reply), *row]
