"""What `evo-l2 presets` and `evo-l2 archive export` print, and the kernels that `evo-l2 bench` takes from an archive."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.address import Address
from archive.export import export
from archive.mining import top
from archive.read_only import open_to_read
from evo_l2.kernel import Kernel
from experiments.config import RunConfig
from experiments.documents import keys, preset_names, preset_text
from experiments.summary_page import counted, indented

__all__ = ["best_kernels", "export_kernels", "print_keys", "print_presets"]


def best_kernels(db: Address, count: int) -> list[Kernel]:
    """The best elites of the last run, whether they hold a cell or not.

    Raises:
        StorageError: The database cannot be read, or has no run.
    """
    with open_to_read(db) as store:
        return [elite.kernel for elite in top(store, None, count=count)]


def export_kernels(db: Address, folder: Path, run_name: str | None, count: int | None, *, as_json: bool) -> None:
    """Writes the elites, or the best kernels, as files, with `kernels.jsonl` beside them.

    Raises:
        StorageError: The database cannot be read, or the folder is not empty or cannot be written.
    """
    with open_to_read(db) as store:
        done = export(store, folder, run_name, count=count)
    if as_json:
        print(json.dumps({"folder": str(done.directory), "kernels": done.n_kernels, "table": str(done.table)}, indent=2))
    else:
        print(f"{counted(done.n_kernels, 'kernel')} in {done.directory}, listed in {done.table.name}")
        print("files: RANK-CELL-DIGEST, the cell as one index for each measure")


def print_presets(name: str | None, *, as_json: bool) -> None:
    """Every preset with what it is for, or the text of one.

    Raises:
        ConfigurationError: There is no such preset.
    """
    if name is not None:
        text = preset_text(name, "evo-l2 presets")
        print(json.dumps({name: text}, indent=2) if as_json else text, end="\n" if as_json else "")
        return
    texts = {known: preset_text(known) for known in preset_names()}
    if as_json:
        print(json.dumps(texts, indent=2))
        return
    table = Table(box=None, show_header=False, padding=(0, 2))
    for known, text in texts.items():
        comment = [line.removeprefix("#").strip() for line in text.split("\n") if line.startswith("#")]
        table.add_row(known, " ".join(comment))
    Console(highlight=False).print(table, markup=False)


def print_keys(*, as_json: bool) -> None:
    """Every key of a configuration, with its default and meaning."""
    known = list(keys(RunConfig))
    if as_json:
        print(
            json.dumps(
                [{"key": key.path, "default": key.default, "what": key.what, "values": list(key.values)} for key in known],
                indent=2,
            )
        )
        return
    console = Console(highlight=False)
    for key in known:
        default = f"  (default {json.dumps(key.default)})" if key.default is not None else ""
        console.print(Text.assemble((key.path, "bold"), default), soft_wrap=True)
        console.print(Text(indented(key.what, console.width, 4)), soft_wrap=True)
        if key.values:
            console.print(Text(indented(f"one of: {', '.join(key.values)}", console.width, 4)), soft_wrap=True)
