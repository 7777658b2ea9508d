"""The parent's side of a runner: starts it, asks, and ends it when it does not answer. See `runner_process`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from evo_l2.errors import DeviceError
from evo_l2.targets.cuda.card.memory import Region, close_all
from evo_l2.targets.cuda.card.requests import (
    Allocate,
    Host,
    LibrarySpec,
    LoadKernel,
    LoadLibrary,
    Probe,
    Replay,
    Request,
    Run,
    Serve,
)
from evo_l2.targets.cuda.launching.plan import Plan
from evo_l2.targets.messages import printable

__all__ = ["Refused", "Runner", "RunnerFault", "Sample"]

_MOST_BYTES = 1 << 18
"""Of one answer."""
_START_S = 120.0
_GRACE_S = 15.0
"""What an answer may take beyond the limit of the work itself."""
_TUNE_S = 120.0
_END_S = 30.0
"""What the driver may take to stop a killed runner's kernels."""


class Refused(Exception):
    """The driver refuses a cubin or a launch: the kernel's fault. Its text says why."""


class RunnerFault(Exception):
    """A kernel spoilt its context, or did not end: the kernel's fault. The runner is gone.

    Attributes:
        is_time_limit: Whether it did not end in time.
    """

    def __init__(self, detail: str, *, is_time_limit: bool) -> None:
        self.is_time_limit = is_time_limit
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class Sample:
    """One replay."""

    ns: int
    """Device time of all its calls."""
    clock_mhz: float | None
    """Mean clock of the multiprocessors meanwhile; None where the card does not tell."""


