"""The process that holds NVRTC: loads it once, then compiles every kernel in a fork of that state. Run as a script.

    python -I -S nvrtc_worker.py CONFIG           serves requests on standard input until it ends
    python -I -S nvrtc_worker.py --probe CONFIG   prints what NVRTC is, as JSON

CONFIG is JSON: `library` (path of libnvrtc.so) and `include_dirs`. It imports nothing but the standard library.

A fork for each kernel means that what one leaves behind does not reach the next: each starts from the same state, has its
own limits, and costs nothing but itself when it crashes. Messages are frames: four bytes of length (big-endian), then JSON,
then the blobs whose lengths the JSON's `blobs` gives. The first frame is the greeting: `version` and `architectures`, or
`error`. A request holds `source`, `options`, `headers` (texts by name), `cpu_s`, `wall_s`, `memory_bytes` and `most_bytes`.
Its answer holds `ended` ("done", "signal", "wall" or "output"), `signal`, `cpu_s`, `said` (what the library wrote to standard
error), and for "done" `result` (NVRTC's number), `log`, and two blobs: PTX and cubin.

Functions of the library that are called, from the NVRTC manual (chapter *User Interface*): `nvrtcVersion`,
`nvrtcGetNumSupportedArchs`, `nvrtcGetSupportedArchs`, `nvrtcCreateProgram`, `nvrtcCompileProgram`, `nvrtcDestroyProgram`, and
size and content of `nvrtcGetProgramLog`, `nvrtcGetPTX`, `nvrtcGetCUBIN`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import select
import signal
import struct
import sys
import time
from typing import Any, NoReturn

_CANARY = """\
#include <cuda_fp16.h>
extern "C" __global__ void canary(const half *a, half *b) { b[threadIdx.x] = __hadd(a[threadIdx.x], a[0]); }
"""
_SUCCESS = 0
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_READ_FILE_AND_DIR = (1 << 2) | (1 << 3)
_EVERYTHING = (1 << 13) - 1
"""All rights on files of Landlock's first version: execute, write, read, and making and removing of every kind."""
_PR_SET_PDEATHSIG = 1
_MOST_SAID_BYTES = 4096


