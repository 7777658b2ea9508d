"""Parametric: a local search over a kernel's declared tunables, without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evo_l2.contracts import Outcome, Proposal, Request
from evo_l2.errors import KernelError
from evo_l2.kernel import Kernel
from evo_l2.launch import Tunable
from evo_l2.problem import Problem

__all__ = ["Parametric"]

_SHARE_ONE = 0.6
_SHARE_TWO = 0.3
"""Shares of the moves that step one tunable and two; the rest draws all of them anew."""
_SHARE_FAR = 0.2
"""Share of the steps that go two values far: a way past a value that does not fit with the others."""


class Parametric:
    """Steps one tunable to a neighbouring value of its domain, or two, or draws all anew; never gives the parent back."""

    @property
    def name(self) -> str:
        """`parametric`."""
        return "parametric"

    @property
    def n_parents(self) -> int:
        """One."""
        return 1

    @property
    def uses_model(self) -> bool:
        """It does not."""
        return False

    @property
    def most_tokens(self) -> int:
        """None."""
        return 0

    def takes(self, kernel: Kernel) -> bool:
        """Whether the kernel has a tunable that can move."""
        try:
            return bool(_movable(kernel))
        except KernelError:
            return False

    def propose(self, problem: Problem, requests: Sequence[Request]) -> tuple[Proposal, ...]:
        """A parent without a tunable that can move gives `NO_KERNEL`."""
        return tuple(_propose(request) for request in requests)


def _propose(request: Request) -> Proposal:
    parent = request.parents[0].kernel
    try:
        movable = _movable(parent)
    except KernelError as error:
        return Proposal(request, None, Outcome.NO_KERNEL, f"The parent's tunables cannot be read: {error}.")
    if not movable:
        text = "The parent declares no tunable with more than one value, as in '#define BM 64 //? 32 64 128'."
        return Proposal(request, None, Outcome.NO_KERNEL, text)
    return Proposal(request, _moved(parent, movable, np.random.default_rng(request.seed)))


def _movable(kernel: Kernel) -> list[Tunable]:
    return [tunable for tunable in kernel.tunables if len(tunable.domain) > 1]


def _moved(parent: Kernel, movable: list[Tunable], rng: np.random.Generator) -> Kernel:
    draw = rng.random()
    if draw >= _SHARE_ONE + _SHARE_TWO:
        values = {tunable.name: int(rng.choice(tunable.domain)) for tunable in movable}
        if any(values[tunable.name] != tunable.value for tunable in movable):
            return parent.with_tunables(values)
    n_steps = 2 if _SHARE_ONE <= draw < _SHARE_ONE + _SHARE_TWO else 1
    chosen = rng.choice(len(movable), size=min(n_steps, len(movable)), replace=False)
    return parent.with_tunables({movable[i].name: _step(movable[i], rng) for i in chosen})


def _step(tunable: Tunable, rng: np.random.Generator) -> int:
    """Another value of the domain, one or two places up or down; either direction alike where both are open."""
    at = tunable.domain.index(tunable.value)
    n_above = len(tunable.domain) - 1 - at
    up = n_above > 0 and (at == 0 or bool(rng.random() < 0.5))
    far = 2 if rng.random() < _SHARE_FAR else 1
    return tunable.domain[at + min(far, n_above) if up else at - min(far, at)]
