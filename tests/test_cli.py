"""The command line: results on stdout, one line for every mistake, exit 0, 1, 2 or 130."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Estimate
from experiments.cli import main
from experiments.winners import ratio

SEED = "experiments/seeds/cpu/vectorised_nn.c"
ROOT = Path(__file__).parent.parent
TINY = ("--set=timing.blocks=8", "--set=timing.min_batch_ms=0.5", "--set=budget.evaluations=5", "--set=timing.final_blocks=8")
WRONG = """\
//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K) {
    for (int i = 0; i < M * N; i++) C[i] = 0;
}
"""


@pytest.fixture(scope="module")
def environ(session_cache):
    """An environment with the session's cache."""
    return {**os.environ, "XDG_CACHE_HOME": str(session_cache), "COLUMNS": "100"}


@pytest.fixture(scope="module")
def db(environ, tmp_path_factory):
    """The archive of one short run on the CPU target."""
    path = tmp_path_factory.mktemp("archive") / "tiny.db"
    done = evo("run", "smoke", *TINY, "--db", path, environ=environ)
    assert done.returncode == 0, done.stderr
    return path


def evo(*arguments, environ, **options):
    command = [sys.executable, "-m", "experiments", *map(str, arguments)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, cwd=ROOT, **options)


def complaint(*arguments, status, **environ):
    """The one line that a command prints to stderr."""
    done = CliRunner().invoke(main, [str(a) for a in arguments], env=environ)
    assert done.exit_code == status, done.output
    assert "Traceback" not in done.output
    assert done.stdout == ""
    assert done.stderr.startswith("evo-l2: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def answer(*arguments, db):
    """What a command prints as JSON."""
    done = CliRunner().invoke(main, [*arguments[:2], str(db), *arguments[2:], "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def n_candidates(path):
    """How many candidates of a living run are stored."""
    if not path.exists():
        return 0
    done = CliRunner().invoke(main, ["archive", "stats", str(path), "--json"])
    return sum(run["candidates"] for run in json.loads(done.stdout)) if done.exit_code == 0 else 0


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "quikstart"], "try: evo-l2 run quickstart"),
        (["run", "smoke", "--set", "search.bach=3"], "perhaps search.batch"),
        (["run", "smoke", "--set", "search.batch=x"], "expected a whole number"),
        (["run", "smoke", "--set", "cuda.mode=build-only"], "cuda is set for a run on the CPU"),
        (["run", "none.yaml"], "found no file"),
        (["run", "smoke", "--set", "seeds=[none.c]", "--dry-run"], "none.c cannot be read"),
        (["verify", "none.c"], "cannot be read"),
        (["verify", SEED, "--shape", "9,9"], "expected M,N,K"),
        (["verify", SEED, "--shape", "9,9,0"], "from 1 to"),
        (["presets", "quikstart"], "no such preset"),
    ],
)
@pytest.mark.beside
def test_a_mistake_of_the_user_is_one_line_and_status_two(arguments, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert words in complaint(*arguments, status=2)


@pytest.mark.parametrize("command", [["archive", "stats"], ["archive", "top"], ["resume"]])
def test_a_file_that_is_missing_or_no_archive_is_one_line_and_status_one(command, tmp_path):
    assert "no such archive" in complaint(*command, tmp_path / "none.db", status=1)
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("no database\n" * 100)
    assert "no archive" in complaint(*command, tmp_path / "text.db", status=1)


def test_files_that_are_no_kernels_are_refused_with_their_name(tmp_path):
    for name, data in {"words.c": b"int x;\n", "bytes.c": b"\xff\xfe", "nul.c": b"//! layout nn\0"}.items():
        (tmp_path / name).write_bytes(data)
        assert name in complaint("verify", tmp_path / name, status=2)


@pytest.mark.beside
def test_a_missing_compiler_is_one_line_with_the_command_to_type(environ, tmp_path):
    done = evo("run", "smoke", "--db", tmp_path / "x.db", environ={**environ, "PATH": str(tmp_path), "CC": ""})
    assert done.returncode == 1
    assert done.stderr.startswith("evo-l2: no C compiler")
    assert "apt-get install" in done.stderr


@pytest.mark.beside
def test_a_cache_that_cannot_be_written_is_one_line(environ, tmp_path):
    done = evo("run", "smoke", "--db", tmp_path / "x.db", environ={**environ, "XDG_CACHE_HOME": "/proc/none"})
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "/proc/none" in done.stderr


@pytest.mark.beside
def test_an_archive_that_cannot_be_written_is_one_line(environ):
    done = evo("run", "smoke", "--db", "/proc/none.db", environ=environ)
    assert done.returncode == 1
    assert "/proc/none.db cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_tracebacks_show_on_request(tmp_path):
    done = CliRunner().invoke(main, ["archive", "top", str(tmp_path / "none.db")], env={"EVO_L2_DEBUG": "1"})
    assert type(done.exception).__name__ == "StorageError"


@pytest.mark.beside
def test_a_package_of_another_distribution_is_reported(environ, tmp_path):
    """A top-level package `archive` that Python finds first stops every command, and `doctor` says where it is."""
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "__init__.py").write_text("")
    shadowed = {**environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [Path(sys.executable).parent / "evo-l2", "presets"], env=shadowed, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert f"archive from {tmp_path}" in done.stderr
    command = [Path(sys.executable).parent / "evo-l2", "doctor", "--json"]
    done = subprocess.run(command, env=shadowed, capture_output=True, text=True, cwd=tmp_path)
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert findings["four packages"]["ok"] is False
    assert f"archive from {tmp_path}" in findings["four packages"]["detail"]


# --- answers ----------------------------------------------------------------------------------------------------------


def test_presets_lists_each_with_its_purpose_and_every_key():
    listed = json.loads(CliRunner().invoke(main, ["presets", "--json"]).stdout)
    assert {"quickstart", "hgemm-cpu", "smoke"} <= set(listed)
    keys = json.loads(CliRunner().invoke(main, ["presets", "--keys", "--json"]).stdout)
    assert {"key": "search.batch", "default": 16, "what": "Candidates asked for at once.", "values": []} in keys
    values = {key["key"]: key["values"] for key in keys}
    assert values["target"] == ["cpu", "cuda"]
    assert values["problem.accumulate"] == ["fp32", "fp16"]
    assert values["problem.layouts"] == ["nn", "nt"]
    assert values["cuda.builder"] == ["auto", "nvcc", "nvrtc"]
    assert "    one of: cpu, cuda" in CliRunner().invoke(main, ["presets", "--keys"]).stdout.splitlines()
    assert CliRunner().invoke(main, ["presets", "smoke"]).stdout.startswith("# ")


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.beside
def test_keys_fit_any_width_each_with_its_default_beside_it_and_its_meaning_below(width):
    done = CliRunner().invoke(main, ["presets", "--keys"], env={"COLUMNS": str(width)})
    lines = done.stdout.splitlines()
    assert "search.batch  (default 16)" in lines
    assert lines[lines.index("search.batch  (default 16)") + 1] == "    Candidates asked for at once."
    meanings = [line for line in lines if line.startswith(" ")]
    assert max(len(line) for line in meanings) <= width
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.beside
def test_a_dry_run_estimates_and_makes_no_archive(tmp_path):
    path = tmp_path / "dry.db"
    options = ["--db", str(path), "--dry-run", "--json", "--set", "generator={kind: server, model: m, base_url: 'http://x'}"]
    dear = ["--set", "generator.price_out_usd_per_million=1000", "--set", "search.operators={rewrite: 1}"]
    done = CliRunner().invoke(main, ["run", "smoke", *options, *dear])
    facts = json.loads(done.stdout)
    assert facts["model calls"] == 12 - facts["seeds"]
    assert facts["most money (USD)"] == pytest.approx(facts["model calls"] * 768 * 1000 / 1e6)
    assert not path.exists()


def test_stats_count_what_the_run_did(db):
    (run,) = answer("archive", "stats", db=db)
    assert run["run"] == "smoke"
    assert run["candidates"] == sum(run["outcomes"].values()) == 5
    assert sum(row["asked"] for row in run["operators"]) == 5
    assert run["finished"] is not None


def test_top_is_sorted_by_the_lower_bound_and_show_takes_a_prefix(db):
    ranked = answer("archive", "top", "--all", db=db)
    lows = [row["interval"][0] for row in ranked]
    assert lows
    assert lows == sorted(lows, reverse=True)
    shown = answer("archive", "show", ranked[0]["digest"][:10], db=db)
    assert shown["digest"] == ranked[0]["digest"]
    assert shown["source"].startswith("//!")
    assert shown["lineage"][-1]["operator"] == "seed"


def test_a_digest_of_no_kernel_is_refused(db):
    assert "none starts with" in complaint("archive", "show", db, "f" * 40, status=2)


def test_export_writes_each_kernel_and_will_not_mix_with_other_files(db, tmp_path):
    done = CliRunner().invoke(main, ["archive", "export", str(db), "--to", str(tmp_path / "out"), "--json"])
    n_kernels = json.loads(done.stdout)["kernels"]
    assert n_kernels == len(list((tmp_path / "out").glob("*.c"))) > 0
    assert "not empty" in complaint("archive", "export", db, "--to", tmp_path / "out", status=1)


def test_a_reader_that_leaves_early_is_no_mistake(db, environ):
    digest = answer("archive", "top", db=db)[0]["digest"]
    for words in (f"archive show {db} {digest}", f"archive top {db} --json", f"archive show {db} {digest} --json"):
        command = f"{sys.executable} -m experiments {words} | head -n 1"
        done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True, cwd=ROOT)
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1


