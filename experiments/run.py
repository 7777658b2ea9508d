"""Puts a run together: problem, evaluator, generator, operators, archive, search; runs it, and measures the winners again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from archive.store import RunHandle, Store
from evo_l2.budget import Budget, Limits
from evo_l2.contracts import AddResult, Archive, Candidate, Elite, Evaluator, Generator, Mutator
from evo_l2.errors import ConfigurationError, EvoL2Error, StorageError
from evo_l2.kernel import Kernel
from evo_l2.pipeline import Pipeline, PipelineSettings, Stop
from evo_l2.problem import Problem
from evo_l2.problems.hgemm import Hgemm
from evo_l2.quiet import Quiet
from evo_l2.recorded import RecordedEvaluator
from evo_l2.search import Search, SearchSettings
from experiments.config import GeneratorConfig, RunConfig, restore_config

__all__ = [
    "Finished",
    "Observer",
    "Started",
    "cache_dir",
    "estimate_cost",
    "execute",
    "make_evaluator",
    "make_problem",
    "resume",
]

_FINAL_STREAM = 3


@dataclass(frozen=True, slots=True)
class Started:
    """What an observer is told before the first candidate."""

    name: str
    db: Path
    problem: Problem
    n_cells: int
    config: RunConfig
    generator: str | None


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run came to."""

    name: str
    db: Path
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


