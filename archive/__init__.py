"""The archive of evolved kernels: MAP-Elites grid, durable store, mining and export.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archive.grid import Grid
    from archive.memory import MemoryArchive
    from archive.store import RunHandle, RunInfo, Store
    from archive.training_data import export_training_data

__all__ = ["Grid", "MemoryArchive", "RunHandle", "RunInfo", "Store", "export_training_data"]

_HOMES = {
    "Grid": "archive.grid",
    "MemoryArchive": "archive.memory",
    "RunHandle": "archive.store",
    "RunInfo": "archive.store",
    "Store": "archive.store",
    "export_training_data": "archive.training_data",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