def test_verify_names_every_stage_of_a_right_kernel(environ):
    done = evo("verify", SEED, "--shape", "48,32,64", "--json", environ=environ)
    assert done.returncode == 0, done.stderr
    stages = {stage["stage"]: stage["ok"] for stage in json.loads(done.stdout)["stages"]}
    assert list(stages)[:4] == ["screen", "build", "inspect", "exact-integers"]
    assert list(stages)[-2:] == ["determinism", "timing"]
    assert all(ok for name, ok in stages.items() if name != "timing")


@pytest.mark.beside
def test_verify_says_where_a_wrong_kernel_failed_and_what_was_not_reached(environ, tmp_path):
    path = tmp_path / "zeros.c"
    path.write_text(WRONG)
    done = evo("verify", path, "--shape", "48,32,64", environ=environ)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[4].split()[:2] == ["failed", "exact-integers"]
    assert lines[5] == "  10 later stages not reached"
    assert lines[6].startswith("incorrect at gate exact-integers: ")
    assert "expected" in lines[6]
    assert max(len(line) for line in lines[lines.index("built:") :]) <= 100


@pytest.mark.beside
def test_verify_shows_the_compilers_words(environ, tmp_path):
    path = tmp_path / "broken.c"
    path.write_text(WRONG.replace("= 0;", "= 0"))
    done = evo("verify", path, environ=environ)
    assert done.returncode == 1
    assert "failed       build" in done.stdout
    assert "ok           screen" in done.stdout
    assert "expected ';'" in done.stdout


