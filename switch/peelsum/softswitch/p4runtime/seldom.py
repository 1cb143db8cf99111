"""A limit on log lines: a client that provokes errors cannot fill the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

#: Lines in so many seconds.
MOST_LINES, WITHIN_S = 20, 60.0


class Seldom(logging.Filter):
    """Passes at most `MOST_LINES` records in `WITHIN_S` seconds; the next one says how many were lost."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._since, self._passed, self._lost = clock(), 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        now = self._clock()
        if now - self._since >= WITHIN_S:
            if self._lost:
                record.msg = f"{record.getMessage()} (before it, {self._lost} lines were not logged)"
                record.args = None
            self._since, self._passed, self._lost = now, 0, 0
        self._passed += 1
        if self._passed > MOST_LINES:
            self._lost += 1
        return self._passed <= MOST_LINES
