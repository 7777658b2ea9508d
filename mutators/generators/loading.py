"""Loads a model, its tokenizer and an adapter from this machine's files; runs in the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo_l2.errors import ModelError
from mutators.generators import embedded
from mutators.generators.worker import WorkerSettings

__all__ = ["Loaded", "load", "tokenize"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to answer."""

    model: Any
    tokenizer: Any
    ends: frozenset[int]
    """Tokens that end a reply."""
    context_tokens: int
    """Prompt and reply together."""
    note: str | None


def load(settings: WorkerSettings) -> Loaded:
    """Loads what the settings name; never from a network.

    Raises:
        ModelError: The files are not a model, or the adapter is not one of this model.
    """
    import torch
    import transformers

    torch.set_num_threads(settings.threads)
    device = settings.device if settings.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        hint = "--set generator.device=cpu"
        raise ModelError("the model has no card to run on", expected="a card that torch sees", found="none", hint=hint)
    # Two cores without bfloat16 units read a prompt five times faster in float32; docs/MODELS.md has the figures.
    dtype = settings.dtype if settings.dtype != "auto" else "float32" if device == "cpu" else "bfloat16"
    place, arguments, note = _place(settings)
    tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True, **arguments)
    if "gguf_file" in arguments:
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    else:
        arguments["use_safetensors"] = True
    model, information = transformers.AutoModelForCausalLM.from_pretrained(
        place, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True, **arguments
    )
    _check(settings.model, model, tokenizer, information)
    if settings.adapter is not None:
        model = _with_adapter(model, Path(settings.adapter))
    model = model.to(device).eval()
    own = int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**20)
    return Loaded(model, tokenizer, _ends(model, tokenizer), min(own, settings.context_tokens or own), note)


def tokenize(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The tokens of a chat, by the model's template; without one, its contents under plain headings."""
    if getattr(tokenizer, "chat_template", None):
        text = _by_template(tokenizer, list(messages))
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    text = "".join(f"### {m['role'].capitalize()}\n{m['content'].strip()}\n\n" for m in messages) + "### Assistant\n"
    return list(tokenizer(text)["input_ids"])


def _by_template(tokenizer: Any, messages: list[Mapping[str, str]]) -> str:
    from jinja2 import TemplateError

    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except TemplateError:
        # Some templates refuse the system role.
        if len(messages) < 2 or messages[0]["role"] != "system":
            raise
        first = {"role": messages[1]["role"], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
        return str(tokenizer.apply_chat_template([first, *messages[2:]], tokenize=False, add_generation_prompt=True))


def _place(settings: WorkerSettings) -> tuple[str, dict[str, Any], str | None]:
    path, note = Path(settings.model), None
    if settings.model == "embedded":
        gguf = embedded.find_gguf()
        conversion = embedded.convert(gguf, Path(settings.cache_dir) if settings.cache_dir else None)
        path, note = conversion.path or gguf, conversion.note
    if path.is_dir():
        return str(path), {}, note
    return str(path.parent), {"gguf_file": path.name}, note


def _check(name: str, model: Any, tokenizer: Any, information: Mapping[str, Any]) -> None:
    missing = sorted(information.get("missing_keys", ()))
    if missing:
        # transformers only warns, and draws the missing weights at random.
        found = f"{len(missing)} missing, such as {missing[0]}"
        raise ModelError(f"the model {name} is not complete", expected="a weight for every parameter", found=found)
    n_rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > n_rows:
        expected = f"at most {n_rows} tokens, one for each row of its embedding"
        raise ModelError(f"the tokenizer is not the one of the model {name}", expected=expected, found=f"{len(tokenizer)}")


def _with_adapter(model: Any, path: Path) -> Any:
    import peft
    from safetensors import SafetensorError, safe_open

    expected = "a LoRA adapter that was trained on this model"
    try:
        with safe_open(path / "adapter_model.safetensors", framework="np") as file:
            stored = set(file.keys())
        adapted = peft.PeftModel.from_pretrained(model, str(path), is_trainable=False, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        found = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"the adapter {path} does not fit", expected=expected, found=found) from error
    # peft only warns when it lacks some of an adapter's weights, or has no place for them.
    odd = sorted(stored ^ set(peft.get_peft_model_state_dict(adapted)))
    if odd:
        found = f"{len(odd)} weights without a counterpart, such as {odd[0]}"
        raise ModelError(f"the adapter {path} does not fit", expected=expected, found=found)
    return adapted.merge_and_unload() if hasattr(adapted, "merge_and_unload") else adapted


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    ends: set[int] = set()
    configuration = getattr(model, "generation_config", None)
    for value in (getattr(configuration, "eos_token_id", None), tokenizer.eos_token_id):
        ends.update([value] if isinstance(value, int) else value or ())
    return frozenset(ends)
