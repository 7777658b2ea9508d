"""The process that a local model runs in, seen from the process that started it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evo_l2.errors import ModelError

__all__ = ["Worker", "WorkerSettings"]

_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "DO_NOT_TRACK": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the worker is told first; everything in it is JSON."""

    parent: int
    """Process id of the process whose death ends the worker."""
    model: str
    """`embedded`, a directory, or a `.gguf` file."""
    adapter: str | None
    dtype: str
    """`auto`, `float32`, `bfloat16` or `float16`."""
    device: str
    """`auto`, `cpu` or `cuda`."""
    threads: int
    max_batch: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    context_tokens: int | None
    """None for the model's own limit."""
    cache_dir: str | None


class Worker:
    """One worker process. It ends with this object's `kill`, with its own standard input, or with this process.

    A thread of its own starts the process and reads what it says: a process that asked to be killed with its parent is
    killed when the *thread* that started it ends.
    """

    def __init__(self, settings: WorkerSettings, *, paused: bool) -> None:
        self.replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        """What it says after it is ready; None once it has ended."""
        self.ready: dict[str, Any] | None = None
        """What it said when the model was loaded; None before."""
        self.error: ModelError | None = None
        """Why the model cannot be used, or was not loaded; None while there is hope."""
        self._settled = threading.Event()
        self._spawned = threading.Event()
        self._lock = threading.Lock()
        self._paused = paused
        self._refused = False
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: deque[str] = deque(maxlen=20)
        threading.Thread(target=self._own, args=(settings,), name="model-worker", daemon=True).start()
        self._spawned.wait()

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the model was loaded, or has failed to load, within the time."""
        return self._settled.wait(timeout_s)

    def send(self, message: Mapping[str, Any]) -> None:
        """Says something to the worker; a worker that has ended does not hear it, which `replies` tells."""
        process = self._process
        if process is None or process.stdin is None:
            return
        with suppress(BrokenPipeError, ValueError):
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()

    def pause(self) -> None:
        """Stops every thread of the worker; returns once they stand still."""
        with self._lock:
            self._paused = True
            self._stop()

    def resume(self) -> None:
        """Ends `pause`."""
        with self._lock:
            self._paused = False
            self._signal(signal.SIGCONT)

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._paused

    @property
    def ended(self) -> bool:
        """Whether the process is over."""
        return self._process is None or self._process.poll() is not None

    @property
    def refused(self) -> bool:
        """Whether the model said itself that it cannot be used; to start it again would not help."""
        return self._refused

    def kill(self) -> None:
        """Ends the process, paused or not, and waits for it."""
        with self._lock:
            self._signal(signal.SIGKILL)
        process = self._process
        if process is not None:
            process.wait()

    def how_it_ended(self) -> str:
        """One line about the end of the process."""
        process = self._process
        code = process.wait() if process is not None else None
        if code is None:
            how = "never started"
        elif code < 0:
            how = f"signal {signal.Signals(-code).name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
        else:
            how = f"exit {code}"
        return f"{how}: {self._complaints[-1]}" if self._complaints else how

    def _own(self, settings: WorkerSettings) -> None:
        try:
            process = self._spawn(settings.threads)
        except OSError as error:
            self.error = ModelError("the model's process does not start", found=str(error))
            self._settled.set()
            self.replies.put(None)
            return
        finally:
            self._spawned.set()
        listener = threading.Thread(target=self._listen_to_complaints, args=(process,), daemon=True)
        listener.start()
        self.send(asdict(settings))
        assert process.stdout is not None
        for line in process.stdout:
            self._hear(line)
        process.wait()
        listener.join(timeout=1)
        if self.ready is None and self.error is None:
            hint = "a smaller model, or more memory"
            self.error = ModelError("the model's process ended while it was loading", found=self.how_it_ended(), hint=hint)
        self._settled.set()
        self.replies.put(None)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _spawn(self, threads: int) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[2])
        # Threads that wait for each other by spinning took four times the processor time beside builds.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **_OFFLINE, "OMP_NUM_THREADS": str(threads)}
        # -P keeps the user's folder off the path, where a file named like a library would be imported in its place.
        if root not in (path for path in sys.path if path.endswith("-packages")):
            environment["PYTHONPATH"] = os.pathsep.join(p for p in (os.environ.get("PYTHONPATH"), root) if p)
        with self._lock:
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mutators.generators.local_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                process_group=0,
            )
            if self._paused:
                self._stop()
        return process

    def _hear(self, line: bytes) -> None:
        message: dict[str, Any] = json.loads(line)
        if "ready" in message:
            self.ready = message["ready"]
            self._settled.set()
        elif "fatal" in message:
            fault = message["fatal"]
            self._refused = True
            self.error = ModelError(fault["what"], expected=fault["expected"], found=fault["found"], hint=fault["hint"])
            self._settled.set()
        else:
            self.replies.put(message)

    def _listen_to_complaints(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            text = " ".join(line.decode(errors="replace").split())
            if text:
                self._complaints.append(text[:300])
        process.stderr.close()

    def _stop(self) -> None:
        if not self._signal(signal.SIGSTOP):
            return
        assert self._process is not None
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, number: signal.Signals) -> bool:
        """Whether the process was there to hear it. Called with the lock held, so that its id cannot be another's."""
        if self._process is None or self._process.returncode is not None:
            return False
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True
