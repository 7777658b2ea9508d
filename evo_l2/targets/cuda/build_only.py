"""The CUDA target on a machine without a card: kernels are built, read and gated; nothing is run, so nothing has a time."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from evo_l2.contracts import Prepared
from evo_l2.evaluation import HARNESS_VERSION, Environment, Evaluation, Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem
from evo_l2.targets.cuda.cards import Card
from evo_l2.targets.cuda.prepare import prepare
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler
from evo_l2.targets.cuda.toolchain.toolkit import find_toolkit

__all__ = ["BuildOnlyEvaluator", "built_identity", "open_compiler"]


def open_compiler(card: Card, cache_dir: Path, builder: str | None = None, build_s: float = 20.0) -> CudaCompiler:
    """The compiler of record for a card.

    Args:
        card: What is built for.
        cache_dir: Where builds are kept; several processes may share it.
        builder: `nvcc` or `nvrtc`; nvcc where the toolkit has it when left out.
        build_s: Seconds of processor time of one build step.

    Raises:
        ToolchainError: The toolkit, or a part of it, is missing or broken.
        ConfigurationError: The toolkit does not build for the card.
    """
    toolkit = find_toolkit()
    if builder == "nvrtc" and toolkit.nvrtc is None:
        toolkit = find_toolkit(wheels_first=True)
    toolkit.check_architecture(card.arch)
    toolkit.tool("nvdisasm")
    return CudaCompiler(toolkit, cache_dir, builder=builder, cpu_s=build_s)


def built_identity(compiler: CudaCompiler, card: Card) -> dict[str, str]:
    """What parts the results of two builds, whether or not anything is run."""
    return {
        "arch": card.arch,
        "multiprocessors": str(card.n_sms),
        "compiler": compiler.builder,
        "harness": HARNESS_VERSION,
    }


class BuildOnlyEvaluator:
    """Implements `evo_l2.contracts.Evaluator` up to the launch: the best that a kernel can come to is `BUILT`.

    Args:
        problem: What is computed.
        cache_dir: Where builds are kept; several processes may share it.
        card: The card that kernels are built for and checked against.
        builder: `nvcc` or `nvrtc`; nvcc where the toolkit has it when left out.
        build_s: Seconds of processor time of one build step.
        skip: Gates on machine code to leave out; for tests of the gates.

    Raises:
        ToolchainError: The toolkit, or a part of it, is missing or broken.
        ConfigurationError: The toolkit does not build for the card.
    """

    def __init__(
        self,
        problem: Problem,
        cache_dir: Path,
        card: Card,
        *,
        builder: str | None = None,
        build_s: float = 20.0,
        skip: frozenset[str] = frozenset(),
    ) -> None:
        self._problem = problem
        self._card = card
        self._skip = skip
        self._compiler = open_compiler(card, cache_dir, builder, build_s)
        identity = {**built_identity(self._compiler, card), "card": f"none (built for {card.name})"}
        toolkit = self._compiler.toolkit
        provenance = {"host": platform.node(), "toolkit": toolkit.source}
        self._environment = Environment("cuda", identity, provenance)

    def __enter__(self) -> BuildOnlyEvaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """The card that is built for, and the compiler; kept apart from every environment in which something was run."""
        return self._environment

    @property
    def compiler(self) -> CudaCompiler:
        """Builds the kernels."""
        return self._compiler

    def prepare(self, kernel: Kernel) -> Prepared:
        """See `evo_l2.contracts.Evaluator`."""
        return prepare(kernel, self._problem, self._compiler, self._card, self._skip)

    def measure(self, prepared: Prepared, seed: np.random.SeedSequence, *, purpose: str = "search") -> Evaluation:
        """Runs nothing: says that the kernel was built."""
        begin = time.perf_counter()
        verdict = Verdict(Status.BUILT, build=prepared.build, measures=prepared.measures)
        return Evaluation(verdict, None, time.perf_counter() - begin)

    def close(self) -> None:
        """Ends the compiler's processes."""
        self._compiler.close()
