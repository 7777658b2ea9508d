"""Single kernels: the best, and all that is known of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from archive.codec import load_build, load_cell, load_estimate, load_measures, load_schema, load_text
from archive.mining.digests import resolve
from archive.mining.lineage import Ancestor, lineage
from archive.store import Store
from evo_l2.contracts import Elite
from evo_l2.evaluation import Estimate, Status
from evo_l2.kernel import Kernel

__all__ = ["Judgement", "KernelFacts", "show", "top"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """One kernel in one environment, over all its sessions there and over all runs."""

    problem_title: str
    environment_key: str
    status: Status
    gate: str | None
    message: str | None
    resources: Mapping[str, int | float | str]
    cell: str | None
    """The cell in words; None when it holds no place in a grid."""
    estimate: Estimate | None
    n_sessions: int


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """All that is known of one kernel."""

    kernel: Kernel
    digest: str
    judgements: tuple[Judgement, ...]
    lineage: tuple[Ancestor, ...]


def top(store: Store, run_name: str | None = None, *, count: int = 10) -> tuple[Elite, ...]:
    """The best kernels that a run sees, elites or not, the highest lower bound first.

    Raises:
        StorageError: No such run.
    """
    return tuple(islice(store.open_run(run_name).ranked(), count))


def show(store: Store, prefix: str) -> KernelFacts:
    """All that is known of a kernel, over all runs.

    Raises:
        ConfigurationError: The prefix does not name one kernel.
    """
    digest = resolve(store, prefix)
    source, target = store.read("SELECT source, target FROM kernels WHERE digest = ?", (digest,))[0]
    rows = store.read(
        "SELECT p.title, e.key, v.status, v.gate, v.message, v.build, v.measures, n.axes, t.cell, m.axes, t.log_ratio,"
        " t.log_low, t.log_high, t.n_blocks, (SELECT COUNT(*) FROM timing_sessions s WHERE s.verdict_id = v.id)"
        " FROM verdicts v JOIN runs r ON r.id = v.run_id JOIN measures_schemas n ON n.id = r.schema_id"
        " JOIN kernels k ON k.id = v.kernel_id JOIN problems p ON p.id = v.problem_id"
        " JOIN environments e ON e.id = v.environment_id LEFT JOIN standings t ON t.problem_id = v.problem_id"
        " AND t.environment_id = v.environment_id AND t.identity = v.identity AND v.status = 'passed'"
        " LEFT JOIN measures_schemas m ON m.id = t.schema_id WHERE k.digest = ? ORDER BY v.id",
        (digest,),
    )
    return KernelFacts(
        Kernel(load_text(source), target), digest, tuple(_judgement(row) for row in rows), lineage(store, digest)
    )


def _judgement(row: Sequence[Any]) -> Judgement:
    title, environment, status, gate, message, build, measures, filed_axes, text, axes, *estimate, n_sessions = row
    report, cell = load_build(build), load_cell(text)
    if status == Status.BUILT.value:
        # What was never run has no standing, but a place in the grid.
        axes, values = filed_axes, load_measures(measures)
        fits = values is not None and len(values) == len(load_schema(axes).axes)
        cell = load_schema(axes).cell(values) if fits and values is not None else None
    return Judgement(
        problem_title=title,
        environment_key=environment,
        status=Status(status),
        gate=gate,
        message=load_text(message) if message is not None else None,
        resources=report.resources if report is not None else {},
        cell=load_schema(axes).describe(cell) if cell is not None else None,
        estimate=load_estimate(*estimate),
        n_sessions=n_sessions,
    )
