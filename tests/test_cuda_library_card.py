"""The libraries on a card: right in both classes and layouts, on odd shapes, and in a graph."""

import contextlib

import numpy as np
import pytest

from evo_l2.errors import ToolchainError
from evo_l2.targets.cuda.devices import present_devices
from evo_l2.targets.cuda.driver import bindings, checked, retain_context
from evo_l2.targets.cuda.libraries.launch_graph import LaunchGraph
from evo_l2.targets.cuda.libraries.library import baseline_names, make_library

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not present_devices(), reason="nvidia-smi names no card")]

N_SETS = 3
MOST_ERROR = {"fp32": 2.6e-4, "fp16": 6e-3}
"""Relative Frobenius error. Rounding the result to half makes 2.1e-4 of it."""


@pytest.fixture(scope="module")
def stream():
    """A stream of the first card."""
    cu = bindings()
    retain_context(0)
    handle = checked(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    yield int(handle)
    checked(cu.cuStreamDestroy(handle))


class DeviceBuffers:
    """Random operands on the card, each set with values of its own."""

    def __init__(self, layout, sizes):
        m, n, k, batch = sizes
        rng = np.random.default_rng(11)
        b_shape = (batch, k, n) if layout == "nn" else (batch, n, k)
        self.shape = (batch, m, n)
        self.addresses, self.sets, self.expected = [], [], []
        for _ in range(N_SETS):
            a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((batch, m, k), b_shape))
            wide = b.astype(np.float64)
            self.expected.append(a.astype(np.float64) @ (wide if layout == "nn" else wide.transpose(0, 2, 1)))
            self.sets.append({"A": self._put(a), "B": self._put(b), "C": self._put(np.full(self.shape, np.nan, np.float16))})

    def _put(self, array):
        self.addresses.append(checked(bindings().cuMemAlloc(array.nbytes)))
        checked(bindings().cuMemcpyHtoD(self.addresses[-1], array.ctypes.data, array.nbytes))
        return int(self.addresses[-1])

    def poison(self):
        """Fills every C with NaN."""
        for buffers in self.sets:
            checked(bindings().cuMemsetD16(buffers["C"], 0x7E00, int(np.prod(self.shape))))

    def errors(self):
        """Relative Frobenius error of every set."""
        found = []
        for buffers, expected in zip(self.sets, self.expected, strict=True):
            c = np.empty(self.shape, np.float16)
            checked(bindings().cuMemcpyDtoH(c.ctypes.data, buffers["C"], c.nbytes))
            found.append(np.linalg.norm(c.astype(np.float64) - expected) / np.linalg.norm(expected))
        return found

    def close(self):
        """Frees them."""
        for address in self.addresses:
            checked(bindings().cuMemFree(address))


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize("sizes", [(256, 256, 512, 1), (257, 129, 511, 2), (1, 64, 4096, 1), (64, 64, 16384, 1)])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("name", baseline_names())
def test_recorded_launches_are_right_for_every_set(stream, name, layout, sizes, accumulate):
    try:
        library = make_library(name, layout=layout, accumulate=accumulate, sizes=sizes, workspace_bytes=32 << 20)
    except ToolchainError as error:
        pytest.skip(str(error))
    with contextlib.closing(DeviceBuffers(layout, sizes)) as buffers, contextlib.closing(library):
        library.prepare(stream, buffers.sets)
        with contextlib.closing(LaunchGraph(stream, N_SETS, lambda index: library.launch(stream, index))) as graph:
            buffers.poison()
            checked(bindings().cuCtxSynchronize())
            assert graph.sample_us() > 0
        assert max(buffers.errors()) <= MOST_ERROR[accumulate]
        assert "33554432 bytes" in library.description
