"""The running statistics of a hook, which its threads write and the user reads."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from peelsum.allreduce import StepResult
from peelsum.compress import CompressedResult
from peelsum.torch.stats import HookStats

_LOGGER = logging.getLogger("peelsum.torch")


class RunningStats:
    """Statistics since the state was made or restored.

    log_every: steps between two log lines; 0 for none.
    """

    def __init__(self, log_every: int) -> None:
        self._log_every = log_every
        self._lock = threading.Lock()
        self._stats = self._logged = HookStats()

    def now(self) -> HookStats:
        """Return the statistics so far."""
        with self._lock:
            return self._stats

    def add(self, result: StepResult | CompressedResult) -> None:
        """Count the sum of a bucket."""
        with self._lock:
            self._stats = self._stats.plus(result)

    def add_wait(self, seconds: float) -> None:
        """Count the time that the training thread waited for sums."""
        with self._lock:
            self._stats = replace(self._stats, wait_s=self._stats.wait_s + seconds)

    def count_step(self) -> bool:
        """Count a step; return whether `log` is due."""
        with self._lock:
            self._stats = replace(self._stats, steps=self._stats.steps + 1)
            return bool(self._log_every) and self._stats.steps % self._log_every == 0

    def log(self) -> None:
        """Log statistics of the steps since the last call."""
        before, self._logged = self._logged, self.now()
        _LOGGER.info(self._logged.since(before))
