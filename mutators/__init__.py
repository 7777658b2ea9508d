"""Variation: operators that make offspring of parents, and the generators that write for them.

Generators live in `mutators.generators`; nothing here imports a model's packages.
"""

from __future__ import annotations

from mutators.operators import Edit, Parametric, Rewrite

__all__ = ["Edit", "Parametric", "Rewrite"]
