"""The CPU target's evaluator: screen, build, inspect, run, judge and time kernels in C against OpenBLAS."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import numpy as np

from evo_l2.contracts import Prepared
from evo_l2.errors import ToolchainError
from evo_l2.evaluation import CaseTiming, Environment, Evaluation, Status, TimingSession, Verdict
from evo_l2.judge import Failure, GateReport, Judge, with_secret
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance, Problem
from evo_l2.targets.cpu.baseline import Baseline
from evo_l2.targets.cpu.blas import find_blas
from evo_l2.targets.cpu.compiler import Compiler
from evo_l2.targets.cpu.environment import cpu_environment
from evo_l2.targets.cpu.pairs import TimingSettings, plan_pairs, time_pairs
from evo_l2.targets.cpu.prepare import prepare
from evo_l2.targets.cpu.runner import LoadFailed, RunnerBinary
from evo_l2.targets.cpu.stage import CpuStage
from evo_l2.targets.cpu.toolchain import find_toolchain

__all__ = ["CpuEvaluator", "CpuSettings"]


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """What the evaluator may use."""

    timing: TimingSettings = field(default_factory=TimingSettings)
    final_blocks: int = 40
    """Blocks of a finalist, instead of `timing.blocks`."""
    call_s: float = 5.0
    """Seconds of one call."""
    build_s: float = 20.0
    """Seconds of processor time of one build."""
    core: int | None = None
    """Processor to measure on; the last one that this process may use when left out."""


class CpuEvaluator:
    """Proves and times kernels in C. A context manager. See `evo_l2.contracts.Evaluator`.

    Args:
        problem: What is computed.
        cache_dir: Where builds are kept; several processes may share it.
        settings: See `CpuSettings`.
        skip: Gates to leave out; for tests of the gates.
        observe: Called after every gate.

    Raises:
        ToolchainError: Compiler, disassembler or OpenBLAS is missing.
    """

    def __init__(
        self,
        problem: Problem,
        cache_dir: Path,
        settings: CpuSettings | None = None,
        *,
        skip: frozenset[str] = frozenset(),
        observe: Callable[[GateReport], None] | None = None,
    ) -> None:
        self._problem = problem
        self._settings = settings if settings is not None else CpuSettings()
        self._skip = skip
        self._observe = observe
        self._secret = secrets.randbits(128)
        toolchain = find_toolchain()
        blas = find_blas()
        self._compiler = Compiler(toolchain, cache_dir, cpu_s=self._settings.build_s)
        self._binary = RunnerBinary.ensure(toolchain.compiler, cache_dir)
        self._environment = cpu_environment(toolchain, blas.description)
        core = self._settings.core if self._settings.core is not None else max(os.sched_getaffinity(0))
        self._core = core
        self._baseline = Baseline(problem, toolchain.compiler, blas, self._binary, cache_dir, self._settings.timing, core)

    def __enter__(self) -> CpuEvaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """Processor, compiler and baseline."""
        return self._environment

    def prepare(self, kernel: Kernel) -> Prepared:
        """See `evo_l2.contracts.Evaluator`."""
        return prepare(kernel, self._problem, self._compiler)

    def measure(self, prepared: Prepared, seed: np.random.SeedSequence, *, purpose: str = "search") -> Evaluation:
        """Puts every gate to the kernel on every case, then times every case.

        What is drawn follows from the seed and from a secret of this evaluator, which it had from the operating system: a
        run's seeds are public, and a kernel written for them would know its inputs. A replay tells what was recorded, and
        needs neither.

        Raises:
            DeviceError: The runner or the baseline is at fault.
        """
        begin = time.perf_counter()
        judge = Judge(deterministic=prepared.kernel.launch.deterministic, skip=self._skip, observe=self._observe)
        children = with_secret(seed, self._secret).spawn(2 * len(self._problem.cases))
        call_us: list[float] = []
        for sizes, child in zip(self._problem.cases, children[: len(self._problem.cases)], strict=True):
            outcome = self._prove(prepared, sizes, judge, child)
            if isinstance(outcome, Failure):
                return self._failed(prepared, outcome, begin)
            call_us.append(outcome)
        cases: list[CaseTiming] = []
        for sizes, guess, child in zip(self._problem.cases, call_us, children[len(call_us) :], strict=True):
            timing = self._time(prepared, sizes, guess, judge, child, final=purpose == "final")
            if isinstance(timing, Failure):
                return self._failed(prepared, timing, begin)
            cases.append(timing)
        verdict = Verdict(Status.PASSED, build=prepared.build, measures=prepared.measures)
        return Evaluation(verdict, TimingSession(tuple(cases), purpose), time.perf_counter() - begin)

    def close(self) -> None:
        """Ends the baseline's runners; a kernel's own end with each measurement."""
        self._baseline.close()

    def _prove(
        self, prepared: Prepared, sizes: tuple[int, ...], judge: Judge, seed: np.random.SeedSequence
    ) -> float | Failure:
        """Microseconds of the fastest call, or the failure."""
        try:
            with self._stage(prepared, sizes, 1) as stage:
                n_before = judge.n_runs
                failure = judge.judge(stage, seed)
                return failure if failure is not None else judge.fastest_call_us(n_before)
        except LoadFailed as error:
            return Failure(Status.UNLAUNCHABLE, "load", str(error))

    def _time(
        self,
        prepared: Prepared,
        sizes: tuple[int, ...],
        call_us: float,
        judge: Judge,
        seed: np.random.SeedSequence,
        *,
        final: bool,
    ) -> CaseTiming | Failure:
        blocks = self._settings.final_blocks if final else self._settings.timing.blocks
        settings = replace(self._settings.timing, blocks=blocks, most_s=self._settings.timing.most_s * (5 if final else 1))
        instance = self._instance(prepared, sizes)
        plan = plan_pairs(call_us, instance.n_bytes, settings)
        baseline = self._baseline.at(instance)
        try:
            with self._stage(prepared, sizes, plan.n_calls) as stage:
                timing = time_pairs(stage, plan.n_calls, baseline.stage, baseline.n_calls, plan.n_blocks, judge, seed)
        except LoadFailed as error:
            return Failure(Status.UNLAUNCHABLE, "load", str(error))
        if isinstance(timing, Failure):
            return timing
        return replace(timing, bare_baseline_us=baseline.bare_share * float(np.median(timing.baseline_us)))

    def _instance(self, prepared: Prepared, sizes: tuple[int, ...]) -> Instance:
        return Instance(self._problem, sizes, prepared.kernel.launch.layout)

    def _stage(self, prepared: Prepared, sizes: tuple[int, ...], n_sets: int) -> CpuStage:
        if prepared.artefact is None:
            raise ValueError("the kernel was stopped before it could run")
        if not prepared.artefact.exists():
            hint = "run again: it is built anew"
            raise ToolchainError("a built kernel is gone from the cache", expected=str(prepared.artefact), hint=hint)
        instance = self._instance(prepared, sizes)
        names = {**prepared.kernel.constants, **instance.names}
        workspaces = prepared.kernel.launch.workspace_bytes(names)
        call_s = self._settings.call_s
        return CpuStage(self._binary, prepared.artefact, instance, workspaces, n_sets=n_sets, core=self._core, call_s=call_s)

    def _failed(self, prepared: Prepared, failure: Failure, begin: float) -> Evaluation:
        verdict = Verdict(failure.status, failure.gate, failure.message, prepared.build, prepared.measures)
        return Evaluation(verdict, None, time.perf_counter() - begin)
