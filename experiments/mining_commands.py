"""The commands of `evo-l2 archive` that look for what an archive teaches. Bodies import what they need when they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from experiments.command import db_argument, guarded, json_option

if TYPE_CHECKING:
    from archive.address import Address

__all__ = ["MINING"]

_TABLES = ("candidates", "kernels", "sessions", "cells", "moves", "calls")


@click.command()
@db_argument
@click.option("--x", "across", metavar="AXIS", help="The axis across; by default one with many filled cells.")
@click.option("--y", "down", metavar="AXIS", help="The axis down.")
@click.option("--value", type=click.Choice(["speedup", "kernels"]), help="What is shown; speed-ups where there are any.")
@click.option("--rebin", "boundaries", multiple=True, metavar="AXIS=1,8,64", help="As it would be with these boundaries.")
@click.option("--regimes", is_flag=True, help="The elites of the whole file by environment and kind of shape instead.")
@click.option("--run", "run_name", help="The run whose problem and environment are shown; the last when left out.")
@click.option("--env", "environment", help="The last run of this environment; its key may be its first few digits.")
@json_option
@guarded
def cells(
    db: Address,
    across: str | None,
    down: str | None,
    value: str | None,
    boundaries: tuple[str, ...],
    regimes: bool,
    run_name: str | None,
    environment: str | None,
    as_json: bool,
) -> None:
    """A heat map of the cells along two axes; along all others the best counts."""
    from experiments.archive_pages.cells_page import print_cells, print_regimes

    if run_name is not None and environment is not None:
        raise click.UsageError("--run and --env cannot be given together")
    if regimes:
        print_regimes(db, as_json=as_json)
        return
    print_cells(
        db,
        run_name,
        environment=environment,
        across=across,
        down=down,
        value=value,
        boundaries=boundaries,
        as_json=as_json,
    )


@click.command()
@db_argument
@click.argument("left")
@click.argument("right")
@json_option
@guarded
def diff(db: Address, left: str, right: str, as_json: bool) -> None:
    """Two kernels side by side: sources, launch, tunables, resources, speed; digests may be their first few digits."""
    from experiments.archive_pages.diff_page import print_diff

    print_diff(db, left, right, as_json=as_json)


@click.command()
@db_argument
@click.argument("digest")
@click.option("--diff", "with_diffs", is_flag=True, help="With what each step changed.")
@click.option("--depth", type=click.IntRange(0), help="Generations up and down; all when left out.")
@click.option("--limit", type=click.IntRange(0), default=30, show_default=True, help="The most descendants.")
@json_option
@guarded
def lineage(db: Address, digest: str, with_diffs: bool, depth: int | None, limit: int, as_json: bool) -> None:
    """Ancestors and descendants of a kernel, each step with its operator and gain."""
    from experiments.archive_pages.lineage_page import print_lineage

    print_lineage(db, digest, depth=depth, limit=limit, with_diffs=with_diffs, as_json=as_json)


@click.command()
@db_argument
@click.option("--run", "run_name", help="Only this run.")
@json_option
@guarded
def moves(db: Address, run_name: str | None, as_json: bool) -> None:
    """Which edits gained, by kind: tunables by name and direction, others by what they touched."""
    from experiments.archive_pages.moves_page import print_moves

    print_moves(db, run_name, as_json=as_json)


@click.command()
@db_argument
@click.argument("text", required=False)
@click.option("--table", type=click.Choice(_TABLES), default="candidates", show_default=True, help="What is filtered.")
@click.option("--columns", help="What a filter shows, with commas between; * for everything.")
@click.option("--run", "run_name", help="Only this run's rows, for a filter.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The most rows of the table printed.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.001), default=30.0, show_default=True, help="Seconds.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all rows as CSV.")
@click.option("--parquet", type=click.Path(dir_okay=False, path_type=Path), help="Write all rows to this file.")
@json_option
@guarded
def query(
    db: Address,
    text: str | None,
    table: str,
    columns: str | None,
    run_name: str | None,
    limit: int,
    timeout_s: float,
    as_csv: bool,
    parquet: Path | None,
    as_json: bool,
) -> None:
    """Rows by a SELECT, or by a filter such as "operator == 'edit' and speedup > 1.2"; without TEXT, the columns."""
    from experiments.archive_pages.query_page import print_columns, print_query

    if as_csv + as_json + (parquet is not None) > 1:
        raise click.UsageError("--csv, --json and --parquet cannot be given together")
    if text is None:
        print_columns(db, table, as_json=as_json)
        return
    print_query(
        db,
        text,
        table=table,
        run_name=run_name,
        columns=[name.strip() for name in columns.split(",") if name.strip()] if columns is not None else None,
        timeout_s=timeout_s,
        limit=limit,
        form="csv" if as_csv else "json" if as_json else "table",
        parquet=parquet,
    )


MINING = (cells, diff, lineage, moves, query)
"""For `experiments.archive_commands`."""
