"""The BLAS that kernels are timed against, and HGEMM's baseline on it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from evo_l2.errors import ToolchainError
from evo_l2.launch import parse_launch
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cpu.blas import BLAS_ENVIRON, Blas, baseline_library, find_blas
from evo_l2.targets.cpu.runner import BufferSpec, RunKind, Runner, RunnerBinary

GCC = Path("/usr/bin/cc")
Half = NDArray[np.float16]


@pytest.fixture(scope="session")
def blas() -> Blas:
    return find_blas()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def open_baseline(blas: Blas, cache: Path, sizes: tuple[int, int, int, int], layout: str, entry: str = "evo_entry") -> Runner:
    source = Hgemm((sizes,), layouts=(layout,)).baseline("cpu", layout)
    m, n, k, batch = sizes
    workspaces = parse_launch(source).workspace_bytes({"M": m, "N": n, "K": k, "BATCH": batch})
    return Runner(
        RunnerBinary.ensure(GCC, cache),
        baseline_library(source, blas, GCC, cache),
        [BufferSpec("A", 2 * batch * m * k), BufferSpec("B", 2 * batch * k * n), BufferSpec("C", 2 * batch * m * n)],
        2,
        [BufferSpec(name, n_bytes) for name, n_bytes in workspaces.items()],
        sizes,
        trusted=True,
        environ=BLAS_ENVIRON,
        entry=entry,
    )


def run_baseline(blas: Blas, cache: Path, a: Half, b: Half, layout: str) -> Half:
    """C of the second of two sets, the first of which holds zeros; all guards checked."""
    batch, m, k = a.shape
    n = b.shape[2]
    stored = b if layout == "nn" else b.swapaxes(1, 2)
    with open_baseline(blas, cache, (m, n, k, batch), layout) as runner:
        runner.array(1, "A", "float16", a.shape)[:] = a
        runner.array(1, "B", "float16", stored.shape)[:] = stored
        runner.array(1, "C", "float16", (batch, m, n))[:] = np.nan
        result = runner.run(0, 2)
        assert result.kind is RunKind.OK, result.detail
        assert [runner.damaged_guard(index) for index in range(2)] == [None, None]
        np.testing.assert_array_equal(runner.array(1, "A", "float16", a.shape), a)
        return runner.array(1, "C", "float16", (batch, m, n)).astype(np.float16)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("sizes", [(64, 64, 64, 1), (37, 53, 29, 3), (1, 1, 1, 1), (8, 5, 300, 2)])
def test_integers_come_out_exactly(sizes: tuple[int, int, int, int], layout: str, blas: Blas, cache: Path) -> None:
    m, n, k, batch = sizes
    rng = np.random.default_rng(3)
    a = rng.integers(-4, 5, (batch, m, k)).astype(np.float16)
    b = rng.integers(-4, 5, (batch, k, n)).astype(np.float16)
    c = run_baseline(blas, cache, a, b, layout)
    np.testing.assert_array_equal(c, (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16))


def test_every_half_survives_both_conversions(blas: Blas, cache: Path) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].reshape(1, -1, 1)
    c = run_baseline(blas, cache, halves, np.ones((1, 1, 1), np.float16), "nn")
    np.testing.assert_array_equal(c, halves)


def test_results_are_rounded_to_nearest_even(blas: Blas, cache: Path) -> None:
    """Sums that lie halfway between two halves: 2049 between 2048 and 2050, 2051 between 2050 and 2052; and overflow."""
    a = np.array([[2048, 1], [2048, 3], [2050, -1], [65504, 8], [65504, 16], [-65504, -16]], np.float16)
    c = run_baseline(blas, cache, np.tile(a, (4, 1))[None], np.ones((1, 2, 1), np.float16), "nn")
    expected = np.tile(np.array([2048, 2052, 2048, 65504, np.inf, -np.inf], np.float16), 4)
    np.testing.assert_array_equal(c[0, :, 0], expected)


def test_the_bare_entry_multiplies_the_workspaces_and_leaves_operands_alone(blas: Blas, cache: Path) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(-9, 9, (24, 40)), rng.integers(-9, 9, (40, 16))
    with open_baseline(blas, cache, (24, 16, 40, 1), "nn", "evo_entry_bare") as runner:
        runner.array(0, "AF", "float32", a.shape)[:] = a
        runner.array(0, "BF", "float32", b.shape)[:] = b
        runner.array(0, "C", "float16", (24, 16))[:] = 7
        assert runner.run().kind is RunKind.OK
        np.testing.assert_array_equal(runner.array(0, "CF", "float32", (24, 16)), a @ b)
        assert (runner.array(0, "C", "float16", (24, 16)) == 7).all()


def test_conversions_are_vectorised(blas: Blas, cache: Path) -> None:
    if "f16c" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("the processor has no F16C")
    library = baseline_library(Hgemm(((8, 8, 8, 1),)).baseline("cpu", "nn"), blas, GCC, cache)
    code = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    wide = [line for line in code.splitlines() if "%ymm" in line]
    assert any("vcvtph2ps" in line for line in wide)
    assert any("vcvtps2ph" in line for line in wide)


def test_the_library_is_named_with_version_and_core(blas: Blas) -> None:
    assert blas.path.is_file()
    assert blas.int_bits in (32, 64)
    assert "OpenBLAS" in blas.description
    assert "core " in blas.description
    assert find_blas() == blas


def test_no_library_is_a_toolchain_error_with_the_command_to_type() -> None:
    with pytest.raises(ToolchainError, match=r"libm\.so\.6; try: .*pip install scipy-openblas"):
        find_blas(["/nowhere/libopenblas.so", "libm.so.6"])
