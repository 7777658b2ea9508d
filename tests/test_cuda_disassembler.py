"""A warm nvdisasm says of machine code what a fresh one says, or nothing."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from evo_l2.targets.cpu.toolchain import find_toolchain
from evo_l2.targets.cuda.reading.cubin import read_code, read_cubin
from evo_l2.targets.cuda.reading.sass import parse_binary, read_sass
from evo_l2.targets.cuda.toolchain.disassembler import Disassembler

GOLDEN = Path(__file__).parent / "golden" / "cuda"
CUBINS = sorted(path.name for path in GOLDEN.glob("*.cubin"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("warm")


@pytest.fixture(scope="module")
def disassembler(cuda_wheels, folder):
    it = Disassembler(cuda_wheels, find_toolchain().compiler, folder)
    yield it
    it.close()


def second(disassembler, path, arch):
    """What is said of a cubin that is not the first of its architecture."""
    disassembler.read(path, arch)
    return disassembler.read(path, arch)


def comparable(sass):
    """Everything but lines, and what labels and addresses are written as."""
    return {
        name: [
            replace(i, file=None, line=None, operands="" if i.base in ("BRA", "BSSY", "CALL", "LEPC", "RET") else i.operands)
            for i in function
        ]
        for name, function in sass.functions.items()
    }


@pytest.mark.parametrize("name", CUBINS)
def test_a_warm_process_says_what_a_fresh_one_says(name, cuda_wheels, disassembler):
    path = GOLDEN / name
    warm, fresh = second(disassembler, path, read_cubin(path).arch), read_sass(path, cuda_wheels.tool("nvdisasm"))
    assert warm is not None
    assert comparable(warm) == comparable(fresh)
    assert list(warm.functions) == list(fresh.functions)
    assert dict(warm.owners) == dict(fresh.owners)


def test_a_listing_that_lacks_an_instruction_is_not_taken():
    (code,) = read_code(GOLDEN / "naive.sm_80.cubin")
    lines = [f"        /*{at:04x}*/                   NOP ;" for at in range(0, len(code.data), 16)]
    assert len(parse_binary("\n".join(lines), code)[code.name]) == len(lines)
    assert parse_binary("\n".join(lines[:-1]), code) is None
    assert parse_binary("\n".join(lines[:7] + lines[8:]), code) is None
    assert parse_binary("\n".join(["        error", *lines[1:]]), code) is None


def test_a_process_that_was_killed_says_nothing_and_nothing_hangs(cuda_wheels, folder):
    path = GOLDEN / "naive.sm_80.cubin"
    with_one = Disassembler(cuda_wheels, find_toolchain().compiler, folder)
    assert second(with_one, path, "sm_80") is not None
    os.kill(with_one._servers["sm_80"].process.pid, signal.SIGKILL)
    assert with_one.read(path, "sm_80") is None
    assert with_one.read(path, "sm_80") is None
    with_one.close()
    assert with_one.read(path, "sm_80") is not None
    process = with_one._servers["sm_80"].process
    with_one.close()
    with_one.close()
    assert process.returncode is not None


@pytest.mark.parametrize(
    "script",
    ["exit 1", "echo no instruction", 'test -z "$LD_PRELOAD" && exec REAL "$@"; exit 0', 'unset LD_PRELOAD; exec REAL "$@"'],
)
def test_a_disassembler_that_cannot_be_kept_warm_says_nothing(script, cuda_wheels, folder, tmp_path):
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\n" + script.replace("REAL", str(cuda_wheels.tool("nvdisasm"))) + "\n")
    tool.chmod(0o755)
    it = Disassembler(replace(cuda_wheels, nvdisasm=tool), find_toolchain().compiler, folder)
    assert second(it, GOLDEN / "naive.sm_80.cubin", "sm_80") is None
    it.close()


def test_a_single_cubin_starts_no_process(cuda_wheels, folder):
    it = Disassembler(cuda_wheels, find_toolchain().compiler, folder)
    assert it.read(GOLDEN / "naive.sm_80.cubin", "sm_80") is None
    assert it._servers == {}


def test_an_architecture_that_the_tool_does_not_know_is_left_alone(disassembler):
    assert second(disassembler, GOLDEN / "naive.sm_80.cubin", "sm_52") is None


SERVER = """#!/bin/sh
test -z "$LD_PRELOAD" && exec REAL "$@"
unset LD_PRELOAD
exec PYTHON -c '
import os, socket, struct, subprocess, sys, time
pipe = socket.socket(fileno=0)
def ask():
    length, = struct.unpack("<I", pipe.recv(4, socket.MSG_WAITALL))
    pipe.recv(length, socket.MSG_WAITALL)
