"""How many chunks a worker keeps outstanding: additive increase, multiplicative decrease. Knows no packet."""

from __future__ import annotations

LEAST = 4
#: A window that lost more than one chunk in this many was sent too fast; less is taken for noise.
TOLERATED_LOSS = 8


class CongestionWindow:
    """cwnd <= W_max, in chunks.

    It halves on a congestion mark, on a resend timer that ran out, and when more than an eighth of a window
    was lost, at most once per window of chunks; it grows by one per result below the last cut and by one per
    window above it.
    """

    def __init__(self, most: int, start: int) -> None:
        self._most = most
        self._size = float(min(most, start))
        self._threshold = float(most)
        self._cut_until = 0
        self._window_until = 0
        self._lost = 0
        self.cuts = 0

    @property
    def size(self) -> int:
        """Chunks that may be outstanding, at least 1."""
        return max(1, int(self._size))

    def on_results(self, results: int, lost: int, marked: bool, base: int, end: int) -> None:
        """`results` new answers came, `lost` chunks were found missing; the window is now [base, end)."""
        if base >= self._window_until:
            self._window_until, self._lost = end, 0
        self._lost += lost
        if marked or self._lost * TOLERATED_LOSS > self._size:
            self.cut(base, end)
        elif self._size < self._threshold:
            self._size = min(self._size + results, float(self._most))
        else:
            self._size = min(self._size + results / self._size, float(self._most))

    def cut(self, base: int, end: int) -> None:
        """Halve, unless the chunks outstanding at the last cut are still on their way."""
        if base < self._cut_until:
            return
        self.cuts += 1
        self._size = max(self._size / 2, float(min(LEAST, self._most)))
        self._threshold = self._size
        self._cut_until, self._lost = end, 0
