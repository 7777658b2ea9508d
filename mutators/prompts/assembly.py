"""Puts a prompt together within a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evo_l2.contracts import Elite, Message, Request
from evo_l2.errors import ConfigurationError
from evo_l2.problem import Problem
from mutators.prompts.facts import clip, facts, without_paths
from mutators.prompts.slices import Slicer

__all__ = ["TOKENS_PER_MESSAGE", "Template", "render", "render_opening"]

TOKENS_PER_MESSAGE = 16
"""Set aside for what a chat template puts around a message."""
_LONGEST_FEEDBACK, _SHORTEST_FEEDBACK, _FEEDBACK_STEP = 360, 60, 20
"""Characters of one failed attempt; the latest is shortened by so many at a time until it fits."""
_SOURCE_SHARE = 6
"""One token in so many is for the parents' sources before it is for what can be left out of the measurements."""
_LANGUAGES = {"cpu": "C", "cuda": "CUDA C++"}


@dataclass(frozen=True, slots=True)
class Template:
    """What one operator says to the model."""

    task: str
    """What to do, in a few sentences."""
    form: str
    """What the reply has to look like, with one tiny example."""
    slice_note: str
    """What to make of lines that are not shown."""


def render(
    problem: Problem, request: Request, template: Template, count_tokens: Callable[[str], int], prompt_tokens: int
) -> tuple[Message, ...]:
    """The messages for one offspring: of at most `prompt_tokens` tokens, those of the chat template included.

    Never cut: the problem's rules, the parents' speed-ups and measures, the operator's task. All else that was measured is
    told where it leaves room for some source. Failed attempts get up to a quarter of what is left, the latest first, which
    may be shortened, older ones whole or not at all; the parents' sources share the rest, sliced.

    Raises:
        ConfigurationError: What is never cut does not fit.
    """
    return _Prompt(problem, request, template, count_tokens, prompt_tokens).messages()


def render_opening(problem: Problem, target: str, template: Template) -> tuple[Message, ...]:
    """The messages for a kernel without parents: the problem's rules and the task, which is never cut."""
    return Message("system", _system(problem, target)), Message("user", f"{template.task}\n\n{template.form}")


class _Prompt:
    """One prompt in the making."""

    def __init__(
        self, problem: Problem, request: Request, template: Template, count_tokens: Callable[[str], int], prompt_tokens: int
    ) -> None:
        self._parents = request.parents
        self._facts = [facts(problem, parent) for parent in request.parents]
        self._template = template
        self._count = count_tokens
        self._budget = prompt_tokens
        self._system = Message("system", _system(problem, request.parents[0].kernel.target))
        self._room = prompt_tokens - count_tokens(self._system.content) - 2 * TOKENS_PER_MESSAGE
        if self._n_fixed() > self._room - prompt_tokens // _SOURCE_SHARE:
            self._facts = [facts(problem, parent, brief=True) for parent in request.parents]
        self._feedback = self._fitting_feedback(request.feedback)
        draws = request.seed.generate_state(1 + len(request.parents))[1:]
        self._slicers = [Slicer(e.kernel.source, int(draw)) for e, draw in zip(request.parents, draws, strict=True)]

    def messages(self) -> tuple[Message, ...]:
        """The system message and the user's."""
        slices: list[str] = ["" for _ in self._parents]
        n_shown = [0 for _ in self._parents]
        spare = self._room - self._count(self._user(slices, n_shown, self._feedback))
        for i, slicer in enumerate(self._slicers):
            share = self._room - spare + spare * (i + 1) // len(self._slicers)

            def fits(text: str, i: int = i, share: int = share) -> bool:
                tried = [*slices[:i], text, *slices[i + 1 :]]
                shown = [*n_shown[:i], 1, *n_shown[i + 1 :]]
                return self._count(self._user(tried, shown, self._feedback)) <= share

            slices[i], n_shown[i] = slicer.cut(fits)
        return self._system, Message("user", self._user(slices, n_shown, self._feedback))

    def _n_fixed(self, feedback: Sequence[str] = ()) -> int:
        """Tokens of the user's message without any source."""
        return self._count(self._user(["" for _ in self._parents], [0 for _ in self._parents], feedback))

    def _fitting_feedback(self, feedback: tuple[str, ...]) -> list[str]:
        """The latest failed attempts that fit in a quarter of the room, oldest first."""
        n_fixed = self._n_fixed()
        if n_fixed > self._room:
            needed = self._budget + n_fixed - self._room
            raise ConfigurationError(
                "the prompt does not fit",
                expected=f"a budget of {needed} prompt tokens or more for this problem",
                found=str(self._budget),
                hint=f"--set generator.prompt_tokens={needed + 400}, so that the kernel's source has room too",
            )
        most = n_fixed + (self._room - n_fixed) // 4
        chosen: list[str] = []
        for line in reversed(feedback):
            text = without_paths(line)
            # The search tells a failure once: a latest one that is left out would never be told.
            shortest = _LONGEST_FEEDBACK if chosen else _SHORTEST_FEEDBACK
            for longest in range(_LONGEST_FEEDBACK, shortest - 1, -_FEEDBACK_STEP):
                tried = [clip(text, longest), *chosen]
                if self._n_fixed(tried) <= most:
                    chosen = tried
                    break
            else:
                break
        return chosen

    def _user(self, slices: list[str], n_shown: list[int], feedback: Sequence[str]) -> str:
        parts: list[str] = []
        for i, parent in enumerate(self._parents):
            parts += self._parent(parent, i, slices[i], n_shown[i])
        if feedback:
            said = "\n".join(f"- {line}" for line in feedback)
            parts.append(f"Earlier attempts to improve it failed; do not repeat them:\n{said}")
        parts += [self._template.task, self._template.form]
        return "\n\n".join(parts)

    def _parent(self, parent: Elite, i: int, text: str, n_shown: int) -> list[str]:
        name = "the kernel" if len(self._parents) == 1 else f"kernel {i + 1}"
        parts = [f"Measured of {name}:\n{self._facts[i]}"]
        if n_shown:
            whole = text == parent.kernel.source.rstrip("\n")
            head = f"The source of {name}:" if whole else f"The source of {name}, in part. {self._template.slice_note}"
            parts.append(f"{head}\n```c\n{text}\n```")
        return parts


def _system(problem: Problem, target: str) -> str:
    language = _LANGUAGES.get(target, target)
    return f"You make {language} kernels faster.\nTask: {problem.title}\n\n{problem.contract(target)}"
