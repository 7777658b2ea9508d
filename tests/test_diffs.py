"""Edits worked out from two sources do what the second says, and are what the edit operator reads."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mutators.diffs import edits_between
from mutators.edits import apply_edits, parse_edits

LINES = st.lists(
    st.sampled_from(["", "{", "}", "  x = 1;", "  y = 2;", "#define BM 64 //? 32 64", "for (;;) {", "//"]), max_size=14
)


def test_one_changed_line_is_one_block() -> None:
    text = edits_between("a = 1;\nb = 2;\nc = 3;\n", "a = 1;\nb = 4;\nc = 3;\n")
    assert text == "<<<<<<< SEARCH\nb = 2;\n=======\nb = 4;\n>>>>>>> REPLACE"


def test_a_line_that_stands_twice_takes_its_neighbours_along() -> None:
    text = edits_between("{\nx();\n}\n{\ny();\n}\n", "{\nx();\n}\n{\ny();\nz();\n}\n")
    assert text is not None
    assert "y();" in text
    assert apply_edits("{\nx();\n}\n{\ny();\n}\n", parse_edits(text).replacements).source == "{\nx();\n}\n{\ny();\nz();\n}\n"


def test_nothing_changed_and_lines_like_markers_give_no_edit() -> None:
    assert edits_between("a\nb\n", "a\nb\n") is None
    assert edits_between("a\nb\n", "a\n=======\n") is None


@given(LINES, LINES)
@settings(max_examples=100, deadline=None)
def test_whatever_is_given_applies_to_the_old_source_and_gives_the_new(before: list[str], after: list[str]) -> None:
    old, new = "\n".join(before), "\n".join(after)
    text = edits_between(old, new)
    if text is not None:
        assert apply_edits(old, parse_edits(text).replacements).source == new
    else:
        assert old == new or not old.strip() or new == ""
