"""A kernel is one source file whose first comment block declares its launch; its digest is its name."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evo_l2 import launch as grammar
from evo_l2.errors import KernelError
from evo_l2.launch import Launch, Tunable

__all__ = ["LONGEST_SOURCE_BYTES", "SUFFIXES", "Kernel"]

LONGEST_SOURCE_BYTES = 256 * 1024
"""A longer source is refused before anything reads it."""
SUFFIXES = {"cpu": ".c", "cuda": ".cu"}
"""How the file of a kernel is named, by target."""


@dataclass(frozen=True)
class Kernel:
    """Source text for one target. Two kernels are the same when their digests are equal.

    What follows from the source is worked out once: a search asks an elite's digest and tunables thousands of times.
    """

    source: str
    target: str
    """`cpu` (C) or `cuda` (CUDA C++)."""

    @classmethod
    def from_file(cls, path: Path, target: str) -> Kernel:
        """A kernel from a file; no more of it is read than a kernel may have.

        Raises:
            KernelError: See `from_bytes`.
            OSError: It cannot be read.
        """
        with path.open("rb") as file:
            return cls.from_bytes(file.read(LONGEST_SOURCE_BYTES + 1), target)

    @classmethod
    def from_bytes(cls, data: bytes, target: str) -> Kernel:
        """A kernel from the bytes of a file.

        Raises:
            KernelError: The file is too long, is not UTF-8, begins with a byte order mark, or holds NUL bytes.
        """
        if len(data) > LONGEST_SOURCE_BYTES:
            limit = f"at most {LONGEST_SOURCE_BYTES} bytes"
            raise KernelError("the file is too long for a kernel", expected=limit, found="more")
        try:
            source = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise KernelError("the file is no kernel", expected="UTF-8 text", found=f"byte {error.start} is not") from error
        if source.startswith("\ufeff"):
            found = "one at the start"
            raise KernelError("the file is no kernel", expected="text without a byte order mark", found=found)
        if "\0" in source:
            raise KernelError("the file is no kernel", expected="text", found="a NUL byte")
        return cls(source.replace("\r\n", "\n"), target)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over target and source, as 64 hexadecimal digits."""
        return hashlib.sha256(f"{self.target}\0{self.source}".encode("utf-8", "surrogatepass")).hexdigest()

    @functools.cached_property
    def launch(self) -> Launch:
        """The parsed launch.

        Raises:
            KernelError: See `evo_l2.launch.parse_launch`.
        """
        return grammar.parse_launch(self.source)

    @functools.cached_property
    def constants(self) -> Mapping[str, int]:
        """The file's integer constants by name."""
        return grammar.constants(self.source)

    @functools.cached_property
    def tunables(self) -> tuple[Tunable, ...]:
        """The declared tunables, in order.

        Raises:
            KernelError: See `evo_l2.launch.tunables`.
        """
        return grammar.tunables(self.source)

    def with_tunables(self, values: Mapping[str, int]) -> Kernel:
        """The same kernel with tunables set to other values of their domains.

        Raises:
            KernelError: A name is unknown or a value is out of its domain.
        """
        return Kernel(grammar.substitute(self.source, self.tunables, values), self.target)
