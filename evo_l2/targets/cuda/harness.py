"""The harness's own kernel, launched before and after what is timed: reads the clocks of every multiprocessor.

It uses the very registers that no candidate may read.
"""

from __future__ import annotations

from evo_l2.kernel import Kernel

__all__ = ["CLOCKS", "clock_mhz"]

CLOCKS = Kernel(
    """\
//! layout nn
//! launch clocks(C: out)
//! grid   SMS * 2
//! block  32
extern "C" __global__ void clocks(unsigned long long *C)
{
    if (threadIdx.x == 0) {
        unsigned sm;
        unsigned long long cycles, nanoseconds;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
        asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
        C[2 * sm] = cycles;
        C[2 * sm + 1] = nanoseconds;
    }
}
""",
    "cuda",
)
"""Writes, for every multiprocessor that a block ran on, its cycle counter and the card's clock in nanoseconds."""


def clock_mhz(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> float | None:
    """The multiprocessors' clock between two readings: the median over those that were read both times.

    Args:
        before: (cycles, nanoseconds) of every multiprocessor; zeros where there was no reading.
        after: The same, later.

    Returns:
        Megahertz; None where no multiprocessor was read twice.
    """
    found = sorted(
        1000.0 * (late[0] - early[0]) / (late[1] - early[1])
        for early, late in zip(before, after, strict=True)
        if early[1] and late[1] > early[1] and late[0] > early[0]
    )
    return found[len(found) // 2] if found else None
