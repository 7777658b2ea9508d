"""Kernel source to a cubin by NVRTC, in warm processes within limits."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo_l2.build_cache import BuildOutcome
from evo_l2.errors import ToolchainError
from evo_l2.evaluation import Status, Verdict
from evo_l2.sandbox import Exceeded
from evo_l2.targets.cpu.toolchain import Toolchain
from evo_l2.targets.cuda.toolchain.nvcc import (
    MOST_PTX_BYTES,
    Ended,
    Job,
    at_source_lines,
    errors_first,
    explain,
    resource_lines,
)
from evo_l2.targets.cuda.toolchain.toolkit import WORKER, Toolkit

__all__ = ["Nvrtc"]

_HEADERS = {
    **dict.fromkeys(("stdint.h", "cstdint"), "#include <cuda/std/cstdint>\n"),
    **dict.fromkeys(("stddef.h", "cstddef"), "#include <cuda/std/cstddef>\n"),
    **dict.fromkeys(("limits.h", "climits"), "#include <cuda/std/climits>\n"),
    **dict.fromkeys(("float.h", "cfloat"), "#include <cuda/std/cfloat>\n"),
    **dict.fromkeys(("math.h", "cmath"), ""),
    "cuda.h": "typedef struct CUtensorMap_st { alignas(64) unsigned long long opaque[16]; } CUtensorMap;\n",
}
"""Stand for headers that NVRTC cannot take: the host's (`C_HEADERS`), and the driver's, of which a kernel needs one type."""
_OPTIONS = ("--generate-line-info", "--device-as-default-execution-space")
"""The second lets a kernel have plain `constexpr` functions, as nvcc does where their results are constants."""
_OF_PTXAS = "application ptx input"
_START_S = 60.0
_GRACE_S = 5.0
"""Beyond a kernel's own wall time, which the process itself watches over."""
_MOST_BYTES = 64 << 20
_MOST_MEMORY_BYTES = 16 << 30
"""Address space of the whole process; each kernel has a smaller limit of its own."""
_NVRTC_OUT_OF_MEMORY = 1
_LIMITS = {"wall": Exceeded.WALL, "output": Exceeded.FILE}


class _Gone(Exception):
    """The process ended, or does not answer."""


