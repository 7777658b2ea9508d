"""Bad input and bad surroundings through the command `evo-l2` itself: one clear line, exit 1 or 2, and nothing lost.

What the command line does within this process (unknown presets, keys, files) is in `test_cli.py`.
"""

import contextlib
import json
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from archive.store import Store

ROOT = Path(__file__).parent.parent
EVO = Path(sys.executable).parent / "evo-l2"
SEED = ROOT / "experiments/seeds/cpu/naive_nn.c"
TINY = ("--set=timing.blocks=8", "--set=timing.min_batch_ms=0.5", "--set=timing.finalists=0", "--set=budget.evaluations=4")
LONG = (*TINY, "--set=budget.evaluations=400", "--set=budget.wall_s=60")


@pytest.fixture(scope="module")
def environ(session_cache):
    """An environment with the session's cache."""
    return {**os.environ, "XDG_CACHE_HOME": str(session_cache), "COLUMNS": "100"}


@pytest.fixture(scope="module")
def made(environ, tmp_path_factory):
    """The archive of one short run; tests work on copies of it."""
    path = tmp_path_factory.mktemp("archive") / "tiny.db"
    run_to_its_end(*TINY, db=path, environ=environ)
    return path


@pytest.fixture
def db(made, tmp_path):
    return Path(shutil.copy(made, tmp_path / "tiny.db"))


def evo(*arguments, environ, **options):
    """What a command printed; a run is tried again where the machine was too busy for any kernel to be timed."""
    command = [EVO, *map(str, arguments)]
    for _ in range(5):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, cwd=ROOT, **options)
        if "did not hold still" not in done.stderr or arguments[0] != "run":
            break
        Path(command[command.index("--db") + 1]).unlink(missing_ok=True)
    return done


def run_to_its_end(*options, db, environ):
    done = evo("run", "smoke", *options, "--db", db, environ=environ)
    assert done.returncode == 0, done.stderr


def complaint(*arguments, environ, status=1, after_progress=False):
    """The one line with which a command ends; a run may have shown its progress before it."""
    done = evo(*arguments, environ=environ)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    *before, line = done.stderr.splitlines()
    assert line.startswith("evo-l2: ")
    assert "expected" in line or "found" in line
    assert after_progress or not before, done.stderr
    return line


def n_told(path):
    """How many candidates each run of an archive holds; every one of them is read."""
    with Store.open(path, create=False) as store:
        return {info.name: len(list(store.open_run(info.name).history())) for info in store.runs()}


# --- archives ---------------------------------------------------------------------------------------------------------


def test_an_archive_of_a_newer_version_is_refused_and_left_as_it_is(db, environ):
    with contextlib.closing(sqlite3.connect(db)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    before = db.read_bytes()
    line = complaint("run", "smoke", *TINY, "--db", db, environ=environ)
    assert "revision 9999" in line
    assert "try: pip install --upgrade evo-l2" in line
    assert db.read_bytes() == before


def test_a_damaged_archive_is_one_line(db, environ):
    data = bytearray(db.read_bytes())
    data[4096:40960] = b"\x5a" * 36864
    db.write_bytes(data)
    assert f"{db} is damaged" in complaint("archive", "stats", db, environ=environ)
    assert db.read_bytes() == data


def test_the_archive_of_another_problem_is_no_recording_and_no_run_to_go_on_with(db, tmp_path, environ):
    other = ("--set=problem.shapes=[[48, 32, 32]]", "--db", tmp_path / "new.db", "--replay", db)
    assert "another problem" in complaint("run", "smoke", *TINY, *other, environ=environ, status=2)
    with contextlib.closing(sqlite3.connect(db)) as connection:
        connection.execute("UPDATE problems SET key = 'feedfeedfeedfeed'")
        connection.commit()
    before = n_told(db)
    assert "feedfeedfeedfeed" in complaint("resume", db, "--evaluations", 9, environ=environ, status=2)
    assert n_told(db) == before == {"smoke": 4}


# --- kernels and compilers --------------------------------------------------------------------------------------------


@pytest.mark.beside
def test_a_launch_that_does_not_parse_is_shown_with_its_place(tmp_path, environ):
    path = tmp_path / "sideways.c"
    path.write_text("//! layout nn\n//! launch hgemm(A: in, B: sideways, C: out)\nvoid hgemm(void) {}\n")
    where = "line 2, column 25: an argument does not parse: expected 'name'"
    assert where in complaint("verify", path, environ=environ, status=2)
    started = ("run", "smoke", *TINY, f"--set=seeds=[{path}]", "--db", tmp_path / "x.db")
    line = complaint(*started, environ=environ, status=2)
    assert where in line
    assert f"try: evo-l2 verify {path}" in line
    assert not (tmp_path / "x.db").exists()


@pytest.mark.beside
def test_a_file_without_end_is_no_kernel(environ):
    assert "too long for a kernel" in complaint("verify", "/dev/zero", environ=environ, status=2)


@pytest.mark.beside
def test_a_compiler_without_its_parts_is_one_line_with_what_to_install(tmp_path, environ):
    compiler = shutil.which("gcc") or shutil.which("clang")
    (tmp_path / "gcc").symlink_to(compiler)
    line = complaint("verify", SEED, environ={**environ, "PATH": str(tmp_path), "CC": ""})
    assert "does not build a small program" in line
    assert "binutils" in line.partition("; try: ")[2]


def test_a_harder_limit_of_the_shell_is_no_fault_of_the_compiler(environ):
    def limited():
        resource.setrlimit(resource.RLIMIT_CPU, (15, 15))

    done = evo("verify", SEED, "--shape", "48,32,64", environ=environ, preexec_fn=limited)
    assert done.returncode == 0, done.stdout + done.stderr


# --- models -----------------------------------------------------------------------------------------------------------


def of_model(**generator):
    """Options of a run that asks a model for most of its candidates."""
    words = json.dumps(generator)
    return (
        *TINY,
        "--set=search.operators={parametric: 1, rewrite: 3}",
        f"--set=generator={words}",
        "--set=budget.evaluations=6",
    )


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra llm")
def test_a_model_that_does_not_load_is_one_line(tmp_path, environ):
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16, "vocab_size": 32}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    (folder / "model.safetensors").write_bytes(b"rubbish" * 100)
    options = of_model(kind="local", model=str(folder))
    line = complaint("run", "smoke", *options, "--db", tmp_path / "x.db", environ=environ, after_progress=True)
    assert f"the model {folder} does not load" in line
    assert "; try: " in line


