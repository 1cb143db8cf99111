"""Report the functions that Numba is compiling, while it compiles."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from numba.core import event

from peelsum import compiled_once

#: Seconds between messages during compilation.
BEAT_S = 2.0
_log = logging.getLogger("peelsum")
#: Name of a module's functions in messages, by the prefix of the module's name.
_PARTS = {
    "peelsum.transport": "packet loops",
    "peelsum.softswitch": "switch's loops",
    "peelsum.codec": "codec",
    "peelsum_": "switch program",
}


class _Work(event.Listener):
    """A listener that counts compiled functions and reports every BEAT_S from a thread."""

    def __init__(self) -> None:
        self.tell: Callable[[str], None] = _log.warning
        self._under_way: list[str] = []
        self._part = ""
        self._done = 0
        self._since = 0.0
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def on_start(self, found: Any) -> None:
        module = str(found.data["dispatcher"].py_func.__module__)
        if not self._under_way:
            part = next((name for start, name in _PARTS.items() if module.startswith(start)), "loops")
            if part != self._part:
                self._part, self._done, self._since = part, 0, time.monotonic()
        self._under_way.append(module)
        self._busy.set()
        if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
            self._thread = threading.Thread(target=self._beat, name="compiling", daemon=True)
            self._thread.start()

    def on_end(self, found: Any) -> None:
        self._under_way.pop()
        self._done += 1  # those that another one calls, too: a switch program is one function
        if not self._under_way:
            self._busy.clear()

    def _beat(self) -> None:
        while True:
            self._busy.wait()
            time.sleep(BEAT_S)
            if self._busy.is_set():
                waited = time.monotonic() - self._since
                done = f", functions done {self._done}" if self._done else ""
                self.tell(f"compiling the {self._part}, once for this machine: {waited:.0f} s{done}")


_work = _Work()
event.register("numba:compile", _work)  # type: ignore[no-untyped-call]


def announce(tell: Callable[[str], None]) -> None:
    """Call `tell`, from a thread, with messages on compilation, instead of the logger `peelsum`."""
    _work.tell = tell
    compiled_once.announce(tell)
