"""Machine code as instructions by an nvdisasm that is kept warm, which takes a tenth of the time of a start."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from evo_l2.targets.cpu.native import compile_cached
from evo_l2.targets.cuda.cubin import read_code
from evo_l2.targets.cuda.sass import Instruction, Sass, parse_binary
from evo_l2.targets.cuda.toolkit import Toolkit

__all__ = ["Disassembler"]

_ANSWER_S = 90.0
"""A fork ends itself after 60 s."""


@dataclass(frozen=True, slots=True)
class _Server:
    """One start of nvdisasm, for one architecture."""

    process: subprocess.Popen[bytes]
    pipe: socket.socket

    def ask(self, code: bytes) -> str | None:
        """The listing of machine code; None where nvdisasm fails on it.

        Raises:
            OSError: The process has ended, or does not answer.
        """
        self.pipe.sendall(struct.pack("<I", len(code)) + code)
        status, length = struct.unpack("<II", self._receive(8))
        text = self._receive(length)
        return text.decode("utf-8", "replace") if status == 0 else None

    def _receive(self, n_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < n_bytes:
            piece = self.pipe.recv(n_bytes - len(data))
            if not piece:
                raise ConnectionError("the disassembler has ended")
            data += piece
        return bytes(data)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


class Disassembler:
    """Reads cubins by one warm nvdisasm an architecture; see `warm.c`. May be used by several threads at once.

    A process is trusted once it has said of one piece of code what a start of nvdisasm of its own says. Where there is none,
    or where it ends, `read` says nothing, and its caller has `read_sass`; nor does it of the first cubin of an architecture,
    since a single one is not worth a start.

    Args:
        toolkit: Has nvdisasm.
        compiler: Of C, for `warm.c`.
        cache_dir: Where that is kept once it is compiled.
    """

    def __init__(self, toolkit: Toolkit, compiler: Path, cache_dir: Path) -> None:
        self._toolkit, self._compiler, self._cache_dir = toolkit, compiler, cache_dir
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
        text = resources.files("evo_l2.targets.cuda").joinpath("warm.c").read_text(encoding="utf-8")
        flags = ("-O2", "-std=gnu11", "-shared", "-fPIC")
        library = compile_cached(self._compiler, self._cache_dir, "warm", {"warm.c": text}, flags, ("-ldl",))
        with tempfile.TemporaryDirectory(prefix="evo-l2-") as folder:
            file = Path(folder) / "code"
            file.write_bytes(code)
            command = [str(self._toolkit.tool("nvdisasm")), "--binary", arch.replace("sm_", "SM"), str(file)]
            nothing = subprocess.DEVNULL
            here, there = socket.socketpair()
            try:
                fresh = subprocess.run(command, stdin=nothing, capture_output=True, timeout=_ANSWER_S, check=True).stdout
                process = subprocess.Popen(
                    command, stdin=there.fileno(), stdout=nothing, stderr=nothing, start_new_session=True,
                    env={**os.environ, "LD_PRELOAD": str(library.resolve()), "WARM_FILE": str(file)},
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError):
                here.close()
                return None
            finally:
                there.close()
            here.settimeout(_ANSWER_S)
            server = _Server(process, here)
            with contextlib.suppress(OSError):
                if server.ask(code) == fresh.decode("utf-8", "replace"):
                    return server
            server.end()
            return None
