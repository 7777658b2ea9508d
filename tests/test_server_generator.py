"""The server generator against a server that misbehaves in every way, with its requests counted."""

from __future__ import annotations

import email.utils
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from evo_l2.contracts import Message, Reply
from evo_l2.errors import ConfigurationError, ModelError
from mutators.generators import ServerGenerator, make_generator

pytest.importorskip("openai")

KEY = "sk-evo-secret-7d1f"
PROMPT = [Message("system", "You write C."), Message("user", "Write a kernel.")]
Behaviour = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A real HTTP server on loopback whose answers are scripted: the last behaviour is repeated for ever."""

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = [good("hello")]
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.keys: list[str | None] = []
        self.n_at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.serve(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        asked = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        handler.asked = asked  # type: ignore[attr-defined]
        with self._lock:
            self.times.append(time.monotonic())
            self.keys.append(handler.headers["authorization"])
            self.requests.append(asked)
            behaviour = self.behaviours[min(len(self.requests), len(self.behaviours)) - 1]
            self.n_at_once += 1
            self.most_at_once = max(self.most_at_once, self.n_at_once)
        try:
            behaviour(handler)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with self._lock:
                self.n_at_once -= 1

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def respond(status: int, body: bytes, *, kind: str = "application/json", **headers: str) -> Behaviour:
    def behaviour(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return behaviour


def good(text: str, *, usage: dict[str, int] | None = None, after_s: float = 0.0) -> Behaviour:
    data: dict[str, Any] = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    if usage is not None:
        data["usage"] = usage

    def behaviour(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(after_s)
        respond(200, json.dumps(data).encode())(handler)

    return behaviour


def broken_off(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"message": {"content": "hal')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)


def without_end(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.end_headers()
    for _ in range(4096):
        handler.wfile.write(b" " * 65536)


def dripping(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def generator(url: str, **options: Any) -> ServerGenerator:
    return ServerGenerator(url, "qwen", **{"retries": 2, "backoff_s": 0.01, "timeout_s": 5.0, **options})


def ask(generator: ServerGenerator, n: int = 1, *, max_tokens: int = 32) -> tuple[Reply, ...]:
    with generator:
        return generator.generate([PROMPT] * n, list(range(n)), max_tokens=max_tokens)


def test_request_carries_prompt_seed_and_limits(server: Server) -> None:
    (reply,) = ask(generator(server.url, temperature=0.5, top_p=None), max_tokens=77)
    assert (reply.text, reply.error, reply.n_retries) == ("hello", None, 0)
    (request,) = server.requests
    assert request == {
        "model": "qwen",
        "messages": [{"role": "system", "content": "You write C."}, {"role": "user", "content": "Write a kernel."}],
        "seed": 0,
        "max_tokens": 77,
        "temperature": 0.5,
    }


def test_large_seed_is_sent_within_31_bits(server: Server) -> None:
    with generator(server.url) as model:
        model.generate([PROMPT], [2**63 + 5], max_tokens=8)
    assert server.requests[0]["seed"] == 5


def test_usage_is_priced(server: Server) -> None:
    server.behaviours = [good("x", usage={"prompt_tokens": 2000, "completion_tokens": 500})]
    (reply,) = ask(generator(server.url, price_in_usd_per_million=3.0, price_out_usd_per_million=10.0))
    assert (reply.n_prompt_tokens, reply.n_reply_tokens) == (2000, 500)
    assert reply.cost_usd == pytest.approx(0.011)


def test_missing_usage_is_estimated_and_still_priced(server: Server) -> None:
    (reply,) = ask(generator(server.url, price_out_usd_per_million=1e6))
    assert reply.n_prompt_tokens >= 27 // 2
    assert reply.n_reply_tokens == 3
    assert reply.cost_usd == pytest.approx(3.0)


def test_no_more_requests_are_in_flight_than_allowed(server: Server) -> None:
    server.behaviours = [good("slept", after_s=0.05)]
    replies = ask(generator(server.url, concurrency=3), n=9)
    assert [reply.text for reply in replies] == ["slept"] * 9
    assert 2 <= server.most_at_once <= 3
    assert sorted(request["seed"] for request in server.requests) == list(range(9))


def test_order_is_kept_when_later_prompts_are_answered_first(server: Server) -> None:
    def last_first(handler: BaseHTTPRequestHandler) -> None:
        content = handler.asked["messages"][0]["content"]  # type: ignore[attr-defined]
        time.sleep(0.3 - 0.1 * int(content))
        good(content)(handler)

    server.behaviours = [last_first]
    with generator(server.url, concurrency=3) as model:
        replies = model.generate([[Message("user", str(i))] for i in range(3)], [0, 1, 2], max_tokens=4)
    assert [reply.text for reply in replies] == ["0", "1", "2"]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_outage_is_retried_as_often_as_configured_and_counted_once(server: Server, status: int) -> None:
    server.behaviours = [respond(status, b'{"error": {"message": "busy\\nnow"}}')]
    (reply,) = ask(generator(server.url))
    assert len(server.requests) == 3
    assert reply.n_retries == 2
    assert reply.text == ""
    assert reply.error == f"{server.url}: status {status}, busy now"


def test_recovery_after_one_failure_counts_one_retry(server: Server) -> None:
    server.behaviours = [respond(500, b""), good("back")]
    (reply,) = ask(generator(server.url))
    assert (reply.text, reply.n_retries, reply.error) == ("back", 1, None)
    assert len(server.requests) == 2


def test_no_retries_means_one_request(server: Server) -> None:
    server.behaviours = [respond(500, b"")]
    (reply,) = ask(generator(server.url, retries=0))
    assert reply.error is not None
    assert len(server.requests) == 1


def test_retry_after_is_honoured(server: Server) -> None:
    server.behaviours = [respond(429, b"{}", retry_after="0.6"), good("now")]
    (reply,) = ask(generator(server.url))
    assert reply.text == "now"
    assert server.times[1] - server.times[0] >= 0.6
    assert reply.latency_s >= 0.6


def test_retry_after_as_a_date_is_honoured(server: Server) -> None:
    server.behaviours = [respond(503, b"{}", retry_after=email.utils.formatdate(time.time() + 2, usegmt=True)), good("now")]
    (reply,) = ask(generator(server.url))
    assert reply.text == "now"
    assert server.times[1] - server.times[0] >= 0.9


def test_wait_of_an_hour_is_not_waited_for(server: Server) -> None:
    server.behaviours = [respond(429, b"{}", retry_after="3600")]
    started = time.monotonic()
    (reply,) = ask(generator(server.url))
    assert reply.error is not None
    assert len(server.requests) == 1
    assert time.monotonic() - started < 5


def test_waits_grow_between_retries(server: Server) -> None:
    server.behaviours = [respond(500, b"")]
    ask(generator(server.url, backoff_s=0.1, retries=2))
    first, second = server.times[1] - server.times[0], server.times[2] - server.times[1]
    assert first >= 0.1
    assert second >= 0.2


def test_slow_server_times_out_each_time(server: Server) -> None:
    server.behaviours = [good("late", after_s=1.0)]
    (reply,) = ask(generator(server.url, timeout_s=0.2, retries=1))
    assert len(server.requests) == 2
    assert reply.error == f"{server.url} did not answer within 0.2 s"


def test_answer_that_drips_is_given_up_at_the_deadline(server: Server) -> None:
    server.behaviours = [dripping]
    started = time.monotonic()
    (reply,) = ask(generator(server.url, timeout_s=0.4, retries=0))
    assert reply.error == f"{server.url} did not answer within 0.4 s"
    assert time.monotonic() - started < 2


def test_server_that_is_down_is_an_outage() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        (reply,) = ask(generator(url))
    assert reply.n_retries == 2
    assert reply.error is not None
    assert reply.error.startswith(f"no connection to {url}: ")


RUBBISH = {
    "html": respond(200, b"<html><body>Welcome to nginx</body></html>", kind="text/html"),
    "invalid json": respond(200, b'{"choices": ['),
    "empty body": respond(200, b""),
    "empty choices": respond(200, b'{"choices": []}'),
    "no choices": respond(200, b'{"object": "error", "message": "no"}'),
    "a list": respond(200, b"[1, 2]"),
    "null": respond(200, b"null"),
    "message that is a number": respond(200, b'{"choices": [{"message": 3}]}'),
    "deep nesting": respond(200, b"[" * 100_000),
    "not text": respond(200, b"\xff\xfe\x00\x00"),
    "without end": without_end,
}


@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_from_the_start_is_one_clear_error(server: Server, kind: str) -> None:
    server.behaviours = [RUBBISH[kind]]
    with pytest.raises(ModelError) as caught:
        ask(generator(server.url))
    line = str(caught.value)
    assert "\n" not in line
    assert server.url in line
    assert len(line) < 500
    assert len(server.requests) == 1


def test_rubbish_after_a_good_answer_is_an_outage(server: Server) -> None:
    server.behaviours = [good("fine"), RUBBISH["html"]]
    with generator(server.url) as model:
        first = model.generate([PROMPT], [0], max_tokens=4)[0]
        second = model.generate([PROMPT], [1], max_tokens=4)[0]
    assert first.error is None
    assert second.error is not None
    assert "Welcome to nginx" in second.error
    assert len(server.requests) == 4


def test_answer_that_breaks_off_is_retried(server: Server) -> None:
    server.behaviours = [broken_off, good("whole")]
    (reply,) = ask(generator(server.url))
    assert (reply.text, reply.n_retries) == ("whole", 1)


def test_answers_that_always_break_off_are_an_error(server: Server) -> None:
    server.behaviours = [broken_off]
    with pytest.raises(ModelError, match="broke off"):
        ask(generator(server.url))
    assert len(server.requests) == 3


def test_null_content_is_an_answer_without_text(server: Server) -> None:
    server.behaviours = [respond(200, b'{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}')]
    (reply,) = ask(generator(server.url))
    assert (reply.text, reply.error) == ("", None)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_refusal_names_address_and_variable_and_never_the_key(
    server: Server, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVO_TEST_KEY", KEY)
    server.behaviours = [respond(status, json.dumps({"error": {"message": f"bad key {KEY}"}}).encode())]
    model = generator(server.url, api_key_env="EVO_TEST_KEY")
    with pytest.raises(ModelError) as caught:
        ask(model)
    line = str(caught.value)
    assert server.keys == [f"Bearer {KEY}"]
    assert server.url in line
    assert "$EVO_TEST_KEY" in line
    assert f"status {status}" in line
    assert "\n" not in line
    assert KEY not in line + model.name + repr(model)


def test_key_is_redacted_from_an_outage(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVO_TEST_KEY", KEY)
    server.behaviours = [respond(500, f"crashed with {KEY}".encode())]
    (reply,) = ask(generator(server.url, api_key_env="EVO_TEST_KEY"))
    assert reply.error is not None
    assert "crashed with [key]" in reply.error


def test_spent_quota_is_not_retried(server: Server) -> None:
    server.behaviours = [respond(429, b'{"error": {"message": "You exceeded it", "code": "insufficient_quota"}}')]
    with pytest.raises(ModelError, match="credit"):
        ask(generator(server.url))
    assert len(server.requests) == 1


def test_prompt_that_the_server_refuses_is_not_retried(server: Server) -> None:
    server.behaviours = [respond(400, b'{"error": {"message": "maximum context length is 4096"}}')]
    (reply,) = ask(generator(server.url))
    assert reply.error is not None
    assert "maximum context length" in reply.error
    assert len(server.requests) == 1


def test_other_refusal_is_an_error_until_the_server_has_answered(server: Server) -> None:
    server.behaviours = [respond(400, b'{"error": "pinned to another model"}'), good("yes"), respond(422, b"no")]
    with generator(server.url) as model:
        with pytest.raises(ModelError, match="pinned to another model"):
            model.generate([PROMPT], [0], max_tokens=4)
        assert model.generate([PROMPT], [0], max_tokens=4)[0].text == "yes"
        assert model.generate([PROMPT], [0], max_tokens=4)[0].error == f"{server.url}: status 422, no"
    assert len(server.requests) == 3


def test_server_that_wants_another_token_field_says_which(server: Server) -> None:
    body = b'{"error": {"message": "Unsupported parameter: use max_completion_tokens"}}'
    server.behaviours = [respond(400, body), good("ok")]
    with pytest.raises(ModelError, match=r"try: --set generator\.token_field=max_completion_tokens"):
        ask(generator(server.url))
    ask(generator(server.url, token_field="max_completion_tokens"), max_tokens=9)
    assert server.requests[1]["max_completion_tokens"] == 9
    assert "max_tokens" not in server.requests[1]


def test_server_that_takes_no_temperature_says_so_and_is_sent_none(server: Server) -> None:
    body = b'{"error": {"message": "Unsupported value: temperature does not support 0.8; nor does top_p take 0.95"}}'
    server.behaviours = [respond(400, body), good("ok"), respond(400, body)]
    with pytest.raises(ModelError, match=r"try: --set generator\.temperature=null --set generator\.top_p=null$"):
        ask(generator(server.url))
    with generator(server.url, temperature=None) as model:
        assert model.generate([PROMPT], [0], max_tokens=4)[0].text == "ok"
        assert "temperature" not in server.requests[1]
        assert server.requests[1]["top_p"] == 0.95
        # After a good answer it is about this one prompt.
        assert "top_p" in (model.generate([PROMPT], [0], max_tokens=4)[0].error or "")


def test_refusal_ends_a_batch_without_asking_for_the_rest(server: Server) -> None:
    server.behaviours = [respond(401, b"{}")]
    with pytest.raises(ModelError):
        ask(generator(server.url, concurrency=2), n=50)
    time.sleep(0.2)
    assert len(server.requests) < 10


def test_close_ends_a_call_that_waits(server: Server) -> None:
    server.behaviours = [respond(429, b"{}", retry_after="30")]
    model = generator(server.url)
    threading.Timer(0.3, model.close).start()
    started = time.monotonic()
    (reply,) = model.generate([PROMPT], [0], max_tokens=4)
    assert time.monotonic() - started < 5
    assert reply.error is not None
    assert len(server.requests) == 1
    model.close()
    with pytest.raises(ModelError, match="closed"):
        model.generate([PROMPT], [0], max_tokens=4)


def test_missing_key_is_refused_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVO_TEST_KEY", raising=False)
    with pytest.raises(ModelError, match=r"export EVO_TEST_KEY="):
        generator("http://127.0.0.1:1/v1", api_key_env="EVO_TEST_KEY")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "", "http://", "http://host:port/v1"])
def test_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ModelError, match="address"):
        generator(url)


def test_password_in_the_address_is_shown_nowhere() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        (reply,) = ask(generator(f"http://me:hunter2@127.0.0.1:{port}/v1?token=hunter2", retries=0))
    assert reply.error is not None
    assert f"http://127.0.0.1:{port}/v1" in reply.error
    assert "hunter2" not in reply.error


def test_check_tells_speed_or_why_not(server: Server) -> None:
    with generator(server.url) as model:
        assert model.check().startswith(f"openai:qwen at {server.url} answers in ")
    server.behaviours = [respond(500, b"")]
    with generator(server.url) as model, pytest.raises(ModelError, match="status 500"):
        model.check()


def test_estimate_grows_with_text_and_counts_bytes() -> None:
    model = generator("http://127.0.0.1:1/v1")
    assert model.count_tokens("") == 0
    assert model.count_tokens("abc") == 2
    assert model.count_tokens("ééé") == 3


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="local or server"):
        make_generator("oracle")
    assert isinstance(make_generator("server", base_url="http://h/v1", model="m"), ServerGenerator)
    with pytest.raises(ModelError):
        make_generator("local", model="/nonexistent/model")
