"""Archives of several machines become one: no row twice, in whatever order, and as often as one likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archive.codec import now
from archive.database import Database
from archive.keeping.content import Bases, run_bases
from archive.keeping.held import Held, RunCopy, not_at_home, read_held
from archive.keeping.merge_derived import settle_derived
from archive.keeping.merge_rows import Copier
from archive.store import Store
from evo_l2.errors import ConfigurationError, StorageError

__all__ = ["Merged", "check_resumable", "merge"]


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge brought."""

    n_new_runs: int
    n_grown_runs: int
    n_candidates: int
    n_verdicts: int
    n_sessions: int
    renamed: tuple[tuple[str, str], ...]
    """Runs whose name another one has: their former name in this file, or their home's, and their name now."""


def merge(into: Store, sources: Sequence[Store]) -> Merged:
    """Takes into one archive what others hold and it does not.

    Runs are told apart by their id, and a run's rows by their place in it; so a second merge changes nothing, and the outcome
    does not depend on the order (the digest of `archive.keeping.content` says so). A run that grew since the last merge is
    continued. Each source is taken in one transaction: whole, or not at all. Sources are only read.

    Nothing of a run is blended with another's: verdicts of one kernel by two runs stay two verdicts, as those of two runs
    of one file that contradict each other do. Environments and harness versions stay apart by their keys.

    Raises:
        ConfigurationError: A source is the archive itself.
        StorageError: A run was continued in two files, so that its copies contradict each other; or a file cannot be used.
    """
    merged = Merged(0, 0, 0, 0, 0, ())
    for source in sources:
        if _place(source) == _place(into):
            raise ConfigurationError(
                "an archive cannot be merged into itself", expected="another archive", found=source.place
            )
    for source in sources:
        one = _merge_one(into._database, source)
        merged = Merged(
            merged.n_new_runs + one.n_new_runs,
            merged.n_grown_runs + one.n_grown_runs,
            merged.n_candidates + one.n_candidates,
            merged.n_verdicts + one.n_verdicts,
            merged.n_sessions + one.n_sessions,
            merged.renamed + one.renamed,
        )
    return merged


def _place(store: Store) -> object:
    return store.path.resolve() if store.is_file else store.url


def check_resumable(store: Store, name: str) -> None:
    """Makes sure that a run may go on in this file.

    Raises:
        StorageError: It judges kernels again, and is no search; or it was merged into the file. It would go on in two files
            then, and the two could never be merged again; and the rows that it had seen at home have other ids here.
    """
    rows = store.read("SELECT merged, home_name FROM runs WHERE name = ?", (name,))
    if rows and rows[0][0] is not None:
        raise not_at_home(name, rows[0][0])
    sql = "SELECT s.value FROM run_states s JOIN runs r ON r.id = s.run_id WHERE r.name = ? AND s.name = ?"
    if store.read(sql, (name, "reverify")):
        raise StorageError(
            f"run {name} judges kernels again and is no search",
            expected="a run that evo-l2 run started",
            hint="evo-l2 archive reverify, to go on with it, or evo-l2 run, to start a search from what it holds",
        )


def _merge_one(database: Database, source: Store) -> Merged:
    there = read_held(source.read)
    with database.write():
        here = read_held(database.read)
        copies = [_plan(source, database, run, here) for run in there]
        copier = Copier(source, database, copies, there, here)
        bases = run_bases(source)
        copier.intern()
        n_new = 0
        for copy in copies:
            if copy.target is None:
                n_new += 1
                copier.start(copy, now())
        for copy in copies:
            copier.settle(copy)
        new = {copy.run.uid: copy for copy in copies if copy.is_new}
        _keep_bases(database, copies, new, bases)
        grown = [copy for copy in copies if copy.grows]
        if grown:
            copier.copy_rows()
            settle_derived(database, copier)
        renamed = _rename(database)
    return Merged(
        n_new,
        sum(not copy.is_new for copy in grown),
        sum(copy.run.n_candidates - copy.n_candidates for copy in grown),
        sum(copy.run.n_verdicts - copy.n_verdicts for copy in grown),
        sum(copy.run.n_sessions - copy.n_sessions for copy in grown),
        renamed,
    )


def _plan(source: Store, database: Database, run: Held, here: Sequence[Held]) -> RunCopy:
    """What is to be taken of one run.

    Raises:
        StorageError: Its copies contradict each other.
    """
    held = next((other for other in here if other.uid == run.uid), None)
    if held is None:
        return RunCopy(run, None, 0, 0, 0, is_new=True)
    counts = [(held.n_verdicts, run.n_verdicts), (held.n_sessions, run.n_sessions), (held.n_candidates, run.n_candidates)]
    parted = any(a < b for a, b in counts) and any(a > b for a, b in counts)
    differing = None
    for what, ours, theirs in (
        ("candidate", held.candidate(database.read, run), run.candidate(source.read, held)),
        ("verdict", held.verdict(database.read, run), run.verdict(source.read, held)),
        ("session", held.session(database.read, run), run.session(source.read, held)),
    ):
        if ours != theirs:
            differing = what
    if parted or differing:
        raise StorageError(
            f"run {run.name} went on in {source.place} and in {database.place}, each time otherwise",
            expected="one copy of a run that goes on",
            found=f"two whose last common {differing} differs" if differing else "two that each hold what the other lacks",
            hint=f"evo-l2 archive merge NEW.db {source.place}, to keep its copy apart",
        )
    # A copy that holds less than is here brings nothing.
    if all(a >= b for a, b in counts):
        return RunCopy(run, held.key, run.n_verdicts, run.n_sessions, run.n_candidates, is_new=False)
    return RunCopy(run, held.key, held.n_verdicts, held.n_sessions, held.n_candidates, is_new=False)


def _keep_bases(database: Database, copies: Sequence[RunCopy], new: dict[str, RunCopy], bases: dict[int, Bases]) -> None:
    """What the new runs had seen when they were started, named by run and number instead of by id."""
    targets = {copy.run.uid: copy.target for copy in copies}
    for copy in new.values():
        for uid, counts in sorted(bases[copy.run.key].items()):
            database.execute("INSERT INTO run_bases VALUES (?, ?, ?, ?, ?)", (copy.target, targets[uid], *counts))


def _rename(database: Database) -> tuple[tuple[str, str], ...]:
    """Gives every run its name at home; where several have one, the oldest keeps it and the others get digits of their id.

    That follows from the runs alone, so it does not depend on the order in which they came.
    """
    database.execute("UPDATE runs SET home_name = name WHERE home_name IS NULL")
    rows = database.read("SELECT id, name, home_name, uid FROM runs ORDER BY home_name, created, uid")
    names: dict[int, str] = {}
    taken = {row[2] for row in rows}
    firsts: set[str] = set()
    for key, _, home, uid in rows:
        if home not in firsts:
            firsts.add(home)
            names[key] = home
            continue
        length = 6
        while f"{home}-{uid[:length]}" in taken and length < len(uid):
            length += 1
        names[key] = f"{home}-{uid[:length]}"
        taken.add(names[key])
    changed = [row for row in rows if names[row[0]] != row[1]]
    for key, *_, uid in changed:
        database.execute("UPDATE runs SET name = ? WHERE id = ?", (f"renaming-{uid}", key))
    for key, *_ in changed:
        database.execute("UPDATE runs SET name = ? WHERE id = ?", (names[key], key))
    return tuple((old if old != uid else home, names[key]) for key, old, home, uid in changed if names[key] != home)
