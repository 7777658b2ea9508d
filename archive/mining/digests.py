"""Kernels by the first digits of their digest."""

from __future__ import annotations

from archive.store import Store
from evo_l2.errors import ConfigurationError

__all__ = ["resolve"]


def resolve(store: Store, prefix: str) -> str:
    """The digest that starts with a prefix.

    Raises:
        ConfigurationError: No kernel's digest does, or several do.
    """
    expected = "the first digits of one kernel's digest"
    if not prefix or not set(prefix) <= set("0123456789abcdef"):
        raise ConfigurationError("no such kernel", expected=expected, found=repr(prefix), hint="evo-l2 archive top")
    rows = store.read("SELECT digest FROM kernels WHERE digest >= ? AND digest < ? LIMIT 3", (prefix, prefix + "g"))
    if len(rows) != 1:
        found = f"{prefix}, which {'several start with' if rows else 'none starts with'}"
        raise ConfigurationError("no such kernel", expected=expected, found=found, hint="evo-l2 archive top")
    return str(rows[0][0])
