"""Rewrite: the model writes the whole kernel anew."""

from __future__ import annotations

from evo_l2.contracts import Outcome
from evo_l2.kernel import Kernel
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


class Rewrite(Asking):
    """A whole kernel in one code block; see `mutators.replies`."""

    template = TEMPLATE
    reply_tokens = 1024

    @property
    def name(self) -> str:
        """`rewrite`."""
        return "rewrite"

    def read(self, text: str, parent: Kernel) -> Offspring:
        """The kernel that the reply holds."""
        made = read_kernel(text, parent)
        if made.kernel is None:
            return Offspring(None, Outcome.NO_KERNEL, made.fault)
        return Offspring(made.kernel)
