"""The judge: draws secret inputs, has a stage run the kernel on them, and says whether what came out is right.

No candidate code runs in the judge's process. It holds the seeds and the references; the stage holds nothing but operands,
and each is overwritten between runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evo_l2.evaluation import Status
from evo_l2.launch import Role
from evo_l2.problem import Arrays, Gate, Instance

__all__ = ["Failure", "Fault", "FaultKind", "GateReport", "Judge", "Stage", "TimedSet", "fault_failure"]

_N_MARKS = 64
_SPARE_POISON = 65536
"""Values by which the string of a timed run's poison is longer than one output."""
_FEWEST_WITH_REPEATS = 32
"""Timed calls from which on each operand is repeated once."""
_MOST_STACKED = 1 << 17
"""Values of all operands of the sets that are drawn, or whose results are checked, at a time."""

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

    def arrays(self, index: int) -> dict[str, NDArray[np.generic]]:
        """Views of one set's operands, by name; writing to them is what hands inputs over."""
        ...

    def workspaces(self) -> dict[str, Bytes]:
        """Views of the workspaces, as bytes."""
        ...

    def run(self, first: int, n_calls: int) -> int | Fault:
        """Calls the kernel on `n_calls` sets in turn; nanoseconds for all of them, or the fault.

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
class TimedSet:
    """What the judge keeps of one buffer set that is about to be timed."""

    inputs: dict[str, NDArray[np.generic]]
    marks: dict[str, tuple[NDArray[np.intp], NDArray[np.generic]]]
    """For every output a few flat positions and the poison there: a call that was skipped leaves all of them."""


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
            rng = np.random.default_rng(child)
            inputs = gate.draw(instance, rng)
            failure = self._timed(gate.name, instance, lambda: self._one(stage, inputs, rng, gate))  # noqa: B023
            if failure is not None:
                return failure
        if "determinism" in self._skip or not self._deterministic:
            return None
        return self._timed("determinism", instance, lambda: self._repeat(stage, np.random.default_rng(children[-1])))

    def prepare_timed(self, stage: Stage, n_calls: int, rng: np.random.Generator) -> list[TimedSet]:
        """Fills the first `n_calls` sets with fresh inputs and poison; returns what is needed to check them.

        Every operand of every call is drawn for that call alone, so that nothing is left to share among the calls of a
        sample, whatever a kernel keeps in its workspace. But in a long sample, each operand once comes twice in a row: a
        kernel that takes an operand it has just seen for a call it has just made is wrong there. The poison of every set is
        a random piece of one random string.
        """
        instance = stage.instance
        outputs = {operand.name: (instance.shape(operand), operand.dtype) for operand in instance.operands(Role.OUT)}
        pools = {name: _Pool(shape, dtype, n_calls, rng) for name, (shape, dtype) in outputs.items()}
        places = {name: rng.integers(max(pool.size, 1), size=(n_calls, _N_MARKS)) for name, pool in pools.items()}
        fills: list[TimedSet] = []
        repeats = _repeats([operand.name for operand in instance.operands(Role.IN)], n_calls, rng)
        n_stacked = _n_stacked(instance)
        for index in range(n_calls):
            if index % n_stacked == 0:
                stacked = instance.problem.draw_timed(instance, min(n_stacked, n_calls - index), rng)
            inputs = {name: value[index % n_stacked] for name, value in stacked.items()}
            if index in repeats:
                inputs[repeats[index]] = fills[-1].inputs[repeats[index]]
            poison = {name: pool.piece() for name, pool in pools.items()}
            self._fill(stage, index, inputs, poison, rng)
            marks = {name: (at[index], poison[name].reshape(-1)[at[index]]) for name, at in places.items()}
            fills.append(TimedSet(inputs, marks))
        return fills

    def check_timed(self, stage: Stage, fills: list[TimedSet], rng: np.random.Generator, n_checks: int = 2) -> Failure | None:
        """Checks the results of every set of a timed run, and the guards and inputs of a random few.

        Whichever call was skipped or cut short is found: `Problem.spot_check` sees them all, several at a time.
        """
        sets = [stage.arrays(index) for index in range(len(fills))]
        for index in rng.choice(len(fills), size=min(n_checks, len(fills)), replace=False):
            failure = self._mechanics(stage, int(index), fills[index].inputs)
            if failure is not None:
                return failure
        if "timed-outputs" in self._skip:
            return None
        for index, (arrays, timed) in enumerate(zip(sets, fills, strict=True)):
            if _is_untouched(arrays, timed):
                message = f"timed call {index} of {len(fills)} left its output unwritten"
                return Failure(Status.CHEATING, "timed-outputs", message)
        problem = stage.instance.problem
        names = [operand.name for operand in stage.instance.operands(Role.OUT)]
        n_stacked = _n_stacked(stage.instance)
        for start in range(0, len(fills), n_stacked):
            piece = slice(start, start + n_stacked)
            inputs = {name: _stack([timed.inputs[name] for timed in fills[piece]]) for name in fills[0].inputs}
            outputs = {name: _stack([arrays[name] for arrays in sets[piece]]) for name in names}
            defect = problem.spot_check(stage.instance, inputs, outputs, rng)
            if defect is not None:
                calls = f"timed call {start}" if n_stacked == 1 else f"timed calls {start}-{min(piece.stop, len(fills)) - 1}"
                return Failure(Status.CHEATING, "timed-outputs", f"{calls} of {len(fills)}: {defect.message}")
        return None

    def _timed(self, gate: str, instance: Instance, check: Callable[[], Failure | None]) -> Failure | None:
        begin = time.perf_counter()
        failure = check()
        if self._observe is not None:
            self._observe(GateReport(gate, instance.sizes, time.perf_counter() - begin, failure))
        return failure

    def _one(
        self,
        stage: Stage,
        inputs: Mapping[str, NDArray[np.generic]],
        rng: np.random.Generator,
        gate: Gate,
    ) -> Failure | None:
        poison = self._poisoned(stage, inputs, rng)
        failure = self._run(stage, inputs)
        if failure is not None:
            return failure
        outputs = self._outputs(stage, 0)
        defect = gate.check(stage.instance, inputs, outputs)
        if defect is None:
            return None
        return self._unwritten(outputs, poison) or Failure(Status.INCORRECT, gate.name, defect.message)

    def _run(self, stage: Stage, inputs: Mapping[str, NDArray[np.generic]]) -> Failure | None:
        """One call on set 0, with what is checked after every call."""
        result = stage.run(0, 1)
        if isinstance(result, Fault):
            return fault_failure(result)
        self._run_ns.append(result)
        return self._mechanics(stage, 0, inputs)

    def _mechanics(self, stage: Stage, index: int, inputs: Mapping[str, NDArray[np.generic]]) -> Failure | None:
        """Guards and inputs of one set."""
        if "guards" not in self._skip and (name := stage.damaged_guard(index)) is not None:
            return Failure(Status.RUNTIME_ERROR, "guards", f"the kernel wrote outside of {name}, just beside its ends")
        if "inputs-unchanged" in self._skip:
            return None
        arrays = stage.arrays(index)
        for name, value in inputs.items():
            if not np.array_equal(_bits(arrays[name]), _bits(value)):
                return Failure(Status.CHEATING, "inputs-unchanged", f"the kernel wrote to its input {name}")
        return None

    def _repeat(self, stage: Stage, rng: np.random.Generator) -> Failure | None:
        """Two runs on the same inputs, with other junk in the outputs and workspaces."""
        inputs = {name: value[0] for name, value in stage.instance.problem.draw_timed(stage.instance, 1, rng).items()}
        results = []
        for _ in range(2):
            self._poisoned(stage, inputs, rng)
            failure = self._run(stage, inputs)
            if failure is not None:
                return failure
            results.append(self._outputs(stage, 0))
        for name, first in results[0].items():
            differs = _bits(first) != _bits(results[1][name])
            if differs.any():
                places = np.argwhere(differs)
                where = ", ".join(str(i) for i in places[0])
                message = f"two runs on the same inputs differ in {len(places)} places of {name}, first at [{where}]"
                hint = "declare it with '//! nondeterministic' if it is meant"
                return Failure(Status.INCORRECT, "determinism", f"{message}; {hint}")
        return None

    def _poisoned(
        self, stage: Stage, inputs: Mapping[str, NDArray[np.generic]], rng: np.random.Generator
    ) -> dict[str, NDArray[np.generic]]:
        """Fills set 0 with inputs and poison; returns the poison."""
        operands = stage.instance.operands(Role.OUT)
        poison = {o.name: _Pool(stage.instance.shape(o), o.dtype, 1, rng).piece() for o in operands}
        self._fill(stage, 0, inputs, poison, rng)
        return poison

    def _fill(
        self,
        stage: Stage,
        index: int,
        inputs: Mapping[str, NDArray[np.generic]],
        poison: Mapping[str, NDArray[np.generic]],
        rng: np.random.Generator,
    ) -> None:
        """Writes inputs, poison to outputs, and junk to workspaces, which all sets share."""
        arrays = stage.arrays(index)
        for name, junk in poison.items():
            np.copyto(arrays[name], junk)
        for name, value in inputs.items():
            np.copyto(_bits(arrays[name]), _bits(value))
        if index == 0:
            for space in stage.workspaces().values():
                space[:] = np.frombuffer(rng.bytes(space.size), dtype=np.uint8)

    def _outputs(self, stage: Stage, index: int) -> dict[str, NDArray[np.generic]]:
        """Copies of one set's outputs."""
        arrays = stage.arrays(index)
        return {operand.name: arrays[operand.name].copy() for operand in stage.instance.operands(Role.OUT)}

    def _unwritten(self, outputs: Arrays, poison: Arrays) -> Failure | None:
        """Set when more of the outputs still hold the poison than chance allows."""
        if "poison" in self._skip:
            return None
        for name, junk in poison.items():
            same = _bits(outputs[name]) == _bits(junk)
            n_same = int(same.sum())
            if n_same > 8 + 0.01 * same.size or n_same == same.size:
                where = ", ".join(str(i) for i in np.argwhere(same)[0])
                message = f"{n_same} of {same.size} elements of {name} were never written, first at [{where}]"
                return Failure(Status.INCORRECT, "poison", message)
        return None


