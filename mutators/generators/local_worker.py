"""The process a local model runs in: reads requests from standard input, writes replies to standard output, in JSON lines.

Started by `mutators.generators.local`; of no use by hand.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from evo_l2.errors import EvoL2Error
from mutators.generators.decoding import Completion, Sampling, complete
from mutators.generators.loading import Loaded, load, tokenize
from mutators.generators.worker import WorkerSettings

_PR_SET_PDEATHSIG = 1
_NICENESS = 10
_OOM_SCORE_ADJUSTMENT = "500"
_INSTALL = "pip install torch==2.13.0, then pip install 'evo-l2[llm]'"


def main() -> None:
    """Serves until standard input ends."""
    out = _own_output()
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    settings = _settings(sys.stdin.readline())
    _depend_on(settings.parent)
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    def say(message: Mapping[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        loaded = load(settings)
        say({"ready": _introduction(loaded)})
    except EvoL2Error as error:
        say({"fatal": {"what": error.what, "expected": error.expected, "found": error.found, "hint": error.hint}})
        os._exit(1)
    except Exception as error:
        say({"fatal": _does_not_load(settings, error)})
        os._exit(1)
    while True:
        request = requests.get()
        say({"id": request["id"], "replies": _answer(loaded, settings, request, lambda: say({"alive": True}))})


def _own_output() -> TextIO:
    """Standard output, which from here on only this module can write: a library's `print` goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def _settings(line: str) -> WorkerSettings:
    values = json.loads(line)
    values["stop"] = tuple(values["stop"])
    return WorkerSettings(**values)


def _depend_on(parent: int) -> None:
    """Ends with the parent, gives way to compilers, and is the first to go when memory runs out."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    os.nice(_NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJUSTMENT, encoding="ascii")


def _listen(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


def _introduction(loaded: Loaded) -> dict[str, Any]:
    backend = getattr(loaded.tokenizer, "backend_tokenizer", None)
    return {
        "tokenizer": backend.to_str() if backend is not None else None,
        "context_tokens": loaded.context_tokens,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "device": str(loaded.model.device),
        "note": loaded.note,
    }


def _does_not_load(settings: WorkerSettings, error: Exception) -> dict[str, Any]:
    lines = str(error).strip().splitlines()
    found = f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
    if isinstance(error, ImportError):
        what, expected, hint = "a library is missing", "torch and transformers that can be imported", _INSTALL
    elif _is_out_of_memory(error):
        what, expected = f"the model {settings.model} does not fit", "enough memory for its weights"
        hint = "a smaller model, or --set generator.dtype=bfloat16"
    else:
        what, expected = f"the model {settings.model} does not load", "config.json, safetensors and tokenizer of one model"
        hint = "save it again with save_pretrained, or name another model"
    return {"what": what, "expected": expected, "found": found, "hint": hint}


def _is_out_of_memory(error: Exception) -> bool:
    name, text = type(error).__name__, str(error)
    return isinstance(error, MemoryError) or name == "OutOfMemoryError" or "not enough memory" in text


def _answer(
    loaded: Loaded, settings: WorkerSettings, request: Mapping[str, Any], alive: Callable[[], None]
) -> list[dict[str, Any]]:
    replies: dict[int, dict[str, Any]] = {}
    prompts: dict[int, list[int]] = {}
    for at, messages in enumerate(request["prompts"]):
        try:
            prompts[at] = tokenize(loaded.tokenizer, messages)
        except Exception as error:
            replies[at] = _failure(f"the prompt does not fit the model's chat template: {_line(error)}", 0)
            continue
        n_tokens = len(prompts[at])
        if not 0 < n_tokens < loaded.context_tokens:
            limit = f"the model's context of {loaded.context_tokens} tokens"
            replies[at] = _failure(f"the prompt of {n_tokens} tokens does not fit {limit}", n_tokens)
            del prompts[at]
    # Neighbours of like length waste the least on padding.
    order = sorted(prompts, key=lambda at: (len(prompts[at]), at))
    for start in range(0, len(order), settings.max_batch):
        chosen = order[start : start + settings.max_batch]
        replies.update(_answer_batch(loaded, settings, request, {at: prompts[at] for at in chosen}, alive))
        alive()
    return [replies[at] for at in range(len(request["prompts"]))]


def _answer_batch(
    loaded: Loaded,
    settings: WorkerSettings,
    request: Mapping[str, Any],
    prompts: Mapping[int, list[int]],
    alive: Callable[[], None],
) -> dict[int, dict[str, Any]]:
    limits = [min(int(request["max_tokens"]), loaded.context_tokens - len(prompt)) for prompt in prompts.values()]
    seeds = [int(request["seeds"][at]) for at in prompts]
    sampling = Sampling(settings.temperature, settings.top_p, settings.stop)
    try:
        completions = complete(
            loaded.model,
            loaded.tokenizer,
            list(prompts.values()),
            seeds,
            limits,
            ends=loaded.ends,
            sampling=sampling,
            alive=alive,
        )
    except Exception as error:
        what = "the model ran out of memory; a smaller batch or context may fit" if _is_out_of_memory(error) else _line(error)
        return {at: _failure(what, len(prompt)) for at, prompt in prompts.items()}
    return {at: _reply(c, len(prompts[at])) for at, c in zip(prompts, completions, strict=True)}


def _reply(completion: Completion, n_prompt_tokens: int) -> dict[str, Any]:
    return {
        "text": completion.text,
        "n_prompt_tokens": n_prompt_tokens,
        "n_reply_tokens": completion.n_tokens,
        "latency_s": completion.latency_s,
        "error": None,
    }


def _failure(error: str, n_prompt_tokens: int) -> dict[str, Any]:
    return {"text": "", "n_prompt_tokens": n_prompt_tokens, "n_reply_tokens": 0, "latency_s": 0.0, "error": error}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main()
