"""Rewrite: the model writes the whole kernel anew."""

from __future__ import annotations

from collections.abc import Sequence

from evo_l2.contracts import Generator, Outcome, Proposal, Request
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem
from mutators.operators.asking import Asking, Offspring
from mutators.prompts import Template
from mutators.replies import read_kernel

__all__ = ["TEMPLATE", "Rewrite"]

TEMPLATE = Template(
    task="Write a faster kernel for the same task. You may change everything but the result.",
    form="""\
Reply with the whole kernel in one code block, and nothing else. Its first lines declare layout and launch. The form, with the
work left out:
```c
//! layout nn
//! launch scale(X: in, Y: out, N)
void scale(const float *X, float *Y, int N) { for (int i = 0; i < N; i++) Y[i] = 2 * X[i]; }
```""",
    slice_note="Lines that are not shown have to be written too.",
)


class Rewrite:
    """A whole kernel in one code block; see `mutators.replies`.

    Args:
        generator: The text generator.
        max_tokens: Longest reply.
        prompt_tokens: Longest prompt, its chat template included.

    Raises:
        ConfigurationError: A budget is not positive.
    """

    def __init__(self, generator: Generator, max_tokens: int = 1024, *, prompt_tokens: int = 1200) -> None:
        self._asking = Asking(generator, TEMPLATE, max_tokens, prompt_tokens)

    @property
    def name(self) -> str:
        """`rewrite`."""
        return "rewrite"

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
    made = read_kernel(text, parent)
    if made.kernel is None:
        return Offspring(None, Outcome.NO_KERNEL, made.fault)
    return Offspring(made.kernel)
