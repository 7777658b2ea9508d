"""Puts a run together: problem, evaluator, generator, operators, archive, search; runs it, and measures the winners again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from archive.address import Address
from archive.keeping.merging import check_resumable
from archive.read_only import open_to_read
from archive.store import RunHandle, Store
from evo_l2.budget import Budget, Limits
from evo_l2.contracts import AddResult, Archive, Candidate, Elite, Evaluator, Generator, ModelCall
from evo_l2.errors import ConfigurationError, StorageError
from evo_l2.kernel import Kernel
from evo_l2.past import file_remeasurement
from evo_l2.pipeline import Pipeline, PipelineSettings, Stop
from evo_l2.problem import Problem
from evo_l2.quiet import Quiet
from evo_l2.recorded import RecordedEvaluator
from evo_l2.search import Search, SearchSettings
from experiments.config import RunConfig, restore_config
from experiments.parts import (
    cuda_card,
    load_seed_kernels,
    make_evaluator,
    make_generator,
    make_operators,
    make_problem,
    warm_up,
)

__all__ = ["Finished", "Observer", "Started", "estimate_cost", "execute", "resume"]

_FINAL_STREAM = 3


@dataclass(frozen=True, slots=True)
class Started:
    """What an observer is told before the first candidate."""

    name: str
    db: Address
    problem: Problem
    n_cells: int
    config: RunConfig
    generator: str | None


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run came to."""

    name: str
    db: Address
    stop: Stop
    n_candidates: int
    best: Elite | None
    best_seed: Elite | None
    """The best of the seeds that passed, measured again beside the winners."""
    logbook: str
    """DEAP's record of the run, a line a group."""


class Observer(Protocol):
    """Watches a run."""

    def started(self, info: Started) -> None:
        """Called once, before the first candidate."""
        ...

    def told(self, candidate: Candidate, result: AddResult, archive: Archive) -> None:
        """Called after every candidate, those of a resumed run's past included."""
        ...

    def note(self, text: str) -> None:
        """Called with a line worth showing."""
        ...

    def stopped(self) -> None:
        """Called once, at the end, however it comes."""
        ...


def estimate_cost(config: RunConfig) -> dict[str, object]:
    """What a run would do and cost at the most, without running anything.

    Raises:
        ConfigurationError: A seed cannot be read.
    """
    problem = make_problem(config)
    seeds = load_seed_kernels(config, problem)
    weights = config.search.operators.chosen
    of_model = sum(weight for name, weight in weights.items() if name != "parametric") / sum(weights.values())
    evaluations = config.budget.evaluations
    per_call = config.generator.prompt_tokens + config.generator.max_tokens
    calls = round(of_model * (evaluations - len(seeds))) if evaluations is not None else None
    prompt_usd = config.generator.prompt_tokens * config.generator.price_in_usd_per_million
    reply_usd = config.generator.max_tokens * config.generator.price_out_usd_per_million
    return {
        "problem": problem.title,
        "target": _target_in_words(config),
        "seeds": len(seeds),
        "operators": ", ".join(f"{name} {weight / sum(weights.values()):.0%}" for name, weight in weights.items()),
        "generator": config.generator.kind,
        "most evaluations": evaluations if evaluations is not None else "until the time is spent",
        "most wall time (s)": config.budget.wall_s if config.budget.wall_s is not None else "until the evaluations are spent",
        "most tokens a call": per_call if of_model else 0,
        "model calls": calls if calls is not None else f"{of_model:.0%} of the candidates",
        "most tokens": calls * per_call if calls is not None else config.budget.tokens or "no limit",
        "most money (USD)": calls * (prompt_usd + reply_usd) / 1e6 if calls is not None else config.budget.usd or "no limit",
    }


def _target_in_words(config: RunConfig) -> str:
    if config.target != "cuda":
        return config.target
    card = cuda_card(config)
    return f"cuda, {config.cuda.mode}, {card.name} ({card.arch})"


def execute(
    config: RunConfig, *, db: Address, observer: Observer, replay: tuple[Address, str | None] | None = None
) -> Finished:
    """Runs a configuration from its start.

    Args:
        config: What to run.
        db: The archive; made when it is missing.
        observer: Told of everything.
        replay: Archive and run (None: its last) whose model replies and measurements are used instead of new ones.

    Raises:
        EvoL2Error: Bad configuration, machine, model or store; what was told until then is stored.
    """
    with ExitStack() as stack:
        problem = make_problem(config)
        seeds = load_seed_kernels(config, problem)
        evaluator, generator = _workers(config, problem, replay, stack)
        if isinstance(db, Path) and str(db) == config.archive_path:
            _make_folder(db.parent)
        store = stack.enter_context(Store.open(db))
        run = store.start_run(config.name, problem, evaluator.environment, config.target, config.dump(), config.seed)
        for kernel in seeds:
            run.add_seed(kernel)
        return _go(config, db, problem, seeds, run, evaluator, generator, observer, recorded=replay is not None)


