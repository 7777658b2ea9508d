"""What of an older environment matters, and the run that judges it again in the present one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from archive.codec import load_text
from archive.keeping.leases import Work
from archive.run import RunHandle, RunInfo
from archive.store import Store
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Environment
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem

__all__ = ["STATE", "Origin", "kernel_of", "open_reverification", "parents_of", "purpose_of", "select", "source_run", "works"]

STATE = "reverify"
"""The run's state that says of which problem and environment it judges kernels again."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A kernel of an older environment, and the candidate that brought it."""

    digest: str
    run: str
    index: int

    def note(self, info: RunInfo) -> str:
        """In words, for the candidate that judges it again."""
        where = f"problem {info.problem_key}, environment {info.environment.key}"
        return f"judged again: candidate {self.index} of run {self.run}, {where}"


def source_run(store: Store, name: str | None) -> RunInfo:
    """The run whose problem and environment are meant: the one named, or the last that judged kernels for the first time.

    Raises:
        StorageError: There is no such run.
    """
    if name is None:
        rows = store.read(
            "SELECT r.name FROM runs r WHERE NOT EXISTS (SELECT 1 FROM run_states s WHERE s.run_id = r.id AND s.name = ?)"
            " ORDER BY r.id DESC LIMIT 1",
            (STATE,),
        )
        name = rows[0][0] if rows else None
    return store.run_info(name)


def select(store: Store, info: RunInfo, *, count: int | None, ancestors: bool) -> tuple[Origin, ...]:
    """What matters of a run's problem and environment, all its runs together; ancestors before their offspring.

    Args:
        store: The archive.
        info: A run of that problem and environment.
        count: The best so many kernels; None for one of every cell.
        ancestors: Whether the kernels that these descend from come too.
    """
    place = (info.problem_key, info.environment.key)
    rows = store.read(
        "SELECT k.digest, t.cell FROM standings t JOIN kernels k ON k.id = t.kernel_id JOIN problems p ON p.id = t.problem_id"
        " JOIN environments e ON e.id = t.environment_id WHERE p.key = ? AND e.key = ? AND t.cell IS NOT NULL"
        " ORDER BY t.log_low DESC, k.digest",
        place,
    )
    if count is not None:
        chosen = [digest for digest, _ in rows[:count]]
    else:
        best: dict[str, str] = {}
        for digest, cell in rows:
            best.setdefault(cell, digest)
        chosen = list(best.values())
    origins = _origins(store, place)
    parents = _parents(store, place) if ancestors else {}
    order: dict[str, None] = {}
    for digest in chosen:
        _descend(digest, parents, order)
    return tuple(origins[digest] for digest in order if digest in origins)


def _descend(digest: str, parents: dict[str, tuple[str, ...]], order: dict[str, None]) -> None:
    """Puts a kernel behind all that it descends from."""
    waiting = [(digest, False)]
    seen = set(order)
    while waiting:
        current, is_ready = waiting.pop()
        if is_ready:
            order.setdefault(current)
        elif current not in seen:
            seen.add(current)
            waiting.append((current, True))
            waiting.extend((parent, False) for parent in reversed(parents.get(current, ())))


def _origins(store: Store, place: tuple[str, str]) -> dict[str, Origin]:
    """The first candidate of every kernel that was judged there."""
    found: dict[str, Origin] = {}
    for digest, run, index in store.read(
        "SELECT k.digest, r.name, c.idx FROM candidates c JOIN runs r ON r.id = c.run_id JOIN kernels k ON k.id = c.kernel_id"
        " JOIN problems p ON p.id = r.problem_id JOIN environments e ON e.id = r.environment_id"
        " WHERE p.key = ? AND e.key = ? AND c.verdict_id IS NOT NULL ORDER BY c.id",
        place,
    ):
        found.setdefault(digest, Origin(digest, run, index))
    return found


def _parents(store: Store, place: tuple[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = defaultdict(list)
    for digest, parent in store.read(
        "SELECT k.digest, a.digest FROM candidate_parents q JOIN candidates c ON c.id = q.candidate_id"
        " JOIN runs r ON r.id = c.run_id JOIN kernels k ON k.id = c.kernel_id JOIN kernels a ON a.id = q.kernel_id"
        " JOIN problems p ON p.id = r.problem_id JOIN environments e ON e.id = r.environment_id"
        " WHERE p.key = ? AND e.key = ? AND c.verdict_id IS NOT NULL ORDER BY c.id, q.position",
        place,
    ):
        found[digest].append(parent)
    return {digest: tuple(dict.fromkeys(parents)) for digest, parents in found.items()}


def parents_of(store: Store, info: RunInfo, digest: str) -> tuple[str, ...]:
    """The kernels that one was made from, where it was judged first."""
    return tuple(
        row[0]
        for row in store.read(
            "SELECT a.digest FROM candidate_parents q JOIN kernels a ON a.id = q.kernel_id WHERE q.candidate_id ="
            " (SELECT MIN(c.id) FROM candidates c JOIN runs r ON r.id = c.run_id JOIN kernels k ON k.id = c.kernel_id"
            " JOIN problems p ON p.id = r.problem_id JOIN environments e ON e.id = r.environment_id"
            " WHERE k.digest = ? AND p.key = ? AND e.key = ? AND c.verdict_id IS NOT NULL) ORDER BY q.position",
            (digest, info.problem_key, info.environment.key),
        )
    )


def kernel_of(store: Store, digest: str) -> Kernel:
    """A kernel by its digest, which the archive holds."""
    source, target = store.read("SELECT source, target FROM kernels WHERE digest = ?", (digest,))[0]
    return Kernel(load_text(source), target)


def open_reverification(
    store: Store, info: RunInfo, problem: Problem, environment: Environment, config: dict[str, object]
) -> RunHandle:
    """The run that judges an older environment's kernels in the present one: that of before where there is one, or a new one.

    Raises:
        ConfigurationError: The run is of the present problem and environment already.
        StorageError: The archive cannot be written.
    """
    if (info.problem_key, info.environment.key) == (problem.key, environment.key):
        raise ConfigurationError(
            f"run {info.name} is of the present environment; there is nothing to judge again",
            expected=f"a run of an environment other than {environment.key}",
            hint="evo-l2 archive stats shows every run's; then --run NAME",
        )
    state = {"problem": info.problem_key, "environment": info.environment.key}
    for (name,) in store.read(
        "SELECT r.name FROM runs r JOIN run_states s ON s.run_id = r.id WHERE s.name = ? AND r.merged IS NULL"
        " ORDER BY r.id DESC",
        (STATE,),
    ):
        run = store.open_run(name)
        if (run.problem_key, run.environment_key, run.get_state(STATE)) == (problem.key, environment.key, state):
            return run
    run = store.start_run(f"{info.name}-reverify", problem, environment, info.target, config, info.seed)
    run.put_state(STATE, state)
    return run


def purpose_of(store: Store, run: str) -> str:
    """What the work of a run that judges again is queued for; no other run of any file has the same."""
    return f"reverify:{store.read('SELECT uid FROM runs WHERE name = ?', (run,))[0][0]}"


def works(origins: Iterable[Origin], info: RunInfo, run: RunHandle, purpose: str) -> tuple[Work, ...]:
    """The work that judging them again is."""
    return tuple(Work(origin.digest, run.problem_key, run.environment_key, purpose, origin.note(info)) for origin in origins)
