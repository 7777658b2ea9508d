"""The seam for problems: what is computed, on which sizes, how its results are checked, how its kernels are measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evo_l2.draws import Draws
from evo_l2.launch import Role
from evo_l2.measures import MeasuresSchema

__all__ = ["Arrays", "Defect", "Gate", "Instance", "Operand", "Problem", "Work"]

Arrays = Mapping[str, NDArray[np.generic]]
"""Operands by name, all of one library: numpy, or cupy (see `evo_l2.draws`)."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One array that a kernel reads or writes, in row-major order."""

    name: str
    role: Role
    """`IN` or `OUT`."""
    dtype: str
    """A numpy name, for instance `float16`."""
    shapes: Mapping[str, tuple[str, ...]]
    """For each layout, the size symbol of every dimension, outermost first."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one call has to do at the least; the roofline follows from it."""

    n_flops: int
    n_bytes: int
    """Every input read once and every output written once, in bytes."""


@dataclass(frozen=True, slots=True)
class Defect:
    """Why one result is wrong."""

    message: str
    """Plain words: what differs, by how much, and where the first wrong element stands."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem at one of its cases, in one of its layouts."""

    problem: Problem
    sizes: tuple[int, ...]
    layout: str

    @property
    def names(self) -> dict[str, int]:
        """Size symbols and their values."""
        return dict(zip(self.problem.size_symbols, self.sizes, strict=True))

    def shape(self, operand: Operand) -> tuple[int, ...]:
        """The operand's shape here."""
        names = self.names
        return tuple(names[symbol] for symbol in operand.shapes[self.layout])

    @property
    def n_values(self) -> int:
        """Values of all operands of one buffer set."""
        return sum(math.prod(self.shape(operand)) for operand in self.problem.operands)

    @property
    def n_bytes(self) -> int:
        """Bytes of one buffer set."""
        return sum(math.prod(self.shape(o)) * np.dtype(o.dtype).itemsize for o in self.problem.operands)

    def operands(self, role: Role) -> tuple[Operand, ...]:
        """The problem's operands of one role, in order."""
        return tuple(operand for operand in self.problem.operands if operand.role is role)


class Gate(Protocol):
    """One question put to a kernel's results: inputs that no right kernel can fail, and a check of what came out."""

    @property
    def name(self) -> str:
        """Short and stable, for instance `exact-integers`; stored with every verdict."""
        ...

    @property
    def why(self) -> str:
        """One sentence: what passes unseen without this gate."""
        ...

    def draw(self, instance: Instance, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """Fresh inputs, one C-contiguous array of `draws.xp` for each `IN` operand."""
        ...

    def check(self, instance: Instance, inputs: Arrays, outputs: Arrays) -> Defect | None:
        """None when the outputs are right for the inputs."""
        ...


class Problem(Protocol):
    """A computation with fixed cases. Everything that is particular to it lives behind this protocol."""

    @property
    def name(self) -> str:
        """For instance `hgemm`."""
        ...

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits over all that defines the problem, its cases included; verdicts are kept per key."""
        ...

    @property
    def title(self) -> str:
        """One line for people and prompts, for instance `HGEMM 512x512x512, fp32 accumulation, nn`."""
        ...

    @property
    def definition(self) -> Mapping[str, object]:
        """Plain data (JSON) from which the problem can be made again; stored with every run."""
        ...

    @property
    def size_symbols(self) -> tuple[str, ...]:
        """For instance `("M", "N", "K", "BATCH")`; a launch may pass any of them."""
        ...

    @property
    def cases(self) -> tuple[tuple[int, ...], ...]:
        """Sizes, one tuple a case, in the order of the symbols. The objective is the geometric mean over them."""
        ...

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts that a kernel may declare."""
        ...

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs and outputs."""
        ...

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The checks of results, cheapest and most telling first."""
        ...

    @property
    def matrix_classes(self) -> frozenset[tuple[str, str]] | None:
        """Matrix instructions that a kernel may use, as (format of the inputs, format of the sums); None: any.

        Formats are `fp16`, `bf16`, `tf32`, `fp32`, `fp64`, `integer`, `narrow` (below 16 bits), `unknown`.
        """
        ...

    def contract(self, target: str) -> str:
        """What a kernel's author (person or model) has to know, in a few lines of plain text."""
        ...

    def measures(self, target: str) -> MeasuresSchema:
        """The axes for one target; an axis's name is a key of `BuildReport.resources`.

        Raises:
            ConfigurationError: The problem has no measures for this target.
        """
        ...

    def baseline(self, target: str, layout: str) -> str:
        """The source that a kernel is timed against, in the launch grammar; trusted code, linked with the vendor's library.

        Raises:
            ConfigurationError: The problem has no baseline for this target.
        """
        ...

    def work(self, sizes: tuple[int, ...]) -> Work:
        """The least work of one call."""
        ...

    def draw_timed(self, instance: Instance, n_calls: int, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """Inputs for several timed calls, stacked along a new first axis; every call's are drawn independently."""
        ...

    def draw_again(self, instance: Instance, before: Arrays, kept: str, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """Inputs that keep one operand of an earlier call, and whose others differ; as sound together as that call's were.

        Args:
            instance: Sizes and layout.
            before: Inputs of one call, as `draw_timed` made them.
            kept: Name of the operand that stays.
            draws: Where chance comes from.
        """
        ...

    def spot_check(self, instance: Instance, inputs: Arrays, outputs: Arrays, draws: Draws) -> Defect | None:
        """A cheap check of the outputs of timed calls that no wrong result passes but by rare chance.

        Args:
            instance: Sizes and layout of one call.
            inputs: Inputs by name; those of several calls come stacked along a new first axis.
            outputs: Outputs by name, stacked alike.
            draws: Where the check draws from; of the library of the arrays.
        """
        ...
