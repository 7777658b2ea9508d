"""The baseline's side of every pair: built once, judged once, its runners kept while the evaluator is open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from evo_l2.draws import HostDraws
from evo_l2.errors import DeviceError
from evo_l2.judge import Fault, Judge
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance, Problem
from evo_l2.targets.cpu.blas import Blas, baseline_library
from evo_l2.targets.cpu.pairs import TimingSettings, plan_pairs
from evo_l2.targets.cpu.stage import CpuStage

__all__ = ["Baseline", "BaselineSide"]

_CALL_S = 120.0
_BARE_ENTRY = "evo_entry_bare"
_N_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class BaselineSide:
    """The baseline at one case, ready to be timed."""

    stage: CpuStage
    n_calls: int
    """Calls in one sample."""
    bare_share: float
    """Time without its conversions over time with them, measured in turns."""


class Baseline:
    """The problem's baseline at all its cases and layouts."""

    def __init__(
        self, problem: Problem, compiler: Path, blas: Blas, binary: Path, cache_dir: Path, timing: TimingSettings, core: int
    ) -> None:
        self._problem = problem
        self._compiler = compiler
        self._blas = blas
        self._binary = binary
        self._cache_dir = cache_dir
        self._timing = timing
        self._core = core
        self._sides: dict[tuple[tuple[int, ...], str], BaselineSide] = {}

    def at(self, instance: Instance) -> BaselineSide:
        """The baseline at one case and layout; judged by the same gates as a kernel when it is first asked for.

        Raises:
            DeviceError: The baseline fails a gate, or does not run.
            ToolchainError: It does not build.
        """
        key = (instance.sizes, instance.layout)
        if key not in self._sides:
            self._sides[key] = self._open(instance)
        return self._sides[key]

    def close(self) -> None:
        """Ends every runner; may be called twice."""
        for side in self._sides.values():
            side.stage.close()
        self._sides.clear()

    def _open(self, instance: Instance) -> BaselineSide:
        source = self._problem.baseline("cpu", instance.layout)
        library = baseline_library(source, self._blas, self._compiler, self._cache_dir)
        judge = Judge()
        with self._stage(library, source, instance, 1) as stage:
            failure = judge.judge(stage, np.random.SeedSequence(0))
        if failure is not None:
            found = f"{failure.gate}: {failure.message}"
            raise DeviceError("the baseline is wrong", expected="a library that passes every gate", found=found)
        plan = plan_pairs(judge.fastest_call_us(0), instance.n_bytes, self._timing)
        whole = self._stage(library, source, instance, plan.n_calls)
        try:
            with self._stage(library, source, instance, plan.n_calls, _BARE_ENTRY) as bare:
                share = _bare_share(whole, bare, plan.n_calls)
        except BaseException:
            whole.close()
            raise
        return BaselineSide(whole, plan.n_calls, share)

    def _stage(self, library: Path, source: str, instance: Instance, n_sets: int, entry: str = "evo_entry") -> CpuStage:
        kernel = Kernel(source, "cpu")
        workspaces = kernel.launch.workspace_bytes({**kernel.constants, **instance.names})
        return CpuStage(
            self._binary, library, instance, workspaces, n_sets=n_sets, core=self._core, call_s=_CALL_S, trusted=True,
            entry=entry,
        )  # fmt: skip


def _bare_share(whole: CpuStage, bare: CpuStage, n_calls: int) -> float:
    """Median over rounds of the two calls' ratio; what slows both down does not change it."""
    draws = HostDraws(np.random.default_rng(0))
    for stage in (whole, bare):
        Judge().prepare_timed(stage, n_calls, draws)
    for space in bare.workspaces().values():
        values = space[: space.size // 4 * 4].view(np.float32)
        values[:] = draws.host.standard_normal(values.size, dtype=np.float32)
    return median(_us(bare, n_calls) / _us(whole, n_calls) for _ in range(_N_ROUNDS))


def _us(stage: CpuStage, n_calls: int) -> float:
    result = stage.run(0, n_calls)
    if isinstance(result, Fault):
        raise DeviceError("the baseline fails", found=result.detail, hint="evo-l2 doctor")
    return max(result, 1) / 1000 / n_calls