def test_doctor_finds_a_known_good_kernel_to_pass(environ):
    done = evo("doctor", "--json", environ=environ)
    assert done.returncode == 0, done.stdout
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert findings["known-good kernel"]["ok"] is True
    if "cuda nvdisasm" in findings:
        assert findings["cuda known-good"]["ok"] is True
        assert findings["cuda known-good"]["detail"].endswith("nothing was run")
    else:
        assert "pip install" in findings["target cuda"]["mend"]
    assert all(finding["mend"] for finding in findings.values() if finding["ok"] is None and "extra" in finding["what"])


@pytest.mark.beside
def test_doctor_without_a_compiler_fails_and_says_what_to_type(environ, tmp_path):
    done = evo("doctor", environ={**environ, "PATH": str(tmp_path), "CC": ""})
    assert done.returncode == 1
    assert "apt-get install" in done.stdout


# --- the end of a run -------------------------------------------------------------------------------------------------


def test_the_summary_adds_up_to_the_run(environ, tmp_path):
    done = evo("run", "smoke", *TINY, "--db", tmp_path / "x.db", "--json", environ=environ)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [seed["name"] for seed in summary["seeds"]] == ["blocked_nn", "naive_nn", "vectorised_nn"]
    assert sum(row["n_asked"] for row in summary["operators"]) == summary["n_candidates"] == 5
    assert summary["stop"] == "evaluations"
    assert not summary["model_share"]
    if summary["over_seed"] is not None:
        value = summary["best"]["speedup"] / summary["best_seed"]["speedup"]
        assert summary["over_seed"]["value"] == pytest.approx(value)


