"""What `archive top` shows: whole words in narrow terminals, whatever was timed."""

import math

import pytest
from rich.console import Console

from evo_l2.contracts import Elite
from evo_l2.evaluation import BuildReport, Estimate, Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from experiments.archive_pages.top_page import _print_elites

AXES = Hgemm(((64, 64, 64, 1),)).measures("cuda").axes
TIMED = Estimate(math.log(0.96), math.log(0.912), math.log(0.987), 52)


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("estimate", [None, TIMED])
def test_the_best_kernels_fit_into_a_terminal(capsys, columns, estimate):
    cell = tuple(max(range(len(axis.boundaries) + 1), key=lambda i: len(axis.label(i))) for axis in AXES)
    words = [axis.label(i) for axis, i in zip(AXES, cell, strict=True)]
    verdict = Verdict(Status.BUILT, build=BuildReport(1.0, "", "code"), measures=(1.0,) * len(AXES))
    elites = [Elite(Kernel(f"kernel {i}", "cuda"), str(i), cell, verdict, it) for i, it in enumerate((estimate, None))]
    _print_elites(Console(width=columns, highlight=False), elites, AXES)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert all(len(line) <= columns for line in lines)
    two_tables = estimate is not None and columns == 80
    assert len(lines) == (7 if two_tables else 3 if estimate is not None else 4)
    whole = " ".join(" ".join(lines).split())
    for text in (*words, *(elite.kernel.digest[:12] for elite in elites), "matrix kind", "tile area", "occupancy"):
        assert text in whole
    assert ("0.912 to 0.987" in whole) == (estimate is not None)
    assert ("none of them was ever run" in whole) == (estimate is None)
