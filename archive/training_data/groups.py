"""Rows about several kernels each: `dpo`, `grpo` and `contrastive`."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from archive.training_data.drafts import Draft, Workshop, answer, balanced, form_of
from archive.training_data.facts import Fact, Place
from archive.training_data.normal import normal_text
from archive.training_data.rendering import Rendered
from archive.training_data.rewards import REWARD_VERSION, reward
from evo_l2.contracts import Elite, Message, Outcome
from evo_l2.evaluation import rank

__all__ = ["contrastive", "dpo", "grpo"]

_MOST_PAIRS = 16
"""Of one prompt."""
_MOST_KNOWN = 32
"""Replies that a group of `grpo` keeps."""
_N_EXEMPLARS = 2


@dataclass(frozen=True, slots=True)
class _Answer:
    """One candidate of a group as a reply to the group's prompt."""

    fact: Fact
    text: str
    reward: float


@dataclass(frozen=True, slots=True)
class _Group:
    """Replies to one prompt, the best first."""

    place: Place
    parents: tuple[str, ...]
    form: str
    prompt: tuple[Message, ...]
    prompt_from: str
    answers: tuple[_Answer, ...]


def dpo(shop: Workshop) -> Iterator[Draft]:
    """Pairs within one prompt: every failure against a right sibling, the faster half against the slower."""
    pairs = [(group, pair) for group in _groups(shop) for pair in _pairs(shop, group)]
    pairs.sort(key=lambda item: (-(item[1][0].reward - item[1][1].reward), item[1][0].fact.key, item[1][1].fact.key))
    for group, (better, worse, kind) in balanced(shop, ((item, item[1][0].fact) for item in pairs)):
        split = shop.split_of(better.fact, worse.fact)
        if split is None:
            continue
        values = {
            **shop.of_origin(better.fact),
            "chosen": answer(better.text),
            "rejected": answer(worse.text),
            "margin": better.reward - worse.reward,
            "pair_kind": kind,
            "form": group.form,
            "prompt_from": group.prompt_from,
            "reward_version": REWARD_VERSION,
            "chosen_facts": shop.facts(better.fact),
            "rejected_facts": shop.facts(worse.fact),
        }
        draft = shop.finish(values, split, group.prompt, [better.text, worse.text])
        if draft is not None:
            yield draft


def grpo(shop: Workshop) -> Iterator[Draft]:
    """A prompt for every parent that was tried, with the replies that are known."""
    found = [(group, shop.material.right(group.place, group.parents[0])) for group in _groups(shop)]
    groups = [(group, parent) for group, parent in found if parent is not None]
    groups.sort(key=lambda item: (-len({answer.reward for answer in item[0].answers}), item[1].key, item[0].form))
    for group, parent in balanced(shop, ((item, item[1]) for item in groups)):
        split = shop.split_of(parent, *(answer.fact for answer in group.answers))
        if split is None:
            continue
        known = group.answers[:_MOST_KNOWN]
        values = {
            **shop.of_origin(known[0].fact),
            "ground_truth": json.dumps(_ground_truth(shop, group), sort_keys=True),
            "known_completions": [one.text for one in known],
            "known_rewards": [one.reward for one in known],
            "known_facts": [shop.facts(one.fact) for one in known],
            "form": group.form,
            "prompt_from": group.prompt_from,
            "reward_version": REWARD_VERSION,
            "parent_speedup": parent.estimate.speedup if parent.estimate is not None else None,
            "cell": list(parent.cell or ()),
        }
        draft = shop.finish(values, split, group.prompt, [one.text for one in known])
        if draft is not None:
            yield draft


def _ground_truth(shop: Workshop, group: _Group) -> dict[str, Any]:
    """All that a reward function needs to judge a reply."""
    known = shop.material.places[group.place]
    parents = []
    for digest in group.parents:
        estimate = shop.material.estimate(group.place, digest)
        assert estimate is not None
        parents.append(
            {
                "digest": digest,
                "source": shop.material.kernel(digest).source.encode("utf-8", "replace").decode("utf-8"),
                "log_ratio": estimate.log_ratio,
                "log_low": estimate.log_low,
                "log_high": estimate.log_high,
                "cases": shop.material.times(group.place, digest),
            }
        )
    return {
        "problem": json.loads(known.definition),
        "problem_key": group.place.problem_key,
        "environment_key": group.place.environment_key,
        "target": known.target,
        "form": group.form,
        "parents": parents,
        "baseline": known.baseline,
        "reward": REWARD_VERSION,
    }


