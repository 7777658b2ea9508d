"""What a child process may use, and what is left of it afterwards."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evo_l2.errors import ToolchainError
from evo_l2.sandbox import Exceeded, Limits, capabilities, launcher_source, run_limited
from evo_l2.targets.cpu.native import compile_cached
from evo_l2.targets.cpu.toolchain import find_toolchain


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    texts = {"launcher.c": launcher_source()}
    return compile_cached(find_toolchain().compiler, tmp_path_factory.mktemp("cache"), "launcher", texts, ("-O2", "-Wall"))


@pytest.fixture
def shell(launcher, tmp_path):
    """Runs a line of shell in a folder of its own, the only one that it may write to."""
    folder = tmp_path / "work"
    folder.mkdir()

    def run(line, **limits):
        return run_limited(
            launcher,
            ["sh", "-c", line],
            cwd=folder,
            limits=Limits(**limits),
            read_paths=find_toolchain().read_paths,
            write_paths=[folder],
            environ={"PATH": os.environ["PATH"]},
        )

    run.folder = folder
    return run


def need_landlock(launcher):
    if not capabilities(launcher)["landlock"]:
        pytest.skip("this kernel has no Landlock")


def is_gone(pid):
    """A zombie that init has yet to reap counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_status_and_both_streams_come_back(shell):
    done = shell("echo out; echo err >&2; exit 3")
    assert (done.returncode, done.signal, done.exceeded) == (3, None, None)
    assert sorted(done.output.split()) == ["err", "out"]


def test_a_signal_is_told_from_a_status(shell):
    done = shell("kill -SEGV $$")
    assert (done.returncode, done.signal, done.exceeded) == (None, signal.SIGSEGV, None)


def test_processor_time_is_limited(shell):
    done = shell("while :; do :; done", cpu_s=1)
    assert done.exceeded is Exceeded.CPU
    assert done.signal == signal.SIGXCPU


def test_wall_time_is_limited_for_the_whole_group(shell):
    done = shell("sleep 50 & echo $!; sleep 50", wall_s=0.5)
    assert done.exceeded is Exceeded.WALL
    assert done.seconds < 5
    assert wait_until(lambda: is_gone(int(done.output)))


def test_what_a_child_leaves_behind_is_ended_with_it(shell):
    done = shell("sleep 50 & echo $!")
    assert done.returncode == 0
    assert done.seconds < 5
    assert wait_until(lambda: is_gone(int(done.output)))


def test_output_without_end_ends_the_child(shell):
    done = shell("while :; do echo yes; done", output_bytes=10_000)
    assert done.exceeded is Exceeded.OUTPUT
    assert 0 < len(done.output) <= 10_000


def test_a_file_without_end_ends_the_child(shell):
    done = shell("while :; do echo yes; done > big", file_bytes=50_000)
    assert done.exceeded is Exceeded.FILE
    assert (shell.folder / "big").stat().st_size <= 50_000


def test_memory_is_limited(launcher, tmp_path):
    done = run_limited(
        launcher,
        [sys.executable, "-I", "-S", "-c", "x = bytearray(1 << 30)"],
        cwd=tmp_path,
        limits=Limits(memory_bytes=256 << 20),
        read_paths=[Path("/")],
        write_paths=[],
        environ={},
    )
    assert "MemoryError" in done.output


def test_files_outside_cannot_be_read(shell, launcher):
    need_landlock(launcher)
    secret = shell.folder.parent / "secret"
    secret.write_text("hidden")
    done = shell(f"cat {secret} /etc/passwd; cat ok 2>/dev/null; echo over")
    assert "hidden" not in done.output
    assert "root:" not in done.output
    assert "over" in done.output


def test_files_outside_cannot_be_written_and_those_inside_can(shell, launcher):
    need_landlock(launcher)
    shell(f"echo x > {shell.folder.parent}/outside; echo y > inside; mkdir sub; mv inside sub; echo > /dev/null")
    assert not (shell.folder.parent / "outside").exists()
    assert (shell.folder / "sub" / "inside").read_text() == "y\n"


