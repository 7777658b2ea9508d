"""The sections of a configuration, each checked by itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from evo_l2.errors import ConfigurationError
from evo_l2.problems.shapes import SHAPE_SETS, shape_set

__all__ = [
    "BudgetConfig",
    "CudaConfig",
    "GeneratorConfig",
    "LimitsConfig",
    "OperatorWeights",
    "ProblemConfig",
    "SearchConfig",
    "Section",
    "TimingConfig",
    "WorkersConfig",
    "shown",
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


class Section(BaseModel):
    """Keys are fixed, values are not converted, and nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )


class ProblemConfig(Section):
    """What is computed."""

    name: Literal["hgemm"] = "hgemm"
    """The problem; `hgemm` is half-precision matrix multiplication."""
    shapes: str | tuple[tuple[int, ...], ...] = ((512, 512, 512),)
    """A list of [M, N, K] or [M, N, K, BATCH], or a named set: small, square-cpu, mixed-cpu, or ten (cubes from 256 to 8192,
    and four with a long or a short side; see docs/EVALUATION.md). The objective is the geometric mean over them."""
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
            raise ConfigurationError("problem.shapes cannot be used", expected=expected, found=shown(value))
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


class OperatorWeights(Section):
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


class SearchConfig(Section):
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


class GeneratorConfig(Section):
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
            raise ConfigurationError("generator.stop cannot be used", expected=expected, found=shown(value))
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


class BudgetConfig(Section):
    """Upper limits of the whole run, resumed parts included; a key left out sets none."""

    evaluations: Count | None = None
    """Candidates, seeds included."""
    wall_s: Seconds | None = None
    """Seconds of wall time, the final measurements not counted."""
    tokens: Annotated[int, Field(ge=0)] | None = None
    """Prompt and reply tokens together."""
    usd: Annotated[float, Field(ge=0)] | None = None
    """US dollars."""


class TimingConfig(Section):
    """How kernels are timed in pairs with the baseline."""

    blocks: Annotated[int, Field(ge=8, le=1000)] = 12
    """Blocks of paired samples (kernel and baseline in turns, not blocks of threads) in the first look at a kernel."""
    min_batch_ms: Annotated[float, Field(gt=0, le=1000)] = 4.0
    """Shortest time of one sample on the CPU, in milliseconds; fast kernels are called several times in it."""
    finalists: Annotated[int, Field(ge=0, le=64)] = 3
    """Best kernels measured again in a fresh process at the end."""
    final_blocks: Annotated[int, Field(ge=8, le=10000)] = 40
    """Blocks of paired samples of a finalist."""


class LimitsConfig(Section):
    """What one candidate may use before it is stopped."""

    call_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Seconds of one call of a kernel."""
    build_s: Annotated[float, Field(gt=0, le=600)] = 20.0
    """Seconds of processor time of one build."""


class WorkersConfig(Section):
    """How much runs side by side; on the CPU target, while nothing is timed."""

    build: Annotated[int, Field(ge=1, le=256)] | None = None
    """Builds at once; 2 where kernels run on the processor, and one for each core (16 at most) for CUDA, when left out."""
    cards: Annotated[int, Field(ge=1, le=64)] = 1
    """Cards of one kind that measure kernels side by side, from `cuda.device` on."""


class CudaConfig(Section):
    """What CUDA kernels are built for, and whether they run."""

    card: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")] = "auto"
    """Name of the card: A100, RTX 3090, H100, H200 or B200; auto takes the one in this machine."""
    mode: Literal["run", "build-only"] = "run"
    """run, or build-only: kernels are built, read and gated, and nothing is run or timed."""
    builder: Literal["auto", "nvcc", "nvrtc"] = "auto"
    """Compiler of record; auto takes nvcc where it is installed."""
    device: Annotated[int, Field(ge=0, le=63)] | None = None
    """Number of the card in this machine, as nvidia-smi counts; the first that fits when left out."""
    sample_us: Annotated[float, Field(ge=50, le=100000)] = 300.0
    """Shortest time of one sample on a card, in microseconds; a sample is one replay of a graph of calls."""
    allow_busy: bool = False
    """Whether to measure on a card that other processes use, whose numbers mean little."""


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, list | tuple) or len(shape) not in (3, 4):
        return False
    return all(type(size) is int and size >= 1 for size in shape)


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
