"""A process that calls a built kernel once on random inputs, for compute-sanitizer to watch. See `sanitizer`.

    python -P -m evo_l2.targets.cuda.card.sanitized_run JOB

JOB is a file with a pickled `Job`, which the parent wrote. Memory comes from plain `cuMemAlloc`, of the exact size, which the
tool keeps watch over; outputs and workspaces are left as they come, so that reading them first is found.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evo_l2.errors import EvoL2Error
from evo_l2.launch import Role
from evo_l2.problem import Operand
from evo_l2.targets.cuda.card.kernel_work import KernelWork
from evo_l2.targets.cuda.card.requests import fault_in_words
from evo_l2.targets.cuda.driver import CudaError, bindings, checked, retain_context
from evo_l2.targets.cuda.launching.plan import Plan

__all__ = ["FAULT", "REFUSED", "Job", "main"]

FAULT = "the kernel's fault: "
"""Begins the line that is printed when the call did not come to its end."""
REFUSED = "not launched: "
"""Begins the line that is printed when there was no call."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is run, and on what."""

    cubin: bytes
    plan: Plan
    operands: tuple[Operand, ...]
    names: Mapping[str, int]
    """Value of every size symbol."""
    layout: str
    device: int


def main(arguments: list[str]) -> int:
    """Runs one job; 0 when the call came to its end."""
    job: Job = pickle.loads(Path(arguments[0]).read_bytes())
    try:
        retain_context(job.device)
        cu = bindings()
        rng = np.random.default_rng(0)
        operands = {}
        for operand in job.operands:
            shape = [job.names[symbol] for symbol in operand.shapes[job.layout]]
            n_values = math.prod(shape)
            operands[operand.name] = int(checked(cu.cuMemAlloc(n_values * np.dtype(operand.dtype).itemsize)))
            if operand.role is Role.IN:
                values = rng.standard_normal(n_values).astype(operand.dtype)
                checked(cu.cuMemcpyHtoD(operands[operand.name], values.ctypes.data, values.nbytes))
        spaces = {space.name: int(checked(cu.cuMemAlloc(max(1, space.n_bytes)))) for space in job.plan.workspaces}
        stream = checked(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
        work = KernelWork(job.cubin, job.plan, [operands], spaces)
        checked(cu.cuCtxSynchronize())
        work.launch(int(stream), 0)
    except (EvoL2Error, CudaError) as error:
        words = fault_in_words(error.name) if isinstance(error, CudaError) else str(error)
        print(REFUSED + words, flush=True)
        return 2
    try:
        checked(cu.cuStreamSynchronize(stream))
    except CudaError as error:
        print(FAULT + fault_in_words(error.name), flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
