"""A CUDA kernel from its file to its report without a card: prepare, the memo of what was read, commands, the loop."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from evo_l2.errors import ConfigurationError, DeviceError, ToolchainError
from evo_l2.evaluation import Status
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda import tool_process
from evo_l2.targets.cuda.build_only import BuildOnlyEvaluator
from evo_l2.targets.cuda.cards import CARDS, card_for, find_card
from evo_l2.targets.cuda.devices import Device, choose_card, present_devices
from evo_l2.targets.cuda.inspection import inspect
from evo_l2.targets.cuda.prepare import prepare
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler
from experiments.cli import main
from experiments.doctor_cuda import cuda_findings
from experiments.seeds import seed_names

ROOT = Path(__file__).parent.parent
SEEDS = ROOT / "experiments" / "seeds" / "cuda"
ROGUES = ROOT / "tests" / "rogues" / "cuda"
SHAPE = (256, 384, 512, 2)
KINDS = {
    "naive": ("none", "none"), "tiled": ("none", "staged"), "wmma": ("wmma/mma fp32", "staged"),
    "mma": ("wmma/mma fp32", "cp.async"), "mma_f16": ("wmma/mma fp16", "cp.async"),
    "splitk": ("wmma/mma fp32", "cp.async"), "hopper": ("wgmma fp32", "tma"),
    "hopper_splitk": ("wgmma fp32", "tma"),
}  # fmt: skip
"""Idea of a seed to its kind of matrix instruction and of copy."""
FITTING = [
    pytest.param(name, arch, id=f"{name}-{arch}")
    for layout in ("nn", "nt")
    for arch in ("sm_80", "sm_90a")
    for name in seed_names("cuda", layout, architecture=arch)
]


@pytest.fixture(scope="module")
def compiler(cuda_wheels, tmp_path_factory):
    """A compiler whose builds, with what was read of them, are this module's own."""
    with CudaCompiler(cuda_wheels, tmp_path_factory.mktemp("cache"), builder="nvrtc") as made:
        yield made


