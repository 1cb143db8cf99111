"""The congestion window of a worker: additive increase, multiplicative decrease."""

from __future__ import annotations

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
#: The share of W_max that may be unanswered right after a loss. The rest is room to send new chunks while the
#: lost ones are retransmitted, each try taking a round trip.
AFTER_LOSS = 0.25


class CongestionWindow:
    """The number of chunks that may be unanswered: cwnd <= W_max.

    An ECN mark cuts it to `KEPT_ON_MARK`, or the first time to `KEPT`. Losing more than half of a window at
    the first try cuts it to `KEPT`. There is at most one cut per window. It grows by one per result below
    the last cut, and by one per window above it. A single loss does not cut it: a result needs all workers'
    packets, so each worker would be slowed by every worker's noise. It limits the window to `AFTER_LOSS`,
    from which it soon grows again.
    """

    def __init__(self, most: int, start: int) -> None:
        self._most = most
        self._after_loss = max(most * AFTER_LOSS, float(min(LEAST, most)))
        self._size = float(min(most, start))
        self._threshold = float(most)
        self._cut_until = 0
        self._counted_until = 0
        self._tolerated = 0.0
        self.cuts = 0

    def limit(self, most: int) -> None:
        """Limit the window to `most` chunks from now on."""
        self._most = min(self._most, most)
        self._size = min(self._size, float(most))

    @property
    def size(self) -> int:
        """Number of chunks that may be unanswered, at least 1."""
        return max(1, int(self._size))

    def on_results(self, results: int, marked: bool, base: int, end: int) -> None:
        """Adjust to new results, `marked` if any had an ECN mark. Chunks [base, end) are outstanding."""
        if marked:
            self._cut(KEPT_ON_MARK if self.cuts else KEPT, base, end)
        else:
            slow = self._size >= self._threshold
            self._size = min(self._size + (results / self._size if slow else results), float(self._most))

    def on_losses(self, lost: int, base: int, end: int) -> None:
        """Adjust to `lost` chunks lost at their first try. Chunks [base, end) are outstanding."""
        if end >= self._counted_until:
            span = max(self.size, SPAN)
            self._counted_until, self._tolerated = end + span, TOLERATED_LOSS * span
        self._tolerated -= lost
        if self._tolerated < 0:
            self._cut(KEPT, base, end)
        if lost:
            self._size = min(self._size, self._after_loss)

    def _cut(self, kept: float, base: int, end: int) -> None:
        """Multiply by `kept`, unless chunks that were outstanding at the last cut still are."""
        if base < self._cut_until:
            return
        self.cuts += 1
        self._size = max(self._size * kept, float(min(LEAST, self._most)))
        self._threshold = self._size
        self._cut_until, self._counted_until = end, end
