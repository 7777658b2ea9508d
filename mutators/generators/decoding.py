"""Batched sampling in which every row has its own source of chance."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Completion", "Sampling", "complete"]

_N_CANDIDATES = 256
_ALIVE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float
    """0 takes the most likely token."""
    top_p: float
    stop: tuple[str, ...] = ()
    """A completion ends with the first of these that appears in it, which stays in the text."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What one row became."""

    text: str
    n_tokens: int
    """The end-of-text token included."""
    latency_s: float
    """From the batch's start to this row's end."""


class _Row:
    """One prompt on its way."""

    def __init__(self, prompt: Sequence[int], seed: int, limit: int) -> None:
        self.prompt = prompt
        self.chance = np.random.default_rng(seed)
        self.limit = limit
        self.tokens: list[int] = []
        self.text: str | None = None
        self.latency_s = 0.0


def complete(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    limits: Sequence[int],
    *,
    ends: frozenset[int],
    sampling: Sampling,
    alive: Callable[[], None] = lambda: None,
) -> tuple[Completion, ...]:
    """One completion for each prompt, in order, by one batch with left padding and a cache of keys and values.

    A row draws one uniform number a token from its own generator and takes the token at that place of its cumulative
    distribution, in order of vocabulary. So its neighbours can change its text only where their rounding moves a boundary
    across the drawn number. Rows that have ended leave the batch. `alive` is called every few seconds.
    """
    import torch

    started = told = time.monotonic()
    rows = [_Row(*triple) for triple in zip(prompts, seeds, limits, strict=True)]
    active = list(rows)
    with torch.inference_mode():
        batch = _Batch(model, [row.prompt for row in rows], int(tokenizer.pad_token_id or 0))
        while active:
            drawn = _draw(batch.logits(), [row.chance for row in active], sampling)
            keep = []
            for at, (row, token) in enumerate(zip(active, drawn.tolist(), strict=True)):
                if _extend(row, token, tokenizer, ends, sampling.stop):
                    row.latency_s = time.monotonic() - started
                else:
                    keep.append(at)
            active = [active[at] for at in keep]
            if active:
                batch.advance(drawn, keep)
            if time.monotonic() - told > _ALIVE_EVERY_S:
                told = time.monotonic()
                alive()
    return tuple(Completion(row.text or "", len(row.tokens), row.latency_s) for row in rows)


def _extend(row: _Row, token: int, tokenizer: Any, ends: frozenset[int], stop: tuple[str, ...]) -> bool:
    """Takes one token; whether the row has ended with it."""
    row.tokens.append(token)
    found = False
    if stop:
        # A token may hold less than a character, so as many tokens as the longest stop has bytes are enough.
        tail = row.tokens[-max(len(s.encode()) for s in stop) - 1 :]
        text = tokenizer.decode(tail, skip_special_tokens=True)
        found = any(s in text for s in stop)
    if not found and token not in ends and len(row.tokens) < row.limit:
        return False
    row.text = tokenizer.decode(row.tokens, skip_special_tokens=True)
    places = [row.text.index(s) + len(s) for s in stop if s in row.text]
    if places:
        row.text = row.text[: min(places)]
    return True


class _Batch:
    """The rows that are still running, as tensors."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], padding: int) -> None:
        import torch

        self._model = model
        parameters = inspect.signature(model.forward).parameters
        # The argument's name before and after transformers renamed it.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._keywords: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in parameters:
            self._keywords["logits_to_keep"] = 1
        width = max(len(prompt) for prompt in prompts)
        device = model.device
        self._ids = torch.tensor([[padding] * (width - len(p)) + list(p) for p in prompts], device=device)
        self._mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        self._cache: Any = None

    def logits(self) -> Any:
        """`(n, vocabulary)` logits of every row's next token, in float32."""
        positions = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, -self._ids.shape[1] :]
        known = {} if self._cache is None else {self._cache_name: self._cache}
        output = self._model(
            input_ids=self._ids, attention_mask=self._mask, position_ids=positions, **known, **self._keywords
        )
        self._cache = getattr(output, self._cache_name)
        return output.logits[:, -1].float()

    def advance(self, drawn: Any, keep: Sequence[int]) -> None:
        """Appends every row's token, and drops the rows that are not kept."""
        import torch

        if len(keep) < drawn.shape[0]:
            index = torch.tensor(keep, device=drawn.device)
            drawn, self._mask = drawn[index], self._mask[index]
            self._cache.reorder_cache(index)
        self._ids = drawn[:, None]
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(keep), 1)], dim=1)


def _draw(logits: Any, chances: Sequence[np.random.Generator], sampling: Sampling) -> Any:
    import torch

    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise FloatingPointError("the model's logits are not finite")
    if sampling.temperature == 0:
        return logits.argmax(-1)
    mass = torch.softmax(logits / sampling.temperature, dim=-1)
    if sampling.top_p < 1:
        mass = torch.where(mass >= _floor(mass, sampling.top_p), mass, 0)
    cumulative = mass.double().cumsum(-1)
    total = cumulative[:, -1:]
    uniform = torch.tensor([[chance.random()] for chance in chances], dtype=torch.float64, device=logits.device)
    place = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, place, right=True)[:, 0]


def _floor(mass: Any, top_p: float) -> Any:
    """`(n, 1)` smallest probability among the likeliest tokens that together reach `top_p`."""
    # A full sort of 49,152 entries a row costs as much as a layer; the head is nearly always enough.
    for n in (min(_N_CANDIDATES, mass.shape[-1]), mass.shape[-1]):
        head = mass.topk(n, dim=-1).values
        before = head.double().cumsum(-1) - head
        if n == mass.shape[-1] or bool((before[:, -1] + head[:, -1] >= top_p).all()):
            break
    last = (before < top_p).sum(-1, keepdim=True) - 1
    return head.gather(-1, last)
