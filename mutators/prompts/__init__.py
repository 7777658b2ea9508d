"""What a model is told: the problem's rules, all that is known of the parents, their source, and one operator's task."""

from __future__ import annotations

from mutators.prompts.assembly import TOKENS_PER_MESSAGE, Template, render, render_opening
from mutators.prompts.facts import facts, without_paths
from mutators.prompts.slices import Slicer

__all__ = ["TOKENS_PER_MESSAGE", "Slicer", "Template", "facts", "render", "render_opening", "without_paths"]
