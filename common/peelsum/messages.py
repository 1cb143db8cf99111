"""Limit how often progress messages are shown."""

from __future__ import annotations

import time
from collections.abc import Callable

ProgressCallback = Callable[[str], None]
#: A series is all messages with the same text before their last colon. Seconds until the first message of a
#: series is shown, and the fewest seconds between two: INTERVAL_S, or this share of the series' duration so
#: far if that is longer.
FIRST_AFTER_S, INTERVAL_S, INTERVAL_SHARE = 1.0, 2.0, 0.25


def throttled(show: ProgressCallback) -> ProgressCallback:
    """Return a function that forwards progress messages to `show`, less and less often."""
    series_times: dict[str, tuple[float, float]] = {}

    def show_if_due(text: str) -> None:
        series, now = text.rpartition(":")[0], time.monotonic()
        started, due = series_times.setdefault(series, (now, now + FIRST_AFTER_S))
        if now >= due:
            series_times[series] = started, now + max(INTERVAL_S, INTERVAL_SHARE * (now - started))
            show(text)

    return show_if_due
