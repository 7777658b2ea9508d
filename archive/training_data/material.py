"""Sources, elites, prompts and replies of the candidates that were chosen, read when they are asked for."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from archive.codec import load_build, load_measures, load_schema, load_session, load_text
from archive.store import Store
from archive.training_data.facts import Fact, Place, load_facts, load_places, normal_digests
from evo_l2.contracts import Elite, ModelCall
from evo_l2.evaluation import Estimate, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.measures import MeasuresSchema

__all__ = ["Material"]


class Material:
    """An archive as training data are made of it: every candidate's facts, and the rest on request.

    Args:
        store: The archive.
        licence: SPDX identifier of what the archive's own runs made.
    """

    def __init__(self, store: Store, licence: str) -> None:
        self._store = store
        self._licence = licence
        self.places = load_places(store)
        self.facts = load_facts(store)
        self.normal = normal_digests(store)
        self._best: dict[tuple[Place, str], Fact] = {}
        self._first: dict[str, Fact] = {}
        for fact in self.facts:
            if fact.digest is None:
                continue
            self._first.setdefault(fact.digest, fact)
            if fact.is_right:
                self._best.setdefault((fact.place, fact.digest), fact)
        self._of_run = {name: _licence_of(config) for name, config in store.read("SELECT name, config FROM runs ORDER BY id")}
        self._roots: dict[str, str] = {}
        self._licences: dict[str, frozenset[str]] = {}
        self.kernel = functools.lru_cache(maxsize=1024)(self._read_kernel)
        self.elite = functools.lru_cache(maxsize=256)(self._read_elite)

    def right(self, place: Place, digest: str) -> Fact | None:
        """The facts of a kernel that passed there and has a time."""
        return self._best.get((place, digest))

    def estimate(self, place: Place, digest: str) -> Estimate | None:
        """The estimate of a kernel there; None without one."""
        fact = self._best.get((place, digest))
        return fact.estimate if fact is not None else None

    def parent_estimate(self, fact: Fact) -> Estimate | None:
        """That of the candidate's only parent; None where it has none, or several."""
        return self.estimate(fact.place, fact.parents[0]) if len(fact.parents) == 1 else None

    def root(self, digest: str) -> str:
        """The kernel that a line of first parents goes back to."""
        path: list[str] = []
        seen: set[str] = set()
        at = digest
        while at not in self._roots and at not in seen:
            path.append(at)
            seen.add(at)
            fact = self._first.get(at)
            if fact is None or not fact.parents:
                break
            at = fact.parents[0]
        root = self._roots.get(at, at)
        self._roots.update(dict.fromkeys(path, root))
        return root

    def licence(self, fact: Fact) -> str:
        """The licences of all that it descends from."""
        found: set[str] = set()
        for parent in fact.parents:
            found |= self._licences_above(parent)
        found.add(self._of_run.get(fact.run) or self._licence)
        return " AND ".join(sorted(found))

    def _licences_above(self, digest: str) -> frozenset[str]:
        """Of a kernel and of all its ancestors; by a stack of its own, since lines are long."""
        stack = [digest]
        entered: set[str] = set()
        while stack:
            at = stack[-1]
            fact = self._first.get(at)
            parents = fact.parents if fact is not None else ()
            waiting = [p for p in parents if p not in self._licences and p not in entered]
            if at not in self._licences and waiting:
                entered.add(at)
                stack.extend(waiting)
                continue
            stack.pop()
            own = (self._of_run.get(fact.run) if fact is not None else None) or self._licence
            above = [self._licences.get(parent, frozenset()) for parent in parents]
            self._licences[at] = frozenset({own}).union(*above)
        return self._licences[digest]

    def calls(self, fact: Fact) -> tuple[ModelCall, ...]:
        """The model calls that were answered."""
        if fact.generator is None:
            return ()
        return tuple(call for call in self._store.model_calls(fact.run, fact.index) if call.reply.error is None)

    def _read_kernel(self, digest: str) -> Kernel:
        source, target = self._store.read("SELECT source, target FROM kernels WHERE digest = ?", (digest,))[0]
        return Kernel(load_text(source), target)

    def _read_elite(self, place: Place, digest: str) -> Elite | None:
        fact = self._best.get((place, digest))
        if fact is None or fact.identity is None:
            return None
        schema = self.schema(place)
        build, measures = self._store.read(
            "SELECT v.build, v.measures FROM verdicts v JOIN kernels k ON k.id = v.kernel_id JOIN problems p ON"
            " p.id = v.problem_id JOIN environments e ON e.id = v.environment_id"
            " WHERE k.digest = ? AND p.key = ? AND e.key = ? AND v.status = 'passed' ORDER BY v.id LIMIT 1",
            (digest, place.problem_key, place.environment_key),
        )[0]
        values = load_measures(measures)
        if values is None or len(values) != len(schema.axes):
            return None
        verdict = Verdict(Status.PASSED, build=load_build(build), measures=values)
        cell = schema.cell(values)
        return Elite(self.kernel(digest), fact.identity, cell, verdict, fact.estimate, self._sessions(place, fact.identity))

    def _sessions(self, place: Place, identity: str) -> tuple[TimingSession, ...]:
        rows = self._store.read(
            "SELECT s.samples, s.purpose FROM timing_sessions s JOIN verdicts v ON v.id = s.verdict_id JOIN problems p ON"
            " p.id = v.problem_id JOIN environments e ON e.id = v.environment_id WHERE v.identity = ? AND p.key = ?"
            " AND e.key = ? AND v.status = 'passed' AND s.log_low IS NOT NULL ORDER BY s.id",
            (identity, place.problem_key, place.environment_key),
        )
        return tuple(load_session(samples, purpose) for samples, purpose in rows)

    def schema(self, place: Place) -> MeasuresSchema:
        """The axes by which the last run there filed its kernels."""
        return self._schemas[place]

    @functools.cached_property
    def _schemas(self) -> Mapping[Place, MeasuresSchema]:
        rows = self._store.read(
            "SELECT p.key, e.key, m.axes FROM runs r JOIN problems p ON p.id = r.problem_id JOIN environments e ON"
            " e.id = r.environment_id JOIN measures_schemas m ON m.id = r.schema_id ORDER BY r.id"
        )
        return {Place(problem, environment): load_schema(axes) for problem, environment, axes in rows}

    def times(self, place: Place, digest: str) -> list[dict[str, Any]]:
        """Median times of a kernel and its baseline over all kept blocks, case by case, in microseconds."""
        elite = self.elite(place, digest)
        return case_times(elite.sessions) if elite is not None else []


def case_times(sessions: Sequence[TimingSession]) -> list[dict[str, Any]]:
    """Medians over the kept blocks of all sessions, case by case, in microseconds."""
    kernel_us: dict[tuple[int, ...], list[float]] = {}
    baseline_us: dict[tuple[int, ...], list[float]] = {}
    for session in sessions:
        for case in session.cases:
            kernel_us.setdefault(case.sizes, []).extend(itertools.compress(case.kernel_us, case.kept))
            baseline_us.setdefault(case.sizes, []).extend(itertools.compress(case.baseline_us, case.kept))
    return [
        {"sizes": list(sizes), "kernel_us": median(times), "baseline_us": median(baseline_us[sizes])}
        for sizes, times in kernel_us.items()
        if times
    ]


def _licence_of(config: str) -> str | None:
    """The licence that an import was given; None for a run that imported nothing."""
    imported = json.loads(config).get("import")
    return imported.get("licence") if isinstance(imported, dict) else None
