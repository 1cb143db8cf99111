"""How many chunks a worker keeps outstanding: additive increase, multiplicative decrease. Knows no packet."""

from __future__ import annotations

#: Below this, overtaking could hardly show a loss any more, and every loss would wait for a timer.
LEAST = 16
#: What a mark leaves of a window that has been cut before: queues mark long before they overflow, and would
#: run empty if every mark took half the window (RFC 8511).
KEPT_ON_MARK = 0.8
#: What is left of a window that was never cut, and so may be many times too large, or that lost too much.
KEPT = 0.5
#: A window that lost a larger share of its chunks was sent too fast; less is taken for noise.
TOLERATED_LOSS = 0.5
#: Losses are counted over at least so many chunks: of few, half may be lost by chance.
SPAN = 128
#: How much of W_max may be unanswered right after a loss: the rest is room to go on while the lost chunks are
#: asked for again, which takes a round trip for each time.
AFTER_LOSS = 0.25


class CongestionWindow:
    """How many chunks may be unanswered: cwnd <= W_max.

    It is cut when a result carries a congestion mark, to `KEPT_ON_MARK` or the first time to `KEPT`, and when
    more than half of a window was lost at the first try, to `KEPT`; at most once per window. It grows by one
    per result below the last cut, and by one per window above it. A single loss does not cut it: a result
    takes all workers' packets, so that each would pay for the others' noise. It only makes room, see
    `AFTER_LOSS`, and is soon made up for.
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
        """Never grow beyond `most` chunks from now on."""
        self._most = min(self._most, most)
        self._size = min(self._size, float(most))

    @property
    def size(self) -> int:
        """Chunks that may be unanswered, at least 1."""
        return max(1, int(self._size))

    def on_results(self, results: int, marked: bool, base: int, end: int) -> None:
        """`results` new answers came, some of them `marked`; chunks [base, end) are outstanding."""
        if marked:
            self._cut(KEPT_ON_MARK if self.cuts else KEPT, base, end)
        else:
            slow = self._size >= self._threshold
            self._size = min(self._size + (results / self._size if slow else results), float(self._most))

    def on_losses(self, lost: int, base: int, end: int) -> None:
        """`lost` chunks that were sent once were found missing; [base, end) are outstanding."""
        if end >= self._counted_until:
            span = max(self.size, SPAN)
            self._counted_until, self._tolerated = end + span, TOLERATED_LOSS * span
        self._tolerated -= lost
        if self._tolerated < 0:
            self._cut(KEPT, base, end)
        if lost:
            self._size = min(self._size, self._after_loss)

    def _cut(self, kept: float, base: int, end: int) -> None:
        """Keep a share, unless chunks that were outstanding at the last cut still are."""
        if base < self._cut_until:
            return
        self.cuts += 1
        self._size = max(self._size * kept, float(min(LEAST, self._most)))
        self._threshold = self._size
        self._cut_until, self._counted_until = end, end
