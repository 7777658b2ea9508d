"""What reaches a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, é ü 中 🙂\n\tindented", "plain text, é ü 中 🙂\n\tindented"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\rb", "a\\x0db"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202eabc", "\\u202eabc"),
        ("\ud800", "\\ud800"),
        ("\U000f0000", "\\U000f0000"),
    ],
)
def test_what_shows_nothing_is_written_out(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_nothing_that_moves_a_cursor_is_left(text):
    shown = printable(text)
    assert all(c in "\n\t" or (c.isprintable() or c == " " or ord(c) >= 160) for c in shown)
    assert "\x1b" not in shown
    assert not any("\x80" <= c <= "\x9f" for c in shown)
    assert printable(shown) == shown
