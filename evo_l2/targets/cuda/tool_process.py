"""Runs the tools of a toolkit: each has so long, says so much, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path

from evo_l2.errors import ToolchainError
from evo_l2.targets.messages import printable

__all__ = ["SilentToolError", "kill_group", "tool_output"]

_TIMEOUT_S = 30.0
_MOST_BYTES = 1 << 20
"""Of one tool; what says more is broken."""
_GLANCE_S = 0.005
"""How often it is asked whether a tool has ended whose output someone else holds open."""


class SilentToolError(ToolchainError):
    """A tool that runs and does not come to an end."""


def tool_output(
    command: list[str], *, with_errors: bool = True, timeout_s: float | None = None, most_bytes: int = _MOST_BYTES
) -> str:
    """What a tool says, on both of its streams or on standard output alone; what it started is ended with it.

    Args:
        command: The tool's path and its arguments.
        with_errors: Whether standard error belongs to what it says; otherwise only the message of a failure is taken from it.
        timeout_s: How long it may run; half a minute when left out.
        most_bytes: How much it may write, on both streams together.

    Raises:
        ToolchainError: It does not run, fails, writes without end, or does not come to its end (`SilentToolError`).
    """
    name = Path(command[0]).name
    timeout_s = timeout_s if timeout_s is not None else _TIMEOUT_S
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else subprocess.PIPE, start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except OSError as error:
        raise ToolchainError("a tool does not run", found=f"{command[0]}: {error.strerror}") from error
    with process:
        try:
            said = _read_some(process, time.monotonic() + timeout_s, most_bytes)
        finally:
            kill_group(process)
            status = process.wait()
    if said is None:
        raise SilentToolError("a tool does not answer", found=f"{name}, which had not ended after {timeout_s:g} s")
    output, errors = said
    if len(output) + len(errors) > most_bytes:
        raise ToolchainError("a tool fails", found=f"{name} writes more than {most_bytes} bytes")
    text = output.decode(errors="replace")
    if status != 0:
        message = (errors.decode(errors="replace").strip() or text.strip()).splitlines()
        first = printable(message[0][:200]) if message else "no message"
        raise ToolchainError("a tool fails", found=f"{name} returns {status}: {first}")
    return text


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that leads a session, and all in its group.

    To be called before anything waits for the process: until then the number cannot belong to anyone else.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _read_some(process: subprocess.Popen[bytes], deadline: float, most_bytes: int) -> tuple[bytes, bytes] | None:
    """What a process writes until it ends, or somewhat more than is let pass; None when it does not end in time."""
    said = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr) if stream is not None}
    n_bytes = 0
    with selectors.DefaultSelector() as selector:
        for pipe in said:
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ)
        has_ended = False
        while n_bytes <= most_bytes:
            left = deadline - time.monotonic()
            if left <= 0:
                if not has_ended:
                    return None
                break
            if not has_ended and _has_ended(process):
                # A process of the tool's may hold the pipe open for as long as it likes; what the tool wrote is in it.
                has_ended = True
                kill_group(process)
            ready = selector.select(0 if has_ended else min(left, _GLANCE_S))
            if has_ended and not ready:
                break
            for key, _ in ready:
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fd)
                said[key.fd] += piece
                n_bytes += len(piece)
    output, *errors = said.values()
    return bytes(output), b"".join(errors)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has; its number stays its own."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
