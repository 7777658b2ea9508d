"""What a run is made of: presets and YAML files, checked, with every key named and every mistake one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from evo_l2.errors import ConfigurationError
from evo_l2.problems.shapes import SHAPE_SETS, shape_set

__all__ = [
    "BudgetConfig",
    "GeneratorConfig",
    "LimitsConfig",
    "OperatorWeights",
    "ProblemConfig",
    "RunConfig",
    "SearchConfig",
    "TimingConfig",
    "WorkersConfig",
    "load_config",
    "restore_config",
]

_MOST_CASES = 64
"""One objective over more shapes than this says nothing about any of them."""

_KINDS_OF_KEYS = {
    "model": ("server", "local"),
    "path": ("recorded",),
    "adapter": ("local", "embedded"),
    "base_url": ("server",),
    "api_key_env": ("server",),
    "token_field": ("server",),
    "stop": ("local", "embedded"),
    "dtype": ("local", "embedded"),
    "device": ("local", "embedded"),
}
"""Keys of a generator that are left out unless its kind is one of these."""

Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]


class _Section(BaseModel):
    """Keys are fixed, values are not converted, and nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )


class ProblemConfig(_Section):
    """What is computed."""

    name: Literal["hgemm"] = "hgemm"
    """The problem; `hgemm` is half-precision matrix multiplication."""
    shapes: str | tuple[tuple[int, ...], ...] = ((512, 512, 512),)
    """A list of [M, N, K] or [M, N, K, BATCH], or a named set (small, square-cpu, mixed-cpu); the objective is the geometric
    mean over them."""
    accumulate: Literal["fp32", "fp16"] = "fp32"
    """Precision of the sums that a kernel has to keep."""
    layouts: tuple[Literal["nn", "nt"], ...] = ("nn",)
    """Layouts a kernel may declare: `nn` has B as K x N, `nt` as N x K, row-major."""

    @field_validator("shapes", mode="before")
    @classmethod
    def _check_shapes(cls, value: object) -> str | tuple[tuple[int, ...], ...]:
        if isinstance(value, str):
            shape_set(value)
            return value
        whole = isinstance(value, list | tuple) and bool(value)
        shapes = value if isinstance(value, list | tuple) else ()
        if not whole or not all(_is_shape(shape) for shape in shapes):
            expected = f"a list of [M, N, K] or [M, N, K, BATCH], or one of {', '.join(SHAPE_SETS)}"
            raise ConfigurationError("problem.shapes cannot be used", expected=expected, found=_shown(value))
        return tuple(tuple(shape) for shape in shapes)

    @model_validator(mode="after")
    def _check_cases(self) -> ProblemConfig:
        if len(self.cases) > _MOST_CASES:
            expected = f"at most {_MOST_CASES} shapes in one objective"
            raise ConfigurationError("problem.shapes holds too many", expected=expected, found=str(len(self.cases)))
        return self

    @property
    def cases(self) -> tuple[tuple[int, int, int, int], ...]:
        """(M, N, K, BATCH) of every shape."""
        if isinstance(self.shapes, str):
            return shape_set(self.shapes)
        return tuple((s[0], s[1], s[2], s[3] if len(s) == 4 else 1) for s in self.shapes)


class OperatorWeights(_Section):
    """Shares of the offspring by variation operator; 0 leaves an operator out."""

    parametric: Weight = 0.0
    """Moves over the tunables that a kernel declares; costs no tokens."""
    edit: Weight = 0.0
    """The model replaces parts of one kernel."""
    rewrite: Weight = 0.0
    """The model writes one kernel anew."""

    @property
    def chosen(self) -> dict[str, float]:
        """The operators with a weight, in order of name."""
        return {name: weight for name, weight in sorted(self.model_dump().items()) if weight > 0}


