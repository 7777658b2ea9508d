"""The seeds of the CPU target are right on every shape, with every value of their tunables, and are shipped."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Status
from evo_l2.judge import Judge
from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cpu.compiler import Compiler
from evo_l2.targets.cpu.evaluator import CpuEvaluator, CpuSettings
from evo_l2.targets.cpu.pairs import TimingSettings
from evo_l2.targets.cpu.prepare import prepare
from evo_l2.targets.cpu.runner import RunnerBinary
from evo_l2.targets.cpu.stage import CpuStage
from evo_l2.targets.cpu.toolchain import find_toolchain
from experiments.seeds import load_seeds, seed_names

LAYOUTS = ("nn", "nt")
SHAPES = ((1, 1, 1, 1), (1, 7, 3, 2), (5, 1, 9, 1), (17, 33, 65, 3), (64, 64, 64, 1), (129, 131, 257, 1), (3, 600, 1, 1))
SETTINGS = CpuSettings(timing=TimingSettings(blocks=8, min_batch_ms=1.0, most_s=0.1))
SEEDS = [
    pytest.param(layout, name, kernel, id=name)
    for layout in LAYOUTS
    for name, kernel in zip(seed_names("cpu", layout), load_seeds("cpu", layout), strict=True)
]


@pytest.fixture(scope="module")
def cache(session_cache):
    return session_cache / "evo-l2" / "cpu"


@pytest.fixture(scope="module")
def compiler(cache):
    return Compiler(find_toolchain(), cache)


@pytest.fixture(scope="module")
def faults(cache, compiler):
    """What the judge finds wrong with a kernel on some shapes: a list of (shape, gate, message)."""
    binary = RunnerBinary.ensure(compiler.toolchain.compiler, cache)

    def find(kernel, shapes):
        prepared = prepare(kernel, Hgemm(shapes, "fp32", LAYOUTS), compiler)
        if prepared.verdict is not None:
            return [(shapes, prepared.verdict.gate, prepared.verdict.message)]
        found = []
        for shape in shapes:
            instance = Instance(Hgemm((shape,), "fp32", LAYOUTS), shape, kernel.launch.layout)
            spaces = kernel.launch.workspace_bytes({**kernel.constants, **instance.names})
            with CpuStage(binary, prepared.artefact, instance, spaces, n_sets=1, core=0, call_s=5.0) as stage:
                failure = Judge().judge(stage, np.random.SeedSequence(3))
                found += [(shape, failure.gate, failure.message)] if failure is not None else []
        return found

    return find


def test_there_are_three_ideas_in_either_layout():
    for layout in LAYOUTS:
        assert seed_names("cpu", layout) == tuple(f"{idea}_{layout}" for idea in ("blocked", "naive", "vectorised"))
        assert {kernel.launch.layout for kernel in load_seeds("cpu", layout)} == {layout}


@pytest.mark.parametrize(("target", "layout"), [("cpu", "tt"), ("tpu", "nn"), ("cuda/..", "nn")])
def test_a_target_or_layout_without_seeds_is_named(target, layout):
    with pytest.raises(ConfigurationError, match="no seeds"):
        load_seeds(target, layout)


@pytest.mark.parametrize(("layout", "name", "kernel"), SEEDS)
def test_a_seed_passes_and_is_timed(layout, name, kernel, cache):
    with CpuEvaluator(Hgemm(((96, 80, 112, 2),), "fp32", LAYOUTS), cache, SETTINGS) as evaluator:
        prepared = evaluator.prepare(kernel)
        assert prepared.verdict is None, prepared.verdict
        evaluation = evaluator.measure(prepared, np.random.SeedSequence(4))
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.message
    assert evaluation.session is not None


@pytest.mark.parametrize(("layout", "name", "kernel"), SEEDS)
@pytest.mark.beside
def test_a_seed_is_right_at_every_edge(layout, name, kernel, faults):
    assert faults(kernel, SHAPES) == []


@pytest.mark.parametrize(("layout", "name", "kernel"), SEEDS)
@pytest.mark.beside
def test_a_seed_is_right_with_other_values_of_its_tunables(layout, name, kernel, faults):
    """A random combination, and the two corners."""
    rng = np.random.default_rng(5)
    assert kernel.tunables
    choices = [{t.name: t.domain[at] for t in kernel.tunables} for at in (0, -1)]
    choices.append({t.name: int(rng.choice(t.domain)) for t in kernel.tunables})
    for values in choices:
        assert faults(kernel.with_tunables(values), ((33, 71, 530, 1),)) == [], values


@pytest.mark.parametrize(("layout", "name", "kernel"), SEEDS)
@pytest.mark.beside
def test_a_seed_does_without_the_processors_conversions(layout, name, kernel, cache, tmp_path):
    """Compiled for the plainest processor, it leaves conversions to the compiler's own functions."""
    source, library = tmp_path / "kernel.c", tmp_path / "kernel.so"
    source.write_text(kernel.source)
    command = [str(find_toolchain().compiler), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    m, n, k = 9, 37, 70
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((k, n)).astype(np.float16)
    stored = np.ascontiguousarray(b if layout == "nn" else b.T)
    c = np.zeros((m, n), np.float16)
    names = {**kernel.constants, "M": m, "N": n, "K": k, "BATCH": 1}
    spaces = {name: np.empty(size, np.uint8) for name, size in kernel.launch.workspace_bytes(names).items()}
    arrays = {"A": a, "B": stored, "C": c, **spaces}
    arguments = [
        ctypes.c_void_p(arrays[x.name].ctypes.data) if x.name in arrays else names[x.name]
        for x in kernel.launch.calls[0].arguments
    ]
    ctypes.CDLL(str(library)).hgemm(*arguments)
    assert np.allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-3, atol=1e-3)


def test_seeds_explain_themselves_and_are_short():
    for _, name, kernel in (param.values for param in SEEDS):
        lines = kernel.source.splitlines()
        idea = [line for line in lines if line.startswith("// ")]
        assert 3 <= len(idea) <= 8, name
        assert len(lines) <= 120, name
        assert max(map(len, lines)) <= 126, name


def test_seeds_lie_beside_the_package():
    folder = Path(__file__).parent.parent / "experiments" / "seeds" / "cpu"
    assert {path.stem for path in folder.glob("*.c")} == {name for layout in LAYOUTS for name in seed_names("cpu", layout)}
