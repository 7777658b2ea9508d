"""`evo-l2 archive lineage`: ancestors and descendants of a kernel, step by step."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from archive.address import Address
from archive.mining import Family, Relative, diff_lines, family, show
from archive.read_only import open_to_read
from archive.store import Store
from evo_l2.evaluation import Status, rank
from experiments.archive_pages.diff_page import print_diff_lines
from experiments.archive_pages.frames import frame, say
from experiments.archive_pages.words import estimate_facts, gain_facts, gain_in_words, interval_in_words
from experiments.summary_page import counted

__all__ = ["print_lineage"]

_MOST_INDENT = 6


def print_lineage(db: Address, digest: str, *, depth: int | None, limit: int, with_diffs: bool, as_json: bool) -> None:
    """The family of a kernel.

    Raises:
        ConfigurationError: No kernel, or more than one, begins with these digits.
        StorageError: The database cannot be read.
    """
    with open_to_read(db) as store:
        found = family(store, digest, depth=depth, limit=limit)
        shown = _ordered(found)
        diffs = [_diff(store, relative) if with_diffs else () for _, relative in shown]
    if as_json:
        print(json.dumps([_facts(g, r, d, with_diffs) for (g, r), d in zip(shown, diffs, strict=True)], indent=2))
        return
    console = Console(highlight=False)
    if found.kernel is None:
        say(console, "a seed that no run has told yet: no ancestors, no descendants")
        return
    if with_diffs:
        for (generation, relative), diff in zip(shown, diffs, strict=True):
            say(console, _step(generation, relative), _style(generation, relative))
            print_diff_lines(console, diff[2:], "    ")
            console.print()
    else:
        console.print(_table(shown))
    note = "gain: over the first parent; generation 0: the kernel asked about; speed-ups over all sessions"
    say(console, note, "dim")
    if found.n_left_out:
        more = counted(found.n_left_out, "descendant")
        say(console, f"{more} more were left out; --limit shows more", "dim")


def _ordered(found: Family) -> list[tuple[int, Relative]]:
    """Ancestors oldest first, the kernel, then descendants, each below its first parent that is shown."""
    if found.kernel is None:
        return []
    rows = [(-relative.depth, relative) for relative in sorted(found.ancestors, key=lambda r: (-r.depth, r.index))]
    children: dict[str, list[Relative]] = {}
    shown = {found.kernel.digest, *(relative.digest for relative in found.descendants)}
    for relative in found.descendants:
        parent = next(parent for parent in relative.parents if parent in shown)
        children.setdefault(parent, []).append(relative)
    stack = [found.kernel]
    while stack:
        relative = stack.pop()
        rows.append((relative.depth, relative))
        below = sorted(children.pop(relative.digest, ()), key=lambda r: rank(r.estimate, r.digest), reverse=True)
        stack.extend(below)
    return rows


def _table(rows: Sequence[tuple[int, Relative]]) -> Table:
    names = ("", "kernel", "operator", "speed-up", "gain", "95 % interval", "candidate")
    table = frame(names, right=("", "speed-up", "gain"), wrap=("95 % interval", "candidate"))
    for generation, relative in rows:
        gain = relative.gains[0] if relative.gains else None
        indent = " " * min(2 * max(generation, 0), _MOST_INDENT)
        table.add_row(
            f"{generation:+d}" if generation else "0",
            indent + relative.digest[:12],
            relative.operator,
            _speed(relative),
            f"{gain.ratio:.3f}x" if gain is not None else "",
            interval_in_words(gain.interval) if gain is not None else "",
            f"{relative.run} #{relative.index}",
            style=_style(generation, relative),
        )
    return table


def _speed(relative: Relative) -> str:
    if relative.estimate is not None:
        return f"{relative.estimate.speedup:.3f}"
    return "not timed" if relative.status == Status.PASSED.value else relative.status or "repeat"


def _style(generation: int, relative: Relative) -> str:
    gain = relative.gains[0] if relative.gains else None
    return "bold" if generation == 0 else "green" if gain and gain.is_sure else "red" if gain and gain.is_loss else ""


def _step(generation: int, relative: Relative) -> str:
    words = [f"{generation:+d}" if generation else "0", relative.digest[:12], relative.operator, _speed(relative)]
    if relative.gains:
        words.append(f"gain {gain_in_words(relative.gains[0])}")
    return "  ".join([*words, f"{relative.run} #{relative.index}"])


def _diff(store: Store, relative: Relative) -> tuple[str, ...]:
    if not relative.parents:
        return ()
    parent, kernel = (show(store, digest).kernel for digest in (relative.parents[0], relative.digest))
    return diff_lines(parent.source, kernel.source, relative.parents[0][:12], relative.digest[:12])


def _facts(generation: int, relative: Relative, diff: Sequence[str], with_diffs: bool) -> dict[str, object]:
    return {
        "generation": generation,
        "digest": relative.digest,
        "run": relative.run,
        "index": relative.index,
        "operator": relative.operator,
        "parents": list(relative.parents),
        "status": relative.status,
        **estimate_facts(relative.estimate),
        "gains": [gain_facts(gain) for gain in relative.gains],
        "offspring": relative.n_offspring,
        **({"diff": list(diff)} if with_diffs else {}),
    }
