"""What a run is made of: presets and YAML files, checked, with every key named and every mistake one line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from evo_l2.errors import ConfigurationError
from experiments.sections import (
    BudgetConfig,
    CudaConfig,
    GeneratorConfig,
    LimitsConfig,
    ProblemConfig,
    SearchConfig,
    Section,
    TimingConfig,
    WorkersConfig,
    shown,
)

__all__ = ["RunConfig", "load_config", "restore_config"]


_OF_RUNS = (
    "cuda.device", "cuda.sample_us", "cuda.allow_busy", "timing.blocks", "timing.finalists", "timing.final_blocks",
    "limits.call_s",
)  # fmt: skip
"""Keys that only kernels which are run feel."""


class RunConfig(Section):
    """Everything that defines a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Name of the run: letters, digits, dot, dash and underscore."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Source of all chance."""
    target: Literal["cpu", "cuda"] = "cpu"
    """Where kernels run."""
    problem: ProblemConfig = ProblemConfig()
    """What is computed."""
    seeds: Literal["builtin"] | tuple[str, ...] = "builtin"
    """`builtin`, or a list of kernel files, folders of them and `builtin`, that open the run. A path in a YAML file is seen
    from that file's folder, one of --set from the working directory."""
    search: SearchConfig = SearchConfig()
    """How the search goes on."""
    generator: GeneratorConfig = GeneratorConfig()
    """The language model."""
    budget: BudgetConfig = BudgetConfig()
    """What may be spent."""
    timing: TimingConfig = TimingConfig()
    """How kernels are timed."""
    limits: LimitsConfig = LimitsConfig()
    """What one candidate may use."""
    cuda: CudaConfig = CudaConfig()
    """Only for target cuda."""
    workers: WorkersConfig = WorkersConfig()
    """What runs side by side."""
    archive: str | None = None
    """Database of the run: a path or a URL; runs/NAME.db when left out."""

    @field_validator("seeds", mode="before")
    @classmethod
    def _check_seeds(cls, value: object) -> str | tuple[str, ...]:
        if value == "builtin":
            return "builtin"
        if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
            expected = "builtin, or a list of files and folders (and builtin)"
            raise ConfigurationError("seeds cannot be used", expected=expected, found=shown(value))
        return tuple(value)

    @model_validator(mode="after")
    def _check_whole(self) -> RunConfig:
        if self.target == "cpu" and self.cuda != CudaConfig():
            hint = "--set target=cuda"
            raise ConfigurationError("cuda is set for a run on the CPU", expected="target: cuda", found="cpu", hint=hint)
        weights = self.search.operators.chosen
        if not weights:
            expected = "at least one operator with a weight above 0"
            raise ConfigurationError("search.operators leaves nothing to do", expected=expected, found="all 0")
        of_model = self.model_operators
        if of_model and self.generator.kind == "none":
            raise ConfigurationError(
                f"{' and '.join(of_model)} {'need' if len(of_model) > 1 else 'needs'} a model",
                expected="a generator.kind, or no such operators",
                found="generator.kind none",
                hint="--set generator.kind=embedded, or --set 'search.operators={parametric: 1}'",
            )
        if self.budget == BudgetConfig():
            hint = "--set budget.wall_s=600"
            raise ConfigurationError("the run would never end", expected="a limit in budget", found="none", hint=hint)
        if self.workers.cards > max(1, self.cards):
            found = f"workers.cards={self.workers.cards}"
            expected = "kernels that run on cards, for more than one to measure them"
            raise ConfigurationError(
                "there is nothing to share", expected=expected, found=found, hint="--set workers.cards=1"
            )
        if not of_model and self.budget.evaluations is None and self.budget.wall_s is None:
            expected = "budget.evaluations or budget.wall_s, as no operator costs tokens"
            hint = "--set budget.wall_s=600"
            raise ConfigurationError("the run would never end", expected=expected, found="neither", hint=hint)
        return self

    @property
    def builders(self) -> int:
        """Builds at once."""
        if self.workers.build is not None:
            return self.workers.build
        return 2 if self.target == "cpu" else min(16, len(os.sched_getaffinity(0)))

    @property
    def cards(self) -> int:
        """Cards that measure side by side; 0 where nothing is measured on a card."""
        return self.workers.cards if self.target == "cuda" and self.cuda.mode == "run" else 0

    @property
    def model_operators(self) -> tuple[str, ...]:
        """The chosen operators that ask a model; without any, none has to be loaded."""
        return tuple(name for name in self.search.operators.chosen if name != "parametric")

    @property
    def archive_path(self) -> str:
        """Where the run is stored when the command line does not say."""
        return self.archive if self.archive is not None else f"runs/{self.name}.db"

    def dump(self) -> dict[str, object]:
        """Plain data (JSON) from which `restore_config` makes an equal configuration."""
        return self.model_dump(mode="json")


def load_config(preset_or_file: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a preset or YAML file, with `key=value` overrides on top.

    Args:
        preset_or_file: Name of a preset, or path of a YAML file (it has a slash, or ends in .yaml or .yml); relative paths
            under `seeds` are seen from its folder.
        overrides: For instance `search.batch=8`; the value is read as YAML and replaces what stood there.

    Raises:
        ConfigurationError: A preset, file, key or value cannot be used.
    """
    from experiments.documents import apply_override, read_document, validate

    document = read_document(preset_or_file)
    _resolve_seeds(document, Path(preset_or_file).parent)
    for override in overrides:
        apply_override(document, override)
    config = validate(RunConfig, document)
    _refuse_idle(config, [override.partition("=")[0].strip() for override in overrides])
    return config


def _refuse_idle(config: RunConfig, asked: Sequence[str]) -> None:
    """Refuses what was asked for on the command line and has no effect; a file may keep what another mode of it needs."""
    if config.target != "cuda":
        return
    idle = {"timing.min_batch_ms": "target: cpu (on a card it is cuda.sample_us)"}
    if config.cuda.mode == "build-only":
        idle |= dict.fromkeys(_OF_RUNS, "cuda.mode: run, since otherwise no kernel is run or timed")
    for key in (key for key in asked if key in idle):
        section, _, name = key.partition(".")
        settings = getattr(config, section)
        if getattr(settings, name) != type(settings).model_fields[name].default:
            found = f"target: cuda, cuda.mode: {config.cuda.mode}"
            raise ConfigurationError(f"{key} is of no use here", expected=idle[key], found=found, hint=f"no --set {key}")


def _resolve_seeds(document: dict[str, object], folder: Path) -> None:
    """Takes the relative paths under `seeds` from the folder; a preset has none."""
    seeds = document.get("seeds")
    if isinstance(seeds, list):
        document["seeds"] = [str(folder / item) if isinstance(item, str) and item != "builtin" else item for item in seeds]


def restore_config(data: Mapping[str, object]) -> RunConfig:
    """The configuration that was dumped.

    Raises:
        ConfigurationError: The data was written by another version and cannot be used.
    """
    from experiments.documents import validate

    return validate(RunConfig, data)
