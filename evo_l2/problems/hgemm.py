"""HGEMM: C = A B in half precision, batched by stride, with single- or half-precision accumulation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from evo_l2.draws import Draws
from evo_l2.errors import ConfigurationError
from evo_l2.launch import Role
from evo_l2.measures import Axis, MeasuresSchema
from evo_l2.problem import Arrays, Defect, Gate, Instance, Operand, Work
from evo_l2.problems.hgemm_checks import spot_check
from evo_l2.problems.hgemm_gates import GATES_VERSION, hgemm_gates
from evo_l2.problems.hgemm_inputs import draw_again, draw_mixture

__all__ = ["Hgemm"]

_LAYOUTS: Mapping[str, tuple[str, str, str]] = {"nn": ("BATCH", "K", "N"), "nt": ("BATCH", "N", "K")}
"""Shape of B by layout; A is always (BATCH, M, K) and C (BATCH, M, N)."""
_LARGEST_SIZE = 65536
_LARGEST_OPERAND_BYTES = 2**31

_CPU_AXES = (
    Axis("simd_bits", (128, 256, 512), ("scalar", "128-bit", "256-bit", "512-bit")),
    Axis("n_fma", (1, 8, 24, 64), ("0", "1-7", "8-23", "24-63", "64+")),
    Axis("workspace_bytes", (1, 32 * 1024, 512 * 1024), ("none", "<32K", "32K-512K", "512K+")),
)

_CUDA_AXES = (
    Axis(
        "matrix_kind",
        (1, 2, 3, 4, 5, 6),
        ("none", "wmma/mma fp32", "wmma/mma fp16", "wgmma fp32", "wgmma fp16", "tcgen05 fp32", "tcgen05 fp16"),
    ),
    Axis("copy_kind", (1, 2, 3), ("none", "staged", "cp.async", "tma")),
    Axis("stages", (2, 3, 5), ("1", "2", "3-4", "5+")),
    Axis("tile_area", (64 * 64, 128 * 128, 128 * 256), ("<64x64", "64x64", "128x128", "128x256+")),
    Axis("occupancy", (0.2, 0.4), ("<20%", "20-40%", "40%+")),
)
"""What parts GEMM kernels on a card. The first two are kinds, whose value is the number of their label.

