"""One card ready to prove and time kernels: compiler, runner, baselines; whatever problem a kernel is for."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np

from evo_l2.contracts import Prepared
from evo_l2.errors import DeviceError, ToolchainError
from evo_l2.evaluation import CaseTiming, Environment, Status
from evo_l2.judge import Failure, Fault, FaultKind, Judge, fault_failure
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance, Problem
from evo_l2.targets.cuda.build_only import built_identity, open_compiler
from evo_l2.targets.cuda.card.baselines import Baselines
from evo_l2.targets.cuda.card.driver_facts import DriverFacts, driver_facts
from evo_l2.targets.cuda.card.harness import HARNESS
from evo_l2.targets.cuda.card.pairs import CardTimingSettings, Side, blocks_of, n_calls_of, roofline_us, time_pairs
from evo_l2.targets.cuda.card.runner import Refused, Runner, RunnerFault
from evo_l2.targets.cuda.card.sanitizer import SanitizerReport, find_sanitizer, sanitize
from evo_l2.targets.cuda.card.stage import CardStage, load_cupy
from evo_l2.targets.cuda.cards import Card
from evo_l2.targets.cuda.launching.plan import plan
from evo_l2.targets.cuda.prepare import prepare
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt

__all__ = ["Rig"]

_PROBE_PAUSES_S = (0.0, 1.0, 5.0)
"""Waits before the tries to get an answer from the card after a fault."""

_MOST_SLOWER = 20.0
"""A sample may take `call_s` and as many times what its calls took when they were judged: it may have thousands of calls, and
one that hangs should not hold the card for as many times `call_s`."""

T = TypeVar("T")


class Rig:
    """A context manager; closing leaves no process behind. Kernels are prepared from any thread, run from one at a time.

    Args:
        cache_dir: Where builds are kept; several processes may share it.
        card: The card, as the table knows it.
        device: Its index, as CUDA counts.
        builder: `nvcc` or `nvrtc`; nvcc where the toolkit has it when left out.
        build_s: Seconds of processor time of one build step.
        timing: Numbers and lengths of samples.
        call_s: Seconds that one call of a kernel may take.
        baselines: Names of the baselines to choose from; all when left out.
        skip: Gates on machine code to leave out; for tests of the gates.

    Raises:
        ToolchainError: Toolkit, cupy or cuda-bindings are missing.
        DeviceError: The card does not answer, or is another one.
        ConfigurationError: The toolkit does not build for the card.
    """

    def __init__(
        self,
        cache_dir: Path,
        card: Card,
        device: int = 0,
        *,
        builder: str | None = None,
        build_s: float = 20.0,
        timing: CardTimingSettings | None = None,
        call_s: float = 5.0,
        baselines: tuple[str, ...] | None = None,
        skip: frozenset[str] = frozenset(),
    ) -> None:
        load_cupy()
        facts = driver_facts(device)
        self._device = device
        self._card = facts.fitted(card)
        self._timing = timing if timing is not None else CardTimingSettings()
        self._call_s = call_s
        self._skip = skip
        self._compiler = open_compiler(self._card, cache_dir, builder, build_s)
        self._harness = self._build_harness()
        self._environment = self._describe(facts)
        self._runner: Runner | None = None
        self._baselines = Baselines(device, self._card, self._harness, self._timing, baselines)

    def _build_harness(self) -> Path:
        try:
            harness = self._compiler.build(HARNESS, self._card.arch)
            if not isinstance(harness, CudaBuilt):
                raise ToolchainError("the harness's own kernel does not build", found=harness.message, hint="evo-l2 doctor")
        except BaseException:
            self._compiler.close()
            raise
        return harness.cubin

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """Card, toolkit and driver."""
        return self._environment

    @property
    def card(self) -> Card:
        """The card, with what was read off the device."""
        return self._card

    @property
    def timing(self) -> CardTimingSettings:
        """Numbers and lengths of samples."""
        return self._timing

    @property
    def baselines(self) -> Baselines:
        """What kernels are timed against."""
        return self._baselines

    def prepare(self, kernel: Kernel, problem: Problem) -> Prepared:
        """See `evo_l2.contracts.Evaluator`."""
        return prepare(kernel, problem, self._compiler, self._card, self._skip)

    def prove(self, prepared: Prepared, instance: Instance, judge: Judge, seed: np.random.SeedSequence) -> float | Failure:
        """Puts every gate to a kernel at one case. Microseconds of a call in a graph, or the failure.

        Raises:
            DeviceError: The card or the runner is at fault.
        """
        return self.guarded(lambda: self._prove(prepared, instance, judge, seed))

    def time(
        self,
        prepared: Prepared,
        instance: Instance,
        call_us: float,
        judge: Judge,
        seed: np.random.SeedSequence,
        *,
        final: bool = False,
        against: Side | None = None,
    ) -> CaseTiming | Failure:
        """Device time in pairs at one case.

        Args:
            prepared: A kernel that was proved.
            instance: Case and layout.
            call_us: A first idea of its time per call, from `prove`.
            judge: Checks what is timed.
            seed: Where inputs and order come from.
            final: Whether it is a finalist, who gets more blocks.
            against: What it is compared with; the fastest baseline when left out.

        Raises:
            DeviceError: The card, a runner or a baseline is at fault.
        """

        def step() -> CaseTiming | Failure:
            n_calls = self.n_calls(instance, call_us)
            other = against if against is not None else self._baselines.at(instance).side
            n_blocks = blocks_of(call_us, n_calls, self._timing, final=final)
            floor = roofline_us(instance, self._card, 1.0)
            limit_s = min(self._call_s, self._call_s / n_calls + _MOST_SLOWER * call_us * 1e-6)
            with self.stage(prepared, instance, n_calls, call_s=limit_s) as stage:
                return time_pairs(Side(stage, n_calls), other, n_blocks, judge, seed, floor)

        return self.guarded(step)

    def n_calls(self, instance: Instance, call_us: float) -> int:
        """Calls of one sample of a kernel that takes about `call_us` microseconds."""
        return n_calls_of(call_us, instance.n_bytes, self._card.l2_bytes, self._timing)

    def stage(self, prepared: Prepared, instance: Instance, n_sets: int, *, call_s: float | None = None) -> CardStage:
        """Memory for a case in the runner, with the kernel loaded.

        Args:
            prepared: A kernel that came through all gates before its launch.
            instance: Case and layout.
            n_sets: Number of buffer sets.
            call_s: Seconds that one call of many may take; those of the rig when left out.

        Raises:
            Refused: The driver does not take the kernel.
            DeviceError: There is no room on the card, or the runner is at fault.
            ToolchainError: The built kernel is gone from the cache.
        """
        cubin = _cubin(prepared)
        launches = plan(prepared.kernel, instance.problem, instance.sizes, self._card.n_sms)
        spaces = {space.name: space.n_bytes for space in launches.workspaces}
        runner = self.runner()
        call_s = call_s if call_s is not None else self._call_s
        stage = CardStage(runner, self._device, instance, spaces, n_sets=n_sets, call_s=call_s)
        try:
            runner.load_kernel(cubin, launches)
        except BaseException:
            stage.close()
            raise
        return stage

    def sanitize(self, prepared: Prepared, instance: Instance) -> SanitizerReport:
        """Runs a kernel once under compute-sanitizer, at a small case, in processes of its own; the report says if not.

        Raises:
            ToolchainError: The built kernel is gone from the cache.
        """
        return sanitize(prepared.kernel, _cubin(prepared), instance, self._card.n_sms, self._device)

    def runner(self) -> Runner:
        """The process that candidates run in, started when there is none."""
        if self._runner is None or not self._runner.is_alive:
            self.renew()
            self._runner = Runner(self._device, self._harness)
        return self._runner

    def renew(self) -> None:
        """Ends the candidates' process, so that the next kernel runs in a fresh one."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            runner.close()

    def close(self) -> None:
        """Ends every process; may be called twice."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._compiler.close)
            stack.callback(self._baselines.close)
            self.renew()

    def _prove(self, prepared: Prepared, instance: Instance, judge: Judge, seed: np.random.SeedSequence) -> float | Failure:
        with self.stage(prepared, instance, 1) as stage:
            failure = judge.judge(stage, seed)
            if failure is not None:
                return failure
            single = stage.replay(1)
            return fault_failure(single) if isinstance(single, Fault) else single.ns / 1000

    def guarded(self, step: Callable[[], T | Failure]) -> T | Failure:
        """A step. What the driver refuses is the kernel's fault; after a fault, the card is asked whether it still answers.

        Raises:
            DeviceError: It does not.
        """
        try:
            return step()
        except Refused as error:
            return Failure(Status.UNLAUNCHABLE, "launch", str(error))
        except RunnerFault as error:
            kind = FaultKind.TIME_LIMIT if error.is_time_limit else FaultKind.CRASH
            return fault_failure(Fault(kind, str(error)))
        finally:
            if self._runner is not None and not self._runner.is_alive:
                self.renew()
                self._probe()

    def _probe(self) -> None:
        """Opens a fresh runner on a card that has just seen a fault, and has a known-good kernel run there.

        Raises:
            DeviceError: The card does not answer; it is not to be used until somebody has looked at it.
        """
        reason = ""
        for pause in _PROBE_PAUSES_S:
            time.sleep(pause)
            runner = self.runner()
            try:
                if runner.probe() > 0:
                    return
                reason = "a known-good kernel wrote nothing"
            except (DeviceError, Refused, RunnerFault) as error:
                reason = str(error)
            self.renew()
        hint = "nvidia-smi; evo-l2 doctor; resume the run once the card is well"
        expected = f"card {self._device} to run a known-good kernel after a kernel's fault"
        raise DeviceError("the card does not answer", expected=expected, found=reason, hint=hint)

    def _describe(self, facts: DriverFacts) -> Environment:
        identity = {
            **built_identity(self._compiler, self._card),
            "card": facts.name,
            "memory": f"{facts.memory_bytes / 2**30:.0f} GiB",
        }
        sanitizer = find_sanitizer()
        provenance = {
            "host": platform.node(),
            "driver": facts.driver,
            "device": str(self._device),
            "sanitizer": "compute-sanitizer"
            if sanitizer is not None
            else "none: finalists are not run under compute-sanitizer",
        }
        return Environment("cuda", identity, provenance)


def _cubin(prepared: Prepared) -> bytes:
    """What was built.

    Raises:
        ToolchainError: It is gone from the cache.
    """
    if prepared.artefact is None:
        raise ValueError("the kernel was stopped before it could run")
    try:
        return prepared.artefact.read_bytes()
    except OSError as error:
        hint = "run again: it is built anew"
        raise ToolchainError("a built kernel is gone from the cache", found=str(error), hint=hint) from error
