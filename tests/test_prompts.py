"""Prompts: what they say, what is cut, and their golden texts.

To renew the golden texts after a wanted change: `EVO_L2_RENEW_GOLDEN=1 pytest tests/test_prompts.py`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.contracts import Elite, Message, Request
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import BuildReport, CaseTiming, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.timing import pooled_estimate
from mutators.edits import parse_edits
from mutators.generators.estimate import estimate_tokens
from mutators.operators import edit, rewrite
from mutators.prompts import TOKENS_PER_MESSAGE, Slicer, Template, facts, render, without_paths
from mutators.replies import elision, read_kernel

GOLDEN = Path(__file__).parent / "golden"
SOURCE = (GOLDEN / "parent.c").read_text(encoding="utf-8")
PROBLEM = Hgemm(((512, 512, 512, 1),))
BUILD = BuildReport(
    seconds=0.2,
    log="/home/somebody/build/kernel.c:14:9: warning: loop not vectorized",
    machine_code="ab",
    resources={"simd_bits": 256, "n_fma": 16, "workspace_bytes": 32768, "code_bytes": 812},
)


def session(*cases: tuple[tuple[int, ...], float, float], kept: bool = True) -> TimingSession:
    """Eight blocks a case, (sizes, kernel's and baseline's microseconds)."""
    spread = (1.0, 1.02, 0.98, 1.01) * 2
    timings = [
        CaseTiming(sizes, tuple(k * s for s in spread), tuple(b * s for s in reversed(spread)), (kept, kept, kept, True) * 2)
        for sizes, k, b in cases
    ]
    return TimingSession(tuple(timings))


def elite(source: str = SOURCE, *, build: BuildReport = BUILD, sessions: tuple[TimingSession, ...] = ()) -> Elite:
    """A kernel that passed."""
    sessions = sessions or (session(((512, 512, 512, 1), 12345.6, 5000.0)),)
    verdict = Verdict(Status.PASSED, build=build, measures=(256.0, 16.0, 32768.0))
    value = pooled_estimate(sessions)
    assert value is not None
    cell = PROBLEM.measures("cpu").cell((256.0, 16.0, 32768.0))
    return Elite(Kernel(source, "cpu"), "identity", cell, verdict, value, sessions)


def request(parent: Elite, *feedback: str, index: int = 7) -> Request:
    """A request as the search makes it."""
    return Request(index, "edit", (parent,), feedback, np.random.SeedSequence(1, spawn_key=(index, 0)))


def text_of(messages: tuple[Message, ...]) -> str:
    """Both messages as one text."""
    return "\n".join(f"[{message.role}]\n{message.content}" for message in messages) + "\n"


FEEDBACK = (
    "SEARCH block 1 of 1 matches no lines of the kernel.",
    "build_error (compile): /build/xyz/kernel.c:12:9: error: 'acc' undeclared",
)


@pytest.mark.parametrize(
    ("name", "template", "budget", "feedback"),
    [
        ("edit_whole", edit.TEMPLATE, 4000, FEEDBACK),
        ("edit_sliced", edit.TEMPLATE, 1366, FEEDBACK[1:]),
        ("rewrite_whole", rewrite.TEMPLATE, 4000, ()),
        ("rewrite_sliced", rewrite.TEMPLATE, 1366, ()),
    ],
)
def test_prompt_is_as_its_golden_text(name: str, template: Template, budget: int, feedback: tuple[str, ...]) -> None:
    text = text_of(render(PROBLEM, request(elite(), *feedback), template, estimate_tokens, budget))
    path = GOLDEN / f"prompt_{name}.txt"
    if os.environ.get("EVO_L2_RENEW_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def tokens(messages: tuple[Message, ...]) -> int:
    """As reserved: contents and the chat template's share."""
    return sum(estimate_tokens(message.content) + TOKENS_PER_MESSAGE for message in messages)


_WILD_SOURCE = st.text(st.sampled_from("ab{}();\n#/* \"'?!1"), max_size=1500)


