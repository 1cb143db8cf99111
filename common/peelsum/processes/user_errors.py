"""How a process ends: signals as one exception, errors of processes, and user errors of commands in one line.

A user error is one line on stderr and exit status 2, without a traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OUTPUT_LOST = 1
USER_ERROR = 2
INTERRUPTED = 130
#: Errors of a write to an open file: the disk is full, or the reader of the pipe has closed it.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)

#: The encoding's error handlers that raise UnicodeEncodeError for a character that it lacks.
_RAISING_HANDLERS = ("strict", "surrogateescape", "surrogatepass")


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end a command that runs until Ctrl-C: SIGNALS, unless nohup ignores SIGHUP."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGHUP or not is_ignored]


class ProcessError(Exception):
    """A process did not start, did not answer, or ended with an error."""


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


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT in the body; children inherit that, because Ctrl-C reaches every process of the terminal.

    This process handles a SIGINT that arrives in the body after it.
    """
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its start would unblock signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def exit_on_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Exit with one line on stderr and status 2 if the body raises one of these errors, or a ProcessError.

    If a signal interrupts the body, exit with the status that shells expect.
    """
    error_types: tuple[type[Exception], ...] = (*kinds, ProcessError)
    try:
        yield
    except error_types as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}; choose another place"
        print(f"peelsum: {' '.join(text.split())}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None
    except KeyboardInterrupt as interrupt:
        status = interrupt.status if isinstance(interrupt, Interrupted) else INTERRUPTED
        raise SystemExit(status) from None


@contextmanager
def check_stdout() -> Iterator[None]:
    """Exit with status 1 and one line on stderr if the output of the body cannot be written to stdout.

    If the reader has closed the pipe, as `head` does, exit with status 1 but without the line.
    A character that the encoding of stdout lacks is written as `?`, unless PYTHONIOENCODING
    names an error handler that writes something else.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in _RAISING_HANDLERS:
        sys.stdout.reconfigure(errors="replace")
    failure = None
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        failure = error
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            # Otherwise the interpreter would try again at its exit, and print a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            failure = failure or error
        if failure is not None:
            if failure.errno != errno.EPIPE:
                print(f"peelsum: stdout: {failure.strerror}; write it elsewhere", file=sys.stderr)
            raise SystemExit(OUTPUT_LOST) from None
