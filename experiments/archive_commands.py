"""The commands `evo-l2 archive`. Bodies import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from experiments.command import db_argument, guarded, json_option
from experiments.mining_commands import MINING

if TYPE_CHECKING:
    from archive.address import Address

__all__ = ["archive"]


@click.group()
def archive() -> None:
    """Look into an archive."""


@archive.command()
@db_argument
@click.option("--run", "run_name", help="Only this run.")
@json_option
@guarded
def stats(db: Address, run_name: str | None, as_json: bool) -> None:
    """Runs, outcomes, operators, cells and cost."""
    from experiments.archive_pages.stats_page import print_stats

    print_stats(db, run_name, as_json=as_json)


@archive.command()
@db_argument
@click.option("-n", "--count", type=click.IntRange(1), default=10, show_default=True, help="How many.")
@click.option("--all", "all_kernels", is_flag=True, help="Also kernels that hold no cell.")
@click.option("--run", "run_name", help="The run; the last when left out.")
@click.option("--env", "environment", help="The last run of this environment; its key may be its first few digits.")
@click.option("--pareto", is_flag=True, help="The front over speed and resources instead.")
@click.option("--resource", "resources", multiple=True, help="What the front weighs, by the name that builds report it by.")
@json_option
@guarded
def top(
    db: Address,
    count: int,
    all_kernels: bool,
    run_name: str | None,
    environment: str | None,
    pareto: bool,
    resources: tuple[str, ...],
    as_json: bool,
) -> None:
    """The best kernels, one a cell, by the lower end of their speed-up's interval."""
    from experiments.archive_pages.top_page import print_front, print_top

    if run_name is not None and environment is not None:
        raise click.UsageError("--run and --env cannot be given together")
    if pareto or resources:
        print_front(db, run_name, environment=environment, resources=resources, as_json=as_json)
    else:
        print_top(db, count, run_name, environment=environment, all_kernels=all_kernels, as_json=as_json)


@archive.command()
@db_argument
@click.argument("digest")
@json_option
@guarded
def show(db: Address, digest: str, as_json: bool) -> None:
    """One kernel, right or wrong, with all that is known of it; DIGEST may be its first few digits."""
    from experiments.archive_pages.kernel_page import print_kernel

    print_kernel(db, digest, as_json=as_json)


@archive.command()
@db_argument
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="An empty folder.")
@click.option("-n", "--count", type=click.IntRange(1), help="The best COUNT kernels instead of one a cell.")
@click.option("--run", "run_name", help="The run; the last when left out.")
@json_option
@guarded
def export(db: Address, folder: Path, count: int | None, run_name: str | None, as_json: bool) -> None:
    """Write the elites as files, with kernels.jsonl beside them."""
    from experiments.listing import export_kernels

    export_kernels(db, folder, run_name, count, as_json=as_json)


for command in MINING:
    archive.add_command(command)
