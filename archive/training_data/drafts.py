"""Rows in the making: what every form shares of prompts, replies and facts, and what was left out and why."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from archive.training_data.facts import Fact, Place
from archive.training_data.material import Material
from archive.training_data.rendering import Rendered, Renderer
from archive.training_data.rewards import REWARD_VERSION, gain_over, reward
from archive.training_data.splitting import SplitPlan
from evo_l2.contracts import Elite, Message
from evo_l2.evaluation import Estimate

__all__ = ["NOT_UTF8", "Balance", "Draft", "Workshop", "answer", "balanced", "form_of", "is_utf8"]

T = TypeVar("T")
_FORMS = ("edit", "rewrite")
NOT_UTF8 = "its text is not UTF-8"


@dataclass(frozen=True, slots=True)
class Draft:
    """A row with what it is selected and split by."""

    values: dict[str, Any]
    split: str
    completions: tuple[str, ...]
    """What it would teach; none may stand in two splits."""


@dataclass(frozen=True, slots=True)
class Balance:
    """How many rows one cell and one line of descent may have."""

    per_cell: int
    per_root: int


@dataclass(slots=True)
class Workshop:
    """What rows are made with, and the tally of what was dropped."""

    material: Material
    renderer: Renderer
    plan: SplitPlan
    balance: Balance
    run: str | None = None
    dropped: Counter[str] = field(default_factory=Counter)
    """How many were left out, by reason."""

    @property
    def chosen(self) -> Iterable[Fact]:
        """The candidates of the runs that were asked for."""
        return (fact for fact in self.material.facts if self.run is None or fact.run == self.run)

    def drop(self, why: str, count: int = 1) -> None:
        """Counts what is left out."""
        if count:
            self.dropped[why] += count

    # --- prompts and replies ------------------------------------------------------------------------------------------

    def parents(self, fact: Fact) -> tuple[Elite, ...] | None:
        """The candidate's parents with all that was measured; None when one of them has no time."""
        found = [self.material.elite(fact.place, digest) for digest in fact.parents]
        return tuple(elite for elite in found if elite is not None) if all(e is not None for e in found) else None

    def stored(self, fact: Fact) -> Rendered | None:
        """Prompt and reply of the model that wrote the candidate; None where none did, or it said nothing."""
        calls = self.material.calls(fact)
        if not calls or not calls[-1].reply.text.strip():
            return None
        return Rendered(form_of(fact), calls[-1].prompt, calls[-1].reply.text)

    def definition(self, place: Place) -> str:
        """The problem's definition as JSON."""
        return self.material.places[place].definition

    def rendered(self, fact: Fact, form: str | None) -> Rendered | str:
        """The candidate as an operator would have made it of its parents."""
        if fact.digest is None:
            return "it has no kernel"
        parents = self.parents(fact)
        if not parents:
            return "a parent has no time here"
        return self.renderer.step(self.definition(fact.place), parents, self.material.kernel(fact.digest), form)

    # --- facts as columns ---------------------------------------------------------------------------------------------

    def evidence(self, fact: Fact) -> dict[str, Any]:
        """Why a candidate counts as right or wrong."""
        known = self.material.places[fact.place]
        return {
            "status": fact.status.value if fact.status is not None else fact.outcome.value,
            "gate": fact.gate,
            "message": fact.message,
            "harness": known.harness,
            "gates": known.gates,
            "n_sessions": fact.n_sessions,
            "n_blocks": fact.estimate.n_blocks if fact.estimate is not None else 0,
        }

    def facts(self, fact: Fact) -> dict[str, Any]:
        """What is known of a candidate, in the few columns that fit into another row."""
        parent = self.material.parent_estimate(fact)
        return {
            "digest": fact.digest,
            "identity": fact.identity,
            "text_digest": self.material.normal.get(fact.digest or ""),
            "run": fact.run,
            "index": fact.index,
            "operator": fact.operator,
            "generator": fact.model,
            "adapter": fact.adapter,
            "parents": list(fact.parents),
            "reward": reward(fact, parent),
            **_speed(fact.estimate),
            **_gain(fact.estimate, parent),
            "evidence": self.evidence(fact),
        }

    def over_baseline(self, fact: Fact) -> dict[str, Any]:
        """What takes the place of reward and gain where the prompt shows no parent."""
        return self.over(fact, None)

    def over(self, fact: Fact, shown: Estimate | None) -> dict[str, Any]:
        """Reward and gain over the kernel that the prompt shows in the parent's place."""
        return {"reward": reward(fact, shown), **_gain(fact.estimate, shown)}

    def of_kernel(self, fact: Fact) -> dict[str, Any]:
        """All that is known of a candidate whose kernel the row is about."""
        known = self.material.places[fact.place]
        right = fact.is_right and fact.digest is not None
        elite = self.material.elite(fact.place, fact.digest) if right and fact.digest is not None else None
        schema = self.material.schema(fact.place)
        measures = []
        if elite is not None and elite.verdict.measures is not None:
            measures = [
                {"axis": axis.name, "value": value, "label": axis.label(axis.index(value))}
                for axis, value in zip(schema.axes, elite.verdict.measures, strict=True)
            ]
        return {
            **self.facts(fact),
            "reward_version": REWARD_VERSION,
            "baseline": {
                "name": known.baseline,
                "cases": self.material.times(fact.place, fact.digest) if right and fact.digest is not None else [],
            },
            "measures": measures,
            "cell": list(fact.cell or ()),
        }

    def of_origin(self, fact: Fact) -> dict[str, Any]:
        """Where a candidate comes from."""
        known = self.material.places[fact.place]
        about = fact.digest if fact.digest is not None else next(iter(fact.parents), None)
        return {
            "lineage": {
                "run": fact.run,
                "index": fact.index,
                "parents": list(fact.parents),
                "root": self.root(fact),
                "component": self.plan.component.get(about or ""),
            },
            "problem": {"key": fact.place.problem_key, "title": known.title, "definition": known.definition},
            "environment": {"key": fact.place.environment_key, "target": known.target, "identity": known.identity},
            "licence": self.material.licence(fact),
        }

    def root(self, fact: Fact) -> str:
        """The seed that a candidate goes back to."""
        about = fact.parents[0] if fact.parents else fact.digest
        return self.material.root(about) if about is not None else ""

    def split_of(self, fact: Fact, *others: Fact) -> str | None:
        """The split of a row about these candidates; None, and counted, when they are of different ones."""
        digests = [d for one in (fact, *others) for d in ((one.digest,) if one.digest is not None else one.parents)]
        split = self.plan.split_of(digests, fact.place)
        if split is None:
            self.drop("its shape and its lineage are of different splits")
        return split

    def finish(
        self, values: dict[str, Any], split: str, prompt: Sequence[Message], completions: Sequence[str]
    ) -> Draft | None:
        """A draft with its prompt and its name; None, and counted, when its text cannot be written as UTF-8."""
        said = [[message.role, message.content] for message in prompt]
        try:
            text = json.dumps([said, list(completions)], ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            self.drop(NOT_UTF8)
            return None
        values["prompt"] = messages(prompt)
        values["id"] = hashlib.sha256(text).hexdigest()[:32]
        return Draft(values, split, tuple(completions))


def is_utf8(text: str) -> bool:
    """Whether files can hold it: not every text of an archive has come from bytes that were."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def form_of(fact: Fact) -> str:
    """How a model's reply says the kernel, by the operator that asked for it."""
    return fact.operator if fact.operator in _FORMS else "other"


def messages(prompt: Iterable[Message]) -> list[dict[str, str]]:
    """Messages as the rows hold them."""
    return [{"role": message.role, "content": message.content} for message in prompt]


def answer(text: str) -> list[dict[str, str]]:
    """A reply as the rows hold it."""
    return [{"role": "assistant", "content": text}]


def _speed(estimate: Estimate | None) -> dict[str, float | None]:
    if estimate is None:
        return {"speedup": None, "speedup_low": None, "speedup_high": None}
    low, high = estimate.interval
    return {"speedup": estimate.speedup, "speedup_low": low, "speedup_high": high}


def _gain(estimate: Estimate | None, parent: Estimate | None) -> dict[str, float | None]:
    if estimate is None or parent is None:
        return {"gain": None, "gain_low": None, "gain_high": None}
    gain = gain_over(estimate, parent)
    return {"gain": math.exp(gain.log_ratio), "gain_low": math.exp(gain.log_low), "gain_high": math.exp(gain.log_high)}


def balanced(shop: Workshop, items: Iterable[tuple[T, Fact]]) -> list[T]:
    """The first items of each cell and of each line of descent, in the order given; those of failures by status.

    Args:
        shop: Says how many, and counts the rest.
        items: Each with the candidate by which it counts, the best first.
    """
    n_in_cell: Counter[object] = Counter()
    n_of_root: Counter[str] = Counter()
    kept: list[T] = []
    for item, fact in items:
        cell = (fact.place, fact.cell if fact.is_right else (fact.outcome, fact.status, fact.gate))
        root = shop.root(fact)
        if n_in_cell[cell] >= shop.balance.per_cell:
            shop.drop(f"its cell (or kind of failure) has {shop.balance.per_cell} rows already")
        elif n_of_root[root] >= shop.balance.per_root:
            shop.drop(f"its line of descent has {shop.balance.per_root} rows already")
        else:
            n_in_cell[cell] += 1
            n_of_root[root] += 1
            kept.append(item)
    return kept
