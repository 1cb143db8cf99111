"""Limit how often progress messages are shown."""

from __future__ import annotations

import time
from collections.abc import Callable

ProgressCallback = Callable[[str], None]
#: A series is all messages with the same text before their last colon. Seconds until the first message of a
#: series is shown, and then between two messages; the interval doubles each time.
FIRST_AFTER_S, INTERVAL_S = 1.0, 10.0


def throttled(show: ProgressCallback) -> ProgressCallback:
    """Return a function that forwards progress messages to `show`, less and less often."""
    due: dict[str, tuple[float, float]] = {}

    def show_if_due(text: str) -> None:
        series, now = text.rpartition(":")[0], time.monotonic()
        due_at, interval = due.setdefault(series, (now + FIRST_AFTER_S, INTERVAL_S))
        if now >= due_at:
            due[series] = now + interval, 2 * interval
            show(text)

    return show_if_due
