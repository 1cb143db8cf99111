"""One process of a network by its name, and its successors: what starts in its place when it ends by itself.

Owns how often that is tried. Refuses to know what the process does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from peelsum.topology.errors import ProcessError
from peelsum.topology.processes import Child

#: A part that ends by itself more often than this is left as it is: what ends it will go on doing so.
MOST_RESTARTS = 5
#: Who has lived for so long, in seconds, has not ended by what ended the ones before.
LONG_LIFE_S = 60.0


class Part:
    """A child that runs, and `again`, which starts another in its place, ready; None where none can be."""

    def __init__(
        self,
        child: Child,
        again: Callable[[], Child] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.child = child
        self.again = again
        self._clock = clock
        self._born = clock()
        self._restarts = 0

    @property
    def name(self) -> str:
        """What the part is called in messages."""
        return self.child.name

    def restart(self) -> str:
        """Put another child in the place of one that has ended; what happened.

        Raises ProcessError, with how it ended, where that cannot be, or was done too often in a row.
        """
        happened = self.child.obituary()
        if self.again is None:
            raise ProcessError(happened)
        if self._clock() - self._born >= LONG_LIFE_S:
            self._restarts = 0
        if self._restarts == MOST_RESTARTS:
            raise ProcessError(f"{happened}; not started again after {MOST_RESTARTS} times")
        self.child.stop()
        self._restarts += 1
        self.child = self.again()
        self._born = self._clock()
        return f"{happened}; started again"

    def stop(self) -> None:
        """End whatever runs in this part's place."""
        self.child.stop()
