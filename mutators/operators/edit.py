"""Edit: the model changes a few lines of the parent by search/replace blocks."""

from __future__ import annotations

from collections.abc import Sequence

from evo_l2.contracts import Generator, Outcome, Proposal, Request
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem
from mutators.edits import apply_edits, parse_edits
from mutators.operators.asking import Asking, Offspring
from mutators.prompts import Template
from mutators.replies import kernel_from, without_thoughts

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


class Edit:
    """Search/replace blocks, all of them or none; see `mutators.edits`.

    Args:
        generator: The text generator.
        max_tokens: Longest reply.
        prompt_tokens: Longest prompt, its chat template included.

    Raises:
        ConfigurationError: A budget is not positive.
    """

    def __init__(self, generator: Generator, max_tokens: int = 512, *, prompt_tokens: int = 1200) -> None:
        self._asking = Asking(generator, TEMPLATE, max_tokens, prompt_tokens)

    @property
    def name(self) -> str:
        """`edit`."""
        return "edit"

    @property
    def n_parents(self) -> int:
        """One."""
        return 1

    @property
    def uses_model(self) -> bool:
        """It does."""
        return True

    @property
    def most_tokens(self) -> int:
        """The longest prompt and the longest reply together."""
        return self._asking.most_tokens

    def propose(self, problem: Problem, requests: Sequence[Request]) -> tuple[Proposal, ...]:
        """Asks once for all requests.

        Raises:
            ConfigurationError: The budget is too small for the problem's rules.
            ModelError: The generator cannot be used at all.
        """
        return self._asking.propose(problem, requests, _read)


def _read(text: str, parent: Kernel) -> Offspring:
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
