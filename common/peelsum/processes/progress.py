"""Progress messages of long operations."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from peelsum.messages import ProgressCallback as ProgressCallback
from peelsum.messages import throttled

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
