"""Names of variables as their author wrote them, from what the C++ compiler made of them (Itanium C++ ABI, "Mangling")."""

from __future__ import annotations

import re

__all__ = ["plain_name"]

_LENGTH = re.compile(r"(\d+)")
_LOCAL = re.compile(r"E(?P<length>\d+)(?P<rest>\D.*)")
_DISCRIMINATOR = re.compile(r"_\d*|__\d+_")
_MOST_PARTS = 32


def plain_name(symbol: str) -> str:
    """`counter of helper` for a static variable of a function, `space::table` for one of a namespace.

    Names of templates, and all that is not understood, stay as they are.
    """
    if symbol.startswith("_ZZ"):
        function = _qualified(symbol[3:])
        variable = _last_local(symbol)
        return f"{variable} of {function}" if function and variable else symbol
    if symbol.startswith("_ZN"):
        return _qualified(symbol[2:]) or symbol
    if symbol.startswith("_ZL"):
        return _qualified(symbol[3:]) or symbol
    return symbol


def _qualified(text: str) -> str | None:
    """The name that the text begins with: one word, or words of namespaces between N and E."""
    if not text.startswith("N"):
        found = _word(text)
        return found[0] if found is not None else None
    rest = text[1:]
    words: list[str] = []
    while len(words) < _MOST_PARTS and (found := _word(rest)) is not None:
        words.append(found[0])
        rest = found[1]
    return "::".join(words) if words and rest.startswith("E") else None


def _word(text: str) -> tuple[str, str] | None:
    """A word that stands behind its length, and what follows it."""
    match = _LENGTH.match(text)
    if match is None or len(match[1]) > 4:
        return None
    end = match.end() + int(match[1])
    word = text[match.end() : end]
    return (word, text[end:]) if len(word) == int(match[1]) > 0 else None


def _last_local(symbol: str) -> str | None:
    """The variable at the end of the name of a local one; a number behind it tells it from others of its name."""
    for start in [match.start() for match in re.finditer(r"E(?=\d)", symbol)]:
        match = _LOCAL.match(symbol, start)
        if match is None or len(match["length"]) > 4:
            continue
        word, rest = match["rest"][: int(match["length"])], match["rest"][int(match["length"]) :]
        if len(word) == int(match["length"]) and (not rest or _DISCRIMINATOR.fullmatch(rest)):
            return word
    return None
