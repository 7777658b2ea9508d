"""Generators: text from a model on this machine, or from a server."""

from __future__ import annotations

from typing import Any

from evo_l2.contracts import Generator
from evo_l2.errors import ConfigurationError
from mutators.generators.local import LocalGenerator
from mutators.generators.server import ServerGenerator

__all__ = ["LocalGenerator", "ServerGenerator", "make_generator"]


def make_generator(kind: str, **options: Any) -> Generator:
    """The generator of a kind, `local` or `server`, with its constructor's options, which the caller has checked.

    Raises:
        ConfigurationError: No such kind.
        ModelError: The model, its package or its key is missing.
    """
    if kind == "local":
        return LocalGenerator(**options)
    if kind == "server":
        return ServerGenerator(**options)
    raise ConfigurationError("unknown kind of generator", expected="local or server", found=repr(kind))
