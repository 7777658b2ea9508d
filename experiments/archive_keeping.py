"""What keeps an archive whole: the bodies of `evo-l2 archive fsck` and its kin."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

from archive.checking import check
from archive.store import Store
from experiments.printable import printable

__all__ = ["print_check"]

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
