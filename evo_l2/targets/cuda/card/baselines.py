"""The baseline's side of every pair on a card: the vendor's libraries, judged once, the fastest of them chosen once a case.

The fastest is chosen by samples that serve for nothing else; a kernel is then compared with it in pairs of their own. (The
smallest of several medians is smaller than what that library does the next time.)
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evo_l2.errors import ConfigurationError, DeviceError, EvoL2Error
from evo_l2.judge import Judge
from evo_l2.problem import Instance
from evo_l2.targets.cuda.card.pairs import CardTimingSettings, Side, baseline_sample, n_calls_of
from evo_l2.targets.cuda.card.requests import LibrarySpec
from evo_l2.targets.cuda.card.runner import Refused, Runner, RunnerFault
from evo_l2.targets.cuda.card.stage import CardStage
from evo_l2.targets.cuda.cards import Card
from evo_l2.targets.cuda.libraries.library import baseline_names

__all__ = ["WORKSPACE_BYTES", "Baselines", "Candidate", "Chosen"]

WORKSPACE_BYTES = 32 << 20
"""What each library may use, as NVIDIA recommends for cuBLAS on Hopper; the same for all."""
_CALL_S = 10.0
_ROUNDS = 5
_WITH = "/"
"""Stands between a library's name and the format of its sums, where that is not the problem's."""

_Case = tuple[tuple[int, ...], str, str]
"""Sizes, layout, definition of the problem."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One library at one case."""

    name: str
    description: str
    """Version, algorithm, workspace; or why it is not there."""
    median_us: float | None
    """Median device time of a call while the fastest was chosen; None where it does not run."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The fastest baseline at one case, ready to be timed."""

    name: str
    description: str
    side: Side
    candidates: tuple[Candidate, ...]


