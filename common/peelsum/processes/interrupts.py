"""One exception for Ctrl-C, SIGTERM and a closed terminal, and a check for exceptions that were lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """One of SIGNALS was received. `status` is the exit status by which shells report it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Interruption:
    """A context in which the first of SIGNALS raises Interrupted; later ones cannot disturb the clean-up.

    An exception of a signal handler is lost where C calls back into Python. So long-running code calls
    `check`, which raises it again. Signals that were ignored before, as by nohup, stay ignored.
    """

    def __init__(self) -> None:
        self._number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
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
def uninterrupted() -> Iterator[None]:
    """Hold back SIGNALS: at the end of the context, the handler of the first that was received runs."""
    received: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other thread runs handlers
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
