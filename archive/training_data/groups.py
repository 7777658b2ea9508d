"""Rows about several kernels each: `dpo`, `grpo` and `contrastive`."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from archive.training_data.drafts import NOT_UTF8, Draft, Workshop, answer, balanced, form_of, is_utf8
from archive.training_data.facts import Fact, Place
from archive.training_data.normal import normal_text
from archive.training_data.rendering import Rendered
from archive.training_data.rewards import REWARD_VERSION, reward
from evo_l2.contracts import Message, Outcome
from evo_l2.evaluation import rank

__all__ = ["contrastive", "dpo", "grpo"]

_MOST_PAIRS = 16
"""Of one prompt."""
_MOST_KNOWN = 32
"""Replies that a group of `grpo` keeps."""
_N_EXEMPLARS = 2


@dataclass(frozen=True, slots=True)
class _Member:
    """One candidate of a family and its reward."""

    fact: Fact
    reward: float


@dataclass(frozen=True, slots=True)
class _Family:
    """The children of the same parents whose replies have one form, the best first."""

    place: Place
    parents: tuple[str, ...]
    form: str
    members: tuple[_Member, ...]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two children of one family."""

    family: _Family
    better: _Member
    worse: _Member
    kind: str


def dpo(shop: Workshop) -> Iterator[Draft]:
    """Pairs within one prompt: every failure against a right sibling, the faster half against the slower."""
    pairs = [pair for family in _families(shop) for pair in _pairs(shop, family)]
    pairs.sort(key=lambda pair: (pair.worse.reward - pair.better.reward, pair.better.fact.key, pair.worse.fact.key))
    for pair in balanced(shop, ((pair, pair.better.fact) for pair in pairs)):
        split = shop.split_of(pair.better.fact, pair.worse.fact)
        said = _answers(shop, pair.family, (pair.better, pair.worse)) if split is not None else None
        if split is None or said is None or len(said.texts) < 2:
            continue
        (_, better), (_, worse) = said.texts
        values = {
            **shop.of_origin(pair.better.fact),
            "chosen": answer(better),
            "rejected": answer(worse),
            "margin": pair.better.reward - pair.worse.reward,
            "pair_kind": pair.kind,
            "form": pair.family.form,
            "prompt_from": said.prompt_from,
            "reward_version": REWARD_VERSION,
            "chosen_facts": shop.facts(pair.better.fact),
            "rejected_facts": shop.facts(pair.worse.fact),
        }
        draft = shop.finish(values, split, said.prompt, [better, worse])
        if draft is not None:
            yield draft


def grpo(shop: Workshop) -> Iterator[Draft]:
    """A prompt for every parent that was tried, with the replies that are known."""
    found = [(family, shop.material.right(family.place, family.parents[0])) for family in _families(shop)]
    families = [(family, parent) for family, parent in found if parent is not None]
    families.sort(key=lambda item: (-len({one.reward for one in item[0].members}), item[1].key, item[0].form))
    for family, parent in balanced(shop, ((item, item[1]) for item in families)):
        split = shop.split_of(parent, *(member.fact for member in family.members))
        said = _answers(shop, family, _both_ends(shop, family.members)) if split is not None else None
        if split is None or said is None or not said.texts:
            continue
        values = {
            **shop.of_origin(said.texts[0][0].fact),
            "ground_truth": json.dumps(_ground_truth(shop, family), sort_keys=True),
            "known_completions": [text for _, text in said.texts],
            "known_rewards": [member.reward for member, _ in said.texts],
            "known_facts": [shop.facts(member.fact) for member, _ in said.texts],
            "form": family.form,
            "prompt_from": said.prompt_from,
            "reward_version": REWARD_VERSION,
            "parent_speedup": parent.estimate.speedup if parent.estimate is not None else None,
            "cell": list(parent.cell or ()),
        }
        draft = shop.finish(values, split, said.prompt, [text for _, text in said.texts])
        if draft is not None:
            yield draft


