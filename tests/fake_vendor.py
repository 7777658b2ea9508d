"""Stand-ins for the vendor's libraries and the driver: their products are computed by numpy, on addresses of this process."""

import ctypes
import enum
from types import ModuleType, SimpleNamespace

import numpy as np

HEADER = {"cublas": "cuBLASError", "cublasLt": "cuBLASLtError"}


def column_major(address, rows, columns, stride, batch):
    """A view of a batch of column-major half matrices: `(batch, rows, columns)`."""
    memory = (ctypes.c_uint16 * (stride * (batch - 1) + rows * columns)).from_address(address)
    flat = np.frombuffer(memory, np.float16)
    return np.lib.stride_tricks.as_strided(flat, (batch, rows, columns), (2 * stride, 2, 2 * rows))


def multiply(first, transpose_first, second, transpose_second, result):
    """The column-major product of two operands, each `(address, rows, columns, stride, batch)`."""
    a, b, c = column_major(*first), column_major(*second), column_major(*result)
    a = a.transpose(0, 2, 1) if transpose_first else a
    b = b.transpose(0, 2, 1) if transpose_second else b
    c[...] = a.astype(np.float64) @ b.astype(np.float64)


class FakeDriver(ModuleType):
    """Streams that run at once; a graph takes as long as its launches say."""

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(self):
        super().__init__("cuda.bindings.driver")
        self.now_us = 0.0
        self.recording = None
        self.allocated = {}
        self.room_bytes = 1 << 30

    def spend(self, time_us):
        """What a launch calls."""
        if self.recording is None:
            self.now_us += time_us
        else:
            self.recording.append(time_us)

    def cuMemAlloc(self, n_bytes):
        if n_bytes > self.room_bytes:
            return (Status.OUT_OF_MEMORY,)
        address = 4096 * (1 + len(self.allocated))
        self.allocated[address] = n_bytes
        return Status.SUCCESS, address

    def cuMemFree(self, address):
        self.allocated.pop(address)
        return (Status.SUCCESS,)

    def cuStreamSynchronize(self, stream):
        assert self.recording is None, "not while a stream records"
        return (Status.SUCCESS,)

    def cuStreamBeginCapture(self, stream, mode):
        self.recording = []
        return (Status.SUCCESS,)

    def cuStreamEndCapture(self, stream):
        graph, self.recording = tuple(self.recording), None
        return Status.SUCCESS, graph

    def cuGraphInstantiate(self, graph, flags):
        return Status.SUCCESS, graph

    def cuGraphUpload(self, graph, stream):
        return (Status.SUCCESS,)

    def cuGraphLaunch(self, graph, stream):
        self.now_us += sum(graph)
        return (Status.SUCCESS,)

    def cuGraphDestroy(self, graph):
        return (Status.SUCCESS,)

    cuGraphExecDestroy = cuEventDestroy = cuEventSynchronize = cuGraphDestroy

    def cuEventCreate(self, flags):
        return Status.SUCCESS, []

    def cuEventRecord(self, event, stream):
        event[:] = [self.now_us]
        return (Status.SUCCESS,)

    def cuEventElapsedTime(self, start, end):
        return Status.SUCCESS, (end[0] - start[0]) / 1000


class Status(enum.IntEnum):
    """Of the driver."""

    SUCCESS = 0
    OUT_OF_MEMORY = 2


class FakeBindings(ModuleType):
    """What the modules of `nvmath.bindings` have in common."""

    def __init__(self, name, driver):
        super().__init__(f"nvmath.bindings.{name}")
        self.driver = driver
        self.calls = []
        self.n_open = 0
        setattr(self, HEADER[name], type(HEADER[name], (Exception,), {}))

    def get_property(self, part):
        return (13, 1, 0)[part]

    def create(self):
        self.n_open += 1
        return 77

    def destroy(self, handle):
        self.n_open -= 1


class FakeCublas(FakeBindings):
    """`nvmath.bindings.cublas`."""

    def __init__(self, driver):
        super().__init__("cublas", driver)

    def set_math_mode(self, handle, mode):
        self.calls.append(("set_math_mode", mode))

    def set_stream(self, handle, stream):
        self.calls.append(("set_stream", stream))

    def set_workspace(self, handle, address, n_bytes):
        self.calls.append(("set_workspace", address, n_bytes))

    def gemm_ex(self, handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, compute, algorithm):
        strides = (m * k, k * n, m * n)
        self.gemm_strided_batched_ex(
            handle, ta, tb, m, n, k, alpha, a, at, lda, strides[0], b, bt, ldb, strides[1], beta, c, ct, ldc, strides[2], 1,
            compute, algorithm,
        )  # fmt: skip

    def gemm_strided_batched_ex(
        self, handle, ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc, sc, batch, compute, algorithm
    ):
        scalar, one = SCALARS[compute]
        assert (at, bt, ct, algorithm) == (2, 2, 2, -1)
        assert (scalar.from_address(alpha).value, scalar.from_address(beta).value) == (one, 0)
        assert (lda, ldb, ldc) == (k if ta else m, n if tb else k, m)
        first = (a, lda, m if ta else k, sa, batch)
        multiply(first, ta, (b, ldb, k if tb else n, sb, batch), tb, (c, ldc, n, sc, batch))
        self.calls.append(("gemm", compute))


SCALARS = {68: (ctypes.c_float, 1.0), 64: (ctypes.c_uint16, 0x3C00)}
"""By compute type: how a scalar is stored, and its one."""