# --- groups -----------------------------------------------------------------------------------------------------------


def _groups(shop: Workshop) -> Iterator[_Group]:
    """The candidates of each parent, by the form of their replies.

    Where a model was given one and the same prompt for all of them it stands as it is; else the prompt is rendered anew, and
    the replies of models stay as they are.
    """
    families: dict[tuple[Place, tuple[str, ...], str], list[Fact]] = defaultdict(list)
    for fact in shop.chosen:
        if fact.parents and fact.outcome is not Outcome.GENERATOR_FAILED:
            form = form_of(fact) if fact.generator is not None else "edit"
            families[fact.place, fact.parents, form].append(fact)
    for (place, parents, form), members in families.items():
        elites = [shop.material.elite(place, digest) for digest in parents]
        if any(elite is None for elite in elites):
            shop.drop("no prompt and reply: a parent has no time here", len(members))
            continue
        yield from _group(shop, place, parents, form, [e for e in elites if e is not None], members)


def _group(
    shop: Workshop, place: Place, parents: tuple[str, ...], form: str, elites: Sequence[Elite], members: Sequence[Fact]
) -> Iterator[_Group]:
    answers: list[_Answer] = []
    prompts: list[tuple[Message, ...] | None] = []
    seen: set[object] = set()
    for fact in members:
        value = reward(fact, shop.material.estimate(place, parents[0]) if len(parents) == 1 else None)
        if value is None:
            shop.drop("it cannot be scored: right, and without a time")
            continue
        names: set[object] = {("code", fact.identity)} if fact.identity is not None else set()
        if names & seen:
            shop.drop("its text or its machine code is that of another reply to the prompt")
            continue
        text = shop.stored(fact) or shop.rendered(fact, form)
        if isinstance(text, str):
            shop.drop(f"no prompt and reply: {text}")
            continue
        names.add(normal_text(text.completion))
        if fact.digest is not None:
            names.add(("text", shop.material.normal[fact.digest]))
        if names & seen:
            shop.drop("its text or its machine code is that of another reply to the prompt")
            continue
        seen |= names
        answers.append(_Answer(fact, text.completion, value))
        prompts.append(text.prompt if fact.generator is not None else None)
    if not answers:
        return
    answers.sort(key=lambda one: (-one.reward, rank(one.fact.estimate, one.fact.digest or ""), one.fact.key))
    if prompts[0] is not None and all(prompt == prompts[0] for prompt in prompts):
        yield _Group(place, parents, form, prompts[0], "stored", tuple(answers))
        return
    prompt = shop.renderer.ask(shop.definition(place), elites, form) if form != "other" else "its operator is not known here"
    if isinstance(prompt, str):
        shop.drop(f"no prompt and reply: {prompt}", len(answers))
        return
    yield _Group(place, parents, form, prompt, "rendered", tuple(answers))


