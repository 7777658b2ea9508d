"""Builds kept by what went into them, failures too: damaged entries, several builders at once, folders of killed builds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from evo_l2.errors import StorageError
from evo_l2.evaluation import BuildReport, Status, Verdict
from evo_l2.products import read_product

__all__ = ["FACTS", "BuildCache", "BuildOutcome", "Kept", "key_of"]

FACTS = "facts.json"
"""The file of an entry that says what it is; it is as old as the entry's last use (see `evo_l2.cache_pruning`)."""
_STALE_S = 3600.0
_MOST_FACTS_BYTES = 4 << 20
_NOTED_S = 600.0
"""Uses of one entry within so many seconds are noted once."""


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """What one build came to, before it has its place in the cache."""

    verdict: Verdict | None = None
    """Why there is no build; None when there is one."""
    log: str = ""
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    """What else is worth keeping of a build."""
    lasting: bool = True
    """False for a failure that another time may not show; it is not kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the cache holds of one build."""

    folder: Path
    """Where its products are."""
    verdict: Verdict | None
    """Why there is no build, with a report; None when there is one."""
    log: str
    facts: Mapping[str, int | float | str]
    seconds: float
    """Wall seconds of the build; 0.0 when it came from the cache."""


def key_of(parts: Iterable[str]) -> str:
    """The name of a build: a digest over all that goes into it, in order, as 64 hexadecimal digits."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


class BuildCache:
    """A folder of builds. May be used by several threads and processes at once.

    Args:
        folder: Where builds are kept; made when there is none.
        products: Names of the files that a successful build leaves; all other files but the facts are dropped.

    Raises:
        StorageError: The folder cannot be written.
    """

    def __init__(self, folder: Path, products: tuple[str, ...]) -> None:
        self._folder = folder
        self._products = products
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self.unwritable(error) from error
        self._remove_stale()

    def obtain(self, key: str, build: Callable[[Path], BuildOutcome]) -> Kept:
        """What is kept under the key, else what `build` makes in the fresh folder that it is given.

        Raises:
            StorageError: The cache cannot be written, or does not keep what is written.
        """
        place = self._folder / key[:2] / key
        kept = self._fetch(place, 0.0)
        if kept is not None:
            _note_use(place / FACTS)
            return kept
        begin = time.perf_counter()
        with self.work() as work:
            outcome = build(work)
            seconds = time.perf_counter() - begin
            if outcome.verdict is not None and not outcome.lasting:
                return Kept(work, _with_report(outcome.verdict, outcome.log, seconds), outcome.log, {}, seconds)
            self._drop_others(work)
            self._write_facts(work, outcome)
            self._publish(work, place)
        kept = self._fetch(place, seconds)
        if kept is None:
            hint = "evo-l2 doctor"
            raise StorageError("the build cache does not keep what is written", expected=str(place), hint=hint)
        return kept

    def once(self, key: str, check: Callable[[], None]) -> None:
        """Runs a check unless this cache holds a note that it went well before; an exception of it leaves no note.

        Raises:
            StorageError: The cache cannot be written.
        """
        note = self._folder / f"works-{key[:32]}"
        if note.exists():
            return
        check()
        try:
            note.touch()
        except OSError as error:
            raise self.unwritable(error) from error

    @contextlib.contextmanager
    def work(self) -> Iterator[Path]:
        """A fresh folder inside the cache, gone afterwards unless it was moved to its place.

        Raises:
            StorageError: Anything inside failed with an `OSError`.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=".build-", dir=self._folder))
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
        except OSError as error:
            raise self.unwritable(error) from error

    def unwritable(self, error: OSError) -> StorageError:
        """What to raise when there is no room, or no permission."""
        hint = "free space, or export XDG_CACHE_HOME=/a/folder/that/may/be/written"
        expected = f"to write in {self._folder}"
        return StorageError("the build cache cannot be written", expected=expected, found=str(error), hint=hint)

    def _drop_others(self, work: Path) -> None:
        """Removes all that is no product; also what a tool may have left where the facts are to be written."""
        for path in work.iterdir():
            if path.name not in self._products:
                _remove(path)

    def _publish(self, work: Path, place: Path) -> None:
        """Puts a finished build under its name; one that another process has put there first is as good."""
        place.parent.mkdir(exist_ok=True)
        for _ in range(8):
            with contextlib.suppress(OSError):
                os.rename(work, place)
                return
            if self._fetch(place, 0.0) is not None:
                return
            # What stands there is damaged. It is moved away first: removing takes more than one step, renaming does not.
            damaged = Path(tempfile.mkdtemp(prefix=".build-", dir=self._folder))
            with contextlib.suppress(OSError):
                os.rename(place, damaged / "damaged")
            shutil.rmtree(damaged, ignore_errors=True)

    def _fetch(self, place: Path, seconds: float) -> Kept | None:
        """What an entry says; None when there is none, or when it is damaged."""
        try:
            facts = json.loads(read_product(place / FACTS, _MOST_FACTS_BYTES))
            log, more = str(facts["log"]), dict(facts["facts"])
            if facts["gate"] is not None:
                gate, message = facts["gate"], facts["message"]
                if not isinstance(gate, str) or not isinstance(message, str | None):
                    return None
                verdict = Verdict(Status(facts["status"]), gate, message)
                return Kept(place, _with_report(verdict, log, seconds), log, more, seconds)
            if any(_digest(place / name) != facts["digests"][name] for name in self._products):
                return None
            return Kept(place, None, log, more, seconds)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _write_facts(self, work: Path, outcome: BuildOutcome) -> None:
        verdict = outcome.verdict
        facts = {
            "status": verdict.status.value if verdict is not None else None,
            "gate": verdict.gate if verdict is not None else None,
            "message": verdict.message if verdict is not None else None,
            "log": outcome.log,
            "facts": dict(outcome.facts),
            "digests": {name: _digest(work / name) for name in self._products} if verdict is None else {},
        }
        (work / FACTS).write_text(json.dumps(facts), encoding="utf-8")

    def _remove_stale(self) -> None:
        """Removes the folders of builds that were killed."""
        for path in self._folder.glob(".build-*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    shutil.rmtree(path, ignore_errors=True)


def _note_use(path: Path) -> None:
    """Marks an entry as used now; a cache that cannot be written serves all the same."""
    with contextlib.suppress(OSError):
        if abs(time.time() - path.stat().st_mtime) > _NOTED_S:
            os.utime(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _digest(path: Path) -> str:
    return hashlib.sha256(read_product(path)).hexdigest()


def _with_report(verdict: Verdict, log: str, seconds: float) -> Verdict:
    return replace(verdict, build=BuildReport(seconds, log)) if verdict.status is Status.BUILD_ERROR else verdict
