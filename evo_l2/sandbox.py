"""Child processes within limits: time, memory, files, output; ended as a whole process group."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path

from evo_l2.errors import ToolchainError

__all__ = ["Exceeded", "Finished", "Limits", "capabilities", "launcher_source", "run_limited"]

_MOST_STATUS_BYTES = 1024
_END_S = 2.0
"""That the launcher has to end what its command left."""


class Exceeded(StrEnum):
    """A limit that a child ran into."""

    CPU = "processor time"
    WALL = "time"
    FILE = "file size"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use."""

    cpu_s: int = 20
    """Processor time of each of its processes."""
    wall_s: float = 60.0
    memory_bytes: int = 2 << 30
    """Address space of each of its processes."""
    file_bytes: int = 64 << 20
    """Length of any file it writes."""
    output_bytes: int = 256 << 10
    """Standard output and error together; a child that writes more is ended."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a child ended."""

    returncode: int | None
    """What it returned; None when a signal ended it."""
    signal: int | None
    """Number of the signal that ended it, ours included; None when it returned."""
    output: str
    """Standard output and error together, at most `output_bytes`."""
    seconds: float
    """Wall time."""
    exceeded: Exceeded | None
    """The limit it ran into; None when it ended by itself. Out of memory is no limit here: the child says so in its words."""


def launcher_source() -> str:
    """The C program that starts children: one file, no dependencies but libc. Compile it once, and pass its path around."""
    return resources.files("evo_l2").joinpath("launcher.c").read_text(encoding="utf-8")


def capabilities(launcher: Path) -> dict[str, str | bool]:
    """What the running kernel offers to confine children: `landlock` (its version, or False: files are not confined then).

    Raises:
        ToolchainError: The launcher does not run here.
    """
    try:
        done = subprocess.run([str(launcher), "--probe"], capture_output=True, text=True, timeout=10, check=True)
        version = done.stdout.removeprefix("landlock=").strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise _broken(launcher, str(error)) from error
    return {"landlock": f"version {version}" if version.isdigit() and version != "0" else False}


def run_limited(
    launcher: Path,
    command: Sequence[str],
    *,
    cwd: Path,
    limits: Limits,
    read_paths: Sequence[Path],
    write_paths: Sequence[Path],
    environ: Mapping[str, str],
) -> Finished:
    """Runs a command to its end, or to the end of what it may use. Nothing that it started is left when this returns.

    Args:
        launcher: The compiled `launcher_source`.
        command: What is run, with its arguments.
        cwd: Where it is run.
        limits: What it may use.
        read_paths: Files and folders that it may read and execute; those that do not exist are passed over.
        write_paths: Folders that it may read and write. Both have force only where the kernel has Landlock.
        environ: Its whole environment.

    Raises:
        ToolchainError: The command cannot be started.
    """
    status_read, status_write = os.pipe()
    head = [str(launcher), f"--parent={os.getpid()}", f"--status={status_write}", f"--cpu={limits.cpu_s}"]
    head += [f"--memory={limits.memory_bytes}", f"--file={limits.file_bytes}"]
    head += [f"--read={path}" for path in read_paths] + [f"--write={path}" for path in write_paths]
    begin = time.monotonic()
    try:
        process = subprocess.Popen(
            [*head, "--", *command],
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(status_write,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(status_read)
        raise _broken(launcher, str(error)) from error
    finally:
        os.close(status_write)
    assert process.stdout is not None
    with process.stdout as pipe, os.fdopen(status_read, "rb", buffering=0) as status:
        try:
            output, line, exceeded = _listen(pipe.fileno(), status.fileno(), begin + limits.wall_s, limits.output_bytes)
        finally:
            _end_group(process)
    return _finished(command, line, output, exceeded, time.monotonic() - begin, limits)


def _listen(output_fd: int, status_fd: int, deadline: float, most_bytes: int) -> tuple[bytes, bytes, Exceeded | None]:
    """Output and status line, up to the launcher's end or a limit of ours.

    The status pipe is the launcher's own, so its end is the launcher's end, whoever else still holds the output pipe.
    """
    kept = {output_fd: bytearray(), status_fd: bytearray()}
    with selectors.DefaultSelector() as selector:
        for fd in kept:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        open_fds = set(kept)
        exceeded = None
        while status_fd in open_fds and exceeded is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                exceeded = Exceeded.WALL
                break
            for key, _ in selector.select(remaining):
                piece = os.read(key.fd, 65536)
                kept[key.fd] += piece
                if not piece:
                    selector.unregister(key.fd)
                    open_fds.discard(key.fd)
            if len(kept[output_fd]) > most_bytes:
                exceeded = Exceeded.OUTPUT
    with contextlib.suppress(BlockingIOError):
        while len(kept[output_fd]) <= most_bytes and (piece := os.read(output_fd, 65536)):
            kept[output_fd] += piece
    return bytes(kept[output_fd][:most_bytes]), bytes(kept[status_fd][:_MOST_STATUS_BYTES]), exceeded


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the group before its leader is reaped: until then, its number cannot belong to anyone else.

    The leader is the launcher, which first kills what has left the group.
    """
    deadline = time.monotonic() + _END_S
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(process.pid, signal.SIGTERM)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.0005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _finished(
    command: Sequence[str], line: bytes, output: bytes, exceeded: Exceeded | None, seconds: float, limits: Limits
) -> Finished:
    text = output.decode(errors="replace")
    if exceeded is not None:
        return Finished(None, signal.SIGKILL, text, seconds, exceeded)
    first = line.decode(errors="replace").partition("\n")[0]
    words = first.split()
    if len(words) != 3 or words[0] not in ("exit", "signal"):
        reason = first.removeprefix("error ") or "its launcher was killed from outside"
        raise ToolchainError("a tool does not start", expected=command[0], found=reason, hint="evo-l2 doctor")
    number, cpu_s = int(words[1]), int(words[2]) / 1e6
    ended_by = number if words[0] == "signal" else None
    # A driver reports what ended its own child in words, and the child's processor time may fall just short of the limit.
    if ended_by == signal.SIGXCPU or (number != 0 and (cpu_s >= limits.cpu_s or "CPU time limit exceeded" in text)):
        exceeded = Exceeded.CPU
    elif ended_by == signal.SIGXFSZ or (number != 0 and "File size limit exceeded" in text):
        exceeded = Exceeded.FILE
    return Finished(None if ended_by is not None else number, ended_by, text, seconds, exceeded)


def _broken(launcher: Path, reason: str) -> ToolchainError:
    hint = "remove the cache folder, then evo-l2 doctor"
    return ToolchainError("the launcher of compilers does not run", expected=str(launcher), found=reason, hint=hint)
