"""A library for one processor: sources, a shared object, a C header, a function for numpy, and tests."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo_l2 import __version__
from evo_l2.errors import ConfigurationError, ToolchainError
from evo_l2.evaluation import Environment
from evo_l2.kernel import Kernel
from evo_l2.launch import Role
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cpu.compiler import Compiler
from evo_l2.targets.cpu.prepare import prepare
from evo_l2.targets.cpu.toolchain import Toolchain, find_toolchain
from experiments.library.checking import compile_c
from experiments.library.documents import documents
from experiments.library.instructions import instructions_of, supports_in_c
from experiments.library.rows import BuiltKernel, Row, file_name, table_json
from experiments.library.templates import filled
from experiments.library.winners import Winner

__all__ = ["BASELINE", "build_kernels", "write_cpu"]

BASELINE = "OpenBLAS on one thread, conversions included"
_PACKAGE = "evo_hgemm_cpu"
_COPIED = ("__init__.py", "_library.py")
_C_FILES = ("evo_hgemm_cpu.h", "evo_hgemm_cpu.c")
_LIBRARY_FLAGS = ("-O2", "-g0", "-std=gnu11", "-Wall", "-Wextra", "-fPIC")
_ALIGNMENT_BYTES = 64
_OPERANDS = {"A": "evo_a", "B": "evo_b", "C": "evo_c"}
_SIZES = {"M": "evo_m", "N": "evo_n", "K": "evo_k", "BATCH": "evo_batch"}


@dataclass(frozen=True, slots=True)
class _Tools:
    """What the library is built with."""

    compiler: str
    objcopy: str
    version: str


def build_kernels(winners: Sequence[Winner], cache_dir: Path) -> dict[str, BuiltKernel]:
    """Builds every kernel as it was judged, and gates it again; by digest.

    Raises:
        ConfigurationError: A kernel is refused or does not build on this machine.
        ToolchainError: The compiler is missing or broken.
    """
    compiler = Compiler(find_toolchain(), cache_dir)
    built: dict[str, BuiltKernel] = {}
    for winner in winners:
        digest = winner.kernel.digest
        if digest in built:
            continue
        cases = tuple(dict.fromkeys(other.sizes for other in winners if other.kernel.digest == digest))
        prepared = prepare(winner.kernel, Hgemm(cases, winner.sums, (winner.layout,)), compiler)
        if prepared.verdict is not None:
            found = f"{prepared.verdict.gate}: {' '.join((prepared.verdict.message or '').split())[:300]}"
            expected = f"to build {digest[:12]} with {compiler.toolchain.version}"
            hint = "the machine that measured it, or --shapes without what it won"
            raise ConfigurationError("a winner cannot be built here", expected=expected, found=found, hint=hint)
        assert prepared.build is not None
        code = prepared.build.machine_code or ""
        built[digest] = BuiltKernel(file_name(winner), digest, code, {}, compiler.flags(winner.kernel))
    return built


def write_cpu(
    folder: Path, environment: Environment, winners: Sequence[Winner], built: dict[str, BuiltKernel]
) -> tuple[Row, ...]:
    """Writes the package into a folder, and compiles it.

    Args:
        folder: Where it is written; its files are new.
        environment: Where the winners were measured.
        winners: See `find_winners`.
        built: By digest; see `build_kernels`.

    Raises:
        ConfigurationError: A kernel's launch cannot be called.
        ToolchainError: The library does not compile.
        OSError: The folder cannot be written.
    """
    tools = _find_tools(find_toolchain())
    rows = tuple(Row(winner, built[winner.kernel.digest], _spaces(winner)[1]) for winner in winners)
    kernels = {row.kernel.name: (row.winner.kernel, row.kernel) for row in rows}
    package, c_folder, sources = folder / _PACKAGE, folder / _PACKAGE / "c", folder / _PACKAGE / "kernels"
    for each in (sources, c_folder, folder / "tests"):
        each.mkdir(parents=True)
    for name, (kernel, _) in kernels.items():
        text = kernel.source + filled("cpu/entry.c", _entry(name, kernel))
        (sources / f"{name}.c").write_bytes(text.encode("utf-8", "surrogatepass"))
    first = next(iter(kernels.values()))[1]
    needed = instructions_of(tools.compiler, first.flags)
    facts = {"machine": platform.machine(), "instructions": list(needed), "compiler": tools.version}
    texts = {
        c_folder / "evo_hgemm_cpu_table.h": _c_table(rows, needed, environment),
        c_folder / "Makefile": _makefile(rows, tools),
        **{c_folder / name: filled(f"cpu/{name}") for name in _C_FILES},
        **{package / name: filled(f"cpu/{name}", {"VERSION": __version__}) for name in _COPIED},
        **{package / name: filled(f"both/{name}", {"PACKAGE": _PACKAGE}) for name in ("_products.py", "_table.py")},
        package / "table.json": table_json(rows, environment, facts),
        folder / "tests" / "test_evo_hgemm_cpu.py": filled("cpu/test_evo_hgemm_cpu.py"),
        **_documents(folder, environment, rows, needed, tools),
    }
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    _compile(c_folder, rows, tools)
    return rows


def _find_tools(toolchain: Toolchain) -> _Tools:
    """The compiler, and the objcopy that belongs to the disassembler.

    Raises:
        ToolchainError: There is no objcopy.
    """
    name = toolchain.objdump.name.replace("objdump", "objcopy")
    beside = toolchain.objdump.with_name(name)
    found = str(beside) if beside.exists() else shutil.which("objcopy")
    if found is None:
        hint = "apt-get install binutils (or the like)"
        raise ToolchainError("the library cannot be built", expected=f"{name} beside objdump", found="none", hint=hint)
    return _Tools(str(toolchain.compiler), found, toolchain.version)


def _symbol(name: str) -> str:
    return f"evo_hgemm_cpu_{name}"


def _entry(name: str, kernel: Kernel) -> dict[str, str]:
    """What the entry behind a kernel's source is made of.

    Raises:
        ConfigurationError: An argument is none that the library has.
    """
    (call,) = kernel.launch.calls
    spaces = [space.name for space in kernel.launch.workspaces]
    values = []
    for argument in call.arguments:
        known = {**_OPERANDS, **_SIZES, **{space: f"evo_w[{i}]" for i, space in enumerate(spaces)}}
        if argument.name not in known or argument.role is Role.MAP:
            expected = f"arguments that are {', '.join((*_OPERANDS, *_SIZES))} or workspaces"
            raise ConfigurationError(f"the library cannot call {name}", expected=expected, found=argument.name)
        cast = {Role.IN: "(const _Float16 *)", Role.OUT: "(_Float16 *)"}.get(argument.role, "")
        values.append(cast + known[argument.name])
    return {"ENTRY": call.entry, "SYMBOL": _symbol(name), "ARGUMENTS": ", ".join(values)}


def _spaces(winner: Winner) -> tuple[list[int], int]:
    """Where each workspace begins in one piece of memory, and how much it takes, in bytes."""
    names = {**winner.kernel.constants, **dict(zip(_SIZES, winner.sizes, strict=True))}
    offsets, end = [], 0
    for n_bytes in winner.kernel.launch.workspace_bytes(names).values():
        offsets.append(end)
        end += -(-n_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return offsets, end


def _c_table(rows: Sequence[Row], needed: Sequence[str], environment: Environment) -> str:
    lines = []
    for row in rows:
        offsets, n_bytes = _spaces(row.winner)
        m, n, k, batch = row.winner.sizes
        lines.append(
            f"    {{.m = {m}, .n = {n}, .k = {k}, .batch = {batch}, .layout = EVO_HGEMM_CPU_{row.winner.layout.upper()},"
            f" .sums = EVO_HGEMM_CPU_{row.winner.sums.upper()},\n"
            f"     .kernel = {_symbol(row.kernel.name)}, .workspace_bytes = {n_bytes},"
            f" .offsets = {{{', '.join(map(str, offsets or [0]))}}}, .n_workspaces = {len(offsets)}}},"
        )
    values = {
        "KEY": environment.key,
        "INSTRUCTIONS": " ".join(needed),
        "PRODUCTS": str(len(rows)),
        "WORKSPACES": str(max(1, *(len(row.winner.kernel.launch.workspaces) for row in rows), 1)),
        "DECLARATIONS": "\n".join(f"kernel {symbol};" for symbol in sorted({_symbol(row.kernel.name) for row in rows})),
        "ROWS": "\n".join(lines),
        "SUPPORTS": supports_in_c(needed),
    }
    return filled("cpu/evo_hgemm_cpu_table.h", values)


def _kernel_commands(row: Row, tools: _Tools) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How one object file is made, in the folder of the C files."""
    name = row.kernel.name
    return (
        (tools.compiler, *row.kernel.flags, "-c", f"../kernels/{name}.c", "-o", f"{name}.o"),
        (tools.objcopy, f"--keep-global-symbol={_symbol(name)}", f"{name}.o"),
    )


