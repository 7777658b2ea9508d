"""YAML documents: presets and files in, checked models out; mistakes name the key, the line and the nearest right one."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from evo_l2.errors import ConfigurationError

__all__ = ["Key", "apply_override", "keys", "preset_names", "preset_text", "read_document", "validate"]

Model = TypeVar("Model", bound=BaseModel)
_LONGEST_DOCUMENT_BYTES = 2**20


class _Loader(yaml.SafeLoader):
    """Plain data only; refuses aliases and a key that stands twice, keeps dates as text, and reads 1e-3 as a number."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # A few lines of aliases can stand for more data than memory holds.
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise ConfigurationError(f"line {line}: aliases are not taken", expected="the value itself", found="an alias")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                expected = "plain words as keys"
                found = repr(getattr(key_node, "value", "a list or section"))
                raise ConfigurationError(f"line {line}: a key cannot be used", expected=expected, found=found)
            if key_node.value in seen:
                found = f"{key_node.value!r} on line {seen[key_node.value]} and again on line {line}"
                raise ConfigurationError("a key stands twice", expected="each key once", found=found)
            seen[key_node.value] = line
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class Key:
    """One key of a configuration, for listings."""

    __slots__ = ("default", "path", "values", "what")

    def __init__(self, path: str, default: object, what: str, values: tuple[str, ...] = ()) -> None:
        self.path = path
        """Dotted, for instance `search.batch`."""
        self.default = default
        """None where there is none, or where it is none."""
        self.what = what
        """One sentence: meaning and unit."""
        self.values = values
        """The words that it may have, or may hold; empty where it is open."""


def preset_names() -> tuple[str, ...]:
    """The presets that come with the package, sorted."""
    names = (entry.name for entry in resources.files("experiments").joinpath("presets").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def preset_text(name: str, command: str = "evo-l2 run") -> str:
    """The YAML text of a preset.

    Args:
        name: The preset.
        command: What was typed before the name, for the hint.

    Raises:
        ConfigurationError: There is no such preset.
    """
    if name not in preset_names():
        near = difflib.get_close_matches(name.lower(), preset_names(), 1)
        expected = f"one of {', '.join(preset_names())}, or the path of a .yaml file"
        hint = f"{command} {near[0]}" if near else "evo-l2 presets"
        raise ConfigurationError("no such preset", expected=expected, found=repr(name), hint=hint)
    return resources.files("experiments").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")


def read_document(preset_or_file: str) -> dict[str, Any]:
    """The mapping in a preset or file.

    Raises:
        ConfigurationError: It does not exist, cannot be read, or is no YAML mapping.
    """
    is_file = "/" in preset_or_file or preset_or_file.endswith((".yaml", ".yml"))
    name = preset_or_file if is_file else f"preset {preset_or_file}"
    text = _file_text(Path(preset_or_file)) if is_file else preset_text(preset_or_file)
    try:
        document = _parse(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error.what}", expected=error.expected, found=error.found) from error
    if not isinstance(document, dict):
        expected = "keys and values, as in 'name: mine'"
        raise ConfigurationError(f"{name} is no configuration", expected=expected, found=_kind(document))
    return document


def _file_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST_DOCUMENT_BYTES + 1)
        if len(data) > _LONGEST_DOCUMENT_BYTES:
            expected = f"at most {_LONGEST_DOCUMENT_BYTES} bytes"
            raise ConfigurationError(f"{path} is no configuration", expected=expected, found="more")
        return data.decode("utf-8")
    except FileNotFoundError as error:
        hint = "evo-l2 presets"
        raise ConfigurationError(f"{path} cannot be read", expected="a YAML file", found="no file", hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} cannot be read", expected="UTF-8 text", found="other bytes") from error
    except OSError as error:
        found = (error.strerror or str(error)).lower()
        raise ConfigurationError(f"{path} cannot be read", expected="a YAML file", found=found) from error


