"""The task of a contrastive prompt: several kernels with their times, and one that is to be faster than all of them."""

from __future__ import annotations

from mutators.operators.rewrite import TEMPLATE as REWRITE
from mutators.prompts.assembly import Template

__all__ = ["CONTRAST"]

CONTRAST = Template(
    task="Compare these kernels and their times. Then write one for the same task that is faster than all of them.",
    form=REWRITE.form,
    slice_note=REWRITE.slice_note,
)
