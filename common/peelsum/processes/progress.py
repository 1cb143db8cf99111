"""Progress messages of long operations, on stderr or to the parent process."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from peelsum.messages import ProgressCallback as ProgressCallback
from peelsum.messages import throttled
from peelsum.processes.children import Child, print_message

#: Seconds before the first message of `reporting_progress`, and between two.
INTERVAL_S = 1.0


def shown_on_stderr() -> ProgressCallback:
    """Return a function that prints progress messages on stderr, less and less often."""
    return throttled(lambda text: print(text, file=sys.stderr, flush=True))


@contextmanager
def reporting_progress(what: str, tell: ProgressCallback) -> Iterator[None]:
    """Report regularly, while the body runs, what it does and for how many seconds."""
    done, started = threading.Event(), time.monotonic()

    def report() -> None:
        while not done.wait(INTERVAL_S):
            tell(f"{what}: {time.monotonic() - started:.0f} s")

    reporter = threading.Thread(target=report, name="progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()


def progress_reporter(*, child: bool = False) -> ProgressCallback:
    """Return the function that reports a command's progress, and use it for the command's children, too.

    child: whether this command is a child process, which reports to its parent and not on stderr.
    """

    def send_to_parent(text: str) -> None:
        with suppress(OSError):  # the parent has ended, and so will this process
            print_message(working=text)

    tell: ProgressCallback = send_to_parent if child else shown_on_stderr()
    Child.on_progress = staticmethod(tell)
    return tell


def compile_progress_reporter(*, child: bool = False) -> ProgressCallback:
    """Return the same function as `progress_reporter`, and use it for messages about compilation, too."""
    from peelsum.compiling import announce

    tell = progress_reporter(child=child)
    announce(tell)
    return tell
