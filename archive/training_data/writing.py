"""Rows into files: JSONL always, Parquet where pyarrow is installed; all of them or none."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archive.training_data.columns import Column, arrow_schema, fitted
from evo_l2.errors import StorageError

__all__ = ["filling", "has_parquet", "write_split"]

_LAST = "README.md"
"""Without it the folder is no data set."""


def has_parquet() -> bool:
    """Whether pyarrow is installed; it is not imported to find out."""
    return importlib.util.find_spec("pyarrow") is not None


@contextlib.contextmanager
def filling(directory: Path) -> Iterator[Path]:
    """A folder to write into, whose files come to the one that is wanted when all went well.

    Raises:
        StorageError: The folder is not empty, or cannot be written.
    """
    expected, hint = "a folder that may be written", f"df -h {directory.parent}, or --to another folder"
    partial: Path | None = None
    try:
        existed = directory.exists()
        if existed and any(directory.iterdir()):
            found = "name a new folder"
            raise StorageError(f"{directory} is not empty", expected="an empty folder", found="files", hint=found)
        directory.parent.mkdir(parents=True, exist_ok=True)
        # A folder that is there may be a mount point or somebody's working directory, so it is filled and not replaced.
        place = directory if existed else directory.parent
        partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=place))
        partial.chmod(0o755)
        yield partial
        if existed:
            for child in sorted(partial.iterdir(), key=lambda path: path.name == _LAST):
                os.replace(child, directory / child.name)
        else:
            os.replace(partial, directory)
            partial = None
    except OSError as error:
        raise StorageError(f"{directory} cannot be filled", expected=expected, found=str(error), hint=hint) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def write_split(
    folder: Path, split: str, rows: Sequence[Mapping[str, Any]], columns: tuple[Column, ...], *, parquet: bool
) -> list[dict[str, Any]]:
    """Writes one split; the rows as they stand in the files."""
    kind = {column.name: column.kind for column in columns}
    clean = [fitted(row, kind) for row in rows]
    (folder / "jsonl").mkdir(exist_ok=True)
    with (folder / "jsonl" / f"{split}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in clean)
    if parquet:
        import pyarrow as pa
        import pyarrow.parquet as pq

        (folder / "data").mkdir(exist_ok=True)
        table = pa.Table.from_pylist(clean, schema=arrow_schema(columns))
        # Text repeats from row to row; small groups let readers take a part.
        pq.write_table(table, folder / "data" / f"{split}.parquet", compression="zstd", row_group_size=1000)
    return clean
