"""What the selection of training data has to know of every candidate: small, and read in pages."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archive.codec import load_cell, load_estimate, load_text
from archive.store import Store
from archive.training_data.normal import normal_digest, normal_source
from evo_l2.contracts import Outcome
from evo_l2.evaluation import Estimate, Status
from evo_l2.measures import Cell

__all__ = ["Fact", "Place", "load_facts", "load_places", "normal_digests"]

_PAGE = 2048


@dataclass(frozen=True, slots=True)
class Place:
    """A problem in an environment: numbers are compared only within one."""

    problem_key: str
    environment_key: str


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """What is stored of a place."""

    place: Place
    title: str
    definition: str
    """JSON."""
    target: str
    identity: str
    """What the environment is, as JSON."""

    @property
    def baseline(self) -> str | None:
        """What kernels are timed against here, in words; None where the environment does not say."""
        found = json.loads(self.identity).get("baseline")
        return str(found) if found is not None else None

    @property
    def harness(self) -> str | None:
        """The version of the harness."""
        found = json.loads(self.identity).get("harness")
        return str(found) if found is not None else None

    @property
    def gates(self) -> str | None:
        """The version of the problem's gates."""
        found = json.loads(self.definition).get("gates")
        return str(found) if found is not None else None

    @property
    def shapes(self) -> tuple[str, ...]:
        """Every case as text."""
        return tuple("x".join(str(size) for size in case) for case in json.loads(self.definition).get("cases", ()))


@dataclass(frozen=True, slots=True)
class Fact:
    """One candidate, without its source and without its prompt and reply."""

    key: int
    run: str
    index: int
    place: Place
    operator: str
    outcome: Outcome
    status: Status | None
    """The verdict of an evaluated candidate; that of its withdrawal where it was withdrawn, `INCONCLUSIVE` without a time."""
    gate: str | None
    message: str | None
    digest: str | None
    identity: str | None
    parents: tuple[str, ...]
    estimate: Estimate | None
    """Over all conclusive sessions of this kernel here, of every run."""
    n_sessions: int
    cell: Cell | None
    generator: str | None
    """What wrote it; None for seeds, imports and operators without a model."""

    @property
    def is_right(self) -> bool:
        """Whether it passed and has a time."""
        return self.status is Status.PASSED and self.estimate is not None

    @property
    def model(self) -> str | None:
        """The generator's name without its adapter's."""
        return self.generator.partition("+")[0] if self.generator is not None else None

    @property
    def adapter(self) -> str | None:
        """The adapter's name; None where there is none."""
        return (self.generator.partition("+")[2] or None) if self.generator is not None else None


def load_places(store: Store) -> dict[Place, PlaceFacts]:
    """Every problem and environment of the archive in which something ran."""
    rows = store.read(
        "SELECT DISTINCT p.key, e.key, p.title, p.definition, e.target, e.identity FROM runs r"
        " JOIN problems p ON p.id = r.problem_id JOIN environments e ON e.id = r.environment_id ORDER BY p.key, e.key"
    )
    return {Place(*row[:2]): PlaceFacts(Place(*row[:2]), *row[2:]) for row in rows}


def load_facts(store: Store) -> tuple[Fact, ...]:
    """Every candidate of every run, in the order of the file."""
    withdrawn: dict[tuple[int, int, int], tuple[str, str | None, str | None]] = {}
    for kernel, problem, environment, status, gate, message in store.read(
        "SELECT v.kernel_id, v.problem_id, v.environment_id, v.status, v.gate, v.message FROM verdicts v"
        " WHERE v.after IS NOT NULL ORDER BY v.id"
    ):
        withdrawn[kernel, problem, environment] = (status, gate, message)
    return tuple(_settled(fact, row, withdrawn) for fact, row in _pages(store))


def _pages(store: Store) -> Iterator[tuple[Fact, tuple[int, int, int]]]:
    last = 0
    while True:
        rows = store.read(
            "SELECT c.id, r.name, c.idx, p.key, e.key, c.operator, c.outcome, v.status, v.gate, v.message, c.message,"
            " k.digest, c.identity, t.log_ratio, t.log_low, t.log_high, t.n_blocks, t.n_sessions, t.cell,"
            " c.kernel_id, r.problem_id, r.environment_id"
            " FROM candidates c JOIN runs r ON r.id = c.run_id JOIN problems p ON p.id = r.problem_id"
            " JOIN environments e ON e.id = r.environment_id LEFT JOIN kernels k ON k.id = c.kernel_id"
            " LEFT JOIN verdicts v ON v.id = c.verdict_id LEFT JOIN standings t ON t.problem_id = r.problem_id"
            " AND t.environment_id = r.environment_id AND t.identity = c.identity AND v.status = 'passed'"
            " WHERE c.id > ? ORDER BY c.id LIMIT ?",
            (last, _PAGE),
        )
        if not rows:
            return
        first, last = rows[0][0], rows[-1][0]
        parents: dict[int, list[str]] = defaultdict(list)
        for key, digest in store.read(
            "SELECT q.candidate_id, k.digest FROM candidate_parents q JOIN kernels k ON k.id = q.kernel_id"
            " WHERE q.candidate_id BETWEEN ? AND ? ORDER BY q.candidate_id, q.position",
            (first, last),
        ):
            parents[key].append(digest)
        generators = {
            key: str(name)
            for key, name in store.read(
                "SELECT candidate_id, generator FROM model_calls WHERE candidate_id BETWEEN ? AND ? AND error IS NULL"
                " ORDER BY candidate_id, position",
                (first, last),
            )
        }
        for row in rows:
            yield _fact(row, tuple(parents[row[0]]), generators.get(row[0])), tuple(row[19:22])


def _fact(row: Sequence[Any], parents: tuple[str, ...], generator: str | None) -> Fact:
    key, run, index, problem, environment, operator, outcome, status, gate, judged, said, digest, identity = row[:13]
    estimate = load_estimate(*row[13:17])
    message = judged if judged is not None else said
    found = Status(status) if status is not None else None
    return Fact(
        key=key,
        run=run,
        index=index,
        place=Place(problem, environment),
        operator=operator,
        outcome=Outcome(outcome),
        status=Status.INCONCLUSIVE if found is Status.PASSED and estimate is None else found,
        gate=gate,
        message=load_text(message) if message is not None else None,
        digest=digest,
        identity=identity,
        parents=parents,
        estimate=estimate,
        n_sessions=row[17] or 0,
        cell=load_cell(row[18]),
        generator=generator,
    )


def _settled(
    fact: Fact, place: tuple[int, int, int], withdrawn: dict[tuple[int, int, int], tuple[str, str | None, str | None]]
) -> Fact:
    later = withdrawn.get(place)
    if later is None or fact.outcome is not Outcome.EVALUATED:
        return fact
    status, gate, message = later
    return replace(fact, status=Status(status), gate=gate, message=load_text(message) if message is not None else None)


def normal_digests(store: Store) -> dict[str, str]:
    """For every kernel of the archive, the digest of its source brought to its normal form."""
    found: dict[str, str] = {}
    last = 0
    while rows := store.read("SELECT id, digest, source FROM kernels WHERE id > ? ORDER BY id LIMIT ?", (last, _PAGE // 8)):
        last = rows[-1][0]
        found.update((digest, normal_digest(normal_source(load_text(source)))) for _, digest, source in rows)
    return found
