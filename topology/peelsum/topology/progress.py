"""What takes its time, told while it does: on stderr for people, as a JSON line for a parent process."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[str], None]
#: Seconds from one message of `taking_time` to the next, and before the first.
BEAT_S = 2.0
#: Messages that are alike up to their last colon are shown so long after the first, then in such intervals.
SHOWN_AFTER_S, SHOWN_EVERY_S = 3.0, 10.0


def shown_on_stderr() -> Tell:
    """What prints on stderr, now and then, what takes some time."""
    due: dict[str, float] = {}

    def show(text: str) -> None:
        about, now = text.rpartition(":")[0], time.monotonic()
        if now >= due.setdefault(about, now + SHOWN_AFTER_S):
            due[about] = now + SHOWN_EVERY_S
            print(text, file=sys.stderr, flush=True)

    return show


@contextmanager
def taking_time(what: str, tell: Tell) -> Iterator[None]:
    """Tell that `what` is being done, and for how long, as long as the body takes; nothing if it is quick."""
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
