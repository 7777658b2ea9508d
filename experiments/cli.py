"""The command `evo-l2`. Bodies import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from evo_l2 import __version__
from experiments.archive_commands import archive
from experiments.command import ARCHIVE, INTERRUPTED, db_argument, guarded, json_option
from experiments.library_commands import library
from experiments.origins import foreign_packages

if TYPE_CHECKING:
    from archive.address import Address
    from experiments.run import Finished

__all__ = ["main"]

_GRACE_S = 2.0
"""How long an interrupted run waits for builds in flight to tidy up."""


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) raises `KeyboardInterrupt`; further ones are ignored while things are put in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    former = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="evo-l2")
def main() -> None:
    """Evolve half-precision matrix-multiplication kernels with a language model as the variation operator.

    Start with: evo-l2 doctor, then evo-l2 run quickstart. Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted.
    """
    foreign = foreign_packages()
    if foreign and click.get_current_context().invoked_subcommand != "doctor":
        click.echo(
            f"evo-l2: another distribution shadows a package of ours: {'; '.join(foreign)}; try: evo-l2 doctor", err=True
        )
        sys.exit(1)


main.add_command(archive)
main.add_command(library)


@main.command()
@click.argument("preset_or_file", metavar="PRESET|FILE")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace one value, as in budget.wall_s=60.")
@click.option("--db", type=ARCHIVE, help="The archive; runs/NAME.db when left out.")
@click.option("--dry-run", is_flag=True, help="Check everything, estimate the cost, run nothing.")
@click.option("--replay", metavar="DB[:RUN]", help="Take replies and measurements from an earlier run.")
@json_option
@guarded
def run(
    preset_or_file: str, overrides: tuple[str, ...], db: Address | None, dry_run: bool, replay: str | None, as_json: bool
) -> None:
    """Run a preset or a configuration file. Ctrl-C once ends it in order; `resume` goes on."""
    from archive.address import parse_address
    from experiments.config import load_config
    from experiments.options import check_run
    from experiments.progress import Progress
    from experiments.run import estimate_cost, execute
    from experiments.summary_page import print_summary

    check_run(preset_or_file, dry_run=dry_run, replay=replay)
    config = load_config(preset_or_file, overrides)
    path = db if db is not None else parse_address(config.archive_path)
    if dry_run:
        facts = estimate_cost(config)
        click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(f"{key:24} {value}" for key, value in facts.items()))
        return
    with _one_interrupt():
        finished = execute(config, db=path, observer=Progress(), replay=_recording(replay) if replay is not None else None)
        print_summary(finished, as_json=as_json)
    _leave(finished)


def _recording(text: str) -> tuple[Address, str | None]:
    """Archive and run of `DB[:RUN]`; a file whose name has a colon is taken as a whole, and so is a URL that ends in none."""
    from archive.address import parse_address

    file, colon, name = text.rpartition(":")
    if not colon or Path(text).exists() or ("://" in text and set(name) & set("/@?=")):
        return parse_address(text), None
    return parse_address(file), name or None


def _leave(finished: Finished) -> None:
    """Exit status 130 for a run that was interrupted, as a shell would give it."""
    from evo_l2.pipeline import Stop

    if finished.stop is not Stop.REQUESTED:
        return
    sys.stdout.flush()
    deadline = time.monotonic() + _GRACE_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    # A build still going on ends with this process. Python would wait for its thread, as long as its limit allows.
    os._exit(INTERRUPTED)


@main.command()
@db_argument
@click.argument("run_name", required=False, metavar="[RUN]")
@click.option("--wall", "wall_s", type=float, help="New limit of wall time, in seconds, earlier parts included.")
@click.option("--evaluations", type=int, help="New limit of candidates, earlier ones included.")
@json_option
@guarded
def resume(db: Address, run_name: str | None, wall_s: float | None, evaluations: int | None, as_json: bool) -> None:
    """Go on with a run (the last one by default) that was stopped or killed."""
    from experiments.progress import Progress
    from experiments.run import resume as go_on
    from experiments.summary_page import print_summary

    changes = {"wall_s": wall_s, "evaluations": evaluations}
    overrides = [(key, value) for key, value in changes.items() if value is not None]
    with _one_interrupt():
        finished = go_on(db, run_name, Progress(), overrides)
        print_summary(finished, as_json=as_json)
    _leave(finished)


@main.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--target", type=click.Choice(["cpu", "cuda"]), help="By the file's name when left out: .cu is cuda.")
@click.option("--arch", help="Of a CUDA kernel: build for sm_80, sm_86, sm_90a or sm_100a, and run nothing.")
@click.option("--device", type=click.IntRange(0, 63), help="Number of the card that runs a CUDA kernel.")
@click.option("--builder", type=click.Choice(["auto", "nvcc", "nvrtc"]),
              help="Of a CUDA kernel; nvcc where it is installed, or with auto.")  # fmt: skip
@click.option("--shape", default="256,256,256", show_default=True, metavar="M,N,K[,BATCH]")
@click.option("--accumulate", type=click.Choice(["fp32", "fp16"]), default="fp32", show_default=True)
@json_option
@guarded
def verify(
    file: Path,
    target: str | None,
    arch: str | None,
    device: int | None,
    builder: str | None,
    shape: str,
    accumulate: str,
    as_json: bool,
) -> None:
    """Screen, build, judge and time one kernel file; exit 0 when it passed.

    A CUDA kernel is run on the card of this machine; where there is none, or with --arch, it is built, read and gated.
    """
    from experiments.options import check_verify

    target = target or ("cuda" if file.suffix == ".cu" else "cpu")
    check_verify(file, target, {"arch": arch, "device": device, "builder": builder})
    if target == "cuda":
        from experiments.cuda_report import verify_cuda

        sys.exit(0 if verify_cuda(file, arch, device, builder, shape, accumulate, as_json=as_json) else 1)
    from experiments.verifying import verify_on_cpu

    sys.exit(0 if verify_on_cpu(file, shape, accumulate, as_json=as_json) else 1)


@main.command()
@click.argument("files", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--db", type=ARCHIVE, help="Also the best kernels of this archive.")
@click.option("-n", "--count", type=click.IntRange(1), default=1, show_default=True, help="How many of them.")
@click.option(
    "--shapes", "shapes", multiple=True, default=("4096,4096,4096",), show_default=True,
    help="M,N,K[,BATCH], or a named set: ten, small, square-cpu, mixed-cpu, grid-1000; may be given again.",
)  # fmt: skip
@click.option("--accumulate", type=click.Choice(["fp32", "fp16"]), default="fp32", show_default=True)
@click.option("--mode", type=click.Choice(["offline", "server", "host"]), default="offline", show_default=True,
              help="offline: device time. host: latency of a call. server: latency at random arrivals.")  # fmt: skip
@click.option("--sweep", type=click.IntRange(0), default=0, show_default=True,
              help="Settings of the tunables to try at every shape; the best is measured.")  # fmt: skip
@click.option("--against", type=click.Path(dir_okay=False, path_type=Path), help="Another kernel, instead of the libraries.")
@click.option("--blocks", type=click.IntRange(8, 10000), default=40, show_default=True,
              help="Blocks of paired samples (kernel and library in turns); not blocks of threads.")  # fmt: skip
@click.option("--device", type=click.IntRange(0, 63), help="Number of the card; the first that is known when left out.")
@click.option("--builder", type=click.Choice(["auto", "nvcc", "nvrtc"]), default="auto", show_default=True)
@click.option("--csv", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows as CSV.")
@click.option("--json-to", type=click.Path(dir_okay=False, path_type=Path), help="Write everything as JSON.")
@click.option("--cuda-l2", type=click.Path(dir_okay=False, path_type=Path), help="Write CSV in the columns of CUDA-L2.")
@json_option
@guarded
def bench(
    files: tuple[Path, ...],
    db: Address | None,
    count: int,
    shapes: tuple[str, ...],
    accumulate: str,
    mode: str,
    sweep: int,
    against: Path | None,
    blocks: int,
    device: int | None,
    builder: Literal["auto", "nvcc", "nvrtc"],
    csv: Path | None,
    json_to: Path | None,
    cuda_l2: Path | None,
    as_json: bool,
) -> None:
    """CUDA kernels, or an archive's best, against the vendor's libraries on a card; exit 0 when all passed everywhere."""
    from experiments.benching import run_bench
    from experiments.sections import CudaConfig

    passed = run_bench(
        files,
        db,
        count,
        shapes,
        accumulate,
        mode,
        CudaConfig(device=device, builder=builder),
        blocks,
        sweep=sweep,
        against=against,
        csv=csv,
        json=json_to,
        cuda_l2=cuda_l2,
        given=_given(),
        as_json=as_json,
    )
    sys.exit(0 if passed else 1)


def _given() -> frozenset[str]:
    """Names of the options that were typed."""
    context = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    return frozenset(name for name in context.params if context.get_parameter_source(name) is typed)


@main.command()
@db_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), default="report.html", show_default=True, help="The file.")
@click.option("--run", "run_name", help="The run; the last when left out.")
@json_option
@guarded
def report(db: Path, output: Path, run_name: str | None, as_json: bool) -> None:
    """Write one HTML page about a run and its archive, to be opened in a browser; it needs no network."""
    from experiments.report_page.writing import print_written, write_report

    print_written(write_report(db, output, run_name), as_json=as_json)


@main.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--arch", default="sm_80", show_default=True, help="What it is built for: sm_80, sm_86, sm_90a, sm_100a.")
@click.option("--builder", type=click.Choice(["auto", "nvcc", "nvrtc"]), default="auto", show_default=True,
              help="The compiler; auto takes nvcc where it is installed.")  # fmt: skip
@click.option("--order", type=click.Choice(["source", "address"]), default="source", show_default=True,
              help="source: below the lines of the source. address: in program order.")  # fmt: skip
@json_option
@guarded
def sass(file: Path, arch: str, builder: str, order: str, as_json: bool) -> None:
    """The machine code of a CUDA kernel, with its labels, below the lines of source that it stands for."""
    from experiments.cuda_report import print_sass

    print_sass(file, arch, builder, by_address=order == "address", as_json=as_json)


@main.command()
@json_option
@guarded
def doctor(as_json: bool) -> None:
    """What is installed, what is missing, and whether a known-good kernel passes here."""
    from experiments.doctor import examine

    sys.exit(0 if examine(as_json=as_json) else 1)


@main.command()
@click.option("--keys", "as_keys", is_flag=True, help="List every key of a configuration, with its default and meaning.")
@click.argument("name", required=False)
@json_option
@guarded
def presets(name: str | None, as_keys: bool, as_json: bool) -> None:
    """The presets that `run` knows; with NAME, the text of one."""
    from experiments.listing import print_keys, print_presets
    from experiments.options import check_presets

    check_presets(name, as_keys=as_keys)
    if as_keys:
        print_keys(as_json=as_json)
    else:
        print_presets(name, as_json=as_json)
