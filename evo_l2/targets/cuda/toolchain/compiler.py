"""CUDA kernels to cubins, without a card: one builder of record, within limits, from a cache that keeps failures too."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from evo_l2 import sandbox
from evo_l2.build_cache import BuildCache, BuildOutcome, key_of
from evo_l2.errors import ConfigurationError, KernelError, ToolchainError
from evo_l2.evaluation import Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.products import is_product, read_product
from evo_l2.sandbox import Limits
from evo_l2.targets.cpu.native import build_launcher
from evo_l2.targets.cpu.toolchain import Toolchain, find_toolchain
from evo_l2.targets.cuda.limits import REGISTERS, LimitError, bounded
from evo_l2.targets.cuda.reading.cubin import read_cubin
from evo_l2.targets.cuda.toolchain.disassembler import Disassembler
from evo_l2.targets.cuda.toolchain.nvcc import ANOTHER_TOOLKIT, MOST_PTX_BYTES, Job, Nvcc
from evo_l2.targets.cuda.toolchain.nvrtc import Nvrtc
from evo_l2.targets.cuda.toolchain.toolkit import Toolkit

__all__ = ["ALLOWED_FLAGS", "BUILDERS", "DEFAULT_ARCH", "CudaBuilt", "CudaCompiler", "check_flags"]

DEFAULT_ARCH = "sm_80"
BUILDERS = ("nvcc", "nvrtc")
ALLOWED_FLAGS = (
    r"--use_fast_math", r"--fmad=(true|false)", r"--ftz=(true|false)", r"--prec-(div|sqrt)=(true|false)",
    r"--extra-device-vectorization", r"--restrict", r"--std=c\+\+(17|20)",
    r"-O[123]", r"-dlcm=(ca|cg|cs|cv)", r"-dscm=(wb|cg|cs|wt)", r"--allow-expensive-optimizations=(true|false)",
    r"--register-usage-level=([0-9]|10)",
)  # fmt: skip
"""What a launch may ask for: how to compute and to optimise, never what to read, write, define or link. Patterns of the whole
flag, with two dashes or one; from `-O` on they are ptxas's, written as they are or after `-Xptxas`. `-O` is the
level of ptxas, since no host code is built. The number of registers has a directive of its own."""

_FORMAT = "2"
"""Of an entry of the cache; another one when messages of failures are told in other words."""
_PRODUCTS = ("kernel.cubin", "kernel.ptx")
_OF_PTXAS = re.compile(r"-O|-d[ls]cm|--allow-expensive|--register-usage")
_STD = "--std=c++17"
_SLOW_CPU_S, _SLOW_WALL_S, _SLOW_MEMORY_BYTES = 180, 400.0, 8 << 30
"""Limits of a kernel with CuTe or CUTLASS: such builds take 20-50 s and about 3 GB."""
_CANARY = """\
#include <cuda_fp16.h>
#include <mma.h>
extern "C" __global__ void canary(const half *a, half *b) { b[threadIdx.x] = __hadd(a[threadIdx.x], a[0]); }
"""
_CANARY_WALL_S = 60.0
_ENTRY = re.compile(r"^[ \t]*(?:\.(?:visible|weak)[ \t]+)*\.entry\s+([\w$]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CudaBuilt:
    """What a successful build left in the cache."""

    cubin: Path
    """Machine code for one architecture, with line information."""
    ptx: Path
    """The PTX it was made from."""
    seconds: float
    """Wall seconds; 0.0 when it came from the cache."""
    log: str
    """What `ptxas -v` said of each function, then warnings."""
    builder: str
    """Name and version: `nvcc 13.2.86`."""


class CudaCompiler:
    """Builds kernels for any architecture that the toolkit knows. May be used by several threads and processes at once.

    Args:
        toolkit: See `find_toolkit`.
        cache_dir: Where builds are kept.
        builder: `nvcc` or `nvrtc`; nvcc where the toolkit has it when left out. Their machine code differs, so that one
            environment has one builder.
        host: The host's compiler: nvcc preprocesses with it; found when left out.
        cpu_s: Processor seconds of one build step.
        wall_s: Wall seconds of one build step; three times `cpu_s` when left out.
        memory_bytes: Memory of one build step. A kernel that includes CuTe or CUTLASS has larger limits.

    Raises:
        ConfigurationError: There is no such builder.
        StorageError: The cache cannot be written.
        ToolchainError: The builder is missing, or does not work within the sandbox.
    """

    def __init__(
        self,
        toolkit: Toolkit,
        cache_dir: Path,
        *,
        builder: str | None = None,
        host: Toolchain | None = None,
        cpu_s: float = 20.0,
        wall_s: float | None = None,
        memory_bytes: int = 2 << 30,
    ) -> None:
        name = builder or ("nvcc" if toolkit.nvcc is not None else "nvrtc")
        if name not in BUILDERS:
            raise ConfigurationError("no such builder of CUDA kernels", expected=" or ".join(BUILDERS), found=name[:40])
        self._toolkit = toolkit
        self._limits = Limits(max(1, round(cpu_s)), 3 * cpu_s if wall_s is None else wall_s, memory_bytes)
        host = host or find_toolchain()
        self._launcher = build_launcher(host.compiler, cache_dir)
        self._cache = BuildCache(cache_dir / "cuda-kernels", _PRODUCTS)
        self._builder: Nvcc | Nvrtc = (Nvcc if name == "nvcc" else Nvrtc)(toolkit, host, self._launcher)
        headers = str(toolkit.cutlass)
        self._tools = (_FORMAT, self._builder.version, host.version if name == "nvcc" else "", headers)
        parts = (*self._tools, str(toolkit), str(host), self._launcher.name)
        self._disassembler = Disassembler(toolkit, host.compiler, cache_dir)
        self._checking = threading.Lock()
        self._cache.once(key_of(parts), self._check_machine)

    def __enter__(self) -> CudaCompiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def toolkit(self) -> Toolkit:
        """What it builds with."""
        return self._toolkit

    @property
    def disassembler(self) -> Disassembler:
        """Reads what was built."""
        return self._disassembler

    @property
    def builder(self) -> str:
        """Name and version of the builder of record: part of the environment's identity."""
        return self._builder.version

    def capabilities(self) -> dict[str, str | bool]:
        """What confines the compiler here; see `evo_l2.sandbox.capabilities`."""
        return sandbox.capabilities(self._launcher)

    def close(self) -> None:
        """Ends the warm processes; may be called twice."""
        self._disassembler.close()
        if isinstance(self._builder, Nvrtc):
            self._builder.close()

    def build(self, kernel: Kernel, arch: str = DEFAULT_ARCH) -> CudaBuilt | Verdict:
        """Compiles one screened kernel for one architecture.

        Returns:
            The build, or why there is none: `BUILD_ERROR` by `compile` or `compile-limits`, or `REJECTED` by what only the
            compiler sees (`includes`) or what the launch asks of it (`flags`, `launch`).

        Raises:
            ConfigurationError: The toolkit does not know the architecture.
            ToolchainError: The compiler is gone or broken.
            StorageError: The cache cannot be written.
        """
        self._toolkit.check_architecture(arch)
        try:
            job = self._job(kernel, arch)
        except LimitError as error:
            return Verdict(Status.UNLAUNCHABLE, error.gate, str(error))
        except KernelError as error:
            return Verdict(Status.REJECTED, "launch", str(error))
        if isinstance(job, Verdict):
            return job
        entries = tuple(dict.fromkeys(call.entry for call in kernel.launch.calls))
        parts = (*self._tools, job.source, arch, *job.front, "", *job.back, "", *entries)
        kept = self._cache.obtain(key_of(parts), lambda work: self._build(work, job, entries))
        if kept.verdict is not None:
            return kept.verdict
        cubin, ptx = (kept.folder / name for name in _PRODUCTS)
        return CudaBuilt(cubin, ptx, kept.seconds, kept.log, self.builder)

    def _job(self, kernel: Kernel, arch: str) -> Job | Verdict:
        refused = check_flags(kernel.launch.flags)
        if refused is not None:
            return refused
        flags = _normalised(kernel.launch.flags)
        front = [flag for flag in flags if _OF_PTXAS.match(flag) is None]
        back = [flag for flag in flags if _OF_PTXAS.match(flag) is not None]
        if not any(flag.startswith("--std=") for flag in front):
            front.append(_STD)
        if not any(flag.startswith("-O") for flag in back):
            back.append("-O3")
        if kernel.launch.max_registers is not None:
            most = bounded(
                kernel.launch.max_registers, kernel.constants, REGISTERS, "the number of registers a thread", "registers"
            )
            back.append(f"-maxrregcount={most}")
        job, limits = Job(kernel.source, arch, tuple(front), tuple(back), self._limits), self._limits
        if not job.with_cutlass:
            return job
        more = Limits(
            max(limits.cpu_s, _SLOW_CPU_S), max(limits.wall_s, _SLOW_WALL_S), max(limits.memory_bytes, _SLOW_MEMORY_BYTES)
        )
        return replace(job, limits=more)

    def _build(self, work: Path, job: Job, entries: tuple[str, ...]) -> BuildOutcome:
        begin = time.perf_counter()
        outcome = self._builder.build(work, job, self._check_machine)
        if outcome.verdict is None:
            self._check_products(work, job.arch)
            ptx = read_product(work / "kernel.ptx", MOST_PTX_BYTES).decode("utf-8", "replace")
            outcome = _with_entries(outcome, ptx, entries)
        if job.with_cutlass and isinstance(self._builder, Nvcc):
            outcome = self._slow_lane(outcome, time.perf_counter() - begin)
        return outcome

    def _slow_lane(self, outcome: BuildOutcome, seconds: float) -> BuildOutcome:
        """Says what CuTe and CUTLASS cost, or that they are not there."""
        if self._toolkit.cutlass is None and outcome.verdict is not None and outcome.verdict.status is Status.BUILD_ERROR:
            message = "CuTe and CUTLASS are not installed here (pip install nvidia-cutlass); write it without them"
            return replace(outcome, verdict=replace(outcome.verdict, message=message), lasting=False)
        return replace(outcome, log=f"slow lane: {seconds:.1f} s with the headers of CuTe or CUTLASS\n{outcome.log}".rstrip())

    def _check_products(self, work: Path, arch: str) -> None:
        """Makes sure that what was built can be read, and is for the card that was asked for, before it is kept.

        Raises:
            ToolchainError: It is not.
        """
        for name in _PRODUCTS:
            is_product(work / name, self.builder, ANOTHER_TOOLKIT)
        try:
            found = read_cubin(work / _PRODUCTS[0]).arch
        except ToolchainError as error:
            expected = f"{self.builder} to make a cubin"
            raise ToolchainError(
                "the CUDA compiler does not work", expected=expected, found=error.found, hint=ANOTHER_TOOLKIT
            ) from error
        if found != arch:
            expected = f"{self.builder} to make machine code for {arch}"
            raise ToolchainError("the CUDA compiler does not work", expected=expected, found=found, hint=ANOTHER_TOOLKIT)

    def _check_machine(self) -> None:
        """Builds a small good program the way kernels are built.

        Raises:
            ToolchainError: That fails.
        """

        def blame_nobody() -> None:
            pass

        limits = replace(self._limits, wall_s=min(self._limits.wall_s, _CANARY_WALL_S))
        arch = DEFAULT_ARCH if DEFAULT_ARCH in self._toolkit.architectures else self._toolkit.architectures[0]
        with self._checking, self._cache.work() as work:
            outcome = self._builder.build(work, Job(_CANARY, arch, (_STD,), ("-O3",), limits), blame_nobody)
            if outcome.verdict is None:
                self._check_products(work, arch)
        if outcome.verdict is None:
            return
        lines = (outcome.verdict.message or "").partition("; make the source")[0].splitlines()
        host = "a C++ compiler that this nvcc takes (apt-get install g++, or set CC)"
        raise ToolchainError(
            "the CUDA compiler does not work",
            expected=f"{self.builder} to build a small program",
            found=lines[0][:300] if lines else "no message",
            hint=f"evo-l2 doctor; {host}" if isinstance(self._builder, Nvcc) else "evo-l2 doctor",
        )


