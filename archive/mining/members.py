"""Every kernel of one problem in one environment that passed, or was built: what grids and fronts are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archive.codec import load_build, load_estimate, load_measures, load_schema
from archive.store import Store
from evo_l2.evaluation import Estimate, Status
from evo_l2.measures import MeasuresSchema

__all__ = ["Field", "Member", "field", "fields", "members"]

_PAGE = 2000
_BAD = f"w.status NOT IN ('{Status.PASSED.value}', '{Status.BUILT.value}')"


@dataclass(frozen=True, slots=True)
class Field:
    """A problem in an environment: the kernels of one field compete, those of two are never compared."""

    problem_id: int
    environment_id: int
    problem_key: str
    problem_title: str
    problem_definition: str
    """JSON."""
    environment_key: str
    target: str
    schema: MeasuresSchema
    """The axes of its last run."""


@dataclass(frozen=True, slots=True)
class Member:
    """One kernel of a field: right and timed, over all sessions and runs, or built and never run."""

    digest: str
    identity: str
    filed: MeasuresSchema
    """The axes with which it was filed."""
    filed_measures: tuple[float | None, ...] | None
    """Along those; None where they do not fit."""
    resources: Mapping[str, int | float | str]
    estimate: Estimate | None
    """None for one that was built and never run."""
    n_sessions: int

    def measures(self, schema: MeasuresSchema) -> tuple[float | None, ...]:
        """One value for each axis: as it was filed under the axis's name, or else from the build; None where unknown.

        A word's value is its place among the axis's labels, so that it is looked up again where they differ.
        """
        if schema == self.filed and self.filed_measures is not None:
            return self.filed_measures
        known = dict(zip(self.filed.axes, self.filed_measures or (), strict=False))
        values = {axis.name: value for axis, value in known.items()}
        labels = {axis.name: axis.labels for axis in known}
        return tuple(
            values[axis.name]
            if axis.name in values
            and (labels[axis.name] == axis.labels or not isinstance(self.resources.get(axis.name), str))
            else found
            for axis, found in zip(schema.axes, schema.values(self.resources), strict=True)
        )


_FIELD = (
    "SELECT r.problem_id, r.environment_id, p.key, p.title, p.definition, e.key, e.target, m.axes FROM runs r"
    " JOIN problems p ON p.id = r.problem_id JOIN environments e ON e.id = r.environment_id"
    " JOIN measures_schemas m ON m.id = r.schema_id"
)


def field(store: Store, run_name: str | None = None) -> Field:
    """The field of a run; None for the run that was started last.

    Raises:
        StorageError: No such run.
    """
    name = store.run_info(run_name).name
    return _field(store.read(f"{_FIELD} WHERE r.name = ?", (name,))[0])


def fields(store: Store) -> tuple[Field, ...]:
    """Every field of the file, in the order in which they were first run."""
    rows = store.read(
        f"{_FIELD} WHERE r.id IN (SELECT MAX(id) FROM runs GROUP BY problem_id, environment_id)"
        " ORDER BY (SELECT MIN(f.id) FROM runs f WHERE f.problem_id = r.problem_id AND f.environment_id = r.environment_id)"
    )
    return tuple(_field(row) for row in rows)


def _field(row: Any) -> Field:
    problem_id, environment_id, problem, title, definition, environment, target, axes = row
    return Field(problem_id, environment_id, problem, title, definition, environment, target, load_schema(axes))


def members(store: Store, place: Field) -> Iterator[Member]:
    """Every member of a field, in pages, so that memory does not grow with it; those that were timed come first."""
    key: tuple[int, int] = (place.problem_id, place.environment_id)
    schemas = {row[0]: load_schema(row[1]) for row in store.read("SELECT id, axes FROM measures_schemas")}
    last = ""
    while True:
        rows = store.read(
            "SELECT t.identity, k.digest, v.measures, v.build, r.schema_id, t.log_ratio, t.log_low, t.log_high, t.n_blocks,"
            " t.n_sessions FROM standings t JOIN kernels k ON k.id = t.kernel_id JOIN verdicts v ON v.id = t.verdict_id"
            " JOIN runs r ON r.id = v.run_id"
            " WHERE t.problem_id = ? AND t.environment_id = ? AND t.identity > ? ORDER BY t.identity LIMIT ?",
            (*key, last, _PAGE),
        )
        for identity, digest, measures, build, schema_id, *estimate, n_sessions in rows:
            filed = _filed(schemas[schema_id], measures)
            yield Member(digest, identity, *filed, _resources(build), load_estimate(*estimate), n_sessions)
        if len(rows) < _PAGE:
            break
        last = rows[-1][0]
    yield from _built(store, key, schemas)


def _built(store: Store, key: tuple[int, int], schemas: Mapping[int, MeasuresSchema]) -> Iterator[Member]:
    """Those that were built and never run; of several sources with one identity the one that sorts first."""
    found: dict[str, Member] = {}
    last = 0
    while True:
        rows = store.read(
            "SELECT v.id, v.identity, k.digest, v.measures, v.build, r.schema_id FROM verdicts v"
            " JOIN kernels k ON k.id = v.kernel_id JOIN runs r ON r.id = v.run_id"
            " WHERE v.problem_id = ? AND v.environment_id = ? AND v.status = ? AND v.identity IS NOT NULL AND v.id > ?"
            " AND NOT EXISTS (SELECT 1 FROM standings t WHERE t.problem_id = v.problem_id"
            " AND t.environment_id = v.environment_id AND t.identity = v.identity)"
            " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.kernel_id = v.kernel_id AND w.problem_id = v.problem_id"
            f" AND w.environment_id = v.environment_id AND {_BAD}) ORDER BY v.id LIMIT ?",
            (*key, Status.BUILT.value, last, _PAGE),
        )
        for _, identity, digest, measures, build, schema_id in rows:
            known = found.get(identity)
            if known is None or digest < known.digest:
                filed = _filed(schemas[schema_id], measures)
                found[identity] = Member(digest, identity, *filed, _resources(build), None, 0)
        if len(rows) < _PAGE:
            break
        last = rows[-1][0]
    yield from (found[identity] for identity in sorted(found))


def _filed(schema: MeasuresSchema, text: str | None) -> tuple[MeasuresSchema, tuple[float | None, ...] | None]:
    measures = load_measures(text)
    return schema, measures if measures is not None and len(measures) == len(schema.axes) else None


def _resources(text: str | None) -> Mapping[str, int | float | str]:
    build = load_build(text)
    return build.resources if build is not None else {}