@pytest.fixture(scope="module")
def environ(cuda_wheels, session_cache, tmp_path_factory):
    """Commands see the session's cache, and no card."""
    tools = tmp_path_factory.mktemp("no-card")
    fake_tool(tools, "exit 9")
    return {
        **os.environ, "XDG_CACHE_HOME": str(session_cache), "PYTHONPATH": str(ROOT), "COLUMNS": "100",
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip


def fake_tool(folder, script):
    folder.mkdir(exist_ok=True)
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def evo(*arguments, environ):
    """A command in a process of its own."""
    command = [sys.executable, "-m", "experiments", *map(str, arguments)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, cwd=ROOT)


def here(*arguments, environ):
    """A command in this process, which spares the time to start one."""
    done = CliRunner().invoke(main, [*map(str, arguments)], env=environ)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def seed(name):
    return Kernel.from_file(SEEDS / f"{name}.cu", "cuda")


def problem_for(kernel, accumulate="fp32", shape=SHAPE):
    return Hgemm((shape,), accumulate, (kernel.launch.layout,))


# --- prepare ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "arch"), FITTING)
def test_a_seed_comes_through_every_gate(name, arch, nvrtc):
    kernel, card, idea = seed(name), card_for(arch), name.rpartition("_")[0]
    prepared = prepare(kernel, problem_for(kernel, "fp16" if idea == "mma_f16" else "fp32"), nvrtc, card)
    assert prepared.verdict is None, prepared.verdict
    facts = prepared.build.resources
    assert (facts["matrix_kind"], facts["copy_kind"]) == KINDS[idea]
    assert facts["arch"] == arch
    assert facts["spill_bytes"] == 0
    assert 0 < facts["occupancy"] <= 1
    assert facts["blocks_per_sm"] >= 1
    assert facts["n_launches"] == (2 if idea == "splitk" else 1)
    assert prepared.artefact.read_bytes()[:4] == b"\x7fELF"
    assert None not in prepared.measures
    schema = problem_for(kernel).measures("cuda")
    assert len(schema.cell(prepared.measures)) == len(schema.axes)


def test_sums_in_half_are_refused_in_the_class_of_single_precision(nvrtc):
    kernel = seed("mma_f16_nn")
    verdict = prepare(kernel, problem_for(kernel), nvrtc, card_for("sm_80")).verdict
    assert (verdict.status, verdict.gate) == (Status.UNLAUNCHABLE, "matrix-class")
    assert "expected fp16 products with fp32 sums, found fp16 products with fp16 sums" in verdict.message
    assert "in line " in verdict.message
    assert verdict.build.resources["matrix_kind"] == "wmma/mma fp16"
    assert verdict.measures[0] == 2.0


def test_a_kernel_for_hopper_is_no_kernel_for_ampere(nvrtc):
    kernel = seed("hopper_nn")
    verdict = prepare(kernel, problem_for(kernel), nvrtc, card_for("sm_80")).verdict
    assert verdict.status in (Status.BUILD_ERROR, Status.UNLAUNCHABLE)
    assert (
        prepare(kernel, problem_for(kernel, shape=(256, 256, 100, 1)), nvrtc, find_card("H100")).verdict.gate == "tensor-maps"
    )


def test_two_sources_with_one_machine_code_are_one_kernel(nvrtc):
    kernel, card = seed("naive_nn"), card_for("sm_80")
    problem = problem_for(kernel)
    first = prepare(kernel, problem, nvrtc, card)
    renamed = Kernel(kernel.source.replace("hgemm", "product") + "// the same\n", "cuda")
    assert renamed.digest != kernel.digest
    assert prepare(renamed, problem, nvrtc, card).identity == first.identity
    tunable = kernel.tunables[0]
    other = kernel.with_tunables({tunable.name: next(v for v in tunable.domain if v != tunable.value)})
    assert prepare(other, problem, nvrtc, card).identity != first.identity


def test_gates_are_left_out_only_when_asked(nvrtc):
    kernel = Kernel.from_file(ROGUES / "right_ten_times.cu", "cuda")
    problem, card = problem_for(kernel), card_for("sm_80")
    assert prepare(kernel, problem, nvrtc, card).verdict.gate == "symbols"
    assert prepare(kernel, problem, nvrtc, card, frozenset({"clock"})).verdict.gate == "symbols"
    assert prepare(kernel, problem, nvrtc, card, frozenset({"symbols"})).verdict is None


# --- what was read of a build -----------------------------------------------------------------------------------------


def built(compiler, name="mma_nn"):
    kernel = seed(name)
    return compiler.build(kernel, "sm_80"), tuple(call.entry for call in kernel.launch.calls), problem_for(kernel)


def memos(build):
    return sorted(build.cubin.parent.glob("inspection-*.json"))


def broken_disassembler(folder):
    path = folder / "nvdisasm"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return path


def test_a_build_is_read_once(compiler, monkeypatch):
    build, entries, problem = built(compiler)
    first = inspect(build, entries, compiler.toolkit, problem)
    assert first.refusals == ()
    assert first.resources["n_matrix"] > 0
    monkeypatch.setattr("evo_l2.targets.cuda.inspection.read_sass", None)
    assert inspect(build, entries, compiler.toolkit, problem) == first
    assert len(memos(build)) == 1


@pytest.mark.parametrize("name", ["mma_nn", "splitk_nn"])
def test_a_memo_says_what_reading_says(compiler, name):
    build, entries, problem = built(compiler, name)
    kept = inspect(build, entries, compiler.toolkit, problem)
    for memo in memos(build):
        memo.unlink()
    assert inspect(build, entries, compiler.toolkit, problem) == kept
    again = inspect(build, entries, compiler.toolkit, problem)
    assert again == kept
    assert again.code.entries[entries[0]] == kept.code.entries[entries[0]]


@pytest.mark.parametrize("name", ["naive_nn", "mma_nn", "splitk_nn", "mma_f16_nn"])
def test_a_warm_disassembler_changes_nothing_about_a_reading(compiler, name):
    build, entries, problem = built(compiler, name)
    problem = dataclasses.replace(problem, accumulate="fp32")
    plain = inspect(build, entries, compiler.toolkit, problem)
    for _ in range(2):
        for memo in memos(build):
            memo.unlink()
        assert inspect(build, entries, compiler.toolkit, problem, compiler.disassembler) == plain
    assert bool(plain.refusals) == (name == "mma_f16_nn")


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '{"code": {}}', '{"code": {"entries": [1]}, "digest": 1}', "half", "binary"]
)
def test_a_damaged_memo_is_read_again(compiler, damage):
    build, entries, problem = built(compiler)
    first = inspect(build, entries, compiler.toolkit, problem)
    (memo,) = memos(build)
    whole = memo.read_bytes()
    memo.write_bytes({"half": whole[: len(whole) // 2], "binary": b"\xff\x00" + whole}.get(damage, damage.encode()))
    assert inspect(build, entries, compiler.toolkit, problem) == first
    assert memo.read_bytes() == whole


def test_a_memo_is_for_one_class_and_one_disassembler(compiler, tmp_path):
    build, entries, problem = built(compiler)
    first = inspect(build, entries, compiler.toolkit, problem)
    halves = dataclasses.replace(problem, accumulate="fp16")
    assert inspect(build, entries, compiler.toolkit, halves) == first
    assert len(memos(build)) == 2
    other = dataclasses.replace(compiler.toolkit, nvdisasm=broken_disassembler(tmp_path))
    with pytest.raises(ToolchainError, match="disassembler fails"):
        inspect(build, entries, other, problem)


# --- the evaluator ----------------------------------------------------------------------------------------------------


def test_the_evaluator_builds_and_never_times(nvrtc, session_cache):
    kernel, cache = seed("wmma_nn"), session_cache / "evo-l2" / "cuda"
    with BuildOnlyEvaluator(problem_for(kernel), cache, find_card("A100"), builder="nvrtc") as evaluator:
        identity = evaluator.environment.identity
        assert identity["card"] == "none (built for A100)"
        assert (identity["arch"], identity["compiler"]) == ("sm_80", nvrtc.builder)
        prepared = evaluator.prepare(kernel)
        evaluation = evaluator.measure(prepared, np.random.SeedSequence(1))
        assert evaluation.verdict.status is Status.BUILT
        assert evaluation.verdict.gate is None
        assert evaluation.session is None
        assert evaluation.verdict.measures == prepared.measures
        assert evaluation.verdict.build.resources == prepared.build.resources
        evaluator.close()


def test_environments_of_two_cards_are_two(cuda_wheels, session_cache):
    found = set()
    for card in CARDS[:4]:
        with BuildOnlyEvaluator(Hgemm((SHAPE,)), session_cache / "evo-l2" / "cuda", card, builder="nvrtc") as evaluator:
            found.add(evaluator.environment.identity["card"])
    assert len(found) == 4


# --- cards of this machine --------------------------------------------------------------------------------------------


def use_tool(tmp_path, monkeypatch, script):
    fake_tool(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'NVIDIA A100-SXM4-80GB, 8.0'", (Device("NVIDIA A100-SXM4-80GB", (8, 0)),)),
        (
            "echo 'Tesla T4, 7.5'; echo 'NVIDIA H100 80GB HBM3, 9.0'",
            (Device("Tesla T4", (7, 5)), Device("NVIDIA H100 80GB HBM3", (9, 0))),
        ),
        ("echo 'Card, with a comma, 9.0'", (Device("Card, with a comma", (9, 0)),)),
        ("echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver'; exit 9", ()),
        ("echo 'No devices were found'", ()),
        ("exit 0", ()),
        ("kill -SEGV $$", ()),
        ("printf '\\377\\376, 9.0\\n' >&2", ()),
    ],
)
def test_cards_are_those_that_the_driver_names(tmp_path, monkeypatch, script, found):
    use_tool(tmp_path, monkeypatch, script)
    assert present_devices() == found


def test_commands_say_that_the_driver_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(tool_process, "_TIMEOUT_S", 1.0)
    use_tool(tmp_path, monkeypatch, "sleep 30")
    done = CliRunner().invoke(main, ["verify", str(SEEDS / "naive_nn.cu")])
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("evo-l2: nobody knows which cards are here: expected nvidia-smi to answer, found no answer: ")
    assert "nvidia-smi, which had not ended after 1 s; try: " in line
    finding = next(cuda_findings())
    assert (finding.what, finding.ok) == ("NVIDIA cards", None)
    assert finding.detail == "unknown: no answer: nvidia-smi, which had not ended after 1 s; kernels can be built"


def test_without_the_drivers_tool_there_is_no_card(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert present_devices() == ()
    assert present_devices("no-such-tool") == ()


def test_a_run_takes_the_card_that_is_there_and_no_other(tmp_path, monkeypatch):
    use_tool(tmp_path, monkeypatch, "echo 'Tesla T4, 7.5'; echo 'NVIDIA A100-SXM4-80GB, 8.0'")
    devices = present_devices()
    assert choose_card("auto", devices)[0].name == "A100"
    assert choose_card("a100", devices)[0].name == "A100"
    with pytest.raises(
        DeviceError, match=r"another card: expected H100, found Tesla T4, NVIDIA A100-SXM4-80GB; try: .*build-only"
    ):
        choose_card("H100", devices)
    with pytest.raises(DeviceError, match=r"no card to run on: expected one of A100, .*, found Tesla T4; try: "):
        choose_card("auto", devices[:1])
    with pytest.raises(DeviceError, match="no NVIDIA card"):
        choose_card("auto", ())
    with pytest.raises(ConfigurationError, match="no such card"):
        choose_card("Voodoo 3", devices)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_verify_prints_the_whole_report(environ):
    done = evo("verify", SEEDS / "mma_nn.cu", "--arch", "sm_80", environ=environ)
    assert done.returncode == 0, done.stderr
    for words in (
        "\nbuilt by ",
        " for A100 (sm_80); nothing was run",
        "\n  tunables   ",
        "BK ",
        "n_registers",
        "occupancy",
        "matrix_kind wmma/mma fp32",
        "copy_kind cp.async",
        "built: every gate before the launch was passed",
    ):
        assert words in done.stdout
    assert done.stderr == ""


def test_verify_says_which_gate_and_why(environ):
    done = here("verify", ROGUES / "evict_last.cu", "--builder", "nvrtc", environ=environ)
    assert done.returncode == 1
    assert (
        "unlaunchable at gate cache-policy: the kernel keeps data in L2 beyond its turn (evict_last) in line" in done.stdout
    )
    assert "why it matters: " in done.stdout
    assert "\nbuilt by " in done.stdout
    assert "n_registers" in done.stdout
    refused = here("verify", ROGUES / "host_include.cu", environ=environ)
    assert "\nto be built by " in refused.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines() if line.startswith("  "))


@pytest.mark.parametrize("name", ["mma_nn", "naive_nt"])
def test_verify_speaks_json(environ, name):
    done = here("verify", SEEDS / f"{name}.cu", "--arch", "sm_90a", "--json", "--builder", "nvrtc", environ=environ)
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert (report["status"], report["gate"], report["run"]) == ("built", None, False)
    assert (report["card"], report["arch"]) == ("H100", "sm_90a")
    assert report["digest"] == seed(name).digest
    assert len(report["identity"]) == len(report["machine_code"]) == 64
    assert report["resources"]["n_registers"] > 0
    assert set(report["measures"]) == {"matrix_kind", "copy_kind", "stages", "tile_area", "occupancy"}


def test_verify_speaks_json_of_what_is_refused(environ):
    done = here("verify", ROGUES / "host_include.cu", "--json", environ=environ)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["status"], report["gate"], report["resources"]) == ("rejected", "includes", None)


def test_verify_tells_in_json_all_that_the_table_shows(environ):
    path = SEEDS / "mma_f16_nn.cu"
    done = here("verify", path, "--arch", "sm_80", "--shape", "64,128,32,2", "--json", "--builder", "nvrtc", environ=environ)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["status"], report["gate"]) == ("unlaunchable", "matrix-class")
    assert report["resources"]["matrix_kind"] == "wmma/mma fp16"
    assert (report["resources"]["n_async_copy"] > 0, report["resources"]["widest_async_copy_bits"]) == (True, 128)
    assert len(report["machine_code"]) == 64
    assert report["log"]
    assert report["shape"] == {"M": 64, "N": 128, "K": 32, "BATCH": 2}
    assert (report["accumulate"], report["layout"]) == ("fp32", "nn")
    assert {"name": "WN", "value": 64, "domain": [32, 64]}.items() <= report["tunables"][1].items()
    assert report["hint"].startswith("--accumulate fp16")
    shown = here("verify", path, "--arch", "sm_80", "--builder", "nvrtc", environ=environ).stdout
    assert "\ntry: --accumulate fp16" in shown
    (why,) = [line for line in shown.splitlines() if line.startswith("why it matters: ")]
    assert "narrower" not in why
    admitted = here("verify", path, "--arch", "sm_80", "--accumulate", "fp16", "--json", "--builder", "auto", environ=environ)
    assert json.loads(admitted.stdout)["hint"] is None


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_verify_tells_in_json_of_a_launch_that_does_not_parse(environ, target, tmp_path):
    path = tmp_path / f"broken{'.cu' if target == 'cuda' else '.c'}"
    path.write_text("//! layout nn\n//! launch f(A: sideways)\n", encoding="utf-8")
    done = here("verify", path, "--json", environ=environ)
    report = json.loads(done.stdout)
    assert done.returncode == 2
    assert (report["status"], report["gate"], report["line"], report["run"]) == ("rejected", "launch", 2, False)
    assert "an argument does not parse" in report["message"]
    assert "an argument does not parse" in done.stderr
    assert here("verify", path, environ=environ).stdout == ""


