"""Kernel source to shared object, within limits and confined, from a cache that keeps failures too."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass, replace
from pathlib import Path

from evo_l2 import sandbox
from evo_l2.build_cache import BuildCache, BuildOutcome, key_of
from evo_l2.errors import ToolchainError
from evo_l2.evaluation import Verdict
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem
from evo_l2.products import is_product
from evo_l2.sandbox import Finished, Limits
from evo_l2.targets import messages
from evo_l2.targets.cpu.native import build_launcher
from evo_l2.targets.cpu.processor import read_processor
from evo_l2.targets.cpu.screen import screen_preprocessed
from evo_l2.targets.cpu.shared_object import LARGEST_OBJECT_BYTES, measure_object
from evo_l2.targets.cpu.shim import shim
from evo_l2.targets.cpu.toolchain import Toolchain
from evo_l2.targets.failures import explain_failure, over_limit
from evo_l2.targets.source import preprocessed_lines

__all__ = ["Built", "Compiler"]

_FORMAT = "3"
"""Of an entry of the cache."""
_DEFAULTS = ("-std=gnu11", "-O3")
_FIXED = (
    "-std=gnu11", "-pipe", "-fPIC", "-fvisibility=hidden", "-fopenmp-simd", "-fno-lto", "-fno-common", "-fno-ident", "-g0",
    "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-U_FORTIFY_SOURCE", "-fdiagnostics-color=never",
    "-Wno-psabi", "-Werror=implicit-function-declaration", "-Werror=implicit-int", "-Werror=int-conversion",
    "-Werror=incompatible-pointer-types",
)  # fmt: skip
"""Stands behind the kernel's own flags: what a distribution or a flag adds must not change what a kernel may do."""
_BY_KIND = {
    "gcc": ("-fmax-errors=8", "-fno-stack-clash-protection"),
    "clang": ("-ferror-limit=8", "-Wno-unused-command-line-argument"),
}
_BY_MACHINE = {"x86_64": ("-fcf-protection=none",), "aarch64": ("-mbranch-protection=none",)}
_LINK = (
    "-shared", "-nostartfiles", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,-z,defs", "-Wl,--as-needed",
    "-Wl,--build-id=none", "-Wl,-init=evo__no_initialiser", "-Wl,-fini=evo__no_finaliser",
)  # fmt: skip
"""The last two name functions that do not exist: linkers make any `_init` and `_fini` run when the object is loaded."""
_CANARY = """\
//! layout nn
//! launch evo(A: in)
#include <math.h>
#include <stdint.h>
#include <string.h>
_Float16 canary(_Float16 x, float y) { return (_Float16)(expf(y) * (float)x); }
"""
_LONGEST_PREPROCESSED_BYTES = 16 << 20
_LONGEST_EXPANDED = 1 << 20
"""Characters of a kernel's own lines, once its macros are expanded."""
_PREPROCESSOR_CPU_S = 5
_CANARY_WALL_S = 20.0
_ADVICE = "the source, its macros and its data"
_PRODUCTS = ("kernel.so", "kernel.o")


@dataclass(frozen=True, slots=True)
class Built:
    """What a successful build left in the cache."""

    library: Path
    """The shared object; exports `evo_entry`."""
    kernel_object: Path
    """The object file that it was linked from: the kernel and the entry of the harness."""
    seconds: float
    """Wall seconds; 0.0 when it came from the cache."""
    log: str
    stack_bytes: int
    """Largest stack frame of its functions, by the compiler's account."""