def _both_ends(shop: Workshop, members: tuple[_Member, ...]) -> tuple[_Member, ...]:
    """The best and the worst, where there are more than a row keeps."""
    if len(members) <= _MOST_KNOWN:
        return members
    shop.drop(f"its prompt has {_MOST_KNOWN} replies already", len(members) - _MOST_KNOWN)
    return (*members[: _MOST_KNOWN // 2], *members[-_MOST_KNOWN // 2 :])


def _ground_truth(shop: Workshop, family: _Family) -> dict[str, Any]:
    """All that a reward function needs to judge a reply."""
    known = shop.material.places[family.place]
    parents = []
    for digest in family.parents:
        estimate = shop.material.estimate(family.place, digest)
        assert estimate is not None
        parents.append(
            {
                "digest": digest,
                "source": shop.material.kernel(digest).source.encode("utf-8", "replace").decode("utf-8"),
                "log_ratio": estimate.log_ratio,
                "log_low": estimate.log_low,
                "log_high": estimate.log_high,
                "cases": shop.material.times(family.place, digest),
            }
        )
    return {
        "problem": json.loads(known.definition),
        "problem_key": family.place.problem_key,
        "environment_key": family.place.environment_key,
        "target": known.target,
        "form": family.form,
        "parents": parents,
        "baseline": known.baseline,
        "reward": REWARD_VERSION,
    }


# --- families ---------------------------------------------------------------------------------------------------------


def _families(shop: Workshop) -> Iterator[_Family]:
    """The candidates of each parent (or parents) that can be scored, by the form of their replies; no source is read."""
    found: dict[tuple[Place, tuple[str, ...], str], list[Fact]] = defaultdict(list)
    for fact in shop.chosen:
        if fact.parents and fact.outcome is not Outcome.GENERATOR_FAILED:
            model_free = "edit" if len(fact.parents) == 1 else "rewrite"
            form = form_of(fact) if fact.generator is not None else model_free
            found[fact.place, fact.parents, form].append(fact)
    for (place, parents, form), facts in found.items():
        if any(shop.material.right(place, digest) is None for digest in parents):
            shop.drop("no prompt and reply: a parent has no time here", len(facts))
            continue
        base = shop.material.estimate(place, parents[0]) if len(parents) == 1 else None
        members: list[_Member] = []
        seen: set[object] = set()
        for fact in facts:
            value = reward(fact, base)
            names: set[object] = {("code", fact.identity)} if fact.identity is not None else set()
            if fact.digest is not None:
                names.add(("text", shop.material.normal[fact.digest]))
            if value is None:
                shop.drop("it cannot be scored: right, and without a time")
            elif names & seen:
                shop.drop("its text or its machine code is that of another reply to the prompt")
            else:
                seen |= names
                members.append(_Member(fact, value))
        members.sort(key=lambda one: (-one.reward, rank(one.fact.estimate, one.fact.digest or ""), one.fact.key))
        if members:
            yield _Family(place, parents, form, tuple(members))


@dataclass(frozen=True, slots=True)
class _Said:
    """Replies to one prompt."""

    prompt: tuple[Message, ...]
    prompt_from: str
    texts: tuple[tuple[_Member, str], ...]


def _answers(shop: Workshop, family: _Family, members: Sequence[_Member]) -> _Said | None:
    """The members as replies to one prompt; those that cannot be, or say the same, are left out and counted.

    Where a model was given one and the same prompt for all of them it stands as it is; else the prompt is rendered anew, and
    the replies of models stay as they are.
    """
    texts: list[tuple[_Member, str]] = []
    prompts: list[tuple[Message, ...] | None] = []
    seen: set[str] = set()
    for member in members:
        stored = shop.stored(member.fact)
        found = stored or shop.rendered(member.fact, family.form)
        if isinstance(found, str):
            shop.drop(f"no prompt and reply: {found}")
            continue
        if not is_utf8(found.completion):
            shop.drop(NOT_UTF8)
            continue
        said = normal_text(found.completion)
        if said in seen:
            shop.drop("its text or its machine code is that of another reply to the prompt")
            continue
        seen.add(said)
        texts.append((member, found.completion))
        prompts.append(stored.prompt if stored is not None else None)
    if prompts and prompts[0] is not None and all(prompt == prompts[0] for prompt in prompts):
        return _Said(prompts[0], "stored", tuple(texts))
    prompt: tuple[Message, ...] | str = "its operator is not known here"
    elites = [shop.material.elite(family.place, digest) for digest in family.parents]
    known = [elite for elite in elites if elite is not None]
    if len(known) < len(elites):
        prompt = "its parent was filed by other axes than the problem's"
    elif family.form != "other":
        prompt = shop.renderer.ask(shop.definition(family.place), known, family.form)
    if isinstance(prompt, str):
        shop.drop(f"no prompt and reply: {prompt}", len(texts))
        return None
    return _Said(prompt, "rendered", tuple(texts))


def _pairs(shop: Workshop, family: _Family) -> list[_Pair]:
    """The pairs of one family; right kernels make one only where their intervals do not overlap."""
    right = [one for one in family.members if one.fact.is_right]
    right.sort(key=lambda one: rank(one.fact.estimate, one.fact.digest or ""))
    wrong = [one for one in family.members if not one.fact.is_right and one.fact.outcome is not Outcome.DUPLICATE]
    pairs: list[_Pair] = []
    for i in range(len(right) // 2):
        better, worse = right[i], right[len(right) - 1 - i]
        assert better.fact.estimate is not None
        assert worse.fact.estimate is not None
        if better.fact.estimate.log_low > worse.fact.estimate.log_high and better.reward > worse.reward:
            pairs.append(_Pair(family, better, worse, "faster-over-slower"))
        else:
            shop.drop("intervals of the two kernels overlap")
    if right:
        over_wrong = [_Pair(family, right[i % len(right)], one, "right-over-wrong") for i, one in enumerate(wrong)]
        # Kinds take turns: pairs of right kernels alone make a model write wrong ones.
        longest = max(len(pairs), len(over_wrong))
        pairs = [pair for i in range(longest) for pair in (*over_wrong[i : i + 1], *pairs[i : i + 1])]
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
    wanted = [(fact, split, kernels) for (_, split), kernels in ranked.items() for fact in kernels]
    # By rank over all splits: a cap must not be spent on one of them.
    wanted.sort(key=lambda item: (*rank(item[0].estimate, item[0].digest or ""), item[0].key))
    for fact, split, kernels in balanced(shop, ((item, item[0]) for item in wanted)):
        exemplars = _exemplars(fact, kernels)
        if not exemplars:
            shop.drop(f"fewer than {_N_EXEMPLARS} kernels are slower beyond the intervals")
            continue
        draft = _contrast(shop, fact, split, exemplars)
        if draft is not None:
            yield draft


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
        **shop.over(fact, exemplars[-1].estimate),
        **shop.of_origin(fact),
        "completion": answer(found.completion),
        "exemplars": rows,
        "form": found.form,
        "prompt_from": "rendered",
    }
    return shop.finish(values, split, found.prompt, [found.completion])
