"""The commands of `evo-l2 archive` that keep it whole. Bodies import what they need when they run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from experiments.command import ARCHIVE, db_argument, guarded, json_option

if TYPE_CHECKING:
    from archive.address import Address

__all__ = ["KEEPING"]


@click.command()
@db_argument
@click.option("--repair", is_flag=True, help="Work out again what is derived and differs; nothing else is changed.")
@json_option
@guarded
def fsck(db: Address, repair: bool, as_json: bool) -> None:
    """Check all that an archive says against itself; exit 1 when something is not as it should be."""
    from experiments.archive_keeping import print_check

    sys.exit(0 if print_check(db, repair=repair, as_json=as_json) else 1)


@click.command()
@click.argument("into", type=ARCHIVE)
@click.argument("sources", metavar="FROM...", nargs=-1, required=True, type=ARCHIVE)
@json_option
@guarded
def merge(into: Address, sources: tuple[Address, ...], as_json: bool) -> None:
    """Take into one archive what others hold and it does not; as often, and in whatever order, as one likes."""
    from experiments.archive_keeping import merge_archives

    merge_archives(into, sources, as_json=as_json)


@click.command()
@db_argument
@click.option("--backups", is_flag=True, help="Also the copies that upgrades left beside the file.")
@click.option("--builds", is_flag=True, help="Also builds in the cache that were not used for long.")
@click.option("--days", type=click.FloatRange(0), default=30.0, show_default=True, help="Of builds: unused for how long.")
@click.option("--gib", type=click.FloatRange(0), default=10.0, show_default=True, help="Of builds: how much may stay.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@json_option
@guarded
def gc(db: Address, backups: bool, builds: bool, days: float, gib: float, dry_run: bool, as_json: bool) -> None:
    """Take out what nothing refers to, and give the room back; no run, verdict or timing is touched."""
    from experiments.archive_keeping import collect_garbage

    collect_garbage(db, backups=backups, builds=builds, days=days, gib=gib, dry_run=dry_run, as_json=as_json)


@click.command()
@db_argument
@click.option("--run", "run_name", help="A run of the older environment; the last when left out.")
@click.option("-n", "--count", type=click.IntRange(1), help="The best COUNT kernels.")
@click.option("--elites", is_flag=True, help="One kernel of every cell; so it is when --count is left out.")
@click.option("--ancestors", is_flag=True, help="Also the kernels that these descend from.")
@click.option("--workers", type=click.IntRange(1, 64), help="Processes at once; two on the CPU, one on a card.")
@json_option
@guarded
def reverify(
    db: Address,
    run_name: str | None,
    count: int | None,
    elites: bool,
    ancestors: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Judge and time what matters of an older environment again in the present one, as a run of its own."""
    from evo_l2.errors import ConfigurationError
    from experiments.reverifying import reverify as judge_again

    if elites and count is not None:
        raise ConfigurationError("--elites and --count say two things", expected="one of them", found="both")
    done = judge_again(db, run_name, count=count, ancestors=ancestors, workers=workers, as_json=as_json)
    sys.exit(0 if done else 1)


KEEPING = (fsck, merge, gc, reverify)
"""For `experiments.archive_commands`."""
