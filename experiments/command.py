"""What every command shares: options, and errors as one line with an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from evo_l2.errors import ConfigurationError, EvoL2Error
from experiments.printable import printable

__all__ = ["ARCHIVE", "INTERRUPTED", "db_argument", "guarded", "json_option"]

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell gives it."""


def guarded(body: F) -> F:
    """Turns errors into one line on stderr and an exit status: 1, or 2 when the user's words were at fault, or 130.

    The environment variable `EVO_L2_DEBUG` lets tracebacks through.
    """

    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            result = body(*args, **kwargs)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The reader has gone, as in `| head`; Python would try to flush once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except (EvoL2Error, OSError) as error:
            if os.environ.get("EVO_L2_DEBUG"):
                raise
            click.echo(f"evo-l2: {_line(error)}", err=True)
            sys.exit(2 if isinstance(error, ConfigurationError) else 1)
        except KeyboardInterrupt:
            if os.environ.get("EVO_L2_DEBUG"):
                raise
            click.echo("evo-l2: interrupted", err=True)
            sys.exit(INTERRUPTED)

    return cast(F, run)


def _line(error: EvoL2Error | OSError) -> str:
    """The error in one line; the operating system's own words for what it refuses."""
    if isinstance(error, EvoL2Error):
        return printable(str(error))
    where = f"{error.filename}: " if error.filename is not None else ""
    return printable(f"{where}{(error.strerror or str(error)).lower()}")


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


class _Archive(click.ParamType):  # type: ignore[type-arg]
    """A file, or `postgresql+psycopg://USER@HOST/DATABASE`; becomes an `archive.address.Address`."""

    name = "path|url"
    _file = click.Path(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or "://" not in value:
            return self._file.convert(value, param, ctx)
        from archive.address import parse_address

        try:
            return parse_address(value)
        except ConfigurationError as error:
            self.fail(_line(error), param, ctx)


ARCHIVE = _Archive()
"""The type of every argument that names an archive."""
db_argument = click.argument("db", type=ARCHIVE)
