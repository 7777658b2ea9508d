"""Settings of one kernel's tunables, tried at one shape on a card, by successive halving."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from evo_l2.contracts import Prepared
from evo_l2.judge import Failure, Fault, Judge, fault_failure
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance

if TYPE_CHECKING:
    from evo_l2.targets.cuda.card.rig import Rig

__all__ = ["settings_of", "sweep"]

_ROUNDS = ((2, 0.25), (5, 0.08), (15, 0.0))
"""Replays of each setting in a round, and the share of all settings that are left after it."""
_FEWEST = 3
_SEED = 20


def settings_of(kernel: Kernel, most: int) -> list[Kernel]:
    """The kernel as it stands and `most` other settings of its tunables: all there are, or as many by lot (a fixed seed)."""
    domains = [tunable.domain for tunable in kernel.tunables]
    names = [tunable.name for tunable in kernel.tunables]
    n_points = math.prod(map(len, domains))
    if n_points <= most:
        points = list(itertools.product(*domains))
    else:
        rng = np.random.default_rng(_SEED)
        lots: dict[tuple[int, ...], None] = {}
        while len(lots) < most:
            lots[tuple(domain[int(rng.integers(len(domain)))] for domain in domains)] = None
        points = list(lots)
    found = {kernel.digest: kernel}
    for point in points:
        other = kernel.with_tunables({name: int(value) for name, value in zip(names, point, strict=True)})
        found.setdefault(other.digest, other)
    return list(found.values())


def sweep(rig: Rig, kernel: Kernel, instance: Instance, most: int) -> Kernel:
    """The fastest of a kernel's settings at one case, by unpaired samples, which serve for nothing else.

    Settings that do not build, are refused or fault are left out; a wrong one may win here, and is found when it is judged.

    Raises:
        DeviceError: The card or the runner is at fault.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda each: rig.prepare(each, instance.problem), settings_of(kernel, most)))
    left = [prepared for prepared in built if prepared.verdict is None]
    for n_replays, share in _ROUNDS:
        times: list[tuple[float, Prepared]] = []
        for prepared in left:
            time_us = rig.guarded(lambda: _quick_us(rig, prepared, instance, n_replays))  # noqa: B023
            if not isinstance(time_us, Failure):
                times.append((time_us, prepared))
        times.sort(key=lambda pair: (pair[0], pair[1].kernel.digest))
        left = [prepared for _, prepared in times[: max(_FEWEST, math.ceil(share * len(built)))]]
    return left[0].kernel if left else kernel


def _quick_us(rig: Rig, prepared: Prepared, instance: Instance, n_replays: int) -> float | Failure:
    """Median device time of a call in microseconds, on inputs that are drawn once."""
    judge = Judge()
    n_calls = rig.n_calls(instance, 1e6)
    with rig.stage(prepared, instance, n_calls) as stage:
        judge.prepare_timed(stage, n_calls, stage.draws(np.random.SeedSequence()))
        found = []
        for _ in range(n_replays):
            sample = stage.replay(n_calls)
            if isinstance(sample, Fault):
                return fault_failure(sample)
            found.append(sample.ns / 1000 / n_calls)
    return statistics.median(found)
