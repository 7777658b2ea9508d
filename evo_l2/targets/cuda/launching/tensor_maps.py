"""Tensor maps of one launch: evaluated, and held against the rules of the driver's `cuTensorMapEncodeTiled`.

Source of the rules: CUDA Driver API, *Tensor Map Object Management*, for maps without interleaving or element strides.
Strides are multiples of 16 bytes; a box has 1 to 256 elements along each dimension, its innermost extent is a multiple of
16 bytes and, with a swizzle, no longer than the swizzle's span.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evo_l2.expression import Expression
from evo_l2.launch import TensorMap
from evo_l2.problem import Instance, Operand
from evo_l2.targets.cuda.limits import LimitError, bounded

__all__ = ["ALIGNMENT_BYTES", "MAP_BYTES", "PlannedTensorMap", "plan_tensor_map"]

MAP_BYTES = 128
"""Size of a `CUtensorMap`."""
ALIGNMENT_BYTES = 64
"""What the address of a `CUtensorMap` has to be a multiple of."""
GATE = "tensor-maps"
_LARGEST_BOX = 256
_GRAIN_BYTES = 16
_SWIZZLES = (0, 32, 64, 128)
_PROMOTIONS = (0, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class PlannedTensorMap:
    """What a tensor map is encoded from. All dimensions stand outermost first; the driver takes them the other way round."""

    name: str
    operand: str
    dtype: str
    """A numpy name, for instance `float16`."""
    shape: tuple[int, ...]
    """Elements along each of the two or three dimensions."""
    strides_bytes: tuple[int, ...]
    """Bytes from one element to the next, for every dimension but the innermost."""
    box: tuple[int, ...]
    """Elements that one copy takes along each dimension."""
    swizzle_bytes: int
    promotion_bytes: int


def plan_tensor_map(tensor: TensorMap, instance: Instance, names: Mapping[str, int]) -> PlannedTensorMap:
    """One tensor map at one case.

    Raises:
        KernelError: There is no such operand or swizzle, or an expression does not evaluate; with line and column.
        LimitError: The driver would not encode it.
    """
    operand = _operand(tensor, instance)
    full = instance.shape(operand)
    n_dims = len(tensor.box)
    if n_dims > len(full):
        found = f"{n_dims}"
        raise tensor.box[0].error(f"the box of {tensor.name} has too many dimensions", 0, f"at most {len(full)}", found)
    shape = (math.prod(full[: len(full) - n_dims + 1]), *full[len(full) - n_dims + 1 :])
    item_bytes = np.dtype(operand.dtype).itemsize
    strides_bytes = tuple(item_bytes * math.prod(shape[axis:]) for axis in range(1, n_dims))
    _check_rows(tensor, operand, instance, strides_bytes[-1], item_bytes)
    swizzle_bytes = _one_of(tensor.swizzle, names, _SWIZZLES, f"the swizzle of {tensor.name}")
    box = tuple(bounded(expression, names, (1, _LARGEST_BOX), f"the box of {tensor.name}", GATE) for expression in tensor.box)
    _check_inner(tensor, box[-1], item_bytes, swizzle_bytes)
    promotion_bytes = _one_of(tensor.promotion, names, _PROMOTIONS, f"the promotion of {tensor.name}")
    return PlannedTensorMap(
        tensor.name, operand.name, operand.dtype, shape, strides_bytes, box, swizzle_bytes, promotion_bytes
    )


def _operand(tensor: TensorMap, instance: Instance) -> Operand:
    operands = {operand.name: operand for operand in instance.problem.operands}
    if tensor.operand not in operands:
        known = f"one of {', '.join(operands)}"
        raise tensor.box[0].error(f"the tensor map {tensor.name} is of no operand", 0, known, repr(tensor.operand))
    return operands[tensor.operand]


def _check_rows(tensor: TensorMap, operand: Operand, instance: Instance, row_bytes: int, item_bytes: int) -> None:
    if row_bytes % _GRAIN_BYTES:
        symbol = operand.shapes[instance.layout][-1]
        grain = _GRAIN_BYTES // item_bytes
        expected = f"{symbol} a multiple of {grain}, so that rows start at multiples of {_GRAIN_BYTES} bytes"
        found = f"{symbol} = {row_bytes // item_bytes}, {row_bytes} bytes a row"
        first = tensor.box[0]
        what = f"the tensor map {tensor.name} cannot be made for {operand.name}"
        raise LimitError(GATE, what, expected=expected, found=found, line=first.line, column=first.column)


def _check_inner(tensor: TensorMap, inner: int, item_bytes: int, swizzle_bytes: int) -> None:
    last = tensor.box[-1]
    n_bytes = inner * item_bytes
    found = f"{last.text} = {inner}, {n_bytes} bytes" if last.text != str(inner) else f"{inner}, {n_bytes} bytes"
    what = f"the innermost extent of the box of {tensor.name}"
    place = {"line": last.line, "column": last.column}
    if n_bytes % _GRAIN_BYTES:
        expected = f"elements that make a multiple of {_GRAIN_BYTES} bytes"
        raise LimitError(GATE, f"{what} has an odd size", expected=expected, found=found, **place)
    if swizzle_bytes and n_bytes > swizzle_bytes:
        most = swizzle_bytes // item_bytes
        expected = f"at most {most} elements ({swizzle_bytes} bytes) with swizzle {swizzle_bytes}"
        raise LimitError(GATE, f"{what} is longer than the swizzle", expected=expected, found=found, **place)


def _one_of(expression: Expression, names: Mapping[str, int], admitted: tuple[int, ...], what: str) -> int:
    value = expression.evaluate(names)
    if value not in admitted:
        raise expression.error(f"{what} is unknown", 0, "one of " + ", ".join(map(str, admitted)), str(value))
    return value
