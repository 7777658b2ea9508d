"""The archive of evolved kernels: MAP-Elites grid, durable store, mining and export.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archive.checking import check
    from archive.collecting import collect
    from archive.content import content_digest
    from archive.grid import Grid
    from archive.leases import Lease, LeaseLostError, Work, WorkQueue
    from archive.memory import MemoryArchive
    from archive.merging import merge
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
    "Lease": "archive.leases",
    "LeaseLostError": "archive.leases",
    "MemoryArchive": "archive.memory",
    "RunHandle": "archive.store",
    "RunInfo": "archive.store",
    "Store": "archive.store",
    "export_training_data": "archive.training_data",
    "Work": "archive.leases",
    "WorkQueue": "archive.leases",
    "check": "archive.checking",
    "collect": "archive.collecting",
    "content_digest": "archive.content",
    "merge": "archive.merging",
    "open_to_read": "archive.read_only",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
