"""Rows about one kernel each: `sft` and `kto`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from archive.training_data.drafts import Draft, Workshop, answer, balanced
from archive.training_data.facts import Fact
from archive.training_data.rendering import Rendered
from archive.training_data.rewards import gain_over, reward
from evo_l2.contracts import Outcome
from evo_l2.evaluation import rank

__all__ = ["kto", "sft"]

M = TypeVar("M")


def sft(shop: Workshop) -> Iterator[Draft]:
    """Single revisions that gained beyond the interval, and the elites."""
    steps = [(fact, "step") for fact in shop.chosen if _gained(shop, fact)]
    elites = [(fact, "elite") for fact in _elites(shop)]
    steps.sort(key=lambda pair: (-(reward(pair[0], shop.material.parent_estimate(pair[0])) or 0.0), pair[0].key))
    unique = _unique(shop, [*steps, *elites])
    for fact, kind in balanced(shop, (((fact, kind), fact) for fact, kind in unique)):
        found = _text_of(shop, fact, opening=kind == "elite")
        split = shop.split_of(fact) if found is not None else None
        if found is not None and split is not None:
            marks = {"kind": kind, **(shop.over_baseline(fact) if kind == "elite" else {})}
            yield from _row(shop, fact, *found, split, marks)


def kto(shop: Workshop) -> Iterator[Draft]:
    """Candidates of one parent that are good (right, and faster) or bad (failed, or slower); none that lies between."""
    labelled = [(fact, label) for fact in shop.chosen if (label := _label(shop, fact)) is not None]
    labelled.sort(key=lambda pair: (-(reward(pair[0], shop.material.parent_estimate(pair[0])) or 0.0), pair[0].key))
    unique = _unique(shop, labelled)
    # Good and bad take turns, so that a cap that is met leaves as many of the one as of the other.
    good = [pair for pair in unique if pair[1]]
    bad = [pair for pair in unique if not pair[1]]
    turns = [pair for i in range(max(len(good), len(bad))) for pair in (*good[i : i + 1], *bad[i : i + 1])]
    for fact, good_one in balanced(shop, (((fact, mark), fact) for fact, mark in turns)):
        found = _text_of(shop, fact, opening=False)
        split = shop.split_of(fact) if found is not None else None
        if found is not None and split is not None:
            yield from _row(shop, fact, *found, split, {"label": good_one})


def _gained(shop: Workshop, fact: Fact) -> bool:
    """Whether it is right, has one parent, and gained over it beyond the interval."""
    parent = shop.material.parent_estimate(fact)
    if not fact.is_right or fact.outcome is not Outcome.EVALUATED or parent is None or fact.estimate is None:
        return False
    if gain_over(fact.estimate, parent).log_low <= 0:
        shop.drop("it did not gain over its parent beyond the interval")
        return False
    return True


def _elites(shop: Workshop) -> list[Fact]:
    """The kernel with the highest lower bound of each cell, in each place, by all that the archive knows."""
    best: dict[object, Fact] = {}
    for fact in shop.chosen:
        if not fact.is_right or fact.cell is None or fact.digest is None or fact.outcome is not Outcome.EVALUATED:
            continue
        at = (fact.place, fact.cell)
        held = best.get(at)
        if held is None or rank(fact.estimate, fact.digest) < rank(held.estimate, held.digest or ""):
            best[at] = fact
    return sorted(best.values(), key=lambda fact: rank(fact.estimate, fact.digest or ""))


def _label(shop: Workshop, fact: Fact) -> bool | None:
    parent = shop.material.parent_estimate(fact)
    if fact.outcome is Outcome.DUPLICATE or parent is None:
        return None
    if not fact.is_right:
        value = reward(fact, parent)
        return False if value is not None else None
    assert fact.estimate is not None
    gain = gain_over(fact.estimate, parent)
    if gain.log_low > 0:
        return True
    if gain.log_high < 0:
        return False
    shop.drop("neither faster nor slower than its parent beyond the interval")
    return None


def _unique(shop: Workshop, pairs: Sequence[tuple[Fact, M]]) -> list[tuple[Fact, M]]:
    """The first of those with one normalised text or one machine code; those without a kernel are told apart later."""
    seen: set[object] = set()
    kept: list[tuple[Fact, M]] = []
    for fact, mark in pairs:
        names: set[object] = set()
        if fact.digest is not None:
            names.add((fact.place, shop.material.normal[fact.digest]))
        if fact.identity is not None:
            names.add((fact.place, "code", fact.identity))
        if names & seen:
            shop.drop("its text or its machine code is that of another row")
            continue
        seen |= names
        kept.append((fact, mark))
    return kept


def _text_of(shop: Workshop, fact: Fact, *, opening: bool) -> tuple[Rendered, str] | None:
    """Prompt and reply, and where they are from; None, and counted, when there are none."""
    found: Rendered | str | None
    if opening:
        assert fact.digest is not None
        found = shop.renderer.opening(shop.definition(fact.place), shop.material.kernel(fact.digest))
    else:
        found = shop.stored(fact)
        if found is not None:
            return found, "stored"
        found = shop.rendered(fact, None)
    if isinstance(found, str):
        shop.drop(f"no prompt and reply: {found}")
        return None
    return found, "rendered"


def _row(shop: Workshop, fact: Fact, text: Rendered, source: str, split: str, marks: dict[str, object]) -> Iterator[Draft]:
    values = {
        **shop.of_kernel(fact),
        **shop.of_origin(fact),
        **marks,
        "completion": answer(text.completion),
        "form": text.form,
        "prompt_from": source,
    }
    draft = shop.finish(values, split, text.prompt, [text.completion])
    if draft is not None:
        yield draft
