"""The kernels that a search starts from: one folder for each target, one file for each idea and layout."""

from __future__ import annotations

from importlib import resources

from evo_l2.errors import ConfigurationError
from evo_l2.kernel import SUFFIXES, Kernel

__all__ = ["load_seeds", "seed_names"]

_ARCHITECTURES = {"hopper": "sm_90a", "hopper_splitk": "sm_90a"}
"""Ideas that exist on one architecture alone."""
_ACCUMULATORS = {"mma_f16": "fp16"}
"""Ideas that are right in one class alone."""


def seed_names(
    target: str, layout: str, *, architecture: str | None = None, accumulate: str | None = None
) -> tuple[str, ...]:
    """Names of the seeds for one target and layout, sorted, for instance `("blocked_nn", "naive_nn", "vectorised_nn")`.

    Args:
        target: `cpu` or `cuda`.
        layout: `nn` or `nt`.
        architecture: Leaves out those that do not build for it, for instance `sm_80`; None leaves out nothing.
        accumulate: Leaves out those that cannot pass in this class, `fp32` or `fp16`; None leaves out nothing.

    Raises:
        ConfigurationError: There are none.
    """
    available = _available(target)
    names = tuple(name for name in available if name.endswith(f"_{layout}"))
    if not names:
        layouts = sorted({name.rpartition("_")[2] for name in available})
        expected = f"target {target} and one of its layouts ({', '.join(layouts)})" if layouts else "target cpu or cuda"
        raise ConfigurationError("there are no seeds", expected=expected, found=f"{target}, {layout}")
    return tuple(name for name in names if _fits(name.rpartition("_")[0], architecture, accumulate))


def load_seeds(
    target: str, layout: str, *, architecture: str | None = None, accumulate: str | None = None
) -> tuple[Kernel, ...]:
    """The seeds for one target and layout, in the order of `seed_names`, which says what the arguments mean.

    Raises:
        ConfigurationError: There are none.
    """
    names = seed_names(target, layout, architecture=architecture, accumulate=accumulate)
    folder, suffix = resources.files("experiments.seeds").joinpath(target), SUFFIXES[target]
    return tuple(Kernel.from_bytes(folder.joinpath(name + suffix).read_bytes(), target) for name in names)


def _fits(idea: str, architecture: str | None, accumulate: str | None) -> bool:
    return architecture in (None, _ARCHITECTURES.get(idea, architecture)) and accumulate in (
        None,
        _ACCUMULATORS.get(idea, accumulate),
    )


def _available(target: str) -> list[str]:
    folder = resources.files("experiments.seeds").joinpath(target)
    if target not in SUFFIXES or not folder.is_dir():
        return []
    suffix = SUFFIXES[target]
    return sorted(file.name.removesuffix(suffix) for file in folder.iterdir() if file.name.endswith(suffix))
