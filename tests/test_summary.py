"""What is printed at the end of a run, while one goes on, and about one kernel: plain words, and commands to paste."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from archive.store import Store
from evo_l2.contracts import AddResult, AddStatus, Candidate, Outcome, Prepared
from evo_l2.evaluation import BuildReport, CaseTiming, Environment, Estimate, Evaluation, Status, TimingSession, Verdict
from evo_l2.judge import GateReport
from evo_l2.kernel import Kernel
from evo_l2.pipeline import Stop
from evo_l2.problems.hgemm import Hgemm
from experiments import progress, summary_page
from experiments.cli import main
from experiments.config import load_config
from experiments.progress import Progress
from experiments.run import Finished, Started
from experiments.summary import CaseRow, OperatorRow, RefusalRow, Summary
from experiments.summary_page import counted, program
from experiments.winners import KernelRow, Ratio

SEED = KernelRow("naive_nn", "a" * 64, Estimate(-0.5, -0.6, -0.4, 40), True, "passed")
BEST = KernelRow("b" * 12, "b" * 64, Estimate(-0.1, -0.2, 0.0, 40), True, "passed")
CASE = CaseRow((256, 256, 256, 1), 535.0, 443.4, 447.0, 62.7)
SUMMARY = Summary(
    problem="HGEMM 256x256x256", seeds=(SEED,), best=BEST, best_seed=SEED, over_seed=Ratio(1.5, 1.4, 1.6), is_inherited=False,
    model_share=None, cases=(CASE,), operators=(), n_calls=1, n_tokens=0, usd=0.0, n_untimed=0, n_never_run=0,
)  # fmt: skip
PASSED = Verdict(
    Status.PASSED, build=BuildReport(0.0, machine_code="c", resources={"n_fma": 4, "code_bytes": 3297}), measures=(1.0,) * 3
)


def summary_of(monkeypatch: pytest.MonkeyPatch, summary: Summary = SUMMARY, **changes: Any) -> str:
    """The summary that a run prints."""
    finished = replace(Finished("mine", Path("runs/mine.db"), Stop.EVALUATIONS, 72, None, None, ""), **changes)
    monkeypatch.setattr(summary_page, "summarise", lambda finished: summary)
    shown = io.StringIO()
    summary_page.print_summary(finished, console=Console(file=shown, width=140, highlight=False))
    return shown.getvalue()


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "on_path", "typed"),
    [
        ([".venv/bin/evo-l2", "run"], None, ".venv/bin/evo-l2"),
        (["/with space/evo-l2", "run"], None, "'/with space/evo-l2'"),
        ([".venv/bin/evo-l2", "run"], "/usr/bin/evo-l2", "evo-l2"),
        (["/opt/experiments/__main__.py", "run"], None, ".venv/bin/python -m experiments"),
        (["script.py"], None, "evo-l2"),
    ],
)
def test_a_command_is_named_as_it_was_started_unless_the_shell_finds_it(
    argv: list[str], on_path: str | None, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", [".venv/bin/python", *argv])
    monkeypatch.setattr("shutil.which", lambda name: on_path)
    assert program() == typed


def test_the_next_commands_name_the_program_and_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_page, "program", lambda: ".venv/bin/evo-l2")
    text = summary_of(monkeypatch)
    assert "  .venv/bin/evo-l2 resume runs/mine.db mine --evaluations 144\n  (144 in all: 72 of them are spent)\n" in text
    assert all(line.startswith(("  .venv/bin/evo-l2 ", "  (")) for line in text.partition("next:\n")[2].splitlines())
    monkeypatch.setattr(summary_page, "_spent_s", lambda finished: 211.2)
    text = summary_of(monkeypatch, stop=Stop.WALL)
    assert "resume runs/mine.db mine --wall 430\n  (430 s in all: 212 of them are spent)\n" in text
    text = summary_of(monkeypatch, stop=Stop.REQUESTED)
    assert text.partition("next:\n")[2].startswith("  .venv/bin/evo-l2 resume runs/mine.db mine\n")


def test_a_spent_time_counts_the_whole_run_and_can_be_pasted(tmp_path: Path) -> None:
    config = load_config("smoke", ["budget.wall_s=60"])
    problem = Hgemm(config.problem.cases)
    kernel = Kernel("//! layout nn\n//! launch f(A: in, B: in, C: out)\n", "cpu")
    verdict = Evaluation(Verdict(Status.INCORRECT, "exact-integers", "wrong"))
    with Store.open(tmp_path / "x.db") as store:
        run = store.start_run("smoke", problem, Environment("cpu", {}), "cpu", config.dump(), 0)
        run.add(Candidate(0, "seed", (), 0, Outcome.EVALUATED, None, kernel, None, verdict, None, (), {"wall": 75.5}))
    finished = Finished("smoke", tmp_path / "x.db", Stop.WALL, 1, None, None, "")
    assert summary_page._raised_limit(finished) == ("--wall 160", "(160 s in all: 76 of them are spent)")


# --- the summary ------------------------------------------------------------------------------------------------------


def test_the_summary_says_which_kernel_is_best_and_gives_units(monkeypatch: pytest.MonkeyPatch) -> None:
    text = summary_of(monkeypatch)
    assert "best: of those measured again after the search, by the lower end; archive top pools all sessions\n" in text
    assert "baseline 443.4 us (447.0 us without its conversions from and to half)\n" in text
    assert "model: 1 call, 0 tokens\n" in text
    assert "could not be timed" not in text
    early = summary_of(monkeypatch, replace(SUMMARY, best=replace(BEST, is_final=False)))
    assert "best: none was measured again after the search, by the lower end" in early


def test_no_gain_is_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = summary_of(monkeypatch, replace(SUMMARY, best=SEED, over_seed=None))
    (line,) = [line for line in text.splitlines() if "best kernel over best seed" in line]
    assert line.split("best seed")[1].strip() == "no gain"
    text = summary_of(monkeypatch, replace(SUMMARY, best=None, over_seed=None))
    assert re.search(r"best kernel over best seed +unknown *\n", text)


@pytest.mark.parametrize(("n", "words"), [(1, "1 kernel is right but"), (14, "14 kernels are right but")])
def test_kernels_that_could_not_be_timed_are_counted(n: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = summary_of(monkeypatch, replace(SUMMARY, n_untimed=n))
    assert f"{words} could not be timed: other work on this machine\n" in text


def test_a_run_that_runs_nothing_says_built_and_nothing_of_times_and_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = OperatorRow("parametric", 9, 7, 1, 1, 0, 3, 0.0)
    timed = summary_of(monkeypatch, replace(SUMMARY, operators=(operator,)))
    seed = replace(SEED, estimate=None, is_final=False, status="built")
    nothing = replace(SUMMARY, seeds=(seed,), best=None, best_seed=None, over_seed=None, cases=(), operators=(operator,))
    built = summary_of(monkeypatch, replace(nothing, n_never_run=8))
    heads = [
        next(line.split() for line in text.splitlines() if line.lstrip().startswith("operator")) for text in (timed, built)
    ]
    assert heads[0] == ["operator", "asked", "passed", "wrong", "known", "no", "kernel", "cells", "gain"]
    assert heads[1] == ["operator", "asked", "built", "refused", "known", "no", "kernel", "cells"]
    assert "gain" in timed
    assert "baseline time over kernel time" in timed
    assert "gain" not in built
    assert "baseline time over kernel time" not in built


def test_a_run_that_builds_alone_says_so_even_when_nothing_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = OperatorRow("parametric", 2, 0, 2, 0, 0, 0, 0.0)
    refusal = RefusalRow("unlaunchable", "matrix-class", 2, "c" * 64)
    seed = replace(SEED, estimate=None, status="unlaunchable", gate="matrix-class", message="of another class\n(see above)")
    text = summary_of(
        monkeypatch,
        replace(
            SUMMARY, seeds=(seed,), best=None, best_seed=None, over_seed=None, cases=(), operators=(operator,),
            is_build_only=True, refusals=(refusal,),
        ),
    )  # fmt: skip
    head = next(line.split() for line in text.splitlines() if line.lstrip().startswith("operator"))
    assert head == ["operator", "asked", "built", "refused", "known", "no", "kernel", "cells"]
    assert "seed naive_nn: unlaunchable at gate matrix-class: of another class\n" in text
    assert "unlaunchable at gate matrix-class: 2 kernels, first cccccccccccc\n" in text
    assert "archive show runs/mine.db cccccccccccc\n" in text


def test_one_thing_has_no_plural(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [counted(n, "candidate") for n in (0, 1, 2, 1000)] == [
        "0 candidates",
        "1 candidate",
        "2 candidates",
        "1,000 candidates",
    ]
    assert "mine: the budget of evaluations is spent after 1 candidate\n" in summary_of(monkeypatch, n_candidates=1)


# --- the panel --------------------------------------------------------------------------------------------------------


class Clock:
    """Time that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.now))


