"""Progress messages are passed on at growing intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

Tell = Callable[[str], None]
#: Seconds until the first of a series of messages, equal up to their last colon, is shown, and then between
#: two, doubled each time.
SHOWN_AFTER_S, SHOWN_EVERY_S = 1.0, 10.0


def throttled(show: Tell) -> Tell:
    """Return a function that passes progress messages on to `show`, at growing intervals."""
    due: dict[str, tuple[float, float]] = {}

    def show_if_due(text: str) -> None:
        series, now = text.rpartition(":")[0], time.monotonic()
        due_at, interval = due.setdefault(series, (now + SHOWN_AFTER_S, SHOWN_EVERY_S))
        if now >= due_at:
            due[series] = now + interval, 2 * interval
            show(text)

    return show_if_due
