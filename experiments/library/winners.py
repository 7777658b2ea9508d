"""Which kernels of an archive a library is made of: the best for each shape, layout and class of sums in one environment."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from archive.codec import load, load_build, load_environment, load_session, load_text
from archive.store import Store
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Environment, Estimate, Status, TimingSession, rank
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.timing import pooled_estimate

__all__ = ["Wanted", "Winner", "choose_environment", "find_winners"]

_PAGE = 32
_MOST_KERNELS = 64
"""Kernels of one problem and layout that are looked at where the problem has several shapes."""
_HIGHER = 1e300


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a library is asked to hold."""

    layouts: tuple[str, ...] = ("nn", "nt")
    shapes: tuple[tuple[int, int, int, int], ...] = ()
    """(M, N, K, BATCH); empty for every shape that was measured."""
    with_slower: bool = False
    """Whether kernels are taken whose speed-up's lower bound is not above 1."""

    def takes(self, layout: str, sizes: tuple[int, ...]) -> bool:
        """Whether a case is asked for."""
        return layout in self.layouts and (not self.shapes or sizes in self.shapes)


@dataclass(frozen=True, slots=True)
class Winner:
    """The best kernel for one shape, layout and class of sums, with what was measured there."""

    kernel: Kernel
    layout: str
    sums: str
    """`fp32` or `fp16`: the class whose gates it passed."""
    sizes: tuple[int, ...]
    """M, N, K, BATCH."""
    estimate: Estimate
    """Of this shape alone, over all sessions that can be trusted."""
    kernel_us: float
    """Median of the kept samples, in microseconds."""
    baseline_us: float
    n_sessions: int
    machine_code: str
    """Digest of what was measured."""
    problem: str
    """Key of the problem that it was measured for."""

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        """What a library looks a product up by."""
        return self.sums, self.layout, self.sizes

    @property
    def hgemm(self) -> Hgemm:
        """The product alone."""
        return Hgemm((self.sizes,), self.sums, (self.layout,))


def choose_environment(store: Store, prefix: str | None) -> Environment:
    """The environment whose key starts with a prefix; without one, the only environment in which kernels were timed.

    Raises:
        ConfigurationError: There is none, or there are several.
    """
    timed = "SELECT DISTINCT e.key FROM standings t JOIN environments e ON e.id = t.environment_id ORDER BY e.key"
    keys = [str(key) for (key,) in store.read(timed)]
    found = [key for key in keys if key.startswith(prefix or "")]
    if len(found) != 1:
        known = [_in_words(store, key) for key in (found or keys)[:6]]
        listed = "; ".join(known) + (f"; and {len(found or keys) - 6} more" if len(found or keys) > 6 else "")
        if not keys:
            expected, found_words = "a kernel that was right and timed", "none in the archive"
            raise ConfigurationError("no winner to build a library of", expected=expected, found=found_words)
        what = "no such environment" if not found else "which environment the library is for is not clear"
        given = repr(prefix[:40]) if prefix is not None else f"{len(keys)} and no --env"
        raise ConfigurationError(what, expected=f"--env with the first digits of one of {listed}", found=given)
    return _environment(store, found[0])


def _environment(store: Store, key: str) -> Environment:
    target, identity = store.read("SELECT target, identity FROM environments WHERE key = ?", (key,))[0]
    return load_environment(target, identity, "{}")


def _in_words(store: Store, key: str) -> str:
    identity = _environment(store, key).identity
    return f"{key} ({identity.get('card') or identity.get('processor') or 'unknown'})"


def find_winners(store: Store, environment: Environment, wanted: Wanted) -> tuple[Winner, ...]:
    """The best kernel of every case that is asked for, in order of class, layout and shape.

    A problem with several shapes has its best for each from among the kernels that are best over all of them, at most 64 a
    layout. Kernels are compared by the lower bound of their speed-up on the one shape.

    Raises:
        ConfigurationError: There is none.
    """
    best: dict[tuple[str, str, tuple[int, ...]], Winner] = {}
    n_seen = 0
    problems = store.read(
        "SELECT DISTINCT p.id, p.key, p.definition FROM standings t JOIN problems p ON p.id = t.problem_id"
        " JOIN environments e ON e.id = t.environment_id WHERE e.key = ? AND p.name = 'hgemm' ORDER BY p.id",
        (environment.key,),
    )
    for problem_id, key, definition in problems:
        for winner in _of_problem(store, environment.key, problem_id, key, load(definition), wanted):
            n_seen += 1
            if winner.estimate.log_low <= 0 and not wanted.with_slower:
                continue
            other = best.get(winner.key)
            if other is None or _rank(winner) < _rank(other):
                best[winner.key] = winner
    if not best:
        slower = f"{n_seen} measured there, none with a lower bound of its speed-up above 1" if n_seen else "none"
        hint = "evo-l2 library build ... --all, to take the best whether or not they win" if n_seen else "evo-l2 archive top"
        expected = f"a kernel that wins in environment {environment.key}"
        raise ConfigurationError("no winner to build a library of", expected=expected, found=slower, hint=hint)
    return tuple(best[key] for key in sorted(best, key=lambda key: (key[0] != "fp32", key)))


