"""`evo-l2 archive top`: the best kernels, or the Pareto front."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from archive.address import Address
from archive.mining import EnvironmentFacts, Front, environments, last_run, pareto, top
from archive.store import Store
from evo_l2.contracts import Elite
from evo_l2.evaluation import Estimate
from experiments.archive_pages.frames import frame, say
from experiments.archive_pages.words import environment_in_words, estimate_facts, interval_in_words
from experiments.report import counted

__all__ = ["print_front", "print_top"]


def print_top(
    db: Address, count: int, run_name: str | None, *, environment: str | None, all_kernels: bool, as_json: bool
) -> None:
    """The best elites, one a cell; or the best kernels, whether they hold a cell or not.

    Raises:
        ConfigurationError: There is no such environment.
        StorageError: The database cannot be read, or has no such run.
    """
    with Store.open(db, create=False) as store:
        name = last_run(store, environment) if environment is not None else run_name
        run = store.open_run(name)
        ranked = top(store, name, count=count) if all_kernels else run.elites()
        elites = sorted(ranked, key=lambda elite: elite.rank)[:count]
        cells = [run.schema.describe(elite.cell) for elite in elites]
        known = environments(store)
    if as_json:
        print(json.dumps([_facts(elite, cell) for elite, cell in zip(elites, cells, strict=True)], indent=2))
        return
    names = ("kernel", "speed-up", "95 % interval", "blocks", "cell")
    table = frame(names, right=("speed-up", "blocks"), wrap=("cell",))
    for elite, cell in zip(elites, cells, strict=True):
        n_blocks = str(elite.estimate.n_blocks) if elite.estimate is not None else ""
        table.add_row(elite.kernel.digest[:12], *_speed(elite.estimate), n_blocks, cell)
    console = Console(highlight=False)
    console.print(table)
    _say_others(console, known, run.environment_key)


def print_front(
    db: Address, run_name: str | None, *, environment: str | None, resources: Sequence[str], as_json: bool
) -> None:
    """The Pareto front of a run's problem and environment over speed and resources.

    Raises:
        ConfigurationError: There is no such environment or resource.
        StorageError: The database cannot be read, or has no such run.
    """
    with Store.open(db, create=False) as store:
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
