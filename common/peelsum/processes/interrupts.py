"""Turn Ctrl-C, SIGTERM and SIGHUP into one exception, and raise it again where it was lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """One of SIGNALS was received. `status` is the exit status with which shells report that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class InterruptContext:
    """A context manager in which the first of SIGNALS raises Interrupted, and later ones are ignored.

    So a second signal cannot interrupt the clean-up. An exception of a signal handler is lost if it is raised
    in a callback from C code. So long-running code calls `check`, which raises it again. Signals that were
    ignored before, e.g. by nohup, stay ignored.
    """

    def __init__(self) -> None:
        self._number = 0
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous_handlers[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise Interrupted if a signal was received."""
        if self._number:
            raise Interrupted(self._number)

    def _interrupt(self, number: int, frame: object) -> None:
        if not self._number:
            self._number = number
            raise Interrupted(number)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer SIGNALS during the body. The first that was received is raised again at the end."""
    received: list[int] = []
    previous_handlers = {}
    if threading.current_thread() is threading.main_thread():  # no other thread runs handlers
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous_handlers[number] = signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
