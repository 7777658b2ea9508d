"""A PostgreSQL server of our own for the tests: in a temporary folder, on a Unix socket, gone with the process."""

import contextlib
import functools
import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

_FOLDERS = (Path("/usr/lib/postgresql"), Path("/usr/pgsql"), Path("/opt/homebrew/opt/postgresql"))
_SCHEMAS = itertools.count()


@functools.cache
def _program(name):
    """The newest installed server's program; None where there is none."""
    found = sorted(path for folder in _FOLDERS for path in folder.glob(f"*/bin/{name}"))
    beside = shutil.which(name)
    return found[-1] if found else Path(beside) if beside else None


def _reason():
    """Why there can be no server here; None when there can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (pip install 'evo-l2[postgres]')"
    if _program("initdb") is None or _program("postgres") is None:
        return "no PostgreSQL server is installed (Debian: apt-get install postgresql)"
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            return "root may not run PostgreSQL, and there is no setpriv"
        with contextlib.suppress(KeyError):
            pwd.getpwnam("postgres")
            return None
        return "root may not run PostgreSQL, and there is no user postgres"
    return None


class Server:
    """A running server; it ends with `close`, or with this process."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="evo-l2-postgres-", dir="/tmp"))
        self._as = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        data = self.folder / "data"
        self._call(_program("initdb"), "-D", data, "-U", "evo", "-E", "UTF8", "--locale=C", "--auth=trust", "--no-sync")
        hba = data / "pg_hba.conf"
        # One user has to give a password, so that a wrong one can be told.
        hba.write_text(f"local all locked scram-sha-256\n{hba.read_text()}")
        settings = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "listen_addresses=", "max_connections=60")
        arguments = [_program("postgres"), "-D", data, "-k", self.folder, *(part for one in settings for part in ("-c", one))]
        guard = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
        self._process = subprocess.Popen(
            [*self._as, *guard, *arguments], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait()

    def _call(self, *arguments):
        subprocess.run([*self._as, *arguments], cwd=self.folder, check=True, capture_output=True)

    def _wait(self):
        import psycopg

        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(f"host={self.folder} user=evo dbname=postgres", connect_timeout=5).close()
                break
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.close()
                    raise
                time.sleep(0.05)
        self.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")

    def url(self, database="postgres", user="evo", **options):
        """The URL of a database; options are parts of its query."""
        query = "&".join(f"{name}={value}" for name, value in {"host": self.folder, **options}.items())
        return f"postgresql+psycopg://{user}@/{database}?{query}"

    def execute(self, sql, database="postgres"):
        """Runs statements as the owner."""
        import psycopg

        with psycopg.connect(f"host={self.folder} user=evo dbname={database}", autocommit=True) as connection:
            connection.execute(sql)

    def fresh(self):
        """The URL of an empty schema."""
        name = f"test_{os.getpid()}_{next(_SCHEMAS)}"
        self.execute(f"CREATE SCHEMA {name}")
        return self.url(options=f"-csearch_path%3D{name}")

    def stop(self):
        """Ends the server at once; its data stay."""
        self._process.send_signal(2)
        self._process.wait(timeout=60)

    def close(self):
        """Ends the server and removes its data."""
        if self._process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def start():
    """A new server; the test is skipped where there can be none, but not in CI."""
    reason = _reason()
    if reason is not None and os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; CI has to have one")
    if reason is not None:
        pytest.skip(reason)
    return Server()
