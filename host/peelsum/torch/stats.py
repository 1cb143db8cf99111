"""What a hook shows of its sums: statistics, ranges in the traces of torch's profiler, spans."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from peelsum.allreduce import StepResult
from peelsum.allreduce.result import StepSummary, TensorStats
from peelsum.compress import CompressedResult, StrategyStats
from peelsum.telemetry import StepSpans, TelemetryError
from peelsum.torch.errors import HookConfigError

_LOGGER = logging.getLogger("peelsum.torch")
#: Groups of parameters, summed together, of which results and sums are kept.
MOST_SUMS = 1024
#: From this step on, a warning is logged if dense gradients have less than this share of the bytes sent.
_WARN_FROM_STEP, _WARN_BELOW_SHARE = 10, 0.9
#: The costs that a sum's result and `HookStats` have under the same name.
_COSTS = ("wire_bytes", "dense_bytes", "encode_s", "network_s", "decode_s")


@dataclass(frozen=True)
class SparseResult:
    """The cost of summing a backward pass's sparse gradients; bytes and seconds are as in `StepResult`."""

    summary: StepSummary
    """Counts of the gradients."""
    wire_bytes: int
    dense_bytes: int
    encode_s: float
    network_s: float
    decode_s: float


#: The result of a sum, with its cost.
SumCost = StepResult | CompressedResult | SparseResult