class FakeCublasLt(FakeBindings):
    """`nvmath.bindings.cublasLt`; algorithm i of `times_us` takes that long, and fails where it is None."""

    MatmulDescAttribute = enum.IntEnum("MatmulDescAttribute", {"TRANSA": 3, "TRANSB": 4})
    MatrixLayoutAttribute = enum.IntEnum("MatrixLayoutAttribute", {"BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6})
    MatmulPreferenceAttribute = enum.IntEnum(
        "MatmulPreferenceAttribute",
        {
            "MAX_WORKSPACE_BYTES": 1, "REDUCTION_SCHEME_MASK": 3, "MIN_ALIGNMENT_A_BYTES": 5, "MIN_ALIGNMENT_B_BYTES": 6,
            "MIN_ALIGNMENT_C_BYTES": 7, "MIN_ALIGNMENT_D_BYTES": 8,
        },
    )  # fmt: skip
    MatmulAlgoConfigAttribute = enum.IntEnum(
        "MatmulAlgoConfigAttribute",
        {
            "ID": 0, "TILE_ID": 1, "SPLITK_NUM": 2, "REDUCTION_SCHEME": 3, "CTA_SWIZZLING": 4, "CUSTOM_OPTION": 5,
            "STAGES_ID": 6, "CLUSTER_SHAPE_ID": 8,
        },
    )  # fmt: skip
    MatmulTile = enum.IntEnum("MatmulTile", {"TILE_128x64": 7})
    matmul_algo_dtype = np.dtype([("data_", "<u8", (8,))])
    matmul_heuristic_result_dtype = np.dtype(
        [
            ("algo", matmul_algo_dtype),
            ("workspace_size", "<u8"),
            ("state", "<i4"),
            ("waves_count", "<f4"),
            ("reserved", "<i4", (4,)),
        ]
    )

    def __init__(self, driver):
        super().__init__("cublasLt", driver)
        self.times_us = [5.0]
        self.things = {}
        self.asked = []

    def _create(self, **facts):
        self.n_open += 1
        self.things[1000 + len(self.things)] = facts
        return 999 + len(self.things)

    def _set(self, thing, attribute, address, n_bytes):
        self.things[thing][attribute] = int.from_bytes(ctypes.string_at(address, n_bytes), "little")

    def _destroy(self, thing):
        assert thing in self.things
        self.n_open -= 1

    def matmul_desc_create(self, compute, scale):
        return self._create(compute=compute, scale=scale)

    def matmul_preference_create(self):
        return self._create()

    def matrix_layout_create(self, kind, rows, columns, leading):
        assert (kind, leading) == (2, rows)
        return self._create(rows=rows, columns=columns)

    matmul_desc_destroy = matmul_preference_destroy = matrix_layout_destroy = _destroy
    matmul_desc_set_attribute = matmul_preference_set_attribute = matrix_layout_set_attribute = _set

    def preference(self, name):
        """What the last heuristic was asked for."""
        return self.things[self.asked[-1][0]][self.MatmulPreferenceAttribute[name]]

    def matmul_algo_get_heuristic(self, handle, operation, a, b, c, d, preference, most, results, n_found):
        assert c == d
        self.asked.append((preference, most))
        n_offered = min(most, len(self.times_us))
        if n_offered == 0:
            raise self.cuBLASLtError("the requested functionality is not supported")
        for index in range(n_offered):
            result = np.zeros(1, self.matmul_heuristic_result_dtype)
            result["algo"]["data_"][0, 0] = index
            ctypes.memmove(results + index * result.itemsize, result.ctypes.data, result.itemsize)
        ctypes.c_int32.from_address(n_found).value = n_offered

    def matmul_algo_config_get_attribute(self, algorithm, attribute, address, n_bytes, written):
        if attribute == self.MatmulAlgoConfigAttribute.CLUSTER_SHAPE_ID:
            raise self.cuBLASLtError("no such attribute")
        known = {0: ctypes.c_uint64.from_address(algorithm).value, 1: 7}
        ctypes.memmove(address, known.get(attribute, 1).to_bytes(n_bytes, "little"), n_bytes)

    def matmul(self, handle, operation, alpha, a, da, b, db, beta, c, dc, d, dd, algorithm, workspace, n_bytes, stream):
        facts = self.things[operation]
        scalar, one = SCALARS[facts["compute"]]
        assert facts["scale"] == {68: 0, 64: 2}[facts["compute"]]
        assert (scalar.from_address(alpha).value, scalar.from_address(beta).value) == (one, 0)
        assert (c, dc) == (d, dd)
        index = ctypes.c_uint64.from_address(algorithm).value
        time_us = self.times_us[index]
        if time_us is None:
            raise self.cuBLASLtError("an internal operation failed")
        self.driver.spend(time_us() if callable(time_us) else time_us)
        self.calls.append(("matmul", index, workspace, n_bytes, stream))
        operands = []
        for address, thing in ((a, da), (b, db), (c, dc)):
            layout = self.things[thing]
            stride = layout[self.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET]
            operands.append(
                (address, layout["rows"], layout["columns"], stride, layout[self.MatrixLayoutAttribute.BATCH_COUNT])
            )
        first, second = (facts[attribute] for attribute in self.MatmulDescAttribute)
        multiply(operands[0], first, operands[1], second, operands[2])