def test_a_ratio_of_two_speed_ups_takes_both_intervals_at_their_worse_end():
    above, below = Estimate(0.4, 0.3, 0.5, 40), Estimate(0.1, -0.1, 0.2, 40)
    found = ratio(above, below)
    assert found.value == pytest.approx(2.718281828**0.3)
    assert found.low == pytest.approx(2.718281828**0.1)
    assert found.high == pytest.approx(2.718281828**0.6)


def test_progress_without_a_terminal_is_plain_lines_on_stderr(environ, tmp_path):
    done = evo("run", "smoke", *TINY, "--db", tmp_path / "x.db", environ=environ)
    assert "\x1b" not in done.stderr + done.stdout
    assert done.stderr.splitlines()[0].startswith("smoke: HGEMM 64x64x64")
    assert "candidates" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("width", [60, 120])
def test_progress_on_a_terminal_is_a_panel_that_fits_and_goes_away(width, environ, tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    command = [sys.executable, "-m", "experiments", "run", "smoke", *TINY, "--db", str(tmp_path / "x.db")]
    plain = {name: value for name, value in environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    child = subprocess.Popen(
        command, env={**plain, "TERM": "xterm"}, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT
    )
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    child.communicate(timeout=60)
    os.close(ours)
    assert child.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    frames = [line.rstrip() for line in text.replace("\r", "\n").split("\n")]
    panels = [line for line in frames if line.startswith(("│", "╭", "╰"))]
    assert {len(line) for line in panels} == {width}
    assert any("outcomes" in line and "passed" in line for line in panels)
    assert any("of the baseline's speed" in line for line in panels)
    assert "elapsed" in [line for line in frames if line][-1]


def _read(descriptor):
    """What a terminal shows next; nothing at its end."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_a_run_with_its_summary_and_the_command_to_go_on(number, environ, tmp_path):
    path = tmp_path / "long.db"
    command = [sys.executable, "-m", "experiments", "run", "smoke", *TINY[:2], "--db", str(path)]
    endless = ["--set=budget={evaluations: 100000}"]
    child = subprocess.Popen(
        [*command, *endless], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    deadline = time.monotonic() + 60
    while n_candidates(path) < 5:
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    child.send_signal(number)
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert re.search(
        rf"^  (evo-l2|{re.escape(sys.executable)} -m experiments) resume {re.escape(str(path))} smoke$", out, re.M
    )
    assert n_candidates(path) >= 5


@pytest.mark.parametrize("shape", ["²,1,1", "٣,٣,٣", "1,1", "a,b,c"])
def test_a_shape_is_of_plain_digits(shape):
    from experiments.verifying import parse_shape

    with pytest.raises(ConfigurationError, match="the shape cannot be used"):
        parse_shape(shape)
