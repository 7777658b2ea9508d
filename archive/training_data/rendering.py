"""What the export asks of whoever renders prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evo_l2.contracts import Elite, Message
from evo_l2.kernel import Kernel

__all__ = ["Rendered", "Renderer"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt and the reply that an operator would have read as the kernel."""

    form: str
    """How the reply says it: `edit` (SEARCH/REPLACE blocks) or `rewrite` (the whole kernel)."""
    prompt: tuple[Message, ...]
    completion: str


class Renderer(Protocol):
    """Prompts and replies, rendered as the variation operators would have. A refusal is a text that says why."""

    def step(self, definition: str, parents: Sequence[Elite], child: Kernel, form: str | None) -> Rendered | str:
        """A child of parents.

        Args:
            definition: The problem's definition, as JSON.
            parents: With all that was measured of them.
            child: What the reply gives.
            form: `edit`, `rewrite`, or None for the shorter one.
        """
        ...

    def ask(self, definition: str, parents: Sequence[Elite], form: str) -> tuple[Message, ...] | str:
        """Only the prompt of such a step."""
        ...

    def opening(self, definition: str, kernel: Kernel) -> Rendered | str:
        """A kernel without parents."""
        ...

    def contrast(self, definition: str, exemplars: Sequence[Elite], kernel: Kernel) -> Rendered | str:
        """A kernel asked for beside several others and their times."""
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, an estimate from above."""
        ...
