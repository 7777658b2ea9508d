"""The seeds of the CUDA target are launches that fit, and build without warnings or spills, whatever their tunables.

That they are right is shown on a card, by `gpu_seed_check.py`.
"""

import itertools
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from evo_l2.errors import ConfigurationError
from evo_l2.launch import Role
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.launching.plan import plan
from evo_l2.targets.cuda.limits import LimitError
from evo_l2.targets.cuda.screen import screen
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt
from experiments.seeds import load_seeds, seed_names

LAYOUTS = ("nn", "nt")
IDEAS = ("hopper", "hopper_splitk", "mma", "mma_f16", "naive", "splitk", "tiled", "wmma")
ARCHITECTURES = {"sm_80": 163, "sm_86": 99, "sm_90a": 227}
"""With the kibibytes of shared memory that a block may have (CUDA C++ Programming Guide, appendix Compute Capabilities)."""
SHAPES = ((1, 1, 1, 1), (17, 33, 65, 1), (257, 129, 511, 2), (4096, 4096, 4096, 1), (64, 16384, 8, 3), (16384, 64, 16384, 1))
SEEDS = [
    pytest.param(kernel, id=name)
    for layout in LAYOUTS
    for name, kernel in zip(seed_names("cuda", layout), load_seeds("cuda", layout), strict=True)
]
BUILDS = [
    pytest.param(kernel, arch, id=f"{name}-{arch}")
    for arch in ARCHITECTURES
    for layout in LAYOUTS
    for name, kernel in zip(
        seed_names("cuda", layout, architecture=arch), load_seeds("cuda", layout, architecture=arch), strict=True
    )
]
EACH_ONCE = sorted(
    (p for p in BUILDS if p.values[1] == ("sm_90a" if p.values[0].launch.tensor_maps else "sm_80")),
    key=lambda p: p.values[0].launch.layout,
)
"""On the oldest card that takes it; first those of the one layout, then those of the other."""
SOAK = bool(os.environ.get("EVO_L2_SOAK"))
N_VARIANTS = 30 if SOAK else 1


def sampled(kernel, n, seed=11):
    """The kernel with `n` random combinations of its tunables."""
    rng = np.random.default_rng(seed)
    return [kernel.with_tunables({t.name: int(rng.choice(t.domain)) for t in kernel.tunables}) for _ in range(n)]


def settings(kernel):
    return " ".join(f"{t.name}={t.value}" for t in kernel.tunables)


def faults_in(log, kernel):
    """What the compiler says that it should not: a list of lines."""
    found = [line for line in log.splitlines() if re.search(r"warning|error|[1-9]\d* bytes (stack|spill)", line)]
    n_registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    assert len(n_registers) == len(kernel.launch.calls)
    n_threads = plan(kernel, Hgemm(((128, 128, 128, 1),), "fp32", LAYOUTS), (128, 128, 128, 1), 108).launches[0].n_threads
    if max(n_registers) * n_threads > 65536:
        found.append(f"{max(n_registers)} registers a thread, {n_threads} threads")
    return [f"{settings(kernel)}: {line}" for line in found]


def faults_by_nvrtc(kernel, arch, nvrtc):
    built = nvrtc.build(kernel, arch)
    return faults_in(built.log, kernel) if isinstance(built, CudaBuilt) else [f"{settings(kernel)}: {built.message}"]


def faults_by_nvcc(kernel, arch, toolkit, folder):
    """As by NVRTC, with all of nvcc's warnings as errors."""
    source = folder / "kernel.cu"
    source.write_text(kernel.source)
    command = [
        toolkit.nvcc,
        "-cubin",
        "-std=c++17",
        f"-gencode=arch=compute_{arch[3:]},code={arch}",
        "-Werror",
        "all-warnings",
    ]
    command += ["-Xptxas", "-v,-warn-spills,-warn-lmem-usage", "-o", folder / "kernel.cubin", source]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    return faults_in(text, kernel) if done.returncode == 0 else [f"{settings(kernel)}: {text}"]


def test_there_is_every_idea_in_either_layout():
    for layout in LAYOUTS:
        assert seed_names("cuda", layout) == tuple(sorted(f"{idea}_{layout}" for idea in IDEAS))
        assert {kernel.launch.layout for kernel in load_seeds("cuda", layout)} == {layout}
        assert {kernel.target for kernel in load_seeds("cuda", layout)} == {"cuda"}


def test_a_search_is_given_what_its_card_and_class_can_use():
    everything = set(seed_names("cuda", "nt"))
    assert everything - set(seed_names("cuda", "nt", architecture="sm_80")) == {"hopper_nt", "hopper_splitk_nt"}
    assert set(seed_names("cuda", "nt", architecture="sm_90a")) == everything
    assert everything - set(seed_names("cuda", "nt", accumulate="fp32")) == {"mma_f16_nt"}
    assert set(seed_names("cuda", "nt", architecture="sm_90a", accumulate="fp16")) == everything
    assert len(load_seeds("cuda", "nt", architecture="sm_86", accumulate="fp32")) == len(everything) - 3


def test_a_layout_without_seeds_is_named_with_the_target():
    with pytest.raises(ConfigurationError, match=r"target cuda and one of its layouts \(nn, nt\)"):
        load_seeds("cuda", "tt")


@pytest.mark.parametrize("kernel", SEEDS)
def test_a_seed_passes_the_screen(kernel):
    accumulate = "fp16" if ".f16.f16.f16.f16" in kernel.source else "fp32"
    assert screen(kernel, Hgemm(SHAPES, accumulate, LAYOUTS)) is None


