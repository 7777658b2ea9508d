"""cuBLASLt as a baseline: by its heuristic's first choice, or tuned over all that the heuristic offers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evo_l2.errors import DeviceError, ToolchainError
from evo_l2.targets.cuda.driver import CudaError, bindings, checked
from evo_l2.targets.cuda.libraries.algorithm_tuning import choose
from evo_l2.targets.cuda.libraries.cublaslt_plan import Algorithm, CublasLtPlan
from evo_l2.targets.cuda.libraries.gemm_call import GemmCall, checked_sets
from evo_l2.targets.cuda.libraries.launch_graph import LaunchGraph
from evo_l2.targets.cuda.libraries.vendor import Workspace, load_bindings, version_of

__all__ = ["CublasLtLibrary"]

_MOST_ALGORITHMS = 256
"""cuBLASLt 13.1 offers eight on an H200, however many are asked for. Of 138 to 999 more configurations, drawn from what its
algorithms say they can do, none was faster (1024³, 4096³, 64x4096x4096): the heuristic's are enough."""
_SAMPLE_US = 300.0
"""Least device time of one sample."""
_MOST_LAUNCHES = 1024


class CublasLtLibrary:
    """`cublasLtMatmul`. See `evo_l2.targets.cuda.libraries.library.Library`.

    Args:
        call: The product.
        workspace_bytes: Scratch memory.
        tuned: Whether the algorithms are timed in `prepare`; else the heuristic's first is taken.
    """

    def __init__(self, call: GemmCall, workspace_bytes: int, *, tuned: bool) -> None:
        self._module = load_bindings("cublasLt")
        self._call = call
        self._workspace_bytes = workspace_bytes
        self._tuned = tuned
        self._workspace: Workspace | None = None
        self._plan: CublasLtPlan | None = None
        self._algorithm: Algorithm | None = None
        self._sets: tuple[Mapping[str, int], ...] = ()
        self._how = "tuned" if tuned else "the heuristic's first"

    @property
    def name(self) -> str:
        """See `Library`."""
        return "cublaslt-tuned" if self._tuned else "cublaslt"

    @property
    def description(self) -> str:
        """See `Library`."""
        algorithm = "" if self._algorithm is None else f": {self._algorithm.description}"
        return f"cuBLASLt {version_of(self._module)}, {self._how}{algorithm}, workspace {self._workspace_bytes} bytes"

    def prepare(self, stream: int, sets: Sequence[Mapping[str, int]]) -> None:
        """See `Library`."""
        self.close()
        self._sets = checked_sets(sets)
        try:
            self._set_up(stream)
            self.launch(stream, 0)
            checked(bindings().cuStreamSynchronize(stream))
        except CudaError as error:
            self.close()
            raise DeviceError("cuBLASLt fails", expected="a product", found=str(error)) from error
        except BaseException:
            self.close()
            raise

    def launch(self, stream: int, index: int) -> None:
        """See `Library`."""
        assert self._plan is not None, "prepare comes first"
        assert self._algorithm is not None, "prepare comes first"
        try:
            self._plan.enqueue(self._algorithm, stream, self._sets[index])
        except self._module.cuBLASLtError as error:
            raise DeviceError("cuBLASLt refuses a product", expected=f"{self._call}", found=str(error)) from error

    def close(self) -> None:
        """See `Library`."""
        if self._plan is not None:
            self._plan.close()
        if self._workspace is not None:
            self._workspace.close()
        self._plan = self._workspace = self._algorithm = None

    def _set_up(self, stream: int) -> None:
        self._workspace = Workspace(self._workspace_bytes)
        try:
            self._plan = CublasLtPlan(self._module, self._call, self._workspace, self._sets)
            algorithms = self._plan.algorithms(_MOST_ALGORITHMS if self._tuned else 1)
        except self._module.cuBLASLtError as error:
            raise ToolchainError("cuBLASLt cannot do a product", expected=f"{self._call}", found=str(error)) from error
        if not algorithms:
            raise ToolchainError("cuBLASLt offers no algorithm", expected=f"one for {self._call}", found="none")
        self._algorithm = self._fastest(self._plan, algorithms, stream) if self._tuned else algorithms[0]

    def _fastest(self, plan: CublasLtPlan, algorithms: Sequence[Algorithm], stream: int) -> Algorithm:
        """The algorithm that is fastest over the buffer sets in turn.

        Raises:
            CudaError: The device fails.
            ToolchainError: No algorithm runs.
        """
        n_sets = len(self._sets)
        n_launches = min(n_sets, _MOST_LAUNCHES)

        def record(index: int) -> LaunchGraph | None:
            try:
                # Outside of the graph first: a kernel that is not loaded yet may not be loaded while a stream records.
                plan.enqueue(algorithms[index], stream, self._sets[0])
                checked(bindings().cuStreamSynchronize(stream))
                return LaunchGraph(
                    stream, n_launches, lambda number: plan.enqueue(algorithms[index], stream, self._sets[number % n_sets])
                )
            except self._module.cuBLASLtError:
                return None

        for index in range(len(algorithms)):
            trial = record(index)
            if trial is not None:
                trial.sample_us()
                once_us = trial.sample_us() * n_launches
                trial.close()
                n_launches = min(n_launches * max(1, math.ceil(_SAMPLE_US / once_us)), _MOST_LAUNCHES)
                break
        choice = choose(len(algorithms), record)
        if choice is None:
            raise ToolchainError("cuBLASLt offers no algorithm that runs", expected=f"one for {self._call}", found="none")
        failed = f", {choice.n_failed} failed" if choice.n_failed else ""
        self._how = f"number {choice.index} of {choice.n_timed} timed{failed}"
        return algorithms[choice.index]
