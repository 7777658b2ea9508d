"""Options that do not apply, or do not go together: one line that says so, and exit status 2, before anything is done."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from evo_l2.errors import ConfigurationError
from experiments.cli import main
from experiments.config import load_config

SEEDS = Path(__file__).parent.parent / "experiments" / "seeds"
IN_C, ON_CARD = str(SEEDS / "cpu" / "naive_nn.c"), str(SEEDS / "cuda" / "naive_nn.cu")
NO_TUNABLES = """\
//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid 1
//! block 32
extern "C" __global__ void hgemm(const void *A, const void *B, void *C, int M, int N, int K) {}
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["verify", IN_C, "--arch", "sm_80"], "--arch is of no use here: expected a CUDA kernel"),
        (["verify", IN_C, "--arch", ""], "--arch is of no use here: expected a CUDA kernel"),
        (["verify", IN_C, "--device", "0"], "--device is of no use here: expected a CUDA kernel"),
        (["verify", IN_C, "--builder", "nvrtc"], "--builder is of no use here: expected a CUDA kernel"),
        (["verify", IN_C, "--device", "0", "--builder", "nvcc"], "--device and --builder are of no use here"),
        (["verify", IN_C, "--target", "cuda"], "is no kernel for a card: expected launches with a grid"),
        (["verify", ON_CARD, "--arch", ""], "expected one of sm_80, sm_86, sm_90a, sm_100a, found ''"),
        (["verify", ON_CARD, "--arch", "compute_80"], "expected --arch sm_80, found 'compute_80'; try: --arch sm_80"),
        (["sass", ON_CARD, "--arch", "compute_90a"], "expected --arch sm_90a, found 'compute_90a'"),
        (["verify", ON_CARD, "--arch", "sm_80", "--device", "0"], "--arch and --device do not go together"),
        (["sass", IN_C], "is no kernel for a card: expected launches with a grid"),
        (["bench", IN_C], "is no kernel for a card: expected launches with a grid"),
        (["bench", ON_CARD, "--against", IN_C], "is no kernel for a card: expected launches with a grid"),
        (["bench", ON_CARD, "-n", "1"], "--count is of no use here: expected an archive"),
        (["bench", ON_CARD, "--mode", "host", "--blocks", "40"], "--blocks is of no use here: expected --mode offline"),
        (["run", "smoke", "--dry-run", "--replay", "x.db"], "--replay is of no use here: expected a run that is started"),
        (["presets", "hgemm-A100"], "try: evo-l2 presets hgemm-a100"),
        (["run", "Hgemm-A100"], "try: evo-l2 run hgemm-a100"),
        (["presets", "smoke", "--keys"], "--keys lists the keys of all presets: expected no name, found 'smoke'"),
    ],
)
def test_options_without_effect_are_one_line_and_status_two(arguments, says):
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("evo-l2: ")
    assert says in line
    assert "expected" in line
    assert "found" in line


def test_results_in_a_folder_that_is_not_there_are_refused_before_anything_is_measured(tmp_path):
    done = CliRunner().invoke(main, ["bench", ON_CARD, "--json-to", str(tmp_path / "none" / "x.json")])
    assert done.exit_code == 2
    assert f"expected to write {tmp_path}/none/x.json, found no folder {tmp_path}/none; try: " in done.stderr


def test_a_seed_of_the_other_target_is_told_before_a_run_starts(tmp_path):
    options = ["--dry-run", "--set", f"seeds=[{IN_C}]", "--set", "cuda.mode=build-only", "--set", "cuda.card=A100"]
    done = CliRunner().invoke(main, ["run", "hgemm-a100", *options])
    assert done.exit_code == 2
    assert "naive_nn.c is no kernel for a card: expected launches with a grid" in done.stderr
    path = tmp_path / "typo.cu"
    path.write_text(NO_TUNABLES.replace("grid 1", "grid ceildiv(M, 8)"))
    done = CliRunner().invoke(main, ["run", "hgemm-a100", *options, "--set", f"seeds=[{path}]"])
    assert done.stderr.count("try: ") == 1
    assert f"try: ceil_div(a, b), then evo-l2 verify {path}" in done.stderr


def test_a_sweep_needs_tunables(tmp_path):
    path = tmp_path / "plain.cu"
    path.write_text(NO_TUNABLES)
    done = CliRunner().invoke(main, ["bench", str(path), "--sweep", "4"])
    assert done.exit_code == 2
    assert "--sweep is of no use here: expected a kernel with tunables, found none; try: " in done.stderr


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("timing.min_batch_ms=3", r"expected target: cpu \(on a card it is cuda\.sample_us\), found target: cuda"),
        ("cuda.device=1", "expected cuda.mode: run, .*, found target: cuda, cuda.mode: build-only"),
        ("cuda.allow_busy=true", "expected cuda.mode: run"),
        ("cuda.sample_us=90", "expected cuda.mode: run"),
        ("timing.finalists=1", "expected cuda.mode: run"),
        ("limits.call_s=1", "expected cuda.mode: run"),
    ],
)
def test_keys_that_the_target_does_not_feel_are_refused_when_they_are_typed(override, says):
    with pytest.raises(ConfigurationError, match=says):
        load_config("hgemm-a100", ["cuda.mode=build-only", override])


def test_keys_of_a_file_that_its_target_does_not_feel_are_no_mistake():
    config = load_config("smoke", ["target=cuda", "cuda.mode=build-only", "cuda.card=A100", "cuda.device=null"])
    assert config.timing.min_batch_ms != type(config.timing).model_fields["min_batch_ms"].default
