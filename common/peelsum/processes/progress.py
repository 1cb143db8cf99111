"""Progress messages of long operations: on stderr for people, as JSON lines for a parent process."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from peelsum.messages import Tell as Tell
from peelsum.messages import throttled

#: Seconds from one message of `taking_time` to the next, and before the first.
BEAT_S = 1.0


def shown_on_stderr() -> Tell:
    """Return a function that prints progress messages on stderr, at growing intervals."""
    return throttled(lambda text: print(text, file=sys.stderr, flush=True))


@contextmanager
def taking_time(what: str, tell: Tell) -> Iterator[None]:
    """Tell, at intervals while the body runs, that `what` is being done and for how long."""
    done, started = threading.Event(), time.monotonic()

    def beat() -> None:
        while not done.wait(BEAT_S):
            tell(f"{what}: {time.monotonic() - started:.0f} s")

    beating = threading.Thread(target=beat, name="progress", daemon=True)
    beating.start()
    try:
        yield
    finally:
        done.set()
        beating.join()
