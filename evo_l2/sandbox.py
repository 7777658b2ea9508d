"""Child processes within limits: time, memory, output; ended as a whole group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from evo_l2.errors import ToolchainError

__all__ = ["Finished", "Limits", "run_limited"]

_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use."""

    cpu_s: float = 20.0
    """Processor time of each of its processes, in seconds (whole ones, rounded up)."""
    wall_s: float = 60.0
    memory_bytes: int = 2 << 30
    """Address space of each process."""
    file_bytes: int = 64 << 20
    """Length of any file it writes."""
    output_bytes: int = 256 << 10
    """What is kept of its output; the rest is read and thrown away."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a child ended."""

    returncode: int
    """Negative for a signal."""
    output: str
    """Standard output and error together, cut."""
    seconds: float
    over: str | None
    """Which limit it passed (`time` or `output`); None when it ended by itself."""


def run_limited(launcher: Path, command: Sequence[str], cwd: Path, limits: Limits) -> Finished:
    """Runs a command to its end, or to the end of what it may use; its whole process group is gone afterwards.

    Raises:
        ToolchainError: It cannot be started.
    """
    begin = time.monotonic()
    head = [str(launcher), str(os.getpid()), str(max(1, int(limits.cpu_s + 0.999))), str(limits.memory_bytes)]
    environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": str(cwd), "HOME": str(cwd)}
    try:
        process = subprocess.Popen(
            [*head, str(limits.file_bytes), *command],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolchainError("a tool does not start", expected=command[0], found=str(error), hint="evo-l2 doctor") from error
    assert process.stdout is not None
    reader = _Reader(process.stdout, limits.output_bytes)
    reader.start()
    over = None
    try:
        process.wait(limits.wall_s)
    except subprocess.TimeoutExpired:
        over = "time"
    finally:
        _kill_group(process)
    reader.join(_GRACE_S)
    code = process.returncode
    if code in (-signal.SIGXCPU, -signal.SIGKILL) or code == 128 + signal.SIGXCPU:
        over = "time"
    return Finished(code, reader.text(), time.monotonic() - begin, over or ("output" if reader.cut else None))


class _Reader(threading.Thread):
    """Keeps the first bytes of a pipe and drains the rest, so that the writer never blocks."""

    def __init__(self, pipe: IO[bytes], most_bytes: int) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._most_bytes = most_bytes
        self._kept = bytearray()
        self.cut = False

    def run(self) -> None:
        with self._pipe:
            while piece := self._pipe.read(65536):
                room = self._most_bytes - len(self._kept)
                self._kept += piece[:room]
                self.cut = self.cut or len(piece) > room

    def text(self) -> str:
        return self._kept.decode(errors="replace")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
