"""A library for one card: sources, cubins, a launcher in C, Python modules for cupy and torch, and tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evo_l2 import __version__
from evo_l2.errors import ConfigurationError, ToolchainError
from evo_l2.evaluation import Environment
from evo_l2.expression import Expression
from evo_l2.kernel import Kernel
from evo_l2.launch import Launch
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cpu.toolchain import find_toolchain
from evo_l2.targets.cuda.build_only import open_compiler
from evo_l2.targets.cuda.cards import Card, find_card
from evo_l2.targets.cuda.launching.plan import plan
from evo_l2.targets.cuda.prepare import prepare
from evo_l2.targets.cuda.toolchain.compiler import BUILDERS, CudaCompiler
from experiments.library.checking import compile_c
from experiments.library.cuda_tables import CudaProduct, c_table, check_launchable, workspace_offsets
from experiments.library.documents import documents
from experiments.library.rows import BuiltKernel, Row, file_name, table_json
from experiments.library.templates import filled
from experiments.library.winners import Winner

__all__ = ["BASELINE", "CudaCubin", "build_cubins", "write_cuda"]

BASELINE = "the fastest of torch, cuBLAS and tuned cuBLASLt"
_PACKAGE = "evo_hgemm"
_COPIED = ("__init__.py", "_launcher.py", "torch_op.py")
_C_FILES = ("evo_hgemm.h", "evo_hgemm.c", "evo_hgemm_cublas.h", "Makefile")


@dataclass(frozen=True, slots=True)
class CudaCubin:
    """Machine code of one kernel, and the digest that tells whether it is what was measured."""

    code: bytes
    machine_code: str


def card_of(environment: Environment) -> Card:
    """The card that an environment is of.

    Raises:
        ConfigurationError: It is not in the table of cards.
    """
    return find_card(environment.identity.get("card", "none"))


def build_cubins(
    winners: Sequence[Winner], environment: Environment, cache_dir: Path
) -> tuple[dict[str, CudaCubin], str, tuple[Path, ...]]:
    """Builds every kernel for the card of an environment, gates it again, and holds it against its launches.

    Returns:
        Cubins by digest of the source; the compiler in words; folders of CUDA's headers.

    Raises:
        ConfigurationError: The card is unknown, or a kernel does not build or cannot be launched there.
        ToolchainError: The toolkit is missing or broken.
    """
    card = card_of(environment)
    asked = environment.identity.get("compiler", "").partition(" ")[0]
    with open_compiler(card, cache_dir, asked if asked in BUILDERS else None) as compiler:
        cubins = {}
        for kernel, hgemm in _distinct(winners):
            cubins[kernel.digest] = _build(kernel, hgemm, compiler, card)
        return cubins, compiler.builder, compiler.toolkit.include_dirs


def _distinct(winners: Sequence[Winner]) -> Iterator[tuple[Kernel, Hgemm]]:
    """Every kernel with all that it won."""
    places: dict[str, list[Winner]] = {}
    for winner in winners:
        places.setdefault(winner.kernel.digest, []).append(winner)
    for group in places.values():
        first = group[0]
        # Gates of the class with sums in half admit what those of single precision do.
        sums = "fp16" if any(winner.sums == "fp16" for winner in group) else "fp32"
        yield first.kernel, Hgemm(tuple(dict.fromkeys(winner.sizes for winner in group)), sums, (first.layout,))


def _build(kernel: Kernel, hgemm: Hgemm, compiler: CudaCompiler, card: Card) -> CudaCubin:
    prepared = prepare(kernel, hgemm, compiler, card)
    if prepared.verdict is not None:
        gate, found = prepared.verdict.gate, " ".join((prepared.verdict.message or "").split())[:300]
        hint = "the toolkit that measured it, or --shapes without what it won"
        expected = f"to launch {kernel.digest[:12]} on {card.name}"
        raise ConfigurationError("a winner cannot be built here", expected=expected, found=f"{gate}: {found}", hint=hint)
    assert prepared.artefact is not None
    assert prepared.build is not None
    assert prepared.build.machine_code is not None
    return CudaCubin(prepared.artefact.read_bytes(), prepared.build.machine_code)


def write_cuda(
    folder: Path,
    environment: Environment,
    winners: Sequence[Winner],
    cubins: Mapping[str, CudaCubin],
    compiler: str,
    include_dirs: Sequence[Path],
) -> tuple[Row, ...]:
    """Writes the package into a folder, and compiles its launcher.

    Args:
        folder: Where it is written; its files are new.
        environment: Where the winners were measured.
        winners: See `find_winners`.
        cubins: By digest; see `build_cubins`.
        compiler: What built them, in words.
        include_dirs: Where `cuda.h` is.

    Raises:
        ConfigurationError: The launcher cannot launch a kernel, or the card is unknown.
        ToolchainError: The launcher does not compile.
        OSError: The folder cannot be written.
    """
    card = card_of(environment)
    n_sms = int(environment.identity.get("multiprocessors", card.n_sms))
    built = {digest: _built(digest, cubins[digest], winners) for digest in sorted(cubins)}
    rows, products = [], []
    for winner in winners:
        kernel = built[winner.kernel.digest]
        planned = plan(winner.kernel, winner.hgemm, winner.sizes, n_sms)
        check_launchable(planned, kernel.name)
        products.append(CudaProduct(winner.layout, winner.sums, kernel.name, planned, _reads_sms(winner.kernel.launch)))
        rows.append(Row(winner, kernel, workspace_offsets(planned)[1]))
    package, c_folder, kernels = folder / _PACKAGE, folder / _PACKAGE / "c", folder / _PACKAGE / "kernels"
    for each in (kernels, c_folder, folder / "tests"):
        each.mkdir(parents=True)
    for winner in winners:
        name = built[winner.kernel.digest].name
        (kernels / f"{name}.cu").write_bytes(winner.kernel.source.encode("utf-8", "surrogatepass"))
        (kernels / f"{name}.cubin").write_bytes(cubins[winner.kernel.digest].code)
    card_name = environment.identity.get("card", card.name)
    table = c_table(
        products, card=card_name, arch=card.arch, capability=card.compute_capability, n_sms=n_sms, key=environment.key
    )
    texts = {
        c_folder / "evo_hgemm_table.h": table,
        c_folder / "example.c": filled("cuda/example.c", _example(winners)),
        **{c_folder / name: filled(f"cuda/{name}") for name in _C_FILES},
        **{package / name: filled(f"cuda/{name}", {"VERSION": __version__}) for name in _COPIED},
        **{package / name: filled(f"both/{name}", {"PACKAGE": _PACKAGE}) for name in ("_products.py", "_table.py")},
        package / "table.json": table_json(
            rows,
            environment,
            {"arch": card.arch, "compute_capability": list(card.compute_capability), "compiler": compiler},
        ),
        folder / "tests" / "test_evo_hgemm.py": filled("cuda/test_evo_hgemm.py"),
        folder / "tests" / "test_torch_op.py": filled("cuda/test_torch_op.py"),
        **_documents(folder, environment, rows, card, compiler),
    }
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    _compile_launcher(c_folder, include_dirs)
    return tuple(rows)


def _built(digest: str, cubin: CudaCubin, winners: Sequence[Winner]) -> BuiltKernel:
    name = next(file_name(winner) for winner in winners if winner.kernel.digest == digest)
    return BuiltKernel(name, digest, cubin.machine_code, {"cubin_sha256": hashlib.sha256(cubin.code).hexdigest()})


def _reads_sms(launch: Launch) -> bool:
    """Whether a launch depends on the number of multiprocessors."""
    expressions: list[Expression] = [space.size_bytes for space in launch.workspaces]
    for call in launch.calls:
        expressions += [*call.grid, *call.block, *call.cluster, *([call.shared] if call.shared is not None else [])]
    for tensor in launch.tensor_maps:
        expressions += [*tensor.box, tensor.swizzle, tensor.promotion]
    return any("SMS" in expression.names() for expression in expressions)


def _example(winners: Sequence[Winner]) -> dict[str, str]:
    """The first product without a batch, or one that is not covered where all have one."""
    first = next((winner for winner in winners if winner.sizes[3] == 1), winners[0])
    m, n, k, _ = first.sizes
    return {"M": str(m), "N": str(n), "K": str(k), "LAYOUT": first.layout.upper(), "SUMS": first.sums.upper()}


def _documents(folder: Path, environment: Environment, rows: Sequence[Row], card: Card, compiler: str) -> dict[Path, str]:
    name = environment.identity.get("card", card.name)
    capability = ".".join(map(str, card.compute_capability))
    return documents(
        folder,
        environment,
        rows,
        package=_PACKAGE,
        distribution=f"evo-hgemm-{card.name}-{environment.key[:8]}",
        description=f"Half-precision matrix products for {name}, with cuBLAS for everything else",
        dependencies=(),
        baseline=BASELINE,
        template="cuda/README.md",
        facts={"CARD": name, "ARCH": card.arch, "CAPABILITY": capability, "COMPILER": compiler},
    )


def _compile_launcher(c_folder: Path, include_dirs: Sequence[Path]) -> None:
    """As the Makefile does it.

    Raises:
        ToolchainError: There is no `cuda.h`, or the compiler fails.
    """
    headers = [path for path in include_dirs if (path / "cuda.h").exists()]
    if not headers:
        hint = "pip install nvidia-cuda-runtime, or set CUDA_HOME"
        raise ToolchainError("the launcher cannot be built", expected="cuda.h in the toolkit", found="none", hint=hint)
    flags = ("-O2", "-g0", "-std=gnu11", "-Wall", "-Wextra", "-fPIC", "-Wl,--build-id=none", f"-I{headers[0]}")
    name = "-Wl,-soname,libevo_hgemm.so"
    compiler = str(find_toolchain().compiler)
    command = (compiler, *flags, "-shared", name, "-o", "../libevo_hgemm.so", "evo_hgemm.c", "-ldl")
    compile_c(command, c_folder, "the launcher")
