"""A folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from evo_l2.errors import ConfigurationError, StorageError

__all__ = ["check_free", "filled_folder"]


def check_free(folder: Path) -> None:
    """Nothing, where a folder of that name can be made.

    Raises:
        ConfigurationError: It is there and not empty, or is no folder.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigurationError(f"{folder} cannot be made", expected="a new folder", found="something else of that name")
    if folder.is_dir() and any(folder.iterdir()):
        hint = "-o with a new folder"
        raise ConfigurationError(f"{folder} is not empty", expected="an empty folder", found="files", hint=hint)
    if folder.is_dir() and folder.samefile("."):
        # It would be replaced, and whoever stands in it would stand in no folder.
        raise ConfigurationError(f"{folder} cannot be made", expected="a new folder", found="the one that you are in")


@contextlib.contextmanager
def filled_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the one that is asked for, which takes its name when the body ends; gone if that fails.

    Raises:
        ConfigurationError: There is something of that name.
        StorageError: It cannot be written.
    """
    check_free(folder)
    parent = folder.resolve().parent
    new = [path for path in (parent, *parent.parents) if not path.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.resolve().name}-", dir=parent))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        work.chmod(0o755)
        with _interruptible():
            yield work
        check_free(folder)
        os.replace(work, folder.resolve())
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for path in new:
            # Those above the folder, where it did not come to be.
            with contextlib.suppress(OSError):
                path.rmdir()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """What asks the process to end raises `KeyboardInterrupt`, as Ctrl-C does, so that things are put in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _unwritable(folder: Path, error: OSError) -> StorageError:
    hint = f"df -h {folder.resolve().parent}, or -o with another folder"
    found = error.strerror or str(error)
    return StorageError(f"{folder} cannot be filled", expected="a folder that may be written", found=found, hint=hint)