@pytest.mark.parametrize("kernel", SEEDS)
def test_the_grid_covers_every_shape(kernel):
    for variant, shape in itertools.product([kernel, *sampled(kernel, 20)], SHAPES):
        m, n, k, batch = shape
        if kernel.launch.tensor_maps and (k % 8 or n % 8):
            with pytest.raises(LimitError, match="multiple of 8"):
                plan(variant, Hgemm((shape,), "fp32", LAYOUTS), shape, 108)
            continue
        launches = plan(variant, Hgemm((shape,), "fp32", LAYOUTS), shape, 108).launches
        names = variant.constants
        rows, cols = names.get("BM", names.get("BY")), names.get("BN", names.get("BX"))
        x, y, z = launches[0].grid
        if "CLUSTER" in names:  # blocks stay, and walk over the tiles
            together = names["CLUSTER"]
            most = -(-m // (rows * together)) * -(-n // cols) * batch
            assert (x, y, z) == (together * min(108 // together, most), 1, 1), settings(variant)
            continue
        in_cluster = launches[0].cluster[0] if launches[0].cluster else 1
        assert in_cluster * n <= x * cols < in_cluster * (n + cols), settings(variant)
        assert m <= y * rows < m + rows, settings(variant)
        assert z * in_cluster == batch * names.get("SPLITS", 1)
        for reduction in launches[1:]:
            assert 4 * reduction.grid[0] * reduction.block[0] >= batch * m * n  # four elements a thread


@pytest.mark.parametrize("kernel", SEEDS)
def test_tunables_have_domains_most_of_which_every_card_launches(kernel):
    assert len(kernel.tunables) >= 3
    assert all(len(t.domain) >= 2 for t in kernel.tunables)
    shape = (256, 256, 256, 1)
    problem = Hgemm((shape,), "fp32", LAYOUTS)
    shared = [max(x.shared_bytes for x in plan(k, problem, shape, 108).launches) for k in sampled(kernel, 200)]
    least = ARCHITECTURES["sm_90a"] if kernel.launch.tensor_maps else ARCHITECTURES["sm_86"]
    assert np.mean(np.array(shared) <= least * 1024) >= 0.8
    assert max(x.shared_bytes for x in plan(kernel, problem, shape, 108).launches) <= least * 1024


@pytest.mark.parametrize("kernel", SEEDS)
def test_a_split_kernel_declares_what_it_writes(kernel):
    """Workspaces hold a float for every element and split, unless a cluster shares its memory; no other seed has one."""
    shape = (33, 65, 17, 3)
    for variant in sampled(kernel, 5):
        names = {**variant.constants, **dict(zip(("M", "N", "K", "BATCH"), shape, strict=True))}
        expected = (
            {"partial": names["SPLITS"] * 33 * 65 * 3 * 4}
            if "SPLITS" in names and not variant.launch.calls[0].cluster
            else {}
        )
        assert variant.launch.workspace_bytes(names) == expected
        passed = [a.name for call in variant.launch.calls for a in call.arguments if a.role is Role.WORKSPACE]
        assert set(passed) == set(expected)


@pytest.mark.parametrize(("kernel", "arch"), BUILDS)
def test_a_seed_builds_without_warnings_or_spills(kernel, arch, nvrtc):
    assert faults_by_nvrtc(kernel, arch, nvrtc) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "arch"), BUILDS if SOAK else EACH_ONCE[: len(IDEAS)])
def test_a_seed_builds_without_warnings_or_spills_by_nvcc(kernel, arch, cuda_wheels, tmp_path):
    assert faults_by_nvcc(kernel, arch, cuda_wheels, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "arch"), BUILDS if SOAK else EACH_ONCE)
def test_a_seed_builds_with_any_tunables(kernel, arch, nvrtc):
    assert [fault for variant in sampled(kernel, N_VARIANTS) for fault in faults_by_nvrtc(variant, arch, nvrtc)] == []


@pytest.mark.slow
@pytest.mark.skipif(not SOAK, reason="takes half an hour: EVO_L2_SOAK=1")
@pytest.mark.parametrize(("kernel", "arch"), BUILDS)
def test_a_seed_builds_with_any_tunables_by_nvcc(kernel, arch, cuda_wheels, tmp_path):
    variants = sampled(kernel, N_VARIANTS)
    assert [fault for variant in variants for fault in faults_by_nvcc(variant, arch, cuda_wheels, tmp_path)] == []


def test_seeds_explain_themselves_and_are_short():
    for name, kernel in ((param.id, param.values[0]) for param in SEEDS):
        lines = kernel.source.splitlines()
        idea = list(itertools.takewhile(lambda line: not line.startswith("#"), lines))
        assert 3 <= sum(line.startswith("// ") for line in idea) <= 8, name
        assert len(lines) <= 260, name
        assert max(map(len, lines)) <= 126, name


def test_a_seed_whose_sums_are_in_half_says_so():
    for name, kernel in ((param.id, param.values[0]) for param in SEEDS):
        assert (".f16.f16.f16.f16" in kernel.source) == name.startswith("mma_f16"), name
        assert ("fp16 class" in kernel.source) == name.startswith("mma_f16"), name


def test_seeds_lie_beside_the_package():
    folder = Path(__file__).parent.parent / "experiments" / "seeds" / "cuda"
    assert {path.stem for path in folder.glob("*.cu")} == {name for layout in LAYOUTS for name in seed_names("cuda", layout)}
