"""What the parts ask of each other: evaluator, mutator, generator, archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np

from evo_l2.evaluation import BuildReport, Environment, Estimate, Evaluation, TimingSession, Verdict, rank
from evo_l2.kernel import Kernel
from evo_l2.measures import Cell
from evo_l2.problem import Problem

__all__ = [
    "AddResult",
    "AddStatus",
    "Archive",
    "Candidate",
    "Elite",
    "Evaluator",
    "Generator",
    "Message",
    "ModelCall",
    "Mutator",
    "Outcome",
    "Prepared",
    "Proposal",
    "Reply",
    "Request",
]


# --- evaluation -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel after screen, build and inspection; what is left is to run it."""

    kernel: Kernel
    identity: str | None
    """Digest of normalised machine code and evaluated launch: two kernels with one identity are one kernel. None when
    there is no machine code."""
    verdict: Verdict | None
    """Set when the kernel was stopped already."""
    build: BuildReport | None = None
    measures: tuple[float | None, ...] | None = None
    artefact: Path | None = None
    """What was built; stays valid while the evaluator is open."""

    def __post_init__(self) -> None:
        if (self.verdict is None) != (self.artefact is not None):
            raise ValueError("a prepared kernel has either a verdict already or an artefact to run")


class Evaluator(Protocol):
    """Builds, proves and times kernels of one problem on one target. A context manager: closing leaves no process behind."""

    @property
    def environment(self) -> Environment:
        """Where its numbers are measured."""
        ...

    def prepare(self, kernel: Kernel) -> Prepared:
        """Screens, builds and inspects one kernel. May be called from several threads at once. A kernel's fault is a verdict.

        Raises:
            ToolchainError: The compiler or the machine is at fault.
        """
        ...

    def measure(self, prepared: Prepared, seed: np.random.SeedSequence, *, purpose: str = "search") -> Evaluation:
        """Judges and times one prepared kernel; from one thread at a time, or one for each of several cards.

        Nothing else runs on the target meanwhile.

        The seed is a public function of the run's configuration: an evaluator that runs kernels mixes a secret of its own
        into it, so that nobody can know the inputs beforehand. A replay takes recorded measurements, and is not affected.

        Raises:
            DeviceError: The device or runner is at fault.
        """
        ...

    def close(self) -> None:
        """Ends every process and removes every file it made; may be called twice."""
        ...


# --- variation --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What a generator answered to one prompt."""

    text: str
    n_prompt_tokens: int
    n_reply_tokens: int
    latency_s: float
    cost_usd: float = 0.0
    n_retries: int = 0
    error: str | None = None
    """One line when there is no answer: the outage's reason; the text is empty then, and the candidate is not to blame."""


class Generator(Protocol):
    """Text from text. A context manager."""

    @property
    def name(self) -> str:
        """Names model and adapter, for instance `smollm2-135m` or `openai:qwen3-coder`; stored with every call."""
        ...

    def generate(self, prompts: Sequence[Sequence[Message]], seeds: Sequence[int], *, max_tokens: int) -> tuple[Reply, ...]:
        """One reply for each prompt, in order; batched or concurrent as the generator can. An outage is a reply with `error`.

        Raises:
            ModelError: The model cannot be used at all (does not load, key refused, no such model).
        """
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of a text by the generator's own tokenizer, or an estimate from above where it has none."""
        ...

    def pause(self) -> None:
        """Stops all work on this machine until `resume`, at once; nothing for a remote server."""
        ...

    def resume(self) -> None:
        """Ends `pause`."""
        ...

    def close(self) -> None:
        """Ends every process it started; may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a generator, as it is stored."""

    generator: str
    prompt: tuple[Message, ...]
    reply: Reply
    seed: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Elite:
    """The kernel that holds a cell, with all that is known of it."""

    kernel: Kernel
    identity: str
    cell: Cell
    verdict: Verdict
    estimate: Estimate | None
    """None for a kernel that was built and never run."""
    sessions: tuple[TimingSession, ...] = ()
    """Every timing session of this kernel, oldest first."""

    @property
    def rank(self) -> tuple[float, str]:
        """Smaller is better; see `evo_l2.evaluation.rank`."""
        return rank(self.estimate, self.kernel.digest)


@dataclass(frozen=True, slots=True)
class Request:
    """One offspring asked for."""

    index: int
    """The candidate's number in its run, from 0."""
    operator: str
    parents: tuple[Elite, ...]
    feedback: tuple[str, ...]
    """What went wrong with the last offspring of these parents; said once, then forgotten."""
    seed: np.random.SeedSequence
    """`SeedSequence(run seed, spawn_key=(index, 0))`; the only source of chance for this offspring."""