def responds(status, body, kind="application/json"):
    def behaviour(handler):
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return behaviour


def dawdles(handler):
    time.sleep(5)


def breaks_off(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(*behaviours):
    """The address of a server on loopback; its last behaviour is repeated for ever."""
    left = list(behaviours)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            with contextlib.suppress(OSError):
                (left.pop(0) if len(left) > 1 else left[0])(self)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def of_server(url):
    return of_model(kind="server", model="m", base_url=url, retries=0, timeout_s=1)


needs_openai = pytest.mark.skipif(find_spec("openai") is None, reason="needs the extra llm")


@needs_openai
@pytest.mark.beside
def test_a_server_that_is_down_is_one_line_with_what_to_try(tmp_path, environ):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        line = complaint("run", "smoke", *of_server(url), "--db", tmp_path / "x.db", environ=environ)
    assert f"no connection to {url}" in line
    assert f"try: curl {url}/models" in line


@needs_openai
@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (dawdles, "did not answer within 1 s"),
        (responds(200, b"<html>hello</html>", "text/html"), "no chat completion"),
    ],
    ids=["slow", "a web page"],
)
@pytest.mark.beside
def test_a_server_that_does_not_answer_as_it_should_is_one_line(behaviour, words, tmp_path, environ):
    with serving(behaviour) as url:
        line = complaint("run", "smoke", *of_server(url), "--db", tmp_path / "x.db", environ=environ)
    assert words in line
    assert "; try: " in line


@needs_openai
def test_a_server_that_dies_later_costs_its_calls_and_not_the_run(tmp_path, environ):
    reply = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "no kernel"}}]}
    with serving(responds(200, json.dumps(reply).encode()), breaks_off) as url:
        run_to_its_end(*of_server(url), db=tmp_path / "x.db", environ=environ)
    assert n_told(tmp_path / "x.db") == {"smoke": 6}


# --- disks ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def disk(folder, *, kib):
    """A file system of its own and of one size."""
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def mount(*arguments):
    if shutil.which("mount") is None or subprocess.run(["mount", *arguments], capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")


@contextlib.contextmanager
def read_only(folder):
    """A folder in which nobody can write: by its mode, or, since that stops no root, by its mount."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)
        return
    mount("--bind", folder, folder)
    try:
        mount("-o", "remount,bind,ro", folder)
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_fills_up_keeps_what_was_told_and_the_run_goes_on_with_more(tmp_path, environ):
    with disk(tmp_path / "disk", kib=500) as folder:
        path = folder / "x.db"
        line = complaint("run", "smoke", *LONG, "--db", path, environ=environ, after_progress=True)
        assert f"{path} cannot grow" in line
        assert f"try: df -h {folder}" in line
        told = n_told(path)
        assert 0 < told["smoke"] < 400
        mount("-o", "remount,size=20m", folder)
        done = evo("resume", path, "--evaluations", told["smoke"] + 3, environ=environ)
        assert done.returncode == 0, done.stderr
        assert n_told(path) == {"smoke": told["smoke"] + 3}


def test_a_full_cache_is_told_from_a_broken_compiler(tmp_path, environ):
    with disk(tmp_path / "disk", kib=120) as folder:
        full = {**environ, "XDG_CACHE_HOME": str(folder)}
        line = complaint("run", "smoke", *TINY, "--db", tmp_path / "x.db", environ=full, after_progress=True)
        assert "cache cannot be written" in line
        assert str(folder) in line
        assert "XDG_CACHE_HOME=" in line.partition("; try: ")[2]
        assert not [path for path in folder.rglob(".*") if path.is_dir()]
    assert not (tmp_path / "x.db").exists()


def test_a_read_only_folder_is_named_whatever_was_to_be_written_there(db, tmp_path, environ):
    (tmp_path / "out").mkdir()
    told = n_told(db)
    with read_only(tmp_path):
        assert f"{db}" in complaint("archive", "gc", db, environ=environ)
        assert evo("archive", "top", db, environ=environ).returncode == 0
        line = complaint("verify", SEED, environ={**environ, "XDG_CACHE_HOME": str(tmp_path)})
        assert f"expected to write in {tmp_path}/evo-l2/cpu" in line
    assert n_told(db) == told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", db.name]


def test_an_export_into_a_read_only_folder_is_one_line(db, tmp_path, environ):
    (tmp_path / "out").mkdir()
    with read_only(tmp_path / "out"):
        line = complaint("archive", "export", db, "--to", tmp_path / "out", environ=environ)
        assert f"{tmp_path}/out cannot be filled" in line
    assert not list((tmp_path / "out").iterdir())