class SearchConfig(_Section):
    """How parents, operators and offspring follow each other."""

    mode: Literal["steady", "generational"] = "steady"
    """`steady` asks for a batch while the one before it is measured; `generational` waits until it was told."""
    batch: Annotated[int, Field(ge=1, le=1024)] = 16
    """Candidates asked for at once."""
    operators: OperatorWeights = OperatorWeights(parametric=1.0)
    """Shares of the offspring."""
    tournament: Count = 3
    """Contestants in the tournament that picks a parent; 1 picks uniformly."""
    exploration: Weight = 0.2
    """Bonus for parents with few offspring (UCB1), in units of log speed-up."""

    @property
    def lookahead(self) -> int:
        """Groups of candidates asked for before the one at hand was told."""
        return 1 if self.mode == "steady" else 0


class GeneratorConfig(_Section):
    """The language model behind the operators that use one."""

    kind: Literal["none", "embedded", "local", "server", "recorded"] = "none"
    """`embedded`: the small model from PyPI. `local`: a model on disk. `server`: OpenAI-compatible. `recorded`: a file."""
    model: str | None = None
    """`local`: folder of safetensors, or a .gguf file. `server`: the model's name there."""
    path: str | None = None
    """`recorded`: the file of replies."""
    adapter: str | None = None
    """`embedded`, `local`: folder of a LoRA adapter."""
    base_url: str | None = None
    """`server`: for instance http://localhost:8000/v1."""
    api_key_env: str | None = None
    """`server`: name of the environment variable that holds the key; the key itself is never stored."""
    token_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """`server`: the field of a request that limits its reply; max_tokens when left out."""
    max_tokens: Count = 768
    """Longest reply, in tokens."""
    prompt_tokens: Count = 1200
    """Longest prompt, in tokens; what ranks lowest is cut first."""
    temperature: Weight | None = 0.8
    """Sampling temperature; 0 is greedy. `server`: null sends none, for models that refuse it."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    """Nucleus of the sampling distribution. `server`: null sends none, for models that refuse it."""
    stop: tuple[str, ...] = ()
    """`embedded`, `local`: a reply ends with the first of these texts, which stays in it."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """`embedded`, `local`: precision of the weights; float32 on a processor and bfloat16 on a card when left out."""
    device: Literal["cpu", "cuda"] | None = None
    """`embedded`, `local`: where the model runs; a card where torch sees one when left out."""
    max_batch: Count = 8
    """`embedded`, `local`: prompts generated for at once."""
    threads: Count | None = None
    """`embedded`, `local`: threads of the model; all cores when left out."""
    concurrency: Count = 8
    """`server`: requests in flight."""
    retries: Annotated[int, Field(ge=0, le=20)] = 3
    """`server`: further tries after a failed request."""
    timeout_s: Seconds = 120.0
    """`server`: seconds before one request is given up."""
    price_in_usd_per_million: Weight = 0.0
    """`server`: US dollars for a million prompt tokens."""
    price_out_usd_per_million: Weight = 0.0
    """`server`: US dollars for a million reply tokens."""

    @field_validator("stop", mode="before")
    @classmethod
    def _check_stop(cls, value: object) -> tuple[str, ...]:
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text for text in value):
            expected = "a list of texts, none of them empty"
            raise ConfigurationError("generator.stop cannot be used", expected=expected, found=_shown(value))
        return tuple(value)

    @model_validator(mode="after")
    def _check_kind(self) -> GeneratorConfig:
        needed = {"local": ("model",), "server": ("model", "base_url"), "recorded": ("path",)}.get(self.kind, ())
        for key in needed:
            if getattr(self, key) is None:
                expected = f"a value, as generator.kind is {self.kind}"
                hint = f"--set generator.{key}=..."
                raise ConfigurationError(f"generator.{key} is missing", expected=expected, found="nothing", hint=hint)
        self._check_unused()
        name = self.api_key_env
        if name is not None and not (name.isidentifier() and name.isascii()):
            # What was found is not shown: a key pasted here by mistake must not end in a terminal's log.
            expected = "the name of an environment variable, as in OPENAI_API_KEY"
            raise ConfigurationError("generator.api_key_env cannot be used", expected=expected, found="something else")
        return self

    def _check_unused(self) -> None:
        """Refuses what another kind of generator would be told by a key of its own; `none` passes over all of them.

        Keys with a default of their own (`max_batch`, `retries`, prices) are passed over too: presets set them, and a kind
        may be changed on the command line.
        """
        for key, kinds in _KINDS_OF_KEYS.items():
            if getattr(self, key) in (None, ()) or self.kind in ("none", *kinds):
                continue
            expected = f"no such key, as generator.kind is {self.kind}"
            hint = f"--set generator.{key}=null, or --set generator.kind={kinds[-1]}"
            raise ConfigurationError(f"generator.{key} is of no use", expected=expected, found="a value", hint=hint)
        for key in ("temperature", "top_p"):
            if getattr(self, key) is None and self.kind in ("embedded", "local"):
                expected = f"a number, as generator.kind is {self.kind}"
                raise ConfigurationError(f"generator.{key} cannot be used", expected=expected, found="nothing")


class BudgetConfig(_Section):
    """Upper limits of the whole run, resumed parts included; a key left out sets none."""

    evaluations: Count | None = None
    """Candidates, seeds included."""
    wall_s: Seconds | None = None
    """Seconds of wall time, the final measurements not counted."""
    tokens: Annotated[int, Field(ge=0)] | None = None
    """Prompt and reply tokens together."""
    usd: Annotated[float, Field(ge=0)] | None = None
    """US dollars."""


class TimingConfig(_Section):
    """How kernels are timed in pairs with the baseline."""

    blocks: Annotated[int, Field(ge=8, le=1000)] = 12
    """Blocks of paired samples in the first look at a kernel."""
    min_batch_ms: Annotated[float, Field(gt=0, le=1000)] = 4.0
    """Shortest time of one sample, in milliseconds; fast kernels are called several times in it."""
    finalists: Annotated[int, Field(ge=0, le=64)] = 3
    """Best kernels measured again in a fresh process at the end."""
    final_blocks: Annotated[int, Field(ge=8, le=10000)] = 40
    """Blocks of paired samples of a finalist."""


class LimitsConfig(_Section):
    """What one candidate may use before it is stopped."""

    call_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Seconds of one call of a kernel."""
    build_s: Annotated[float, Field(gt=0, le=600)] = 20.0
    """Seconds of processor time of one build."""


