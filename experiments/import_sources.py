"""What can be brought into an archive: a folder of kernels, an export of our own, a table of PyTorch extensions."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evo_l2.errors import ConfigurationError, KernelError
from evo_l2.kernel import LONGEST_SOURCE_BYTES, SUFFIXES, Kernel
from experiments.sakana import take_over

__all__ = ["Item", "Source", "read_source"]

_LONGEST_FIELD = 64 * 2**20
_NUMBERS = (
    "CUDA_Runtime", "PyTorch_Native_Runtime", "PyTorch_Compile_Runtime", "CUDA_Speedup_Native", "CUDA_Speedup_Compile",
    "Max_Diff", "Level_ID", "Task_ID",
)  # fmt: skip
_WORDS = ("Op_Name", "Kernel_Name", "Correct", "Error")
_EXPECTED = "a folder of kernels, an export of ours (folder or kernels.jsonl), or a table (.csv, .jsonl, .parquet)"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was found."""

    where: str
    """File or line, for people."""
    kernel: Kernel | None
    fault: str | None = None
    """Malformed, and why: it cannot be filed at all."""
    refusal: str | None = None
    """It is filed as rejected, for this reason."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What was said of it elsewhere; nothing here counts as measured."""


@dataclass(frozen=True, slots=True)
class Source:
    """All that was found, in order."""

    kind: str
    """`folder`, `export` or `table`."""
    items: tuple[Item, ...]
    licence: str
    """SPDX identifier, as far as the source tells."""

    @property
    def digest(self) -> str:
        """Over everything that will be filed, in order: a source that changed is another one."""
        names = [f"{item.kernel.digest}{item.refusal or ''}" for item in self.items if item.kernel is not None]
        return hashlib.sha256("\n".join(names).encode("utf-8", "surrogatepass")).hexdigest()


def read_source(path: Path, target: str) -> Source:
    """Reads a source; what is malformed in it is an item with a fault.

    Raises:
        ConfigurationError: It is none of those that can be read, or has nothing in it.
    """
    if not path.exists():
        raise ConfigurationError(f"{path} cannot be imported", expected=_EXPECTED, found="nothing there")
    table = path / "kernels.jsonl" if path.is_dir() else path
    try:
        if path.is_dir() and not table.exists():
            source = Source("folder", tuple(_folder(path, target)), "unknown")
        else:
            source = _table(table, target)
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigurationError(f"{path} cannot be imported", expected="files that may be read", found=found) from error
    if not source.items:
        found = f"no {SUFFIXES[target]} file" if source.kind == "folder" else "no row"
        raise ConfigurationError(f"{path} cannot be imported", expected=_EXPECTED, found=found)
    return source


def _kernel(data: bytes, target: str, where: str, provenance: Mapping[str, Any]) -> Item:
    try:
        return Item(where, Kernel.from_bytes(data, target), provenance=provenance)
    except KernelError as error:
        return Item(where, None, fault=str(error), provenance=provenance)


