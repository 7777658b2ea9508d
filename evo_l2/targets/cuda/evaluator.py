"""The CUDA target on a card: build, gate, run, judge and time kernels against the vendor's libraries."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from queue import LifoQueue
from types import TracebackType

import numpy as np

from evo_l2.contracts import Prepared
from evo_l2.errors import DeviceError
from evo_l2.evaluation import CaseTiming, Environment, Evaluation, Status, TimingSession, Verdict
from evo_l2.judge import Failure, GateReport, Judge, with_secret
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance, Problem
from evo_l2.targets.cuda.card.rig import Rig

__all__ = ["CudaEvaluator"]


class CudaEvaluator:
    """Proves and times kernels of one problem on a card, or on several of one kind at once, from as many threads.

    A context manager. See `evo_l2.contracts.Evaluator`.

    Args:
        problem: What is computed.
        rigs: The cards; closed with the evaluator.
        skip: Gates to leave out; for tests of the gates.
        observe: Called after every gate on results.

    Raises:
        DeviceError: The cards' numbers cannot be compared.
    """

    def __init__(
        self,
        problem: Problem,
        *rigs: Rig,
        skip: frozenset[str] = frozenset(),
        observe: Callable[[GateReport], None] | None = None,
    ) -> None:
        self._problem = problem
        self._rigs = rigs
        self._free: LifoQueue[Rig] = LifoQueue()
        self._skip = skip
        self._observe = observe
        self._secret = secrets.randbits(128)
        self._environment = _common([rig.environment for rig in rigs])
        for rig in reversed(rigs):
            self._free.put(rig)

    def __enter__(self) -> CudaEvaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """Card, toolkit and driver; the numbers of all cards."""
        return self._environment

    def prepare(self, kernel: Kernel) -> Prepared:
        """See `evo_l2.contracts.Evaluator`."""
        return self._rigs[0].prepare(kernel, self._problem)

    def measure(self, prepared: Prepared, seed: np.random.SeedSequence, *, purpose: str = "search") -> Evaluation:
        """Puts every gate to the kernel on every case, then times every case; finalists in a fresh process, and not before
        compute-sanitizer has seen a small case (gate `sanitizer`; the environment says whether there is one).

        What is drawn follows from the seed and from a secret of this evaluator, as on the CPU target.

        Raises:
            DeviceError: The card, a runner or a baseline is at fault.
        """
        begin = time.perf_counter()
        rig = self._free.get()
        try:
            return self._measure(rig, prepared, seed, purpose, begin)
        finally:
            self._free.put(rig)

    def _measure(self, rig: Rig, prepared: Prepared, seed: np.random.SeedSequence, purpose: str, begin: float) -> Evaluation:
        is_final = purpose == "final"
        if is_final:
            rig.renew()
        judge = Judge(deterministic=prepared.kernel.launch.deterministic, skip=self._skip, observe=self._observe)
        layout = prepared.kernel.launch.layout
        instances = [Instance(self._problem, sizes, layout) for sizes in self._problem.cases]
        children = with_secret(seed, self._secret).spawn(2 * len(instances))
        call_us: list[float] = []
        for instance, child in zip(instances, children[: len(instances)], strict=True):
            proved = rig.prove(prepared, instance, judge, child)
            if isinstance(proved, Failure):
                return _failed(prepared, proved, begin)
            call_us.append(proved)
        if is_final and "sanitizer" not in self._skip:
            unsound = self._sanitize(rig, prepared, instances[0])
            if unsound is not None:
                return _failed(prepared, unsound, begin)
        cases: list[CaseTiming] = []
        for instance, guess, child in zip(instances, call_us, children[len(instances) :], strict=True):
            timing = rig.time(prepared, instance, guess, judge, child, final=is_final)
            if isinstance(timing, Failure):
                return _failed(prepared, timing, begin)
            cases.append(timing)
        verdict = Verdict(Status.PASSED, build=prepared.build, measures=prepared.measures)
        return Evaluation(verdict, TimingSession(tuple(cases), purpose), time.perf_counter() - begin)

    def _sanitize(self, rig: Rig, prepared: Prepared, instance: Instance) -> Failure | None:
        """What compute-sanitizer finds, told to the observer as a gate where any of its tools came to its end."""
        begin = time.perf_counter()
        report = rig.sanitize(prepared, instance)
        if self._observe is not None and report.checked:
            self._observe(GateReport("sanitizer", report.sizes, time.perf_counter() - begin, report.failure))
        return report.failure

    def close(self) -> None:
        """Ends every process; may be called twice."""
        with contextlib.ExitStack() as stack:
            for rig in self._rigs:
                stack.callback(rig.close)


def _common(found: list[Environment]) -> Environment:
    """The environment that several cards share, with all their numbers.

    Raises:
        DeviceError: They have none in common.
    """
    first = found[0]
    for other in found[1:]:
        if other.key != first.key:
            expected = f"cards like card {first.provenance['device']}: {dict(first.identity)}"
            raise DeviceError("numbers of these cards cannot be compared", expected=expected, found=f"{dict(other.identity)}")
    numbers = ", ".join(environment.provenance["device"] for environment in found)
    return Environment(first.target, first.identity, {**first.provenance, "device": numbers})


def _failed(prepared: Prepared, failure: Failure, begin: float) -> Evaluation:
    verdict = Verdict(failure.status, failure.gate, failure.message, prepared.build, prepared.measures)
    return Evaluation(verdict, None, time.perf_counter() - begin)
