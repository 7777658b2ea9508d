"""The archive of evolved kernels: MAP-Elites grid, durable store, mining and export.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archive.grid import Grid
    from archive.keeping.checking import check
    from archive.keeping.collecting import collect
    from archive.keeping.content import content_digest
    from archive.keeping.leases import Lease, LeaseLostError, Work, WorkQueue
    from archive.keeping.merging import merge
    from archive.memory import MemoryArchive
    from archive.read_only import open_to_read
    from archive.store import RunHandle, RunInfo, Store
    from archive.training_data import export_training_data

__all__ = [
    "Grid",
    "Lease",
    "LeaseLostError",
    "MemoryArchive",
    "RunHandle",
    "RunInfo",
    "Store",
    "Work",
    "WorkQueue",
    "check",
    "collect",
    "content_digest",
    "export_training_data",
    "merge",
    "open_to_read",
]

_HOMES = {
    "Grid": "archive.grid",
    "Lease": "archive.keeping.leases",
    "LeaseLostError": "archive.keeping.leases",
    "MemoryArchive": "archive.memory",
    "RunHandle": "archive.store",
    "RunInfo": "archive.store",
    "Store": "archive.store",
    "export_training_data": "archive.training_data",
    "Work": "archive.keeping.leases",
    "WorkQueue": "archive.keeping.leases",
    "check": "archive.keeping.checking",
    "collect": "archive.keeping.collecting",
    "content_digest": "archive.keeping.content",
    "merge": "archive.keeping.merging",
    "open_to_read": "archive.read_only",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