def _folder(folder: Path, target: str) -> Iterator[Item]:
    """Every kernel file, below too, in order of name; those of the other target are named."""
    for path in sorted(folder.rglob("*")):
        where = str(path.relative_to(folder))
        if path.suffix not in SUFFIXES.values() or not path.is_file():
            continue
        if path.suffix != SUFFIXES[target]:
            yield Item(where, None, fault=f"a {path.suffix} file is no kernel for target {target}")
            continue
        try:
            with path.open("rb") as file:
                data = file.read(LONGEST_SOURCE_BYTES + 1)
        except OSError as error:
            yield Item(where, None, fault=f"it cannot be read: {error.strerror or error}")
            continue
        yield _kernel(data, target, where, {"file": where})


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(path: Path, target: str) -> Source:
    readers: Mapping[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
        ".csv": _csv_rows,
        ".jsonl": _jsonl_rows,
        ".parquet": _parquet_rows,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigurationError(
            f"{path} cannot be imported", expected=_EXPECTED, found=f"a {path.suffix or 'nameless'} file"
        )
    items: list[Item] = []
    kinds: set[str] = set()
    for where, row in reader(path):
        if isinstance(row, str):
            items.append(Item(where, None, fault=row))
        elif "CUDA_Code" in row:
            kinds.add("table")
            items.append(_extension(row, where, target))
        elif "file" in row and "digest" in row:
            kinds.add("export")
            items.append(_exported(path.parent, row, where, target))
        else:
            found = ", ".join(str(name) for name in list(row)[:4]) or "none"
            items.append(Item(where, None, fault=f"expected the columns CUDA_Code, or file and digest; found {found}"))
    kind = "table" if "table" in kinds else "export"
    return Source(kind, tuple(items), "CC-BY-4.0" if kind == "table" else "unknown")


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"line {number}", f"it is no JSON: {error}"
                continue
            yield f"line {number}", row if isinstance(row, dict) else f"expected an object, found {type(row).__name__}"


def _csv_rows(path: Path) -> Iterator[tuple[str, Any]]:
    former = csv.field_size_limit(_LONGEST_FIELD)
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.DictReader(file, restkey="", strict=False)
            while True:
                begin = reader.line_num + 1
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield f"line {begin}", f"it is no CSV: {error}"
                    continue
                begin = begin if begin > 1 else 2
                if "" in row or None in row.values():
                    n_found = len([value for value in row.values() if value is not None])
                    yield f"line {begin}", f"expected {len(reader.fieldnames or ())} fields, found {n_found}"
                else:
                    yield f"line {begin}", row
    finally:
        csv.field_size_limit(former)


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    if importlib.util.find_spec("pyarrow") is None:
        hint = "pip install 'evo-l2[tables]', or save the table as .jsonl"
        raise ConfigurationError(f"{path} cannot be read", expected="pyarrow", found="none", hint=hint)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        wanted = [name for name in file.schema_arrow.names if name in ("CUDA_Code", "file", "digest", *_NUMBERS, *_WORDS)]
        number = 0
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except pa.ArrowException as error:
        raise ConfigurationError(f"{path} cannot be read", expected="a Parquet file", found=str(error)) from error


def _exported(folder: Path, row: Mapping[str, Any], where: str, target: str) -> Item:
    """A kernel of our own export: its file, checked against its digest; numbers are those of another machine."""
    kept = {
        name: row.get(name) for name in ("digest", "identity", "run", "speedup", "speedup_low", "speedup_high", "n_blocks")
    }
    environment = row.get("environment")
    lineage = row.get("lineage")
    kept["environment"] = environment.get("key") if isinstance(environment, dict) else None
    kept["parents"] = (
        lineage[0].get("parents") if isinstance(lineage, list) and lineage and isinstance(lineage[0], dict) else []
    )
    name = row["file"]
    if not isinstance(name, str) or not name or Path(name).name != name:
        return Item(where, None, fault=f"expected the name of a file in the folder, found {name!r}")
    if row.get("target") not in (None, target):
        return Item(where, None, fault=f"{name} is a kernel for target {row.get('target')}, not {target}")
    try:
        with (folder / name).open("rb") as file:
            data = file.read(LONGEST_SOURCE_BYTES + 1)
    except OSError as error:
        return Item(where, None, fault=f"{name} cannot be read: {error.strerror or error}")
    item = _kernel(data, target, f"{where}, {name}", kept)
    if item.kernel is not None and item.kernel.digest != row["digest"]:
        return Item(where, None, fault=f"{name} is not the kernel that its row names: it was changed, or cut off")
    return item


def _extension(row: Mapping[str, Any], where: str, target: str) -> Item:
    """A row of the table: its device code where it fits, else the whole extension, to be filed as rejected."""
    code = row["CUDA_Code"]
    kept: dict[str, Any] = {name: _number(row.get(name)) for name in _NUMBERS}
    kept |= {name: str(row[name])[:400] if row.get(name) is not None else None for name in _WORDS}
    if not isinstance(code, str) or not code.strip():
        return Item(where, None, fault="CUDA_Code is empty", provenance=kept)
    data = code.encode("utf-8", "surrogatepass")
    item = _kernel(data, target, where, kept)
    if item.kernel is None:
        return item
    if target != "cuda":
        return Item(where, item.kernel, refusal=f"it is CUDA, and the target is {target}", provenance=kept)
    taken = take_over(code)
    if taken.source is None:
        return Item(where, item.kernel, refusal=taken.reason, provenance=kept)
    return _kernel(taken.source.encode("utf-8", "surrogatepass"), target, where, kept)


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
