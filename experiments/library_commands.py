"""The commands `evo-l2 library`. Bodies import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from experiments.command import db_argument, guarded, json_option

if TYPE_CHECKING:
    from archive.address import Address

__all__ = ["library"]


@click.group()
def library() -> None:
    """Use what was found."""


@library.command()
@db_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A new or empty folder.")
@click.option("--env", help="First digits of the environment's key; may be left out where there is one.")
@click.option("--shapes", multiple=True, help="Only these: M,N,K or M,N,K,BATCH, or a named set; may be repeated.")
@click.option("--layout", type=click.Choice(["nn", "nt"]), help="Only this layout.")
@click.option("--all", "with_slower", is_flag=True, help="Also kernels that do not win over the baseline.")
@json_option
@guarded
def build(
    db: Address, output: Path, env: str | None, shapes: tuple[str, ...], layout: str | None, with_slower: bool, as_json: bool
) -> None:
    """Export an archive's best kernels as a package for C and Python, with the vendor's library for the rest."""
    from experiments.library.build import build_library

    build_library(db, output, env, shapes, layout, with_slower=with_slower, as_json=as_json)