class Outcome(StrEnum):
    """What became of one candidate index."""

    EVALUATED = "evaluated"
    DUPLICATE = "duplicate"
    """Its source, or its machine code and launch, was known; nothing was built or judged again."""
    NO_KERNEL = "no_kernel"
    """The reply held no kernel."""
    EDIT_FAILED = "edit_failed"
    """The reply's edits did not apply."""
    GENERATOR_FAILED = "generator_failed"
    """An outage: no reply came. Never held against parent or operator."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a mutator made of a request: a kernel, or the reason why there is none."""

    request: Request
    kernel: Kernel | None
    failure: Outcome | None = None
    message: str | None = None
    """One or two sentences about the failure, fit to be shown to the model."""
    calls: tuple[ModelCall, ...] = ()

    def __post_init__(self) -> None:
        if (self.kernel is None) != (self.failure is not None) or (self.failure is None) != (self.message is None):
            raise ValueError("a proposal has either a kernel, or a failure with its message")


class Mutator(Protocol):
    """One variation operator."""

    @property
    def name(self) -> str:
        """For instance `parametric`, `edit`, `rewrite`; credited with what it gains."""
        ...

    @property
    def n_parents(self) -> int:
        """One for mutation, two for crossover."""
        ...

    @property
    def uses_model(self) -> bool:
        """Whether it costs tokens."""
        ...

    @property
    def most_tokens(self) -> int:
        """An upper bound on prompt and reply tokens of one request, for reservations; 0 without a model."""
        ...

    def takes(self, kernel: Kernel) -> bool:
        """Whether it can make offspring of this kernel; the search gives it no others while there are such."""
        ...

    def propose(self, problem: Problem, requests: Sequence[Request]) -> tuple[Proposal, ...]:
        """One proposal for each request, in order. Depends on nothing but its arguments and the generator's replies."""
        ...


# --- archive ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """Everything one candidate index of a run brings to the archive; stored in one transaction."""

    index: int
    operator: str
    parents: tuple[str, ...]
    """Digests of the parents' sources; empty for a seed."""
    asked_after: int
    """How many candidates of the run had been told when this one was asked for."""
    outcome: Outcome
    message: str | None = None
    kernel: Kernel | None = None
    identity: str | None = None
    evaluation: Evaluation | None = None
    """Set exactly when the outcome is `EVALUATED`."""
    duplicate_of: str | None = None
    """Digest of the known kernel's source, when the outcome is `DUPLICATE`."""
    calls: tuple[ModelCall, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by stage: `propose`, `build`, `measure`."""

    def __post_init__(self) -> None:
        if (self.evaluation is not None) != (self.outcome is Outcome.EVALUATED):
            raise ValueError("a candidate has an evaluation exactly when it was evaluated")
        if (self.duplicate_of is not None) != (self.outcome is Outcome.DUPLICATE):
            raise ValueError("a duplicate names the kernel that it repeats, and nothing else does")


@dataclass(frozen=True, slots=True)
class Remeasurement:
    """A later measurement of a kernel that had passed."""

    after: int
    """How many candidates of the run had been told."""
    digest: str
    """The kernel's source."""
    evaluation: Evaluation
    """A session; or a failure, which withdrew the kernel."""


class AddStatus(StrEnum):
    """What an addition did to the grid."""

    NEW = "new"
    """Its cell was empty."""
    IMPROVED = "improved"
    """It took its cell from another kernel."""
    NOT_ADDED = "not_added"


@dataclass(frozen=True, slots=True)
class AddResult:
    """Status and value of one addition."""

    status: AddStatus
    value: float | None
    """Lower bound of the log speed-up, less that of the cell's former elite where there was one; None without objective."""
    cell: Cell | None = None


class Archive(Protocol):
    """The kernels of one problem in one environment, seen by one run; everything it answers follows from what was added."""

    def add(self, candidate: Candidate) -> AddResult:
        """Files one candidate, durably, in one transaction. Candidates of a run come in order of index, without gaps.

        Raises:
            StorageError: The store cannot be written; nothing of the candidate is stored then.
            ValueError: The index is not the next one.
        """
        ...

    def add_session(self, digest: str, session: TimingSession) -> None:
        """Appends a timing session to a kernel that passed; its cell's elite may change.

        Raises:
            KeyError: No such kernel passed here.
        """
        ...

    def withdraw(self, digest: str, verdict: Verdict) -> None:
        """Files a failure of a kernel that had passed: it stays known, but is no elite, now or later.

        Raises:
            KeyError: No such kernel passed here.
            ValueError: The verdict is that it passed.
        """
        ...

    def untimed(self) -> tuple[tuple[Kernel, int], ...]:
        """Kernels that passed but have no conclusive timing, in order of digest, each with its number of sessions."""
        ...

    def find(self, *, digest: str | None = None, identity: str | None = None) -> str | None:
        """Digest of the source of a kernel with a verdict here that has this source digest or identity; None if unknown."""
        ...

    def elites(self) -> tuple[Elite, ...]:
        """One elite for each filled cell, in order of cell."""
        ...

    def best(self) -> Elite | None:
        """The elite with the highest lower bound; None while there is none."""
        ...

    def get(self, digest: str) -> Elite:
        """A kernel that passed, whether or not it holds its cell.

        Raises:
            KeyError: No such kernel passed here.
        """
        ...

    @property
    def n_candidates(self) -> int:
        """How many candidates of this run were added: the next index."""
        ...
