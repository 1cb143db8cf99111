"""Report what Numba compiles, or what another process compiles for this one, every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from peelsum.messages import Tell, throttled

#: Seconds between messages. Loading compiled code takes less.
BEAT_S = 2.0
_log = logging.getLogger("peelsum")
#: Name of a module's functions in messages, by the prefix of the module's name.
_PARTS = {
    "peelsum.transport": "packet loops",
    "peelsum.softswitch.runtime": "switch program",
    "peelsum.softswitch": "switch's loops",
    "peelsum.codec": "codec",
    "peelsum.allreduce": "loops over tensors",
}


class _Work(event.Listener):
    """Counts the functions that Numba compiles, and reports every BEAT_S from a thread."""

    def __init__(self) -> None:
        self.tell: Tell = throttled(_log.warning)
        self._depth = 0
        self._activity = ""
        self._done = 0
        self._since = 0.0
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def on_start(self, event: Any) -> None:
        self.begin("compiling the {}, once for this machine", event.data["dispatcher"])

    def on_end(self, event: Any) -> None:
        self._done += 1  # called functions, too, as a switch program is a single function
        self.end()

    def begin(self, message: str, loop: Any) -> None:
        """Report `message`, with the name of the loop's part for {}, until `end`.

        Within another call, only count.
        """
        if not self._depth:
            module = str(loop.py_func.__module__)
            part = next((name for start, name in _PARTS.items() if module.startswith(start)), "loops")
            if (activity := message.format(part)) != self._activity:
                self._activity, self._done, self._since = activity, 0, time.monotonic()
        self._depth += 1
        self._busy.set()
        if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
            self._thread = threading.Thread(target=self._beat, name="compiling", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._busy.clear()

    def _beat(self) -> None:
        while True:
            self._busy.wait()
            time.sleep(BEAT_S)
            if self._busy.is_set():
                done = f", functions done {self._done}" if self._done else ""
                self.tell(f"{self._activity}: {time.monotonic() - self._since:.0f} s{done}")


_work = _Work()
event.register("numba:compile", _work)  # type: ignore[no-untyped-call]


def announce(tell: Tell) -> None:
    """Call `tell`, from a thread, with messages on compilation, instead of the logger `peelsum`."""
    _work.tell = tell


@contextmanager
def waiting_for(loop: Any) -> Iterator[None]:
    """Report, while the body runs, that another process compiles a loop."""
    _work.begin("another process compiles the {}, once for this machine", loop)
    try:
        yield
    finally:
        _work.end()
