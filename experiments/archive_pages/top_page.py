"""`evo-l2 archive top`: the best kernels, or the Pareto front."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.address import Address
from archive.mining import EnvironmentFacts, Front, environments, last_run, pareto, top
from archive.read_only import open_to_read
from evo_l2.contracts import Elite
from evo_l2.evaluation import Estimate
from evo_l2.measures import Axis
from experiments.archive_pages.frames import frame, say
from experiments.archive_pages.words import environment_in_words, estimate_facts, interval_in_words
from experiments.summary_page import counted

__all__ = ["print_front", "print_top"]


def print_top(
    db: Address, count: int, run_name: str | None, *, environment: str | None, all_kernels: bool, as_json: bool
) -> None:
    """The best elites, one a cell; or the best kernels, whether they hold a cell or not.

    Raises:
        ConfigurationError: There is no such environment.
        StorageError: The database cannot be read, or has no such run.
    """
    with open_to_read(db) as store:
        name = last_run(store, environment) if environment is not None else run_name
        run = store.open_run(name)
        ranked = top(store, name, count=count) if all_kernels else run.elites()
        elites = sorted(ranked, key=lambda elite: elite.rank)[:count]
        schema, environment_key = run.schema, run.environment_key
        known = environments(store)
    if as_json:
        print(json.dumps([_facts(elite, schema.describe(elite.cell)) for elite in elites], indent=2))
        return
    console = Console(highlight=False)
    _print_elites(console, elites, schema.axes)
    _say_others(console, known, environment_key)


def _print_elites(console: Console, elites: Sequence[Elite], axes: Sequence[Axis]) -> None:
    """A table, or two where one is wider than the terminal; without times where nothing has one."""
    timed = any(elite.estimate is not None for elite in elites)
    whole = _table(elites, axes, timed=timed)
    if timed and console.measure(whole, options=console.options.update(width=1000)).maximum > console.width:
        console.print(_table(elites, (), timed=True))
        console.print()
        whole = _table(elites, axes, timed=False)
    console.print(whole)
    if elites and not timed:
        console.print(Text("none of them was ever run", style="dim"))


def _table(elites: Sequence[Elite], axes: Sequence[Axis], *, timed: bool) -> Table:
    """A row for each elite, with its times or without, and a column for each measure."""
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("kernel", "speed-up", "95 % interval", "blocks")[: 4 if timed else 1]:
        table.add_column(name, justify="right" if name in ("speed-up", "blocks") else "left", no_wrap=True)
    for axis in axes:
        table.add_column(axis.name.replace("_", " "), overflow="fold")
    for elite in elites:
        times: tuple[str, ...] = ("never run", "", "")
        if elite.estimate is not None:
            low, high = elite.estimate.interval
            times = (f"{elite.estimate.speedup:.3f}", f"{low:.3f} to {high:.3f}", str(elite.estimate.n_blocks))
        labels = [axis.label(index) for axis, index in zip(axes, elite.cell, strict=False)]
        table.add_row(elite.kernel.digest[:12], *(times if timed else ()), *labels)
    return table


def print_front(
    db: Address, run_name: str | None, *, environment: str | None, resources: Sequence[str], as_json: bool
) -> None:
    """The Pareto front of a run's problem and environment over speed and resources.

    Raises:
        ConfigurationError: There is no such environment or resource.
        StorageError: The database cannot be read, or has no such run.
    """
    with open_to_read(db) as store:
        name = last_run(store, environment) if environment is not None else run_name
        found = pareto(store, name, resources=resources or None)
        known = environments(store)
    if as_json:
        print(json.dumps(_front_facts(found), indent=2))
        return
    console = Console(highlight=False)
    axes = [name.removeprefix("n_").replace("_", "\n") for name in found.axes]
    table = frame(("kernel", "speed-up", "95 % interval", *axes), right=("speed-up", *axes), wrap=("95 % interval",))
    for point in found.points:
        costs = ["?" if cost is None else f"{cost:,.10g}" for cost in point.costs]
        table.add_row(point.member.digest[:12], *_speed(point.member.estimate), *costs)
    console.print(table)
    weighed = ", ".join((*(("speed",) if found.is_timed else ()), *found.axes)) or "nothing"
    what = f"{counted(len(found.points), 'kernel')} of {found.n_kernels}: no other is at least as good in {weighed}"
    how = "speed by the lower end" if found.is_timed else "nothing was run, so speed is not weighed"
    say(console, f"{what} and better in one; {how}", "dim")
    _say_others(console, known, found.field.environment_key)


def _say_others(console: Console, known: Sequence[EnvironmentFacts], shown: str) -> None:
    """Names the environments that are not shown; nothing where there are none."""
    if len(known) < 2:
        return
    own = next(facts for facts in known if facts.key == shown)
    say(console, f"environment {environment_in_words(own)}; with --env:", "dim")
    for facts in known:
        if facts.key != shown:
            say(console, f"  {environment_in_words(facts)}", "dim")


def _speed(estimate: Estimate | None) -> tuple[str, str]:
    return ("never run", "") if estimate is None else (f"{estimate.speedup:.3f}", interval_in_words(estimate.interval))


def _facts(elite: Elite, cell: str) -> dict[str, object]:
    build = elite.verdict.build
    return {
        "digest": elite.kernel.digest,
        **estimate_facts(elite.estimate),
        "sessions": [session.purpose for session in elite.sessions],
        "cell": cell,
        "tunables": {tunable.name: tunable.value for tunable in elite.kernel.tunables},
        "resources": dict(build.resources) if build is not None else {},
    }


def _front_facts(found: Front) -> dict[str, object]:
    return {
        "problem": found.field.problem_title,
        "environment": found.field.environment_key,
        "axes": list(found.axes),
        "kernels": found.n_kernels,
        "front": [
            {
                "digest": point.member.digest,
                **estimate_facts(point.member.estimate),
                "costs": dict(zip(found.axes, point.costs, strict=True)),
            }
            for point in found.points
        ],
    }
