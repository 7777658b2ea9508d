"""One line of `evo-l2 doctor`: what was looked at, whether it is there, and how to get it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

__all__ = ["Finding", "group", "version"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    ok: bool | None
    """False when evo-l2 does not work without it; None for something optional that is missing."""
    detail: str
    mend: str | None = None
    """What to type where it is missing."""


def group(what: str, names: tuple[str, ...], mend: str, *, is_needed: bool = False) -> Finding:
    """Several distributions as one line; missing ones stand last."""
    versions = [(name, version(name)) for name in names]
    present = [f"{name} {version}" for name, version in versions if version is not None]
    missing = [f"no {name}" for name, version in versions if version is None]
    return Finding(what, True if not missing else False if is_needed else None, ", ".join(present + missing), mend)


def version(name: str) -> str | None:
    """Of an installed distribution; None where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