class Nvrtc:
    """The library, by its C interface.

    Raises:
        OSError: It does not load.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def version(self) -> str:
        """Major and minor version."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> list[str]:
        """What it builds for; variants (`sm_90a`) follow the base, since the library lists only bases."""
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(numbers)
        return [name for n in numbers for name in (f"sm_{n}", *([f"sm_{n}a"] if n >= 90 else []))]

    def compile(self, source: str, options: list[str], headers: dict[str, str]) -> tuple[int, str, bytes, bytes]:
        """Result (0: success), messages, PTX and cubin of a program that is called `kernel.cu`."""
        program = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        made = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode("utf-8", "replace"), b"kernel.cu", len(headers), texts, names
        )
        if made != _SUCCESS:
            return int(made), "NVRTC does not take the program", b"", b""
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        result = int(self._library.nvrtcCompileProgram(program, len(options), arguments))
        log = self._content(program, "ProgramLog").decode("utf-8", "replace").replace("\0", "")
        if result != _SUCCESS:
            return result, log, b"", b""
        ptx, cubin = self._content(program, "PTX").rstrip(b"\0"), self._content(program, "CUBIN")
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return result, log, ptx, cubin

    def _content(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw[: size.value]


def greet(config: dict[str, Any]) -> tuple[Nvrtc | None, dict[str, Any]]:
    """Loads the library and compiles a small program with it, so that it is warm: the library and the greeting."""
    try:
        library = Nvrtc(config["library"])
    except OSError as error:
        return None, {"error": f"NVRTC does not load: {error}"}
    options = ["--gpu-architecture=sm_80", "--std=c++17", "--generate-line-info"]
    result, log, ptx, _ = library.compile(_CANARY, [*options, *(f"-I{path}" for path in config["include_dirs"])], {})
    if result != _SUCCESS:
        first = next((line for line in log.splitlines() if line.strip()), "no message")
        return None, {"error": f"NVRTC does not build a small program ({result}): {first[:300]}"}
    full = re.search(rb"\bV(\d+\.\d+\.\d+)", ptx)
    version = full.group(1).decode() if full is not None else library.version()
    return library, {"version": version, "architectures": library.architectures()}


def confine(read_dirs: list[str]) -> None:
    """Leaves this process nothing to read but the given folders, and nothing to write, where the kernel has Landlock.

    The launcher has allowed what Python and the library need to start; from here on only headers are needed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    rules = struct.pack("=Q", _EVERYTHING)
    ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0)
    if ruleset < 0:
        return
    for path in read_dirs:
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        libc.syscall(_LANDLOCK_ADD_RULE, ruleset, 1, struct.pack("=Qi", _READ_FILE_AND_DIR, folder), 0)
        os.close(folder)
    if libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot confine NVRTC")
    os.close(ruleset)


def serve(library: Nvrtc, requests: int, answers: int) -> None:
    """Answers requests until there are no more."""
    while (length := _read(requests, 4)) is not None:
        text = _read(requests, struct.unpack(">I", length)[0])
        if text is None:
            return
        _write(answers, _run(library, json.loads(text)))


def _run(library: Nvrtc, job: dict[str, Any]) -> bytes:
    """One kernel in a fork; the answer's frame."""
    reading, writing = os.pipe()
    errors = os.memfd_create("errors")
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(errors, 2)
        _compile(library, job, writing)
    os.close(writing)
    kept, limit = _collect(reading, time.monotonic() + job["wall_s"], job["most_bytes"])
    os.close(reading)
    if limit is not None:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    said = os.pread(errors, _MOST_SAID_BYTES, 0).decode("utf-8", "replace").replace("\0", "")
    os.close(errors)
    facts = {"cpu_s": usage.ru_utime + usage.ru_stime, "said": said}
    whole = _split(kept) if limit is None and not os.WIFSIGNALED(status) else None
    if whole is not None:
        return frame({**whole[0], "ended": "done", **facts}, *whole[1])
    # Without a signal it has left without a word: a library that calls exit() when it is out of something.
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return frame({"ended": limit or "signal", "signal": number, **facts})


def _compile(library: Nvrtc, job: dict[str, Any], out: int) -> NoReturn:
    """What the fork does."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_s"], job["cpu_s"] + 2))
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        asked = job["memory_bytes"]
        resource.setrlimit(resource.RLIMIT_AS, (asked if most < 0 else min(asked, most), most))
        result, log, ptx, cubin = library.compile(job["source"], job["options"], job["headers"])
        _write(out, frame({"result": result, "log": log[: job["most_bytes"] // 4]}, ptx, cubin))
        status = 0
    except MemoryError:
        _write(out, frame({"result": 1, "log": "out of memory"}, b"", b""))
        status = 0
    finally:
        os._exit(status)


def _collect(pipe: int, deadline: float, most_bytes: int) -> tuple[bytes, str | None]:
    """What comes through the pipe up to its end, and the limit that was met: "wall" or "output"."""
    kept = bytearray()
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([pipe], [], [], remaining)[0]:
            return bytes(kept), "wall"
        piece = os.read(pipe, 1 << 16)
        if not piece:
            return bytes(kept), None
        kept += piece
        if len(kept) > most_bytes:
            return bytes(kept), "output"


def frame(head: dict[str, Any], *blobs: bytes) -> bytes:
    """A message."""
    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    return struct.pack(">I", len(text)) + text + b"".join(blobs)


def _split(data: bytes) -> tuple[dict[str, Any], list[bytes]] | None:
    """The parts of a whole message; None when it is not whole."""
    if len(data) < 4 or len(data) < 4 + (length := struct.unpack(">I", data[:4])[0]):
        return None
    head = json.loads(data[4 : 4 + length])
    at, blobs = 4 + length, []
    for size in head["blobs"]:
        blobs.append(data[at : at + size])
        at += size
    return (head, blobs) if at == len(data) else None


def _read(pipe: int, n_bytes: int) -> bytes | None:
    """Exactly so many bytes; None at the end."""
    kept = b""
    while len(kept) < n_bytes:
        piece = os.read(pipe, n_bytes - len(kept))
        if not piece:
            return None
        kept += piece
    return kept


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


def main(arguments: list[str]) -> int:
    """Serves, or tells what there is."""
    config = json.loads(arguments[-1])
    library, greeting = greet(config)
    if arguments[0] == "--probe":
        print(json.dumps(greeting))
        return 0
    # The library must not be able to write into the answers.
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if library is not None:
        os.chdir("/")
        confine(config["include_dirs"])
    _write(answers, frame(greeting))
    if library is None:
        return 1
    serve(library, 0, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
