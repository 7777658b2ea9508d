"""Where Python takes our four top-level packages from: another distribution may have one of the same name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import evo_l2

__all__ = ["foreign_packages", "home"]

_PACKAGES = ("evo_l2", "mutators", "archive", "experiments")


def home() -> Path:
    """The folder that all four should come from."""
    return Path(evo_l2.__file__).resolve().parent.parent


def foreign_packages() -> tuple[str, ...]:
    """Those that Python would take from elsewhere, as `NAME from FOLDER`; nothing is imported to find out."""
    foreign = []
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            foreign.append(f"{name} from nowhere")
        elif (folder := Path(spec.origin).resolve().parent.parent) != home():
            foreign.append(f"{name} from {folder}")
    return tuple(foreign)
