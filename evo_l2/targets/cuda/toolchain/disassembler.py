"""Machine code as instructions by an nvdisasm that is kept warm, which takes a tenth of the time of a start."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from evo_l2.errors import ToolchainError
from evo_l2.targets.cpu.native import compile_cached
from evo_l2.targets.cuda.reading.cubin import read_code
from evo_l2.targets.cuda.reading.sass import Instruction, Sass, parse_binary
from evo_l2.targets.cuda.tool_process import kill_group, tool_output
from evo_l2.targets.cuda.toolchain.toolkit import Toolkit

__all__ = ["Disassembler"]

_ANSWER_S = 90.0
"""A fork ends itself after 60 s."""
_MOST_BYTES_BESIDE = 1 << 16
_MOST_BYTES_PER_BYTE = 64
"""Of a listing, as in `warm.c`: 16 bytes of code are a line."""


@dataclass(frozen=True, slots=True)
class _Server:
    """One start of nvdisasm, for one architecture."""

    process: subprocess.Popen[bytes]
    pipe: socket.socket
    answer_s: float = _ANSWER_S

    def ask(self, code: bytes) -> str | None:
        """The listing of machine code; None where nvdisasm fails on it.

        Raises:
            OSError: The process has ended, does not answer in time, or has more to say than there can be.
        """
        deadline = time.monotonic() + self.answer_s
        self.pipe.settimeout(self.answer_s)
        self.pipe.sendall(struct.pack("<I", len(code)) + code)
        status, length = struct.unpack("<II", self._receive(8, deadline))
        if length > _most_bytes(code):
            raise OSError("the disassembler says too much")
        text = self._receive(length, deadline)
        return text.decode("utf-8", "replace") if status == 0 else None

    def _receive(self, n_bytes: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < n_bytes:
            self.pipe.settimeout(max(deadline - time.monotonic(), 1e-3))
            piece = self.pipe.recv(n_bytes - len(data))
            if not piece:
                raise ConnectionError("the disassembler has ended")
            data += piece
        return bytes(data)

    def end(self) -> None:
        self.pipe.close()
        kill_group(self.process)
        self.process.wait()


def _most_bytes(code: bytes) -> int:
    return _MOST_BYTES_BESIDE + _MOST_BYTES_PER_BYTE * len(code)


class Disassembler:
    """Reads cubins by one warm nvdisasm an architecture; see `warm.c`. May be used by several threads at once.

    A process is trusted once it has said of one piece of code what a start of nvdisasm of its own says. Where there is none,
    or where it ends, `read` says nothing, and its caller has `read_sass`; nor does it of the first cubin of an architecture,
    since a single one is not worth a start.

    Args:
        toolkit: Has nvdisasm.
        compiler: Of C, for `warm.c`.
        cache_dir: Where that is kept once it is compiled.
        answer_s: How long one answer may take; what takes longer is ended.
    """

    def __init__(self, toolkit: Toolkit, compiler: Path, cache_dir: Path, *, answer_s: float = _ANSWER_S) -> None:
        self._toolkit, self._compiler, self._cache_dir = toolkit, compiler, cache_dir
        self._answer_s = answer_s
        self._servers: dict[str, _Server | None] = {}
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def read(self, cubin: Path, arch: str) -> Sass | None:
        """The instructions of one cubin, without lines; None where only `read_sass` can tell.

        Raises:
            ToolchainError: The cubin cannot be read, or the C compiler fails.
            StorageError: The cache cannot be written.
        """
        if arch not in self._known:
            self._known.add(arch)
            return None
        functions: dict[str, tuple[Instruction, ...]] = {}
        owners: dict[str, str] = {}
        for code in read_code(cubin):
            text = self._listing(arch, code.data)
            found = parse_binary(text, code) if text is not None else None
            if found is None:
                return None
            functions |= found
            owners |= {name: code.name for _, name in code.functions if name in found}
        return Sass(functions, owners) if functions else None

    def close(self) -> None:
        """Ends the processes; may be called twice. Another reading starts new ones."""
        with self._lock:
            servers, self._servers = self._servers, {}
        if self._owner == os.getpid():
            for server in servers.values():
                if server is not None:
                    server.end()

    def _listing(self, arch: str, code: bytes) -> str | None:
        with self._lock:
            if self._owner != os.getpid():
                # After a fork, the processes are the parent's.
                self._servers, self._owner = {}, os.getpid()
            if arch not in self._servers:
                self._servers[arch] = self._start(arch, code)
            server = self._servers[arch]
            if server is None:
                return None
            try:
                return server.ask(code)
            except OSError:
                server.end()
                self._servers[arch] = None
                return None

    def _start(self, arch: str, code: bytes) -> _Server | None:
        """A process that says of the code what a fresh one says, or None."""
        text = resources.files("evo_l2.targets.cuda.toolchain").joinpath("warm.c").read_text(encoding="utf-8")
        flags = ("-O2", "-std=gnu11", "-shared", "-fPIC")
        library = compile_cached(self._compiler, self._cache_dir, "warm", {"warm.c": text}, flags, ("-ldl",))
        with tempfile.TemporaryDirectory(prefix="evo-l2-") as folder:
            file = Path(folder) / "code"
            file.write_bytes(code)
            command = [str(self._toolkit.tool("nvdisasm")), "--binary", arch.replace("sm_", "SM"), str(file)]
            nothing = subprocess.DEVNULL
            here, there = socket.socketpair()
            try:
                fresh = tool_output(command, with_errors=False, timeout_s=self._answer_s, most_bytes=_most_bytes(code))
                process = subprocess.Popen(
                    command, stdin=there.fileno(), stdout=nothing, stderr=nothing, start_new_session=True,
                    env={**os.environ, "LC_ALL": "C", "LD_PRELOAD": str(library.resolve()), "WARM_FILE": str(file)},
                )  # fmt: skip
            except (OSError, ToolchainError):
                here.close()
                return None
            finally:
                there.close()
            server = _Server(process, here, self._answer_s)
            with contextlib.suppress(OSError):
                if server.ask(code) == fresh:
                    return server
            server.end()
            return None
