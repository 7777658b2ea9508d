"""Rows of one archive written into another: what is there already is found by its content, what is new gets an id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from archive.codec import dump, load
from archive.database import Database
from archive.keeping.content import ordinals
from archive.keeping.findings import pages
from archive.keeping.held import Held, RunCopy
from archive.store import Store

__all__ = ["Copier", "Place"]

_PAGE = 500
Place = tuple[int, int]
"""Ids of problem and environment."""


class Copier:
    """Copies runs from one archive to another, inside the other's transaction.

    Args:
        source: Read.
        database: Written.
        copies: What is to be copied of each run of the source, in order.
        there: The source's runs.
        here: The runs that the other holds already.
    """

    def __init__(
        self, source: Store, database: Database, copies: Sequence[RunCopy], there: Sequence[Held], here: Sequence[Held]
    ) -> None:
        self._source = source
        self._database = database
        self._copies = {copy.run.key: copy for copy in copies}
        self._uids_there = {run.key: run.uid for run in there}
        self._uids_here = {run.key: run.uid for run in here}
        self._interned: dict[str, dict[int, int]] = {}
        self._kernels: dict[int, int] = {}
        self._texts: dict[int, int] = {}
        self._verdicts: dict[int, int] = {}
        self._sessions: dict[int, int] = {}
        self.shared: dict[Place, set[str]] = defaultdict(set)
        """Identities whose standing both files bear on, by place here."""
        self.new_verdicts: set[int] = set()
        """Verdicts that are copied, by their ids there."""
        self.retimed: set[int] = set()
        """Verdicts that were here and get another session, by their ids here."""
        self.mixed: set[int] = set()
        """Runs with candidates judged by a verdict that was here already, by their ids there."""

    @property
    def source(self) -> Store:
        """What is read."""
        return self._source

    @property
    def growing(self) -> tuple[RunCopy, ...]:
        """The runs of which something is copied."""
        return tuple(copy for copy in self._copies.values() if copy.grows)

    @property
    def places(self) -> tuple[Place, ...]:
        """Problem and environment, by their ids here, of every run that grows."""
        found = []
        for copy in self.growing:
            found += self._database.read("SELECT problem_id, environment_id FROM runs WHERE id = ?", (copy.target,))
        return tuple(dict.fromkeys((row[0], row[1]) for row in found))

    # --- runs ---------------------------------------------------------------------------------------------------------

    def intern(self) -> None:
        """Problems, environments and axes, by their keys."""
        for table, columns in (
            ("problems", "key, name, title, definition"),
            ("environments", "key, target, identity"),
            ("measures_schemas", "version, axes"),
        ):
            unique = columns.split(",")[0]
            marks = ", ".join("?" * len(columns.split(",")))
            found: dict[int, int] = {}
            for key, *row in self._source.read(f"SELECT id, {columns} FROM {table} ORDER BY id"):
                known = self._database.read(f"SELECT id FROM {table} WHERE {unique} = ?", (row[0],))
                new = None if known else self._database.insert(f"INSERT INTO {table} ({columns}) VALUES ({marks})", row)
                found[key] = known[0][0] if known else _made(new)
            self._interned[table] = found

    def start(self, copy: RunCopy, moment: str) -> None:
        """Makes the row of a new run; it gets its name later."""
        home, problem, environment, schema, *row = self._source.read(
            "SELECT COALESCE(home_name, name), problem_id, environment_id, schema_id, target, config, seed, provenance,"
            " created,"
            " finished, summary FROM runs WHERE id = ?",
            (copy.run.key,),
        )[0]
        copy.target = _made(
            self._database.insert(
                "INSERT INTO runs (name, home_name, problem_id, environment_id, schema_id, target, config, seed, provenance,"
                " created, finished, summary, base_verdict, base_session, base_candidate, uid, merged)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?)",
                (
                    copy.run.uid,
                    home,
                    self._interned["problems"][problem],
                    self._interned["environments"][environment],
                    self._interned["measures_schemas"][schema],
                    *row,
                    copy.run.uid,
                    moment,
                ),
            )
        )

    def settle(self, copy: RunCopy) -> None:
        """What may change of a run: the later of two summaries and of two states stays; and its seeds."""
        assert copy.target is not None
        theirs = self._source.read("SELECT finished, summary FROM runs WHERE id = ?", (copy.run.key,))[0]
        ours = self._database.read("SELECT finished, summary FROM runs WHERE id = ?", (copy.target,))[0]
        if (theirs[0] or "", theirs[1] or "") > (ours[0] or "", ours[1] or ""):
            self._database.execute("UPDATE runs SET finished = ?, summary = ? WHERE id = ?", (*theirs, copy.target))
        states = "SELECT name, updated, value FROM run_states WHERE run_id = ? ORDER BY name"
        known = {row[0]: (row[1], row[2]) for row in self._database.read(states, (copy.target,))}
        for name, updated, value in self._source.read(states, (copy.run.key,)):
            if name not in known or known[name] < (updated, value):
                self._database.execute(
                    "INSERT INTO run_states (run_id, name, value, updated) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (run_id, name) DO UPDATE SET value = excluded.value, updated = excluded.updated",
                    (copy.target, name, value, updated),
                )
        n_seeds = self._database.read("SELECT COUNT(*) FROM run_seeds WHERE run_id = ?", (copy.target,))[0][0]
        seeds = self._source.read(
            "SELECT position, kernel_id FROM run_seeds WHERE run_id = ? AND position >= ? ORDER BY position",
            (copy.run.key, n_seeds),
        )
        self._map_kernels([kernel for _, kernel in seeds])
        for position, kernel in seeds:
            row = (copy.target, position, self._kernels[kernel])
            self._database.execute("INSERT INTO run_seeds VALUES (?, ?, ?)", row)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def copy_rows(self) -> None:
        """Verdicts, then the sessions that belong to them, then the candidates that name both."""
        verdicts_there, sessions_there = ordinals(self._source, "verdicts"), ordinals(self._source, "timing_sessions")
        self._match("verdicts", verdicts_there, self._verdicts)
        self._match("timing_sessions", sessions_there, self._sessions)
        self._copy_verdicts(verdicts_there)
        self._copy_sessions(sessions_there, verdicts_there)
        self._copy_candidates()

    def _match(self, table: str, there: dict[int, tuple[int, int]], found: dict[int, int]) -> None:
        """Ids here of the rows that are here already."""
        here: dict[tuple[str, int], int] = {}
        if self._uids_here:
            counts: dict[int, int] = defaultdict(int)
            last = -1
            while True:
                rows = self._database.read(f"SELECT id, run_id FROM {table} WHERE id > ? ORDER BY id LIMIT 5000", (last,))
                for key, run in rows:
                    here[self._uids_here.get(run, ""), counts[run]] = key
                    counts[run] += 1
                if len(rows) < 5000:
                    break
                last = rows[-1][0]
        for key, (run, number) in there.items():
            other = here.get((self._uids_there[run], number))
            if other is not None:
                found[key] = other

    def _copy_verdicts(self, there: dict[int, tuple[int, int]]) -> None:
        sql = (
            "SELECT id, kernel_id, problem_id, environment_id, run_id, identity, status, gate, message, build, measures,"
            " after,"
            " created FROM verdicts WHERE id > ?"
        )
        new = (row for row in pages(self._source, sql) if there[row[0]][1] >= self._copies[row[4]].n_verdicts)
        before = self._database.read("SELECT COALESCE(MAX(id), 0) FROM verdicts")[0][0]
        for page in _paged(new):
            self._map_kernels([row[1] for row in page])
            places = [self._place(row[2], row[3]) for row in page]
            self._note_shared(page, places, before)
            for row, place in zip(page, places, strict=True):
                kernel = self._kernels[row[1]]
                key = self._database.insert(
                    "INSERT INTO verdicts (kernel_id, problem_id, environment_id, attempt, run_id, identity, status, gate,"
                    " message, build, measures, after, created) SELECT ?, ?, ?, (SELECT COALESCE(MAX(attempt) + 1, 0)"
                    " FROM verdicts WHERE kernel_id = ? AND problem_id = ? AND environment_id = ?), ?, ?, ?, ?, ?, ?, ?,"
                    " ?, ?",
                    (kernel, *place, kernel, *place, self._copies[row[4]].target, *row[5:]),
                )
                self._verdicts[row[0]] = _made(key)
                self.new_verdicts.add(row[0])

    def _note_shared(self, page: Sequence[Any], places: Sequence[Place], before: int) -> None:
        """Identities of new verdicts that verdicts from before the merge bear on: by the identity, or by the kernel."""
        by_place: dict[Place, list[Any]] = defaultdict(list)
        for row, place in zip(page, places, strict=True):
            by_place[place].append(row)
        for place, rows in by_place.items():
            if not before:
                continue
            names = sorted({row[5] for row in rows if row[5] is not None})
            marks = ", ".join("?" * len(names))
            if names:
                self.shared[place] |= {
                    found
                    for (found,) in self._database.read(
                        f"SELECT DISTINCT identity FROM verdicts WHERE identity IN ({marks}) AND problem_id = ?"
                        " AND environment_id = ? AND id <= ?",
                        (*names, *place, before),
                    )
                }
            kernels = {self._kernels[row[1]]: row[5] for row in rows}
            marks = ", ".join("?" * len(kernels))
            for kernel, identity in self._database.read(
                f"SELECT kernel_id, identity FROM verdicts WHERE kernel_id IN ({marks}) AND problem_id = ?"
                " AND environment_id = ? AND id <= ?",
                (*kernels, *place, before),
            ):
                self.shared[place] |= {name for name in (identity, kernels[kernel]) if name is not None}

    def _copy_sessions(self, there: dict[int, tuple[int, int]], verdicts_there: dict[int, tuple[int, int]]) -> None:
        sql = (
            "SELECT s.id, s.verdict_id, s.run_id, v.problem_id, v.environment_id, v.identity, s.after, s.candidate_index,"
            " s.purpose, s.samples, s.log_ratio, s.log_low, s.log_high, s.n_blocks, s.created FROM timing_sessions s"
            " JOIN verdicts v ON v.id = s.verdict_id WHERE s.id > ?"
        )
        held = {key for key, (run, number) in verdicts_there.items() if number < self._copies[run].n_verdicts}
        for row in pages(self._source, sql):
            if there[row[0]][1] < self._copies[row[2]].n_sessions:
                continue
            if row[1] in held:
                self.retimed.add(self._verdicts[row[1]])
                if row[5] is not None:
                    self.shared[self._place(row[3], row[4])].add(row[5])
            key = self._database.insert(
                "INSERT INTO timing_sessions (verdict_id, run_id, after, candidate_index, purpose, samples, log_ratio,"
                " log_low,"
                " log_high, n_blocks, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (self._verdicts[row[1]], self._copies[row[2]].target, *row[6:]),
            )
            self._sessions[row[0]] = _made(key)

    def _copy_candidates(self) -> None:
        sql = (
            "SELECT id, run_id, kernel_id, verdict_id, session_id, duplicate_of, idx, operator, asked_after, outcome,"
            " message,"
            " identity, evaluation_s, seconds, add_status, add_value, cell, created FROM candidates WHERE id > ?"
        )
        new = (row for row in pages(self._source, sql) if row[6] >= self._copies[row[1]].n_candidates)
        for page in _paged(new):
            marks = ", ".join("?" * len(page))
            keys = [row[0] for row in page]
            parents = self._source.read(
                f"SELECT candidate_id, position, kernel_id FROM candidate_parents WHERE candidate_id IN ({marks})"
                " ORDER BY candidate_id, position",
                keys,
            )
            named = [row[2] for row in page] + [row[5] for row in page] + [row[2] for row in parents]
            self._map_kernels([key for key in named if key is not None])
            made: dict[int, int] = {}
            for row in page:
                if row[3] is not None and row[3] not in self.new_verdicts:
                    self.mixed.add(row[1])
                key = self._database.insert(
                    "INSERT INTO candidates (run_id, kernel_id, verdict_id, session_id, duplicate_of, idx, operator,"
                    " asked_after, outcome, message, identity, evaluation_s, seconds, add_status, add_value, cell, created)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        self._copies[row[1]].target,
                        self._kernels.get(row[2]),
                        self._verdicts.get(row[3]),
                        self._sessions.get(row[4]),
                        self._kernels.get(row[5]),
                        *row[6:],
                    ),
                )
                made[row[0]] = _made(key)
            for candidate, position, kernel in parents:
                self._database.execute(
                    "INSERT INTO candidate_parents (candidate_id, position, kernel_id) VALUES (?, ?, ?)",
                    (made[candidate], position, self._kernels[kernel]),
                )
            self._copy_calls(made)

    def _copy_calls(self, made: dict[int, int]) -> None:
        marks = ", ".join("?" * len(made))
        rows = self._source.read(
            "SELECT candidate_id, prompt, reply_id, position, generator, n_prompt_tokens, n_reply_tokens, latency_s,"
            " cost_usd,"
            f" n_retries, error, seed, max_tokens, created FROM model_calls WHERE candidate_id IN ({marks})"
            " ORDER BY candidate_id, position",
            list(made),
        )
        prompts = [load(row[1]) for row in rows]
        self._map_texts({row[2] for row in rows} | {key for prompt in prompts for _, key in prompt})
        for row, prompt in zip(rows, prompts, strict=True):
            messages = dump([[role, self._texts[key]] for role, key in prompt])
            self._database.execute(
                "INSERT INTO model_calls (candidate_id, prompt, reply_id, position, generator, n_prompt_tokens,"
                " n_reply_tokens,"
                " latency_s, cost_usd, n_retries, error, seed, max_tokens, created)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (made[row[0]], messages, self._texts[row[2]], *row[3:]),
            )

    # --- what rows name -----------------------------------------------------------------------------------------------

    def _place(self, problem: int, environment: int) -> Place:
        return self._interned["problems"][problem], self._interned["environments"][environment]

    def place_there(self, place: Place) -> Place:
        """A problem and environment by their ids there."""
        there = [
            next(other for other, here in self._interned[table].items() if here == key)
            for table, key in zip(("problems", "environments"), place, strict=True)
        ]
        return there[0], there[1]

    def schema(self, key: int) -> int:
        """The id here of axes there."""
        return self._interned["measures_schemas"][key]

    def verdict(self, key: int) -> int:
        """The id here of a verdict there."""
        return self._verdicts[key]

    def kernels(self, keys: Sequence[int]) -> dict[int, int]:
        """Ids here of kernels there, by these; those that are missing are written."""
        self._map_kernels(keys)
        return self._kernels

    def _map_kernels(self, keys: Sequence[int]) -> None:
        """Ids here of kernels there; those that are missing are written."""
        self._map("kernels", "digest, target, source, created", sorted(set(keys) - self._kernels.keys()), self._kernels)

    def _map_texts(self, keys: set[int]) -> None:
        self._map("texts", "digest, n_characters, content", sorted(keys - self._texts.keys()), self._texts)

    def _map(self, table: str, columns: str, keys: Sequence[int], found: dict[int, int]) -> None:
        values = ", ".join("?" * len(columns.split(",")))
        for start in range(0, len(keys), _PAGE):
            page = keys[start : start + _PAGE]
            marks = ", ".join("?" * len(page))
            there = dict(self._source.read(f"SELECT id, digest FROM {table} WHERE id IN ({marks})", page))
            here = dict(
                self._database.read(f"SELECT digest, id FROM {table} WHERE digest IN ({marks})", list(there.values()))
            )
            missing = [key for key in page if there[key] not in here]
            for first in range(0, len(missing), 50):
                some = missing[first : first + 50]
                rows = self._source.read(
                    f"SELECT id, {columns} FROM {table} WHERE id IN ({', '.join('?' * len(some))}) ORDER BY id", some
                )
                for key, *row in rows:
                    found[key] = _made(self._database.insert(f"INSERT INTO {table} ({columns}) VALUES ({values})", row))
            found.update({key: here[digest] for key, digest in there.items() if digest in here})


def _made(key: int | None) -> int:
    assert key is not None
    return key


def _paged(rows: Iterator[Any]) -> Iterator[list[Any]]:
    page: list[Any] = []
    for row in rows:
        page.append(row)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page