class Baselines:
    """All baselines at all cases; each case keeps the runner of its fastest one. Not for several threads at once.

    Args:
        device: The card's index.
        card: What it is.
        harness: Cubin of the harness's kernel.
        settings: Length of samples.
        names: Which baselines; all when left out.
    """

    def __init__(
        self, device: int, card: Card, harness: Path, settings: CardTimingSettings, names: tuple[str, ...] | None = None
    ) -> None:
        self._device = device
        self._card = card
        self._harness = harness
        self._settings = settings
        self._names = names if names is not None else baseline_names()
        self._chosen: dict[_Case, tuple[Chosen, Runner]] = {}
        self._spare: dict[str, Runner] = {}

    def at(self, instance: Instance) -> Chosen:
        """The fastest baseline at one case and layout, found when it is first asked for.

        Raises:
            DeviceError: No baseline runs, or one is wrong.
        """
        case = _case(instance)
        if case not in self._chosen:
            self._chosen[case] = self._choose(instance)
        return self._chosen[case][0]

    def release(self, instance: Instance) -> None:
        """Gives the memory of one case back; it is opened anew when it is asked for again."""
        found = self._chosen.pop(_case(instance), None)
        if found is not None:
            chosen, runner = found
            chosen.side.stage.close()
            self._put_back(chosen.name, runner)

    def close(self) -> None:
        """Ends every runner; may be called twice."""
        for chosen, runner in self._chosen.values():
            chosen.side.stage.close()
            runner.close()
        for runner in self._spare.values():
            runner.close()
        self._chosen.clear()
        self._spare.clear()

    def _runner(self, name: str) -> Runner:
        """One that has run this library before, so that it is loaded; else a new one."""
        runner = self._spare.pop(name, None)
        if runner is not None:
            if runner.is_alive:
                return runner
            runner.close()
        return Runner(self._device, self._harness, name.partition(_WITH)[0])

    def _put_back(self, name: str, runner: Runner) -> None:
        if name in self._spare or not runner.is_alive:
            runner.close()
        else:
            self._spare[name] = runner

    def _choose(self, instance: Instance) -> tuple[Chosen, Runner]:
        runners: dict[str, Runner] = {}
        opened: dict[str, tuple[Side, str]] = {}
        found: dict[str, Candidate] = {}
        try:
            for name in self._contenders(instance):
                runners[name] = self._runner(name)
            for name, runner in runners.items():
                try:
                    opened[name] = self._open(runner, name, instance)
                except (EvoL2Error, Refused, RunnerFault) as error:
                    found[name] = Candidate(name, str(error), None)
            if not opened:
                reasons = "; ".join(f"{candidate.name}: {candidate.description}" for candidate in found.values())
                raise DeviceError("no baseline runs", expected=" or ".join(self._names), found=reasons)
            medians = self._medians({name: side for name, (side, _) in opened.items()})
            found |= {name: Candidate(name, words, medians[name]) for name, (_, words) in opened.items()}
            best = min(medians, key=lambda name: medians[name])
            side, description = opened.pop(best)
            chosen = Chosen(best, description, side, tuple(found[name] for name in runners)), runners.pop(best)
        finally:
            for other, _ in opened.values():
                other.stage.close()
            for name, runner in runners.items():
                self._put_back(name, runner)
        return chosen

    def _contenders(self, instance: Instance) -> tuple[str, ...]:
        """Every library; where sums in half are admitted, cuBLAS and tuned cuBLASLt also with sums in single precision.

        Those are faster at many shapes: to beat the sums in half alone would say little.
        """
        if instance.problem.definition.get("accumulate") != "fp16":
            return self._names
        return (*self._names, *(f"{name}{_WITH}fp32" for name in ("cublas", "cublaslt-tuned") if name in self._names))

    def _open(self, runner: Runner, name: str, instance: Instance) -> tuple[Side, str]:
        """A library with the buffers of one sample: tuned on what will be timed, then judged by the gates."""
        n_calls = n_calls_of(_guess_us(instance, self._card), instance.n_bytes, self._card.l2_bytes, self._settings)
        judge = Judge(deterministic=False)
        stage = CardStage(runner, self._device, instance, {}, n_sets=n_calls, call_s=_CALL_S)
        try:
            judge.prepare_timed(stage, n_calls, stage.draws(np.random.SeedSequence()))
            stage.settle()
            description = runner.load_library(_spec(name, instance))
            failure = judge.judge(stage, np.random.SeedSequence())
            if failure is not None:
                found = f"{failure.gate}: {failure.message}"
                raise DeviceError(f"the baseline {name} is wrong", expected="a library that passes every gate", found=found)
        except BaseException:
            stage.close()
            raise
        return Side(stage, n_calls), description

    def _medians(self, sides: dict[str, Side]) -> dict[str, float]:
        """Median device time of a call in microseconds, measured in turns."""
        judge = Judge()
        times: dict[str, list[float]] = {name: [] for name in sides}
        draws = {name: side.stage.draws(np.random.SeedSequence()) for name, side in sides.items()}
        for _ in range(_ROUNDS):
            for name, side in sides.items():
                judge.prepare_timed(side.stage, side.n_calls, draws[name])
                times[name].append(baseline_sample(side, f"the baseline {name}").ns / 1000 / side.n_calls)
        return {name: statistics.median(values) for name, values in times.items()}


def _case(instance: Instance) -> _Case:
    return instance.sizes, instance.layout, str(instance.problem.definition)


def _spec(name: str, instance: Instance) -> LibrarySpec:
    """What the runner loads.

    Raises:
        ConfigurationError: The libraries do not compute this problem.
    """
    problem = instance.problem
    layout, accumulate = instance.layout, problem.definition.get("accumulate")
    if problem.name != "hgemm" or layout not in ("nn", "nt") or accumulate not in ("fp32", "fp16"):
        raise ConfigurationError("there is no library to compare with", expected="hgemm", found=problem.title)
    m, n, k, batch = instance.sizes
    library, _, sums = name.partition(_WITH)
    in_single = "fp32" in (accumulate, sums)
    return LibrarySpec(
        library, "nn" if layout == "nn" else "nt", "fp32" if in_single else "fp16", (m, n, k, batch), WORKSPACE_BYTES
    )


def _guess_us(instance: Instance, card: Card) -> float:
    """What a call may take, to plan a library's buffers: two thirds of what arithmetic and memory can do, and a launch."""
    work = instance.problem.work(instance.sizes)
    return 2.0 + 1.5 * max(card.arithmetic_us(work.n_flops), card.memory_us(work.n_bytes))