def check_flags(flags: tuple[str, ...]) -> Verdict | None:
    """The reason to refuse a kernel by the flags of its launch, or None."""
    allowed = re.compile("|".join(ALLOWED_FLAGS))
    for flag in _normalised(flags):
        if allowed.fullmatch(flag) is None:
            examples = (
                "--use_fast_math --fmad=false -O2 -Xptxas=-dlcm=cg (registers have a line of their own: //! registers 128)"
            )
            message = f"the compiler flag {flag[:60]} is not allowed; allowed are, for instance, {examples}"
            return Verdict(Status.REJECTED, "flags", message)
    return None


def _normalised(flags: tuple[str, ...]) -> tuple[str, ...]:
    """One spelling: options of the compiler with two dashes, those of ptxas without what hands them on."""
    result: list[str] = []
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if flag in ("-Xptxas", "--ptxas-options") and rest:
            flag = f"-Xptxas={rest.pop(0)}"
        handed = re.match(r"(?:-Xptxas|--?ptxas-options)=(.*)", flag)
        for one in handed.group(1).split(",") if handed is not None else (flag,):
            long = re.match(r"-(use_fast_math|fmad|ftz|prec-|extra-device|restrict|std|allow-exp|register-usage)", one)
            result.append(f"-{one}" if long is not None else one)
    return tuple(result)


def _with_entries(outcome: BuildOutcome, ptx: str, entries: tuple[str, ...]) -> BuildOutcome:
    """The outcome, unless the file lacks an entry that its launch names."""
    found = _ENTRY.findall(ptx)
    for entry in entries:
        if entry in found:
            continue
        mangled = any(f"{len(entry)}{entry}" in name for name in found)
        message = f"the file defines no kernel {entry}, which its launch line names; write: " + (
            f'extern "C" __global__ void {entry}(...)' + (" (without extern its name is another)" if mangled else "")
        )
        return BuildOutcome(Verdict(Status.BUILD_ERROR, "compile", message), outcome.log)
    return outcome
