"""The running statistics of a hook, which its threads write and the user reads."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from peelsum.allreduce import StepResult
from peelsum.compress import CompressedResult
from peelsum.torch.stats import HookStats, TensorStats, tensor_stats, tensors_of

_LOGGER = logging.getLogger("peelsum.torch")
#: What a result and `HookStats` count under the same name.
_COUNTED = ("wire_bytes", "dense_bytes", "encode_s", "network_s", "decode_s")


class RunningStats:
    """Statistics since the state was made or restored.

    log_every: steps between two log lines; 0 for none.
    """

    def __init__(self, log_every: int) -> None:
        self._log_every = log_every
        self._lock = threading.Lock()
        #: The fields of `HookStats`, by name. They are changed in every step, and copied when they are read.
        self._totals: Counter[str] = Counter()
        #: Return what is told of each sum's tensors, by their names; the last sum comes last.
        self._tensors: dict[tuple[str, ...], Callable[[], Mapping[str, TensorStats]]] = {}
        self._logged = HookStats()

    def now(self) -> HookStats:
        """Return the statistics so far."""
        with self._lock:
            totals: dict[str, Any] = dict(self._totals)
            sums = list(self._tensors.values())
        tensors: dict[str, TensorStats] = {}
        for told in sums:
            tensors |= told()
        return HookStats(**totals, tensors=tensors)

    def add(self, result: StepResult | CompressedResult, buckets: int) -> None:
        """Count the sum of one or more buckets."""
        told: Callable[[], Mapping[str, TensorStats]]
        if isinstance(result, StepResult):
            names, tally = result.tally.names, result.tally
            elements, non_finite = tally.elements, tally.non_finite
            told = partial(tensors_of, tally.tensors)
        else:
            tensors = {tensor.name: tensor_stats(tensor) for tensor in result.tensors}
            names, told = tuple(tensors), lambda: tensors
            elements = sum(tensor.elements for tensor in tensors.values())
            non_finite = sum(not tensor.finite for tensor in result.tensors)
        with self._lock:
            totals = self._totals
            totals["buckets"] += buckets
            totals["elements"] += elements
            totals["non_finite"] += non_finite
            for name in _COUNTED:
                totals[name] += getattr(result, name)
            self._tensors.pop(names, None)
            self._tensors[names] = told

    def add_wait(self, seconds: float) -> None:
        """Count the time that the training thread waited for sums."""
        with self._lock:
            self._totals["wait_s"] += seconds  # type: ignore[assignment]  # a Counter may count in fractions

    def count_step(self) -> bool:
        """Count a step; return whether `log` is due."""
        with self._lock:
            self._totals["steps"] += 1
            return bool(self._log_every) and self._totals["steps"] % self._log_every == 0

    def log(self) -> None:
        """Log statistics of the steps since the last call."""
        before, self._logged = self._logged, self.now()
        _LOGGER.info(self._logged.since(before))
