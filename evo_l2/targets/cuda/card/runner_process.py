"""The process that owns a candidate's context: loads, allocates, launches, replays; it knows no inputs and gives no verdict.

    python -m evo_l2.targets.cuda.card.runner_process SOCKET LIFELINE DEVICE HARNESS LIBRARY

SOCKET is a descriptor of requests (see `requests`; each in a file of its own, whose descriptor comes, since a cubin may be
larger than a message) and answers, LIFELINE one that ends when the parent does, DEVICE the card's index, HARNESS the cubin of
`harness`, LIBRARY a baseline to load beforehand, or empty. A fault in a kernel leaves the context unusable: it is answered
once, and the process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from evo_l2.errors import EvoL2Error
from evo_l2.targets.cuda.card.harness import clock_mhz
from evo_l2.targets.cuda.card.kernel_work import KernelWork, Work
from evo_l2.targets.cuda.card.memory import Mapping, close_all, create
from evo_l2.targets.cuda.card.requests import (
    Allocate,
    Host,
    LoadKernel,
    LoadLibrary,
    Probe,
    Replay,
    Request,
    Run,
    Serve,
    fault_in_words,
)
from evo_l2.targets.cuda.driver import CudaError, bindings, checked, recorded_graph, retain_context

__all__ = ["main"]

_NOT_READY = 600
_LEAVES_CONTEXT = frozenset((1, 2, 200, 209, 218, 222, 301, 500, 701, 801, 900, 901, 904, 912))
"""Errors that do not spoil the context: refused launches and images, and exhausted memory."""
_POLL_S = 5e-5
_EXTERNAL = 1
"""CU_EVENT_RECORD_EXTERNAL: the record is a node of the graph, so that launching the graph is not in the time."""


class TimeLimit(Exception):
    """Work on the card did not end in time."""


class Bench:
    """The card as the runner uses it: a stream, memory, what is loaded, graphs."""

    def __init__(self, device: int, harness: bytes) -> None:
        cu = bindings()
        self._cu = cu
        self._device_index = device
        device_handle = retain_context(device)
        self._stream = checked(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._events = [checked(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DEFAULT)) for _ in range(2)]
        attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._n_sms = int(checked(cu.cuDeviceGetAttribute(attribute, device_handle)))
        module = checked(cu.cuModuleLoadData(harness))
        self._clocks, self._evict = (checked(cu.cuModuleGetFunction(module, name)) for name in (b"clocks", b"evict"))
        self._readings = [checked(cu.cuMemAlloc(16 * self._n_sms)) for _ in range(2)]
        self._arguments = [_Arguments(int(reading)) for reading in self._readings]
        l2 = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        n_swept = 2 * int(checked(cu.cuDeviceGetAttribute(l2, device_handle)))
        self._swept = checked(cu.cuMemAlloc(n_swept))
        checked(cu.cuMemsetD8(self._swept, 0, n_swept))
        self._sweep = _Arguments(int(self._swept), int(self._readings[0]), n=n_swept // 16)
        self._operands: list[Mapping] = []
        self._workspaces: list[Mapping] = []
        self._work: Work | None = None
        self._graphs: dict[int, Any] = {}

    @property
    def stream(self) -> int:
        """Handle of the stream."""
        return int(self._stream)

    def allocate(self, request: Allocate) -> tuple[dict[str, object], list[int]]:
        """See `Allocate`."""
        self._unload()
        for mapping in (*self._operands, *self._workspaces):
            mapping.close()
        self._operands, self._workspaces = [], []
        for wanted, made in ((request.operands, self._operands), (request.workspaces, self._workspaces)):
            for region in wanted:
                made.append(create(region, self._device_index))
        descriptors: list[int] = []
        try:
            for mapping in (*self._operands, *self._workspaces):
                descriptors.append(mapping.export())
        except CudaError:
            close_all(descriptors)
            raise
        return {}, descriptors

    def load_kernel(self, request: LoadKernel) -> dict[str, object]:
        """See `LoadKernel`."""
        self._unload()
        spaces = {mapping.region.name: mapping.address() for mapping in self._workspaces}
        self._work = KernelWork(request.cubin, request.plan, self._sets(), spaces)
        return {}

    def load_library(self, request: LoadLibrary) -> dict[str, object]:
        """See `LoadLibrary`."""
        from evo_l2.targets.cuda.libraries.library import make_library

        self._unload()
        spec = request.spec
        library = make_library(
            spec.name,
            layout=spec.layout,
            accumulate=spec.accumulate,
            sizes=spec.sizes,
            workspace_bytes=spec.workspace_bytes,
        )
        library.prepare(self.stream, self._sets())
        self._work = library
        return {"description": library.description}

    def run(self, request: Run) -> dict[str, object]:
        """See `Run`."""
        begin, end = self._events
        checked(self._cu.cuEventRecord(begin, self._stream))
        for index in range(request.first, request.first + request.n_calls):
            self._loaded.launch(self.stream, index)
        checked(self._cu.cuEventRecord(end, self._stream))
        self._wait(end, request.limit_s)
        return {"ns": self._elapsed_ns()}

    def replay(self, request: Replay) -> dict[str, object]:
        """See `Replay`."""
        if request.n_calls not in self._graphs:
            self._record(request.n_calls)
        for reading in self._readings:
            checked(self._cu.cuMemsetD8Async(reading, 0, 16 * self._n_sms, self._stream))
        checked(self._cu.cuGraphLaunch(self._graphs[request.n_calls], self._stream))
        self._finish(request.limit_s)
        before, after = (self._read(reading) for reading in self._readings)
        return {"ns": self._elapsed_ns(), "clock_mhz": clock_mhz(before, after)}

    def host(self, request: Host) -> dict[str, object]:
        """See `Host`."""
        found = []
        for index in range(request.n_calls):
            begin = time.perf_counter_ns()
            self._loaded.launch(self.stream, index)
            checked(self._cu.cuStreamSynchronize(self._stream))
            found.append(time.perf_counter_ns() - begin)
        return {"ns": found}

    def serve(self, request: Serve) -> dict[str, object]:
        """See `Serve`. One thread launches and looks for ends in turn, as a serving loop does."""
        flags = self._cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
        ends = [checked(self._cu.cuEventCreate(flags)) for _ in request.arrivals_ns]
        try:
            return {"ns": self._served(request, ends)}
        finally:
            for event in ends:
                self._cu.cuEventDestroy(event)

    def _served(self, request: Serve, ends: list[Any]) -> list[int]:
        found: list[int] = []
        n_launched = 0
        start = time.perf_counter_ns()
        while len(found) < len(ends):
            now = time.perf_counter_ns() - start
            if n_launched < len(ends) and now >= request.arrivals_ns[n_launched]:
                self._loaded.launch(self.stream, n_launched % self._n_sets)
                checked(self._cu.cuEventRecord(ends[n_launched], self._stream))
                n_launched += 1
            elif len(found) < n_launched and self._is_done(ends[len(found)]):
                found.append(time.perf_counter_ns() - start - request.arrivals_ns[len(found)])
            elif now > request.limit_s * 1e9:
                raise TimeLimit
        return found

    def probe(self, request: Probe) -> dict[str, object]:
        """See `Probe`."""
        checked(self._cu.cuMemsetD8Async(self._readings[0], 0, 16 * self._n_sms, self._stream))
        self._read_clocks(0)
        self._finish(10.0)
        return {"sms": sum(nanoseconds > 0 for _, nanoseconds in self._read(self._readings[0]))}

    @property
    def _loaded(self) -> Work:
        if self._work is None:
            raise ValueError("nothing is loaded")
        return self._work

    @property
    def _n_sets(self) -> int:
        return self._operands[0].region.n_sets

    def _sets(self) -> list[dict[str, int]]:
        return [{mapping.region.name: mapping.address(index) for mapping in self._operands} for index in range(self._n_sets)]

    def _unload(self) -> None:
        for graph in self._graphs.values():
            self._cu.cuGraphExecDestroy(graph)
        self._graphs.clear()
        if self._work is not None:
            self._work.close()
            self._work = None

    def _record(self, n_calls: int) -> None:
        """What the L2 cache holds is replaced; then clocks, event, a call on each set, event, clocks."""
        cu = self._cu

        def enqueue() -> None:
            self._launch(self._evict, 1024, self._sweep)
            self._read_clocks(0)
            checked(cu.cuEventRecordWithFlags(self._events[0], self._stream, _EXTERNAL))
            for index in range(n_calls):
                self._loaded.launch(self.stream, index)
            checked(cu.cuEventRecordWithFlags(self._events[1], self._stream, _EXTERNAL))
            self._read_clocks(1)

        self._graphs[n_calls] = recorded_graph(self._stream, enqueue)

    def _read_clocks(self, number: int) -> None:
        self._launch(self._clocks, 32, self._arguments[number])

    def _launch(self, function: Any, n_threads: int, arguments: _Arguments) -> None:
        """One of the harness's kernels, in two blocks for each multiprocessor."""
        shape = (2 * self._n_sms, 1, 1, n_threads, 1, 1)
        checked(self._cu.cuLaunchKernel(function, *shape, 0, self._stream, arguments.pointers, 0))

    def _read(self, reading: Any) -> list[tuple[int, int]]:
        words = (ctypes.c_uint64 * (2 * self._n_sms))()
        checked(self._cu.cuMemcpyDtoH(ctypes.addressof(words), reading, 16 * self._n_sms))
        return list(zip(words[0::2], words[1::2], strict=True))

    def _elapsed_ns(self) -> int:
        return round(1e6 * float(checked(self._cu.cuEventElapsedTime(*self._events))))

    def _finish(self, limit_s: float) -> None:
        """Waits for all that is on the stream."""
        deadline = time.monotonic() + limit_s
        while True:
            status = int(self._cu.cuStreamQuery(self._stream)[0])
            if status == 0:
                return
            self._judge_status(status, deadline)

    def _wait(self, event: Any, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not self._is_done(event):
            self._judge_status(_NOT_READY, deadline)

    def _is_done(self, event: Any) -> bool:
        result = self._cu.cuEventQuery(event)
        if int(result[0]) == _NOT_READY:
            return False
        checked(result)
        return True

    def _judge_status(self, status: int, deadline: float) -> None:
        if status != _NOT_READY:
            checked((self._cu.CUresult(status),))
        if time.monotonic() > deadline:
            raise TimeLimit
        time.sleep(_POLL_S)


class _Arguments:
    """Pointers, then an integer where there is one, as a launch takes them."""

    def __init__(self, *addresses: int, n: int | None = None) -> None:
        self._values = [ctypes.c_uint64(address) for address in addresses] + ([ctypes.c_int(n)] if n is not None else [])
        self._places = (ctypes.c_void_p * len(self._values))(*map(ctypes.addressof, self._values))
        self.pointers = ctypes.addressof(self._places)
        """Address of the array of pointers to the arguments."""


def _answer(bench: Bench, request: Request) -> tuple[dict[str, object], list[int], bool]:
    """Answer, descriptors, and whether the process can go on."""
    handlers: dict[type, Callable[[Any], dict[str, object]]] = {
        LoadKernel: bench.load_kernel,
        LoadLibrary: bench.load_library,
        Run: bench.run,
        Replay: bench.replay,
        Host: bench.host,
        Serve: bench.serve,
        Probe: bench.probe,
    }
    try:
        if isinstance(request, Allocate):
            return (*bench.allocate(request), True)
        return handlers[type(request)](request), [], True
    except TimeLimit:
        return {"fault": "time-limit"}, [], False
    except EvoL2Error as error:
        return {"error": str(error)}, [], True
    except CudaError as error:
        kind = "refused" if error.code in _LEAVES_CONTEXT else "crash"
        return {"fault": kind, "name": error.name, "detail": fault_in_words(error.name)}, [], kind == "refused"
    except Exception as error:  # whatever a library raises is told, not printed
        return {"error": f"{type(error).__name__}: {error}"}, [], True


def _load_beforehand(name: str) -> None:
    """Imports what a baseline needs; one that is missing is told when it is asked for."""
    from evo_l2.targets.cuda.libraries.library import make_library

    with contextlib.suppress(EvoL2Error):
        make_library(name, layout="nn", accumulate="fp32", sizes=(16, 16, 16, 1), workspace_bytes=0).close()


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(1)


def _next_request(channel: socket.socket) -> Request | None:
    """None when the parent has closed the socket."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        return None
    with open(descriptors[0], "rb") as file:
        request: Request = pickle.load(file)
    return request


def main(arguments: list[str]) -> None:
    """Serves until the parent closes the socket, or a fault ends it."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent closed it while something was under way
        _serve(arguments)


def _serve(arguments: list[str]) -> None:
    channel = socket.socket(fileno=int(arguments[0]))
    threading.Thread(target=_end_with, args=(int(arguments[1]),), daemon=True).start()
    try:
        with open(arguments[3], "rb") as file:
            bench = Bench(int(arguments[2]), file.read())
        if arguments[4]:
            _load_beforehand(arguments[4])
    except (EvoL2Error, CudaError, OSError, RuntimeError) as error:
        channel.send(json.dumps({"error": str(error)}).encode())
        return
    channel.send(b"{}")
    while (request := _next_request(channel)) is not None:
        answer, descriptors, lives = _answer(bench, request)
        try:
            socket.send_fds(channel, [json.dumps(answer).encode()], descriptors)
        finally:
            close_all(descriptors)
        if not lives:
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
