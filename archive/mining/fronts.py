"""The Pareto front: kernels that no other beats in everything, over time, resources and, where it is known, error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archive.mining.members import Field, Member, field, members
from archive.store import Store
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import rank

__all__ = ["Front", "FrontPoint", "pareto", "pareto_front"]

_PREFERRED = {
    "cuda": ("n_registers", "shared_bytes", "spill_bytes"),
    "cpu": ("stack_bytes", "n_vector_spills", "workspace_bytes"),
}
_SUMS: Mapping[str, tuple[str, ...]] = {"shared_bytes": ("static_shared_bytes", "dynamic_shared_bytes")}
"""What a build reports in parts."""


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A kernel on the front."""

    member: Member
    costs: tuple[float | None, ...]
    """One for each axis of the front; None where the build says nothing."""


@dataclass(frozen=True, slots=True)
class Front:
    """The Pareto front of a field."""

    field: Field
    axes: tuple[str, ...]
    """What is weighed beside speed: resources, and `error` where it was given; less is better."""
    is_timed: bool
    """False when nothing was run: the front is over resources alone then."""
    n_kernels: int
    """How many kernels were weighed."""
    points: tuple[FrontPoint, ...]
    """The fastest first."""


def pareto_front(vectors: Sequence[tuple[float, ...]]) -> tuple[int, ...]:
    """Positions of the vectors that no other beats: none is smaller or equal everywhere and smaller somewhere.

    Of equal vectors the first stays alone.
    """
    kept: list[int] = []
    for i in sorted(range(len(vectors)), key=lambda i: (vectors[i], i)):
        # What comes earlier in the order is never beaten by what comes later.
        if not any(all(a <= b for a, b in zip(vectors[j], vectors[i], strict=True)) for j in kept):
            kept.append(i)
    return tuple(sorted(kept))


def pareto(
    store: Store,
    run_name: str | None = None,
    *,
    resources: Sequence[str] | None = None,
    errors: Mapping[str, float] | None = None,
) -> Front:
    """The front of a run's problem and environment, over all runs of the file.

    Speed counts by the lower bound of the log speed-up, so that luck does not carry a kernel onto the front. A value that a
    build does not report counts as worse than any.

    Args:
        store: The archive.
        run_name: The run; None for the one that was started last.
        resources: Names of what the build reports, less being better; None for those that the target usually has:
            registers, shared memory and spills on `cuda`; stack, spilled vectors and workspace on `cpu`.
        errors: Numerical error by digest, where it is known from elsewhere: gates say right or wrong, and the archive
            keeps no error of a kernel that passed.

    Raises:
        ConfigurationError: No build reports such a resource.
        StorageError: No such run.
    """
    place = field(store, run_name)
    kernels = sorted(members(store, place), key=lambda member: rank(member.estimate, member.digest))
    facts = [_numbers(kernel) for kernel in kernels]
    names = tuple(resources) if resources is not None else _PREFERRED.get(place.target, ())
    known = {name for numbers in facts for name in numbers}
    unknown = [name for name in names if name not in known]
    if resources is not None and unknown and kernels:
        expected = f"numbers that the builds report: {', '.join(sorted(known))}"
        raise ConfigurationError("no such resource", expected=expected, found=", ".join(unknown))
    axes = tuple(name for name in names if name in known)
    costs: list[tuple[float | None, ...]] = [tuple(numbers.get(name) for name in axes) for numbers in facts]
    if errors is not None:
        axes = (*axes, "error")
        costs = [(*row, errors.get(kernel.digest)) for kernel, row in zip(kernels, costs, strict=True)]
    vectors = [
        (-kernel.estimate.log_low if kernel.estimate else math.inf, *(math.inf if c is None else c for c in row))
        for kernel, row in zip(kernels, costs, strict=True)
    ]
    points = tuple(FrontPoint(kernels[i], costs[i]) for i in pareto_front(vectors))
    return Front(place, axes, any(kernel.estimate for kernel in kernels), len(kernels), points)


def _numbers(member: Member) -> dict[str, float]:
    """What the build reports in numbers, sums of what it reports in parts among them."""
    found = {name: value for name, value in member.resources.items() if isinstance(value, int | float) and value == value}
    for name, parts in _SUMS.items():
        present = [found[part] for part in parts if part in found]
        if present:
            found[name] = sum(present)
    return found
