"""Splits that share neither a line of descent nor a text, and where there are several shapes, no shape either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from archive.training_data.facts import Fact, Place, PlaceFacts

__all__ = ["SPLITS", "Components", "SplitPlan", "assign", "plan_splits"]

SPLITS = ("train", "validation", "test")
_HELD_OUT = 0.1
"""Share of the right kernels that validation and test are filled up to, each."""
_FEWEST_SHAPES = 3
"""With fewer groups of shapes none can be held out for each split."""


class Components:
    """Things that belong together, directly or through others (a forest of disjoint sets)."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}

    def find(self, thing: Hashable) -> Hashable:
        """The one that stands for all that belong together with this."""
        above = self._above.setdefault(thing, thing)
        while above != thing:
            self._above[thing] = self._above[above]
            thing, above = above, self._above[above]
        return thing

    def join(self, one: Hashable, other: Hashable) -> None:
        """From now on the two belong together."""
        self._above[self.find(one)] = self.find(other)

    def names(self, things: Iterable[str]) -> dict[str, str]:
        """For each thing the name of its component: the first of its members by order."""
        names: dict[Hashable, str] = {}
        members = sorted(set(things))
        for thing in members:
            names.setdefault(self.find(thing), thing)
        return {thing: names[self.find(thing)] for thing in members}


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Which split each kernel and each problem belongs to."""

    component: Mapping[str, str]
    """By digest: the name of the component that the kernel is of."""
    lineage: Mapping[str, str] | None
    """Split by name of component; None where lineage parts nothing."""
    shape: Mapping[str, str] | None
    """Split by key of problem; None where shapes part nothing."""
    note: str
    """How it was split, in words."""

    def split_of(self, digests: Sequence[str], place: Place) -> str | None:
        """The split of a row that is about these kernels; None when its shape and its lineage are of different splits."""
        found = {self.lineage[self.component[digest]] for digest in digests} if self.lineage is not None else set()
        if self.shape is not None:
            found.add(self.shape[place.problem_key])
        if len(found) > 1:
            return None
        return found.pop() if found else "train"


def assign(weights: Mapping[str, int]) -> dict[str, str]:
    """A split for each group: the largest trains; the smallest are held out until a tenth of the weight is, for each split.

    With two groups there is no validation, with one no test either.
    """
    order = sorted(weights, key=lambda name: (weights[name], name))
    most = _HELD_OUT * sum(weights.values())
    filled: Counter[str] = Counter()
    found = dict.fromkeys(order, "train")
    for name in order[:-1]:
        for split in sorted(("test", "validation"), key=lambda name: filled[name]):
            if split not in filled or filled[split] + weights[name] <= most:
                found[name] = split
                filled[split] += weights[name]
                break
    return found


def plan_splits(facts: Sequence[Fact], places: Mapping[Place, PlaceFacts], normal: Mapping[str, str], by: str) -> SplitPlan:
    """Splits an archive as a whole, so that data sets of every form made from it agree.

    Kernels belong together when one descends from the other, when their normalised texts are equal, or their machine code is.

    Args:
        facts: Every candidate.
        places: Problems and environments.
        normal: Digests of the normalised texts, by digest of the kernel.
        by: `lineage`, `shape`, or `both`: then what is left has neither in common with another split.
    """
    descent = Components()
    for digest, text in normal.items():
        descent.join(digest, ("text", text))
    for fact in facts:
        if fact.digest is None:
            continue
        for parent in fact.parents:
            descent.join(fact.digest, parent)
        if fact.identity is not None:
            descent.join(fact.digest, ("code", fact.identity))
    component = descent.names(normal)
    right = {(fact.place.problem_key, fact.digest) for fact in facts if fact.is_right and fact.digest is not None}
    lineage = shape = None
    notes = []
    if by in ("lineage", "both"):
        weights = Counter(dict.fromkeys(component.values(), 0))
        weights.update(component[digest] for _, digest in right)
        lineage = _assign_all(weights)
        n_of_weight = sum(1 for weight in weights.values() if weight)
        notes.append(f"by lineage ({n_of_weight} component{'' if n_of_weight == 1 else 's'} with right kernels)")
    groups = _shape_groups(places)
    n_groups = len(set(groups.values()))
    if by == "shape" or (by == "both" and n_groups >= _FEWEST_SHAPES):
        sizes = Counter(dict.fromkeys(groups.values(), 0))
        sizes.update(groups[problem] for problem, _ in right)
        of_group = assign(sizes)
        shape = {problem: of_group[group] for problem, group in groups.items()}
        notes.append(f"by shape ({n_groups} group{'' if n_groups == 1 else 's'} of problems without a shape in common)")
    elif by == "both":
        notes.append(f"not by shape, which takes {_FEWEST_SHAPES} groups of problems ({n_groups} here)")
    return SplitPlan(component, lineage, shape, "; ".join(notes))


def _assign_all(weights: Mapping[str, int]) -> dict[str, str]:
    """Components without a right kernel go by the digits of their name, nine in ten to train."""
    found = assign({name: weight for name, weight in weights.items() if weight})
    for name, weight in weights.items():
        if not weight:
            draw = int(name[:8], 16) % 20
            found[name] = "test" if draw == 0 else "validation" if draw == 1 else "train"
    return found


def _shape_groups(places: Mapping[Place, PlaceFacts]) -> dict[str, str]:
    """By problem, the name of the group of problems that have a shape in common, directly or through others."""
    groups = Components()
    for place, known in places.items():
        for shape in known.shapes:
            groups.join(place.problem_key, ("shape", shape))
    return groups.names(place.problem_key for place in places)
