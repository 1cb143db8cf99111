"""A process of a network that is restarted when it ends by itself, a limited number of times."""

from __future__ import annotations

import time
from collections.abc import Callable

from peelsum.processes.children import Child
from peelsum.processes.errors import ProcessError

#: Restarts in a row after which the cause is taken to be permanent.
MOST_RESTARTS = 5
#: A process that ran for so long, in seconds, resets the count of restarts.
LONG_LIFE_S = 60.0


class RestartableProcess:
    """A child, and `again`, which starts its successor and waits until that is ready; None if it cannot."""

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
        """The name in messages."""
        return self.child.name

    def restart(self) -> str:
        """Replace a child that has ended; return a line about it.

        Raises ProcessError with the exit report if it cannot be restarted, or was too often in a row.
        """
        happened = self.child.exit_report()
        if self.again is None:
            raise ProcessError(happened)
        if self._clock() - self._born >= LONG_LIFE_S:
            self._restarts = 0
        if self._restarts == MOST_RESTARTS:
            raise ProcessError(f"{happened}; not started again after {MOST_RESTARTS} restarts")
        self.child.stop()
        self._restarts += 1
        self.child = self.again()
        self._born = self._clock()
        return f"{happened}; started again"

    def stop(self) -> None:
        """End the child."""
        self.child.stop()
