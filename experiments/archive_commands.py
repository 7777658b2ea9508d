"""The commands `evo-l2 archive`. Bodies import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from experiments.command import db_argument, guarded, json_option
from experiments.keeping_commands import KEEPING
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
@click.option(
    "--format",
    "form",
    type=click.Choice(["kernels", "sft", "dpo", "kto", "grpo", "contrastive"]),
    default="kernels",
    show_default=True,
    help="Kernel files, or rows to train a model on.",
)
@click.option("-n", "--count", type=click.IntRange(1), help="kernels: the best COUNT instead of one a cell.")
@click.option("--run", "run_name", help="The run. kernels: the last when left out; rows: all when left out.")
@click.option(
    "--layout",
    type=click.Choice(["trl", "verl", "openrlhf"]),
    default="trl",
    show_default=True,
    help="rows: whose columns.",
)
@click.option("--per-cell", type=click.IntRange(1), default=32, show_default=True, help="rows: most of one cell.")
@click.option(
    "--per-root", type=click.IntRange(1), default=256, show_default=True, help="rows: most that go back to one seed."
)
@click.option(
    "--split",
    "split_by",
    type=click.Choice(["both", "lineage", "shape"]),
    default="both",
    show_default=True,
    help="rows: what no two splits share.",
)
@click.option("--licence", default="unknown", show_default=True, help="rows: SPDX identifier of the archive's own kernels.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=4096, show_default=True, help="rows: longest prompt.")
@json_option
@guarded
def export(
    db: Address,
    folder: Path,
    form: str,
    count: int | None,
    run_name: str | None,
    layout: str,
    per_cell: int,
    per_root: int,
    split_by: str,
    licence: str,
    prompt_tokens: int,
    as_json: bool,
) -> None:
    """Write the elites as files, or training data as JSONL and Parquet with a dataset card."""
    if form == "kernels":
        from experiments.listing import export_kernels

        export_kernels(db, folder, run_name, count, as_json=as_json)
        return
    from archive.training_data import Options
    from experiments.datasets_out import export_rows

    if count is not None:
        raise click.UsageError("--count is for --format kernels; rows are bounded by --per-cell and --per-root")
    options = Options(form, layout, run_name, per_cell, per_root, split_by, licence)
    export_rows(db, folder, options, prompt_tokens, as_json=as_json)


@archive.command("import")
@db_argument
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--config", "preset", metavar="PRESET|FILE", help="Problem, target and timing; those of the last run when left out."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace one value of --config.")
@click.option("--licence", help="SPDX identifier of the kernels; what the source says when left out.")
@click.option("--dry-run", is_flag=True, help="Say what would be imported; build and write nothing.")
@json_option
@guarded
def import_(
    db: Address,
    source: Path,
    preset: str | None,
    overrides: tuple[str, ...],
    licence: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Judge kernels from elsewhere: a folder, an export of ours, or a table of extensions. Run again, it goes on."""
    from experiments.importing import import_kernels

    import_kernels(db, source, preset, overrides, licence, dry_run=dry_run, as_json=as_json)


for command in (*MINING, *KEEPING):
    archive.add_command(command)
