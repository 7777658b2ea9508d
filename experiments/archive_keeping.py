"""What keeps an archive whole: the bodies of `evo-l2 archive fsck` and its kin."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from archive.checking import check
from archive.merging import merge
from archive.store import Store
from experiments.printable import printable

__all__ = ["merge_archives", "print_check"]

_MOST = 20
"""Findings of one check that are listed; the rest is counted."""


def print_check(db: Path, *, repair: bool, as_json: bool) -> bool:
    """What a check of the archive found, and whether nothing is left to be mended.

    Raises:
        StorageError: It cannot be opened, or a repair cannot be written.
    """
    with Store.open(db, create=False) as store:
        report = check(store, repair=repair)
    if as_json:
        facts = {
            "clean": report.clean,
            "repaired": report.n_repaired,
            "findings": [dataclasses.asdict(finding) for finding in report.findings],
            "notes": [note.what for note in report.notes],
        }
        print(json.dumps(facts, indent=2))
        return report.clean
    listed: Counter[str] = Counter()
    for finding in report.findings:
        listed[finding.check] += 1
        if listed[finding.check] <= _MOST:
            print(printable(str(finding)))
    for name, count in listed.items():
        if count > _MOST:
            print(f"{name}: and {count - _MOST} more")
    for note in report.notes:
        print(f"note: {printable(note.what)}")
    if report.n_repaired:
        print(f"{report.n_repaired} standings were worked out again")
    n_left = len(report.findings) - report.n_repaired
    if not report.findings:
        print(f"{printable(str(db))} is clean")
    elif n_left:
        n_repairable = sum(finding.repairable for finding in report.findings)
        hint = (
            f"; {n_repairable} of them can be mended: evo-l2 archive fsck {db} --repair"
            if n_repairable and not repair
            else ""
        )
        print(printable(f"{n_left} findings{hint}"))
    return report.clean


def merge_archives(into: Path, sources: Sequence[Path], *, as_json: bool) -> None:
    """Takes other archives into one, which is made when it is missing.

    Raises:
        ConfigurationError: A source is the archive itself.
        StorageError: A file cannot be used, or a run was continued in two of them.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(Store.open(source, create=False)) for source in sources]
        store = stack.enter_context(Store.open(into))
        for each in (store, *opened):
            if each.upgraded_from is not None:
                copy = f"{each.path}.{each.upgraded_from}.bak"
                print(printable(f"{each.path} was upgraded; its former state is {copy}"), file=sys.stderr)
        merged = merge(store, opened)
        facts = {
            "new_runs": merged.n_new_runs,
            "grown_runs": merged.n_grown_runs,
            "candidates": merged.n_candidates,
            "verdicts": merged.n_verdicts,
            "sessions": merged.n_sessions,
            "renamed": dict(merged.renamed),
        }
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    counts = f"{merged.n_candidates} candidates, {merged.n_verdicts} verdicts, {merged.n_sessions} sessions"
    print(f"{merged.n_new_runs} new runs, {merged.n_grown_runs} that grew: {counts}")
    for former, name in merged.renamed:
        print(printable(f"run {former} is called {name} here"))
