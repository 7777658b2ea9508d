"""The command `library build`: from an archive to a folder that was checked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from archive.address import Address
from archive.read_only import open_to_read
from evo_l2.evaluation import Environment
from experiments.benching import parse_shapes
from experiments.library.checking import Checked, require_pytest, run_tests
from experiments.library.folder import check_free, filled_folder
from experiments.library.rows import Row
from experiments.library.winners import Wanted, Winner, choose_environment, find_winners
from experiments.parts import cache_dir
from experiments.printable import printable
from experiments.summary_page import counted

__all__ = ["build_library"]


def build_library(
    db: Address,
    folder: Path,
    env: str | None,
    shapes: Sequence[str],
    layout: str | None,
    *,
    with_slower: bool,
    as_json: bool,
) -> None:
    """Builds a library of an archive's best kernels, runs its tests, and prints what it holds.

    The folder appears when everything passed; whatever ends it before leaves nothing behind.

    Raises:
        EvoL2Error: The archive, the environment, a kernel, a compiler or the disk is at fault.
    """
    check_free(folder)
    require_pytest()
    wanted = Wanted((layout,) if layout is not None else ("nn", "nt"), parse_shapes(shapes), with_slower)
    with open_to_read(db) as store:
        environment = choose_environment(store, env)
        winners = find_winners(store, environment, wanted)
    with filled_folder(folder) as work:
        rows, checked = _fill(work, environment, winners)
    missing = _missing(wanted, winners)
    if as_json:
        print(json.dumps(_facts(folder, environment, rows, checked, missing), indent=2))
    else:
        _print(folder, environment, rows, checked, missing)


def _fill(work: Path, environment: Environment, winners: Sequence[Winner]) -> tuple[tuple[Row, ...], Checked]:
    if environment.target == "cuda":
        from experiments.library.cuda_package import build_cubins, write_cuda

        cubins, compiler, include_dirs = build_cubins(winners, environment, cache_dir() / "cuda")
        rows = write_cuda(work, environment, winners, cubins, compiler, include_dirs)
    else:
        from experiments.library.cpu_package import build_kernels, write_cpu

        rows = write_cpu(work, environment, winners, build_kernels(winners, cache_dir() / "cpu"))
    return rows, run_tests(work)


def _missing(wanted: Wanted, winners: Sequence[Winner]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Layouts and shapes that were asked for and have no winner."""
    won = {(winner.layout, winner.sizes) for winner in winners}
    return tuple((layout, sizes) for layout in wanted.layouts for sizes in wanted.shapes if (layout, sizes) not in won)


def _facts(
    folder: Path,
    environment: Environment,
    rows: Sequence[Row],
    checked: Checked,
    missing: Sequence[tuple[str, tuple[int, ...]]],
) -> dict[str, object]:
    return {
        "folder": str(folder),
        "target": environment.target,
        "environment": environment.key,
        "products": [row.facts for row in rows],
        "left_to_the_vendor": [{"layout": layout, "sizes": list(sizes)} for layout, sizes in missing],
        "tests_passed": checked.n_passed,
        "tests_skipped": checked.n_skipped,
    }


def _print(
    folder: Path,
    environment: Environment,
    rows: Sequence[Row],
    checked: Checked,
    missing: Sequence[tuple[str, tuple[int, ...]]],
) -> None:
    name = environment.identity.get("card") or environment.identity.get("processor") or environment.target
    click.echo(printable(f"{folder}: {counted(len(rows), 'product')} for {name} ({environment.key})"))
    for row in rows:
        low, high = row.winner.estimate.interval
        mark = "" if row.is_as_measured else "  (not the machine code that was measured)"
        speedup = f"{row.winner.estimate.speedup:.3f}x ({low:.3f} to {high:.3f})"
        click.echo(f"  {row.winner.layout} {row.winner.sums} {_shape(row.winner.sizes)}: {row.kernel.name}, {speedup}{mark}")
    other = "cuBLAS" if environment.target == "cuda" else "numpy"
    for layout, sizes in missing:
        click.echo(f"  {layout} {_shape(sizes)}: no winner, left to {other}")
    skipped = f", {checked.n_skipped} skipped (they need a card, cupy or torch)" if checked.n_skipped else ""
    click.echo(f"its tests: {checked.n_passed} passed{skipped}; next: pip install {_for_pip(folder)}")


def _shape(sizes: Sequence[int]) -> str:
    """`256 x 256 x 256`, with the batch where there is one."""
    return " x ".join(map(str, sizes[:3])) + (f", batch {sizes[3]}" if sizes[3] > 1 else "")


def _for_pip(folder: Path) -> str:
    """As pip takes a folder: a bare name is that of a package in a registry."""
    return shlex.quote(str(folder) if folder.is_absolute() else f"./{folder}")
