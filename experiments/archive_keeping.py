"""What keeps an archive whole: the bodies of `evo-l2 archive fsck` and its kin."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from archive.address import Address
from archive.keeping.checking import check
from archive.keeping.collecting import collect
from archive.keeping.merging import merge
from archive.read_only import open_to_read
from archive.store import Store
from evo_l2.cache_pruning import prune
from experiments.parts import build_caches
from experiments.printable import printable

__all__ = ["collect_garbage", "merge_archives", "print_check"]

_MOST = 20
"""Findings of one check that are listed; the rest is counted."""


def print_check(db: Address, *, repair: bool, as_json: bool) -> bool:
    """What a check of the archive found, and whether nothing is left to be mended.

    Raises:
        StorageError: It cannot be opened, or a repair cannot be written.
    """
    with Store.open(db, create=False) if repair else open_to_read(db) as store:
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
        print(f"worked out again: {report.n_repaired}")
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


def merge_archives(into: Address, sources: Sequence[Address], *, as_json: bool) -> None:
    """Takes other archives into one, which is made when it is missing.

    Raises:
        ConfigurationError: A source is the archive itself.
        StorageError: A file cannot be used, or a run was continued in two of them.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(open_to_read(source)) for source in sources]
        store = stack.enter_context(Store.open(into))
        for each in (store, *opened):
            if each.upgraded_from is not None:
                former = f"; its former state is {each.place}.{each.upgraded_from}.bak" if each.is_file else ""
                print(printable(f"{each.place} was upgraded{former}"), file=sys.stderr)
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


def collect_garbage(
    db: Address, *, backups: bool, builds: bool, days: float, gib: float, dry_run: bool, as_json: bool
) -> None:
    """Takes out of the archive what nothing refers to and, if asked, copies from before upgrades and old builds.

    Raises:
        ConfigurationError: Copies of an archive on a server are asked for.
        StorageError: The archive cannot be opened or written, or is in use.
    """
    with Store.open(db, create=False) as store:
        gone = collect(store, backups=backups, dry_run=dry_run)
    facts: dict[str, object] = {
        "dry_run": dry_run,
        "texts": gone.n_texts,
        "kernels": gone.n_kernels,
        "bytes_before": gone.n_bytes_before,
        "bytes_after": gone.n_bytes_after,
        "backups": [str(path) for path in gone.backups],
        "backup_bytes": gone.n_backup_bytes,
    }
    would = "would take" if dry_run else "took"
    lines = [f"{would} {gone.n_texts} texts and {gone.n_kernels} kernels that nothing refers to out of {db}"]
    if not dry_run:
        lines.append(f"{db}: {_mib(gone.n_bytes_before)} before, {_mib(gone.n_bytes_after)} now")
    lines += [f"{would} away {path}" for path in gone.backups]
    if builds:
        for folder in build_caches():
            pruned = prune(folder, older_than_s=days * 86_400, most_bytes=int(gib * 2**30), dry_run=dry_run)
            facts[f"builds in {folder}"] = dataclasses.asdict(pruned)
            what = f"{pruned.n_removed} builds ({_mib(pruned.n_removed_bytes)})"
            lines.append(f"{would} {what} out of {folder}; {pruned.n_kept} ({_mib(pruned.n_kept_bytes)}) stay")
    print(json.dumps(facts, indent=2) if as_json else "\n".join(printable(line) for line in lines))


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB"