class Runner:
    """One runner process on one card. A context manager.

    Args:
        device: The card's index, as CUDA counts.
        harness: Cubin of `evo_l2.targets.cuda.card.harness.HARNESS`.
        library: A baseline that it will run, whose packages it loads at once: that takes seconds.

    It starts while the caller goes on; whether it did is seen by the first request.
    """

    def __init__(self, device: int, harness: Path, library: str = "") -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline, ours_alive = os.pipe()
        self._channel, self._lifeline = ours, ours_alive
        handed = (theirs.fileno(), lifeline)
        words = ["-P", "-m", "evo_l2.targets.cuda.card.runner_process", *map(str, handed), str(device), str(harness), library]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *words], pass_fds=handed, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except BaseException:
            ours.close()
            os.close(ours_alive)
            raise
        finally:
            theirs.close()
            os.close(lifeline)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process; None once closed."""
        return self._process.pid if self._process is not None else None

    def allocate(self, operands: tuple[Region, ...], workspaces: tuple[Region, ...] = ()) -> list[int]:
        """Fresh memory; one descriptor for each region, in order, for the caller to close.

        Raises:
            DeviceError: There is no room, or memory cannot be shared.
        """
        regions = (*operands, *workspaces)
        descriptors: list[int] = []
        try:
            self._ask(Allocate(operands, workspaces), _START_S, descriptors)
        except Refused as error:
            wanted = sum(region.stride_bytes * region.n_sets for region in regions)
            hint = "nvidia-smi shows what uses the card; a smaller shape needs less"
            expected = f"{wanted / 2**20:,.0f} MiB of shareable device memory"
            raise DeviceError("the card has no room", expected=expected, found=str(error), hint=hint) from error
        except RunnerFault as error:
            raise DeviceError("the card gives no memory", found=str(error), hint="evo-l2 doctor") from error
        if len(descriptors) != len(regions):
            close_all(descriptors)
            self.close()
            raise DeviceError("the runner shares no memory", expected=f"{len(regions)} pieces", found=str(len(descriptors)))
        return descriptors

    def load_kernel(self, cubin: bytes, plan: Plan) -> None:
        """Loads a kernel for the memory that was allocated.

        Raises:
            Refused: The driver does not take it.
            RunnerFault: It spoils the context, or takes too long.
            DeviceError: The runner is at fault.
        """
        self._ask(LoadKernel(cubin, plan), _START_S)

    def load_library(self, spec: LibrarySpec) -> str:
        """Loads a baseline for the memory that was allocated; says what was chosen.

        Raises:
            DeviceError: The library is missing or fails.
        """
        try:
            return str(self._ask(LoadLibrary(spec), _TUNE_S).get("description"))
        except (Refused, RunnerFault) as error:
            raise DeviceError("the baseline does not run", expected=spec.name, found=str(error)) from error

    def run(self, first: int, n_calls: int, limit_s: float) -> int:
        """Calls on sets from `first` on, launched one by one; nanoseconds, which plan and are no measurement.

        Raises:
            Refused: A launch is refused.
            RunnerFault: A call did not come to its end.
            DeviceError: The runner is at fault.
        """
        return self._number(self._ask(Run(first, n_calls, limit_s), limit_s), "ns")

    def replay(self, n_calls: int, limit_s: float) -> Sample:
        """One replay of a graph with one call on each of the first sets. Raises as `run` does."""
        answer = self._ask(Replay(n_calls, limit_s), limit_s)
        mhz = answer.get("clock_mhz")
        is_clock = isinstance(mhz, float) and 0 < mhz < math.inf
        return Sample(max(1, self._number(answer, "ns")), mhz if is_clock else None)

    def host(self, n_calls: int, limit_s: float) -> list[int]:
        """Nanoseconds of each call from before its launch until it was waited for. Raises as `run` does."""
        return self._numbers(self._ask(Host(n_calls, limit_s), limit_s), "ns", n_calls)

    def serve(self, arrivals_ns: tuple[int, ...], limit_s: float) -> list[int]:
        """Nanoseconds of each call from its arrival to its end. Raises as `run` does."""
        return self._numbers(self._ask(Serve(arrivals_ns, limit_s), limit_s), "ns", len(arrivals_ns))

    def probe(self) -> int:
        """Number of multiprocessors that ran a known-good kernel. Raises as `run` does."""
        return self._number(self._ask(Probe(), _START_S), "sms")

    def close(self) -> None:
        """Ends the process; may be called twice.

        Raises:
            DeviceError: The driver does not let it end.
        """
        if self._process is None:
            return
        process, self._process = self._process, None
        self._channel.close()
        os.close(self._lifeline)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired as error:
            hint = "nvidia-smi; the card may have to be reset"
            expected = f"process {process.pid} to end within {_END_S:.0f} s"
            raise DeviceError("the card does not let go of a kernel", expected=expected, hint=hint) from error

    def _ask(self, request: Request, limit_s: float, descriptors: list[int] | None = None) -> dict[str, Any]:
        if self._process is None:
            raise ValueError("the runner is closed")
        if not self._is_ready:
            self._greet()
        try:
            with open(os.memfd_create("request"), "w+b") as file:
                pickle.dump(request, file)
                file.seek(0)  # what flushes it, too
                socket.send_fds(self._channel, [b"?"], [file.fileno()])
        except OSError as error:
            self.close()
            raise DeviceError("the runner is gone", found=str(error), hint="evo-l2 doctor") from error
        return self._receive(limit_s + _GRACE_S, descriptors)

    def _greet(self) -> None:
        """Waits until it is ready; one that is not is ended."""
        try:
            self._receive(_START_S)
        except RunnerFault as error:
            expected = f"an answer within {_START_S:.0f} s"
            raise DeviceError("the runner does not start", expected=expected, hint="evo-l2 doctor") from error
        except DeviceError:
            self.close()
            raise
        self._is_ready = True

    def _receive(self, limit_s: float, descriptors: list[int] | None = None) -> dict[str, Any]:
        """The next answer; ends the runner when there is none."""
        self._channel.settimeout(limit_s)
        try:
            content, received, _, _ = socket.recv_fds(self._channel, _MOST_BYTES, 64)
        except TimeoutError as error:
            self.close()
            raise RunnerFault("it did not end in time", is_time_limit=True) from error
        except OSError as error:
            self.close()
            raise DeviceError("the runner does not answer", found=str(error), hint="evo-l2 doctor") from error
        if descriptors is not None:
            descriptors += received
        else:
            close_all(received)
        if not content:
            self.close()
            raise DeviceError("the runner ended without an answer", expected="a process that stays", hint="evo-l2 doctor")
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._nonsense("a JSON object", content)
        if "error" in answer:
            raise DeviceError("the runner cannot do it", found=printable(str(answer["error"])))
        fault = answer.get("fault")
        if fault == "refused":
            raise Refused(printable(str(answer.get("detail"))))
        if fault is not None:
            self.close()
            detail = "it did not end in time" if fault == "time-limit" else printable(str(answer.get("detail")))
            raise RunnerFault(detail, is_time_limit=fault == "time-limit")
        return answer

    def _number(self, answer: dict[str, Any], name: str) -> int:
        return self._numbers({name: [answer.get(name)]}, name, 1)[0]

    def _numbers(self, answer: dict[str, Any], name: str, count: int) -> list[int]:
        """So many whole numbers; nothing that comes out of a process in which candidates run is taken for granted."""
        found = answer.get(name)
        if not isinstance(found, list) or len(found) != count or not all(type(value) is int for value in found):
            raise self._nonsense(f"{count} whole numbers", repr(found).encode())
        return found

    def _nonsense(self, expected: str, found: bytes) -> DeviceError:
        """Ends the runner; the error that says why."""
        self.close()
        words = printable(found[:80].decode(errors="replace"))
        return DeviceError("the runner's answer makes no sense", expected=expected, found=words, hint="evo-l2 doctor")
