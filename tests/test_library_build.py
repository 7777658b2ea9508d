"""Libraries from archives: which kernels are chosen, what is built of them, and what is said where it cannot be."""

import csv
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from archive import Store
from evo_l2.errors import ConfigurationError, StorageError
from evo_l2.evaluation import Environment
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cpu.blas import find_blas
from evo_l2.targets.cpu.environment import cpu_environment
from evo_l2.targets.cpu.toolchain import find_toolchain
from evo_l2.targets.cuda.launching.plan import plan
from evo_l2.targets.cuda.reading.cubin import read_cubin
from experiments.cli import main
from experiments.library import build
from experiments.library.cuda_tables import check_launchable
from experiments.library.folder import filled_folder
from experiments.library.winners import Wanted, choose_environment, find_winners


def _load(name):
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load("library_cases")
NN, NT = cases.seeds("cpu", "nn"), cases.seeds("cpu", "nt")
SMALL, WIDE, BATCHED = (16, 24, 32, 1), (24, 40, 8, 1), (5, 6, 7, 3)
long = pytest.mark.skipif(not os.environ.get("EVO_L2_SOAK"), reason="takes long: EVO_L2_SOAK=1")
ONE = Environment("cpu", {"processor": "one", "harness": "1"})


def number(n, layout="nn"):
    """A kernel of its own for every number."""
    return Kernel(f"//! layout {layout}\n//! launch hgemm(A: in, B: in, C: out, M, N, K)\n#define T {n}\n", "cpu")


def winners(path, **wanted):
    with Store.open(path) as store:
        return find_winners(store, choose_environment(store, None), Wanted(**wanted))


# --- choosing -------------------------------------------------------------------------------------------------------------


def test_each_shape_has_the_kernel_that_is_best_there_and_not_the_best_over_all(tmp_path):
    problem = Hgemm((SMALL, WIDE))
    kernels = [(number(1), (3.0, 1.1)), (number(2), (1.2, 1.5)), (number(3), (1.1, 1.4))]
    found = winners(cases.fill(tmp_path / "a.db", ONE, (problem, kernels)))
    assert [(w.sizes, w.kernel) for w in found] == [(SMALL, number(1)), (WIDE, number(2))]
    assert found[1].estimate.speedup == pytest.approx(1.5, rel=0.01)
    assert found[1].baseline_us / found[1].kernel_us == pytest.approx(1.5, rel=0.01)
    assert found[0].machine_code == f"code of {number(1).digest[:8]}"


def test_a_shape_where_no_lower_bound_is_above_one_is_left_out_unless_it_is_asked_for(tmp_path):
    problem = Hgemm((SMALL, WIDE))
    path = cases.fill(tmp_path / "a.db", ONE, (problem, [(number(1), (2.0, 1.0)), (number(2), (0.5, 0.9))]))
    assert [w.sizes for w in winners(path)] == [SMALL]
    assert [(w.sizes, w.kernel) for w in winners(path, with_slower=True)] == [(SMALL, number(1)), (WIDE, number(1))]


def test_layouts_classes_and_problems_are_kept_apart_and_a_shape_in_two_problems_has_the_better(tmp_path):
    path = cases.fill(
        tmp_path / "a.db",
        ONE,
        (Hgemm((SMALL,), "fp32", ("nn", "nt")), [(number(1), (2.0,)), (number(2, "nt"), (1.5,)), (number(3), (1.9,))]),
        (Hgemm((SMALL, WIDE)), [(number(4), (2.5, 1.2))]),
        (Hgemm((SMALL,), "fp16"), [(number(5), (3.0,))]),
    )
    found = {w.key: w.kernel for w in winners(path)}
    assert found == {
        ("fp32", "nn", SMALL): number(4), ("fp32", "nn", WIDE): number(4), ("fp32", "nt", SMALL): number(2, "nt"),
        ("fp16", "nn", SMALL): number(5),
    }  # fmt: skip
    assert [w.sums for w in winners(path)] == ["fp32"] * 3 + ["fp16"]
    assert [w.key for w in winners(path, layouts=("nt",))] == [("fp32", "nt", SMALL)]
    assert {w.sizes for w in winners(path, shapes=(WIDE,))} == {WIDE}


def test_the_best_is_found_behind_pages_of_kernels_of_the_other_layout(tmp_path):
    problem = Hgemm((SMALL,), "fp32", ("nn", "nt"))
    kernels = [(number(n), (3.0 + n / 100,)) for n in range(40)] + [(number(99, "nt"), (1.2,))]
    found = {w.layout: w.kernel for w in winners(cases.fill(tmp_path / "a.db", ONE, (problem, kernels)))}
    assert found == {"nn": number(39), "nt": number(99, "nt")}