def test_verify_notes_what_gates_on_results_may_refuse(environ, tmp_path):
    path = tmp_path / "sums.cu"
    path.write_text(
        "//! layout nn\n//! launch f(A: in, B: in, C: out, M)\n//! grid 1\n//! block 32\n#include <cuda_fp16.h>\n"
        "#define STEP 3 //? 1 2\n"
        'extern "C" __global__ void f(const half *A, const half *B, half *C, int M) {\n'
        "  atomicAdd((half2 *)C, __hmul2(((const half2 *)A)[threadIdx.x * STEP], ((const half2 *)B)[threadIdx.x])); }\n"
    )
    notes = json.loads(here("verify", path, "--json", "--builder", "nvrtc", environ=environ).stdout)["notes"]
    assert [words in note for words, note in zip(("STEP is 3", "atomic", "half-precision"), notes, strict=True)] == [True] * 3
    path.write_text(path.read_text().replace("//! grid", "//! nondeterministic\n//! grid").replace("//? 1 2", "//? 1 3"))
    done = here("verify", path, "--builder", "nvrtc", "--accumulate", "fp16", environ=environ)
    assert "  note " not in done.stdout


def test_sass_speaks_json_and_goes_by_address(environ):
    done = here("sass", SEEDS / "naive_nn.cu", "--json", environ=environ)
    report = json.loads(done.stdout)
    assert (report["arch"], report["digest"]) == ("sm_80", seed("naive_nn").digest)
    (function,) = report["functions"]
    addresses = [row["address"] for row in function["instructions"]]
    assert addresses == list(range(0, 16 * len(addresses), 16))
    backwards = [row for row in function["instructions"] if row["target"] is not None and row["target"] < row["address"]]
    assert backwards
    shown = here("sass", SEEDS / "naive_nn.cu", "--order", "address", environ=environ).stdout
    assert f"// to {backwards[0]['target']:04x}" in shown
    assert "hgemm:\n" in shown