@dataclass(slots=True)
class _Worker:
    """One process: its pipes, and what it said first."""

    process: subprocess.Popen[bytes]
    greeting: dict[str, Any]

    def ask(self, request: dict[str, Any], wall_s: float) -> tuple[dict[str, Any], list[bytes]]:
        """One kernel's answer.

        Raises:
            _Gone: There is none.
        """
        assert self.process.stdin is not None
        text = json.dumps(request).encode()
        try:
            self.process.stdin.write(struct.pack(">I", len(text)) + text)
            self.process.stdin.flush()
        except OSError as error:
            raise _Gone("it has ended") from error
        return _receive(self.process, time.monotonic() + wall_s)

    def end(self) -> None:
        """Kills the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Nvrtc:
    """Builds by NVRTC. As many processes are kept as threads have built at once; each compiles a kernel in a fork of itself.

    What confines nvcc confines them too: the launcher's limits and Landlock; once warm they may read the headers alone.

    Args:
        toolkit: Has NVRTC.
        host: Tells what programs of this system have to read.
        launcher: See `evo_l2.sandbox`.

    Raises:
        ToolchainError: The toolkit has no NVRTC, or it does not work.
    """

    def __init__(self, toolkit: Toolkit, host: Toolchain, launcher: Path) -> None:
        self._library, self._launcher = toolkit.tool("nvrtc"), launcher
        self._include_dirs = toolkit.include_dirs
        python = (Path(sys.executable).parent, Path(sys.prefix), Path(sys.base_prefix), WORKER)
        self._read_paths = (*host.read_paths, *toolkit.homes, *self._include_dirs, self._library.parent, *python)
        self._environ = host.environ
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()
        # A process is killed when the thread that started it ends (PR_SET_PDEATHSIG), so one lasting thread starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="nvrtc")
        first = self._take()
        self._version = str(first.greeting["version"])
        self._give(first)

    @property
    def version(self) -> str:
        """Name and version, for the environment."""
        return f"nvrtc {self._version}"

    def close(self) -> None:
        """Ends the processes; may be called twice. Another build starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        if self._owner == os.getpid():
            for worker in idle:
                worker.end()

    def build(self, work: Path, job: Job, check_machine: Callable[[], None]) -> BuildOutcome:
        """See `evo_l2.targets.cuda.toolchain.nvcc.Nvcc.build`."""
        if job.with_cutlass:
            message = (
                f"CuTe and CUTLASS are built by nvcc alone, and the builder here is {self.version}; write it without them"
            )
            return BuildOutcome(Verdict(Status.BUILD_ERROR, "compile", message))
        back = [f"--ptxas-options={option}" for option in ("-v", *job.back)]
        answer = self._ask(job, [f"--gpu-architecture={job.arch}", *back])
        if answer is None:
            return explain(Ended("", Exceeded.WALL), check_machine)
        head, blobs = answer
        if head["ended"] != "done":
            said = errors_first(str(head["said"]), str(work))
            return explain(Ended(said, _LIMITS.get(head["ended"]), head["signal"]), check_machine)
        output = str(head["log"])
        if head["result"] != 0 and _OF_PTXAS in output:
            # Its PTX is not handed out then, but that of the virtual architecture is the same.
            again = self._ask(job, [f"--gpu-architecture={job.virtual}"])
            if again is not None and again[1]:
                output = at_source_lines(output, again[1][0].decode("utf-8", "replace"))
        log = errors_first(output, str(work))
        if head["result"] != 0 or len(blobs) != 2 or not all(blobs):
            said = "out of memory" if head["result"] == _NVRTC_OUT_OF_MEMORY and not log else log
            return explain(Ended(said, returncode=head["result"]), check_machine)
        if len(blobs[0]) > MOST_PTX_BYTES:
            return explain(Ended(log, Exceeded.FILE), check_machine)
        for name, blob in zip(("kernel.ptx", "kernel.cubin"), blobs, strict=True):
            (work / name).write_bytes(blob)
        return BuildOutcome(None, "\n".join(part for part in (resource_lines(output), log) if part))

    def _ask(self, job: Job, options: list[str]) -> tuple[dict[str, Any], list[bytes]] | None:
        """An answer, by a second process if the first had ended while it was idle; None when there is none in time."""
        limits = job.limits
        includes = [f"-I{folder}" for folder in self._include_dirs]
        request = {
            "source": job.source, "options": [*_OPTIONS, *options, *job.front, *includes], "headers": _HEADERS,
            "cpu_s": limits.cpu_s, "wall_s": limits.wall_s, "memory_bytes": limits.memory_bytes, "most_bytes": _MOST_BYTES,
        }  # fmt: skip
        wall_s = limits.wall_s + _GRACE_S
        for last in (False, True):
            worker = self._take()
            try:
                answer = worker.ask(request, wall_s)
            except _Gone as gone:
                worker.end()
                if str(gone) == "no answer" or last:
                    return None
            except BaseException:
                worker.end()
                raise
            else:
                self._give(worker)
                return answer
        return None

    def _take(self) -> _Worker:
        with self._lock:
            if self._owner != os.getpid():
                # After a fork, pipes and processes are the parent's.
                self._idle, self._owner = [], os.getpid()
                self._starter = ThreadPoolExecutor(1, thread_name_prefix="nvrtc")
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                worker.end()
        return self._starter.submit(self._start).result()

    def _give(self, worker: _Worker) -> None:
        with self._lock:
            self._idle.append(worker)

    def _start(self) -> _Worker:
        """A new process, once it is warm.

        Raises:
            ToolchainError: It does not start, or NVRTC does not work in it.
        """
        config = {"library": str(self._library), "include_dirs": [str(path) for path in self._include_dirs]}
        status_read, status_write = os.pipe()
        command = [str(self._launcher), f"--parent={os.getpid()}", f"--status={status_write}"]
        command += [f"--memory={_MOST_MEMORY_BYTES}", f"--file={_MOST_BYTES}"]
        command += [f"--read={path}" for path in self._read_paths]
        command += ["--", sys.executable, "-I", "-S", "-B", str(WORKER), json.dumps(config)]
        try:
            process = subprocess.Popen(
                command, cwd="/", env=dict(self._environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, pass_fds=(status_write,), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise _broken(str(self._launcher), str(error)) from error
        finally:
            os.close(status_write)
            os.close(status_read)
        worker = _Worker(process, {})
        try:
            worker.greeting, _ = _receive(process, time.monotonic() + _START_S)
        except _Gone as gone:
            worker.end()
            raise _broken(str(self._library), str(gone)) from gone
        if "error" in worker.greeting:
            worker.end()
            raise _broken(str(self._library), str(worker.greeting["error"]))
        return worker


def _receive(process: subprocess.Popen[bytes], deadline: float) -> tuple[dict[str, Any], list[bytes]]:
    """A whole message of the process.

    Raises:
        _Gone: "no answer" in time, or "it has ended".
    """
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    kept = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)

        def read(n_bytes: int) -> bytes:
            while len(kept) < n_bytes:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise _Gone("no answer")
                piece = os.read(pipe, 1 << 16)
                if not piece:
                    raise _Gone("it has ended")
                kept.extend(piece)
            part = bytes(kept[:n_bytes])
            del kept[:n_bytes]
            return part

        head = json.loads(read(struct.unpack(">I", read(4))[0]))
        return head, [read(size) for size in head["blobs"]]


def _broken(expected: str, found: str) -> ToolchainError:
    hint = "pip install --force-reinstall 'evo-l2[cuda-toolkit]', then evo-l2 doctor"
    return ToolchainError("NVRTC does not work", expected=f"{expected} to build a small program", found=found, hint=hint)
