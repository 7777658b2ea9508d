"""Kernel source to shared object, within limits, from a cache that keeps failures too."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from evo_l2.errors import StorageError, ToolchainError
from evo_l2.evaluation import BuildReport, Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.launch import Call, Role
from evo_l2.problem import Problem
from evo_l2.sandbox import Finished, Limits, run_limited
from evo_l2.targets.cpu.native import compile_cached
from evo_l2.targets.cpu.toolchain import Toolchain

__all__ = ["Built", "Compiler"]

_COMMON = (
    "-std=gnu11", "-fPIC", "-fno-stack-protector", "-fcf-protection=none", "-fno-ident", "-fno-plt", "-fvisibility=default",
    "-fno-asynchronous-unwind-tables",
)  # fmt: skip
_LINK = ("-shared", "-nostartfiles", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,-z,defs", "-Wl,--build-id=none")
_MOST_LOG = 3000
_C_TYPES = {"float16": "_Float16", "float32": "float", "float64": "double", "int32": "int", "int8": "signed char"}


@dataclass(frozen=True, slots=True)
class Built:
    """What a successful build left in the cache."""

    library: Path
    """The shared object; exports `evo_entry`."""
    kernel_object: Path
    """The kernel's own object file, without the harness's shim."""
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
        cpu_s: Processor seconds of one build.

    Raises:
        StorageError: The cache cannot be written.
        ToolchainError: The compiler fails on a program of our own.
    """

    def __init__(self, toolchain: Toolchain, cache_dir: Path, *, cpu_s: float = 20.0) -> None:
        self._toolchain = toolchain
        self._cache = cache_dir / "kernels"
        self._limits = Limits(cpu_s=cpu_s, wall_s=3 * cpu_s)
        text = resources.files("evo_l2.targets.cpu").joinpath("launcher.c").read_text(encoding="utf-8")
        self._launcher = compile_cached(
            toolchain.compiler, cache_dir, "launcher", {"launcher.c": text}, ("-O2", "-std=gnu11")
        )

    @property
    def toolchain(self) -> Toolchain:
        """What it builds with."""
        return self._toolchain

    def build(self, kernel: Kernel, problem: Problem) -> Built | Verdict:
        """Compiles and links one screened kernel.

        Raises:
            ToolchainError: The compiler is gone or broken.
            StorageError: The cache cannot be written.
        """
        flags = [*_COMMON, "-O3", "-march=native", *kernel.launch.flags]
        shim = _shim(kernel.launch.calls[0], kernel, problem)
        parts = [kernel.source, shim, *flags, self._toolchain.version, _processor(), f"{self._limits}"]
        folder = self._cache / hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self._cached(folder) or self._build(kernel, shim, flags, folder)

    def _cached(self, folder: Path) -> Built | Verdict | None:
        try:
            facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
            if "gate" in facts:
                return _build_error(facts["gate"], facts["message"], facts["log"], 0.0)
            built = Built(folder / "kernel.so", folder / "kernel.o", 0.0, facts["log"], facts["stack_bytes"])
            whole = built.library.stat().st_size == facts["n_bytes"] and built.kernel_object.exists()
            return built if whole else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _build(self, kernel: Kernel, shim: str, flags: list[str], folder: Path) -> Built | Verdict:
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=".build-", dir=self._cache))
        except OSError as error:
            raise _unwritable(self._cache, error) from error
        try:
            (work / "kernel.c").write_text(kernel.source, encoding="utf-8")
            (work / "shim.c").write_text(shim, encoding="utf-8")
            result = _named(self._compile(work, flags), kernel.launch.calls[0].entry)
            (work / "facts.json").write_text(json.dumps(_facts(result)), encoding="utf-8")
            self._publish(work, folder)
        except OSError as error:
            raise _unwritable(self._cache, error) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
        if isinstance(result, Verdict):
            return result
        return Built(folder / "kernel.so", folder / "kernel.o", result.seconds, result.log, result.stack_bytes)

    def _compile(self, work: Path, flags: list[str]) -> Built | Verdict:
        compiler = str(self._toolchain.compiler)
        usage = ["-fstack-usage"]
        done = run_limited(self._launcher, [compiler, *flags, *usage, "-c", "kernel.c", "-o", "kernel.o"], work, self._limits)
        failed = self._failure(done, work / "kernel.o")
        if failed is not None:
            return failed
        link = [compiler, *_COMMON, "-O2", *_LINK, "-o", "kernel.so", "shim.c", "kernel.o", "-lm"]
        linked = run_limited(self._launcher, link, work, self._limits)
        failed = self._failure(linked, work / "kernel.so")
        if failed is not None:
            return failed
        return Built(work / "kernel.so", work / "kernel.o", done.seconds + linked.seconds, _log(done), _stack(work))

    def _failure(self, done: Finished, product: Path) -> Verdict | None:
        if done.returncode == 126 or done.returncode == 125:
            hint = "evo-l2 doctor"
            raise ToolchainError("the compiler does not start", found=_log(done)[:200] or "nothing", hint=hint)
        what = _what_ran_out(done)
        if what is not None:
            return _build_error("compile-limits", f"the compiler ran out of {what}", _log(done), done.seconds)
        if done.returncode != 0:
            message = _log(done)
            if not message:
                return _build_error("compile-limits", "the compiler was stopped without a message", "", done.seconds)
            return _build_error("compile", message, message, done.seconds)
        if not product.exists():
            raise ToolchainError("the compiler makes nothing", expected=product.name, found="no file", hint="evo-l2 doctor")
        return None

    def _publish(self, work: Path, folder: Path) -> None:
        """Puts a finished build under its name; one that another process has put there first is as good."""
        try:
            os.rename(work, folder)
        except OSError:
            if self._cached(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(work, folder)


def _unwritable(folder: Path, error: OSError) -> StorageError:
    hint = "free space, or set XDG_CACHE_HOME to a folder that can be written"
    return StorageError("the build cache cannot be written", expected=str(folder), found=str(error), hint=hint)


def _build_error(gate: str, message: str, log: str, seconds: float) -> Verdict:
    return Verdict(Status.BUILD_ERROR, gate, message, BuildReport(seconds, log))


def _facts(result: Built | Verdict) -> dict[str, object]:
    if isinstance(result, Verdict):
        return {"gate": result.gate, "message": result.message, "log": result.build.log if result.build else ""}
    return {"n_bytes": result.library.stat().st_size, "log": result.log, "stack_bytes": result.stack_bytes}


def _log(done: Finished) -> str:
    """The compiler's message: errors first, then the rest, cut."""
    lines = [line for line in done.output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line or "undefined reference" in line]
    errors.sort(key=lambda line: "ld returned" in line)
    text = "\n".join(errors + [line for line in lines if line not in errors])
    return text if len(text) <= _MOST_LOG else text[: _MOST_LOG - 4] + "\n..."


def _named(result: Built | Verdict, entry: str) -> Built | Verdict:
    """Says plainly when the linker misses the entry itself."""
    if isinstance(result, Verdict) and f"undefined reference to `{entry}'" in (result.message or ""):
        log = result.build.log if result.build is not None else ""
        return _build_error("compile", f"the file defines no function {entry}, which its launch line names", log, 0.0)
    return result


def _what_ran_out(done: Finished) -> str | None:
    """`time` or `memory` when the compiler was stopped by a limit, by the driver's or the kernel's account."""
    if done.over == "time" or "CPU time limit exceeded" in done.output:
        return "time"
    ended = ("out of memory", "virtual memory exhausted", "Killed signal terminated program", "File size limit exceeded")
    return "memory" if any(words in done.output for words in ended) else None


def _stack(work: Path) -> int:
    sizes = [0]
    for path in work.glob("*.su"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split("\t")
            if len(fields) >= 2 and fields[1].isdigit():
                sizes.append(int(fields[1]))
    return max(sizes)


def _processor() -> str:
    """What `-march=native` depends on: the processor's model and flags."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    first = text.split("\n\n", 1)[0]
    return "\n".join(line for line in first.splitlines() if line.startswith(("model name", "flags", "Features", "CPU part")))


def _shim(call: Call, kernel: Kernel, problem: Problem) -> str:
    """A translation unit of the harness that calls the entry with its own argument order."""
    operands = {operand.name: position for position, operand in enumerate(problem.operands)}
    dtypes = {operand.name: _C_TYPES[operand.dtype] for operand in problem.operands}
    spaces = {space.name: len(operands) + i for i, space in enumerate(kernel.launch.workspaces)}
    types, values = [], []
    for argument in call.arguments:
        if argument.role is Role.SIZE:
            types.append("int")
            values.append(f"(int)sizes[{problem.size_symbols.index(argument.name)}]")
        elif argument.role is Role.WORKSPACE:
            types.append("void *")
            values.append(f"buffers[{spaces[argument.name]}]")
        else:
            const = "const " if argument.role is Role.IN else ""
            types.append(f"{const}{dtypes[argument.name]} *")
            values.append(f"buffers[{operands[argument.name]}]")
    return (
        f"extern void {call.entry}({', '.join(types)});\n"
        f"void evo_entry(void *const *buffers, const long long *sizes)\n"
        f"{{\n    (void)buffers;\n    (void)sizes;\n    {call.entry}({', '.join(values)});\n}}\n"
    )
