"""Chromium without a window, driven by its DevTools protocol over a pipe; it resolves no name."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patience import PATIENCE_S

_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # pages are ours, and root in a container has no other choice
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@dataclass
class Page:
    """What a page did while it was loaded."""

    requests: list[str] = field(default_factory=list)
    """Addresses that it asked for."""
    errors: list[str] = field(default_factory=list)
    """What the console calls errors, and exceptions that nothing caught."""


class Chromium:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._unread = commands, answers, b""
        self._number, self._session, self._page, self._loaded = 0, "", Page(), False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; return its result. Events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._happened(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size, in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def open(self, url: str) -> Page:
        """Load a page to its end; return what it did."""
        self._page, self._loaded = Page(), False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._happened(self._next())
        return self._page

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, awaited, in the page."""
        options = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._answers], [], [], PATIENCE_S)[0], "Chromium says nothing"
            read = os.read(self._answers, 2**16)
            assert read, "Chromium has ended"
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def _happened(self, event: dict[str, Any]) -> None:
        said = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self._page.requests.append(said["request"]["url"])
            case "Runtime.exceptionThrown":
                self._page.errors.append(
                    said["exceptionDetails"].get("exception", {}).get("description", "?")
                )
            case "Runtime.consoleAPICalled" if said["type"] == "error":
                self._page.errors.append(" ".join(str(one.get("value")) for one in said["args"]))
            case "Log.entryAdded" if said["entry"]["level"] == "error":
                self._page.errors.append(said["entry"]["text"])


@contextmanager
def chromium(path: str, profile: Path) -> Iterator[Chromium]:
    """Start the Chromium at `path` with a profile of its own; end it afterwards."""
    # Chromium reads commands from 3 and writes answers to 4, which must not be among the pipes' own ends.
    ends = [*os.pipe(), *os.pipe()]
    read_commands, commands, answers, write_answers = [
        fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends
    ]
    for end in ends:
        os.close(end)

    def place() -> None:
        os.dup2(read_commands, 3)
        os.dup2(write_answers, 4)

    process = subprocess.Popen(
        [path, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(3, 4),
        preexec_fn=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Chromium(commands, answers)
    finally:
        process.terminate()
        process.wait()
        os.close(commands)
        os.close(answers)