def _objects(rows: Sequence[Row]) -> list[str]:
    return sorted({f"{row.kernel.name}.o" for row in rows})


def _makefile(rows: Sequence[Row], tools: _Tools) -> str:
    rules = {}
    for row in rows:
        compiled, copied = _kernel_commands(row, tools)
        name = row.kernel.name
        rules[name] = f"{name}.o: ../kernels/{name}.c\n\t$(CC) {' '.join(compiled[1:])}\n\t$(OBJCOPY) {' '.join(copied[1:])}"
    values = {
        "COMPILER": tools.version,
        "CC": Path(tools.compiler).name,
        "OBJCOPY": Path(tools.objcopy).name,
        "OBJECTS": " ".join(_objects(rows)),
        "RULES": "\n\n".join(rules[name] for name in sorted(rules)),
    }
    return filled("cpu/Makefile", values)


def _compile(c_folder: Path, rows: Sequence[Row], tools: _Tools) -> None:
    """As the Makefile does it; leaves the shared object alone."""
    for row in {row.kernel.name: row for row in rows}.values():
        for command in _kernel_commands(row, tools):
            compile_c(command, c_folder, f"kernel {row.kernel.name}")
    objects = _objects(rows)
    linked = ("-shared", "-Wl,--build-id=none", "-Wl,-soname,libevo_hgemm_cpu.so", "-o", "../libevo_hgemm_cpu.so")
    compile_c((tools.compiler, *_LIBRARY_FLAGS, *linked, "evo_hgemm_cpu.c", *objects, "-lm"), c_folder, "the library")
    for name in objects:
        (c_folder / name).unlink()


def _documents(
    folder: Path, environment: Environment, rows: Sequence[Row], needed: Sequence[str], tools: _Tools
) -> dict[Path, str]:
    return documents(
        folder,
        environment,
        rows,
        package=_PACKAGE,
        distribution=f"evo-hgemm-cpu-{environment.key[:8]}",
        description="Half-precision matrix products for one processor, with numpy's BLAS for everything else",
        dependencies=("numpy>=2.0",),
        baseline=BASELINE,
        template="cpu/README.md",
        facts={
            "PROCESSOR": environment.identity.get("processor", "a processor"),
            "INSTRUCTIONS": " ".join(needed) or "none beyond those of every processor of its kind",
            "COMPILER": tools.version,
        },
    )