def test_sessions_are_pooled_and_those_that_cannot_be_trusted_are_not(tmp_path):
    problem = Hgemm((SMALL,))
    path = cases.fill(tmp_path / "a.db", ONE, (problem, [(number(1), (2.0,))]))
    with Store.open(path) as store:
        run = store.open_run()
        run.add_session(number(1).digest, cases.session((SMALL,), (1.5,), "final"))
        run.add_session(number(1).digest, cases.session((SMALL,), (9.0,), "retime", conclusive=False))
    (found,) = winners(path)
    assert found.n_sessions == 2
    assert found.estimate.n_blocks == 16
    assert 1.5 < math.exp(found.estimate.log_ratio) < 2.0


def test_an_environment_is_named_by_a_prefix_or_not_at_all_where_there_is_one(tmp_path):
    problem = Hgemm((SMALL,))
    path = cases.fill(tmp_path / "a.db", ONE, (problem, [(number(1), (2.0,))]))
    other = Environment("cpu", {"processor": "other", "harness": "1"})
    with Store.open(path) as store:
        assert choose_environment(store, None).key == ONE.key
        with pytest.raises(
            ConfigurationError, match=rf"no such environment: expected --env .* {ONE.key} \(one\), found 'zz'"
        ):
            choose_environment(store, "zz")
    cases.fill(path, other, (problem, [(number(1), (2.0,))]))
    with Store.open(path) as store:
        assert choose_environment(store, other.key[:3]).identity == other.identity
        with pytest.raises(ConfigurationError, match=r"not clear: expected --env .*found 2 and no --env"):
            choose_environment(store, None)


# --- folders --------------------------------------------------------------------------------------------------------------


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    def fill(error):
        with filled_folder(tmp_path / "new" / "lib") as work:
            (work / "half").write_text("half")
            raise error

    with pytest.raises(StorageError, match="cannot be filled"):
        fill(OSError(28, "No space left on device"))
    with pytest.raises(KeyboardInterrupt):
        fill(KeyboardInterrupt)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new" / "lib").mkdir(parents=True)
    with filled_folder(tmp_path / "new" / "lib") as work:
        (work / "whole").write_text("whole")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lib"]
    with pytest.raises(ConfigurationError, match="is not empty"):
        fill(AssertionError)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConfigurationError, match="the one that you are in"), filled_folder(Path(".")):
        pass


# --- the CPU target -------------------------------------------------------------------------------------------------------


def here():
    return cpu_environment(find_toolchain(), find_blas().description)


@pytest.fixture(scope="module")
def cpu_archive(tmp_path_factory):
    """Three kernels that share the names of their functions, in two layouts, with a batch."""
    return cases.fill(
        tmp_path_factory.mktemp("archive") / "a.db",
        here(),
        (Hgemm((SMALL, BATCHED), "fp32", ("nn", "nt")), [(NN["blocked"], (2.0, 0.9)), (NT["blocked"], (1.5, 1.5))]),
        (Hgemm((WIDE,)), [(NN["vectorised"], (1.3,))]),
    )


def invoke(archive, *words):
    return CliRunner().invoke(main, ["library", "build", str(archive), *map(str, words)])


@pytest.fixture(scope="module")
def cpu_library(cpu_archive, tmp_path_factory, session_cache):
    """A library, and what was printed when it was built."""
    folder = tmp_path_factory.mktemp("library") / "lib"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CACHE_HOME", str(session_cache))
        result = invoke(cpu_archive, "-o", folder, "--shapes", "16,24,32", "--shapes", "5,6,7,3", "--shapes", "24,40,8")
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_the_library_of_a_cpu_passes_its_own_tests_and_holds_what_won(cpu_library):
    folder, output = cpu_library
    table = json.loads((folder / "evo_hgemm_cpu" / "table.json").read_text())
    found = {(row["layout"], tuple(row["sizes"])): row["digest"] for row in table["rows"]}
    assert found == {
        ("nn", SMALL): NN["blocked"].digest, ("nn", WIDE): NN["vectorised"].digest, ("nt", SMALL): NT["blocked"].digest,
        ("nt", BATCHED): NT["blocked"].digest,
    }  # fmt: skip
    assert "4 products for" in output
    assert output.endswith(f"next: pip install {folder}\n")
    assert build._for_pip(Path("a b")) == "'./a b'"
    assert "nn 5 x 6 x 7, batch 3: no winner, left to numpy" in output
    assert " skipped" not in output
    assert "(not the machine code that was measured)" in output
    rows = list(csv.DictReader((folder / "table.csv").open()))
    assert [row["speedup"] for row in rows] == [str(row["speedup"]) for row in table["rows"]]
    assert {row["environment"] for row in rows} == {here().key}


