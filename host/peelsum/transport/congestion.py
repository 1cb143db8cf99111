"""The congestion window of a worker: the number of chunks that may be unanswered, cwnd <= W_max.

It grows by one per result below the threshold, and by one per window above it. An ECN mark cuts it to
`KEPT_ON_MARK`, or the first time to `KEPT`, at most once per window.

Losses do not cut it: a result needs all workers' packets, so each worker would be slowed by every worker's
noise. But what waits in a queue delays retransmissions, and the oldest lost chunk holds up all chunks that
are W_max later. So once packets are lost, and until W_max chunks pass without a loss, the window is `QUEUE`
times what the path holds, or what it was at the beginning if that is more.

The path holds what is answered in the shortest round trip, and a batch: a process that waits for a processor
sends and receives many packets at once, and they are in no queue that a smaller window would shorten (BBR
adds what is acknowledged at once, too, as `extra_acked`).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled

#: The least window. In smaller ones, most losses would be found by a timer, not by later results.
LEAST = 16
#: The factor for an ECN mark if the window has been cut before. Queues mark long before they overflow, and
#: would run empty if every mark halved the window (RFC 8511).
KEPT_ON_MARK = 0.8
#: The factor for the first cut, when the window may be many times too large.
KEPT = 0.5
#: Above this multiple of what the path holds, half of the window waits in queues.
QUEUE = 2.0
#: The share of the largest batch that is left after a turn with a small one.
BATCH_KEPT = 1 - 1 / 64


class Number(IntEnum):
    """Indices of a window's numbers."""

    SIZE = 0
    MOST = 1
    START = 2  # the size up to which queues do not limit it
    THRESHOLD = 3  # above it, the window grows by one per window
    CUT_UNTIL = 4  # no cut before this chunk is the oldest
    CUTS = 5
    LOSSY_UNTIL = 6  # queues limit the window until this chunk is the oldest
    BATCH = 7  # the most results that arrived at one turn, of late


#: A window: float64[Number], which the functions here change.
Window = NDArray[np.float64]


def new_window(most: int, start: int) -> Window:
    """Return a window of `start` chunks, at most `most`."""
    window = np.zeros(len(Number))
    window[[Number.SIZE, Number.START]] = min(most, start)
    window[[Number.MOST, Number.THRESHOLD]] = most
    return window


def limit(window: Window, most: int) -> None:
    """Limit the window to `most` chunks from now on."""
    limited = [Number.MOST, Number.SIZE, Number.START]
    window[limited] = np.minimum(window[limited], most)


def cuts(window: Window) -> int:
    """Return how often the window was cut."""
    return int(window[Number.CUTS])


@compiled
def size(window: Window) -> int:
    """Return the number of chunks that may be unanswered, at least 1."""
    return max(1, int(window[Number.SIZE]))


@compiled
def on_turn(window: Window, results: int) -> None:
    """Note how many results arrived since the worker last sent."""
    window[Number.BATCH] = max(float(results), window[Number.BATCH] * BATCH_KEPT)


@compiled
def fullness(window: Window, last: float, least: float) -> float:
    """Return the window in multiples of what the path holds; 0 if that is unknown.

    last, least: the last round-trip time and the shortest one, in seconds; 0 and infinity before the first.
    """
    if not 0 < least < np.inf or not last:
        return 0.0
    size = window[Number.SIZE]
    return float(size / (size * least / last + window[Number.BATCH]))


@compiled
def on_results(window: Window, results: int, marked: bool, base: int, end: int, full: float = 0.0) -> None:
    """Adjust to new results, `marked` if any had an ECN mark. Chunks [base, end) are outstanding.

    full: the window's `fullness`.
    """
    if marked:
        _cut(window, KEPT_ON_MARK if window[Number.CUTS] else KEPT, base, end)
        return
    size = window[Number.SIZE]
    if base < window[Number.LOSSY_UNTIL] and full > QUEUE:
        enough = max(size, window[Number.START])
        window[Number.THRESHOLD] = min(window[Number.THRESHOLD], enough)
        if size == enough:
            return
    grown = size + (float(results) if size < window[Number.THRESHOLD] else results / size)
    window[Number.SIZE] = min(grown, window[Number.MOST])


@compiled
def on_losses(window: Window, end: int, full: float) -> None:
    """Adjust to losses that later results show. Chunks before `end` were sent; full: as for `on_results`."""
    if full > 0:
        window[Number.LOSSY_UNTIL] = end + window[Number.MOST]
        enough = max(window[Number.START], QUEUE * window[Number.SIZE] / full)
        window[Number.SIZE] = min(window[Number.SIZE], enough)


@compiled
def _cut(window: Window, kept: float, base: int, end: int) -> None:
    """Multiply by `kept`, unless chunks that were outstanding at the last cut still are."""
    if base < window[Number.CUT_UNTIL]:
        return
    window[Number.CUTS] += 1
    window[Number.SIZE] = max(window[Number.SIZE] * kept, min(float(LEAST), window[Number.MOST]))
    window[Number.THRESHOLD] = window[Number.SIZE]
    window[Number.CUT_UNTIL] = end
