"""Takes old builds out of a build cache, by age and by size, while runs may be using it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from evo_l2.build_cache import FACTS

__all__ = ["IN_USE_S", "Pruned", "prune"]

IN_USE_S = 6 * 3600.0
"""A build that was used in the last so many seconds stays, whatever its size: a run may be about to load it."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was taken out, or would be."""

    n_removed: int
    n_removed_bytes: int
    n_kept: int
    n_kept_bytes: int


@dataclass(frozen=True, slots=True)
class _Entry:
    place: Path
    used: float
    """When it was last taken from the cache, in seconds since the epoch."""
    n_bytes: int


def prune(folder: Path, *, older_than_s: float, most_bytes: int, dry_run: bool = False) -> Pruned:
    """Removes builds that were not used for long, then the longest unused until the rest is small enough.

    A build that is wanted again is made again. What another process removes at the same time is passed over.

    Args:
        folder: The cache's folder; one that does not exist is empty.
        older_than_s: Builds not used for so many seconds go; those of the last `IN_USE_S` stay in any case.
        most_bytes: What is left takes no more, but for builds of the last `IN_USE_S`.
        dry_run: Whether it is only said what would go.

    Raises:
        OSError: The folder cannot be read.
    """
    moment = time.time()
    entries = sorted(_entries(folder), key=lambda entry: (entry.used, entry.place.name))
    n_bytes = sum(entry.n_bytes for entry in entries)
    removed = removed_bytes = 0
    for entry in entries:
        # A clock that was set back makes builds look as if they were used in the time to come: they stay.
        age = moment - entry.used
        if age <= IN_USE_S or not (age > older_than_s or n_bytes - removed_bytes > most_bytes):
            continue
        if dry_run or _remove(folder, entry):
            removed += 1
            removed_bytes += entry.n_bytes
    return Pruned(removed, removed_bytes, len(entries) - removed, n_bytes - removed_bytes)


def _entries(folder: Path) -> list[_Entry]:
    found = []
    for parent in folder.glob("??"):
        for place in parent.iterdir() if parent.is_dir() else ():
            with contextlib.suppress(OSError):
                used = (place / FACTS).stat().st_mtime
                found.append(_Entry(place, used, sum(path.stat().st_size for path in place.iterdir())))
    return found


def _remove(folder: Path, entry: _Entry) -> bool:
    """Takes one build out, in one step for whoever looks it up; one that was used meanwhile goes back."""
    try:
        aside = Path(tempfile.mkdtemp(prefix=".build-", dir=folder))
    except OSError:
        return False
    try:
        moved = aside / entry.place.name
        os.rename(entry.place, moved)
        if (moved / FACTS).stat().st_mtime != entry.used:
            os.rename(moved, entry.place)
            return False
    except OSError:
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True
