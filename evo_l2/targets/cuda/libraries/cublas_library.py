"""cuBLAS as a baseline: its own choice of kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evo_l2.errors import DeviceError, ToolchainError
from evo_l2.targets.cuda.driver import CudaError, bindings, checked
from evo_l2.targets.cuda.libraries.gemm_call import GemmCall, Matrix, checked_sets
from evo_l2.targets.cuda.libraries.vendor import HALF, Arithmetic, Workspace, load_bindings, version_of

__all__ = ["CublasLibrary"]

_DEFAULT_ALGORITHM = -1
_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
"""Of `cublasMath_t`; the default mode sums the parts of a split K in the type of C."""


class CublasLibrary:
    """`cublasGemmEx`, or its strided batch. See `evo_l2.targets.cuda.libraries.library.Library`."""

    def __init__(self, call: GemmCall, workspace_bytes: int) -> None:
        self._module = load_bindings("cublas")
        self._call = call
        self._arithmetic = Arithmetic(call.accumulate)
        self._multiply = self._module.gemm_ex if call.batch == 1 else self._module.gemm_strided_batched_ex
        self._workspace_bytes = workspace_bytes
        self._workspace: Workspace | None = None
        self._handle: int | None = None
        self._stream: int | None = None
        self._arguments: tuple[tuple[int, ...], ...] = ()

    @property
    def name(self) -> str:
        """See `Library`."""
        return "cublas"

    @property
    def description(self) -> str:
        """See `Library`."""
        function = "cublasGemmEx" if self._call.batch == 1 else "cublasGemmStridedBatchedEx"
        return f"cuBLAS {version_of(self._module)}, {function}, its own choice, workspace {self._workspace_bytes} bytes"

    def prepare(self, stream: int, sets: Sequence[Mapping[str, int]]) -> None:
        """See `Library`."""
        self.close()
        whole = checked_sets(sets)
        try:
            self._set_up()
            self._arguments = tuple(self._arguments_of(buffers) for buffers in whole)
            self.launch(stream, 0)
            checked(bindings().cuStreamSynchronize(stream))
        except CudaError as error:
            self.close()
            raise DeviceError("cuBLAS fails", expected="a product", found=str(error)) from error
        except BaseException:
            self.close()
            raise

    def launch(self, stream: int, index: int) -> None:
        """See `Library`."""
        assert self._handle is not None, "prepare comes first"
        try:
            if stream != self._stream:
                self._use(stream)
            self._multiply(self._handle, *self._arguments[index])
        except self._module.cuBLASError as error:
            raise DeviceError("cuBLAS refuses a product", expected=f"{self._call}", found=str(error)) from error

    def close(self) -> None:
        """See `Library`."""
        if self._handle is not None:
            self._module.destroy(self._handle)
        if self._workspace is not None:
            self._workspace.close()
        self._handle = self._workspace = self._stream = None

    def _set_up(self) -> None:
        module = self._module
        self._workspace = Workspace(self._workspace_bytes)
        try:
            self._handle = int(module.create())
            if self._call.accumulate == "fp32":
                module.set_math_mode(self._handle, _DISALLOW_REDUCED_PRECISION_REDUCTION)
        except module.cuBLASError as error:
            raise ToolchainError("cuBLAS does not work here", expected="a handle", found=str(error)) from error

    def _use(self, stream: int) -> None:
        """Another stream also brings back a workspace of cuBLAS's own, so that ours is set after it."""
        assert self._workspace is not None
        self._module.set_stream(self._handle, stream)
        self._module.set_workspace(self._handle, self._workspace.address, self._workspace.n_bytes)
        self._stream = stream

    def _arguments_of(self, buffers: Mapping[str, int]) -> tuple[int, ...]:
        """All but the handle, in the order of the C function."""
        call, arithmetic = self._call, self._arithmetic
        is_batch = call.batch > 1

        def operand(matrix: Matrix) -> tuple[int, ...]:
            return (buffers[matrix.name], HALF, matrix.rows, *([matrix.stride] if is_batch else []))

        return (
            int(call.first.transposed), int(call.second.transposed), call.m, call.n, call.k,
            arithmetic.alpha, *operand(call.first), *operand(call.second), arithmetic.beta, *operand(call.result),
            *([call.batch] if is_batch else []), arithmetic.compute_type, _DEFAULT_ALGORITHM,
        )  # fmt: skip
