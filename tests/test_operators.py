"""Operators: what each makes of a request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from evo_l2.contracts import Elite, Message, Mutator, Outcome, Proposal, Reply, Request
from evo_l2.errors import ConfigurationError, ModelError
from evo_l2.evaluation import BuildReport, CaseTiming, Status, TimingSession, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.timing import pooled_estimate
from mutators import Edit, Parametric, Rewrite
from mutators.generators.recorded import RecordedGenerator, RecordingGenerator

PROBLEM = Hgemm(((64, 64, 64, 1),))
SOURCE = """\
//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
#define BM 64 //? 16 32 64 128 256
#define BN 8  //? 8 16
#define UNROLL 2 //? 1 2 4 8
#define FIXED 3 //? 3
void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K) {
    C[0] = A[0];
}
"""
NEW = SOURCE.replace("C[0] = A[0];", "C[0] = B[0];")
GOOD_EDIT = "<<<<<<< SEARCH\nC[0] = A[0];\n=======\nC[0] = B[0];\n>>>>>>> REPLACE"


def elite(source: str = SOURCE) -> Elite:
    """A kernel that passed, with one session."""
    timing = TimingSession((CaseTiming((64, 64, 64, 1), (10.0, 10.1) * 4, (5.0,) * 8, (True,) * 8),))
    value = pooled_estimate((timing,))
    assert value is not None
    verdict = Verdict(Status.PASSED, build=BuildReport(0.1, "", "ab", {"n_fma": 1}), measures=(0.0, 1.0, 0.0))
    return Elite(Kernel(source, "cpu"), "identity", (0, 1, 0), verdict, value, (timing,))


def request(index: int = 0, source: str = SOURCE, feedback: tuple[str, ...] = ()) -> Request:
    """One request as the search makes it."""
    return Request(index, "x", (elite(source),), feedback, np.random.SeedSequence(5, spawn_key=(index, 0)))


def replies(tmp_path: Path, *texts: str | None) -> RecordedGenerator:
    """A generator that gives these replies in order; None is an outage."""
    rows = [{"reply": {"text": text or "", "error": None if text is not None else "the server is down"}} for text in texts]
    path = tmp_path / "replies.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return RecordedGenerator.from_file(path)


# --- parametric -------------------------------------------------------------------------------------------------------


def moves(n: int = 600, source: str = SOURCE) -> list[dict[str, tuple[int, int]]]:
    """What `n` parametric offspring changed: (old, new) by tunable."""
    before = {t.name: t for t in Kernel(source, "cpu").tunables}
    changed = []
    for proposal in Parametric().propose(PROBLEM, [request(i, source) for i in range(n)]):
        assert proposal.kernel is not None
        after = {t.name: t for t in proposal.kernel.tunables}
        changed.append({k: (before[k].value, after[k].value) for k in before if before[k].value != after[k].value})
    return changed


def test_parametric_never_gives_the_parent_back() -> None:
    assert all(moves())


def test_parametric_mostly_steps_one_tunable_to_a_near_value() -> None:
    shares = Counter(len(move) for move in moves())
    assert 0.5 < shares[1] / 600 < 0.75
    assert 0.2 < shares[2] / 600 < 0.45
    assert shares[3] > 0
    single = Counter(new for move in moves() if list(move) == ["BM"] for _, new in move.values())
    assert single[32] + single[128] > 3 * (single[16] + single[256]) > 0


def test_parametric_reaches_every_value_and_changes_nothing_but_tunables() -> None:
    seen = {(name, new) for move in moves() for name, (_, new) in move.items()}
    expected = {("BM", v) for v in (16, 32, 128, 256)} | {("BN", 16)} | {("UNROLL", v) for v in (1, 4, 8)}
    assert seen == expected


def test_parametric_moves_a_lone_two_valued_tunable() -> None:
    source = SOURCE.replace("//? 16 32 64 128 256", "").replace("//? 1 2 4 8", "")
    assert moves(50, source) == [{"BN": (8, 16)}] * 50


def test_parametric_walks_to_the_best_of_a_smooth_landscape() -> None:
    def loss(kernel: Kernel) -> int:
        values = {t.name: t.domain.index(t.value) for t in kernel.tunables}
        return abs(values["BM"] - 4) + abs(values["BN"] - 1) + abs(values["UNROLL"] - 0)

    best = Kernel(SOURCE, "cpu")
    for i in range(60):
        made = Parametric().propose(PROBLEM, [request(i, best.source)])[0].kernel
        assert made is not None
        best = min(best, made, key=loss)
    assert loss(best) == 0


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("//! layout nn\n//! launch f(A: in)\n#define FIXED 3 //? 3\n", "no tunable"),
        ("#define A 1 //? x\n", "cannot be read"),
    ],
)
def test_parametric_without_tunables_says_so(source: str, why: str) -> None:
    proposal = Parametric().propose(PROBLEM, [request(source=source)])[0]
    assert proposal.failure is Outcome.NO_KERNEL
    assert why in (proposal.message or "")


def test_parametric_takes_what_it_can_move_and_the_others_anything(tmp_path: Path) -> None:
    still = [Kernel(source, "cpu") for source in ("int x;\n", "#define FIXED 3 //? 3\n", "#define A 1 //? x\n")]
    assert [Parametric().takes(kernel) for kernel in (Kernel(SOURCE, "cpu"), *still)] == [True, False, False, False]
    assert all(Edit(replies(tmp_path), 50).takes(kernel) for kernel in still)


def test_a_proposal_does_not_depend_on_its_company() -> None:
    together = Parametric().propose(PROBLEM, [request(i) for i in range(10)])
    alone = [Parametric().propose(PROBLEM, [request(i)])[0] for i in reversed(range(10))]
    assert [p.kernel for p in together] == [p.kernel for p in reversed(alone)]


# --- edit and rewrite -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "failure", "why"),
    [
        (GOOD_EDIT, None, None),
        (f"<think>hm {GOOD_EDIT}</think>\n{GOOD_EDIT}", None, None),
        (f"<think>hm {GOOD_EDIT}", Outcome.NO_KERNEL, "still thinking"),
        (f"```c\n{NEW}```", Outcome.NO_KERNEL, "no SEARCH/REPLACE block"),
        ("", Outcome.NO_KERNEL, "no SEARCH/REPLACE block"),
        (GOOD_EDIT[:-20], Outcome.EDIT_FAILED, "cut off"),
        (GOOD_EDIT.replace("A[0]", "A[M] + 1"), Outcome.EDIT_FAILED, "nearest is line 8"),
        (GOOD_EDIT.replace("B[0]", "A[0]"), Outcome.EDIT_FAILED, "change nothing"),
        (GOOD_EDIT.replace("B[0];", "\n// ... 3 lines not shown\n"), Outcome.EDIT_FAILED, "lines not shown"),
        (None, Outcome.GENERATOR_FAILED, "the server is down"),
    ],
)
def test_edit_outcomes(tmp_path: Path, text: str | None, failure: Outcome | None, why: str | None) -> None:
    proposal = Edit(replies(tmp_path, text), 200, prompt_tokens=2000).propose(PROBLEM, [request()])[0]
    check(proposal, text, failure, why)


@pytest.mark.parametrize(
    ("text", "failure", "why"),
    [
        (f"Here:\n```c\n{NEW}```\nDone.", None, None),
        (f"```c\n{NEW}", Outcome.NO_KERNEL, "cut off"),
        (GOOD_EDIT, Outcome.NO_KERNEL, "no code block"),
        ("", Outcome.NO_KERNEL, "no code block"),
        ("```c\nint x;\n```", Outcome.NO_KERNEL, "no '//! launch' line"),
        (None, Outcome.GENERATOR_FAILED, "the server is down"),
    ],
)
def test_rewrite_outcomes(tmp_path: Path, text: str | None, failure: Outcome | None, why: str | None) -> None:
    proposal = Rewrite(replies(tmp_path, text), 200, prompt_tokens=2000).propose(PROBLEM, [request()])[0]
    check(proposal, text, failure, why)


def check(proposal: Proposal, text: str | None, failure: Outcome | None, why: str | None) -> None:
    """The proposal has the kernel or the failure, and the call."""
    assert proposal.failure is failure
    assert why is None or why in (proposal.message or "")
    assert (proposal.kernel.source if proposal.kernel is not None else None) == (NEW if failure is None else None)
    (call,) = proposal.calls
    assert call.generator == "recorded"
    assert call.reply.text == (text or "")
    assert call.max_tokens == 200
    assert [message.role for message in call.prompt] == ["system", "user"]


class _Echo:
    """A generator that keeps what it was asked."""

    name = "echo"

    def __init__(self, n_too_few: int = 0) -> None:
        self.calls: list[tuple[list[tuple[Message, ...]], list[int], int]] = []
        self._n_too_few = n_too_few

    def generate(self, prompts: Sequence[Sequence[Message]], seeds: Sequence[int], *, max_tokens: int) -> tuple[Reply, ...]:
        self.calls.append(([tuple(prompt) for prompt in prompts], list(seeds), max_tokens))
        return tuple(Reply(f"{seed}", 1, 1, 0.0) for seed in seeds)[self._n_too_few :]

    def count_tokens(self, text: str) -> int:
        return len(text) // 3 + 1

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("kind", [Edit, Rewrite])
def test_all_requests_go_out_in_one_call_each_with_its_own_seed(kind: type[Edit] | type[Rewrite]) -> None:
    echo = _Echo()
    proposals = kind(echo, 64, prompt_tokens=2000).propose(PROBLEM, [request(i) for i in range(8)])
    ((prompts, seeds, max_tokens),) = echo.calls
    assert max_tokens == 64
    assert len(set(seeds)) == 8
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert [p.calls[0].seed for p in proposals] == seeds
    assert [p.calls[0].prompt for p in proposals] == prompts
    assert [p.calls[0].reply.text for p in proposals] == [str(seed) for seed in seeds]
    again = _Echo()
    kind(again, 64, prompt_tokens=2000).propose(PROBLEM, [request(3)])
    assert again.calls[0][1] == [seeds[3]]
    assert again.calls[0][0] == [prompts[3]]


def test_the_search_spawning_from_a_seed_changes_no_prompt() -> None:
    echo = _Echo()
    spawned = request(3)
    spawned.seed.spawn(2)
    Edit(echo, 64).propose(PROBLEM, [request(3), spawned])
    prompts, seeds, _ = echo.calls[0]
    assert prompts[0] == prompts[1]
    assert seeds[0] == seeds[1]


def test_a_recording_replays_to_the_same_proposals_without_the_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    requests = [request(i, SOURCE + "// more\n" * 40 * i, ("it failed",)) for i in range(4)]
    first = Edit(RecordingGenerator(_Echo(), path), 64, prompt_tokens=800).propose(PROBLEM, requests)
    assert any("not shown" in p.calls[0].prompt[1].content for p in first)
    replay = Edit(RecordedGenerator.from_file(path, by="call"), 64, prompt_tokens=800)
    again = replay.propose(PROBLEM, list(reversed(requests)))
    assert [p.calls for p in again] == [p.calls for p in reversed(first)]
    stored = RecordedGenerator.from_calls((p.calls[0] for p in first), count_tokens=_Echo().count_tokens)
    assert Edit(stored, 64, prompt_tokens=800).propose(PROBLEM, requests)[2].calls == first[2].calls
    with pytest.raises(ModelError, match="line 2 of the prompt's system message"):
        replay.propose(Hgemm(((32, 32, 32, 1),)), requests[:1])


def test_no_requests_make_no_call() -> None:
    echo = _Echo()
    assert Edit(echo, 64).propose(PROBLEM, []) == ()
    assert echo.calls == []


def test_a_failure_can_be_told_to_the_next_prompt(tmp_path: Path) -> None:
    bad = GOOD_EDIT.replace("A[0]", "A[M] + 1")
    message = Edit(replies(tmp_path, bad), 200, prompt_tokens=2000).propose(PROBLEM, [request()])[0].message
    assert message is not None
    assert "Line 8 reads `C[0] = A[0];`, the block has `C[0] = A[M] + 1;`" in message
    echo = _Echo()
    Edit(echo, 64, prompt_tokens=2000).propose(PROBLEM, [request(feedback=(message,))])
    assert message in echo.calls[0][0][0][1].content


def test_prompt_and_reply_stay_within_what_is_reserved() -> None:
    echo = _Echo()
    operator = Rewrite(echo, 100, prompt_tokens=1000)
    operator.propose(PROBLEM, [request(i, SOURCE + "// more\n" * 10 * i, ("failed " * 40,) * 3) for i in range(12)])
    for prompt in echo.calls[0][0]:
        assert sum(echo.count_tokens(message.content) for message in prompt) + 100 <= operator.most_tokens == 1100


def test_a_generator_that_swallows_a_reply_is_named() -> None:
    with pytest.raises(ModelError, match="expected 2 replies, found 1"):
        Edit(_Echo(n_too_few=1), 64).propose(PROBLEM, [request(0), request(1)])


@pytest.mark.parametrize(("max_tokens", "prompt_tokens"), [(0, 1200), (64, 0)])
def test_budgets_have_to_be_positive(max_tokens: int, prompt_tokens: int) -> None:
    with pytest.raises(ConfigurationError):
        Edit(_Echo(), max_tokens, prompt_tokens=prompt_tokens)


def test_operators_describe_themselves(tmp_path: Path) -> None:
    operators: list[Mutator] = [Parametric(), Edit(replies(tmp_path), 50), Rewrite(replies(tmp_path), 50)]
    assert [o.name for o in operators] == ["parametric", "edit", "rewrite"]
    assert [o.n_parents for o in operators] == [1, 1, 1]
    assert [o.uses_model for o in operators] == [False, True, True]
    assert [o.most_tokens for o in operators] == [0, 1250, 1250]