ask()
text = subprocess.run(["REAL", *sys.argv[1:]], capture_output=True).stdout
pipe.sendall(struct.pack("<II", 0, len(text)) + text)
ask()
child = subprocess.Popen(["sleep", "600"])
open("FOLDER/child", "w").write(str(child.pid))
LATER
time.sleep(600)
' "$@"
"""


def is_alive(pid):
    """Whether a process runs; one that has ended and waits to be asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "later",
    [
        "pass",
        'pipe.sendall(struct.pack("<II", 0, 2**32 - 1) + bytes(2**20))',
        'pipe.sendall(struct.pack("<II", 0, 2**20) + b" " * 2**20)',
        'pipe.sendall(struct.pack("<II", 0, len(text)) + text[:-1])',
        'pipe.sendall(struct.pack("<II", 0, len(text))); [(pipe.send(b" "), time.sleep(0.2)) for _ in text]',
    ],
    ids=["hangs", "claims four gigabytes", "says too much", "stops before the end", "says it by the byte"],
)
def test_a_server_that_answers_late_or_too_much_is_ended_with_what_it_started(later, cuda_wheels, folder, tmp_path):
    tool = tmp_path / "nvdisasm"
    real = str(cuda_wheels.tool("nvdisasm"))
    script = SERVER.replace("REAL", real).replace("PYTHON", sys.executable).replace("FOLDER", str(tmp_path))
    tool.write_text(script.replace("LATER", later))
    tool.chmod(0o755)
    it = Disassembler(replace(cuda_wheels, nvdisasm=tool), find_toolchain().compiler, folder, answer_s=4.0)
    path = GOLDEN / "naive.sm_80.cubin"
    assert it.read(path, "sm_80") is None
    begin = time.monotonic()
    assert it.read(path, "sm_80") is None
    assert time.monotonic() - begin < 20
    assert it._servers == {"sm_80": None}
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)
    assert it.read(path, "sm_80") is None
    it.close()


@pytest.mark.parametrize("script", ["sleep 600", "exec yes nonsense", "sleep 600 & echo code; exit 0"])
def test_a_fresh_start_that_hangs_or_floods_is_ended(script, cuda_wheels, folder, tmp_path):
    tool = tmp_path / "nvdisasm"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    it = Disassembler(replace(cuda_wheels, nvdisasm=tool), find_toolchain().compiler, folder, answer_s=1.0)
    begin = time.monotonic()
    assert second(it, GOLDEN / "naive.sm_80.cubin", "sm_80") is None
    assert time.monotonic() - begin < 20
    it.close()


FLOOD = """
#include <stdio.h>
int main(int n, char **words)
{
    FILE *first = fopen(words[n - 1], "rb"), *second = fopen(words[n - 1], "rb");
    int kind = fgetc(second);
    for (long i = 0; first != NULL && kind == 'x'; i++)
        puts("and so on");
    puts("a listing");
    return 0;
}
"""


def test_a_fork_that_writes_without_end_is_ended_and_the_next_is_served(cuda_wheels, folder, tmp_path):
    (tmp_path / "flood.c").write_text(FLOOD)
    tool, compiler = tmp_path / "nvdisasm", find_toolchain().compiler
    subprocess.run([compiler, "-o", tool, tmp_path / "flood.c"], check=True)
    it = Disassembler(replace(cuda_wheels, nvdisasm=tool), compiler, folder, answer_s=30.0)
    assert it._listing("sm_80", b"a" * 16) == "a listing\n"
    begin = time.monotonic()
    assert it._listing("sm_80", b"x" * 16) is None
    assert time.monotonic() - begin < 10
    assert it._listing("sm_80", b"b" * 16) == "a listing\n"
    it.close()
