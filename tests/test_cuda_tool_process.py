"""A tool has so long, says so much, and leaves nothing behind, whatever it does."""

import os
import time
from pathlib import Path

import pytest

from evo_l2.errors import ToolchainError
from evo_l2.targets.cuda.tool_process import tool_output


def tool(folder, body):
    script = folder / "tool"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return [str(script)]


def has_ended(file):
    """Whether the process whose number stands in a file comes to its end within a few seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{int(file.read_text())}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_both_streams_are_told_or_standard_output_alone(tmp_path):
    command = tool(tmp_path, "echo one; echo two >&2; echo three")
    assert tool_output(command) == "one\ntwo\nthree\n"
    assert tool_output(command, with_errors=False) == "one\nthree\n"


def test_a_failure_is_told_by_its_first_line_with_its_escapes_named(tmp_path):
    command = tool(tmp_path, "echo output; printf '\\033[31mred\\033]0;title\\007\\nmore' >&2; exit 3")
    with pytest.raises(ToolchainError, match=r"tool returns 3: <U\+001B>.31mred<U") as caught:
        tool_output(command, with_errors=False)
    assert "more" not in str(caught.value)
    assert str(caught.value).isprintable()
    with pytest.raises(ToolchainError, match="tool returns 4: no message"):
        tool_output(tool(tmp_path, "exit 4"))
    with pytest.raises(ToolchainError, match="tool returns -9"):
        tool_output(tool(tmp_path, "kill -9 $$"))
    with pytest.raises(ToolchainError, match="nothing: No such file"):
        tool_output([str(tmp_path / "nothing")])


@pytest.mark.parametrize(
    "body",
    [
        "sleep 600 & echo $! > child; wait",
        "exec >&- 2>&-; sleep 600 & echo $! > child; wait",
        "sleep 600 & echo $! > child; while :; do echo; sleep 0.05; done",
        "trap '' TERM INT HUP; sleep 600 & echo $! > child; wait",
    ],
    ids=["hangs", "closes its streams", "says it by the line", "does not listen"],
)
def test_a_tool_that_does_not_end_is_ended_with_what_it_started(body, tmp_path):
    begin = time.monotonic()
    with pytest.raises(ToolchainError, match=r"a tool does not answer: found tool, which had not ended after 0\.5 s$"):
        tool_output(tool(tmp_path, f"cd {tmp_path}; {body}"), timeout_s=0.5)
    assert time.monotonic() - begin < 10
    assert has_ended(tmp_path / "child")


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_tool_without_an_end_to_what_it_says_is_ended(stream, tmp_path):
    begin = time.monotonic()
    with pytest.raises(ToolchainError, match="tool writes more than 1000 bytes"):
        tool_output(tool(tmp_path, f"exec yes >&{stream}"), with_errors=False, most_bytes=1000)
    assert time.monotonic() - begin < 10
    assert len(tool_output(tool(tmp_path, "head -c 1000 /dev/zero"), most_bytes=1000)) == 1000


def test_a_child_that_holds_the_output_open_keeps_nobody_waiting(tmp_path):
    begin = time.monotonic()
    command = tool(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; head -c 100000 /dev/zero; echo all")
    assert tool_output(command, timeout_s=60).endswith("\0all\n")
    assert time.monotonic() - begin < 20
    assert has_ended(tmp_path / "child")


def test_a_child_in_a_session_of_its_own_keeps_nobody_waiting(tmp_path):
    begin = time.monotonic()
    command = tool(tmp_path, f"setsid sh -c 'echo $$ > {tmp_path}/child; exec sleep 600' & sleep 1; echo all")
    assert tool_output(command, timeout_s=60) == "all\n"
    assert time.monotonic() - begin < 20
    os.kill(int((tmp_path / "child").read_text()), 9)


def test_no_descriptor_is_left_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    tool_output(tool(tmp_path, "echo"), with_errors=False)
    with pytest.raises(ToolchainError):
        tool_output(tool(tmp_path, "exec yes"), most_bytes=10)
    assert len(os.listdir("/proc/self/fd")) == before