def _parse(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        # PyYAML's own words, parted: "expected ',' or ']', but got '<stream end>'".
        parts = re.fullmatch(r"expected (.+?),? but (?:found|got) (.+)", error.problem or "")
        expected, found = parts.groups() if parts else ("YAML", (error.problem or "something else").removeprefix("found "))
        raise ConfigurationError(f"{where}no YAML", expected=expected, found=found) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        found = str(error).split("\n")[0] or "something else"
        raise ConfigurationError("no YAML", expected="YAML", found=found) from error


def apply_override(document: dict[str, Any], override: str) -> None:
    """Sets one `key=value` in the document; sections on the way are made.

    Raises:
        ConfigurationError: It is no `key=value`, or its value is no YAML.
    """
    path, equals, text = override.partition("=")
    words = path.strip().split(".")
    if not equals or not all(words):
        expected = "key=value, as in search.batch=8"
        raise ConfigurationError("--set cannot be read", expected=expected, found=repr(override))
    try:
        value = _parse(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"--set {path}: {error.what}", expected=error.expected, found=error.found) from error
    section = document
    for depth, word in enumerate(words[:-1], start=1):
        inner = section.get(word)
        if inner is None:
            inner = section[word] = {}
        if not isinstance(inner, dict):
            found = f"{'.'.join(words[:depth])} = {inner!r}"
            raise ConfigurationError(f"--set {path} cannot be set", expected="a section before the dot", found=found)
        section = inner
    section[words[-1]] = value


def validate(model: type[Model], data: Mapping[str, object]) -> Model:
    """The model made of plain data; nothing is converted but lists to tuples.

    Raises:
        ConfigurationError: The mistakes, unknown keys before all others; after the third only their number.
    """
    try:
        text = json.dumps(data)
    except (TypeError, ValueError) as error:
        raise ConfigurationError("the configuration is no plain data", expected="JSON types", found=str(error)) from error
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        mistakes = sorted(error.errors(), key=lambda mistake: mistake["type"] != "extra_forbidden")
        raise _together([_mistake(model, mistake) for mistake in mistakes]) from error


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Every key of a model, sections resolved, in order."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from keys(info.annotation, f"{path}.")
        else:
            what = " ".join((info.description or "").split())
            yield Key(path, None if info.is_required() else info.default, what, tuple(_words_of(info.annotation)))


def _words_of(annotation: object) -> Iterator[str]:
    """The words of every `Literal` in a type."""
    for inner in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield str(inner)
        else:
            yield from _words_of(inner)


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a section of keys",
    "finite_number": "a finite number",
    "missing": "a value",
}
_COMPARISONS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


_MOST_NAMED = 3
"""Mistakes named in one line; more are counted."""


def _together(mistakes: list[ConfigurationError]) -> ConfigurationError:
    """One error for all, with the hint of the first."""
    if len(mistakes) == 1:
        return mistakes[0]
    named = [str(ConfigurationError(m.what, expected=m.expected, found=m.found)) for m in mistakes[:_MOST_NAMED]]
    n_more = len(mistakes) - len(named)
    more = f"; and {n_more} more" if n_more else ""
    return ConfigurationError(f"{len(mistakes)} mistakes: {'; '.join(named)}{more}", hint=mistakes[0].hint)


def _mistake(model: type[BaseModel], mistake: ErrorDetails) -> ConfigurationError:
    path = ".".join(str(word) for word in mistake["loc"]) or "the configuration"
    context = mistake.get("ctx", {})
    if mistake["type"] == "extra_forbidden":
        near = _nearest(path, [key.path for key in keys(model)])
        expected = f"a key of the configuration, perhaps {near}" if near else "a key of the configuration"
        hint = "evo-l2 presets --keys"
        return ConfigurationError("unknown key", expected=expected, found=path, hint=hint)
    if mistake["type"] in _COMPARISONS:
        name, word = _COMPARISONS[mistake["type"]]
        expected = f"{word} {context[name]}"
    elif mistake["type"] == "literal_error":
        expected = str(context["expected"]).replace("'", "")
    elif mistake["type"] == "string_pattern_mismatch":
        expected = f"text that matches {context['pattern']}"
    else:
        expected = _EXPECTED.get(mistake["type"], mistake["msg"])
    found = "nothing" if mistake["type"] == "missing" else _kind(mistake["input"])
    return ConfigurationError(f"{path} cannot be used", expected=expected, found=found)


_MEANT = {"arch": "cuda.card", "architecture": "cuda.card", "gpu": "cuda.card"}
"""What another word than ours stands for."""


def _nearest(path: str, known: list[str]) -> str | None:
    """The key of the same last word, or else the most similar one; None when nothing is like it."""
    last = path.rpartition(".")[2]
    if last in _MEANT and path in (last, f"cuda.{last}"):
        return _MEANT[last]
    same = [key for key in known if key.rpartition(".")[2] == last]
    if len(same) == 1:
        return same[0]
    section = path.rpartition(".")[0]
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == section}
    tops = {key.partition(".")[0]: key.partition(".")[0] for key in known} if not section else {}
    for names in ({**siblings, **tops}, {key.rpartition(".")[2]: key for key in known}, {key: key for key in known}):
        near = difflib.get_close_matches(path if path in names else last, list(names), 1)
        if near:
            return names[near[0]]
    return None


def _kind(value: object) -> str:
    """A value as a person would name it."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section of keys"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