@given(_WILD_SOURCE, st.integers(1050, 1600), st.lists(st.text(max_size=900), max_size=4), st.integers(0, 2**31))
def test_no_prompt_is_over_its_budget(source: str, budget: int, feedback: list[str], index: int) -> None:
    parent = replace(elite(), kernel=Kernel(source, "cpu"))
    messages = render(PROBLEM, request(parent, *feedback, index=index), edit.TEMPLATE, estimate_tokens, budget)
    assert tokens(messages) <= budget
    assert facts(PROBLEM, parent) in messages[1].content


def test_the_measurements_are_never_cut() -> None:
    parent = elite(SOURCE * 20)
    for budget in (1050, 1200, 3000):
        user = render(PROBLEM, request(parent, *FEEDBACK), edit.TEMPLATE, estimate_tokens, budget)[1].content
        assert facts(PROBLEM, parent) in user
        assert edit.TEMPLATE.form in user


def test_what_the_compiler_said_gives_way_before_the_prompt_fails() -> None:
    parent = elite(build=replace(BUILD, log="warning " * 40))
    short = facts(PROBLEM, parent, brief=True)
    assert short.count("\n") == 2
    assert "0.405x" in short
    full = render(PROBLEM, request(parent), edit.TEMPLATE, estimate_tokens, 1250)
    assert facts(PROBLEM, parent) in full[1].content
    tight = render(PROBLEM, request(parent), edit.TEMPLATE, estimate_tokens, 900)
    assert tokens(tight) <= 900
    assert short in tight[1].content
    assert "warning" not in tight[1].content
    assert edit.TEMPLATE.form in tight[1].content
    # Where both would fit, but no line of the source beside them.
    assert "//! launch" in render(PROBLEM, request(parent), edit.TEMPLATE, estimate_tokens, 1050)[1].content


def test_a_budget_that_cannot_hold_the_rules_is_an_error_with_a_number_that_can() -> None:
    with pytest.raises(ConfigurationError) as caught:
        render(PROBLEM, request(elite()), edit.TEMPLATE, estimate_tokens, 300)
    assert caught.value.expected is not None
    needed = int(caught.value.expected.split()[3])
    assert tokens(render(PROBLEM, request(elite()), edit.TEMPLATE, estimate_tokens, needed)) <= needed


def test_facts_tell_all_that_is_known() -> None:
    text = facts(PROBLEM, elite())
    assert "status: passed" in text
    assert "speed-up over the baseline: 0.405x (95% interval" in text
    assert "M=512 N=512 K=512 BATCH=1: 12407 us, 21.6 GFLOP/s (baseline 5025 us)" in text
    assert "compiler: kernel.c:14:9: warning: loop not vectorized" in text
    assert "machine code: code_bytes 812, n_fma 16, simd_bits 256, workspace_bytes 32768" in text
    assert "measures: simd_bits=256-bit, n_fma=8-23, workspace_bytes=32K-512K" in text


def test_times_are_medians_over_the_kept_blocks_of_all_conclusive_sessions() -> None:
    sizes = (512, 512, 512, 1)
    sessions = (session((sizes, 100.0, 50.0)), session((sizes, 9.0, 9.0), kept=False), session((sizes, 200.0, 50.0)))
    assert not sessions[1].conclusive
    assert "M=512 N=512 K=512 BATCH=1: 149 us" in facts(PROBLEM, elite(sessions=sessions))


def test_of_many_cases_the_slowest_and_the_fastest_are_told() -> None:
    cases = tuple((64 * i, 64, 64, 1) for i in range(1, 41))
    problem = Hgemm(cases)
    timed = session(*((sizes, 100.0 + i, 100.0) for i, sizes in enumerate(cases)))
    text = facts(problem, elite(sessions=(timed,)))
    assert text.count("GFLOP/s") == 6
    assert "M=64 N=" in text
    assert "M=2560 N=" in text
    assert "34 more cases" in text


def test_facts_stay_short_whatever_the_compiler_said() -> None:
    build = BuildReport(0.1, "error " * 100_000, "ab", {f"resource_{i}": "x" * 500 for i in range(500)})
    assert len(facts(PROBLEM, elite(build=build))) < 3000


def test_facts_do_not_depend_on_the_order_of_resources() -> None:
    turned = replace(BUILD, resources=dict(reversed(BUILD.resources.items())))
    assert facts(PROBLEM, elite(build=turned)) == facts(PROBLEM, elite())


