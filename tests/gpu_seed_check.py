"""The seeds of the CUDA target on a card: right at odd shapes and with other tunables; with times at 4096 x 4096 x 4096.

Not collected with the other tests: `pytest tests/gpu_seed_check.py`, or `python tests/gpu_seed_check.py`, which prints a
table of times (names of seeds, or parts of them, may follow). Needs a card, cupy, and nvcc on PATH, under CUDA_HOME or in
/usr/local/cuda.

Launches go through the driver's C interface, since cupy has no tensor maps; constants are those of `cuda.h` (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pytest

from evo_l2.kernel import Kernel
from evo_l2.launch import Role, TensorMap
from experiments.seeds import load_seeds, seed_names

SHAPES = (
    (1, 1, 1, 1), (17, 33, 65, 1), (128, 128, 128, 1), (257, 129, 511, 1), (512, 384, 1000, 1), (33, 65, 17, 3),
    (100, 72, 88, 3), (8, 264, 4096, 1), (300, 300, 300, 2), (65, 7, 2048, 1), (257, 129, 520, 2), (1, 8, 8, 1),
    (700, 1032, 8, 1), (3, 1000, 1, 1), (1111, 1000, 64, 1),
)  # fmt: skip
"""M, N, K, BATCH."""
LARGE = (4096, 4096, 4096, 1)
BOUNDS = {False: 2.6e-4, True: 5e-3}
"""Largest relative Frobenius error: sums in float, sums in half."""
N_RANDOM = 3
GUARD = 512
"""Elements on either side of an operand, filled with NaN."""
NAMES = ("M", "N", "K", "BATCH")
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
SEEDS = [
    pytest.param(kernel, id=name)
    for layout in ("nn", "nt")
    for name, kernel in zip(seed_names("cuda", layout), load_seeds("cuda", layout), strict=True)
]
pytestmark = pytest.mark.gpu


@functools.cache
def card():
    """(compute capability as in "90a", multiprocessors, dynamic shared memory of a block in bytes); skips without a card."""
    cupy = pytest.importorskip("cupy", reason="needs cupy")
    try:
        device = cupy.cuda.Device(0)
        capability = device.compute_capability
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"needs an NVIDIA card: {error}")
    device.use()
    cupy.zeros(1)  # makes the context that the driver's calls below run in
    suffix = "a" if int(capability) >= 90 else ""
    attributes = device.attributes
    return capability + suffix, attributes["MultiProcessorCount"], attributes["MaxSharedMemoryPerBlockOptin"]


def nvcc() -> str:
    homes = (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda")
    found = shutil.which("nvcc") or next((f"{home}/bin/nvcc" for home in homes if Path(home, "bin", "nvcc").is_file()), None)
    assert found is not None, "expected nvcc on PATH, under CUDA_HOME or in /usr/local/cuda"
    return found


@functools.cache
def cubin(source: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cu")
        path.write_text(source)
        target = f"-gencode=arch=compute_{card()[0]},code=sm_{card()[0]}"
        command = [nvcc(), "-cubin", "-std=c++17", target, "-o", f"{folder}/out", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return Path(folder, "out").read_bytes()


def driver(name: str, *arguments: object) -> None:
    """Calls a function of the driver."""
    status = getattr(_library(), name)(*arguments)
    assert status == 0, f"{name}: CUDA error {status}"


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


class Built:
    """A kernel that is loaded and can be launched."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.launch = kernel.launch
        self._image = cubin(kernel.source)
        self._module = ctypes.c_void_p()
        driver("cuModuleLoadData", ctypes.byref(self._module), self._image)
        self._functions = {}
        for call in self.launch.calls:
            function = ctypes.c_void_p()
            driver("cuModuleGetFunction", ctypes.byref(function), self._module, call.entry.encode())
            self._functions[call.entry] = function

    def bind(self, shape: tuple[int, ...], operands: Mapping[str, object]) -> list[tuple]:
        """Launches on operands (flat cupy arrays by name), ready for `run`."""
        import cupy

        names = {**self.kernel.constants, **dict(zip(NAMES, shape, strict=True)), "SMS": card()[1]}
        values = {name: ctypes.c_void_p(array.data.ptr) for name, array in operands.items()}
        self._spaces = [cupy.full(n, 255, cupy.uint8) for n in self.launch.workspace_bytes(names).values()]
        for name, space in zip(self.launch.workspace_bytes(names), self._spaces, strict=True):
            values[name] = ctypes.c_void_p(space.data.ptr)
        for tensor in self.launch.tensor_maps:
            values[tensor.name] = encode(tensor, names, operands[tensor.operand], self.launch.layout)
        bound = []
        for call in self.launch.calls:
            arguments = [ctypes.c_int(names[a.name]) if a.role is Role.SIZE else values[a.name] for a in call.arguments]
            pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(argument) for argument in arguments])
            grid, block = ([e.evaluate(names) for e in axes] + [1] * (3 - len(axes)) for axes in (call.grid, call.block))
            shared = call.shared.evaluate(names) if call.shared is not None else 0
            driver("cuFuncSetAttribute", self._functions[call.entry], MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            bound.append((self._functions[call.entry], *grid, *block, shared, None, pointers, None, arguments))
        return bound

    def run(self, bound: list[tuple]) -> None:
        for *what, _ in bound:
            driver("cuLaunchKernel", *what)

    def close(self) -> None:
        driver("cuModuleUnload", self._module)


def encode(tensor: TensorMap, names: Mapping[str, int], operand: object, layout: str) -> object:
    """A `CUtensorMap` of a half-precision operand, seen as BATCH, rows, columns."""
    shapes = {"A": "MK", "B": "KN" if layout == "nn" else "NK", "C": "MN"}
    rows, cols = (names[symbol] for symbol in shapes[tensor.operand])
    box = [e.evaluate(names) for e in tensor.box]
    dims = [names["BATCH"], rows, cols] if len(box) == 3 else [names["BATCH"] * rows, cols]
    strides = [rows * cols * 2, cols * 2] if len(box) == 3 else [cols * 2]
    memory = (ctypes.c_uint64 * 24)()
    aligned = (ctypes.addressof(memory) + 63) // 64 * 64
    encoded = (ctypes.c_uint64 * 16).from_address(aligned)
    encoded.memory = memory  # lives as long
    driver(
        "cuTensorMapEncodeTiled",
        ctypes.byref(encoded),
        6,  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16
        len(box),
        ctypes.c_void_p(operand.data.ptr),
        (ctypes.c_uint64 * len(box))(*dims[::-1]),
        (ctypes.c_uint64 * len(strides))(*strides[::-1]),
        (ctypes.c_uint32 * len(box))(*box[::-1]),
        (ctypes.c_uint32 * len(box))(*[1] * len(box)),
        0,  # no interleaving
        {0: 0, 32: 1, 64: 2, 128: 3}[tensor.swizzle.evaluate(names)],
        {0: 0, 64: 1, 128: 2, 256: 3}[tensor.promotion.evaluate(names)],
        0,  # zeros outside
    )
    return encoded


def takes(kernel: Kernel, shape: tuple[int, ...]) -> bool:
    """Whether tensor maps exist for a shape: rows have to be multiples of 16 bytes."""
    _, n, k, _ = shape
    return not kernel.launch.tensor_maps or (k % 8 == 0 and (kernel.launch.layout == "nt" or n % 8 == 0))


def variants(kernel: Kernel) -> list[Kernel]:
    """The kernel as it stands, and with random tunables that fit the card."""
    rng = np.random.default_rng(7)
    found = [kernel]
    while len(found) < 1 + N_RANDOM:
        other = kernel.with_tunables({t.name: int(rng.choice(t.domain)) for t in kernel.tunables})
        shared = [call.shared.evaluate(other.constants) for call in other.launch.calls if call.shared is not None]
        if max(shared, default=0) + 1024 <= card()[2]:
            found.append(other)
    return found


def settings(kernel: Kernel) -> str:
    return " ".join(f"{t.name}={t.value}" for t in kernel.tunables)


def guarded(values: np.ndarray):
    """Values on the card as a flat array between NaNs, and the whole."""
    import cupy

    whole = cupy.full(values.size + 2 * GUARD, cupy.nan, cupy.float16)
    inner = whole[GUARD : GUARD + values.size]
    inner[:] = cupy.asarray(values.ravel())
    return inner, whole


def faults(built: Built, shape: tuple[int, ...], *, integers: bool) -> list[str]:
    """What is wrong with a kernel's results on one shape."""
    import cupy

    m, n, k, batch = shape
    rng = np.random.default_rng(shape)
    if integers:
        a, b = (rng.integers(-1, 2, size).astype(np.float16) for size in ((batch, m, k), (batch, k, n)))
        keep = min(1.0, 900 / k)
        a *= rng.random(a.shape) < keep
    else:
        a, b = (rng.standard_normal(size).astype(np.float16) for size in ((batch, m, k), (batch, k, n)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    stored = b if built.launch.layout == "nn" else np.ascontiguousarray(b.transpose(0, 2, 1))
    results, found = [], []
    for _ in range(2):
        (da, _), (db, _), (dc, whole) = guarded(a), guarded(stored), guarded(np.full((batch, m, n), 77.0, np.float16))
        built.run(built.bind(shape, {"A": da, "B": db, "C": dc}))
        cupy.cuda.Device().synchronize()
        results.append(cupy.asnumpy(dc).reshape(batch, m, n))
        outside = cupy.concatenate([whole[:GUARD], whole[-GUARD:]])
        if not bool(cupy.isnan(outside).all()):
            found.append("wrote outside C")
    if not np.array_equal(*(result.view(np.uint16) for result in results)):
        found.append("two runs differ")
    if integers:
        wrong = np.argwhere(results[0] != exact.astype(np.float16)).tolist()
        if wrong:
            found.append(f"integers: {len(wrong)} of {exact.size} wrong, first at {wrong[0]}, last at {wrong[-1]}")
        return found
    error = np.linalg.norm(results[0].astype(np.float64) - exact) / max(np.linalg.norm(exact), 1e-300)
    bound = BOUNDS[in_half(built.kernel)]
    if not error <= max(bound, 5e-4 if exact.size < 64 else 0):
        found.append(f"relative error {error:.3g}, bound {bound}")
    return found


def all_faults(kernel: Kernel) -> list[str]:
    found = []
    for variant in variants(kernel):
        built = Built(variant)
        for shape in filter(lambda shape: takes(kernel, shape), SHAPES):
            for integers in (True, False):
                found += [f"{settings(variant)}: {shape}: {fault}" for fault in faults(built, shape, integers=integers)]
        built.close()
    return found


def timed(kernel: Kernel) -> tuple[float, float, float]:
    """(milliseconds, milliseconds of cupy.matmul, relative error against float) at `LARGE`."""
    import cupy

    m, n, k, _ = LARGE
    rng = cupy.random.default_rng(1)
    a, b = (rng.standard_normal(size, cupy.float32).astype(cupy.float16) for size in ((m, k), (k, n)))
    stored = b if kernel.launch.layout == "nn" else cupy.ascontiguousarray(b.T)
    c, other = cupy.full((m, n), 77, cupy.float16), cupy.empty((m, n), cupy.float16)
    built = Built(kernel)
    bound = built.bind(LARGE, {"A": a, "B": stored, "C": c})
    right = stored if kernel.launch.layout == "nn" else stored.T
    times = [_milliseconds(call) for call in (lambda: built.run(bound), lambda: cupy.matmul(a, right, out=other))]
    exact = cupy.matmul(a.astype(cupy.float32), b.astype(cupy.float32))
    error = float(cupy.linalg.norm(c.astype(cupy.float32) - exact) / cupy.linalg.norm(exact))
    built.close()
    return times[0], times[1], error


def _milliseconds(call) -> float:
    """Mean over as many launches as take about 50 ms, by CUDA events."""
    import cupy

    n_calls = 1
    for _ in range(3):  # a first call, an estimate, the measurement
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        for _ in range(n_calls):
            call()
        end.record()
        end.synchronize()
        milliseconds = cupy.cuda.get_elapsed_time(begin, end) / n_calls
        n_calls = max(1, min(200, int(50 / max(milliseconds, 1e-3))))
    return milliseconds


def in_half(kernel: Kernel) -> bool:
    """Whether sums are in half precision."""
    return ".f16.f16.f16.f16" in kernel.source


def unsupported(kernel: Kernel) -> str | None:
    """Why this card does not run a seed; skips without a card."""
    return "for sm_90a alone" if card()[0] != "90a" and kernel.launch.tensor_maps else None


@pytest.mark.parametrize("kernel", SEEDS)
def test_a_seed_is_right(kernel):
    if reason := unsupported(kernel):
        pytest.skip(reason)
    assert all_faults(kernel) == []


@pytest.mark.parametrize("kernel", SEEDS)
def test_a_seed_is_right_when_it_is_large(kernel):
    if reason := unsupported(kernel):
        pytest.skip(reason)
    assert timed(kernel)[2] <= (2 if in_half(kernel) else 1) * BOUNDS[in_half(kernel)]


def main(words: list[str]) -> int:
    seeds = [(p.id, p.values[0]) for p in SEEDS if not words or any(word in p.id for word in words)]
    seeds = [(name, kernel) for name, kernel in seeds if unsupported(kernel) is None]
    print(f"sm_{card()[0]}, {card()[1]} multiprocessors")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # builds, which later calls find done
        list(pool.map(lambda kernel: cubin(kernel.source), [v for _, kernel in seeds for v in variants(kernel)]))
    n_wrong = 0
    for name, kernel in seeds:
        found = all_faults(kernel)
        ms, cupy_ms, error = timed(kernel)
        n_wrong += bool(found)
        tflops = 2e-9 * LARGE[0] * LARGE[1] * LARGE[2] / ms
        verdict = "right" if not found else f"{len(found)} FAULTS"
        figures = f"{ms:9.4f} ms {tflops:7.1f} TFLOP/s, cupy {cupy_ms:.4f} ms, error {error:.3g}"
        print(f"{name:12} {verdict:10} {figures}", flush=True)
        print("".join(f"    {fault}\n" for fault in found[:12]), end="", flush=True)
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
