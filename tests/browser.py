"""A headless Chromium, spoken to through a pipe in its DevTools protocol with nothing but the standard library.

As a script it takes pictures: `python tests/browser.py PAGE.html PICTURE.png [WIDTH [HEIGHT]] [dark]`. `docs/report.png` is
`evo-l2 report` of a run of the quickstart's problem, 1080 pixels wide.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def installed() -> str | None:
    """The browser of this machine; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Browser:
    """One page of a fresh profile. A context manager; what the page logs, throws and asks for is kept."""

    def __init__(self, program: str, timeout_s: float = 60.0) -> None:
        self.timeout_s = timeout_s
        self.problems: list[str] = []
        """Errors of the page: thrown, logged, or refused by its policy."""
        self.requests: list[str] = []
        """Every address that it asked for, data within the page not counted."""
        self._profile = tempfile.TemporaryDirectory(prefix="evo-l2-browser-", ignore_cleanup_errors=True)
        self._counter = 0
        self._width = 800
        self._buffer = b""
        from_here, self._out = os.pipe()
        self._in, from_there = os.pipe()
        options = [
            "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
            f"--user-data-dir={self._profile.name}",
        ]  # fmt: skip
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        # The protocol is spoken on the descriptors 3 and 4; the shell puts the ends of our pipes there.
        script = f'exec "$@" 3<&{from_here} 4>&{from_there}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", program, *options, "about:blank"],
            pass_fds=(from_here, from_there),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_here)
        os.close(from_there)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = None
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command and its result."""
        self._counter += 1
        message: dict[str, object] = {"id": self._counter, "method": method, "params": parameters}
        if getattr(self, "_session", None) is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout_s
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._counter:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 16) if ready else b""
            if not chunk:
                raise RuntimeError("the browser does not answer")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description", details["text"])))
        elif message.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in parameters["args"]))
        elif message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(parameters["entry"]["text"]))
        elif message.get("method") == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith("data:"):
            self.requests.append(str(parameters["request"]["url"]))

    def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """The size of the window in CSS pixels, and its scheme of colours."""
        self._width = width
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path, ready: str = "document.documentElement.dataset.ready === 'yes'") -> None:
        """Opens a file and waits until it is ready."""
        self.problems.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + self.timeout_s
        while not self.ask(f"document.readyState === 'complete' && ({ready})"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{path} is never ready: {self.problems}")
            time.sleep(0.05)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def scripts(self, *, on: bool) -> None:
        """Whether the scripts of pages run from now on; `ask` goes on to work."""
        self.call("Emulation.setScriptExecutionDisabled", value=not on)

    def picture(self, height: int | None = None) -> bytes:
        """The page as PNG: from its top, the whole of it or so many CSS pixels."""
        sizes = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": self._width, "height": height or sizes["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(found["data"])


def main() -> None:
    """See the module."""
    page, picture, *more = sys.argv[1:]
    numbers = [int(word) for word in more if word.isdigit()]
    program = installed()
    if program is None:
        sys.exit("no browser: apt-get install chromium")
    with Browser(program) as browser:
        browser.size(numbers[0] if numbers else 1280, dark="dark" in more)
        browser.open(Path(page))
        browser.ask("document.querySelectorAll('.setting').forEach(one => { one.open = false; })")
        time.sleep(0.5)
        Path(picture).write_bytes(browser.picture(numbers[1] if len(numbers) > 1 else None))
        for problem in browser.problems:
            print(problem, file=sys.stderr)
        print(browser.requests)


if __name__ == "__main__":
    main()