Boundaries of occupancy lie between what blocks of whole warps lead to: of 64 warps that may be resident, 4, 8 and 12 make the
lowest class, 16 and 24 the middle one.
"""

_CPU_CONTRACT = """\
One C file (gnu11) with one entry that computes C = A * B for row-major _Float16 arrays.
A is (BATCH, M, K), B is {b}, C is (BATCH, M, N). Accumulate in {accumulator}, round once to _Float16.
The sizes are {sizes}. alpha = 1, beta = 0; C holds junk before the call, and every element has to be written.
The first lines declare the launch, for example:
//! layout  {layout}
//! launch  hgemm(A: in, B: in, C: out, M, N, K)
void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K) {{ ... }}
A line '#define NAME 64 //? 32 64 128' declares a tunable. Scratch memory is declared by '//! workspace W <bytes>' and passed
as 'W: workspace'. Allowed headers: stdint.h, stddef.h, string.h, math.h, immintrin.h, arm_neon.h. Not allowed: writable
globals, inline assembly, library or system calls, threads."""

_CUDA_CONTRACT = """\
One CUDA C++ file with one or several kernels that together compute C = A * B for row-major arrays of half.
A is (BATCH, M, K), B is {b}, C is (BATCH, M, N). Accumulate in {accumulator}, round once to half.
The sizes are {sizes}. alpha = 1, beta = 0; C holds junk before the call, and every element has to be written. Nothing is
padded: where a tile does not divide M, N or K, the kernel itself guards its loads and stores.
The file holds device code only; the harness launches it as the first lines declare, for example:
//! layout  {layout}
//! launch  hgemm(A: in, B: in, C: out, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block   32 * WARPS
//! shared  STAGES * (BM * BK + BK * BN) * 2
extern "C" __global__ void __launch_bounds__(32 * WARPS)
hgemm(const half *A, const half *B, half *C, int M, int N, int K) {{ ... }}
grid, block and shared (bytes of dynamic shared memory, where there is any) follow their launch line; several launches run in
order. Expressions know + - * / %, ceil_div, round_up, min, max, the sizes M, N, K, BATCH, SMS (multiprocessors), and the
file's constants: 'constexpr int BM = 128;' or '#define BM 128'. With '//? 64 128 256' behind it, a constant is a tunable;
call the block tile BM, BN, BK and the depth of the pipeline STAGES. Scratch memory is declared by '//! workspace W <bytes>'
(or 'W <bytes> zeroed') and passed as 'W: workspace'. '//! registers 128' bounds registers a thread. From sm_90 on there are
'//! cluster 2, 1' below a launch and, passed as 'TA: map' to a const __grid_constant__ CUtensorMap,
'//! tensormap TA: A, box BM, BK, swizzle 128'.
Allowed headers: cuda_fp16.h, mma.h, cuda_pipeline.h, cooperative_groups.h, cuda_awbarrier_primitives.h, cuda/ptx, cuda.h.
Inline PTX is allowed. Not allowed: host code, writable globals, library calls, printf, clocks, launches from the device."""


@dataclass(frozen=True, slots=True)
class Hgemm:
    """Half-precision GEMM on one or several shapes.

    Raises:
        ConfigurationError: A shape, layout or accumulator is not admitted.
    """

    cases: tuple[tuple[int, ...], ...]
    """(M, N, K, BATCH) of every case."""
    accumulate: str = "fp32"
    """`fp32` or `fp16`: the class whose gates a kernel has to pass."""
    layouts: tuple[str, ...] = ("nn",)

    def __post_init__(self) -> None:
        if self.accumulate not in ("fp32", "fp16"):
            raise ConfigurationError("no such accumulator", expected="fp32 or fp16", found=repr(self.accumulate))
        if not self.layouts or set(self.layouts) - set(_LAYOUTS) or len(set(self.layouts)) != len(self.layouts):
            raise ConfigurationError("no such layouts", expected="nn, nt, or both", found=repr(list(self.layouts)))
        if not self.cases or len(set(self.cases)) != len(self.cases):
            raise ConfigurationError(
                "the problem needs cases", expected="one or more different shapes", found=repr(self.cases)
            )
        for case in self.cases:
            self._check_case(case)

    @staticmethod
    def _check_case(case: tuple[int, ...]) -> None:
        if len(case) != 4 or not all(1 <= size <= _LARGEST_SIZE for size in case):
            expected = f"M, N, K, BATCH, each from 1 to {_LARGEST_SIZE}"
            raise ConfigurationError("a shape cannot be used", expected=expected, found=repr(case))
        m, n, k, batch = case
        if 2 * batch * max(m * k, k * n, m * n) > _LARGEST_OPERAND_BYTES:
            expected = f"operands of at most {_LARGEST_OPERAND_BYTES} bytes"
            raise ConfigurationError("a shape is too large", expected=expected, found=repr(case))

    @property
    def name(self) -> str:
        """`hgemm`."""
        return "hgemm"

    @property
    def definition(self) -> Mapping[str, object]:
        """Name, cases, accumulator, layouts, and the version of the gates."""
        return {
            "name": self.name,
            "cases": [list(case) for case in self.cases],
            "accumulate": self.accumulate,
            "layouts": list(self.layouts),
            "gates": GATES_VERSION,
        }

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits over the definition."""
        text = json.dumps(self.definition, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """For instance `HGEMM 512x512x512, fp32 accumulation, nn`."""
        shapes = [f"{m}x{n}x{k}" + (f" batch {batch}" if batch > 1 else "") for m, n, k, batch in self.cases[:4]]
        if len(self.cases) > 4:
            shapes.append(f"and {len(self.cases) - 4} more shapes")
        return f"HGEMM {', '.join(shapes)}, {self.accumulate} accumulation, {' or '.join(self.layouts)}"

    @property
    def size_symbols(self) -> tuple[str, ...]:
        """`M, N, K, BATCH`."""
        return ("M", "N", "K", "BATCH")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """A and B in, C out, all half precision."""
        return (
            Operand("A", Role.IN, "float16", dict.fromkeys(self.layouts, ("BATCH", "M", "K"))),
            Operand("B", Role.IN, "float16", {layout: _LAYOUTS[layout] for layout in self.layouts}),
            Operand("C", Role.OUT, "float16", dict.fromkeys(self.layouts, ("BATCH", "M", "N"))),
        )

    @property
    def gates(self) -> tuple[Gate, ...]:
        """See `evo_l2.problems.hgemm_gates`."""
        return hgemm_gates(self.accumulate)

    @property
    def matrix_classes(self) -> frozenset[tuple[str, str]]:
        """Half-precision products; sums in single precision, and in half where that is the declared class."""
        return frozenset({("fp16", "fp32")} | ({("fp16", "fp16")} if self.accumulate == "fp16" else set()))

    def contract(self, target: str) -> str:
        """The rules for a kernel's author."""
        texts = {"cpu": (_CPU_CONTRACT, "_Float16"), "cuda": (_CUDA_CONTRACT, "half")}
        if target not in texts:
            raise ConfigurationError("HGEMM is not described for this target", expected="cpu or cuda", found=target)
        text, half = texts[target]
        names = [", ".join(f"{s}={v}" for s, v in zip(self.size_symbols, case, strict=True)) for case in self.cases[:4]]
        return text.format(
            b=" or ".join(f"({', '.join(_LAYOUTS[layout])}) for layout {layout}" for layout in self.layouts),
            accumulator={"fp32": "float", "fp16": f"{half} or float"}[self.accumulate],
            sizes="; ".join(names) + (f"; and {len(self.cases) - 4} more" if len(self.cases) > 4 else ""),
            layout=self.layouts[0],
        )

    def measures(self, target: str) -> MeasuresSchema:
        """The axes of the archive.

        CPU: SIMD width, number of multiply-adds in the code (the register tile), and workspace (how it packs). CUDA: kind of
        matrix instruction, how tiles come to shared memory, stages of that pipeline, outputs of a block, and the share of a
        multiprocessor's warps that are resident.
        """
        axes = {"cpu": _CPU_AXES, "cuda": _CUDA_AXES}
        if target not in axes:
            raise ConfigurationError("HGEMM has no measures for this target", expected="cpu or cuda", found=target)
        return MeasuresSchema(axes[target])

    def baseline(self, target: str, layout: str) -> str:
        """OpenBLAS in single precision on up-cast inputs."""
        if target != "cpu" or layout not in self.layouts:
            found = f"{target}, {layout}"
            raise ConfigurationError("HGEMM has no such baseline", expected=f"cpu, {' or '.join(self.layouts)}", found=found)
        text = resources.files("evo_l2.problems").joinpath("hgemm_cpu_baseline.c").read_text(encoding="utf-8")
        return text.replace("@LAYOUT@", layout)

    def work(self, sizes: tuple[int, ...]) -> Work:
        """2 M N K flops and one pass over A, B and C, for each matrix of the batch."""
        m, n, k, batch = sizes
        return Work(2 * m * n * k * batch, 2 * batch * (m * k + k * n + m * n))

    def draw_timed(self, instance: Instance, n_calls: int, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """Full-mantissa values over many binades, or standard normal ones: see `hgemm_inputs`."""
        return draw_mixture(instance, n_calls, draws)

    def draw_again(self, instance: Instance, before: Arrays, kept: str, draws: Draws) -> dict[str, NDArray[np.generic]]:
        """The other operand with its sign changed and its rows (A) or columns (B) moved on: every sum keeps its terms."""
        return draw_again(instance, before, kept, draws)

    def spot_check(self, instance: Instance, inputs: Arrays, outputs: Arrays, draws: Draws) -> Defect | None:
        """Freivalds' identity for all rows, and the proven bound for the elements of a random few.

        For the results of several calls, stacked along a new first axis.
        """
        return spot_check(instance, inputs, outputs, draws, self.accumulate)