def test_sass_names_the_compilers_first_complaint_alone(environ):
    done = here("sass", ROGUES / "syntax_error.cu", environ=environ)
    assert done.returncode == 2
    assert "^" not in done.stderr
    assert " error" in done.stderr


def test_sass_stands_below_its_source(environ):
    done = here("sass", SEEDS / "mma_nn.cu", environ=environ)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    begin = next(i for i, line in enumerate(lines) if 'asm volatile("mma.sync.aligned' in line)
    end = next(i for i, line in enumerate(lines) if i > begin and line[5:] == "  }")
    matrix = [i for i, line in enumerate(lines) if " HMMA." in line]
    assert matrix
    assert all(begin < i < end and "HMMA.16816.F32" in lines[i] for i in matrix)
    source = seed("mma_nn").source.splitlines()
    numbered = [line for line in lines if line[:5].strip().isdigit() and line[5:7] in ("  ", "")]
    assert [line[7:].rstrip() for line in numbered] == [line.rstrip() for line in source]
    assert "LDGSTS" in done.stdout


def test_sass_obeys_nothing_that_a_source_says_to_a_terminal(environ, tmp_path):
    text = seed("naive_nn").source
    for name, line, says in (
        ("hidden", "// \x1b[31mred", "U+001B"),
        ("reads", '#include "/etc/hostname"', "may not be included"),
    ):
        path = tmp_path / f"{name}.cu"
        path.write_text(text.replace("#include", f"{line}\n#include", 1), encoding="utf-8")
        done = evo("sass", path, environ=environ)
        assert done.returncode == 2
        assert "\x1b" not in done.stdout + done.stderr
        assert says in done.stderr or "control character" in done.stderr


