"""Search/replace edits: parsing, matching, and messages."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mutators.edits import Replacement, apply_edits, parse_edits, render_edits

SOURCE = """\
#define BM 64 //? 32 64 128
void hgemm(const float *A, float *C, int M) {
    for (int i = 0; i < M; i++) {
        float total = 0;
        total = total + A[i];
        C[i] = total;
    }
}
void other(float *C, int M) {
    for (int i = 0; i < M; i++) {
        C[i] = 0;
    }
}
"""

_MARKERS = ["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```", "```c", "<<<", "===", ">>>", "====x", "  >>>>>>> end"]
_LINE = st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=("Cs",)), max_size=12)


def _plain(line: str) -> bool:
    try:
        render_edits([Replacement(line, "")])
    except ValueError:
        return False
    return True


_PLAIN_LINE = _LINE.filter(_plain)
_TEXT = st.lists(_PLAIN_LINE, max_size=5).map("\n".join)


def edit(search: str, replace: str, source: str = SOURCE) -> str:
    """The edited source; the edit has to apply."""
    edited = apply_edits(source, [Replacement(search, replace)])
    assert edited.source is not None, edited.fault
    return edited.source


def fault(*replacements: tuple[str, str], source: str = SOURCE) -> str:
    """Why the edits do not apply."""
    edited = apply_edits(source, [Replacement(*pair) for pair in replacements])
    assert edited.fault is not None
    return edited.fault


@given(st.lists(st.one_of(_LINE, st.sampled_from(_MARKERS)), max_size=24).map("\n".join))
@example("<<<<<<< SEARCH")
@example("<<<<<<< SEARCH\n=======")
@example("<<<<<<< SEARCH\na\n>>>>>>> REPLACE\n=======\n>>>")
def test_any_reply_parses_or_is_at_fault(reply: str) -> None:
    parsed = parse_edits(reply)
    assert parsed.fault is None or parsed.replacements == ()
    lines = set(reply.split("\n"))
    for replacement in parsed.replacements:
        written = [*replacement.search.split("\n"), *replacement.replace.split("\n")]
        assert all(line in lines or line == "" for line in written)
    if parsed.replacements:
        edited = apply_edits(SOURCE, parsed.replacements)
        assert (edited.source is None) != (edited.fault is None)


@given(st.lists(st.builds(Replacement, _TEXT, _TEXT), max_size=5))
def test_rendered_blocks_parse_to_themselves(replacements: list[Replacement]) -> None:
    parsed = parse_edits("Here it is.\n" + render_edits(replacements) + "\nDone.")
    assert parsed.fault is None
    assert list(parsed.replacements) == replacements


@given(st.data())
def test_rendered_edits_of_disjoint_lines_apply(data: st.DataObject) -> None:
    lines = data.draw(st.lists(_PLAIN_LINE, min_size=1, max_size=12))
    lines = [f"{i}: {line}" for i, line in enumerate(lines)]
    cuts = (
        sorted(data.draw(st.sets(st.integers(0, len(lines)), min_size=2, max_size=6), label="cuts"))
        if len(lines) > 1
        else [0, 1]
    )
    expected, edits = lines[: cuts[0]], []
    for i, (first, last) in enumerate(itertools.pairwise(cuts)):
        if i % 2:
            expected += lines[first:last]
            continue
        new = data.draw(st.lists(_PLAIN_LINE, min_size=1, max_size=3))
        edits.append(Replacement("\n".join(lines[first:last]), "\n".join(new)))
        # An empty replacement deletes its lines; one blank line cannot be told from it.
        expected += [] if new == [""] else new
    expected += lines[cuts[-1] :]
    source = "\n".join(lines)
    assume("\n".join(expected) != source)
    order = data.draw(st.permutations(edits))
    assert apply_edits(source, parse_edits(render_edits(order)).replacements).source == "\n".join(expected)


@pytest.mark.parametrize(
    "reply",
    [
        "<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE",
        "Sure!\n```c\n<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE\n```\nThat is faster.",
        "<<< search\nold\n===\nnew\n>>> replace",
        "<<<<<<< SEARCH\n```c\nold\n```\n=======\n```c\nnew\n```\n>>>>>>> REPLACE",
        "```\n<<<<<<< SEARCH\nold\n=======\nnew\n```",
        "<<<<<<< SEARCH\r\nold\r\n=======\r\nnew\r\n>>>>>>> REPLACE\r\n",
        "  <<<<<<<< ORIGINAL:\nold\n  ========\nnew\n  >>>>>>>> UPDATED",
    ],
)
def test_sloppy_blocks_are_understood(reply: str) -> None:
    assert parse_edits(reply).replacements == (Replacement("old", "new"),)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("<<<<<<< SEARCH\nold\n=======\nne", "cut off before '>>>>>>> REPLACE'"),
        ("<<<<<<< SEARCH\nold", "cut off before '======='"),
        ("<<<<<<< SEARCH\nold\n>>>>>>> REPLACE", "no '=======' line"),
        ("<<<<<<< SEARCH\na\n=======\nb\n=======\nc\n>>>>>>> REPLACE", "two '=======' lines"),
        ("<<<<<<< SEARCH\na\n<<<<<<< SEARCH\nb\n=======\nc\n>>>>>>> REPLACE", "the next block begins before"),
    ],
)
def test_a_broken_block_spoils_the_reply(reply: str, why: str) -> None:
    good = "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n"
    parsed = parse_edits(good + reply)
    assert parsed.replacements == ()
    assert parsed.fault is not None
    assert why in parsed.fault
    assert "block 2" in parsed.fault


def test_a_reply_without_blocks_has_neither_blocks_nor_fault() -> None:
    parsed = parse_edits("I would unroll the loop.\n```c\nfor (;;) {}\n```")
    assert parsed.replacements == ()
    assert parsed.fault is None


def test_endless_repetition_is_refused() -> None:
    block = "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n"
    assert "at most 32" in (parse_edits(block * 33).fault or "")
    assert len(parse_edits(block * 32).replacements) == 32


def test_exact_lines_are_replaced() -> None:
    edited = edit("        total = total + A[i];\n        C[i] = total;", "        C[i] = A[i];")
    assert edited == SOURCE.replace("        total = total + A[i];\n        C[i] = total;\n", "        C[i] = A[i];\n")


def test_an_empty_replacement_deletes_the_lines() -> None:
    assert edit("        float total = 0;", "") == SOURCE.replace("        float total = 0;\n", "")


def test_white_space_does_not_count_and_indentation_is_taken_over() -> None:
    edited = edit("float   total=0 ;\n\ntotal = total+A[ i ];", "float total = 1;\n  total += A[i];")
    assert "\n        float total = 1;\n          total += A[i];\n        C[i] = total;" in edited


def test_white_space_between_words_does_count() -> None:
    assert edit("long   x ;", "y;", source="longx;\nlong x;\n") == "longx;\ny;\n"


def test_a_part_of_a_line_is_enough_when_it_stands_once() -> None:
    assert edit("BM 64", "BM 128") == SOURCE.replace("BM 64", "BM 128")


def test_a_part_of_a_word_is_not_enough() -> None:
    assert "matches no lines" in fault(("BM 6", "BM 12"))


def test_alike_lines_match_above_the_floor() -> None:
    edited = edit("        total = totals + A[i];\n        C[i] = total;", "        C[i] = A[i];")
    assert edited == SOURCE.replace("        total = total + A[i];\n        C[i] = total;\n", "        C[i] = A[i];\n")


def test_below_the_floor_the_nearest_lines_are_named() -> None:
    text = fault(("        sum = sum + A[i] * 2;\n        C[i] = total;", "x"))
    assert "nearest is lines 5-6" in text
    assert "Line 5 reads `total = total + A[i];`, the block has `sum = sum + A[i] * 2;`" in text
    assert "Copy the old lines exactly" in text


def test_lines_that_fit_several_places_are_refused() -> None:
    text = fault(("    for (int i = 0; i < M; i++) {", "    for (;;) {"))
    assert "fits 2 places (lines 3, 10)" in text
    assert "Add the lines before or after" in text
    assert "fits 2 places (lines 3, 10)" in fault(("for(int i=0; i<M; i++){", "for (;;) {"))


def test_nearly_alike_places_are_refused() -> None:
    source = "    alpha_a = beta + gamma;\n    x();\n    alpha_b = beta + gamma;\n"
    assert "fits 2 places" in fault(("    alpha_x = beta + gamma;", "y();"), source=source)


def test_short_lines_are_never_taken_for_each_other() -> None:
    assert "matches no lines" in fault(("i++;;", "i--;"), source="a();\ni++;\nb();\n")


def test_one_block_that_fails_undoes_all() -> None:
    text = fault(("        float total = 0;", "        float total = 1;"), ("nothing like this at all", "x"))
    assert text.startswith("SEARCH block 2 of 2 matches no lines")


def test_blocks_are_looked_up_in_the_source_as_it_was() -> None:
    edited = apply_edits("a1();\nb1();\n", [Replacement("a1();", "b1();"), Replacement("b1();", "a1();")])
    assert edited.source == "b1();\na1();\n"


def test_overlapping_blocks_are_refused() -> None:
    first = ("        float total = 0;\n        total = total + A[i];", "x")
    assert "change the same lines (line 5)" in fault(first, ("        total = total + A[i];\n        C[i] = total;", "y"))


def test_two_parts_of_one_line_may_change() -> None:
    edited = apply_edits("f(alpha, beta);", [Replacement("beta", "b"), Replacement("alpha", "a")])
    assert edited.source == "f(a, b);"


def test_a_block_said_twice_counts_once() -> None:
    replacement = Replacement("        float total = 0;", "        float total = 1;")
    assert apply_edits(SOURCE, [replacement, replacement]).source == SOURCE.replace("total = 0", "total = 1")


def test_edits_that_change_nothing_are_a_fault() -> None:
    assert "change nothing" in fault(("        float total = 0;", "        float total = 0;"))


def test_an_empty_search_is_a_fault() -> None:
    assert "is empty" in fault(("\n  ", "x"))


def test_a_long_source_is_searched_in_bounded_time() -> None:
    source = "\n".join(f"    acc[{i}] += a[{i % 7}] * b[{i % 13}] + offset_{i * i};" for i in range(6000))
    start = time.process_time()
    assert "matches no lines" in fault(("\n".join(f"acc_{i} = x * y - {i};" for i in range(40)), "z"), source=source)
    assert time.process_time() - start < 20