def panel_of(shown: Progress) -> str:
    """The panel as text."""
    file = io.StringIO()
    Console(file=file, width=120).print(shown)
    return file.getvalue()


def started(*overrides: str) -> tuple[Progress, Started]:
    config = load_config("smoke", overrides)
    return Progress(Console(file=io.StringIO(), width=120)), Started(
        "mine", Path("x.db"), Hgemm(config.problem.cases), 150, config, "m"
    )


def told(shown: Progress, index: int = 0, speedup: Estimate | None = None) -> None:
    """Tells the observer of one candidate without a kernel."""
    elite = SimpleNamespace(estimate=speedup) if speedup is not None else None
    archive: Any = SimpleNamespace(elites=lambda: (), best=lambda: elite)
    candidate = Candidate(index, "parametric", (), 0, Outcome.NO_KERNEL, "no code in the reply", seconds={"wall": 1.0})
    shown.told(candidate, AddResult(AddStatus.NOT_ADDED, None), archive)


def test_a_panel_says_for_how_long_nothing_came(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    shown, info = started()
    shown.started(info)
    clock.now += 4
    assert "waiting" not in panel_of(shown)
    clock.now += 3
    assert "0 told, no rate yet; waiting, 7 s since the start" in panel_of(shown)
    told(shown)
    assert "waiting" not in panel_of(shown)
    clock.now += 34
    assert "1 told, 60 a minute; waiting, 34 s since the last candidate" in panel_of(shown)


def test_a_run_says_its_limits_and_what_refused_a_seed() -> None:
    shown, info = started("budget.wall_s=60", "budget.evaluations=7")
    shown.started(info)
    kernel = Kernel("//! layout nn\n//! launch f(A: in, B: in, C: out)\n", "cpu")
    verdict = Verdict(Status.UNLAUNCHABLE, "matrix-class", "sums\x1b of another class\nmore")
    archive: Any = SimpleNamespace(elites=lambda: (), best=lambda: None, get=lambda digest: SimpleNamespace(estimate=None))
    candidate = Candidate(
        0, "seed", (), 0, Outcome.EVALUATED, None, kernel, None, Evaluation(verdict), None, (), {"wall": 1.0}
    )
    shown.told(candidate, AddResult(AddStatus.NOT_ADDED, None), archive)
    text = shown._console.file.getvalue()
    assert "limit: 60 s of wall time, 7 candidates\n" in text
    (line,) = [line for line in text.splitlines() if line.startswith("seed ")]
    assert line.startswith(f"seed {kernel.digest[:12]} ({kernel.digest[:12]}): unlaunchable at gate matrix-class: sums")
    assert line.endswith("of another class")
    assert "\x1b" not in line


def test_a_panel_says_what_follows_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    shown, info = started("budget.wall_s=60")
    shown.started(info)
    told(shown)
    clock.now += 58
    assert "0:01 left of 1:00" in panel_of(shown)
    clock.now += 5
    text = panel_of(shown)
    assert "time is up, measuring finalists" in text
    assert "waiting" not in text
    assert "0:00 left" not in text
    shown, info = started("budget.wall_s=1", "timing.finalists=0")
    shown.started(info)
    clock.now += 5
    assert "time is up " in panel_of(shown)


def test_a_panel_waits_for_nothing_once_all_candidates_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    shown, info = started("budget.evaluations=1")
    shown.started(info)
    told(shown)
    clock.now += 20
    assert "waiting" not in panel_of(shown)


def test_notes_from_before_the_start_are_not_in_the_panel() -> None:
    shown, info = started()
    shown.note("loading the model m")
    shown.started(info)
    shown.note("measuring finalist 1 again")
    text = panel_of(shown)
    assert "loading the model" not in text
    assert "measuring finalist 1 again" in text


def test_a_panel_says_by_what_the_best_is_best() -> None:
    shown, info = started()
    shown.started(info)
    told(shown, 0, Estimate(0.0, -0.1, 0.1, 12))
    assert "1.000x of the baseline's speed (0.905 to 1.105; best by the lower end)" in panel_of(shown)


def test_a_panel_of_a_run_that_runs_nothing_waits_for_no_best() -> None:
    shown, info = started()
    shown.started(info)
    assert "none yet" in panel_of(shown)
    built = Evaluation(Verdict(Status.BUILT, build=PASSED.build, measures=PASSED.measures))
    archive: Any = SimpleNamespace(elites=lambda: (), best=lambda: None)
    kernel = Kernel("//! layout nn\n//! launch f(A: in, B: in, C: out)\n", "cuda")
    candidate = Candidate(0, "parametric", (), 0, Outcome.EVALUATED, kernel=kernel, evaluation=built, seconds={"wall": 1.0})
    shown.told(candidate, AddResult(AddStatus.NOT_ADDED, None), archive)
    assert "none: nothing is run" in panel_of(shown)


def test_the_cursor_rests_on_an_empty_line_where_an_echoed_interrupt_does_no_harm() -> None:
    shown, info = started()
    shown.started(info)
    lines = panel_of(shown).split("\n")
    assert lines[-3].startswith("╰")
    assert lines[-2:] == ["", ""]


# --- one kernel -------------------------------------------------------------------------------------------------------


class Restless:
    """An evaluator on a machine that does not hold still: 3 of 12 blocks are kept."""

    def __init__(self, problem: Hgemm, folder: Path, observe: Any) -> None:
        self.observe = observe

    def __enter__(self) -> Restless:
        return self

    def __exit__(self, *ignored: object) -> None:
        pass

    def prepare(self, kernel: Kernel) -> Prepared:
        return Prepared(kernel, "c", None, PASSED.build, PASSED.measures, Path("c"))

    def measure(self, prepared: Prepared, seed: object) -> Evaluation:
        self.observe(GateReport("determinism", (64, 64, 64, 1), 0.1, None))
        case = CaseTiming((64, 64, 64, 1), (100.0,) * 12, (69.0,) * 12, (True,) * 3 + (False,) * 9)
        return Evaluation(PASSED, TimingSession((case,)))


def test_a_restless_machine_is_inconclusive_not_failed_and_the_rough_figure_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evo_l2.targets.cpu.evaluator.CpuEvaluator", Restless)
    file = str(Path(__file__).parent.parent / "experiments/seeds/cpu/naive_nn.c")
    done = CliRunner().invoke(main, ["verify", file])
    assert done.exit_code == 0
    assert "  inconclusive timing\n" in done.stdout
    assert "failed" not in done.stdout
    assert (
        "inconclusive: right, but the machine did not hold still while it was timed (3 of 12 samples are usable)"
        in done.stdout
    )
    assert "roughly 0.69x of the baseline's speed, disturbed samples included: unreliable" in done.stdout
    assert "built:\n  FMA 4, code 3,297 bytes\n" in done.stdout
    data = CliRunner().invoke(main, ["verify", file, "--json"]).stdout
    assert '"unreliable_speedup": 0.69' in data
    assert '"speedup": null' in data
    assert '"inconclusive": true' in data