def _repeats(names: Sequence[str], n_calls: int, rng: np.random.Generator) -> dict[int, str]:
    """Calls of a long sample that take one operand from the call before, and which."""
    if n_calls < _FEWEST_WITH_REPEATS or len(names) < 2:
        return {}
    calls = rng.choice(np.arange(1, n_calls), size=len(names), replace=False)
    return {int(call): name for call, name in zip(calls, names, strict=True)}


def _n_stacked(instance: Instance) -> int:
    """Number of sets that are drawn, or whose results are checked, at a time."""
    n_values = sum(math.prod(instance.shape(operand)) for operand in instance.problem.operands)
    return max(1, _MOST_STACKED // max(1, n_values))


class _Pool:
    """Plausible junk for one output of `n_pieces` sets: random pieces of one string of standard normal values."""

    def __init__(self, shape: tuple[int, ...], dtype: str, n_pieces: int, rng: np.random.Generator) -> None:
        self.size = math.prod(shape)
        self._shape = shape
        n_spare = min(_SPARE_POISON, (n_pieces - 1) * self.size)
        self._values: NDArray[np.generic] = rng.standard_normal(self.size + n_spare, dtype=np.float32).astype(dtype)
        self._starts = iter(rng.integers(n_spare + 1, size=n_pieces))

    def piece(self) -> NDArray[np.generic]:
        """The next set's."""
        start = int(next(self._starts))
        return self._values[start : start + self.size].reshape(self._shape)


def _stack(arrays: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Along a new first axis; without a copy when there is but one."""
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def _is_untouched(arrays: Arrays, timed: TimedSet) -> bool:
    """Whether all marks of an output still hold their poison, which chance does not bring about."""
    return any(np.array_equal(_bits(arrays[name].reshape(-1)[at]), _bits(junk)) for name, (at, junk) in timed.marks.items())


def _bits(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The array's elements as unsigned integers of their size, so that NaN equals itself."""
    return array.view(f"u{array.dtype.itemsize}")