def test_feedback_is_said_whole_or_not_at_all_the_latest_first() -> None:
    old, new = "old failure " * 28, "new failure " * 28
    user = render(PROBLEM, request(elite(), old, new), edit.TEMPLATE, estimate_tokens, 1700)[1].content
    assert new.strip() in user
    assert "old failure" not in user
    roomy = render(PROBLEM, request(elite(), old, new), edit.TEMPLATE, estimate_tokens, 4000)[1].content
    assert roomy.index("old failure") < roomy.index("new failure")


def test_the_latest_failure_is_shortened_before_it_is_left_out() -> None:
    said = "SEARCH block 1 of 1 matches no lines; the nearest is line 8, which reads otherwise. " * 4
    for budget in (1250, 1300, 1400, 1500):
        messages = render(PROBLEM, request(elite(), "older", said), edit.TEMPLATE, estimate_tokens, budget)
        (line,) = (line for line in messages[1].content.split("\n") if line.startswith("- SEARCH"))
        assert line.endswith(" ...")
        assert 60 <= len(line) <= 362
        assert tokens(messages) <= budget


def test_a_short_line_that_would_stand_alone_among_those_left_out_is_shown() -> None:
    text = Slicer(SOURCE, 0).cut(lambda text: text.count("\n") < 15)[0]
    assert "#include <stdint.h>" in text
    assert elision(1) not in text
    long = SOURCE.replace("#include <stdint.h>", "#include <a_header_with_a_longer_name.h>")
    assert elision(1) in Slicer(long, 0).cut(lambda text: text.count("\n") < 8)[0]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/build/a-b/c.d/kernel.c:3:4: error", "kernel.c:3:4: error"),
        ("in '/usr/lib/gcc/x.h'", "in 'x.h'"),
        ("//? 32 64", "//? 32 64"),
        ("a/b/c and 3 / 4 and x /y", "a/b/c and 3 / 4 and x /y"),
        ("see ../src/kernel.c", "see ../src/kernel.c"),
    ],
)
def test_paths_are_cut_to_their_last_part(text: str, clean: str) -> None:
    assert without_paths(text) == clean


def test_the_examples_are_in_the_form_that_is_read() -> None:
    assert len(parse_edits(edit.TEMPLATE.form).replacements) == 1
    example = read_kernel(rewrite.TEMPLATE.form, Kernel(SOURCE, "cpu")).kernel
    assert example is not None
    assert example.launch.calls[0].entry == "scale"


def test_a_slice_shows_launch_tunables_and_the_function_at_hand() -> None:
    hearts = set()
    for draw in range(60):
        text, n_shown = Slicer(SOURCE, draw).cut(lambda text: text.count("\n") < 15)
        assert 0 < n_shown < len(SOURCE.splitlines())
        assert all(line in text for line in SOURCE.splitlines() if line.startswith("//!") or "//?" in line)
        assert "lines not shown" in text
        hearts.add(next(h for h in ("W[k * NR + c] =", "acc[r][c] +=", "C[(i + r) * N + j + c] =") if h in text))
    assert len(hearts) == 3


def test_every_line_of_a_slice_stands_in_the_source_in_order() -> None:
    lines = SOURCE.rstrip("\n").split("\n")
    for limit in range(2, len(lines)):
        text, n_shown = Slicer(SOURCE, 5).cut(lambda text, limit=limit: text.count("\n") < limit)
        shown = [line for line in text.split("\n") if "not shown" not in line]
        assert len(shown) == n_shown
        rest = iter(lines)
        assert all(line in rest for line in shown)


def test_a_source_that_fits_is_shown_as_it_is() -> None:
    assert Slicer(SOURCE, 0).cut(lambda text: True) == (SOURCE.rstrip("\n"), len(SOURCE.splitlines()))


def test_two_parents_are_both_told_and_shown() -> None:
    other = elite(SOURCE.replace("#define MR 4 ", "#define MR 8 "))
    asked = Request(7, "edit", (elite(), other), (), np.random.SeedSequence(1, spawn_key=(7, 0)))
    for budget in (1700, 5000):
        messages = render(PROBLEM, asked, edit.TEMPLATE, estimate_tokens, budget)
        assert tokens(messages) <= budget
        user = messages[1].content
        assert user.count("status: passed") == 2
        assert "#define MR 4 " in user
        assert "#define MR 8 " in user