class Compiler:
    """Builds kernels for the machine it runs on. May be used by several threads and processes at once.

    Args:
        toolchain: See `find_toolchain`.
        cache_dir: Where builds are kept.
        cpu_s: Processor seconds of one build step.
        wall_s: Wall seconds of one build step; three times `cpu_s` when left out.
        memory_bytes: Memory of one build step.

    Raises:
        StorageError: The cache cannot be written.
        ToolchainError: The compiler does not work within the sandbox.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        cache_dir: Path,
        *,
        cpu_s: float = 20.0,
        wall_s: float | None = None,
        memory_bytes: int = 2 << 30,
    ) -> None:
        self._toolchain = toolchain
        self._limits = Limits(max(1, round(cpu_s)), 3 * cpu_s if wall_s is None else wall_s, memory_bytes)
        self._processor = read_processor().features_digest
        self._launcher = build_launcher(toolchain.compiler, cache_dir)
        self._cache = BuildCache(cache_dir / "kernels", _PRODUCTS)
        parts = [_FORMAT, str(toolchain), *self._flags(()), self._processor, self._launcher.name]
        self._cache.once(key_of(parts), self._check_machine)

    @property
    def toolchain(self) -> Toolchain:
        """What it builds with."""
        return self._toolchain

    def capabilities(self) -> dict[str, str | bool]:
        """What confines the compiler here; see `evo_l2.sandbox.capabilities`."""
        return sandbox.capabilities(self._launcher)

    def build(self, kernel: Kernel, problem: Problem) -> Built | Verdict:
        """Compiles and links one screened kernel.

        Raises:
            ToolchainError: The compiler is gone or broken.
            StorageError: The cache cannot be written.
        """
        flags = self._flags(kernel.launch.flags)
        entry = shim(kernel, problem)
        parts = [_FORMAT, kernel.source, entry, *flags, *_LINK, self._toolchain.version, self._processor]
        kept = self._cache.obtain(key_of(parts), lambda work: self._build(kernel, entry, flags, work))
        if kept.verdict is not None:
            return kept.verdict
        library, kernel_object = (kept.folder / name for name in _PRODUCTS)
        return Built(library, kernel_object, kept.seconds, kept.log, int(kept.facts["stack_bytes"]))

    def _flags(self, asked: tuple[str, ...]) -> tuple[str, ...]:
        extra = (*_BY_KIND.get(self._toolchain.kind, ()), *_BY_MACHINE.get(platform.machine(), ()))
        return (*_DEFAULTS, *self._toolchain.native_flags, *asked, *_FIXED, *extra)

    def _build(self, kernel: Kernel, entry: str, flags: tuple[str, ...], work: Path) -> BuildOutcome:
        (work / "kernel.c").write_text(kernel.source, encoding="utf-8")
        return _in_plain_words(self._compile(work, entry, flags), kernel.launch.calls[0].entry)

    def _compile(self, work: Path, entry: str, flags: tuple[str, ...]) -> BuildOutcome:
        """Preprocesses, screens what came out, compiles that with the harness's entry behind it, and links."""
        limits = replace(
            self._limits, cpu_s=min(self._limits.cpu_s, _PREPROCESSOR_CPU_S), file_bytes=_LONGEST_PREPROCESSED_BYTES
        )
        failed, log = self._step(work, (*flags, "-E", "kernel.c", "-o", "kernel.i"), "kernel.i", limits)
        if failed is not None:
            return failed
        product = work / "kernel.i"
        text = product.read_text(encoding="utf-8", errors="replace")
        lines = tuple(preprocessed_lines(text, "kernel.c"))
        if sum(len(line.text) for line in lines) > _LONGEST_EXPANDED:
            return over_limit(f"its macros make more than {_LONGEST_EXPANDED} characters of it", log, _ADVICE)
        refused = screen_preprocessed(lines)
        if refused is not None:
            return BuildOutcome(refused, log)
        with product.open("a", encoding="utf-8") as file:
            file.write(entry)
        limits = replace(self._limits, file_bytes=LARGEST_OBJECT_BYTES)
        failed, log = self._step(work, (*flags, "-fstack-usage", "-c", "kernel.i", "-o", "kernel.o"), "kernel.o", limits)
        if failed is not None:
            return failed
        excess = measure_object(work / "kernel.o")
        if excess is not None:
            return over_limit(excess, log, _ADVICE)
        failed, _ = self._step(work, (*_LINK, "-o", "kernel.so", "kernel.o", "-lm"), "kernel.so", limits)
        if failed is not None:
            return failed
        excess = measure_object(work / "kernel.so")
        if excess is not None:
            return over_limit(excess, log, _ADVICE)
        return BuildOutcome(None, log, {"stack_bytes": _stack_bytes(work)})

    def _step(self, work: Path, arguments: tuple[str, ...], product: str, limits: Limits) -> tuple[BuildOutcome | None, str]:
        """Runs the compiler once: the failure, if it is the kernel's, and the messages."""
        done = self._run(work, arguments, limits)
        log = messages.errors_first(done.output, str(work))
        if self._has_left(work / product) and done.returncode == 0 and (work / product).stat().st_size > 0:
            return None, log
        if messages.is_out_of_space(done.output):
            raise self._cache.unwritable(OSError(log[:200]))
        outcome = explain_failure(
            log,
            exceeded=done.exceeded,
            ended_by=done.signal,
            returncode=done.returncode,
            is_blamed=messages.blames_source(done.output),
            is_out_of_memory=messages.is_out_of_memory(done.output),
            advice=_ADVICE,
            check_machine=self._check_machine,
        )
        return outcome, log

    def _has_left(self, product: Path) -> bool:
        """Whether the compiler left a file; see `evo_l2.products.is_product`."""
        return is_product(product, str(self._toolchain.compiler), "evo-l2 doctor, or another compiler (CC)")

    def _run(self, work: Path, arguments: tuple[str, ...], limits: Limits) -> Finished:
        return sandbox.run_limited(
            self._launcher,
            [str(self._toolchain.compiler), *arguments],
            cwd=work,
            limits=limits,
            read_paths=self._toolchain.read_paths,
            write_paths=[work],
            environ=self._toolchain.environ,
        )

    def _check_machine(self) -> None:
        """Builds a small good program the way kernels are built.

        Raises:
            ToolchainError: That fails.
        """
        limits = replace(self._limits, wall_s=min(self._limits.wall_s, _CANARY_WALL_S))
        with self._cache.work() as work:
            (work / "kernel.c").write_text(_CANARY, encoding="utf-8")
            arguments = (*self._flags(()), *_LINK, "kernel.c", "-o", "kernel.so", "-lm")
            done = self._run(work, arguments, limits)
            if self._has_left(work / "kernel.so") and done.returncode == 0:
                return
        if messages.is_out_of_space(done.output):
            raise self._cache.unwritable(OSError(done.output.strip()[-200:]))
        if done.exceeded is not None:
            found = f"it ran into its limit of {done.exceeded.value}"
        else:
            ended = f"signal {done.signal}" if done.signal is not None else f"status {done.returncode}"
            lines = messages.errors_first(done.output, str(work)).splitlines()
            found = f"{ended}, {lines[0][:300] if lines else 'no message'}"
        expected = f"{self._toolchain.compiler} to build a small program"
        raise ToolchainError("the C compiler does not work", expected=expected, found=found, hint="evo-l2 doctor, or set CC")


def _in_plain_words(outcome: BuildOutcome, entry: str) -> BuildOutcome:
    """Says of an entry that is missing just that."""
    missing = rf"(implicit declaration of|call to undeclared) function '{entry}'|use of undeclared identifier '{entry}'"
    if outcome.verdict is None or re.search(missing, outcome.log) is None:
        return outcome
    message = f"the file defines no function {entry}, which its launch line names"
    return replace(outcome, verdict=replace(outcome.verdict, message=message))


def _stack_bytes(work: Path) -> int:
    """From `-fstack-usage`: place, bytes and kind, split by tabs."""
    sizes = [0]
    for line in (work / "kernel.su").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split("\t")
        if len(fields) >= 2 and fields[1].isdigit():
            sizes.append(int(fields[1]))
    return max(sizes)
