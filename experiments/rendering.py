"""Renders prompts and replies for training data as the variation operators do; handed to the archive's export."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from archive.training_data import Rendered
from evo_l2.contracts import Elite, Message, Request
from evo_l2.errors import ConfigurationError, EvoL2Error
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem
from evo_l2.problems.hgemm import Hgemm
from mutators.contrast import CONTRAST
from mutators.diffs import edits_between
from mutators.edits import parse_edits
from mutators.generators.estimate import estimate_tokens
from mutators.operators.edit import TEMPLATE as EDIT
from mutators.operators.rewrite import TEMPLATE as REWRITE
from mutators.prompts import Template, render, render_opening
from mutators.replies import read_kernel

__all__ = ["PromptRenderer", "problem_from"]

_OPENING = Template(task="Write a fast kernel for this task.", form=REWRITE.form, slice_note=REWRITE.slice_note)
_TEMPLATES = {"edit": EDIT, "rewrite": REWRITE}
_LONGEST_SHARE = 0.5
"""An edit that is longer than this share of the kernel is written as the whole kernel, where either will do."""


def problem_from(definition: str) -> Problem:
    """The problem that a definition (JSON) says.

    Raises:
        ConfigurationError: No problem of this version has that name.
    """
    data = json.loads(definition)
    if data.get("name") != "hgemm":
        raise ConfigurationError("no such problem", expected="hgemm", found=repr(data.get("name")))
    cases = tuple(tuple(int(size) for size in case) for case in data["cases"])
    return Hgemm(cases, data["accumulate"], tuple(data["layouts"]))


class PromptRenderer:
    """Every refusal is a few words about the kernel; see `archive.training_data.rendering.Renderer`.

    Args:
        prompt_tokens: Longest prompt, by `count_tokens`, for each kernel that it shows; longer sources are sliced.

    Raises:
        ConfigurationError: The budget is not positive.
    """

    def __init__(self, prompt_tokens: int) -> None:
        if prompt_tokens < 1:
            raise ConfigurationError("prompts have no tokens", expected="a positive number", found=str(prompt_tokens))
        self._prompt_tokens = prompt_tokens
        self._problems: dict[str, Problem] = {}
        self._prompts: dict[tuple[str, tuple[str, ...], str], tuple[Message, ...]] = {}

    def count_tokens(self, text: str) -> int:
        """Without a tokenizer: two bytes of UTF-8 a token."""
        return estimate_tokens(text)

    def _problem(self, definition: str) -> Problem:
        if definition not in self._problems:
            self._problems[definition] = problem_from(definition)
        return self._problems[definition]

    def ask(self, definition: str, parents: Sequence[Elite], form: str) -> tuple[Message, ...] | str:
        """The prompt of the operator of that name, without feedback."""
        return self._ask(definition, parents, _TEMPLATES[form], form)

    def _ask(self, definition: str, parents: Sequence[Elite], template: Template, name: str) -> tuple[Message, ...] | str:
        key = (definition, tuple(parent.kernel.digest for parent in parents), name)
        known = self._prompts.get(key)
        if known is not None:
            return known
        problem = self._problem(definition)
        if any(len(parent.cell) != len(problem.measures(parent.kernel.target).axes) for parent in parents):
            return "its parent was filed by other axes than the problem's"
        # The same parents are sliced alike, whatever is asked for and whenever.
        seed = np.random.SeedSequence(int(parents[0].kernel.digest[:16], 16))
        request = Request(0, name, tuple(parents), (), seed)
        budget = self._prompt_tokens * len(parents)
        prompt = render(problem, request, template, self.count_tokens, budget)
        self._prompts[key] = prompt
        return prompt

    def step(self, definition: str, parents: Sequence[Elite], child: Kernel, form: str | None) -> Rendered | str:
        """By edits where they are short, all their lines are shown, and they give the child; else as a whole."""
        if form != "rewrite" and len(parents) == 1:
            found = self._edit(definition, parents, child, short=form is None)
            if form == "edit" or isinstance(found, Rendered):
                return found
        elif form == "edit":
            return "an edit has one parent"
        text = fenced(child, parents[0].kernel)
        prompt = self.ask(definition, parents, "rewrite")
        if isinstance(prompt, str) or text is None:
            return prompt if isinstance(prompt, str) else "the kernel cannot be read back from a code block"
        return Rendered("rewrite", prompt, text)

    def _edit(self, definition: str, parents: Sequence[Elite], child: Kernel, *, short: bool) -> Rendered | str:
        old = parents[0].kernel.source
        text = edits_between(old, child.source)
        if text is None:
            return "no edits give the kernel"
        if short and len(text) > _LONGEST_SHARE * len(child.source):
            return "its edits are as long as the kernel"
        prompt = self.ask(definition, parents, "edit")
        if isinstance(prompt, str):
            return prompt
        shown = prompt[-1].content
        if not all(replacement.search in shown for replacement in parse_edits(text).replacements):
            return "its edits change lines that the prompt does not show"
        return Rendered("edit", prompt, text)

    def opening(self, definition: str, kernel: Kernel) -> Rendered | str:
        """The task alone, and the kernel as a whole."""
        text = fenced(kernel, None)
        if text is None:
            return "the kernel cannot be read back from a code block"
        return Rendered("rewrite", render_opening(self._problem(definition), kernel.target, _OPENING), text)

    def contrast(self, definition: str, exemplars: Sequence[Elite], kernel: Kernel) -> Rendered | str:
        """Several kernels with their times, and the kernel as a whole."""
        text = fenced(kernel, exemplars[0].kernel)
        if text is None:
            return "the kernel cannot be read back from a code block"
        try:
            prompt = self._ask(definition, exemplars, CONTRAST, "contrast")
        except EvoL2Error:
            return f"its exemplars do not fit in {self._prompt_tokens} tokens each"
        return prompt if isinstance(prompt, str) else Rendered("rewrite", prompt, text)


def fenced(kernel: Kernel, parent: Kernel | None) -> str | None:
    """The kernel in a code block; None where what an operator reads there is another kernel."""
    text = f"```c\n{kernel.source.rstrip(chr(10))}\n```"
    read = read_kernel(text, parent if parent is not None else Kernel("", kernel.target)).kernel
    if read is None or read.source.strip("\n") != kernel.source.strip("\n"):
        return None
    return text
