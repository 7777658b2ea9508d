"""Files of a library that are written by hand, with a few `@NAME@` to be filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

__all__ = ["filled"]

_MARK = re.compile(r"@([A-Z][A-Z_]*)@")


def filled(name: str, values: Mapping[str, str] | None = None) -> str:
    """A template with every `@NAME@` replaced.

    Args:
        name: Path below `templates`, for instance `cuda/evo_hgemm.c`.
        values: What stands for each name.

    Raises:
        KeyError: A name has no value.
    """
    text = resources.files("experiments.library").joinpath("templates", *f"{name}.in".split("/")).read_text(encoding="utf-8")
    return _MARK.sub(lambda match: (values or {})[match.group(1)], text)
