"""Variation operators, one module each: what makes offspring of parents."""

from __future__ import annotations

from mutators.operators.edit import Edit
from mutators.operators.parametric import Parametric
from mutators.operators.rewrite import Rewrite

__all__ = ["Edit", "Parametric", "Rewrite"]
