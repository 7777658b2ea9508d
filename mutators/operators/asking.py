"""What the operators that ask a model share: one call for all requests, one proposal for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from evo_l2.contracts import Generator, ModelCall, Outcome, Proposal, Request
from evo_l2.errors import ConfigurationError, ModelError
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem
from mutators.prompts import Template, render

__all__ = ["Asking", "Offspring", "call_seed"]


@dataclass(frozen=True, slots=True)
class Offspring:
    """What an operator makes of a reply: a kernel, or a failure and its message."""

    kernel: Kernel | None
    failure: Outcome | None = None
    message: str | None = None


def call_seed(request: Request) -> int:
    """The generator's seed for a request: below 2**31, which every server takes."""
    return int(request.seed.generate_state(1)[0]) >> 1


class Asking(ABC):
    """A one-parent operator that asks a generator; a subclass says what to ask and how to read the replies.

    Args:
        generator: The text generator.
        max_tokens: Longest reply; the operator's own default when left out.
        prompt_tokens: Longest prompt, its chat template included.

    Raises:
        ConfigurationError: A budget is not positive.
    """

    template: ClassVar[Template]
    """What the operator says."""
    reply_tokens: ClassVar[int]
    """Longest reply when nothing else is asked for."""

    def __init__(self, generator: Generator, max_tokens: int | None = None, *, prompt_tokens: int = 1200) -> None:
        max_tokens = self.reply_tokens if max_tokens is None else max_tokens
        if max_tokens < 1 or prompt_tokens < 1:
            found = f"max_tokens={max_tokens}, prompt_tokens={prompt_tokens}"
            raise ConfigurationError("the operator has no tokens", expected="positive numbers", found=found)
        self._generator = generator
        self._max_tokens = max_tokens
        self._prompt_tokens = prompt_tokens

    @property
    @abstractmethod
    def name(self) -> str:
        """See `evo_l2.contracts.Mutator`."""

    @abstractmethod
    def read(self, text: str, parent: Kernel) -> Offspring:
        """What a reply's text makes of the parent."""

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
        return self._prompt_tokens + self._max_tokens

    def takes(self, kernel: Kernel) -> bool:
        """Any kernel will do."""
        return True

    def propose(self, problem: Problem, requests: Sequence[Request]) -> tuple[Proposal, ...]:
        """Asks once for all requests.

        Raises:
            ConfigurationError: The budget is too small for the problem's rules.
            ModelError: The generator cannot be used at all, or does not answer every prompt.
        """
        if not requests:
            return ()
        count = self._generator.count_tokens
        prompts = [render(problem, request, self.template, count, self._prompt_tokens) for request in requests]
        seeds = [call_seed(request) for request in requests]
        replies = self._generator.generate(prompts, seeds, max_tokens=self._max_tokens)
        if len(replies) != len(requests):
            found = f"{len(replies)} replies"
            raise ModelError("the generator broke its contract", expected=f"{len(requests)} replies", found=found)
        proposals = []
        for request, prompt, seed, reply in zip(requests, prompts, seeds, replies, strict=True):
            call = ModelCall(self._generator.name, prompt, reply, seed, self._max_tokens)
            if reply.error is not None:
                made = Offspring(None, Outcome.GENERATOR_FAILED, reply.error)
            else:
                made = self.read(reply.text, request.parents[0].kernel)
            proposals.append(Proposal(request, made.kernel, made.failure, made.message, (call,)))
        return tuple(proposals)
