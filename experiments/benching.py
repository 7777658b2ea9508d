"""The command `bench`: what it takes, from the command line to rows."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from archive.address import Address
from evo_l2.errors import ConfigurationError
from evo_l2.judge import Failure, Judge
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from evo_l2.problems.shapes import SHAPE_SETS, shape_set
from experiments.bench import Row, bench
from experiments.bench_tables import cuda_l2_csv, print_rows, rows_csv, rows_json, write_text
from experiments.options import check_bench
from experiments.parts import open_rig
from experiments.printable import printable
from experiments.sections import CudaConfig, LimitsConfig, TimingConfig
from experiments.verifying import parse_shape, read_kernel

if TYPE_CHECKING:
    from evo_l2.targets.cuda.card.pairs import Side

__all__ = ["parse_shapes", "run_bench"]


def parse_shapes(texts: Sequence[str]) -> tuple[tuple[int, int, int, int], ...]:
    """Named sets, and shapes as `M,N,K` or `M,N,K,BATCH`, each once.

    Raises:
        ConfigurationError: One of them is neither, or too small or large to be measured.
    """
    found: list[tuple[int, int, int, int]] = []
    for text in texts:
        if text in SHAPE_SETS:
            found += shape_set(text)
        elif text[:1].isdigit():
            found.append(parse_shape(text))
        else:
            expected = f"M,N,K or M,N,K,BATCH, or one of {', '.join(SHAPE_SETS)}"
            raise ConfigurationError("the shapes cannot be used", expected=expected, found=repr(text[:60]))
    shapes = tuple(dict.fromkeys(found))
    for shape in shapes:
        Hgemm((shape,))
    return shapes


def run_bench(
    files: Sequence[Path],
    db: Address | None,
    count: int,
    shapes: Sequence[str],
    accumulate: str,
    mode: str,
    cuda: CudaConfig,
    blocks: int,
    *,
    sweep: int,
    against: Path | None,
    csv: Path | None,
    json: Path | None,
    cuda_l2: Path | None,
    given: Collection[str] = (),
    as_json: bool,
) -> bool:
    """Measures, prints and writes; True when every kernel passed everywhere. `given` names the options that were typed.

    What was measured is printed and written whatever ends it.

    Raises:
        EvoL2Error: Input cannot be used, or the card, a library or a file is at fault.
    """
    kernels = [(printable(path.stem), read_kernel(path, "cuda")) for path in files]
    if db is not None:
        kernels += _elites(db, count)
    if not kernels:
        hint = "evo-l2 bench KERNEL.cu, or evo-l2 bench --db ARCHIVE.db"
        raise ConfigurationError(
            "there is nothing to measure", expected="kernel files or an archive", found="none", hint=hint
        )
    with_tunables = any(kernel.tunables for _, kernel in kernels)
    check_bench(given, has_archive=db is not None, mode=mode, with_tunables=with_tunables)
    wanted = parse_shapes(shapes)
    _check_outputs([path for path in (csv, json, cuda_l2) if path is not None], [*files, *([against] if against else [])])
    opponent = read_kernel(against, "cuda") if against is not None else None
    rows: list[Row] = []
    environment: dict[str, object] = {}
    timing = TimingConfig(final_blocks=blocks)
    try:
        with open_rig(cuda, timing, LimitsConfig()) as rig:
            its = rig.environment
            environment |= {"key": its.key, **its.identity, **its.provenance}
            with _other_side(opponent, cuda, timing) as other:
                layouts = cuda_l2 is not None
                rows_of = bench(
                    rig, kernels, wanted, accumulate, mode=mode, both_layouts=layouts, against=other, n_settings=sweep
                )
                for row in rows_of:
                    rows.append(row)
                    if sys.stderr.isatty():
                        print(f"{len(rows)} of {len(wanted) * len(kernels)}", end="\r", file=sys.stderr, flush=True)
    finally:
        if rows:
            _report(rows, environment, csv, json, cuda_l2, as_json=as_json)
    return all(row.status == "passed" for row in rows)


def _report(
    rows: Sequence[Row],
    environment: dict[str, object],
    csv: Path | None,
    json: Path | None,
    cuda_l2: Path | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print(rows_json(rows, environment), end="")
    else:
        print_rows(rows)
    if csv is not None:
        write_text(csv, rows_csv(rows))
    if json is not None:
        write_text(json, rows_json(rows, environment))
    if cuda_l2 is not None:
        write_text(cuda_l2, cuda_l2_csv(rows))


def _check_outputs(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuses, before anything is measured, what could not be written afterwards or would write over something else."""
    for place, path in enumerate(outputs):
        if path.resolve() in {other.resolve() for other in (*outputs[:place], *inputs)}:
            raise ConfigurationError(
                f"{path} would be written over", expected="a file of its own for each result", found="the same file twice"
            )
        folder = path.resolve().parent
        found = "a folder of that name" if path.is_dir() else None if folder.is_dir() else f"no folder {folder}"
        if found is None and not os.access(path if path.exists() else folder, os.W_OK):
            found = "no permission"
        if found is not None:
            hint = "a file in a folder that exists and may be written"
            raise ConfigurationError("the results cannot be written", expected=f"to write {path}", found=found, hint=hint)


def _elites(db: Address, count: int) -> list[tuple[str, Kernel]]:
    """The best kernels of an archive."""
    from experiments.listing import best_kernels

    return [(kernel.digest[:8], kernel) for kernel in best_kernels(db, count)]


@contextlib.contextmanager
def _other_side(
    opponent: Kernel | None, cuda: CudaConfig, timing: TimingConfig
) -> Iterator[Callable[[Instance], Side] | None]:
    """Makes the other side of the pairs from a kernel, which is proved first; None where there is no such kernel."""
    if opponent is None:
        yield None
        return
    from evo_l2.targets.cuda.card.pairs import Side

    with contextlib.ExitStack() as stack:
        busy = cuda.model_copy(update={"allow_busy": True})

        def make(instance: Instance) -> Side:
            stack.close()
            second = stack.enter_context(open_rig(busy, timing, LimitsConfig()))
            prepared = second.prepare(opponent, instance.problem)
            if prepared.verdict is not None:
                raise ConfigurationError("the kernel to compare with is refused", found=str(prepared.verdict.message))
            judge = Judge(deterministic=opponent.launch.deterministic)
            call_us = second.prove(prepared, instance, judge, np.random.SeedSequence())
            if isinstance(call_us, Failure):
                found = f"{call_us.gate}: {call_us.message}"
                raise ConfigurationError("the kernel to compare with is wrong", found=found)
            n_calls = second.n_calls(instance, call_us)
            return Side(stack.enter_context(second.stage(prepared, instance, n_calls)), n_calls)

        yield make
