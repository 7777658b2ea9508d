"""Model calls as rows, with their prompts and replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from archive.codec import dump
from archive.store import Store

__all__ = ["call_rows"]

_PAGE = 200


def call_rows(store: Store, run_name: str | None) -> Iterator[dict[str, Any]]:
    """Every model call of a run, or of the whole file, in order of run, index and position."""
    names = [run_name] if run_name is not None else [info.name for info in store.runs()]
    for name in names:
        run = store.open_run(name)
        for candidate in run.history():
            for position, call in enumerate(candidate.calls):
                yield {
                    "run": name,
                    "idx": candidate.index,
                    "operator": candidate.operator,
                    "position": position,
                    "generator": call.generator,
                    "prompt": dump([{"role": message.role, "content": message.content} for message in call.prompt]),
                    "reply": call.reply.text,
                    "n_prompt_tokens": call.reply.n_prompt_tokens,
                    "n_reply_tokens": call.reply.n_reply_tokens,
                    "latency_s": call.reply.latency_s,
                    "cost_usd": call.reply.cost_usd,
                    "n_retries": call.reply.n_retries,
                    "error": call.reply.error,
                    "seed": str(call.seed),
                    "max_tokens": call.max_tokens,
                }
