"""An evaluator that takes no time: its numbers follow from a kernel's tunables. For measuring and testing the loop itself."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np

from evo_l2.contracts import Prepared
from evo_l2.evaluation import BuildReport, CaseTiming, Environment, Evaluation, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel

N_BLOCKS = 12


def kernel_source(n_bytes: int = 0, base: int = 0) -> str:
    """A kernel with six tunables of ten values each (a million kernels), padded with comments to a size."""
    lines = ["//! layout  nn", "//! launch  hgemm(A: in, B: in, C: out, M, N, K)"]
    lines += [f"#define T{i} {base} //? 0 1 2 3 4 5 6 7 8 9" for i in range(6)]
    lines.append("void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K) {}")
    text = "\n".join(lines) + "\n"
    while len(text) < n_bytes:
        text += f"// line {len(text)} of padding, so that the source has the size of a real kernel\n"
    return text


class InstantEvaluator:
    """Implements `evo_l2.contracts.Evaluator`; the best kernel has all tunables at 7. Kernels whose first is 9 are wrong."""

    def __init__(self) -> None:
        self.measured: list[str] = []
        """Identities in the order in which they were measured."""

    @property
    def environment(self) -> Environment:
        """A place of its own."""
        return Environment("cpu", {"evaluator": "instant"})

    def prepare(self, kernel: Kernel) -> Prepared:
        """Measures from the first three tunables."""
        values = tuple(kernel.constants.values())
        identity = hashlib.sha256(repr(values).encode()).hexdigest()
        build = BuildReport(0.0, machine_code=identity, resources={"simd_bits": 256, "n_fma": 8, "code_bytes": 512})
        measures = (float(128 * (values[0] % 5)), float(8 * values[1]), float(40000 * values[2]))
        return Prepared(kernel, identity, None, build, measures, Path(identity))

    def measure(self, prepared: Prepared, seed: np.random.SeedSequence, *, purpose: str = "search") -> Evaluation:
        """A time that grows with the distance from the best."""
        assert prepared.identity is not None
        self.measured.append(prepared.identity)
        values = list(prepared.kernel.constants.values())
        if values[0] == 9:
            return Evaluation(Verdict(Status.INCORRECT, "exact-integers", "wrong", prepared.build, prepared.measures))
        time_us = 100.0 * math.exp(0.05 * sum(abs(v - 7) for v in values))
        noise = np.random.default_rng(seed).normal(0.0, 0.01, N_BLOCKS)
        kernel_us = tuple(float(t) for t in time_us * np.exp(noise))
        case = CaseTiming((64, 64, 64, 1), kernel_us, (100.0,) * N_BLOCKS, (True,) * N_BLOCKS)
        verdict = Verdict(Status.PASSED, build=prepared.build, measures=prepared.measures)
        return Evaluation(verdict, TimingSession((case,), purpose))

    def close(self) -> None:
        """Nothing to end."""