def test_connections_cannot_be_made(launcher, tmp_path):
    need_landlock(launcher)
    if int(capabilities(launcher)["landlock"].split()[1]) < 4:
        pytest.skip("this kernel's Landlock does not know of networks")
    script = (
        "import socket; s = socket.socket(); s.settimeout(2)\ntry: s.connect(('127.0.0.1', 9))\nexcept OSError as e: print(e)"
    )
    done = run_limited(
        launcher,
        [sys.executable, "-I", "-c", script],
        cwd=tmp_path,
        limits=Limits(),
        read_paths=[Path("/")],
        write_paths=[],
        environ={},
    )
    assert "Permission denied" in done.output


def test_the_users_environment_stays_outside(shell, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hidden")
    assert "hidden" not in shell("env").output


def test_a_command_that_does_not_exist_is_the_machines_fault(launcher, tmp_path):
    with pytest.raises(ToolchainError, match="no-such-tool: No such file"):
        run_limited(
            launcher,
            ["no-such-tool"],
            cwd=tmp_path,
            limits=Limits(),
            read_paths=[],
            write_paths=[],
            environ={"PATH": "/usr/bin"},
        )


def test_a_launcher_that_is_missing_is_the_machines_fault(tmp_path):
    with pytest.raises(ToolchainError, match="launcher"):
        run_limited(tmp_path / "gone", ["true"], cwd=tmp_path, limits=Limits(), read_paths=[], write_paths=[], environ={})
    with pytest.raises(ToolchainError, match="launcher"):
        capabilities(tmp_path / "gone")


def test_children_die_with_the_process_that_asked_for_them(launcher, tmp_path):
    script = (
        "import sys; from pathlib import Path; from evo_l2.sandbox import Limits, run_limited\n"
        "work = Path(sys.argv[2])\n"
        "run_limited(Path(sys.argv[1]), ['sh', '-c', 'sh -c \"echo \\$\\$ > pid; sleep 50; true\"; true'], cwd=work,"
        " limits=Limits(), read_paths=[Path('/')], write_paths=[work], environ={'PATH': '/usr/bin:/bin'})"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(launcher), str(tmp_path)])
    try:
        pid_file = tmp_path / "pid"
        assert wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), 20)
        grandchild = int(pid_file.read_text())
        assert not is_gone(grandchild)
        parent.kill()
        parent.wait()
        assert wait_until(lambda: is_gone(grandchild))
    finally:
        with contextlib.suppress(ProcessLookupError):
            parent.kill()


def test_no_descriptor_is_left_open(shell):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        shell("true")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("line", ["setsid sleep 50 & sleep 0.3", "(setsid sh -c 'sleep 50 & sleep 50' &) ; sleep 0.3"])
def test_what_leaves_the_group_is_ended_too(shell, line):
    before = _sleepers()
    done = shell(line)
    assert done.returncode == 0
    assert wait_until(lambda: _sleepers() <= before)


def test_what_leaves_the_group_is_ended_at_a_limit_too(shell):
    before = _sleepers()
    done = shell("setsid sleep 51 & sleep 51", wall_s=0.5)
    assert done.exceeded is Exceeded.WALL
    assert done.seconds < 5
    assert wait_until(lambda: _sleepers() <= before)


def _sleepers():
    """Processes that sleep as long as those of these tests."""
    found = set()
    for path in Path("/proc").glob("[1-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[:2] in ([b"sleep", b"50"], [b"sleep", b"51"]):
                found.add(path.parent.name)
    return {pid for pid in found if not is_gone(int(pid))}


def test_what_a_killed_build_left_is_removed(tmp_path):
    old, new, other = (tmp_path / name for name in (".launcher-abcdefgh", ".launcher-ijklmnop", ".launcher-of-others"))
    for folder in (old, new, other):
        folder.mkdir()
    for folder in (old, other):
        os.utime(folder, (0, 0))
    texts = {"launcher.c": launcher_source()}
    compile_cached(find_toolchain().compiler, tmp_path, "launcher", texts, ("-O0",))
    assert not old.exists()
    assert new.exists()
    assert other.exists()
