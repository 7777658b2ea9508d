"""The judge: draws secret inputs, has a stage run the kernel on them, and says whether what came out is right.

No candidate code runs in the judge's process. It holds the seeds and the references; the stage holds nothing but operands,
and each is overwritten between runs. Its arrays are those of the stage: of numpy, or of cupy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evo_l2.draws import Draws
from evo_l2.evaluation import Status
from evo_l2.launch import Role
from evo_l2.poison import poison_pools
from evo_l2.problem import Arrays, Gate, Instance

__all__ = ["Failure", "Fault", "FaultKind", "GateReport", "Judge", "Stage", "TimedSets", "fault_failure", "with_secret"]

_FEWEST_WITH_REPEATS = 32
"""Timed calls from which on each operand is repeated once."""

Bytes = NDArray[np.uint8]


class FaultKind(StrEnum):
    """How a run ended that did not come to its end."""

    CRASH = "crash"
    TIME_LIMIT = "time-limit"
    SYSTEM_CALL = "system-call"
    EARLY_EXIT = "early-exit"


@dataclass(frozen=True, slots=True)
class Fault:
    """A run that did not come to its end, and why, in plain words."""

    kind: FaultKind
    detail: str


class Stage(Protocol):
    """Where a kernel runs for the judge: buffer sets that both sides see, and a way to have the kernel called on them."""

    @property
    def instance(self) -> Instance:
        """The problem's case and layout that the buffers were made for."""
        ...

    @property
    def n_sets(self) -> int:
        """Number of buffer sets."""
        ...

    @property
    def most_stacked(self) -> int:
        """Values of all operands of the sets that are drawn, or whose results are checked, at a time."""
        ...

    @property
    def most_checked(self) -> int:
        """Values of all operands of the sets whose results are checked after one timed run."""
        ...

    def draws(self, seed: np.random.SeedSequence) -> Draws:
        """What its inputs are drawn from: arrays of the library that its own are of."""
        ...

    def stacked(self, first: int, n_sets: int) -> dict[str, NDArray[np.generic]]:
        """Views of the operands of several sets in a row, by name, stacked along a new first axis.

        Writing to them is what hands inputs over. Each set's part is in row-major order.
        """
        ...

    def workspaces(self) -> dict[str, Bytes]:
        """Views of the workspaces, as bytes."""
        ...

    def run(self, first: int, n_calls: int) -> int | Fault:
        """Calls the kernel on `n_calls` sets in turn; nanoseconds for all of them, or the fault. Waits for its end.

        Raises:
            DeviceError: The runner is at fault.
        """
        ...

    def damaged_guard(self, index: int) -> str | None:
        """Name of a buffer of this set beside which the kernel wrote; None when all guards hold."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """Status, gate and reason of a kernel that did not pass."""

    status: Status
    gate: str
    message: str


@dataclass(frozen=True, slots=True)
class GateReport:
    """One gate's outcome on one case; `failure` is None when it passed."""

    gate: str
    sizes: tuple[int, ...]
    seconds: float
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class TimedSets:
    """What the judge keeps of buffer sets in a row that are about to be timed; stacked along a first axis."""

    first: int
    """Number of the first of them."""
    n_sets: int
    inputs: dict[str, NDArray[np.generic]]
    marks: dict[str, tuple[NDArray[np.integer], NDArray[np.generic]]]
    """For every output a few flat positions and the poison there, a row for each set: a call that was skipped leaves all of
    them."""

    def inputs_of(self, index: int) -> dict[str, NDArray[np.generic]]:
        """The inputs of one of them, by its number among all sets."""
        return {name: value[index - self.first] for name, value in self.inputs.items()}


_FAULTS = {
    FaultKind.CRASH: (Status.RUNTIME_ERROR, "run"),
    FaultKind.TIME_LIMIT: (Status.TIMEOUT, "time-limit"),
    FaultKind.SYSTEM_CALL: (Status.CHEATING, "system-calls"),
    FaultKind.EARLY_EXIT: (Status.CHEATING, "early-exit"),
}


