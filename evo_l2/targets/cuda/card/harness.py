"""The harness's own kernels, launched before and after what is timed: they read clocks, which no candidate may."""

from __future__ import annotations

from evo_l2.kernel import Kernel

__all__ = ["HARNESS", "clock_mhz"]

HARNESS = Kernel(
    """\
//! layout nn
//! launch clocks(C: out)
//! grid   SMS * 2
//! block  32
//! launch evict(A: in, C: out, N)
//! grid   SMS * 2
//! block  1024
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

extern "C" __global__ void evict(const uint4 *A, unsigned long long *C, int N)
{
    unsigned all = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N; i += gridDim.x * blockDim.x) {
        const uint4 value = __ldcg(A + i);
        all |= value.x | value.y | value.z | value.w;
    }
    if (all != 0)
        C[0] = all;
}
""",
    "cuda",
)
"""`clocks` writes, for every multiprocessor that a block ran on, its cycle counter and the card's clock in nanoseconds.

`evict` reads N times 16 bytes of zeros, and so fills the L2 cache with lines that need not be written back.
"""


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
