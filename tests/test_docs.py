"""What docs/KERNELS.md and the README's table of commands say is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import click
import numpy as np
import pytest

from evo_l2.evaluation import Status
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.problems.shapes import SHAPE_SETS
from evo_l2.targets.cpu.evaluator import CpuEvaluator
from evo_l2.targets.cpu.screen import ALLOWED_HEADERS
from evo_l2.targets.cuda import screen as cuda_screen
from evo_l2.targets.cuda.cards import card_for
from evo_l2.targets.cuda.prepare import prepare
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler
from evo_l2.tunables import substitute
from experiments.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT = (ROOT / "docs" / "KERNELS.md").read_text(encoding="utf-8")
PROBLEM = Hgemm(((16, 24, 32, 1),))
KERNELS = [
    re.sub(r"^  ", "", block, flags=re.MULTILINE) if block.startswith("  ") else block
    for block in re.findall(r"```c\n(.*?)```", TEXT, re.DOTALL)
    if "//! launch" in block
]


ON_A_CARD = [block for block in re.findall(r"```c\+\+\n(.*?)```", TEXT, re.DOTALL) if "//! launch" in block]


@pytest.mark.parametrize("source", ON_A_CARD, ids=["smallest", "tiles"])
def test_every_whole_kernel_for_a_card_on_the_page_is_built(source: str, nvrtc: CudaCompiler) -> None:
    kernel = Kernel(source, "cuda")
    for values in ({t.name: t.domain[0] for t in kernel.tunables}, {t.name: t.domain[-1] for t in kernel.tunables}):
        moved = Kernel(substitute(source, kernel.tunables, values), "cuda")
        prepared = prepare(moved, Hgemm(((17, 33, 65, 2), (256, 256, 256, 1))), nvrtc, card_for("sm_80"))
        assert prepared.verdict is None, prepared.verdict
        assert prepared.build is not None
        assert prepared.build.resources["spill_bytes"] == 0


def test_every_header_that_is_allowed_is_listed_and_no_other() -> None:
    (listed,) = re.findall(r"- \*\*Headers\*\*: (.*?)\n- ", TEXT, re.DOTALL)
    assert sorted(re.findall(r"`([^`]+\.h)`", listed)) == sorted(ALLOWED_HEADERS)


def test_every_header_of_a_card_that_is_allowed_is_listed_and_no_other() -> None:
    (listed,) = re.findall(r"\nHeaders: (.*?), and those of CuTe", TEXT, re.DOTALL)
    assert sorted(re.findall(r"`([^`]+)`", listed)) == sorted(cuda_screen.ALLOWED_HEADERS)


def test_gates_stand_in_the_order_in_which_they_are_asked() -> None:
    table = TEXT[TEXT.index("| gate | asks |") :].split("\n\n")[0]
    named = [name for line in table.split("\n")[2:] for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert named == [*(gate.name for gate in PROBLEM.gates), "determinism"]


@pytest.mark.parametrize("source", KERNELS, ids=["smallest", "unrolled"])
def test_every_whole_kernel_on_the_page_is_right(source: str, session_cache: Path) -> None:
    with CpuEvaluator(PROBLEM, session_cache / "evo-l2" / "cpu") as evaluator:
        prepared = evaluator.prepare(Kernel(source, "cpu"))
        assert prepared.verdict is None, prepared.verdict
        evaluation = evaluator.measure(prepared, np.random.SeedSequence(1))
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.message


def test_the_value_of_a_tunable_reaches_the_pragma(session_cache: Path) -> None:
    source = KERNELS[1]
    with CpuEvaluator(PROBLEM, session_cache / "evo-l2" / "cpu") as evaluator:
        found = {evaluator.prepare(Kernel(source.replace("UNROLL 4", f"UNROLL {n}"), "cpu")).identity for n in (1, 2, 8)}
    assert len(found) == 3


def test_named_sets_of_shapes_are_those_of_the_page() -> None:
    text = (ROOT / "docs" / "EVALUATION.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (\d+ x .*?) \|$", text, re.MULTILINE))
    sizes = {name: [tuple(int(n) for n in shape.split(" x ")) for shape in row.split(", ")] for name, row in rows.items()}
    shown = {name: tuple((*shape, 1)[:4] for shape in shapes) for name, shapes in sizes.items()}
    assert shown == {name: shapes for name, shapes in SHAPE_SETS.items() if name != "grid-1000"}
    assert len(SHAPE_SETS["grid-1000"]) == 1000


def commands(group: click.Group, prefix: str = "evo-l2") -> dict[str, click.Command]:
    """Every command by what is typed for it."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        typed = f"{prefix} {name}"
        found |= commands(command, typed) if isinstance(command, click.Group) else {typed: command}
    return found


@pytest.mark.parametrize(("typed", "command"), commands(main).items())
def test_the_readme_lists_every_command_with_its_options(typed: str, command: click.Command) -> None:
    rows = " ".join(line for line in README.split("\n") if line.startswith(f"| `{typed}"))
    assert rows
    options = {name for parameter in command.params for name in parameter.opts if isinstance(parameter, click.Option)}
    shown = {name for name in options if name in rows}
    assert options - shown <= {"--json", "--target", "--count"}
