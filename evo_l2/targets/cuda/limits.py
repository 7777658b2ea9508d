"""What no card launches: bounds on a launch that are the same on every card, and the error for what passes them.

Source: CUDA C++ Programming Guide, *Technical Specifications per Compute Capability*; for clusters its section *Thread Block
Clusters* (eight blocks are portable; sixteen ask for an attribute that is not set here).
"""

from __future__ import annotations

from collections.abc import Mapping

from evo_l2.errors import KernelError
from evo_l2.expression import Expression

__all__ = [
    "BLOCK",
    "GRID",
    "MOST_CLUSTER_BLOCKS",
    "MOST_THREADS",
    "REGISTERS",
    "LimitError",
    "bounded",
    "shape_of",
]

GRID = (2**31 - 1, 65535, 65535)
"""Most blocks along x, y and z."""
BLOCK = (1024, 1024, 64)
"""Most threads of a block along x, y and z."""
MOST_THREADS = 1024
"""Most threads of a block."""
MOST_CLUSTER_BLOCKS = 8
"""Most blocks of a cluster that every card with clusters launches."""
REGISTERS = (16, 255)
"""Fewest and most registers a thread that may be asked for; an instruction cannot name more."""
_AXES = "xyz"


class LimitError(KernelError):
    """A launch that evaluates, to something that no card takes.

    Attributes:
        gate: Name of the gate that stops it.
    """

    def __init__(self, gate: str, what: str, *, expected: str, found: str, line: int, column: int | None = None) -> None:
        self.gate = gate
        super().__init__(what, expected=expected, found=found, line=line, column=column)


def bounded(expression: Expression, names: Mapping[str, int], bounds: tuple[int, int], what: str, gate: str) -> int:
    """The value of an expression.

    Raises:
        KernelError: It does not evaluate.
        LimitError: It is not within its bounds.
    """
    value = expression.evaluate(names)
    if not bounds[0] <= value <= bounds[1]:
        expected = f"{bounds[0]} to {bounds[1]}"
        found = f"{expression.text} = {value}" if expression.text != str(value) else str(value)
        raise LimitError(gate, f"{what} is out of bounds", expected=expected, found=found, **_place(expression))
    return value


def shape_of(
    expressions: tuple[Expression, ...],
    names: Mapping[str, int],
    what: str,
    most: tuple[int, int, int],
    most_together: int | None = None,
) -> tuple[int, int, int]:
    """The values of one to three expressions, along x, y and z; those left out are 1.

    Args:
        expressions: What is evaluated.
        names: What the expressions may read.
        what: `grid`, `block` or `cluster`, which is the gate's name too.
        most: Bounds along x, y and z.
        most_together: Bound of the product.

    Raises:
        KernelError: One does not evaluate.
        LimitError: One is below 1 or above its bound, or the product is above its own.
    """
    gate = f"{what}-size"
    pairs = zip(_AXES, expressions, most, strict=False)
    values = [bounded(expression, names, (1, bound), f"{what} {axis}", gate) for axis, expression, bound in pairs]
    x, y, z = (*values, 1, 1)[:3]
    if most_together is not None and x * y * z > most_together:
        unit = "threads" if what == "block" else "blocks"
        found = f"{x} x {y} x {z} = {x * y * z}"
        place = _place(expressions[0])
        raise LimitError(gate, f"the {what} is too large", expected=f"at most {most_together} {unit}", found=found, **place)
    return x, y, z


def _place(expression: Expression) -> dict[str, int]:
    return {"line": expression.line, "column": expression.column}
