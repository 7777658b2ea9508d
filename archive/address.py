"""Where an archive is: a file, or a schema of a PostgreSQL server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from evo_l2.errors import ConfigurationError

__all__ = ["POSTGRESQL", "Address", "ServerAddress", "parse_address"]

POSTGRESQL = "postgresql+psycopg"
"""What the URL of an archive on a PostgreSQL server begins with."""


@dataclass(frozen=True, repr=False)
class ServerAddress(os.PathLike[str]):
    """The URL of an archive on a server; as text it has no password."""

    url: str
    """`postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE`; `?host=/FOLDER` names a Unix socket."""

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        import sqlalchemy as sa

        return sa.make_url(self.url).render_as_string(hide_password=True)

    def __repr__(self) -> str:
        return f"ServerAddress({str(self)!r})"


Address = Path | ServerAddress
"""What `Store.open` takes, told apart."""


def parse_address(text: str | os.PathLike[str]) -> Address:
    """A path, or a URL.

    Raises:
        ConfigurationError: The URL does not parse, or names what no archive can be kept in.
    """
    import sqlalchemy as sa

    text = os.fspath(text)
    if "://" not in text:
        return Path(text)
    expected = f"a path, sqlite:///PATH or {POSTGRESQL}://USER@HOST/DATABASE"
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise ConfigurationError("the archive's URL does not parse", expected=expected) from error
    if url.drivername == POSTGRESQL and url.database:
        return ServerAddress(text)
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        return Path(url.database)
    found = url.render_as_string(hide_password=True)
    raise ConfigurationError("the archive cannot be kept there", expected=expected, found=found)