def cache_dir() -> Path:
    """Where builds and converted models are kept: `$XDG_CACHE_HOME/evo-l2`, or `~/.cache/evo-l2`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "evo-l2"


def make_problem(config: RunConfig) -> Problem:
    """The configured problem."""
    return Hgemm(config.problem.cases, config.problem.accumulate, config.problem.layouts)


def make_evaluator(config: RunConfig, problem: Problem) -> Evaluator:
    """The configured target's evaluator.

    Raises:
        ToolchainError: Something that the target needs is missing.
    """
    from evo_l2.targets.cpu.evaluator import CpuEvaluator, CpuSettings
    from evo_l2.targets.cpu.pairs import TimingSettings

    timing = TimingSettings(config.timing.blocks, config.timing.min_batch_ms)
    settings = CpuSettings(timing, config.timing.final_blocks, config.limits.call_s, config.limits.build_s)
    return CpuEvaluator(problem, cache_dir() / "cpu", settings)


def estimate_cost(config: RunConfig) -> dict[str, object]:
    """What a run would do and cost at the most, without running anything.

    Raises:
        ConfigurationError: A seed cannot be read.
    """
    problem = make_problem(config)
    seeds = _load_seeds(config, problem)
    weights = config.search.operators.chosen
    of_model = sum(weight for name, weight in weights.items() if name != "parametric") / sum(weights.values())
    evaluations = config.budget.evaluations
    per_call = config.generator.prompt_tokens + config.generator.max_tokens
    calls = round(of_model * (evaluations - len(seeds))) if evaluations is not None else None
    prompt_usd = config.generator.prompt_tokens * config.generator.price_in_usd_per_million
    reply_usd = config.generator.max_tokens * config.generator.price_out_usd_per_million
    return {
        "problem": problem.title,
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


def execute(config: RunConfig, *, db: Path, observer: Observer, replay: tuple[Path, str | None] | None = None) -> Finished:
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
        seeds = _load_seeds(config, problem)
        if str(db) == config.archive_path:
            _make_folder(db.parent)
        store = stack.enter_context(Store.open(db))
        evaluator, generator = _workers(config, problem, replay, stack)
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


def resume(db: Path, run_name: str | None, observer: Observer, overrides: Sequence[tuple[str, float]] = ()) -> Finished:
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
        config = restore_config(run.config)
        if overrides:
            config = restore_config({**config.dump(), "budget": {**config.budget.model_dump(), **dict(overrides)}})
        problem = make_problem(config)
        if problem.key != run.problem_key:
            found = f"problem {run.problem_key}"
            raise ConfigurationError("the run was made by another version", expected=f"problem {problem.key}", found=found)
        evaluator, generator = _workers(config, problem, None, stack)
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
    db: Path,
    problem: Problem,
    seeds: Sequence[Kernel],
    run: RunHandle,
    evaluator: Evaluator,
    generator: Generator | None,
    observer: Observer,
    *,
    recorded: bool = False,
) -> Finished:
    operators = _operators(config, generator)
    search = Search(run.rewind(), operators, config.seed, SearchSettings(config.search.tournament, config.search.exploration))
    quiet = Quiet([generator] if generator is not None else [])
    settings = config.generator
    usd_per_token = max(settings.price_in_usd_per_million, settings.price_out_usd_per_million) / 1e6
    limits = Limits(config.budget.evaluations, config.budget.wall_s, config.budget.tokens, config.budget.usd)

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
        settings=PipelineSettings(config.search.batch, config.search.lookahead, config.workers.build),
        told=told,
    )
    n_cells = problem.measures(config.target).n_cells
    observer.started(Started(run.name, db, problem, n_cells, config, generator.name if generator is not None else None))
    try:
        try:
            stop = pipeline.run(run.history())
        except KeyboardInterrupt:
            stop = Stop.REQUESTED
        if stop is not Stop.REQUESTED and not recorded:
            with quiet.silence():
                _measure_winners(config, seeds, run, evaluator, search, observer)
    finally:
        observer.stopped()
    seed_elite = _best_seed(run, seeds)
    finished = Finished(
        run.name, db, stop, run.n_candidates, run.best(), seed_elite, str(search.logbook) if len(search.logbook) else ""
    )
    run.finish({"stop": stop.value, "logbook": [dict(row) for row in search.logbook]})
    return finished


def _measure_winners(
    config: RunConfig, seeds: Sequence[Kernel], run: RunHandle, evaluator: Evaluator, search: Search, observer: Observer
) -> None:
    """Times the best few elites and the best seed once more, each in fresh processes with fresh buffers."""
    if config.timing.finalists == 0:
        return
    ranked = sorted(run.elites(), key=lambda elite: -elite.estimate.log_low)[: config.timing.finalists]
    seed = _best_seed(run, seeds)
    if seed is not None and all(seed.kernel.digest != elite.kernel.digest for elite in ranked):
        ranked.append(seed)
    for number, elite in enumerate(ranked):
        observer.note(f"measuring finalist {number + 1} of {len(ranked)} again")
        prepared = evaluator.prepare(elite.kernel)
        if prepared.verdict is not None:
            observer.note(f"finalist {number + 1} no longer builds: {prepared.verdict.message}")
            continue
        evaluation = evaluator.measure(
            prepared, search.seed_sequence(run.n_candidates + number, _FINAL_STREAM), purpose="final"
        )
        if evaluation.session is None:
            observer.note(f"finalist {number + 1} failed when measured again: {evaluation.verdict.message}")
        else:
            run.add_session(elite.kernel.digest, evaluation.session)


def _best_seed(run: RunHandle, seeds: Sequence[Kernel]) -> Elite | None:
    found = []
    for kernel in seeds:
        try:
            found.append(run.get(kernel.digest))
        except KeyError:
            continue
    return max(found, key=lambda elite: elite.estimate.log_low, default=None)


def _workers(
    config: RunConfig, problem: Problem, replay: tuple[Path, str | None] | None, stack: ExitStack
) -> tuple[Evaluator, Generator | None]:
    """Evaluator and generator, closed with the stack."""
    if replay is not None:
        return _recorded(config, problem, replay, stack)
    evaluator = make_evaluator(config, problem)
    stack.callback(evaluator.close)
    generator = _make_generator(config.generator)
    if generator is not None:
        stack.callback(generator.close)
    return evaluator, generator


def _recorded(
    config: RunConfig, problem: Problem, replay: tuple[Path, str | None], stack: ExitStack
) -> tuple[Evaluator, Generator | None]:
    """Evaluator and generator that repeat an earlier run; prompts are cut by the tokenizer that cut them then."""
    from mutators.generators.recorded import RecordedGenerator

    path, name = replay
    with Store.open(path, create=False) as store:
        old = store.open_run(name)
        if old.problem_key != problem.key:
            expected = f"a run of problem {problem.key}"
            raise ConfigurationError("the recording is of another problem", expected=expected, found=old.problem_key)
        candidates = list(old.history())
        environment = old.environment
    calls = [call for candidate in candidates for call in candidate.calls]
    evaluator = RecordedEvaluator(candidates, environment)
    live = _make_generator(config.generator)
    if live is None:
        return evaluator, None
    stack.callback(live.close)
    return evaluator, RecordedGenerator.from_calls(calls, count_tokens=live.count_tokens)


def _make_generator(settings: GeneratorConfig) -> Generator | None:
    if settings.kind == "none":
        return None
    if settings.kind == "recorded":
        from mutators.generators.recorded import RecordedGenerator

        assert settings.path is not None
        return RecordedGenerator.from_file(Path(settings.path))
    from mutators.generators import make_generator

    sampling = {"temperature": settings.temperature, "top_p": settings.top_p}
    if settings.kind == "server":
        server = make_generator(
            "server",
            base_url=settings.base_url,
            model=settings.model,
            api_key_env=settings.api_key_env,
            retries=settings.retries,
            timeout_s=settings.timeout_s,
            concurrency=settings.concurrency,
            price_in_usd_per_million=settings.price_in_usd_per_million,
            price_out_usd_per_million=settings.price_out_usd_per_million,
            **sampling,
        )
        server.check()  # type: ignore[attr-defined]
        return server
    return make_generator(
        "local",
        model="embedded" if settings.kind == "embedded" else settings.model,
        adapter=Path(settings.adapter) if settings.adapter is not None else None,
        max_batch=settings.max_batch,
        threads=settings.threads,
        cache_dir=cache_dir(),
        **sampling,
    )


def _operators(config: RunConfig, generator: Generator | None) -> dict[str, tuple[Mutator, float]]:
    from mutators.operators import Edit, Parametric, Rewrite

    result: dict[str, tuple[Mutator, float]] = {}
    for name, weight in config.search.operators.chosen.items():
        if name == "parametric":
            result[name] = (Parametric(), weight)
        elif generator is not None:
            kind = Edit if name == "edit" else Rewrite
            settings = config.generator
            mutator = kind(generator, max_tokens=settings.max_tokens, prompt_tokens=settings.prompt_tokens)
            result[name] = (mutator, weight)
    return result


def _load_seeds(config: RunConfig, problem: Problem) -> tuple[Kernel, ...]:
    """The kernels that open the run.

    Raises:
        ConfigurationError: A file cannot be read or is no kernel, or there is none.
    """
    if config.seeds == "builtin":
        from experiments.seeds import load_seeds

        kernels = [kernel for layout in problem.layouts for kernel in load_seeds(config.target, layout)]
    else:
        kernels = [_read_kernel(path, config.target) for path in _seed_files(config.seeds, config.target)]
    unique = tuple({kernel.digest: kernel for kernel in kernels}.values())
    if not unique:
        raise ConfigurationError("the run has no seeds", expected="at least one kernel file", found="none")
    return unique


def _seed_files(names: Sequence[str], target: str) -> Iterator[Path]:
    suffix = {"cpu": ".c", "cuda": ".cu"}[target]
    for name in names:
        path = Path(name)
        if path.is_dir():
            yield from sorted(path.glob(f"*{suffix}"))
        else:
            yield path


def _read_kernel(path: Path, target: str) -> Kernel:
    try:
        kernel = Kernel.from_bytes(path.read_bytes(), target)
        _ = kernel.launch, kernel.tunables
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigurationError(f"seed {path} cannot be read", expected="a kernel file", found=found) from error
    except EvoL2Error as error:
        raise ConfigurationError(f"seed {path} is no kernel", found=str(error), hint=f"evo-l2 verify {path}") from error
    return kernel