def test_a_toolkit_that_is_passed_over_is_told(environ, tmp_path):
    done = evo("verify", SEEDS / "naive_nn.cu", environ={**environ, "CUDA_HOME": str(tmp_path)})
    assert done.returncode == 0
    assert "CUDA_HOME passed over" in done.stderr


def test_an_architecture_under_another_name_is_told(environ):
    done = evo("verify", SEEDS / "naive_nn.cu", "--arch", "sm_90", environ=environ)
    assert done.returncode == 0
    assert "sm_90 is built for as sm_90a" in done.stderr


def test_a_card_kernel_without_its_suffix_says_what_to_type(environ, tmp_path):
    path = tmp_path / "kernel.txt"
    path.write_text(seed("naive_nn").source, encoding="utf-8")
    done = evo("verify", path, environ=environ)
    assert done.returncode == 2
    assert "--target cuda" in done.stderr


def test_sass_shows_what_a_gate_refuses(environ):
    done = here("sass", ROGUES / "half_sums_by_mma.cu", "--builder", "nvrtc", environ=environ)
    assert done.returncode == 0
    assert "HMMA.16816.F16" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (
            ("verify", SEEDS / "mma_nn.cu", "--arch", "sm_42"),
            2,
            "no card is known for this architecture: expected one of sm_80",
        ),
        (("verify", ROGUES / "nothing.cu"), 2, "No such file"),
        (("verify", ROGUES / "no_launch.cu"), 2, "no kernel"),
        (("sass", ROGUES / "syntax_error.cu"), 2, "does not build"),
        (("sass", ROGUES / "no_launch.cu"), 2, "no kernel"),
    ],
)
def test_mistakes_are_one_line(environ, arguments, status, says):
    done = here(*arguments, environ=environ)
    assert done.returncode == status
    assert says.lower() in done.stderr.lower()
    assert done.stderr.startswith("evo-l2: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


# --- the loop ---------------------------------------------------------------------------------------------------------

BUILD_ONLY = (
    "--set=cuda.mode=build-only", "--set=cuda.card=A100", "--set=generator.kind=none",
    "--set=search.operators={parametric: 1}", "--set=cuda.builder=nvrtc",
)  # fmt: skip


@pytest.mark.parametrize("preset", ["hgemm-auto", "hgemm-a100", "hgemm-h100"])
def test_a_preset_without_its_card_is_one_clear_line(environ, preset, tmp_path):
    db = tmp_path / "never.db"
    done = here(
        "run", preset, "--set=generator.kind=none", "--set=search.operators={parametric: 1}", "--db", db, environ=environ
    )
    assert done.returncode in (1, 2)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("evo-l2: ")
    assert "no NVIDIA card" in line
    assert "cuda.mode=build-only" in line
    assert not db.exists()


def test_the_loop_builds_gates_and_archives_without_running(environ, tmp_path):
    db = tmp_path / "built.db"
    done = evo("run", "hgemm-auto", *BUILD_ONLY, "--set=budget.evaluations=12", "--db", db, environ=environ)
    assert done.returncode == 0, done.stderr
    assert "nothing is run, nothing is timed" in done.stderr
    assert "none (built for A100)" in done.stderr
    assert "Nothing was run: " in done.stdout
    assert "kernels were built, read and gated, and have no times" in " ".join(done.stdout.split())
    (stats,) = json.loads(here("archive", "stats", db, "--json", environ=environ).stdout)
    assert stats["statuses"] == {"built": 12}
    assert " built " in here("archive", "stats", db, environ=environ).stdout
    assert stats["best"]["speedup"] is None
    assert 2 <= stats["cells"] <= 12
    assert len(json.loads(here("archive", "top", db, "--all", "--json", environ=environ).stdout)) >= stats["cells"]
    head, *rows, end = here("archive", "top", db, environ={**environ, "COLUMNS": "80"}).stdout.splitlines()
    assert head.split() == ["kernel", "matrix", "kind", "copy", "kind", "stages", "tile", "area", "occupancy"]
    assert len(rows) == stats["cells"]
    assert all(len(row) <= 80 for row in (head, *rows))
    assert end == "none of them was ever run"
    folder = tmp_path / "elites"
    exported = here("archive", "export", db, "--to", folder, environ=environ)
    assert exported.returncode == 0, exported.stderr
    assert len(list(folder.glob("*.cu"))) == stats["cells"]
    for path in folder.glob("*.cu"):
        assert Kernel.from_file(path, "cuda").tunables
