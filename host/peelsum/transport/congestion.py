"""The congestion window of a worker: the number of chunks that may be unanswered, cwnd <= W_max.

It grows by one per result below the threshold, and by one per window above it. An ECN mark cuts it to
`KEPT_ON_MARK`, or the first time to `KEPT`. Losing more than half of a window at the first try cuts it to
`KEPT`, if queues may have been full. There is at most one cut per window.

A single loss does not cut it: a result needs all workers' packets, so each worker would be slowed by every
worker's noise. But what waits in a queue delays retransmissions, and the oldest lost chunk holds up all
chunks that are W_max later. So once packets are lost, and until W_max chunks pass without a loss, the window
is `QUEUE` times what the path holds, or `UNLIMITED` if that is more.

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
#: The factor for the first cut, when the window may be many times too large, and for heavy loss.
KEPT = 0.5
#: Losing a larger share of a window means sending too fast; a smaller share is taken for noise.
TOLERATED_LOSS = 0.5
#: Losses are counted over at least this many chunks, because half of a few may be lost by chance.
SPAN = 128
#: Windows in multiples of what the path holds. Above the first, half of the window waits in a queue. Only
#: above the second, lost packets may have found a full queue.
QUEUE, FULL_QUEUE = 2.0, 4.0
#: The share of W_max up to which queues do not limit the window. It leaves room for four tries.
UNLIMITED = 0.25
#: The share of the largest batch that is left after a turn with a small one.
BATCH_KEPT = 1 - 1 / 64


class Number(IntEnum):
    """Indices of a window's numbers."""

    SIZE = 0
    MOST = 1
    START = 2  # the size up to which queues do not limit it
    THRESHOLD = 3  # above it, the window grows by one per window
    CUT_UNTIL = 4  # no cut before this chunk is the oldest
    COUNTED_UNTIL = 5  # losses are counted until this chunk is sent
    TOLERATED = 6  # losses that are still taken for noise
    CUTS = 7
    LOSSY_UNTIL = 8  # queues limit the window until this chunk is the oldest
    BATCH = 9  # the most results that arrived at one turn, of late


#: A window: float64[Number], which the functions here change.
Window = NDArray[np.float64]


def new_window(most: int, start: int) -> Window:
    """Return a window of `start` chunks, at most `most`."""
    window = np.zeros(len(Number))
    window[Number.SIZE] = min(most, start)
    window[Number.START] = max(window[Number.SIZE], most * UNLIMITED)
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
def on_losses(window: Window, lost: int, base: int, end: int, full: float = 0.0, late: bool = False) -> None:
    """Adjust to `lost` chunks lost at their first try; otherwise as `on_results`.

    late: a timer took them for lost, but they may be late. So they do not end the window's growth.
    """
    if end >= window[Number.COUNTED_UNTIL]:
        span = max(size(window), SPAN)
        window[Number.COUNTED_UNTIL], window[Number.TOLERATED] = end + span, TOLERATED_LOSS * span
    window[Number.TOLERATED] -= lost
    if window[Number.TOLERATED] < 0 and not 0 < full <= FULL_QUEUE:
        _cut(window, KEPT, base, end)
    if lost and full > 0 and not late:
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
    window[Number.CUT_UNTIL] = window[Number.COUNTED_UNTIL] = end
