"""Recorded replies: a generator that gives back what was written down, and one that writes it down."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from evo_l2.contracts import Generator, Message, ModelCall, Reply
from evo_l2.errors import ConfigurationError, ModelError, StorageError
from mutators.generators.estimate import estimate_tokens

__all__ = ["RecordedGenerator", "RecordingGenerator", "prompt_digest"]

_HINT = "replay with the configuration and version that made the recording"

Key = Literal["order", "prompt", "call"]

_EXPECTED: dict[Key, str] = {
    "order": 'a line like {"reply": {"text": "..."}}',
    "prompt": 'a line like {"digest": "...", "reply": {"text": "..."}}',
    "call": 'a line like {"seed": 1, "digest": "...", "reply": {"text": "..."}}',
}


def prompt_digest(prompt: Sequence[Message]) -> str:
    """Sixteen hexadecimal digits over roles and contents."""
    text = json.dumps([[message.role, message.content] for message in prompt], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Entry:
    reply: Reply
    prompt: tuple[Message, ...] | None = None
    digest: str | None = None
    seed: int | None = None
    max_tokens: int | None = None
    counted: bool = True
    """False for a reply written by hand, without its numbers of tokens."""


class RecordedGenerator:
    """Gives back recorded replies. A context manager.

    Made by `from_calls` (replay of a stored run) or `from_file` (tests and demonstrations). Where one key has several replies
    they are given in the order in which they were recorded, the last one again and again.
    """

    def __init__(self, name: str, entries: Sequence[_Entry], by: Key, count_tokens: Callable[[str], int]) -> None:
        self._name = name
        self._by = by
        self._count_tokens = count_tokens
        self._lock = threading.Lock()
        self._n_entries = len(entries)
        self._left = list(entries)
        """By order, what was not given yet."""
        self._queues: dict[tuple[int | None, str | None], list[_Entry]] = {}
        self._by_seed: dict[int | None, list[_Entry]] = {}
        for entry in entries:
            self._queues.setdefault(self._key(entry.seed, entry.digest), []).append(entry)
            self._by_seed.setdefault(entry.seed, []).append(entry)

    @classmethod
    def from_calls(
        cls,
        calls: Iterable[ModelCall],
        *,
        generator: str | None = None,
        count_tokens: Callable[[str], int] = estimate_tokens,
    ) -> Self:
        """Replays the stored calls of one generator, found by seed and prompt.

        Args:
            calls: The earlier run's calls.
            generator: Whose calls to replay, and the name to go by; may be left out when all are of one.
            count_tokens: The counter of the generator that made the calls. With another one, prompts that were cut to their
                budget come out otherwise, and the replay stops with an error at the first of them.

        Raises:
            ConfigurationError: The calls are of several generators, and none is named.
        """
        chosen = [call for call in calls if generator is None or call.generator == generator]
        names = sorted({call.generator for call in chosen})
        if len(names) > 1:
            hint = "replay each with its own recorded generator"
            raise ConfigurationError(
                "the calls cannot be replayed", expected="one generator", found=", ".join(names), hint=hint
            )
        entries = [_Entry(c.reply, c.prompt, prompt_digest(c.prompt), c.seed, c.max_tokens) for c in chosen]
        return cls(generator or (names[0] if names else "recorded"), entries, "call", count_tokens)

    @classmethod
    def from_file(
        cls, path: Path, *, by: Key = "order", name: str | None = None, count_tokens: Callable[[str], int] = estimate_tokens
    ) -> Self:
        """Reads replies from a file with one JSON object a line.

        By `order`, `{"reply": {"text": "..."}}` is enough, and the n-th prompt gets the n-th reply; by `prompt`, every line
        has the `prompt` (or its `digest`) too; by `call`, also the `seed`. `RecordingGenerator` writes all of that, and what
        its tokenizer counted, so that prompts are cut here as they were there.

        Args:
            path: The file.
            by: What a reply is found by.
            name: The name to go by; left out, that of the recorded generator.
            count_tokens: For texts whose count was not recorded.

        Raises:
            ConfigurationError: The file cannot be read, or a line is no such object.
        """
        recording = _read(path, by)

        def count(text: str) -> int:
            known = recording.counts.get(_text_digest(text))
            return known if known is not None else count_tokens(text)

        return cls(name or recording.generator or "recorded", recording.entries, by, count)

    @property
    def name(self) -> str:
        """The recorded generator's name, or `recorded`."""
        return self._name

    def skip(self, calls: Iterable[ModelCall]) -> None:
        """Passes over replies that were given already, so that a run that goes on is not given them again.

        For every call the first reply like its own is passed over, wherever it stands: what was given and not told before
        the run was cut is given again. A call whose reply is not here counts for nothing.
        """
        with self._lock:
            for call in calls:
                queue = (
                    self._left if self._by == "order" else self._queues.get(self._key(call.seed, prompt_digest(call.prompt)))
                )
                if queue is None or (self._by != "order" and len(queue) == 1):
                    continue
                said = (call.reply.text, call.reply.error)
                at = next((i for i, entry in enumerate(queue) if (entry.reply.text, entry.reply.error) == said), None)
                if at is not None:
                    del queue[at]

    def generate(self, prompts: Sequence[Sequence[Message]], seeds: Sequence[int], *, max_tokens: int) -> tuple[Reply, ...]:
        """The recorded replies, whatever they are; outages are given back as outages.

        Raises:
            ModelError: There is none for a prompt; where the prompt differs from the recorded one, with the first difference.
        """
        with self._lock:
            return tuple(self._one(prompt, seed, max_tokens) for prompt, seed in zip(prompts, seeds, strict=True))

    def _one(self, prompt: Sequence[Message], seed: int, max_tokens: int) -> Reply:
        if self._by == "order":
            if not self._left:
                found = f"call {self._n_entries + 1}"
                expected = f"{self._n_entries} calls"
                raise ModelError(
                    "the recorded replies are used up", expected=expected, found=found, hint="record more of them"
                )
            return self._completed(self._left.pop(0), prompt)
        queue = self._queues.get(self._key(seed, prompt_digest(prompt)))
        if queue is None:
            raise self._unknown(prompt, seed)
        entry = queue.pop(0) if len(queue) > 1 else queue[0]
        if self._by == "call" and entry.max_tokens is not None and entry.max_tokens != max_tokens:
            expected = f"max_tokens={entry.max_tokens}"
            raise ModelError("the replay has left the recording", expected=expected, found=str(max_tokens), hint=_HINT)
        return self._completed(entry, prompt)

    def _completed(self, entry: _Entry, prompt: Sequence[Message]) -> Reply:
        """The reply; what a line written by hand leaves out is counted here."""
        if entry.counted:
            return entry.reply
        n_prompt_tokens = sum(self._count_tokens(message.content) for message in prompt)
        n_reply_tokens = self._count_tokens(entry.reply.text) if entry.reply.text else 0
        return replace(entry.reply, n_prompt_tokens=n_prompt_tokens, n_reply_tokens=n_reply_tokens)

    def _key(self, seed: int | None, digest: str | None) -> tuple[int | None, str | None]:
        return (seed, digest) if self._by == "call" else (None, digest)

    def _unknown(self, prompt: Sequence[Message], seed: int) -> ModelError:
        what = "the replay has left the recording"
        known = [entry.prompt for entry in self._by_seed.get(seed, ()) if entry.prompt is not None]
        if self._by != "call" or not known:
            found = f"seed {seed}, prompt {prompt_digest(prompt)}"
            return ModelError(what, expected="a call that was recorded", found=found, hint=_HINT)
        expected, found = _first_difference(known[0], prompt)
        return ModelError(what, expected=expected, found=found, hint=_HINT)

    def count_tokens(self, text: str) -> int:
        """As the recorded generator counted, where that was recorded; else by the counter this one was made with."""
        return self._count_tokens(text)

    def pause(self) -> None:
        """Nothing to pause."""

    def resume(self) -> None:
        """Nothing to resume."""

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class RecordingGenerator:
    """Passes everything to another generator, and appends every reply to a file that `RecordedGenerator` reads.

    Args:
        inner: The generator that answers; closed with this one.
        path: The file; made when it is not there.

    Raises:
        StorageError: The file cannot be written.
    """

    def __init__(self, inner: Generator, path: Path) -> None:
        self._inner = inner
        self._path = path
        self._lock = threading.Lock()
        self._counted: dict[str, int] = {}
        self._mend()

    @property
    def name(self) -> str:
        """The inner generator's name."""
        return self._inner.name

    def generate(self, prompts: Sequence[Sequence[Message]], seeds: Sequence[int], *, max_tokens: int) -> tuple[Reply, ...]:
        """The inner generator's replies, once they are written down.

        Raises:
            ModelError: As the inner generator does.
            StorageError: The file cannot be written.
        """
        replies = self._inner.generate(prompts, seeds, max_tokens=max_tokens)
        rows: list[dict[str, Any]] = []
        for prompt, seed, reply in zip(prompts, seeds, replies, strict=True):
            messages = [{"role": message.role, "content": message.content} for message in prompt]
            row = {"generator": self.name, "seed": seed, "max_tokens": max_tokens, "prompt": messages, "reply": asdict(reply)}
            rows.append(row)
        self._write(rows)
        return replies

    def _mend(self) -> None:
        """Drops half a line at the file's end, which a killed run leaves, so that what follows is on a line of its own."""
        try:
            with self._path.open("ab+") as file:
                file.seek(0)
                whole = file.read().rfind(b"\n") + 1
                file.truncate(whole)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> StorageError:
        found = f"{self._path}: {error.strerror or error}"
        return StorageError("the replies cannot be recorded", expected="a file to append to", found=found)

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        try:
            with self._lock, self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise self._failure(error) from error

    def count_tokens(self, text: str) -> int:
        """As the inner generator counts; written down too, once a text."""
        digest = _text_digest(text)
        known = self._counted.get(digest)
        if known is None:
            known = self._counted[digest] = self._inner.count_tokens(text)
            self._write([{"text": digest, "tokens": known}])
        return known

    def pause(self) -> None:
        """Pauses the inner generator."""
        self._inner.pause()

    def resume(self) -> None:
        """Resumes the inner generator."""
        self._inner.resume()

    def close(self) -> None:
        """Closes the inner generator."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def _first_difference(recorded: Sequence[Message], found: Sequence[Message]) -> tuple[str, str]:
    """The first line of a prompt that is not as it was recorded: what was recorded, and what is there now."""
    for i, (old, new) in enumerate(itertools.zip_longest(recorded, found), start=1):
        if old is None or new is None:
            return f"{len(recorded)} messages in the prompt", str(len(found))
        if old.role != new.role:
            return f"role {old.role} of message {i} of the prompt", new.role
        lines = itertools.zip_longest(old.content.split("\n"), new.content.split("\n"))
        for number, (before, after) in enumerate(lines, start=1):
            if before != after:
                where = f"line {number} of the prompt's {old.role} message"
                return f"in {where} {_shown(before)}", _shown(after)
    return "a prompt with another digest", "the same text"


def _shown(line: str | None) -> str:
    if line is None:
        return "no such line"
    return repr(line if len(line) <= 100 else line[:97] + "...")


@dataclass(frozen=True, slots=True)
class _Recording:
    entries: list[_Entry]
    counts: dict[str, int]
    generator: str | None
    """The one generator that the file names."""


def _read(path: Path, by: Key) -> _Recording:
    entries: list[_Entry] = []
    counts: dict[str, int] = {}
    names: set[str] = set()
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        what = "the recorded replies cannot be read"
        raise ConfigurationError(what, expected="a text file", found=f"{path}: {reason}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if "tokens" in row and "text" in row:
                counts[str(row["text"])] = int(row["tokens"])
                continue
            entries.append(_entry(row, by))
            names.update([str(row["generator"])] if "generator" in row else [])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # A run that was killed leaves half a line at the end; nothing else may be broken.
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                break
            raise ConfigurationError(
                f"line {number} of the recorded replies does not parse",
                expected=_EXPECTED[by],
                found=_shown(line),
                hint=f"mend or remove line {number} of {path}",
            ) from error
    return _Recording(entries, counts, names.pop() if len(names) == 1 else None)


def _entry(row: dict[str, Any], by: Key) -> _Entry:
    fields = row["reply"]
    counted = "n_prompt_tokens" in fields and "n_reply_tokens" in fields
    reply = Reply(
        text=_text(fields["text"]),
        n_prompt_tokens=int(fields["n_prompt_tokens"]) if counted else 0,
        n_reply_tokens=int(fields["n_reply_tokens"]) if counted else 0,
        latency_s=float(fields.get("latency_s", 0.0)),
        cost_usd=float(fields.get("cost_usd", 0.0)),
        n_retries=int(fields.get("n_retries", 0)),
        error=None if fields.get("error") is None else _text(fields["error"]),
    )
    prompt = tuple(Message(_text(m["role"]), _text(m["content"])) for m in row["prompt"]) if "prompt" in row else None
    digest = prompt_digest(prompt) if prompt is not None else row.get("digest")
    if (by != "order" and digest is None) or (by == "call" and "seed" not in row):
        raise KeyError("digest" if digest is None else "seed")
    seed = int(row["seed"]) if "seed" in row else None
    max_tokens = int(row["max_tokens"]) if "max_tokens" in row else None
    return _Entry(reply, prompt, digest, seed, max_tokens, counted)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
