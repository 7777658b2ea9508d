"""The other way round: the edits that make one source of another, as a model would have had to write them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from mutators.edits import Replacement, apply_edits, parse_edits, render_edits

__all__ = ["edits_between"]


@dataclass(slots=True)
class _Hunk:
    """Lines `old_from` up to `old_to` of the old source, and those of the new that take their place."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


def edits_between(old: str, new: str) -> str | None:
    """SEARCH/REPLACE blocks that turn `old` into `new`, each with as much around it as makes it fit one place only.

    Returns:
        The text of the blocks, which was read back and applied; None where there is none that does it (nothing changed, or a
        line looks like a marker).
    """
    before, after = old.split("\n"), new.split("\n")
    hunks = _hunks(before, after)
    if not hunks or not _settle(hunks, before, after):
        return None
    replacements = [
        Replacement("\n".join(before[h.old_from : h.old_to]), "\n".join(after[h.new_from : h.new_to])) for h in hunks
    ]
    try:
        text = render_edits(replacements)
    except ValueError:
        return None
    parsed = parse_edits(text)
    if parsed.fault is not None or apply_edits(old, parsed.replacements).source != new:
        return None
    return text


def _hunks(before: Sequence[str], after: Sequence[str]) -> list[_Hunk]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [_Hunk(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]


def _settle(hunks: list[_Hunk], before: Sequence[str], after: Sequence[str]) -> bool:
    """Widens hunks, in place, until each fits one place only; those that meet are joined. False when one never does."""
    at = 0
    while at < len(hunks):
        hunk = hunks[at]
        # A single blank line cannot be told from no line at all in a block.
        if _fits_once(before, hunk) and list(after[hunk.new_from : hunk.new_to]) != [""]:
            at += 1
            continue
        if hunk.old_from == 0 and hunk.old_to == len(before):
            return False
        if hunk.old_from > 0:
            hunk.old_from, hunk.new_from = hunk.old_from - 1, hunk.new_from - 1
        if hunk.old_to < len(before) and hunk.new_to < len(after):
            hunk.old_to, hunk.new_to = hunk.old_to + 1, hunk.new_to + 1
        at = _join_neighbours(hunks, at)
    return True


def _join_neighbours(hunks: list[_Hunk], at: int) -> int:
    """Joins the hunk with those that it has come to touch; where it stands then."""
    hunk = hunks[at]
    if at + 1 < len(hunks) and hunk.old_to >= hunks[at + 1].old_from:
        after = hunks.pop(at + 1)
        hunk.old_to, hunk.new_to = after.old_to, after.new_to
    if at > 0 and hunks[at - 1].old_to >= hunk.old_from:
        earlier = hunks.pop(at - 1)
        hunk.old_from, hunk.new_from = earlier.old_from, earlier.new_from
        return at - 1
    return at


def _fits_once(before: Sequence[str], hunk: _Hunk) -> bool:
    wanted = list(before[hunk.old_from : hunk.old_to])
    if not any(line.strip() for line in wanted):
        return False
    size = len(wanted)
    places = (i for i in range(len(before) - size + 1) if before[i] == wanted[0] and before[i : i + size] == wanted)
    return next(places, None) is not None and next(places, None) is None
