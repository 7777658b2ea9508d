"""Archives opened to be read and no more: on a read-only disk, in a folder of someone else, or beside a run that goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from archive.address import parse_address
from archive.database import HEAD, Database, translated
from archive.store import Store
from evo_l2.errors import StorageError

__all__ = ["open_to_read"]

_COMPANIONS = ("-wal", "-shm")
_TRIES = 5


class _Reader(Store):
    """A store that may lie on a copy of its own, gone when it is closed."""

    def __init__(
        self, database: Database, shown: Path, uri: str, folder: tempfile.TemporaryDirectory[str] | None = None
    ) -> None:
        super().__init__(database)
        self._shown = shown
        self._uri = uri
        self._folder = folder

    @property
    def file_uri(self) -> str:
        """See `Store.file_uri`; that of the copy where there is one."""
        return self._uri

    @property
    def path(self) -> Path:
        """The file that was asked for."""
        return self._shown

    @property
    def place(self) -> str:
        """The file that was asked for."""
        return str(self._shown)

    def close(self) -> None:
        """Closes the file; may be called twice."""
        super().close()
        if self._folder is not None:
            self._folder.cleanup()


def open_to_read(url_or_path: str | os.PathLike[str]) -> Store:
    """Opens an archive for reading commands, whether or not it may be written; nothing of it is ever changed by them.

    One that may be written, or is on a server, is opened as ever, and upgraded when it is of an older revision. One that
    may not is read as it lies; where SQLite cannot (its log has to be taken in first, or its revision is an older one) a
    copy in the folder for temporary files is read instead. Adding to such a store raises `StorageError`.

    Raises:
        ConfigurationError: The URL names neither an SQLite file nor a PostgreSQL database.
        StorageError: The file or server is missing, is no archive, is of a newer revision, or cannot be read or copied.
    """
    path = parse_address(url_or_path)
    if not isinstance(path, Path) or not path.is_file() or _may_be_written(path):
        return Store.open(url_or_path, create=False)
    _check_readable(path)
    log = path.with_name(path.name + "-wal")
    with contextlib.suppress(StorageError):
        return _open_as_it_lies(path, "mode=ro")
    if not log.exists() or not log.stat().st_size:
        # Without a log nobody is writing, so the file can be read as one that does not change.
        with contextlib.suppress(StorageError):
            return _open_as_it_lies(path, "mode=ro&immutable=1")
    return _open_copy(path)


def _may_be_written(path: Path) -> bool:
    parts = (path, path.parent, *(path.with_name(path.name + ending) for ending in _COMPANIONS))
    if not all(os.access(part, os.W_OK, effective_ids=True) for part in parts if part.exists()):
        return False
    # A disk that is mounted read-only refuses root too, whom permissions do not.
    return not os.statvfs(path.parent).f_flag & os.ST_RDONLY


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise StorageError(f"{path} cannot be read", expected="a file that may be read", found=str(error)) from error
    if start and start != b"SQLite format 3\0":
        raise StorageError(f"{path} is no archive", expected="an SQLite file", found="something else")


def _open_as_it_lies(path: Path, how: str) -> Store:
    """Without changing anything beside it.

    Raises:
        StorageError: It is not of the newest revision, or cannot be read so.
    """
    uri = f"file:{quote(str(path.absolute()))}?{how}"
    engine = sa.create_engine(
        f"sqlite:///{uri}&uri=true",
        poolclass=sa.pool.StaticPool,
        connect_args={"check_same_thread": False, "cached_statements": 256},
    )
    database = None
    try:
        database = Database(path, engine)
        found = database.read("SELECT version_num FROM alembic_version")
        if [tuple(row) for row in found] != [(HEAD,)]:
            raise StorageError(f"{path} is of another revision", expected=HEAD, found=str(found))
    except BaseException as error:
        if database is not None:
            database.close()
        engine.dispose()
        if isinstance(error, sa.exc.DBAPIError):
            raise translated(error, path) from error
        raise
    return _Reader(database, path, uri)


def _open_copy(path: Path) -> Store:
    folder = None
    try:
        folder = tempfile.TemporaryDirectory(prefix="evo-l2-")
        copy = Path(folder.name) / path.name
        _copy_still(path, copy)
        store = Store.open(copy, create=False)
    except OSError as error:
        if folder is not None:
            folder.cleanup()
        hint = "export TMPDIR=/a/folder/with/room"
        raise StorageError(
            f"{path} cannot be copied to be read", expected="room for it", found=str(error), hint=hint
        ) from error
    except BaseException:
        if folder is not None:
            folder.cleanup()
        raise
    return _Reader(store._database, path, store.file_uri, folder)


def _copy_still(path: Path, copy: Path) -> None:
    """File and log as they were at one moment.

    Raises:
        OSError: They cannot be copied, or never stood still.
    """
    parts = [(path.with_name(path.name + ending), copy.with_name(copy.name + ending)) for ending in ("", "-wal")]
    for _ in range(_TRIES):
        before = [_state(part) for part, _ in parts]
        for part, target in parts:
            target.unlink(missing_ok=True)
            if part.exists():
                shutil.copyfile(part, target)
        if [_state(part) for part, _ in parts] == before:
            return
    raise OSError(f"it changed {_TRIES} times while it was copied")


def _state(path: Path) -> tuple[int, int] | None:
    if not path.exists():
        return None
    found = path.stat()
    return found.st_size, found.st_mtime_ns