@dataclass(frozen=True)
class HookStats:
    """Totals of this worker since the state was made or restored, summed over buckets."""

    steps: int = 0
    """Backward passes that were summed."""

    buckets: int = 0
    """Buckets that were summed."""

    elements: int = 0
    """Elements of their gradients."""

    non_finite: int = 0
    """Parameters' gradients that were not finite on some worker."""

    wire_bytes: int = 0
    """Payload bytes of this worker's packets."""

    dense_bytes: int = 0
    """Payload bytes that dense gradients would take, in their own dtype."""

    encode_s: float = 0.0
    """Seconds that the summing threads spent on encoding."""

    network_s: float = 0.0
    """Seconds that the summing threads waited for the network."""

    decode_s: float = 0.0
    """Seconds that the summing threads spent on decoding."""

    wait_s: float = 0.0
    """Seconds that the training thread waited for sums at the ends of its backward passes."""

    tensors: dict[str, TensorStats] = field(default_factory=dict)
    """The last sum of each parameter, by name; of the last 1,024 groups that were summed together."""

    strategy: StrategyStats | None = None
    """The decisions of the strategy, if there is one."""

    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The ranks whose gradients each parameter's last average has, by name. Ranks are numbered as at the
    start; there are fewer after others were lost (`on_lost="continue"`)."""

    @property
    def saving(self) -> float:
        """Bytes that dense gradients would take, over the bytes sent; 1 before the first sum."""
        return self.dense_bytes / self.wire_bytes if self.wire_bytes else 1.0

    def metrics(self, before: HookStats | None = None) -> dict[str, float]:
        """Return numbers for a trainer's log by name: averages of the steps since `before`, or of all steps.

        The names tell the units: MB or ms a step. `switch/saving` is a ratio, `switch/non_finite` a count.
        """
        before = before or HookStats()
        steps = max(self.steps - before.steps, 1)
        sent, dense = self.wire_bytes - before.wire_bytes, self.dense_bytes - before.dense_bytes
        return {
            "switch/mb": sent / steps / 1e6,
            "switch/saving": dense / max(sent, 1),
            "switch/encode_ms": 1e3 * (self.encode_s - before.encode_s) / steps,
            "switch/exchange_ms": 1e3 * (self.network_s - before.network_s) / steps,
            "switch/decode_ms": 1e3 * (self.decode_s - before.decode_s) / steps,
            "switch/wait_ms": 1e3 * (self.wait_s - before.wait_s) / steps,
            "switch/non_finite": float(self.non_finite - before.non_finite),
        }

    def since(self, before: HookStats) -> str:
        """Return a line of text about the steps since `before`."""
        sent, saving, encode, network, decode, wait, non_finite = self.metrics(before).values()
        return (
            f"step {self.steps}: {sent:.3f} MB a step, {saving:.1f} times less "
            f"than dense; ms a step: encode {encode:.1f}, exchange {network:.1f}, decode {decode:.1f}, "
            f"waited for {wait:.1f}; gradients that were not finite: {non_finite:.0f}"
        )


class RunningStats:
    """Running totals since the state was made or restored, to which several threads add.

    log_every: steps between two log lines; 0 for none.
    """

    def __init__(self, log_every: int) -> None:
        self._log_every = log_every
        self._lock = threading.Lock()
        #: The fields of `HookStats`, by name. They are changed in every step, and copied when they are read.
        self._totals: Counter[str] = Counter()
        #: The last result of each sum, and its members, by the names of its tensors; the last sum comes last.
        self._sums: dict[tuple[str, ...], tuple[StepSummary, tuple[int, ...]]] = {}
        self._logged = HookStats()
        self._warned = False

    def snapshot(self) -> HookStats:
        """Return the statistics so far."""
        with self._lock:
            totals: dict[str, Any] = dict(self._totals)
            sums = dict(self._sums)
        tensors: dict[str, TensorStats] = {}
        for summary, _ in sums.values():
            tensors |= summary.tensors()
        members = {name: ranks for names, (_, ranks) in sums.items() for name in names}
        return HookStats(**totals, tensors=tensors, members=members)

    def add(self, result: SumCost, buckets: int, names: tuple[str, ...], members: tuple[int, ...]) -> None:
        """Add the result of a sum over this many buckets and these ranks. names: of its parameters."""
        with self._lock:
            totals = self._totals
            totals["buckets"] += buckets
            self._sums.pop(names, None)
            self._sums[names] = result.summary, members
            if len(self._sums) > MOST_SUMS:
                del self._sums[next(iter(self._sums))]
            totals["elements"] += result.summary.elements
            totals["non_finite"] += result.summary.non_finite
            for name in _COSTS:
                totals[name] += getattr(result, name)

    def add_wait(self, seconds: float) -> None:
        """Add the time that the training thread waited for sums."""
        with self._lock:
            self._totals["wait_s"] += seconds  # type: ignore[assignment]  # a Counter may count in fractions

    def count_step(self) -> bool:
        """Count a step; return whether to log. Warn once if dense gradients would take fewer bytes."""
        with self._lock:
            self._totals["steps"] += 1
            totals = self._totals
            steps, sent, dense = totals["steps"], totals["wire_bytes"], totals["dense_bytes"]
        if steps >= _WARN_FROM_STEP and dense < _WARN_BELOW_SHARE * sent and not self._warned:
            self._warned = True
            _LOGGER.warning(
                "step %d: sent %.1f times the bytes of the gradients, which are dense, or small, or have 2 "
                "bytes an element where sums have 4; give a compressor, or leave the hook out",
                steps,
                sent / max(dense, 1),
            )
        return bool(self._log_every) and steps % self._log_every == 0

    def log(self) -> None:
        """Log statistics of the steps since the last call."""
        before, self._logged = self._logged, self.snapshot()
        _LOGGER.info(self._logged.since(before))


def profile_range(phase: str) -> AbstractContextManager[object] | None:
    """Return a context that appears in the traces of torch's profiler as `peelsum::` and the phase.

    If the environment asks for spans, it is a span, too. Without profiler and spans it is None, because torch
    takes 5 us to enter and leave a range.
    """
    spans, is_profiled = step_spans(), torch.autograd.profiler._is_profiler_enabled
    if spans is None:
        return torch.profiler.record_function(f"peelsum::{phase}") if is_profiled else None
    return _span_and_range(spans, phase)


def set_span_attributes(values: Mapping[str, int]) -> None:
    """Set attributes of the current span, if the environment asks for spans."""
    spans = step_spans()
    if spans is not None:
        spans.note(values)


@cache
def step_spans() -> StepSpans | None:
    """Return the maker of spans; None if the environment does not ask for them. Raises HookConfigError."""
    try:
        return StepSpans.of_environment()
    except TelemetryError as error:
        raise HookConfigError(str(error)) from None


@contextmanager
def _span_and_range(spans: StepSpans, phase: str) -> Iterator[None]:
    is_profiled = torch.autograd.profiler._is_profiler_enabled
    with (
        spans.span(phase),
        torch.profiler.record_function(f"peelsum::{phase}") if is_profiled else nullcontext(),
    ):
        yield
