"""`evo-l2 archive moves`: which edits gained, by kind."""

from __future__ import annotations

import json

from rich.console import Console

from archive.address import Address
from archive.mining import Mean, MoveStats, Share, moves
from archive.read_only import open_to_read
from experiments.archive_pages.frames import frame, say
from experiments.archive_pages.words import gain_facts, mean_in_words, share_in_words

__all__ = ["print_moves"]

_WIDE = 112
"""Columns of the screen from which on losses and the best move are shown as well."""


def print_moves(db: Address, run_name: str | None, *, as_json: bool) -> None:
    """What each kind of edit brought, in one run or in the whole file.

    Raises:
        StorageError: The database cannot be read, or has no such run.
    """
    with open_to_read(db) as store:
        found = moves(store, run_name)
    if as_json:
        print(json.dumps([_facts(row) for row in found], indent=2))
        return
    console = Console(highlight=False)
    if not found:
        say(console, f"no candidate of {run_name or db} changed a parent")
        return
    wide = console.width >= _WIDE
    names = ("move", "made", "known", "valid", "gained", "mean gain", *(("lost", "best gain", "by") if wide else ()))
    table = frame(names, right=names[1:-1] if wide else names[1:], wrap=("valid", "gained", "mean gain"))
    for row in found:
        cells = [_name(row), str(row.n), str(row.n_known), share_in_words(row.validity), share_in_words(row.gained)]
        cells.append(mean_in_words(row.mean))
        if wide:
            best = row.best
            cells.append(share_in_words(row.lost).split(" ")[0])
            cells += (
                [f"{best.gain.ratio:.3f}x", best.digest[:12]] if best is not None and best.gain is not None else ["-", ""]
            )
        table.add_row(*cells, style=_style(row))
    console.print(table)
    for note in (
        "valid: passed (or built) of those judged; gained: whole interval above the parent's speed; shares with Wilson's"
        " 95 % interval; mean gain: geometric, with a bootstrap interval",
        "an edit that touches several things counts in several rows",
    ):
        say(console, note, "dim")


def _name(row: MoveStats) -> str:
    return f"{row.name} {row.direction}" if row.name is not None else row.kind


def _style(row: MoveStats) -> str:
    interval = row.mean.interval if row.mean is not None else None
    return "green" if interval and interval[0] > 1 else "red" if interval and interval[1] < 1 else ""


def _facts(row: MoveStats) -> dict[str, object]:
    def part(found: Share | None) -> dict[str, object] | None:
        if found is None:
            return None
        return {"hits": found.n_hits, "trials": found.n_trials, "share": found.value, "interval": [found.low, found.high]}

    def mean(found: Mean | None) -> dict[str, object] | None:
        if found is None:
            return None
        return {"n": found.n, "ratio": found.ratio, "interval": list(found.interval) if found.interval else None}

    best = row.best
    return {
        "kind": row.kind,
        "name": row.name,
        "direction": row.direction,
        "made": row.n,
        "known": row.n_known,
        "cells": row.n_filed,
        "valid": part(row.validity),
        "gained": part(row.gained),
        "lost": part(row.lost),
        "mean": mean(row.mean),
        "mean_alone": mean(row.mean_alone),
        "best": {"digest": best.digest, "gain": gain_facts(best.gain)} if best is not None else None,
    }
