"""Measures of a CUDA kernel that follow from its source and its launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evo_l2.kernel import Kernel
from evo_l2.launch import Role
from evo_l2.problem import Instance, Problem
from evo_l2.targets.cuda.cards import Card
from evo_l2.targets.cuda.launching.occupancy import occupancy
from evo_l2.targets.cuda.launching.plan import Plan
from evo_l2.targets.cuda.reading.cubin import Cubin

__all__ = ["launch_facts", "n_stages", "tile_area"]

_DOUBLE_BUFFERED = frozenset({"cp.async", "tma"})
"""Copies that run beside the arithmetic, which takes two buffers at the least."""


def launch_facts(
    kernel: Kernel, problem: Problem, plans: Sequence[Plan], code: Cubin, card: Card, copy_kind: str
) -> dict[str, int | float | str]:
    """Facts for `BuildReport.resources` that follow from the launches on one card; those of the code are `resources_of`'s.

    Args:
        kernel: The source.
        problem: What is computed.
        plans: One for each case, all of which fit code and card (see `check_plan`).
        code: What was built.
        card: What it would run on.
        copy_kind: As `resources.copy_kind` has it.

    Returns:
        `stages`; `tile_area`, where it is known; `occupancy` (resident warps over room for warps), `blocks_per_sm` and
        `occupancy_limit`, of the launch with the lowest occupancy; `block_threads`, `dynamic_shared_bytes` and
        `workspace_bytes`, the most of any launch or case; `n_launches`.
    """
    launches = [launch for plan in plans for launch in plan.launches]
    held = [occupancy(code.entries[launch.entry], launch.n_threads, launch.shared_bytes, card) for launch in launches]
    least = min(held, key=lambda one: one.fraction)
    area = tile_area(kernel, problem, plans)
    return {
        "stages": n_stages(kernel.constants, copy_kind),
        **({"tile_area": area} if area is not None else {}),
        "occupancy": least.fraction,
        "blocks_per_sm": least.blocks_per_sm,
        "occupancy_limit": least.limit.value,
        "block_threads": max(launch.n_threads for launch in launches),
        "dynamic_shared_bytes": max(launch.shared_bytes for launch in launches),
        "workspace_bytes": max(sum(space.n_bytes for space in plan.workspaces) for plan in plans),
        "n_launches": len(plans[0].launches),
    }


def n_stages(constants: Mapping[str, int], copy_kind: str) -> int:
    """Depth of the pipeline: the constant `STAGES` where the file declares one, else what the copies need at the least.

    Args:
        constants: The file's integer constants.
        copy_kind: How tiles reach shared memory, in the words of `resources.COPY_KINDS`.
    """
    declared = constants.get("STAGES", 0)
    if declared >= 1:
        return declared
    return 2 if copy_kind in _DOUBLE_BUFFERED else 1


def tile_area(kernel: Kernel, problem: Problem, plans: Sequence[Plan]) -> int | None:
    """Elements of the output that one block makes.

    The product of the constants `BM` and `BN` where the file declares both; else the elements of one output matrix over the
    blocks along x and y of the first launch, at the case with the largest output. None for a problem without outputs.
    """
    rows, columns = (kernel.constants.get(name, 0) for name in ("BM", "BN"))
    if rows >= 1 and columns >= 1:
        return rows * columns
    areas: list[tuple[int, int]] = []
    for plan in plans:
        instance = Instance(problem, plan.sizes, kernel.launch.layout)
        outputs = instance.operands(Role.OUT)
        if outputs and plan.launches:
            n_elements = math.prod(instance.shape(outputs[0])[-2:])
            blocks = plan.launches[0].grid[0] * plan.launches[0].grid[1]
            areas.append((n_elements, max(1, n_elements // blocks)))
    return max(areas)[1] if areas else None
