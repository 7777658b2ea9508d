"""Names that people know the seeds of a run by."""

from __future__ import annotations

import contextlib
from pathlib import Path

from evo_l2.errors import KernelError
from evo_l2.kernel import Kernel
from experiments.config import RunConfig

__all__ = ["names_by_digest"]


def names_by_digest(config: RunConfig, *, of_files: bool = True) -> dict[str, str]:
    """Names of a run's seeds by digest: of the built-in ones, and of files that are still as they were.

    Args:
        config: The run's.
        of_files: Whether the files that it names are looked at; False for an archive of others.
    """
    from experiments.seeds import load_seeds, seed_names

    names: dict[str, str] = {}
    for layout in config.problem.layouts:
        pairs = zip(load_seeds(config.target, layout), seed_names(config.target, layout), strict=True)
        names.update((kernel.digest, name) for kernel, name in pairs)
    for word in config.seeds if of_files and config.seeds != "builtin" else ():
        path = Path(word)
        with contextlib.suppress(OSError):
            for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                with contextlib.suppress(OSError, KernelError):
                    names.setdefault(Kernel.from_file(file, config.target).digest, file.stem)
    return names