def _pairs(shop: Workshop, group: _Group) -> list[tuple[_Answer, _Answer, str]]:
    """The pairs of one group; right kernels make one only where their intervals do not overlap."""
    right = [one for one in group.answers if one.fact.is_right]
    right.sort(key=lambda one: rank(one.fact.estimate, one.fact.digest or ""))
    wrong = [one for one in group.answers if not one.fact.is_right and one.fact.outcome is not Outcome.DUPLICATE]
    pairs: list[tuple[_Answer, _Answer, str]] = []
    for i in range(len(right) // 2):
        better, worse = right[i], right[len(right) - 1 - i]
        assert better.fact.estimate is not None
        assert worse.fact.estimate is not None
        if better.fact.estimate.log_low > worse.fact.estimate.log_high and better.reward > worse.reward:
            pairs.append((better, worse, "faster-over-slower"))
        else:
            shop.drop("intervals of the two kernels overlap")
    if right:
        pairs += [(right[i % len(right)], one, "right-over-wrong") for i, one in enumerate(wrong)]
    shop.drop(f"its prompt has {_MOST_PAIRS} pairs already", max(0, len(pairs) - _MOST_PAIRS))
    return pairs[:_MOST_PAIRS]


# --- contrastive ------------------------------------------------------------------------------------------------------


def contrastive(shop: Workshop) -> Iterator[Draft]:
    """A kernel asked for beside slower ones of distinct speeds, as CUDA-L1 prompts."""
    ranked: dict[tuple[Place, str], list[Fact]] = defaultdict(list)
    seen: set[object] = set()
    for fact in sorted(shop.chosen, key=lambda fact: (*rank(fact.estimate, fact.digest or ""), fact.key)):
        if not fact.is_right or fact.digest is None or fact.outcome is not Outcome.EVALUATED:
            continue
        names = {(fact.place, "code", fact.identity), (fact.place, "text", shop.material.normal[fact.digest])}
        if names & seen:
            shop.drop("its text or its machine code is that of another row")
            continue
        seen |= names
        split = shop.split_of(fact)
        if split is not None:
            ranked[fact.place, split].append(fact)
    wanted = [(fact, split, kernels) for (_, split), kernels in sorted_groups(ranked) for fact in kernels]
    for fact, split, kernels in balanced(shop, ((item, item[0]) for item in wanted)):
        exemplars = _exemplars(fact, kernels)
        if not exemplars:
            shop.drop(f"fewer than {_N_EXEMPLARS} kernels are slower beyond the intervals")
            continue
        draft = _contrast(shop, fact, split, exemplars)
        if draft is not None:
            yield draft


def sorted_groups(groups: dict[tuple[Place, str], list[Fact]]) -> list[tuple[tuple[Place, str], list[Fact]]]:
    """By place and split, so that the order does not depend on which kernel is the fastest."""
    return sorted(groups.items(), key=lambda item: (item[0][0].problem_key, item[0][0].environment_key, item[0][1]))


def _exemplars(target: Fact, kernels: Sequence[Fact]) -> list[Fact]:
    """One kernel from each part of those slower beyond both intervals, the slowest first; the draw is the target's."""
    assert target.estimate is not None
    slower = [f for f in kernels if f.estimate is not None and f.estimate.log_high < target.estimate.log_low]
    if len(slower) < _N_EXEMPLARS:
        return []
    chosen = []
    for part in range(_N_EXEMPLARS):
        members = slower[len(slower) * part // _N_EXEMPLARS : len(slower) * (part + 1) // _N_EXEMPLARS]
        draw = hashlib.sha256(f"{target.digest}/{part}".encode()).digest()
        chosen.append(members[int.from_bytes(draw[:8], "big") % len(members)])
    return sorted(chosen, key=lambda fact: rank(fact.estimate, fact.digest or ""), reverse=True)


def _contrast(shop: Workshop, fact: Fact, split: str, exemplars: Sequence[Fact]) -> Draft | None:
    assert fact.digest is not None
    elites = [shop.material.elite(one.place, one.digest) for one in exemplars if one.digest is not None]
    shown = [elite for elite in elites if elite is not None]
    found: Rendered | str = "a kernel that it is compared with has other measures than its grid"
    if len(shown) == len(exemplars):
        found = shop.renderer.contrast(shop.definition(fact.place), shown, shop.material.kernel(fact.digest))
    if isinstance(found, str):
        shop.drop(f"no prompt and reply: {found}")
        return None
    rows = []
    for one, elite in zip(exemplars, shown, strict=True):
        facts = shop.facts(one)
        rows.append({**facts, "source": elite.kernel.source, "facts": facts})
    values = {
        **shop.of_kernel(fact),
        **shop.over_baseline(fact),
        **shop.of_origin(fact),
        "completion": answer(found.completion),
        "exemplars": rows,
        "form": found.form,
        "prompt_from": "rendered",
    }
    return shop.finish(values, split, found.prompt, [found.completion])
