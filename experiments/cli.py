"""The command `evo-l2`. Bodies import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from evo_l2 import __version__
from evo_l2.errors import ConfigurationError, EvoL2Error

__all__ = ["main"]

F = TypeVar("F", bound=Callable[..., Any])
_INTERRUPTED = 130


def _guarded(body: F) -> F:
    """Turns errors of ours into one line on stderr and an exit status: 1, or 2 when the user's words were at fault."""

    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return body(*args, **kwargs)
        except EvoL2Error as error:
            if os.environ.get("EVO_L2_DEBUG"):
                raise
            click.echo(f"evo-l2: {error}", err=True)
            sys.exit(2 if isinstance(error, ConfigurationError) else 1)
        except KeyboardInterrupt:
            click.echo("evo-l2: interrupted", err=True)
            sys.exit(_INTERRUPTED)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)

    return cast(F, run)


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_db_argument = click.argument("db", type=click.Path(dir_okay=False, path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="evo-l2")
def main() -> None:
    """Evolve half-precision matrix-multiplication kernels with a language model as the variation operator.

    Start with: evo-l2 doctor, then evo-l2 run quickstart.
    """


@main.command()
@click.argument("preset_or_file", metavar="PRESET|FILE")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace one value, as in budget.wall_s=60.")
@click.option("--db", type=click.Path(dir_okay=False, path_type=Path), help="The archive; runs/NAME.db when left out.")
@click.option("--dry-run", is_flag=True, help="Check everything, estimate the cost, run nothing.")
@click.option("--replay", metavar="DB[:RUN]", help="Take replies and measurements from an earlier run.")
@_json_option
@_guarded
def run(
    preset_or_file: str, overrides: tuple[str, ...], db: Path | None, dry_run: bool, replay: str | None, as_json: bool
) -> None:
    """Run a preset or a configuration file. Ctrl-C once ends it in order; `resume` goes on."""
    from experiments.config import load_config
    from experiments.progress import Progress
    from experiments.run import estimate_cost, execute
    from experiments.summary import print_summary

    config = load_config(preset_or_file, overrides)
    path = db if db is not None else Path(config.archive_path)
    if dry_run:
        facts = estimate_cost(config)
        click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(f"{key:24} {value}" for key, value in facts.items()))
        return
    source = None
    if replay is not None:
        file, _, name = replay.partition(":")
        source = (Path(file), name or None)
    finished = execute(config, db=path, observer=Progress(), replay=source)
    print_summary(finished, as_json=as_json)


@main.command()
@_db_argument
@click.argument("run_name", required=False, metavar="[RUN]")
@click.option("--wall", "wall_s", type=float, help="New limit of wall time, in seconds, earlier parts included.")
@click.option("--evaluations", type=int, help="New limit of candidates, earlier ones included.")
@_json_option
@_guarded
def resume(db: Path, run_name: str | None, wall_s: float | None, evaluations: int | None, as_json: bool) -> None:
    """Go on with a run (the last one by default) that was stopped or killed."""
    from experiments.progress import Progress
    from experiments.run import resume as go_on
    from experiments.summary import print_summary

    changes = {"wall_s": wall_s, "evaluations": evaluations}
    overrides = [(key, value) for key, value in changes.items() if value is not None]
    print_summary(go_on(db, run_name, Progress(), overrides), as_json=as_json)


@main.group()
def archive() -> None:
    """Look into an archive."""


@archive.command()
@_db_argument
@_json_option
@_guarded
def stats(db: Path, as_json: bool) -> None:
    """Runs, outcomes, operators, cells and cost."""
    from experiments.listing import print_stats

    print_stats(db, as_json=as_json)


@archive.command()
@_db_argument
@click.option("-n", "--count", type=click.IntRange(1), default=10, show_default=True, help="How many.")
@click.option("--run", "run_name", help="The run; the last when left out.")
@_json_option
@_guarded
def top(db: Path, count: int, run_name: str | None, as_json: bool) -> None:
    """The best kernels, one a cell, by the lower end of their speed-up's interval."""
    from experiments.listing import print_top

    print_top(db, count, run_name, as_json=as_json)


@archive.command()
@_db_argument
@click.argument("digest")
@click.option("--run", "run_name", help="The run; the last when left out.")
@_json_option
@_guarded
def show(db: Path, digest: str, run_name: str | None, as_json: bool) -> None:
    """One kernel with all that is known of it; DIGEST may be its first few digits."""
    from experiments.listing import print_kernel

    print_kernel(db, digest, run_name, as_json=as_json)


@archive.command()
@_db_argument
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="A new folder.")
@click.option("--run", "run_name", help="The run; the last when left out.")
@_guarded
def export(db: Path, folder: Path, run_name: str | None) -> None:
    """Write the elites as files, with kernels.jsonl beside them."""
    from experiments.listing import export_elites

    click.echo(f"{export_elites(db, folder, run_name)} kernels in {folder}")


@main.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--target", type=click.Choice(["cpu"]), default="cpu", show_default=True)
@click.option("--shape", default="256,256,256", show_default=True, metavar="M,N,K[,BATCH]")
@click.option("--accumulate", type=click.Choice(["fp32", "fp16"]), default="fp32", show_default=True)
@_json_option
@_guarded
def verify(file: Path, target: str, shape: str, accumulate: str, as_json: bool) -> None:
    """Screen, build, judge and time one kernel file; exit 0 when it passed."""
    from experiments.verifying import verify_file

    sys.exit(0 if verify_file(file, target, shape, accumulate, as_json=as_json) else 1)


@main.command()
@_json_option
@_guarded
def doctor(as_json: bool) -> None:
    """What is installed, what is missing, and whether a known-good kernel passes here."""
    from experiments.doctor import examine

    sys.exit(0 if examine(as_json=as_json) else 1)


@main.command()
@_json_option
@_guarded
def presets(as_json: bool) -> None:
    """The presets that `run` knows."""
    from experiments.documents import preset_names, preset_text

    texts = {name: preset_text(name) for name in preset_names()}
    click.echo(json.dumps(texts, indent=2) if as_json else "\n".join(f"# --- {n}\n{t}" for n, t in texts.items()))