def _make_folder(folder: Path) -> None:
    """Makes the folder of an archive whose place nobody named.

    Raises:
        StorageError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = error.strerror or str(error)
        raise StorageError(f"{folder} cannot be made", expected="a folder", found=found, hint="--db PATH") from error


def resume(db: Address, run_name: str | None, observer: Observer, overrides: Sequence[tuple[str, float]] = ()) -> Finished:
    """Goes on with a run that was stopped or killed.

    Args:
        db: The archive.
        run_name: The run; None for the last.
        observer: Told of everything, the past included.
        overrides: Budgets to replace, by name, for a run that had spent them.

    Raises:
        EvoL2Error: No such run, another environment, or what `execute` raises.
    """
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(db, create=False))
        run = store.open_run(run_name)
        if "import" in run.config:
            hint = f"evo-l2 archive import {db} {run.config['import'].get('source', 'SOURCE')}"
            raise ConfigurationError(f"{run.name} is no search", expected="a run", found="an import", hint=hint)
        check_resumable(store, run.name)
        config = restore_config(run.config)
        if overrides:
            config = restore_config({**config.dump(), "budget": {**config.budget.model_dump(), **dict(overrides)}})
        problem = make_problem(config)
        if problem.key != run.problem_key:
            found = f"problem {run.problem_key}"
            expected, hint = f"problem {problem.key}", f"evo-l2 run {config.name} --db {db}"
            raise ConfigurationError("the run was made by another version", expected=expected, found=found, hint=hint)
        made = (call for candidate in run.history() for call in candidate.calls)
        evaluator, generator = _workers(config, problem, None, stack, made)
        if evaluator.environment.key != run.environment_key:
            raise ConfigurationError(
                "the run belongs to another machine or toolchain; times would not compare",
                expected=f"environment {run.environment_key}",
                found=evaluator.environment.key,
                hint=f"evo-l2 run {config.name} --db {db}",
            )
        return _go(config, db, problem, run.seeds(), run, evaluator, generator, observer)


def _go(
    config: RunConfig,
    db: Address,
    problem: Problem,
    seeds: Sequence[Kernel],
    run: RunHandle,
    evaluator: Evaluator,
    generator: Generator | None,
    observer: Observer,
    *,
    recorded: bool = False,
) -> Finished:
    operators = make_operators(config, generator)
    search = Search(run.rewind(), operators, config.seed, SearchSettings(config.search.tournament, config.search.exploration))
    quiet = Quiet([generator] if generator is not None else [], builds_disturb=config.target == "cpu")
    settings = config.generator
    usd_per_token = max(settings.price_in_usd_per_million, settings.price_out_usd_per_million) / 1e6
    limits = Limits(config.budget.evaluations, config.budget.wall_s, config.budget.tokens, config.budget.usd)

    n_cards = 0 if recorded else config.cards

    def told(candidate: Candidate, result: AddResult, replayed: bool) -> None:
        observer.told(candidate, result, search.archive)

    pipeline = Pipeline(
        problem=problem,
        seeds=seeds,
        search=search,
        archive=run,
        evaluator=evaluator,
        quiet=quiet,
        budget=Budget(limits, usd_per_token),
        settings=PipelineSettings(config.search.batch, config.search.lookahead, config.builders, n_cards),
        told=told,
    )
    if generator is not None and not recorded:
        _load(generator, observer)
    if config.target == "cuda" and config.cuda.mode == "build-only":
        card = evaluator.environment.identity["card"]
        observer.note(f"build-only: kernels are built, read and gated; nothing is run, nothing is timed; card {card}")
    n_cells = problem.measures(config.target).n_cells
    observer.started(Started(run.name, db, problem, n_cells, config, generator.name if generator is not None else None))
    try:
        try:
            stop = pipeline.run(run.history(), run.remeasurements())
            if stop is not Stop.REQUESTED and not recorded:
                with quiet.silence():
                    _measure_winners(config, seeds, run, evaluator, search, observer)
        except KeyboardInterrupt:
            stop = Stop.REQUESTED
    finally:
        observer.stopped()
    seed_elite = _best_seed(run, seeds)
    finished = Finished(
        run.name, db, stop, run.n_candidates, run.best(), seed_elite, str(search.logbook) if len(search.logbook) else ""
    )
    run.finish({"stop": stop.value, "logbook": [dict(row) for row in search.logbook]})
    return finished


def _load(generator: Generator, observer: Observer) -> None:
    """Loads the model before the clock starts."""
    observer.note(f"loading the model {generator.name}")
    said = warm_up(generator)
    if said is not None:
        observer.note(said)


def _measure_winners(
    config: RunConfig, seeds: Sequence[Kernel], run: RunHandle, evaluator: Evaluator, search: Search, observer: Observer
) -> None:
    """Times the best few elites and the best seed once more, each in fresh processes with fresh buffers.

    What looked best by luck falls back by it; so it goes on until the best that is left has been measured again too.
    """
    if config.timing.finalists == 0:
        return
    random = search.seed_sequence(run.n_candidates, _FINAL_STREAM)
    for number in range(1, 4 * config.timing.finalists + 2):
        elite = _next_finalist(config.timing.finalists, seeds, run)
        if elite is None:
            return
        observer.note(f"measuring finalist {number} again")
        prepared = evaluator.prepare(elite.kernel)
        if prepared.verdict is not None:
            observer.note(f"finalist {number} no longer builds: {prepared.verdict.message}")
            return
        evaluation = evaluator.measure(prepared, random.spawn(1)[0], purpose="final")
        if evaluation.session is None:
            observer.note(f"finalist {number} failed when measured again and is withdrawn: {evaluation.verdict.message}")
        file_remeasurement(run, elite.kernel.digest, evaluation)


def _next_finalist(n_finalists: int, seeds: Sequence[Kernel], run: RunHandle) -> Elite | None:
    """The next of the best few elites, then of the best seed, that was not measured again yet."""
    ranked = sorted(run.elites(), key=lambda elite: elite.rank)[:n_finalists]
    seed = _best_seed(run, seeds)
    return next((e for e in (*ranked, *([seed] if seed else [])) if e.estimate is not None and not _is_final(e)), None)


def _is_final(elite: Elite) -> bool:
    """Whether it was measured again; a second try that is not conclusive is the last."""
    finals = [session for session in elite.sessions if session.purpose == "final"]
    return len(finals) >= 2 or any(session.conclusive for session in finals)


def _best_seed(run: RunHandle, seeds: Sequence[Kernel]) -> Elite | None:
    found = []
    for kernel in seeds:
        try:
            found.append(run.get(kernel.digest))
        except KeyError:
            continue
    return min(found, key=lambda elite: elite.rank, default=None)


def _workers(
    config: RunConfig,
    problem: Problem,
    replay: tuple[Address, str | None] | None,
    stack: ExitStack,
    made: Iterable[ModelCall] = (),
) -> tuple[Evaluator, Generator | None]:
    """Evaluator and generator, closed with the stack; `made` are the calls of a run that goes on."""
    if replay is not None:
        return _recorded(config, problem, replay, stack)
    evaluator = make_evaluator(config, problem)
    stack.callback(evaluator.close)
    generator = make_generator(config.generator, made) if config.model_operators else None
    if generator is not None:
        stack.callback(generator.close)
    return evaluator, generator


def _recorded(
    config: RunConfig, problem: Problem, replay: tuple[Address, str | None], stack: ExitStack
) -> tuple[Evaluator, Generator | None]:
    """Evaluator and generator that repeat an earlier run; prompts are cut by the tokenizer that cut them then."""
    from mutators.generators.recorded import RecordedGenerator

    path, name = replay
    with open_to_read(path) as store:
        old = store.open_run(name)
        if old.problem_key != problem.key:
            expected = f"a run of problem {problem.key}"
            raise ConfigurationError("the recording is of another problem", expected=expected, found=old.problem_key)
        candidates, remeasured = list(old.history()), list(old.remeasurements())
        environment = old.environment
    calls = [call for candidate in candidates for call in candidate.calls]
    evaluator = RecordedEvaluator(candidates, environment, remeasured)
    live = make_generator(config.generator)
    if live is None:
        return evaluator, None
    stack.callback(live.close)
    return evaluator, RecordedGenerator.from_calls(calls, count_tokens=live.count_tokens)
