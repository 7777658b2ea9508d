"""Runs one built kernel in disposable processes, on buffers that both sides see and only this side owns.

The work is done by a small C program beside this file (`runner.c`); its head comment says how it confines a kernel and how it
reads the clock. One `Runner` is one such process with one library loaded.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evo_l2.errors import DeviceError
from evo_l2.targets.cpu.buffers import BufferSpec, Memory
from evo_l2.targets.cpu.runner_binary import RunnerBinary
from evo_l2.targets.messages import printable

__all__ = ["BufferSpec", "LoadFailed", "RunKind", "RunResult", "Runner", "RunnerBinary"]

_MAGIC = 0x65766F2D6C322D31
_REPLY = struct.Struct("=10q944s")
_LOADING, _READY, _LOAD_FAILED, _FINISHED, _EXITED, _SIGNALLED, _TIMED_OUT, _BROKEN = range(1, 9)
_SECCOMP, _TRACED, _PINNED = 1, 2, 4
_UNKNOWN, _NO_ADDRESS = -1, -2
_START_S = 30.0
_GRACE_S = 30.0
"""What a command may take beyond its wall limit: forking, faulting in gigabytes, taking them apart again."""
_STACK_BYTES = 8 << 20
_STACK_REACH_BYTES = 64 << 20
"""How far below the stack's end a fault still counts as its overflow; one large array jumps over any guard page."""


class RunKind(StrEnum):
    """How a command ended."""

    OK = "ok"
    SIGNAL = "signal"
    """The kernel crashed."""
    TIMEOUT = "timeout"
    """Over the wall or the processor limit."""
    FORBIDDEN = "forbidden"
    """It asked the operating system for something."""
    EXITED = "exited"
    """It ended the process before all calls were done."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of one command."""

    kind: RunKind
    ns: int | None
    """Nanoseconds of all its calls together, read by a process that no candidate code runs in; None unless it ended well."""
    signal: int | None
    """The signal that ended it; None when none did."""
    detail: str
    """Plain words for the person (and the model) who will mend the kernel; empty when it ended well."""
    peak_bytes: int
    """Largest resident memory of the process, its buffers included."""


class LoadFailed(Exception):
    """The library cannot be loaded, or has no such entry: the kernel's fault. Its text is the loader's."""


