"""The CUDA target on a card: build, gate, run, judge and time kernels against the vendor's libraries."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np

from evo_l2.contracts import Prepared
from evo_l2.evaluation import CaseTiming, Environment, Evaluation, Status, TimingSession, Verdict
from evo_l2.judge import Failure, GateReport, Judge, with_secret
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance, Problem
from evo_l2.targets.cuda.card.rig import Rig

__all__ = ["CudaEvaluator"]


class CudaEvaluator:
    """Proves and times kernels of one problem on one card. A context manager. See `evo_l2.contracts.Evaluator`.

    Args:
        problem: What is computed.
        rig: The card; closed with the evaluator.
        skip: Gates to leave out; for tests of the gates.
        observe: Called after every gate on results.
    """

    def __init__(
        self,
        problem: Problem,
        rig: Rig,
        *,
        skip: frozenset[str] = frozenset(),
        observe: Callable[[GateReport], None] | None = None,
    ) -> None:
        self._problem = problem
        self._rig = rig
        self._skip = skip
        self._observe = observe
        self._secret = secrets.randbits(128)

    def __enter__(self) -> CudaEvaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """Card, toolkit and driver."""
        return self._rig.environment

    def prepare(self, kernel: Kernel) -> Prepared:
        """See `evo_l2.contracts.Evaluator`."""
        return self._rig.prepare(kernel, self._problem)

    def measure(self, prepared: Prepared, seed: np.random.SeedSequence, *, purpose: str = "search") -> Evaluation:
        """Puts every gate to the kernel on every case, then times every case; finalists in a fresh process, and not before
        compute-sanitizer has seen a small case (gate `sanitizer`; the environment says whether there is one).

        What is drawn follows from the seed and from a secret of this evaluator, as on the CPU target.

        Raises:
            DeviceError: The card, a runner or a baseline is at fault.
        """
        begin = time.perf_counter()
        is_final = purpose == "final"
        if is_final:
            self._rig.renew()
        judge = Judge(deterministic=prepared.kernel.launch.deterministic, skip=self._skip, observe=self._observe)
        layout = prepared.kernel.launch.layout
        instances = [Instance(self._problem, sizes, layout) for sizes in self._problem.cases]
        children = with_secret(seed, self._secret).spawn(2 * len(instances))
        call_us: list[float] = []
        for instance, child in zip(instances, children[: len(instances)], strict=True):
            proved = self._rig.prove(prepared, instance, judge, child)
            if isinstance(proved, Failure):
                return _failed(prepared, proved, begin)
            call_us.append(proved)
        if is_final and "sanitizer" not in self._skip:
            unsound = self._sanitize(prepared, instances[0])
            if unsound is not None:
                return _failed(prepared, unsound, begin)
        cases: list[CaseTiming] = []
        for instance, guess, child in zip(instances, call_us, children[len(instances) :], strict=True):
            timing = self._rig.time(prepared, instance, guess, judge, child, final=is_final)
            if isinstance(timing, Failure):
                return _failed(prepared, timing, begin)
            cases.append(timing)
        verdict = Verdict(Status.PASSED, build=prepared.build, measures=prepared.measures)
        return Evaluation(verdict, TimingSession(tuple(cases), purpose), time.perf_counter() - begin)

    def _sanitize(self, prepared: Prepared, instance: Instance) -> Failure | None:
        """What compute-sanitizer finds, told to the observer as a gate where any of its tools came to its end."""
        begin = time.perf_counter()
        report = self._rig.sanitize(prepared, instance)
        if self._observe is not None and report.checked:
            self._observe(GateReport("sanitizer", report.sizes, time.perf_counter() - begin, report.failure))
        return report.failure

    def close(self) -> None:
        """Ends every process; may be called twice."""
        self._rig.close()


def _failed(prepared: Prepared, failure: Failure, begin: float) -> Evaluation:
    verdict = Verdict(failure.status, failure.gate, failure.message, prepared.build, prepared.measures)
    return Evaluation(verdict, None, time.perf_counter() - begin)