def _rank(winner: Winner) -> tuple[float, str]:
    return rank(winner.estimate, winner.kernel.digest)


def _of_problem(
    store: Store, environment: str, problem_id: int, key: str, definition: dict[str, Any], wanted: Wanted
) -> Iterator[Winner]:
    """The kernels of one problem at each of its cases that is asked for, the best over all cases first."""
    cases = [tuple(case) for case in definition["cases"]]
    layouts = [layout for layout in definition["layouts"] if any(wanted.takes(layout, case) for case in cases)]
    most = 1 if len(cases) == 1 else _MOST_KERNELS
    seen: Counter[str] = Counter()
    for kernel, identity, build, log_low in _standings(store, environment, problem_id):
        if len(cases) == 1 and log_low <= 0 and not wanted.with_slower and seen.total():
            return
        layout = kernel.launch.layout
        if layout not in layouts or seen[layout] >= most:
            continue
        seen[layout] += 1
        report = load_build(build)
        sessions = _sessions(store, environment, problem_id, identity)
        for number, sizes in enumerate(cases):
            alone = [TimingSession((session.cases[number],), session.purpose) for session in sessions]
            estimate = pooled_estimate(alone)
            if estimate is None or not wanted.takes(layout, sizes):
                continue
            yield Winner(
                kernel=kernel,
                layout=layout,
                sums=definition["accumulate"],
                sizes=sizes,
                estimate=estimate,
                kernel_us=_median([session.cases[0] for session in alone], "kernel_us"),
                baseline_us=_median([session.cases[0] for session in alone], "baseline_us"),
                n_sessions=len(sessions),
                machine_code=(report.machine_code if report is not None else None) or "",
                problem=key,
            )
        if all(seen[layout] >= most for layout in layouts):
            return


def _standings(store: Store, environment: str, problem_id: int) -> Iterator[tuple[Kernel, str, str | None, float]]:
    """Kernel, identity, build and lower bound of every standing, the highest bound first."""
    low, digest = _HIGHER, ""
    while True:
        rows = store.read(
            "SELECT k.source, k.target, k.digest, t.log_low, t.identity, v.build FROM standings t"
            " JOIN kernels k ON k.id = t.kernel_id JOIN verdicts v ON v.id = t.verdict_id"
            " JOIN environments e ON e.id = t.environment_id WHERE e.key = ? AND t.problem_id = ?"
            " AND (t.log_low < ? OR (t.log_low = ? AND k.digest > ?)) ORDER BY t.log_low DESC, k.digest LIMIT ?",
            (environment, problem_id, low, low, digest, _PAGE),
        )
        for source, target, digest, low, identity, build in rows:  # noqa: B007
            yield Kernel(load_text(source), target), identity, build, low
        if len(rows) < _PAGE:
            return


def _sessions(store: Store, environment: str, problem_id: int, identity: str) -> tuple[TimingSession, ...]:
    """Every session of one kernel that can be trusted, whichever of its sources was timed, the oldest first.

    A source that failed once, in any run, does not count, as in its standing.
    """
    rows = store.read(
        "SELECT s.samples, s.purpose FROM timing_sessions s JOIN verdicts v ON v.id = s.verdict_id"
        " JOIN environments e ON e.id = v.environment_id WHERE e.key = ? AND v.problem_id = ? AND v.identity = ?"
        " AND s.log_low IS NOT NULL AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.kernel_id = v.kernel_id"
        " AND w.problem_id = v.problem_id AND w.environment_id = v.environment_id"
        f" AND w.status <> '{Status.PASSED.value}') ORDER BY s.id",
        (environment, problem_id, identity),
    )
    return tuple(load_session(samples, purpose) for samples, purpose in rows)


def _median(cases: Sequence[Any], name: str) -> float:
    """Of the kept samples of all sessions."""
    kept = [t for case in cases for t, is_kept in zip(getattr(case, name), case.kept, strict=True) if is_kept]
    return float(statistics.median(kept))