def test_a_second_library_of_the_same_archive_is_the_same_byte_for_byte(
    cpu_library, cpu_archive, tmp_path, monkeypatch, session_cache
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(session_cache))
    monkeypatch.setattr(build, "run_tests", lambda folder: build.Checked(1, 0))
    assert invoke(cpu_archive, "-o", tmp_path / "again").exit_code == 0
    first, second = cpu_library[0], tmp_path / "again"
    files = [sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()) for folder in (first, second)]
    assert files[0] == files[1]
    assert [name for name in files[0] if (first / name).read_bytes() != (second / name).read_bytes()] == []
    assert not [name for name in files[0] if name.suffix in (".o", ".pyc")]


@long
def test_the_makefile_builds_the_same_library(cpu_library, tmp_path):
    if shutil.which("make") is None:
        pytest.skip("no make")
    shutil.copytree(cpu_library[0], tmp_path / "lib")
    package = tmp_path / "lib" / "evo_hgemm_cpu"
    before = (package / "libevo_hgemm_cpu.so").read_bytes()
    subprocess.run(["make", "-B", "-C", package / "c"], check=True, capture_output=True)
    assert (package / "libevo_hgemm_cpu.so").read_bytes() == before


def test_what_is_generated_passes_the_linter_of_this_project(cpu_library):
    root = Path(__file__).parent.parent
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--config", root / "pyproject.toml", "--no-cache", cpu_library[0]]
    for words in (["check", "--config", "lint.isort.known-first-party=['evo_hgemm_cpu']"], ["format", "--check"]):
        done = subprocess.run([*ruff, *words, *settings], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", ["gcc", "clang"])
def test_compilers_have_nothing_to_say_of_the_dispatcher(cpu_library, kind):
    compiler = shutil.which(kind)
    if compiler is None:
        pytest.skip(f"no {kind}")
    words = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-c", "-o", "/dev/null", "evo_hgemm_cpu.c"]
    subprocess.run([compiler, *words], cwd=cpu_library[0] / "evo_hgemm_cpu" / "c", check=True)


def test_the_library_needs_nothing_of_this_project(cpu_library, tmp_path):
    program = (
        "import sys, numpy as np\nimport evo_hgemm_cpu\n"
        "a, b = np.ones((16, 32), np.float16), np.ones((32, 24), np.float16)\n"
        "assert (evo_hgemm_cpu.matmul(a, b) == 32).all()\n"
        "print(evo_hgemm_cpu.status())\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('evo_l2', 'archive', 'experiments', 'mutators')])"
    )
    environ = {**os.environ, "PYTHONPATH": str(cpu_library[0]), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ready: 4 products for ")
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--env", "zz"), "no such environment"),
        (("--layout", "nt", "--shapes", "24,40,8"), "no winner to build a library of"),
        (("--shapes", "8,8"), "the shape cannot be used"),
        (("--shapes", "none"), "the shapes cannot be used"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(cpu_archive, tmp_path, words, line):
    result = invoke(cpu_archive, "-o", tmp_path / "lib", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"evo-l2: {line}")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_refused_before_anything_is_built(cpu_archive, tmp_path):
    (tmp_path / "mine").write_text("mine")
    result = invoke(cpu_archive, "-o", tmp_path)
    assert (result.exit_code, result.stderr.startswith(f"evo-l2: {tmp_path} is not empty")) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_archive_without_a_winner_says_so(tmp_path):
    with Store.open(tmp_path / "empty.db"):
        pass
    result = invoke(tmp_path / "empty.db", "-o", tmp_path / "lib")
    assert (result.exit_code, "none in the archive" in result.stderr) == (2, True)
    result = invoke(tmp_path / "missing.db", "-o", tmp_path / "lib")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "lib").exists()


@pytest.mark.parametrize("fails", ["tests", "disk", "kernel"])
def test_whatever_fails_while_it_is_built_is_one_line_and_leaves_nothing(tmp_path, fails, monkeypatch, session_cache):
    """A kernel that is wrong; a disk that fills up; a kernel that is refused here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(session_cache))
    source = NN["naive"].source
    if fails == "tests":
        source = source.replace("(_Float16)", "(_Float16)2.0f * (_Float16)", 1) if "(_Float16)" in source else source
    if fails == "kernel":
        source += "\nint counter;\n"
    archive = cases.fill(tmp_path / "a.db", here(), (Hgemm((SMALL,)), [(Kernel(source, "cpu"), (2.0,))]))
    if fails == "disk":

        def full(folder):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(build, "run_tests", full)
    result = invoke(archive, "-o", tmp_path / "lib")
    starts = {
        "tests": "the library is not right",
        "disk": f"{tmp_path / 'lib'} cannot be filled",
        "kernel": "a winner cannot be built here",
    }
    assert result.exit_code != 0
    assert result.stderr.startswith(f"evo-l2: {starts[fails]}")
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == "" or path.name.startswith(".lib")) == []


# --- the CUDA target ------------------------------------------------------------------------------------------------------

A100 = Environment(
    "cuda",
    {**cases.H200.identity, "arch": "sm_80", "multiprocessors": "108", "card": "NVIDIA A100-SXM4-80GB", "memory": "80 GiB"},
)


@pytest.mark.slow
@long
def test_the_library_of_a_card_is_built_and_passes_the_tests_that_need_none(
    tmp_path, cuda_wheels, monkeypatch, session_cache
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(session_cache))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    nn, nt = cases.seeds("cuda", "nn"), cases.seeds("cuda", "nt")
    archive = cases.fill(
        tmp_path / "a.db",
        A100,
        (
            Hgemm(((64, 64, 256, 1), (64, 64, 256, 2)), "fp32", ("nn", "nt")),
            [(nn["splitk"], (2.0, 1.5)), (nt["naive"], (1.5, 1.2))],
        ),
    )
    result = invoke(archive, "-o", tmp_path / "lib", "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert [(row["layout"], row["sizes"][3], row["as_measured"]) for row in facts["products"]] == [
        ("nn", 1, False), ("nn", 2, False), ("nt", 1, False), ("nt", 2, False)
    ]  # fmt: skip
    assert facts["tests_passed"] > 0
    assert facts["tests_skipped"] > 0
    table = json.loads((tmp_path / "lib" / "evo_hgemm" / "table.json").read_text())
    assert (table["arch"], table["compute_capability"], table["compiler"]) == (
        "sm_80",
        [8, 0],
        f"nvrtc {cuda_wheels.version}",
    )
    for kernel in table["kernels"]:
        assert read_cubin(tmp_path / "lib" / "evo_hgemm" / "kernels" / f"{kernel['name']}.cubin").arch.startswith("sm_80")
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--config", Path(__file__).parent.parent / "pyproject.toml", "--no-cache", tmp_path / "lib"]
    for words in (["check", "--config", "lint.isort.known-first-party=['evo_hgemm']"], ["format", "--check"]):
        done = subprocess.run([*ruff, *words, *settings], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_launch_that_the_launcher_lacks_is_named():
    kernel = cases.seeds("cuda", "nn")["hopper"]
    planned = plan(kernel, Hgemm((SMALL,)), SMALL, 132)
    check_launchable(planned, "hopper")
    tensor = replace(planned.tensor_maps[0], dtype="float32")
    with pytest.raises(ConfigurationError, match="cannot launch hopper: expected tensor maps of A, B or C in float16"):
        check_launchable(replace(planned, tensor_maps=(tensor, *planned.tensor_maps[1:])), "hopper")
    with pytest.raises(ConfigurationError, match=r"cannot launch hopper: expected arguments .*, found TA"):
        check_launchable(replace(planned, tensor_maps=planned.tensor_maps[1:]), "hopper")


def test_a_card_that_is_not_in_the_table_is_named(tmp_path, monkeypatch, session_cache):
    monkeypatch.setenv("XDG_CACHE_HOME", str(session_cache))
    kernel = cases.seeds("cuda", "nn")["naive"]
    environment = Environment("cuda", {**A100.identity, "card": "NVIDIA T4"})
    archive = cases.fill(tmp_path / "a.db", environment, (Hgemm((SMALL,)), [(kernel, (2.0,))]))
    result = invoke(archive, "-o", tmp_path / "lib")
    assert result.exit_code == 2
    assert result.stderr.startswith("evo-l2: no such card: expected one of A100")
    assert not (tmp_path / "lib").exists()
