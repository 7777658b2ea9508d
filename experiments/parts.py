"""The parts of a run, made from its configuration: problem, evaluator, generator, operators, seeds."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evo_l2.contracts import Evaluator, Generator, ModelCall, Mutator
from evo_l2.errors import ConfigurationError, EvoL2Error
from evo_l2.kernel import SUFFIXES, Kernel
from evo_l2.problem import Problem
from evo_l2.problems.hgemm import Hgemm
from experiments.config import RunConfig
from experiments.printable import printable
from experiments.sections import CudaConfig, GeneratorConfig, LimitsConfig, TimingConfig

if TYPE_CHECKING:
    from evo_l2.targets.cuda.card.rig import Rig
    from evo_l2.targets.cuda.cards import Card
    from evo_l2.targets.cuda.toolchain.toolkit import Toolkit

__all__ = [
    "build_caches",
    "cache_dir",
    "check_target",
    "cuda_card",
    "load_seed_kernels",
    "make_evaluator",
    "make_generator",
    "make_operators",
    "make_problem",
    "note_passed_over",
    "open_rig",
    "warm_up",
]


def cache_dir() -> Path:
    """Where builds and converted models are kept: `$XDG_CACHE_HOME/evo-l2`, or `~/.cache/evo-l2`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "evo-l2"


def build_caches() -> tuple[Path, ...]:
    """Where both targets keep what they built, whether or not it is there."""
    return cache_dir() / "cpu" / "kernels", cache_dir() / "cuda" / "cuda-kernels"


def make_problem(config: RunConfig) -> Problem:
    """The configured problem."""
    return Hgemm(config.problem.cases, config.problem.accumulate, config.problem.layouts)


def make_evaluator(config: RunConfig, problem: Problem) -> Evaluator:
    """The configured target's evaluator.

    Raises:
        ToolchainError: Something that the target needs is missing.
    """
    if config.target == "cuda":
        return _cuda_evaluator(config, problem)
    from evo_l2.targets.cpu.evaluator import CpuEvaluator, CpuSettings
    from evo_l2.targets.cpu.pairs import TimingSettings

    timing = TimingSettings(config.timing.blocks, config.timing.min_batch_ms)
    settings = CpuSettings(timing, config.timing.final_blocks, config.limits.call_s, config.limits.build_s)
    return CpuEvaluator(problem, cache_dir() / "cpu", settings)


def _cuda_evaluator(config: RunConfig, problem: Problem) -> Evaluator:
    """A card is asked for, and refused, before anything else."""
    if config.cuda.mode == "run":
        from evo_l2.targets.cuda.evaluator import CudaEvaluator

        with contextlib.ExitStack() as opened:
            on_cards = CudaEvaluator(problem, *(opened.enter_context(rig) for rig in _rigs(config)))
            opened.pop_all()
        return on_cards
    from evo_l2.targets.cuda.build_only import BuildOnlyEvaluator

    builder = None if config.cuda.builder == "auto" else config.cuda.builder
    evaluator = BuildOnlyEvaluator(
        problem, cache_dir() / "cuda", cuda_card(config), builder=builder, build_s=config.limits.build_s
    )
    note_passed_over(evaluator.compiler.toolkit)
    return evaluator


def _rigs(config: RunConfig) -> Iterator[Rig]:
    """The cards that a run measures on, one after another, each ready."""
    from evo_l2.targets.cuda.devices import cards_alike, choose_card, present_devices

    devices = present_devices()
    card, first = choose_card(config.cuda.card, devices, config.cuda.device)
    for number in cards_alike(card, devices, first, config.workers.cards):
        yield open_rig(config.cuda.model_copy(update={"device": number}), config.timing, config.limits)


def note_passed_over(toolkit: Toolkit) -> None:
    """Says on standard error which toolkits were asked for, or come first, and are not the one that builds."""
    for note in toolkit.notes:
        if "passed over" in note:
            print(f"evo-l2: {printable(note)}; CUDA {toolkit.version} of {toolkit.source} builds", file=sys.stderr)


def cuda_card(config: RunConfig) -> Card:
    """The card that a run's kernels are built for. Where nothing is to be run it need not be there; `auto` is the A100 then.

    Raises:
        ConfigurationError: No card has that name.
        DeviceError: The run needs a card that is not in this machine.
    """
    from evo_l2.targets.cuda.cards import find_card
    from evo_l2.targets.cuda.devices import choose_card, present_devices

    wanted = config.cuda.card
    if config.cuda.mode == "run":
        return choose_card(wanted, present_devices(), config.cuda.device)[0]
    if wanted != "auto":
        return find_card(wanted)
    present = [device.card for device in present_devices() if device.card is not None]
    return present[0] if present else find_card("A100")


def open_rig(settings: CudaConfig, timing: TimingConfig, limits: LimitsConfig) -> Rig:
    """A card, ready to run kernels.

    Raises:
        ConfigurationError: No card has the name, or the toolkit does not build for it.
        DeviceError: The card is not in this machine, in use, or does not answer.
        ToolchainError: Something that it needs is missing.
    """
    from evo_l2.targets.cuda.card.pairs import CardTimingSettings
    from evo_l2.targets.cuda.card.rig import Rig
    from evo_l2.targets.cuda.devices import choose_card, present_devices, refuse_busy

    # CUDA counts the fastest card first unless told to count as nvidia-smi does, whose numbers ours are.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    card, number = choose_card(settings.card, present_devices(), settings.device)
    if not settings.allow_busy:
        refuse_busy(number)
    return Rig(
        cache_dir() / "cuda",
        card,
        number,
        builder=None if settings.builder == "auto" else settings.builder,
        build_s=limits.build_s,
        timing=CardTimingSettings(timing.blocks, timing.final_blocks, settings.sample_us),
        call_s=limits.call_s,
    )


