"""A language model behind any server that speaks OpenAI's chat completions."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import queue
import random
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from evo_l2.contracts import Message, Reply
from evo_l2.errors import ModelError
from mutators.generators.answers import Answer, OutageError, message_of, parse_answer, retry_after_s
from mutators.generators.estimate import estimate_tokens

__all__ = ["ServerGenerator"]

_POLL_S = 0.2
_LONGEST_BACKOFF_S = 60.0
_LONGEST_BODY_BYTES = 16 * 2**20
_TOKENS_PER_MESSAGE = 8
_REFUSALS = {
    401: "a key that the server accepts",
    402: "an account with credit",
    403: "a key that may use this model",
    404: "a server that has this model at this address",
}
_TOO_LONG = ("context", "too long", "length")
"""Words by which servers say that one prompt is too long: its own fault, and no other's."""


class ServerGenerator:
    """Asks any OpenAI-compatible server (vLLM, SGLang, Ollama, a hosted one), several prompts at once.

    What goes away with time (no connection, time-out, statuses 408, 409, 425, 429 and 5xx, a body that breaks off) is tried
    again up to `retries` times, waiting twice as long each time, or as long as the server asks; then it is a reply with
    `error`. A refused key and an unknown model (statuses 401 to 404) are a `ModelError` at once. So are another refusal and
    an answer that is no chat completion, until the server has given a good one; from then on they are outages too, as a
    prompt that is too long always is. A key is read from the environment, and appears in no name, error or reply.

    Args:
        base_url: For instance `http://127.0.0.1:8000/v1`.
        model: As the server names it.
        api_key_env: Name of the environment variable that holds the key; None where the server asks for none.
        concurrency: Most requests in flight, over all calls of `generate`.
        retries: Most further requests for one prompt.
        timeout_s: Of one request, from its start to the last byte of its answer.
        backoff_s: Wait before the first retry.
        temperature: None leaves it to the server.
        top_p: None leaves it to the server.
        token_field: Some servers want `max_completion_tokens` in place of `max_tokens`.
        price_in_usd_per_million: Price of what is sent.
        price_out_usd_per_million: Price of what comes back.

    Raises:
        ModelError: The package openai is missing, the variable is not set, or the address is none.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key_env: str | None = None,
        *,
        concurrency: int = 8,
        retries: int = 3,
        timeout_s: float = 300.0,
        backoff_s: float = 1.0,
        temperature: float | None = 0.8,
        top_p: float | None = 0.95,
        token_field: str = "max_tokens",
        price_in_usd_per_million: float = 0.0,
        price_out_usd_per_million: float = 0.0,
    ) -> None:
        if importlib.util.find_spec("openai") is None:
            hint = "pip install 'openai>=2.0'"
            raise ModelError("a model on a server needs a library", expected="openai", found="no such package", hint=hint)
        self._url = _without_secrets(base_url)
        self._base_url = base_url
        self._model = model
        self._key_env = api_key_env
        self._key = _key(api_key_env)
        self._concurrency = concurrency
        self._retries = retries
        self._timeout_s = timeout_s
        self._backoff_s = backoff_s
        drawn = {"temperature": temperature, "top_p": top_p}
        self._sampling = {name: value for name, value in drawn.items() if value is not None}
        self._token_field = token_field
        self._prices = (price_in_usd_per_million, price_out_usd_per_million)
        self._slots = threading.BoundedSemaphore(concurrency)
        self._closed = threading.Event()
        self._has_answered = False
        self._making = threading.Lock()
        self._client: Any = None

    @property
    def name(self) -> str:
        """`openai:` and the model."""
        return f"openai:{self._model}"

    def generate(self, prompts: Sequence[Sequence[Message]], seeds: Sequence[int], *, max_tokens: int) -> tuple[Reply, ...]:
        """As the protocol says. `latency_s` counts retries and the waits between them."""
        if len(prompts) != len(seeds) or max_tokens < 1:
            raise ValueError("there is one seed for each prompt, and at least one token to generate")
        if self._closed.is_set():
            raise ModelError(f"the generator {self.name} is closed")
        done: queue.SimpleQueue[tuple[int, Reply | Exception]] = queue.SimpleQueue()
        waiting = iter(range(len(prompts)))
        taking, over = threading.Lock(), threading.Event()

        def work() -> None:
            while not (over.is_set() or self._closed.is_set()):
                with taking:
                    at = next(waiting, None)
                if at is None:
                    return
                try:
                    done.put((at, self._reply(prompts[at], seeds[at], max_tokens, over)))
                except Exception as error:
                    done.put((at, error))

        # Not an executor: its threads would keep the interpreter from ending for as long as a server keeps silent.
        for _ in range(min(self._concurrency, len(prompts))):
            threading.Thread(target=work, name="model-request", daemon=True).start()
        try:
            return self._gather(len(prompts), done)
        finally:
            over.set()

    def count_tokens(self, text: str) -> int:
        """An estimate from above, as the server's tokenizer is not here: one token for every two bytes."""
        return estimate_tokens(text)

    def pause(self) -> None:
        """Nothing: the server's work is not done on this machine."""

    def resume(self) -> None:
        """Nothing."""

    def check(self) -> str:
        """One line about a short reply, for a check-up; costs a few tokens.

        Raises:
            ModelError: The server does not answer as it should.
        """
        reply = self.generate([[Message("user", "Say OK.")]], [0], max_tokens=16)[0]
        if reply.error is not None:
            raise ModelError(f"the model {self.name} does not answer", found=reply.error, hint=f"curl {self._url}/models")
        return f"{self.name} at {self._url} answers in {reply.latency_s:.2f} s"

    def close(self) -> None:
        """Starts no request any more; a `generate` that waits gets replies with `error`."""
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _gather(self, n: int, done: queue.SimpleQueue[tuple[int, Reply | Exception]]) -> tuple[Reply, ...]:
        replies: dict[int, Reply] = {}
        while len(replies) < n and not self._closed.is_set():
            try:
                at, result = done.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(result, Exception):
                raise result
            replies[at] = result
        lost = Reply("", 0, 0, 0.0, error="the generator was closed")
        return tuple(replies.get(at, lost) for at in range(n))

    def _reply(self, prompt: Sequence[Message], seed: int, max_tokens: int, over: threading.Event) -> Reply:
        """One prompt's reply, after as many requests as it takes and are allowed."""
        started = time.monotonic()
        for n_retries in itertools.count():
            try:
                with self._slots:
                    answer = self._request(prompt, seed, max_tokens)
            except OutageError as outage:
                wait_s = self._wait_s(outage, n_retries, seed)
                if wait_s is None or over.is_set() or self._closed.wait(wait_s):
                    if outage.rubbish and not self._has_answered:
                        raise self._failure("the server's answer is no chat completion", found=str(outage)) from outage
                    return Reply("", 0, 0, time.monotonic() - started, n_retries=n_retries, error=self._redact(str(outage)))
                continue
            self._has_answered = True
            return self._priced(prompt, answer, time.monotonic() - started, n_retries)
        raise AssertionError("the loop ends by returning")

    def _wait_s(self, outage: OutageError, n_retries: int, seed: int) -> float | None:
        """How long to wait before the next try; None when there is none."""
        if not outage.retry or n_retries >= self._retries:
            return None
        if outage.wait_s is not None:
            return outage.wait_s if outage.wait_s <= _LONGEST_BACKOFF_S else None
        spread = random.Random(f"{seed}/{n_retries}").random()
        return min(self._backoff_s * 2.0**n_retries * (1 + spread), _LONGEST_BACKOFF_S)

    def _priced(self, prompt: Sequence[Message], answer: Answer, latency_s: float, n_retries: int) -> Reply:
        n_prompt, n_reply = answer.n_prompt_tokens, answer.n_reply_tokens
        if n_prompt is None:
            n_prompt = sum(self.count_tokens(m.content) + _TOKENS_PER_MESSAGE for m in prompt)
        if n_reply is None:
            n_reply = self.count_tokens(answer.text)
        cost_usd = (n_prompt * self._prices[0] + n_reply * self._prices[1]) / 1e6
        return Reply(answer.text, n_prompt, n_reply, latency_s, cost_usd, n_retries)

    def _request(self, prompt: Sequence[Message], seed: int, max_tokens: int) -> Answer:
        """One request.

        Raises:
            OutageError: It has no answer.
            ModelError: No request will have one.
        """
        import openai

        deadline = time.monotonic() + self._timeout_s
        try:
            with self._connected().chat.completions.with_streaming_response.create(
                model=self._model,
                messages=[{"role": m.role, "content": m.content} for m in prompt],
                # Servers hold a seed in 32 or 64 signed bits.
                seed=seed % 2**31,
                **{self._token_field: max_tokens},
                **self._sampling,
            ) as response:
                body = self._read(response, deadline)
        except openai.APIStatusError as error:
            raise self._refusal(error.status_code, error.response.headers, error.response.text) from error
        except openai.APITimeoutError as error:
            raise OutageError(f"{self._url} did not answer within {self._timeout_s:g} s") from error
        except openai.APIConnectionError as error:
            raise OutageError(f"no connection to {self._url}: {_cause(error)}") from error
        except _transport_errors() as error:
            raise OutageError(f"the answer of {self._url} broke off: {_cause(error)}", rubbish=True) from error
        return parse_answer(body, self._url, retry=self._has_answered)

    def _read(self, response: Any, deadline: float) -> bytes:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _LONGEST_BODY_BYTES:
                line = f"{self._url} sent more than {_LONGEST_BODY_BYTES} bytes"
                raise OutageError(line, retry=self._has_answered, rubbish=True)
            if time.monotonic() > deadline:
                raise OutageError(f"{self._url} did not answer within {self._timeout_s:g} s")
        return bytes(body)

    def _refusal(self, status: int, headers: Mapping[str, str], body: str) -> Exception:
        said = self._redact(message_of(body))
        found = f"status {status}" + (f", {said}" if said else "")
        if "insufficient_quota" in body:
            status = 402
        if status in _REFUSALS:
            return self._failure("the server refuses", expected=_REFUSALS[status], found=found)
        if status == 400 and (hint := self._other_setting(body)) is not None:
            return ModelError(f"the server {self._url} refuses the model {self._model}", found=found, hint=hint)
        again = status in (408, 409, 425, 429) or status >= 500
        too_long = any(word in body.lower() for word in _TOO_LONG)
        if not (again or too_long or self._has_answered):
            # Some servers answer 400, not 404, for a model that they do not have.
            return self._failure("the server refuses", expected="a server that takes this request", found=found)
        return OutageError(f"{self._url}: {found}", retry=again, wait_s=retry_after_s(headers) if again else None)

    def _other_setting(self, body: str) -> str | None:
        """The setting to change for a server that refuses a field of every request; None where it is about another thing."""
        if self._token_field == "max_tokens" and "max_completion_tokens" in body:
            return "--set generator.token_field=max_completion_tokens"
        refused = [name for name in self._sampling if name in body and not self._has_answered]
        return " ".join(f"--set generator.{name}=null" for name in refused) or None

    def _failure(self, what: str, *, found: str, expected: str | None = None) -> ModelError:
        """An error that names address, model and the key's variable, and never the key."""
        hint = f"check the address {self._url}, the model {self._model}"
        key = f" and the key in ${self._key_env}" if self._key_env else "; no variable was named for a key"
        return ModelError(f"{what} ({self._url})", expected=expected, found=self._redact(found), hint=hint + key)

    def _redact(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text

    def _connected(self) -> Any:
        import openai

        with self._making:
            if self._client is None:
                self._client = openai.OpenAI(
                    base_url=self._base_url, api_key=self._key or "none", max_retries=0, timeout=self._timeout_s
                )
            return self._client


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name, "").strip()
    if not value:
        hint = f"export {name}=..."
        raise ModelError("the server's key is missing", expected=f"a key in ${name}", found="nothing", hint=hint)
    return value


def _without_secrets(url: str) -> str:
    """The address without user, password and query.

    Raises:
        ModelError: It is no address.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https"):
        expected = "an address like http://127.0.0.1:8000/v1"
        raise ModelError("the server's address cannot be used", expected=expected, found=repr(url[:100]))
    host = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, f"{host}:{port}" if port else host, parts.path.rstrip("/"), "", ""))


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the package's HTTP library raises while a body is read; its name has changed over time."""
    errors: list[type[Exception]] = []
    for library in ("httpx2", "httpx"):
        if importlib.util.find_spec(library) is not None:
            module = importlib.import_module(library)
            errors += [module.TransportError, module.DecodingError]
    return (*errors, OSError)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:200] or type(error).__name__
