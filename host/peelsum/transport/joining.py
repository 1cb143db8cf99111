"""A job's first sum, with which workers join: it waits longer than a stall, for those that still start.

The warnings of waits in later sums are here, too.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
from dataclasses import replace

import numpy as np

from peelsum.summation import Words
from peelsum.transport.config import JobConfig
from peelsum.transport.errors import TransportConfigError, TransportError
from peelsum.transport.events import Stalled, named, rerun

#: Environment variable with the seconds that workers wait for each other at a start.
JOIN = "PEELSUM_JOIN_S"
#: The default: several times what compiling takes on a slow machine.
_JOIN_S = 600.0
#: Seconds of waiting after which a warning names who is missing.
WARN_AFTER_S = 2.0
#: The same in later sums, in which other workers may take longer than this one to compute.
WARN_STALL_AFTER_S = 5.0
_log = logging.getLogger("peelsum")


def join_limit_s() -> float:
    """Return how long workers wait for each other at a start, by the environment.

    Raises TransportConfigError unless the variable is a number of seconds above 0.
    """
    text = os.environ.get(JOIN, str(_JOIN_S))
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise TransportConfigError(f"{JOIN}: {text!r} is not a time to wait; give seconds above 0")
    return limit_s


class JoiningSum:
    """The first sum of a connection: one word per worker, in which it sends a random number.

    A worker that gets another number back was answered from an earlier run of the generation, whose sums the
    server still keeps. Without this sum, the worker would take them for this run's.
    """

    def __init__(self, config: JobConfig, worker_id: int) -> None:
        self._config, self._mine = config, config.worker_ids.index(worker_id)
        self._number = secrets.randbelow((1 << 32) - 1) + 1
        self.words = np.zeros(config.workers, np.uint32)
        self.words[self._mine] = self._number

    def check(self, result: Words) -> None:
        """Raise TransportError if `result` is from an earlier run."""
        if result[self._mine] != self._number or not result.all():
            raise TransportError(
                f"job {self._config.job_id}: generation {self._config.generation} has run before; "
                f"{rerun(self._config.job_id, self._config.generation)}"
            )


class JoinWait:
    """One worker's wait for the others, which began at `now`, for at most `limit_s` seconds."""

    def __init__(self, worker_id: int, limit_s: float, now: float) -> None:
        self._worker_id, self._limit_s, self._since = worker_id, limit_s, now
        self._told = False

    def tell(self, wait: Stalled, now: float) -> None:
        """Log once who is missing, if the wait takes long."""
        if not self._told and now - self._since >= WARN_AFTER_S and self.is_for_others(wait):
            self._told = True
            missing = named(wait.missing_workers, (), wait.racks)
            they = "have not joined, they" if len(wait.missing_workers) > 1 else "has not joined, it"
            text = "job %d: %s %s may still be starting; waiting up to %g s"
            _log.warning(text, wait.job_id, missing, they, self._limit_s)

    def outlasts(self, stall: Stalled, now: float) -> bool:
        """Return whether to wait on. A server that names nobody else is not answering: that is no start."""
        return self.is_for_others(stall) and now - self._since < self._limit_s

    def whole(self, stall: Stalled, now: float) -> Stalled:
        """Return the stall with the time of the whole wait."""
        return replace(stall, seconds=now - self._since)

    def is_for_others(self, wait: Stalled) -> bool:
        """Return whether other workers are missing."""
        return bool(set(wait.missing_workers) - {self._worker_id})


def warn_of_long_wait(wait: Stalled, limit_s: float) -> bool:
    """Log what a sum waits for, if the wait takes long; return whether it does.

    limit_s: after how many seconds a stall is reported.
    """
    if wait.seconds < WARN_STALL_AFTER_S:
        return False
    _log.warning("%s; waiting up to %g s", wait, limit_s)
    return True
