"""From an archive to a file with the page."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from archive.read_only import open_to_read
from evo_l2 import __version__
from evo_l2.errors import ConfigurationError, StorageError
from experiments.printable import printable
from experiments.report_page.page import MARK, page
from experiments.report_page.reading import read_run, read_runs
from experiments.summary_page import counted

__all__ = ["Written", "print_written", "write_report"]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written."""

    path: Path
    run: str
    n_bytes: int
    n_candidates: int
    n_kernels: int
    """With their sources."""
    n_runs: int
    """In the archive."""


def write_report(db: str | os.PathLike[str], output: Path, run_name: str | None = None) -> Written:
    """Writes the page about a run, all of it or nothing.

    Args:
        db: The archive.
        output: The file; one that is there already has to be a page of ours.
        run_name: The run; None for the one that was started last.

    Raises:
        ConfigurationError: plotly is not installed, or the file is something else.
        StorageError: The archive cannot be read or has no such run, or the file cannot be written.
    """
    _check(output)
    library = _plotly()
    made = f"Made on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by evo-l2 {__version__}"
    with open_to_read(db) as store:
        try:
            facts = read_run(store, run_name)
            n_runs = len(store.runs())
            rows = read_runs(store) if n_runs > 1 else ()
            text = page(facts, rows, n_runs, library, made).encode("utf-8", "backslashreplace")
        except (ConfigurationError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, zlib.error) as error:
            what, found = "the archive holds rows that cannot be read", f"{type(error).__name__}: {error}"
            raise StorageError(what, expected="rows of its tables", found=found, hint="evo-l2 archive fsck DB") from error
    _write(output, text)
    return Written(output, facts.info.name, len(text), len(facts.rows), len(facts.kernels), n_runs)


def print_written(done: Written, *, as_json: bool) -> None:
    """Says on stdout what was written."""
    if as_json:
        print(json.dumps({**asdict(done), "path": str(done.path)}, indent=2))
        return
    runs = f" of {done.n_runs} runs" if done.n_runs > 1 else ""
    print(
        printable(
            f"{done.path}: run {done.run}{runs}, {counted(done.n_candidates, 'candidate')},"
            f" {counted(done.n_kernels, 'kernel')} with sources, {done.n_bytes / 1e6:.1f} MB"
        )
    )


def _plotly() -> str:
    """The text of plotly's library, its line ends as a browser reads them, since its hash is in the page's policy."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        hint = "pip install 'evo-l2[report]'"
        raise ConfigurationError("no report is made", expected="the package plotly", found="none", hint=hint) from error
    library = str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in library.lower():
        hint = "pip install --upgrade plotly"
        raise ConfigurationError(
            "no report is made", expected="a plotly.js that can stand in a page", found="one that ends its script", hint=hint
        )
    return library


def _check(output: Path) -> None:
    """Nothing is written over but an earlier page."""
    hint = "-o with another name"
    if output.is_dir():
        raise ConfigurationError(f"{output} is not written", expected="the name of a file", found="a folder", hint=hint)
    if not output.parent.is_dir():
        expected = f"a folder {output.parent}"
        raise ConfigurationError(
            f"{output} is not written", expected=expected, found="none", hint=f"mkdir -p {output.parent}"
        )
    if not output.exists():
        return
    if output.is_file():
        with output.open("rb") as file:
            start = file.read(200)
        if MARK.encode() in start or not start:
            return
    expected = "no such file, or an earlier report"
    raise ConfigurationError(f"{output} is not written over", expected=expected, found="something else", hint=hint)


def _write(output: Path, text: bytes) -> None:
    """In one step, so that a reader sees the old page or the new."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, output)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        expected, hint = "a folder that may be written", f"df -h {output.parent}, or -o in another folder"
        raise StorageError(f"{output} is not written", expected=expected, found=str(error), hint=hint) from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
