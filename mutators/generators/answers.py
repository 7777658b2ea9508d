"""What a server of chat completions answers, and what its refusals mean."""

from __future__ import annotations

import email.utils
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Answer", "OutageError", "message_of", "parse_answer", "retry_after_s"]


class OutageError(Exception):
    """One request has no answer; another try may have. The message is one line. It never leaves this package."""

    def __init__(self, line: str, *, retry: bool = True, rubbish: bool = False, wait_s: float | None = None) -> None:
        super().__init__(line)
        self.retry = retry
        self.rubbish = rubbish
        self.wait_s = wait_s
        """How long the server asked to wait."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One chat completion; counts are None where the server does not tell them."""

    text: str
    n_prompt_tokens: int | None
    n_reply_tokens: int | None


def parse_answer(body: bytes, url: str, *, retry: bool) -> Answer:
    """The first choice's text, and the usage where the body has it.

    Raises:
        OutageError: The body is no chat completion; `retry` says whether another request may help.
    """
    try:
        data = json.loads(body)
        choice = data["choices"][0]
        content = choice["message"]["content"]
        usage = data.get("usage") or {}
        counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        begin = " ".join(body[:120].decode(errors="replace").split())
        raise OutageError(f"{url} sent {begin!r}" if begin else f"{url} sent nothing", retry=retry, rubbish=True) from error
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    known = [n if isinstance(n, int) and n >= 0 else None for n in counts]
    # A refusal, or a model that spent all its tokens on thinking, has null content: that is an answer, without text.
    return Answer(content if isinstance(content, str) else "", known[0], known[1])


def message_of(body: str) -> str:
    """What an error's body says, in a line."""
    try:
        data = json.loads(body)
        error = data.get("error", data)
        text = error if isinstance(error, str) else error.get("message") or error.get("detail") or ""
    except (ValueError, AttributeError, RecursionError):
        text = body
    return " ".join(str(text).split())[:200]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait, given as seconds or as a date; None where it does not ask."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
