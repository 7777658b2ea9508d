"""One product as cuBLASLt describes it, and the algorithms that it offers for it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evo_l2.targets.cuda.libraries.gemm_call import GemmCall, Matrix, alignment_bytes
from evo_l2.targets.cuda.libraries.vendor import HALF, Arithmetic, Workspace

__all__ = ["Algorithm", "CublasLtPlan"]

_NO_REDUCTION_IN_HALF = 2
"""`CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: the scheme "in place" sums in the type of C as well."""
_ANY_REDUCTION = 7
_PREFIX = re.compile(r"^(TILE|STAGES|SHAPE)_")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute the product, as cuBLASLt hands it out."""

    blob: NDArray[Any]
    """A `cublasLtMatmulAlgo_t`."""
    address: int
    """Where the blob lies."""
    workspace_bytes: int
    """What it needs."""
    description: str
    """Its configuration: number, tile, stages, parts of K."""


class CublasLtPlan:
    """Handle and descriptors of one product on buffers of one alignment.

    Args:
        module: `nvmath.bindings.cublasLt`.
        call: The product.
        workspace: Scratch memory of every algorithm.
        sets: Device addresses of the operands.

    Raises:
        cuBLASLtError: The library does not work here, or does not know this product.
    """

    def __init__(self, module: Any, call: GemmCall, workspace: Workspace, sets: Sequence[Mapping[str, int]]) -> None:
        self._module = module
        self._arithmetic = Arithmetic(call.accumulate)
        self._workspace = workspace
        self._undo: list[tuple[Any, int]] = []
        try:
            self._handle = self._own(module.create(), module.destroy)
            self._operation = self._own(
                module.matmul_desc_create(self._arithmetic.compute_type, self._arithmetic.scale_type),
                module.matmul_desc_destroy,
            )
            self._preference = self._own(module.matmul_preference_create(), module.matmul_preference_destroy)
            operation, preference = module.MatmulDescAttribute, module.MatmulPreferenceAttribute
            self._set(
                module.matmul_desc_set_attribute, self._operation, operation.TRANSA, ctypes.c_int32(call.first.transposed)
            )
            self._set(
                module.matmul_desc_set_attribute, self._operation, operation.TRANSB, ctypes.c_int32(call.second.transposed)
            )
            self._first, self._second, self._result = (
                self._layout(matrix, call.batch) for matrix in (call.first, call.second, call.result)
            )
            reduction = _NO_REDUCTION_IN_HALF if call.accumulate == "fp32" else _ANY_REDUCTION
            wishes = [
                (preference.MAX_WORKSPACE_BYTES, ctypes.c_uint64(workspace.n_bytes)),
                (preference.REDUCTION_SCHEME_MASK, ctypes.c_uint32(reduction)),
            ]
            for letter, name in (("A", call.first.name), ("B", call.second.name), ("C", "C"), ("D", "C")):
                least = ctypes.c_uint32(alignment_bytes(buffers[name] for buffers in sets))
                wishes.append((getattr(preference, f"MIN_ALIGNMENT_{letter}_BYTES"), least))
            for attribute, value in wishes:
                self._set(module.matmul_preference_set_attribute, self._preference, attribute, value)
        except BaseException:
            self.close()
            raise

    def algorithms(self, most: int) -> tuple[Algorithm, ...]:
        """What the heuristic offers, its favourite first.

        Args:
            most: How many at the most.

        Raises:
            cuBLASLtError: It knows none.
        """
        module = self._module
        results = np.zeros(most, dtype=module.matmul_heuristic_result_dtype)
        n_found = ctypes.c_int32(0)
        module.matmul_algo_get_heuristic(
            self._handle, self._operation, self._first, self._second, self._result, self._result, self._preference,
            most, results.ctypes.data, ctypes.addressof(n_found),
        )  # fmt: skip
        offered = [result for result in results[: n_found.value] if int(result["state"]) == 0]
        return tuple(self._algorithm(result) for result in offered)

    def enqueue(self, algorithm: Algorithm, stream: int, buffers: Mapping[str, int]) -> None:
        """Puts the product of one buffer set on a stream.

        Raises:
            cuBLASLtError: The algorithm cannot be run.
        """
        self._module.matmul(
            self._handle, self._operation, self._arithmetic.alpha, buffers["B"], self._first, buffers["A"], self._second,
            self._arithmetic.beta, buffers["C"], self._result, buffers["C"], self._result,
            algorithm.address, self._workspace.address, self._workspace.n_bytes, stream,
        )  # fmt: skip

    def close(self) -> None:
        """Frees handle and descriptors; may be called twice."""
        while self._undo:
            destroy, thing = self._undo.pop()
            destroy(thing)

    def _own(self, thing: int, destroy: Any) -> int:
        self._undo.append((destroy, int(thing)))
        return int(thing)

    def _layout(self, matrix: Matrix, batch: int) -> int:
        module = self._module
        created = module.matrix_layout_create(HALF, matrix.rows, matrix.columns, matrix.rows)
        layout = self._own(created, module.matrix_layout_destroy)
        attributes = module.MatrixLayoutAttribute
        self._set(module.matrix_layout_set_attribute, layout, attributes.BATCH_COUNT, ctypes.c_int32(batch))
        self._set(module.matrix_layout_set_attribute, layout, attributes.STRIDED_BATCH_OFFSET, ctypes.c_int64(matrix.stride))
        return layout

    @staticmethod
    def _set(setter: Any, thing: int, attribute: Any, value: Any) -> None:
        setter(thing, int(attribute), ctypes.addressof(value), ctypes.sizeof(value))

    def _algorithm(self, result: Any) -> Algorithm:
        blob = np.array([result["algo"]], dtype=self._module.matmul_algo_dtype)
        address = int(blob.ctypes.data)
        return Algorithm(blob, address, int(result["workspace_size"]), self._describe(address))

    def _describe(self, address: int) -> str:
        """What the algorithm says of itself; numbers where the bindings know no name."""
        attributes = self._module.MatmulAlgoConfigAttribute
        parts = []
        for label, attribute, names, kind in (
            ("algorithm", "ID", None, ctypes.c_int32),
            ("tile", "TILE_ID", "MatmulTile", ctypes.c_uint32),
            ("stages", "STAGES_ID", "MatmulStages", ctypes.c_uint32),
            ("cluster", "CLUSTER_SHAPE_ID", "ClusterShape", ctypes.c_uint16),
            ("split-K", "SPLITK_NUM", None, ctypes.c_int32),
            ("reduction", "REDUCTION_SCHEME", "ReductionScheme", ctypes.c_uint32),
            ("swizzle", "CTA_SWIZZLING", None, ctypes.c_uint32),
            ("option", "CUSTOM_OPTION", None, ctypes.c_uint32),
        ):
            value, written = kind(), ctypes.c_uint64()
            try:
                self._module.matmul_algo_config_get_attribute(
                    address, int(getattr(attributes, attribute)), ctypes.addressof(value), ctypes.sizeof(value),
                    ctypes.addressof(written),
                )  # fmt: skip
            except self._module.cuBLASLtError:
                continue
            parts.append(f"{label} {_named(self._module, names, int(value.value))}")
        return ", ".join(parts)


def _named(module: Any, names: str | None, value: int) -> str:
    if names is None:
        return str(value)
    try:
        return _PREFIX.sub("", str(getattr(module, names)(value).name)).lower()
    except (AttributeError, ValueError):
        return str(value)