class WorkersConfig(_Section):
    """How much runs side by side while nothing is timed."""

    build: Annotated[int, Field(ge=1, le=256)] = 2
    """Builds at once."""


class CudaConfig(_Section):
    """What CUDA kernels are built for, and whether they run."""

    card: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")] = "auto"
    """Name of the card, for instance A100; auto takes the one in this machine."""
    mode: Literal["run", "build-only"] = "run"
    """run, or build-only: kernels are built, read and gated, and nothing is run or timed."""
    builder: Literal["auto", "nvcc", "nvrtc"] = "auto"
    """Compiler of record; auto takes nvcc where it is installed."""


class RunConfig(_Section):
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
    """Database of the run; runs/NAME.db when left out."""

    @field_validator("seeds", mode="before")
    @classmethod
    def _check_seeds(cls, value: object) -> str | tuple[str, ...]:
        if value == "builtin":
            return "builtin"
        if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
            expected = "builtin, or a list of files and folders (and builtin)"
            raise ConfigurationError("seeds cannot be used", expected=expected, found=_shown(value))
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
        if not of_model and self.budget.evaluations is None and self.budget.wall_s is None:
            expected = "budget.evaluations or budget.wall_s, as no operator costs tokens"
            hint = "--set budget.wall_s=600"
            raise ConfigurationError("the run would never end", expected=expected, found="neither", hint=hint)
        return self

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
    return validate(RunConfig, document)


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


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, list | tuple) or len(shape) not in (3, 4):
        return False
    return all(type(size) is int and size >= 1 for size in shape)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
