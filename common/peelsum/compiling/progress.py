"""Report every few seconds what Numba compiles, or that this process waits for another to compile it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from peelsum.messages import ProgressCallback, throttled

#: Seconds between messages; loading cached code takes less, and is not reported.
INTERVAL_S = 2.0
_log = logging.getLogger("peelsum")
#: What messages call the functions of a module, by the prefix of the module's name.
_PART_NAMES = {
    "peelsum.transport": "packet loops",
    "peelsum.softswitch.runtime": "switch program",
    "peelsum.softswitch": "switch's loops",
    "peelsum.codec": "codec",
    "peelsum.allreduce": "loops over tensors",
}


class _CompilationProgress(event.Listener):
    """Counts the functions that Numba compiles, and reports the count regularly, from a thread."""

    def __init__(self) -> None:
        self.tell: ProgressCallback = throttled(_log.warning)
        self._depth = 0
        self._activity = ""
        self._done = 0
        self._since = 0.0
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def on_start(self, event: Any) -> None:
        self.begin("compiling the {}, once for this machine", event.data["dispatcher"])

    def on_end(self, event: Any) -> None:
        self._done += 1  # nested compilations count, too, because a switch program is a single function
        self.end()

    def begin(self, message: str, loop: Any) -> None:
        """Start to report `message`, in which {} becomes the name of the loop's component.

        A nested call, for a function that another one calls, does not change the message.
        """
        if not self._depth:
            module = str(loop.py_func.__module__)
            part = next((name for start, name in _PART_NAMES.items() if module.startswith(start)), "loops")
            if (activity := message.format(part)) != self._activity:
                self._activity, self._done, self._since = activity, 0, time.monotonic()
        self._depth += 1
        self._busy.set()
        if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
            self._thread = threading.Thread(target=self._report_regularly, name="compiling", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """End the last `begin`. After the outermost one, nothing is reported."""
        self._depth -= 1
        if not self._depth:
            self._busy.clear()

    def _report_regularly(self) -> None:
        """Report the current activity every INTERVAL_S; the loop of the thread."""
        while True:
            self._busy.wait()
            time.sleep(INTERVAL_S)
            if self._busy.is_set():
                done = f", functions done {self._done}" if self._done else ""
                self.tell(f"{self._activity}: {time.monotonic() - self._since:.0f} s{done}")


_progress = _CompilationProgress()
event.register("numba:compile", _progress)  # type: ignore[no-untyped-call]


def announce(tell: ProgressCallback) -> None:
    """Pass messages about compilation to `tell`, which a thread calls, and not to the logger `peelsum`."""
    _progress.tell = tell


@contextmanager
def report_waiting(loop: Any) -> Iterator[None]:
    """Report during the body that another process compiles a loop that this process needs."""
    _progress.begin("another process compiles the {}, once for this machine", loop)
    try:
        yield
    finally:
        _progress.end()