def fault_failure(fault: Fault) -> Failure:
    """What a fault means for the verdict."""
    status, gate = _FAULTS[fault.kind]
    return Failure(status, gate, fault.detail)


def with_secret(seed: np.random.SeedSequence, secret: int) -> np.random.SeedSequence:
    """The same place among all seeds, of other entropy."""
    entropy = [] if seed.entropy is None else [seed.entropy] if isinstance(seed.entropy, int) else list(seed.entropy)
    return np.random.SeedSequence([*entropy, secret], spawn_key=seed.spawn_key)


class Judge:
    """Puts the gates to one kernel.

    Args:
        deterministic: False for a kernel that declares that two runs may differ.
        skip: Names of gates to leave out; for the tests that show what each gate is for.
        observe: Called after every gate.
    """

    def __init__(
        self,
        *,
        deterministic: bool = True,
        skip: frozenset[str] = frozenset(),
        observe: Callable[[GateReport], None] | None = None,
    ) -> None:
        self._deterministic = deterministic
        self._skip = skip
        self._observe = observe
        self._run_ns: list[int] = []

    @property
    def n_runs(self) -> int:
        """Single calls that came to their end so far."""
        return len(self._run_ns)

    def fastest_call_us(self, since: int) -> float:
        """Shortest of the single calls from number `since` on, in microseconds; plans the timing, and is no measurement."""
        return min(self._run_ns[since:]) / 1000

    def judge(self, stage: Stage, seed: np.random.SeedSequence) -> Failure | None:
        """Puts every gate to the kernel on the stage's case; stops at the first that fails. None when it passed them all."""
        instance = stage.instance
        gates = [gate for gate in instance.problem.gates if gate.name not in self._skip]
        children = seed.spawn(len(gates) + 1)
        for gate, child in zip(gates, children[:-1], strict=True):
            draws = stage.draws(child)
            inputs = gate.draw(instance, draws)
            failure = self._timed(gate.name, instance, lambda: self._one(stage, inputs, draws, gate))  # noqa: B023
            if failure is not None:
                return failure
        if "determinism" in self._skip or not self._deterministic:
            return None
        return self._timed("determinism", instance, lambda: self._repeat(stage, stage.draws(children[-1])))

    def prepare_timed(self, stage: Stage, n_calls: int, draws: Draws) -> list[TimedSets]:
        """Fills the first `n_calls` sets with fresh inputs and poison; returns what is needed to check them.

        Every operand of every call is drawn for that call alone, so that nothing is left to share among the calls of a
        sample, whatever a kernel keeps in its workspace. But in a long sample, each operand once comes twice in a row: a
        kernel that takes an operand it has just seen for a call it has just made is wrong there. The poison of every set is
        a piece of its own of one random string.
        """
        instance = stage.instance
        pools = poison_pools(instance, n_calls, draws)
        repeats = _repeats([operand.name for operand in instance.operands(Role.IN)], n_calls, draws.host)
        n_stacked = max(1, stage.most_stacked // max(1, instance.n_values))
        fills: list[TimedSets] = []
        for first in range(0, n_calls, n_stacked):
            n_sets = min(n_stacked, n_calls - first)
            inputs = instance.problem.draw_timed(instance, n_sets, draws)
            for index in sorted(repeats.keys() & range(first, first + n_sets)):
                before = {name: values[index - first - 1] for name, values in inputs.items()}
                if index == first:
                    before = {name: values[-1] for name, values in fills[-1].inputs.items()}
                for name, again in instance.problem.draw_again(instance, before, repeats[index], draws).items():
                    inputs[name][index - first] = again
            self._fill(stage, first, inputs, {name: pool.pieces(first, n_sets) for name, pool in pools.items()}, draws)
            marks = {name: pool.marks(first, n_sets, draws) for name, pool in pools.items()}
            fills.append(TimedSets(first, n_sets, inputs, marks))
        return fills

    def check_timed(self, stage: Stage, fills: list[TimedSets], draws: Draws, n_checks: int = 2) -> Failure | None:
        """Checks the results of a timed run, and the guards and inputs of a random few.

        That every set was written is looked up for all of them. `Problem.spot_check` sees them all too, several at a time, or
        as many by lot as hold `Stage.most_checked` values.
        """
        n_calls = sum(sets.n_sets for sets in fills)
        for index in draws.host.choice(n_calls, size=min(n_checks, n_calls), replace=False):
            sets = fills[int(index) // fills[0].n_sets]
            failure = self._mechanics(stage, int(index), sets.inputs_of(int(index)))
            if failure is not None:
                return failure
        if "timed-outputs" in self._skip:
            return None
        outputs = [_outputs(stage, sets.first, sets.n_sets) for sets in fills]
        for sets, written in zip(fills, outputs, strict=True):
            untouched = _untouched(written, sets)
            if untouched:
                message = f"timed call {sets.first + untouched[0]} of {n_calls} left its output unwritten"
                return Failure(Status.CHEATING, "timed-outputs", message)
        for sets, some in _some(list(zip(fills, outputs, strict=True)), stage, draws):
            defect = stage.instance.problem.spot_check(stage.instance, sets.inputs, some, draws)
            if defect is not None:
                last = sets.first + sets.n_sets - 1
                calls = f"timed call {last}" if sets.n_sets == 1 else f"timed calls {sets.first}-{last}"
                return Failure(Status.CHEATING, "timed-outputs", f"{calls} of {n_calls}: {defect.message}")
        return None

    def _timed(self, gate: str, instance: Instance, check: Callable[[], Failure | None]) -> Failure | None:
        begin = time.perf_counter()
        failure = check()
        if self._observe is not None:
            self._observe(GateReport(gate, instance.sizes, time.perf_counter() - begin, failure))
        return failure

    def _one(self, stage: Stage, inputs: Arrays, draws: Draws, gate: Gate) -> Failure | None:
        poison = self._poisoned(stage, inputs, draws)
        failure = self._run(stage, inputs)
        if failure is not None:
            return failure
        outputs = _copied_outputs(stage)
        defect = gate.check(stage.instance, inputs, outputs)
        if defect is None:
            return None
        return self._unwritten(outputs, poison) or Failure(Status.INCORRECT, gate.name, defect.message)

    def _run(self, stage: Stage, inputs: Arrays) -> Failure | None:
        """One call on set 0, with what is checked after every call."""
        result = stage.run(0, 1)
        if isinstance(result, Fault):
            return fault_failure(result)
        self._run_ns.append(result)
        return self._mechanics(stage, 0, inputs)

    def _mechanics(self, stage: Stage, index: int, inputs: Arrays) -> Failure | None:
        """Guards and inputs of one set."""
        if "guards" not in self._skip and (name := stage.damaged_guard(index)) is not None:
            return Failure(Status.RUNTIME_ERROR, "guards", f"the kernel wrote outside of {name}, just beside its ends")
        if "inputs-unchanged" in self._skip:
            return None
        arrays = stage.stacked(index, 1)
        for name, value in inputs.items():
            if not np.array_equal(_bits(arrays[name][0]), _bits(value)):
                return Failure(Status.CHEATING, "inputs-unchanged", f"the kernel wrote to its input {name}")
        return None

    def _repeat(self, stage: Stage, draws: Draws) -> Failure | None:
        """Two runs on the same inputs, with other junk in the outputs and workspaces."""
        drawn = stage.instance.problem.draw_timed(stage.instance, 1, draws)
        inputs = {name: value[0] for name, value in drawn.items()}
        results = []
        for _ in range(2):
            self._poisoned(stage, inputs, draws)
            failure = self._run(stage, inputs)
            if failure is not None:
                return failure
            results.append(_copied_outputs(stage))
        for name, first in results[0].items():
            differs = _bits(first) != _bits(results[1][name])
            if differs.any():
                places = f"{int(differs.sum())} places of {name}, first at [{_first(differs)}]"
                message = f"two runs on the same inputs differ in {places}"
                hint = "declare it with '//! nondeterministic' if it is meant"
                return Failure(Status.INCORRECT, "determinism", f"{message}; {hint}")
        return None

    def _poisoned(self, stage: Stage, inputs: Arrays, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """Fills set 0 with inputs and poison; returns the poison."""
        poison = {name: pool.pieces(0, 1) for name, pool in poison_pools(stage.instance, 1, draws).items()}
        self._fill(stage, 0, {name: value[None] for name, value in inputs.items()}, poison, draws)
        return {name: junk[0] for name, junk in poison.items()}

    def _fill(self, stage: Stage, first: int, inputs: Arrays, poison: Arrays, draws: Draws) -> None:
        """Writes inputs, poison to outputs, and junk to workspaces, which all sets share."""
        arrays = stage.stacked(first, len(next(iter(poison.values()))))
        for name, junk in poison.items():
            arrays[name][...] = junk
        for name, value in inputs.items():
            _bits(arrays[name])[...] = _bits(value)
        if first == 0:
            for space in stage.workspaces().values():
                space[...] = draws.words(-(-space.size // 2)).view(np.uint8)[: space.size]

    def _unwritten(self, outputs: Arrays, poison: Arrays) -> Failure | None:
        """Set when more of the outputs still hold the poison than chance allows."""
        if "poison" in self._skip:
            return None
        for name, junk in poison.items():
            same = _bits(outputs[name]) == _bits(junk)
            n_same = int(same.sum())
            if n_same > 8 + 0.01 * same.size or n_same == same.size:
                message = f"{n_same} of {same.size} elements of {name} were never written, first at [{_first(same)}]"
                return Failure(Status.INCORRECT, "poison", message)
        return None


def _some(sets: list[tuple[TimedSets, Arrays]], stage: Stage, draws: Draws) -> list[tuple[TimedSets, Arrays]]:
    """As many as may be checked, in a random order; one at the least."""
    n_values = stage.instance.n_values
    order = draws.host.permutation(len(sets))
    chosen: list[tuple[TimedSets, Arrays]] = []
    total = 0
    for place in order:
        total += n_values * sets[place][0].n_sets
        if not chosen or total <= stage.most_checked:
            chosen.append(sets[place])
    return chosen


def _repeats(names: Sequence[str], n_calls: int, rng: np.random.Generator) -> dict[int, str]:
    """Calls of a long sample that take one operand from the call before, and which."""
    if n_calls < _FEWEST_WITH_REPEATS or len(names) < 2:
        return {}
    calls = rng.choice(np.arange(1, n_calls), size=len(names), replace=False)
    return {int(call): name for call, name in zip(calls, names, strict=True)}


def _outputs(stage: Stage, first: int, n_sets: int) -> dict[str, NDArray[np.generic]]:
    """Views of the outputs of several sets, stacked."""
    arrays = stage.stacked(first, n_sets)
    return {operand.name: arrays[operand.name] for operand in stage.instance.operands(Role.OUT)}


def _copied_outputs(stage: Stage) -> dict[str, NDArray[np.generic]]:
    """Of set 0."""
    return {name: value[0].copy() for name, value in _outputs(stage, 0, 1).items()}


def _untouched(outputs: Arrays, sets: TimedSets) -> list[int]:
    """Which of the sets have an output whose marks all still hold their poison, which chance does not bring about."""
    found: set[int] = set()
    for name, (places, junk) in sets.marks.items():
        now = np.take_along_axis(outputs[name].reshape(sets.n_sets, -1), places, axis=1)
        found.update(np.flatnonzero((_bits(now) == _bits(junk)).all(axis=1)).tolist())
    return sorted(found)


def _first(wrong: NDArray[np.bool_]) -> str:
    """Indices of the first element that is set."""
    return ", ".join(str(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _bits(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The array's elements as unsigned integers of their size, so that NaN equals itself."""
    return array.view(f"u{array.dtype.itemsize}")