def make_generator(settings: GeneratorConfig, made: Iterable[ModelCall] = ()) -> Generator | None:
    """The configured generator; None when there is none.

    Args:
        settings: What generator.
        made: The run's calls so far; recorded replies that it was given are not given again. Read only for these.

    Raises:
        ModelError: The model or its server cannot be used.
        ConfigurationError: The file of replies cannot be used.
    """
    if settings.kind == "none":
        return None
    if settings.kind == "recorded":
        from mutators.generators.recorded import RecordedGenerator

        assert settings.path is not None
        recorded = RecordedGenerator.from_file(Path(settings.path))
        recorded.skip(made)
        return recorded
    from mutators import generators

    if settings.kind == "server":
        server = generators.make_generator(
            "server",
            base_url=settings.base_url,
            model=settings.model,
            api_key_env=settings.api_key_env,
            retries=settings.retries,
            timeout_s=settings.timeout_s,
            concurrency=settings.concurrency,
            price_in_usd_per_million=settings.price_in_usd_per_million,
            price_out_usd_per_million=settings.price_out_usd_per_million,
            temperature=settings.temperature,
            top_p=settings.top_p,
            token_field=settings.token_field or "max_tokens",
        )
        server.check()  # type: ignore[attr-defined]
        return server
    return generators.make_generator(
        "local",
        model="embedded" if settings.kind == "embedded" else settings.model,
        adapter=Path(settings.adapter) if settings.adapter is not None else None,
        max_batch=settings.max_batch,
        threads=settings.threads,
        cache_dir=cache_dir(),
        temperature=settings.temperature,
        top_p=settings.top_p,
        stop=settings.stop,
        dtype=settings.dtype or "auto",
        device=settings.device or "auto",
    )


def warm_up(generator: Generator) -> str | None:
    """Waits until a model on this machine is loaded, which no clock of a run should count; for others there is nothing to do.

    Returns:
        One line for the user about how it was loaded, if there is something to say.

    Raises:
        ModelError: The model cannot be used.
    """
    from mutators.generators import LocalGenerator

    return generator.warm() if isinstance(generator, LocalGenerator) else None


def make_operators(config: RunConfig, generator: Generator | None) -> dict[str, tuple[Mutator, float]]:
    """The configured operators with their weights."""
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


def load_seed_kernels(config: RunConfig, problem: Problem) -> tuple[Kernel, ...]:
    """The kernels that open the run.

    Raises:
        ConfigurationError: A file cannot be read or is no kernel, or there is none.
    """
    names = ("builtin",) if config.seeds == "builtin" else config.seeds
    fit: dict[str, str] = {}
    if config.target == "cuda":
        fit = {"architecture": cuda_card(config).arch, "accumulate": config.problem.accumulate}
    unique = tuple({kernel.digest: kernel for kernel in _seed_kernels(names, config.target, problem.layouts, fit)}.values())
    if not unique:
        expected = f"at least one kernel file of layout {' or '.join(problem.layouts)}"
        raise ConfigurationError("the run has no seeds", expected=expected, found=f"none in {', '.join(names)}")
    return unique


def _seed_kernels(names: Sequence[str], target: str, layouts: Sequence[str], fit: Mapping[str, str]) -> Iterator[Kernel]:
    """The kernels of every file, folder, or `builtin`; those of a folder whose layout is not asked for are passed over.

    `fit` says what the built-in ones have to fit; see `experiments.seeds.seed_names`.
    """
    from experiments.seeds import load_seeds

    suffix = SUFFIXES[target]
    for name in names:
        path = Path(name)
        if name == "builtin":
            for layout in layouts:
                yield from load_seeds(target, layout, **fit)
        elif path.is_dir():
            kernels = (_read_kernel(file, target) for file in sorted(path.glob(f"*{suffix}")))
            yield from (kernel for kernel in kernels if kernel.launch.layout in layouts)
        else:
            yield _read_kernel(path, target)


def check_target(path: Path, kernel: Kernel, target: str) -> None:
    """Tells a kernel of the other target by its launches. A file .cu without a grid is taken for one that lacks it.

    Raises:
        ConfigurationError: It is for the other one.
    """
    has_grid = any(call.grid for call in kernel.launch.calls)
    if target == "cpu" and has_grid:
        hint = f"evo-l2 verify {path} --target cuda"
        found = "a launch with a grid, which is a card's"
        raise ConfigurationError(f"{path} is no kernel for the CPU", expected="a plain call", found=found, hint=hint)
    if target == "cuda" and path.suffix == ".c" and not has_grid:
        hint = f"evo-l2 verify {path}, which runs it on the CPU"
        expected, found = "launches with a grid and a block, in a file .cu", "a plain call, which is the CPU's"
        raise ConfigurationError(f"{path} is no kernel for a card", expected=expected, found=found, hint=hint)


def _read_kernel(path: Path, target: str) -> Kernel:
    try:
        kernel = Kernel.from_file(path, target)
        _ = kernel.launch, kernel.tunables
    except OSError as error:
        found = (error.strerror or str(error)).lower()
        raise ConfigurationError(f"seed {path.absolute()} cannot be read", expected="a kernel file", found=found) from error
    except EvoL2Error as error:
        found, hint = str(error).partition("; try: ")[0], f"evo-l2 verify {path}"
        hint = f"{error.hint}, then {hint}" if error.hint is not None else hint
        raise ConfigurationError(f"seed {path} is no kernel", found=found, hint=hint) from error
    check_target(path, kernel, target)
    return kernel
