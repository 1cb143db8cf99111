"""Restart a process of a network that ends by itself, a limited number of times."""

from __future__ import annotations

import time
from collections.abc import Callable

from peelsum.processes.children import Child
from peelsum.processes.errors import ProcessError

#: The number of restarts in a row after which a process is not restarted again.
MAX_RESTARTS = 5
#: A process that has run for so many seconds resets the count of restarts.
RESET_AFTER_S = 60.0


class RestartableProcess:
    """A child process that can be restarted.

    again: starts the child's successor, and waits until it is ready; None if the child cannot be restarted.
    """

    def __init__(
        self,
        child: Child,
        again: Callable[[], Child] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.child = child
        self.again = again
        self._clock = clock
        self._started_at = clock()
        self._restarts = 0

    @property
    def name(self) -> str:
        """The child's name in messages."""
        return self.child.name

    def restart(self) -> str:
        """Restart a child that has ended; return one line about it.

        Raises ProcessError with the exit report if the child cannot be restarted, or was restarted too often.
        """
        report = self.child.exit_report()
        if self.again is None:
            raise ProcessError(report)
        if self._clock() - self._started_at >= RESET_AFTER_S:
            self._restarts = 0
        if self._restarts == MAX_RESTARTS:
            raise ProcessError(f"{report}; not started again after {MAX_RESTARTS} restarts")
        self.child.stop()
        self._restarts += 1
        self.child = self.again()
        self._started_at = self._clock()
        return f"{report}; started again"

    def stop(self) -> None:
        """End the child."""
        self.child.stop()
