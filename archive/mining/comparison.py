"""Two kernels side by side."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass

from archive.mining.gains import Gain, gain
from archive.mining.kernels import Judgement, KernelFacts, show
from archive.store import Store
from evo_l2.errors import KernelError
from evo_l2.kernel import Kernel

__all__ = ["Comparison", "Difference", "SideBySide", "compare", "diff_lines"]

_MOST_LINES = 5000
"""Of a source whose diff is worked out line by line."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that two kernels do not share."""

    name: str
    left: str | None
    """None where the left kernel has none such."""
    right: str | None


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Two kernels in one problem and environment."""

    problem_title: str
    environment_key: str
    left: Judgement
    right: Judgement
    gain: Gain | None
    """The right kernel over the left; None unless both were timed."""

    @property
    def parts(self) -> bool:
        """Whether the intervals of the two speed-ups part: neither holds a value of the other."""
        first, second = self.left.estimate, self.right.estimate
        return (
            first is not None and second is not None and (first.log_high < second.log_low or second.log_high < first.log_low)
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two kernels share, and what they do not."""

    left: KernelFacts
    right: KernelFacts
    launch: tuple[Difference, ...]
    """Launch lines, by directive."""
    tunables: tuple[Difference, ...]
    """Tunables by name."""
    diff: tuple[str, ...]
    """A unified diff of the sources, line by line; empty for equal sources."""
    places: tuple[SideBySide, ...]
    """Every problem and environment in which both were judged."""


def compare(store: Store, left: str, right: str) -> Comparison:
    """Two kernels by the first digits of their digests, over all runs.

    Raises:
        ConfigurationError: A prefix does not name one kernel.
    """
    one, other = show(store, left), show(store, right)
    return Comparison(
        one,
        other,
        _differences(_launch(one.kernel), _launch(other.kernel)),
        _differences(_tunables(one.kernel), _tunables(other.kernel)),
        diff_lines(one.kernel.source, other.kernel.source, one.digest[:12], other.digest[:12]),
        _places(one, other),
    )


def diff_lines(before: str, after: str, name_before: str, name_after: str) -> tuple[str, ...]:
    """A unified diff of two sources, without ends of lines.

    Of sources longer than any kernel, whatever lies between their common ends is one change: `difflib` can take minutes.
    """
    old, new = before.split("\n"), after.split("\n")
    if max(len(old), len(new)) <= _MOST_LINES:
        return tuple(difflib.unified_diff(old, new, name_before, name_after, lineterm=""))
    shortest = min(len(old), len(new))
    start = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    end = next((i for i in range(shortest - start) if old[-1 - i] != new[-1 - i]), shortest - start)
    removed, added = old[start : len(old) - end], new[start : len(new) - end]
    if not removed and not added:
        return ()
    where = f"@@ -{start + 1},{len(removed)} +{start + 1},{len(added)} @@"
    heads = (f"--- {name_before}", f"+++ {name_after}", where)
    return (*heads, *(f"-{line}" for line in removed), *(f"+{line}" for line in added))


def _places(one: KernelFacts, other: KernelFacts) -> tuple[SideBySide, ...]:
    """By what each was judged last; a kernel that failed once stays failed."""
    rows = []
    left, right = _by_place(one), _by_place(other)
    for place in left:
        if place in right:
            first, second = left[place], right[place]
            ratio = None
            if first.estimate is not None and second.estimate is not None:
                ratio = gain(second.estimate, first.estimate)
            rows.append(SideBySide(*place, first, second, ratio))
    return tuple(rows)


def _by_place(facts: KernelFacts) -> dict[tuple[str, str], Judgement]:
    found: dict[tuple[str, str], Judgement] = {}
    for judgement in facts.judgements:
        place = (judgement.problem_title, judgement.environment_key)
        if place not in found or found[place].status.is_good:
            found[place] = judgement
    return found


def _launch(kernel: Kernel) -> dict[str, str]:
    """The launch lines by directive, numbered where one comes several times."""
    found: dict[str, str] = {}
    n_seen: Counter[str] = Counter()
    for line in kernel.source.split("\n"):
        if line.strip().startswith("//!"):
            word, _, rest = line.strip()[3:].strip().partition(" ")
            n_seen[word] += 1
            found[f"{word} {n_seen[word]}" if n_seen[word] > 1 else word] = " ".join(rest.split())
    return found


def _tunables(kernel: Kernel) -> dict[str, str]:
    try:
        return {tunable.name: str(tunable.value) for tunable in kernel.tunables}
    except KernelError:
        return {}


def _differences(left: dict[str, str], right: dict[str, str]) -> tuple[Difference, ...]:
    names = dict.fromkeys((*left, *right))
    return tuple(Difference(n, left.get(n), right.get(n)) for n in names if left.get(n) != right.get(n))
