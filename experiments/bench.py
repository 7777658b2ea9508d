"""`evo-l2 bench`: kernels, or an archive's elites, against the vendor's libraries over any set of shapes, on a card."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from evo_l2.errors import DeviceError
from evo_l2.evaluation import CaseTiming, Estimate, Status, TimingSession
from evo_l2.judge import Failure, Fault, Judge, fault_failure
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.card.pairs import roofline_us
from evo_l2.timing import pooled_estimate
from experiments.sweeping import sweep

if TYPE_CHECKING:
    from evo_l2.contracts import Prepared
    from evo_l2.targets.cuda.card.pairs import Side
    from evo_l2.targets.cuda.card.rig import Rig

__all__ = ["MARGIN", "MODES", "Row", "bench", "standing"]

MODES = ("offline", "server", "host")
MARGIN = 0.01
"""By how much an interval has to clear 1 for a kernel to be called faster or slower."""
_HOST_BLOCKS = 12
_HOST_CALLS = 64
_SERVER_BLOCKS = 6
_SERVER_CALLS = 400
_LOAD = 0.5
"""Share of the slower side's capacity at which calls arrive, as seen from the host."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel at one shape, or why there is no time."""

    kernel: str
    digest: str
    layout: str
    accumulate: str
    sizes: tuple[int, ...]
    """M, N, K, BATCH."""
    mode: str
    tunables: Mapping[str, int]
    status: str
    message: str | None = None
    """Gate and reason of a kernel that did not pass."""
    time_us: float | None = None
    """Median per call: device time, or latency in the other modes."""
    baseline: str | None = None
    """What it was compared with in pairs: the fastest library."""
    baseline_us: float | None = None
    estimate: Estimate | None = None
    """Speed over that of the baseline."""
    roofline: float | None = None
    """Share of what arithmetic and memory allow by the card's table; offline alone."""
    tflops: float | None = None
    libraries_us: Mapping[str, float | None] = field(default_factory=dict)
    """Every library's median device time, by `name-layout`, from the samples by which the fastest was chosen."""
    percentiles_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Server mode: latency of kernel and baseline at p50, p95, p99."""


def standing(estimate: Estimate) -> str:
    """`win`, `loss`, or `tie` where the interval does not clear 1 by the margin."""
    low, high = estimate.interval
    return "win" if low > 1 + MARGIN else "loss" if high < 1 - MARGIN else "tie"


def bench(
    rig: Rig,
    kernels: Sequence[tuple[str, Kernel]],
    shapes: Sequence[tuple[int, int, int, int]],
    accumulate: str,
    *,
    mode: str = "offline",
    both_layouts: bool = False,
    against: Callable[[Instance], Side] | None = None,
    n_settings: int = 0,
) -> Iterator[Row]:
    """One row for each shape and kernel, shape by shape; every kernel in a fresh process.

    Args:
        rig: The card.
        kernels: Names and kernels.
        shapes: M, N, K, BATCH of each.
        accumulate: The class that kernels have to keep.
        mode: See `MODES`.
        both_layouts: Whether libraries are also timed in the layout that a kernel does not have.
        against: Makes the other side of the pairs; the fastest library when left out.
        n_settings: Settings of a kernel's tunables to try at each shape before the best is measured; 0 for none.

    Raises:
        DeviceError: The card, a runner or every library is at fault.
    """
    for shape in shapes:
        opened: dict[str, Instance] = {}
        libraries: dict[str, float | None] = {}
        for name, kernel in kernels:
            layout = kernel.launch.layout
            instance = Instance(Hgemm((shape,), accumulate, (layout,)), shape, layout)
            for each in ("nn", "nt") if both_layouts else (layout,):
                if against is None and each not in opened:
                    opened[each] = Instance(Hgemm((shape,), accumulate, (each,)), shape, each)
                    chosen = rig.baselines.at(opened[each])
                    libraries |= {f"{c.name}-{each}": c.median_us for c in chosen.candidates}
            tuned = sweep(rig, kernel, instance, n_settings) if n_settings and kernel.tunables else kernel
            yield _row(rig, name, tuned, instance, mode, libraries, against)
        for instance in opened.values():
            rig.baselines.release(instance)


def _row(
    rig: Rig,
    name: str,
    kernel: Kernel,
    instance: Instance,
    mode: str,
    libraries: Mapping[str, float | None],
    against: Callable[[Instance], Side] | None,
) -> Row:
    accumulate = str(instance.problem.definition["accumulate"])
    settings = {tunable.name: tunable.value for tunable in kernel.tunables}
    about = (name, kernel.digest, instance.layout, accumulate, instance.sizes, mode, settings)
    prepared = rig.prepare(kernel, instance.problem)
    if prepared.verdict is not None:
        return Row(*about, prepared.verdict.status.value, f"{prepared.verdict.gate}: {prepared.verdict.message}")
    rig.renew()
    judge = Judge(deterministic=kernel.launch.deterministic)
    seeds = np.random.SeedSequence().spawn(2)
    call_us = rig.prove(prepared, instance, judge, seeds[0])
    if isinstance(call_us, Failure):
        return Row(*about, call_us.status.value, f"{call_us.gate}: {call_us.message}")
    other = against(instance) if against is not None else rig.baselines.at(instance).side
    opponent = "kernel" if against is not None else rig.baselines.at(instance).name
    percentiles: dict[str, tuple[float, float]] = {}
    timing: CaseTiming | Failure
    if mode == "offline":
        timing = rig.time(prepared, instance, call_us, judge, seeds[1], final=True, against=other)
    else:
        timing = rig.guarded(lambda: _from_the_host(rig, prepared, instance, call_us, judge, other, mode, percentiles))
    if isinstance(timing, Failure):
        return Row(*about, timing.status.value, f"{timing.gate}: {timing.message}")
    estimate = pooled_estimate([TimingSession((timing,), "final")])
    kept = [k for k, keep in zip(timing.kernel_us, timing.kept, strict=True) if keep] or timing.kernel_us
    time_us = statistics.median(kept)
    base = [b for b, keep in zip(timing.baseline_us, timing.kept, strict=True) if keep] or timing.baseline_us
    work = instance.problem.work(instance.sizes)
    floor_us = max(roofline_us(instance, rig.card), rig.card.memory_us(work.n_bytes))
    return Row(
        *about,
        Status.PASSED.value if estimate is not None else Status.INCONCLUSIVE.value,
        None,
        time_us,
        opponent,
        statistics.median(base),
        estimate,
        floor_us / time_us if mode == "offline" else None,
        work.n_flops / time_us / 1e6,
        dict(libraries),
        percentiles,
    )


def _from_the_host(
    rig: Rig,
    prepared: Prepared,
    instance: Instance,
    call_us: float,
    judge: Judge,
    other: Side,
    mode: str,
    percentiles: dict[str, tuple[float, float]],
) -> CaseTiming | Failure:
    """Latencies that a caller sees, in blocks of kernel, library, library, kernel; percentiles over all blocks."""
    n_calls = rig.n_calls(instance, call_us)
    seeds = np.random.SeedSequence().spawn(2)
    with rig.stage(prepared, instance, n_calls) as stage:
        most = _HOST_CALLS if mode == "host" else _SERVER_CALLS
        sides = {"kernel": (stage, min(n_calls, most)), "baseline": (other.stage, min(other.n_calls, most))}
        draws = {side: it[0].draws(seed) for (side, it), seed in zip(sides.items(), seeds, strict=True)}
        rng = np.random.default_rng(seeds[0])
        gap_us = call_us / _LOAD
        if mode == "server":
            firsts = []
            for side, (on, n) in sides.items():
                first = on.host(n)
                if isinstance(first, Fault):
                    return _blamed(first, side)
                firsts.append(statistics.median(first))
            gap_us = max(firsts) / 1000 / _LOAD
        times: dict[str, list[float]] = {side: [] for side in sides}
        everything: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(_HOST_BLOCKS if mode == "host" else _SERVER_BLOCKS):
            arrivals = tuple(int(ns) for ns in np.cumsum(rng.exponential(gap_us * 1000, _SERVER_CALLS)))
            found: dict[str, list[float]] = {side: [] for side in sides}
            for side in ("kernel", "baseline", "baseline", "kernel"):
                on, n = sides[side]
                fills = judge.prepare_timed(on, n, draws[side])
                latencies = on.host(n) if mode == "host" else on.serve(arrivals)
                if isinstance(latencies, Fault):
                    return _blamed(latencies, side)
                if side == "kernel":
                    failure = judge.check_timed(on, fills, draws[side])
                    if failure is not None:
                        return failure
                found[side] += [ns / 1000 for ns in latencies]
            for side, values in found.items():
                times[side].append(statistics.median(values))
                everything[side] += values
        for share in (50, 95, 99) if mode == "server" else ():
            both = [float(np.percentile(everything[side], share)) for side in sides]
            percentiles[f"p{share}"] = (both[0], both[1])
    kept = (True,) * len(times["kernel"])
    return CaseTiming(instance.sizes, tuple(times["kernel"]), tuple(times["baseline"]), kept)


def _blamed(fault: Fault, side: str) -> Failure:
    """A fault of the kernel.

    Raises:
        DeviceError: It is the other side's.
    """
    if side == "baseline":
        raise DeviceError("the baseline fails", found=fault.detail, hint="evo-l2 doctor")
    return fault_failure(fault)