class Runner:
    """One library in one runner process, and the buffers it works on. A context manager.

    The process ends when the *thread* that made it ends, or this process does, however that happens: make runners in a thread
    that lives as long as they do.

    Args:
        binary: The compiled runner, from `RunnerBinary.ensure`.
        library: What is loaded.
        buffers: The operands of one set, in the order in which the entry takes them.
        n_sets: Number of buffer sets. A command works on consecutive sets and can reach no others.
        shared: The workspaces, passed after the operands; one copy for all sets.
        sizes: Values of the size symbols, passed to the entry as they are.
        core: Where calls run, and nothing else of this runner does while they do.
        trusted: For code of our own (a baseline): no filters, and one call on a hidden set of zeros before every command, so
            that a library has its buffers when the clock starts.
        environ: The runner's whole environment.
        entry: `void entry(void *const *buffers, const long long *sizes)`.

    Raises:
        LoadFailed: The library does not load.
        DeviceError: There is no memory for the buffers, or the runner does not start.
    """

    def __init__(
        self,
        binary: Path,
        library: Path,
        buffers: Sequence[BufferSpec],
        n_sets: int,
        shared: Sequence[BufferSpec] = (),
        sizes: Sequence[int] = (),
        core: int = 0,
        *,
        trusted: bool = False,
        environ: Mapping[str, str] | None = None,
        entry: str = "evo_entry",
    ) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: DeviceError | None = None
        self._address = 0
        self._stack_top = 0
        self._powers = 0
        self._landlock = 0
        self._memory = Memory(buffers, n_sets + trusted, shared)
        self._n_sets = n_sets
        self._trusted = trusted
        try:
            self._start(binary, library, dict(environ or {}), entry)
            self._send(struct.pack("=q", _MAGIC) + self._memory.setup(core, trusted, n_sets, sizes))
            self._await_ready(library)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def n_sets(self) -> int:
        """Number of buffer sets."""
        return self._n_sets

    @property
    def pid(self) -> int | None:
        """Process and group of the runner; None once closed."""
        return self._process.pid if self._process is not None else None

    @property
    def capabilities(self) -> dict[str, str | bool]:
        """What is in force around this library's calls."""
        return {
            "seccomp": bool(self._powers & _SECCOMP),
            "landlock": f"version {self._landlock}" if self._landlock > 0 else False,
            "pinned": bool(self._powers & _PINNED),
            "clock": "stops as the child begins to exit" if self._powers & _TRACED else "includes the end of the child",
        }

    def array(self, set_index: int, name: str, dtype: DTypeLike, shape: Sequence[int]) -> NDArray[np.generic]:
        """One operand of one set, or a workspace (the same for every set): a view of the bytes the kernel sees.

        Raises:
            KeyError: No such buffer.
            ValueError: The shape has more bytes than the buffer.
        """
        return self._memory.array(set_index, name, dtype, shape)

    def stacked(self, first: int, n_sets: int, name: str, dtype: DTypeLike, shape: Sequence[int]) -> NDArray[np.generic]:
        """A writable view of one buffer in several sets in a row, stacked along a new first axis; see `array`."""
        return self._memory.stacked(first, n_sets, name, dtype, shape)

    def damaged_guard(self, set_index: int) -> str | None:
        """Name of a buffer of this set, or a workspace, beside which something was written; None when all guards hold.

        Says so once: the guard is drawn anew.
        """
        return self._memory.damaged_guard(set_index)

    def run(self, first_set: int = 0, n_calls: int = 1, *, wall_s: float = 10.0, cpu_s: float | None = None) -> RunResult:
        """Calls the entry on `n_calls` sets from `first_set` on, each once, in a fresh child.

        Args:
            first_set: The first of the sets.
            n_calls: How many sets, and calls.
            wall_s: From the start of the first call to the end of the last.
            cpu_s: Processor time of the child, in whole seconds (rounded up); by default a second over `wall_s`.

        Raises:
            DeviceError: The runner is at fault, or the machine (out of memory); it cannot be used any more.
            ValueError: There are no such sets.
        """
        if n_calls < 1 or first_set < 0 or first_set + n_calls > self._n_sets:
            raise ValueError(f"expected calls on sets 0 to {self._n_sets - 1}, found {n_calls} from {first_set}")
        cpu_limit = max(1, math.ceil(cpu_s if cpu_s is not None else wall_s + 1))
        wall_ns = max(1, int(wall_s * 1e9))
        self._send(struct.pack("=5q", _MAGIC, first_set, n_calls, wall_ns, cpu_limit))
        try:
            reply = self._receive(wall_s + _GRACE_S)
        except BaseException:
            # The answer may still come, and must not be taken for the next command's.
            if self._failure is None:
                self._broken("the runner was interrupted", "a command without its answer", "open a new one")
            raise
        return self._result(reply, wall_s, cpu_limit)

    def close(self) -> None:
        """Kills the runner and its child, waits for them, and gives the memory back; views of it read as zeros from then on.

        May be called twice.
        """
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._memory.close()

    def _start(self, binary: Path, library: Path, environ: dict[str, str], entry: str) -> None:
        memory = self._memory.descriptor
        command = [str(binary), str(os.getpid()), str(memory), str(library.resolve()), entry]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env=environ,
                pass_fds=(memory,),
                start_new_session=True,
            )
        except OSError as error:
            hint = "evo-l2 doctor"
            raise DeviceError("the runner does not start", expected=str(binary), found=str(error), hint=hint) from error

    def _await_ready(self, library: Path) -> None:
        if self._receive(_START_S)[1] != _LOADING:
            raise self._broken("the runner does not load anything", "its first message")
        reply = self._receive(_START_S)
        text = _text(reply)
        if reply[1] == _LOAD_FAILED:
            raise LoadFailed(text.replace(f"{library.resolve()}", library.name))
        if reply[1] == _SIGNALLED and reply[3] == signal.SIGKILL:
            raise self._broken("loading was killed from outside", "SIGKILL", "free memory, then run again")
        if reply[1] in (_SIGNALLED, _EXITED, _TIMED_OUT):
            ended = "did not end" if reply[1] == _TIMED_OUT else "ended the process"
            how = f"killed the process ({_name(reply[3])})" if reply[1] == _SIGNALLED else ended
            raise LoadFailed(f"loading {library.name} {how}")
        if reply[1] != _READY:
            raise self._broken("the runner is not ready", text or "an unknown message")
        self._address, self._stack_top = reply[6], reply[2]
        self._powers, self._landlock = reply[8], reply[9]

    def _result(self, reply: tuple[int, ...], wall_s: float, cpu_s: int) -> RunResult:
        kind, ns, number = reply[1], reply[2], reply[3]
        peak_bytes = reply[5] * 1024
        self._powers |= reply[8]
        if kind == _FINISHED:
            return RunResult(RunKind.OK, ns, None, "", peak_bytes)
        if kind == _EXITED:
            detail = f"the kernel ended the process (exit code {reply[4]}) before its calls were done"
            return RunResult(RunKind.EXITED, None, None, detail, peak_bytes)
        if kind == _TIMED_OUT:
            return RunResult(RunKind.TIMEOUT, None, None, f"not done after {wall_s:g} s", peak_bytes)
        if kind != _SIGNALLED:
            raise self._broken("the runner failed", _text(reply) or "an unknown message")
        if number == signal.SIGKILL:
            raise self._broken("the running kernel was killed from outside", "SIGKILL", "free memory, then run again")
        if number == signal.SIGXCPU:
            return RunResult(RunKind.TIMEOUT, None, number, f"not done after {cpu_s} s of processor time", peak_bytes)
        if number == signal.SIGSYS:
            return RunResult(RunKind.FORBIDDEN, None, number, _forbidden(reply[7], _text(reply)), peak_bytes)
        return RunResult(RunKind.SIGNAL, None, number, self._crash(number, reply[6]), peak_bytes)

    def _crash(self, number: int, address: int) -> str:
        words = f"crashed with {_name(number)}"
        if number not in (signal.SIGSEGV, signal.SIGBUS):
            return words
        if address == _NO_ADDRESS:
            return f"{words}: a vector access that is not aligned as its instruction needs, or a pointer that is no address"
        if address == _UNKNOWN:
            return words
        if 0 <= address < 4096:
            return f"{words}: access through a null pointer"
        if self._stack_top - _STACK_BYTES - _STACK_REACH_BYTES <= address < self._stack_top:
            return f"{words}: stack overflow (the stack has {_STACK_BYTES >> 20} MiB)"
        place = self._memory.place(address - self._address)
        return f"{words}: access {place}" if place is not None else f"{words}: access far outside of every buffer"

    def _send(self, message: bytes) -> None:
        if self._failure is not None:
            raise self._failure
        if self._process is None or self._process.stdin is None:
            raise DeviceError("the runner is closed", hint="open a new one")
        try:
            self._process.stdin.write(message)
        except OSError as error:
            raise self._broken("the runner is gone", self._ending()) from error

    def _receive(self, within_s: float) -> tuple[int, ...]:
        if self._process is None or self._process.stdout is None:
            raise DeviceError("the runner is closed", hint="open a new one")
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        message = b""
        deadline = time.monotonic() + within_s
        while len(message) < _REPLY.size:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise self._broken("the runner does not answer", f"nothing within {within_s:g} s")
            piece = os.read(descriptor, _REPLY.size - len(message))
            if not piece:
                raise self._broken("the runner is gone", self._ending())
            message += piece
        reply: tuple[int, ...] = _REPLY.unpack(message)
        if reply[0] != _MAGIC:
            raise self._broken("the runner answers rubbish", repr(message[:16]))
        return reply

    def _ending(self) -> str:
        """How the runner's process ended."""
        assert self._process is not None
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "a closed pipe"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _broken(self, what: str, found: str, hint: str = "evo-l2 doctor") -> DeviceError:
        self._failure = DeviceError(what, found=found, hint=hint)
        return self._failure


def _text(reply: tuple[int, ...]) -> str:
    raw = reply[10]
    assert isinstance(raw, bytes)
    return printable(raw.split(b"\0", 1)[0].decode(errors="replace"))


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _forbidden(number: int, name: str) -> str:
    """Names the system call; the filter allows none but those of the runner itself."""
    which = f" ({name or f'number {number}'})" if number >= 0 else ""
    return f"made a system call{which}, directly or through a library function; kernels may not"
