"""Asks a generator once for all of an operator's requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


class Asking:
    """A generator with one template and its budgets.

    Args:
        generator: The text generator.
        template: What the operator says.
        max_tokens: Longest reply.
        prompt_tokens: Longest prompt, its chat template included.

    Raises:
        ConfigurationError: A budget is not positive.
    """

    def __init__(self, generator: Generator, template: Template, max_tokens: int, prompt_tokens: int) -> None:
        if max_tokens < 1 or prompt_tokens < 1:
            found = f"max_tokens={max_tokens}, prompt_tokens={prompt_tokens}"
            raise ConfigurationError("the operator has no tokens", expected="positive numbers", found=found)
        self._generator = generator
        self._template = template
        self._max_tokens = max_tokens
        self._prompt_tokens = prompt_tokens

    @property
    def most_tokens(self) -> int:
        """The longest prompt and the longest reply together."""
        return self._prompt_tokens + self._max_tokens

    def propose(
        self, problem: Problem, requests: Sequence[Request], read: Callable[[str, Kernel], Offspring]
    ) -> tuple[Proposal, ...]:
        """One proposal for each request; `read` makes an offspring of a reply's text and the first parent.

        Raises:
            ConfigurationError: The budget is too small for the problem's rules.
            ModelError: The generator cannot be used at all, or does not answer every prompt.
        """
        if not requests:
            return ()
        count = self._generator.count_tokens
        prompts = [render(problem, request, self._template, count, self._prompt_tokens) for request in requests]
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
                made = read(reply.text, request.parents[0].kernel)
            proposals.append(Proposal(request, made.kernel, made.failure, made.message, (call,)))
        return tuple(proposals)
