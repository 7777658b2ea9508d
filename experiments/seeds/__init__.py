"""The kernels that a search starts from: one folder for each target, one file for each idea and layout."""

from __future__ import annotations

from importlib import resources

from evo_l2.errors import ConfigurationError
from evo_l2.kernel import Kernel

__all__ = ["load_seeds", "seed_names"]

_SUFFIXES = {"cpu": ".c", "cuda": ".cu"}


def seed_names(target: str, layout: str) -> tuple[str, ...]:
    """Names of the seeds for one target and layout, sorted, for instance `("blocked_nn", "naive_nn", "vectorised_nn")`.

    Raises:
        ConfigurationError: There are none.
    """
    available = _available(target)
    names = tuple(name for name in available if name.endswith(f"_{layout}"))
    if not names:
        layouts = sorted({name.rpartition("_")[2] for name in available})
        expected = f"target cpu and one of its layouts ({', '.join(layouts)})" if layouts else "target cpu"
        raise ConfigurationError("there are no seeds", expected=expected, found=f"{target}, {layout}")
    return names


def load_seeds(target: str, layout: str) -> tuple[Kernel, ...]:
    """The seeds for one target and layout, in the order of `seed_names`.

    Raises:
        ConfigurationError: There are none.
    """
    folder = resources.files("experiments.seeds").joinpath(target)
    suffix = _SUFFIXES.get(target, "")
    return tuple(
        Kernel.from_bytes(folder.joinpath(name + suffix).read_bytes(), target) for name in seed_names(target, layout)
    )


def _available(target: str) -> list[str]:
    folder = resources.files("experiments.seeds").joinpath(target)
    if target not in _SUFFIXES or not folder.is_dir():
        return []
    suffix = _SUFFIXES[target]
    return sorted(file.name.removesuffix(suffix) for file in folder.iterdir() if file.name.endswith(suffix))
