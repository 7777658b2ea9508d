"""What compilers and earlier builds leave behind: ordinary files of a bounded size, and words for what is none.

A link may lead anywhere, to /dev/zero or to a file of the user's, and a pipe never ends: neither is opened, read or written
through. What cannot be a product is the fault of the tool that left it, not of the kernel and not of the folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from evo_l2.errors import ToolchainError

__all__ = ["MOST_PRODUCT_BYTES", "is_product", "read_product"]

MOST_PRODUCT_BYTES = 64 << 20
"""Of any file that a compiler may write."""
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


def is_product(path: Path, maker: str, hint: str) -> bool:
    """Whether a tool that has ended left a file; False when there is nothing.

    Args:
        path: Where its product should be.
        maker: Name and version of the tool.
        hint: What to do about a tool that leaves something else.

    Raises:
        ToolchainError: What stands there is no ordinary file.
    """
    found = _kind(path)
    if found in (None, ""):
        return found == ""
    expected = f"{maker} to leave {path.name} as an ordinary file"
    raise ToolchainError("the compiler does not work", expected=expected, found=found, hint=hint)


def read_product(path: Path, most_bytes: int = MOST_PRODUCT_BYTES) -> bytes:
    """The content of an ordinary file, which no link leads to.

    Raises:
        OSError: It is something else, has more bytes, or cannot be read.
    """
    # Without O_NONBLOCK a pipe would not even open until somebody writes into it.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no ordinary file")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(f"{path} has more than {most_bytes} bytes")
    return data


def _kind(path: Path) -> str | None:
    """What stands there, in words: empty for an ordinary file, None for nothing."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    return "" if stat.S_ISREG(mode) else next((words for test, words in _KINDS if test(mode)), "something else")
