"""Named sets of GEMM shapes, as (M, N, K, BATCH)."""

from __future__ import annotations

from itertools import product

from evo_l2.errors import ConfigurationError

__all__ = ["SHAPE_SETS", "shape_set"]

Shapes = tuple[tuple[int, int, int, int], ...]

_GRID_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)

SHAPE_SETS: dict[str, Shapes] = {
    "grid-1000": tuple((m, n, k, 1) for m, n, k in product(_GRID_SIZES, repeat=3)),
    "ten": (
        *((size, size, size, 1) for size in (256, 512, 1024, 2048, 4096, 8192)),
        (64, 4096, 4096, 1),
        (4096, 128, 4096, 1),
        (1024, 1024, 16384, 1),
        (8192, 64, 8192, 1),
    ),
    "small": ((64, 64, 64, 1), (128, 128, 128, 1), (256, 256, 256, 1)),
    "square-cpu": ((256, 256, 256, 1), (512, 512, 512, 1), (1024, 1024, 1024, 1)),
    "mixed-cpu": ((512, 512, 512, 1), (64, 512, 1024, 1), (1024, 64, 256, 1), (96, 80, 112, 4)),
}
"""`grid-1000` is the grid of CUDA-L2 (arXiv 2512.02551): for benches, never one objective. `ten` is what our own benches on a
card publish: cubes, and shapes with one long or one short side."""


def shape_set(name: str) -> Shapes:
    """The shapes of a named set.

    Raises:
        ConfigurationError: There is no such set.
    """
    if name not in SHAPE_SETS:
        raise ConfigurationError("no such set of shapes", expected=f"one of {', '.join(SHAPE_SETS)}", found=repr(name))
    return SHAPE_SETS[name]
