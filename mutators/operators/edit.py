"""Edit: the model changes a few lines of the parent by search/replace blocks."""

from __future__ import annotations

from evo_l2.contracts import Outcome
from evo_l2.kernel import Kernel
from mutators.edits import apply_edits, parse_edits
from mutators.operators.asking import Asking, Offspring
from mutators.prompts import Template
from mutators.replies import is_unfinished_thought, kernel_from, without_thoughts

__all__ = ["TEMPLATE", "Edit"]

TEMPLATE = Template(
    task="Change a few lines of the kernel so that it runs faster and still gives the right result.",
    form="""\
Reply with one or more blocks of this form, and nothing else. The lines under SEARCH are copied from the kernel, exactly; the
lines under ======= take their place. For example:
<<<<<<< SEARCH
    total = total + step;
=======
    total += step;
>>>>>>> REPLACE""",
    slice_note="Lines that are not shown stay as they are; change only lines that you see.",
)
_NO_BLOCK = "The reply has no SEARCH/REPLACE block. Write '<<<<<<< SEARCH', the old lines, '=======', the new lines, \
'>>>>>>> REPLACE'."
_THINKING = "The reply was cut off while it was still thinking. Think less, then write the blocks."


class Edit(Asking):
    """Search/replace blocks, all of them or none; see `mutators.edits`."""

    template = TEMPLATE
    reply_tokens = 512

    @property
    def name(self) -> str:
        """`edit`."""
        return "edit"

    def read(self, text: str, parent: Kernel) -> Offspring:
        """The kernel that the reply edits the parent into."""
        if is_unfinished_thought(text):
            return Offspring(None, Outcome.NO_KERNEL, _THINKING)
        parsed = parse_edits(without_thoughts(text))
        if parsed.fault is not None:
            return Offspring(None, Outcome.EDIT_FAILED, parsed.fault)
        if not parsed.replacements:
            return Offspring(None, Outcome.NO_KERNEL, _NO_BLOCK)
        edited = apply_edits(parent.source, parsed.replacements)
        if edited.source is None:
            return Offspring(None, Outcome.EDIT_FAILED, edited.fault)
        made = kernel_from(edited.source, parent.target)
        if made.kernel is None:
            return Offspring(None, Outcome.EDIT_FAILED, made.fault)
        return Offspring(made.kernel)
