"""The strategy's reducer: it measures each step, exchanges the measurements, and decides the next step.

Theory of operation. In the turn of a step's first sum, each rank exchanges the probes that the decision asks
for. The times of the probes, and the measurements of the previous step, are attached to the first exchange of
that sum. All ranks then agree on the measurements, and derive the same method and ratio for the next step.
The other sums of a step wait for its decision. All methods share one memory of residuals, so an element that
one method has not sent is sent by a later one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.reducer import BucketSum, ExactSum, SumScheduler
from peelsum.compress.arguments import CompressConfigError
from peelsum.compress.collectives import GroupSummation, Route, StepExchanges, agreement_part
from peelsum.compress.compressed_sum import CompressedSum
from peelsum.compress.compressor import Compressor
from peelsum.compress.costs import DENSE, METHODS, Carrier, Method, SwitchPath, carrier_of
from peelsum.compress.events import (
    DecidedStep,
    Event,
    LinkChanged,
    Measurement,
    MethodChosen,
    StepPlan,
    StepTraffic,
    StrategyStats,
    describe_event,
)
from peelsum.compress.exchange import CompressedResult
from peelsum.compress.methods.gathered import Single
from peelsum.compress.methods.packed import Dense
from peelsum.compress.reducers import CompressorReducer, LossyReducer, check_compressor, sum_in_place
from peelsum.compress.sparsifier import StarTopK, TopK
from peelsum.compress.strategy import Decider, Flexible
from peelsum.summation import Part, Summation
from peelsum.transport import SwitchSummation

_LOGGER = logging.getLogger("peelsum.torch")
#: The gradient's elements, as the first step assumes them; later steps use those of the previous step.
_FIRST_ELEMENTS = 1 << 20
#: Exchanges of a few words before each sum of a method: bounds and agreement, or lengths.
_HEADER_EXCHANGES = 1
_MAX_HISTORY, _MAX_EVENTS = 10_000, 1_000
#: Is increased when the fields of a decider's saved state change.
_STATE_FORMAT = 2


class StrategyReducer(LossyReducer):
    """Sums by a strategy, whose decisions are the same on all ranks. `clock` returns seconds."""

    argument = "strategy"

    def __init__(
        self, settings: Flexible, clock: Callable[[], float] = time.perf_counter, **spans: Any
    ) -> None:
        super().__init__(**spans)
        self._settings, self._clock = settings, clock
        self._exchanges = StepExchanges(clock)
        self._group: GroupSummation | None = None
        #: The backends over which the ranks sum.
        self._backends: dict[Carrier, Summation] = {}
        self._path, self._few_words = SwitchPath(), 0
        self._decider: Decider | None = None
        self._restored: Mapping[str, Any] = {}
        self._step, self._decision = -1, Future[None]()
        self._lock = threading.Lock()
        self._history: deque[DecidedStep] = deque(maxlen=_MAX_HISTORY)
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._started_at = 0.0
        #: The traffic of the step whose measurements are exchanged now; None if there is none.
        self._traffic: StepTraffic | None = None
        self._reset()

    @property
    def next(self) -> StepPlan:
        """The decision for the current step."""
        assert self._decider is not None
        return self._decider.next

    def connect(self, turns: SumScheduler, new_group: Callable[[], GroupSummation]) -> None:
        """Sum and decide at `turns` from now on; make a process group if a method needs one.

        Raises CompressConfigError for a single rank.
        """
        super().connect(turns, new_group)
        summation = turns.backend
        if summation.workers < 2:
            raise CompressConfigError(
                "strategy: one rank has nothing to send; use None, or start 2 or more ranks"
            )
        self._path = switch_path(summation)
        methods = self._settings.methods or METHODS
        if isinstance(summation, GroupSummation):
            self._group = summation
        else:
            self._backends["switch"] = summation
            needs_group = any(carrier_of(method) == "group" for method in methods)
            self._group = new_group() if needs_group else None
        if self._group is not None:
            self._backends["group"], self._few_words = self._group, self._group.few_words

    def bucket(self, exact: ExactSum) -> BucketSum:
        """Return a function that sums a bucket by the method of each step."""
        sums: dict[tuple[Method, float], CompressedSum] = {}

        def sum_by_method(tensors: Mapping[str, NDArray[np.float32]], step: int) -> CompressedResult:
            key = method, ratio = self.next.method, self.next.ratio
            if key not in sums:
                route = Route.of(method, self.turns, self._exchanges, self._path, self._group)
                sums[key] = self._new_sum(compressor_of(method, ratio), route, exact, error_feedback=True)
            result = sums[key].sum(tensors, step)
            self.add(result)
            return result

        return partial(sum_in_place, sum_by_method)

    def before(self, work: Callable[[], None], step: int) -> Callable[[], None]:
        """Return a function that waits for the step's decision and then calls `work`, which sums.

        The function for the first sum of a step makes the decision. Call `before` in the order in which sums
        are submitted.
        """
        first = step != self._step
        if first:
            self._step, self._decision = step, Future()
        decision = self._decision

        def decide() -> None:
            try:
                self.turns.in_turn(self._decide)
            except BaseException as error:
                decision.set_exception(error)
                raise
            decision.set_result(None)
            work()

        def wait() -> None:
            decision.result()
            work()

        return decide if first else wait

    def add(self, result: CompressedResult) -> None:
        """Add a sum's result to the measurements of the step."""
        self._sums += 1
        self._elements += sum(tensor.elements for tensor in result.tensors)
        self._encode_s += result.encode_s
        self._offered_energy += result.offered_energy
        self._sent_energy += result.sent_energy

    def stats(self) -> StrategyStats:
        """Return the decisions since this was made or restored."""
        with self._lock:
            decider = self._decider
            return StrategyStats(
                plan=None if decider is None else decider.next,
                links={} if decider is None else decider.links,
                history=tuple(self._history),
                events=tuple(self._events),
            )

    def saved(self) -> dict[str, Any]:
        """Return the residuals and the decider's state; see `Reducer.saved`."""
        decider = self._decider
        strategy = (
            self._restored if decider is None else {"of": self._identity(decider), **decider.state_dict()}
        )
        return {**super().saved(), "strategy": dict(strategy)}

    def restore(
        self, values: Mapping[str, Any], residuals: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]
    ) -> None:
        """See `LossyReducer.restore`; decisions continue if settings and number of ranks are the same."""
        super().restore(values, residuals)
        self._restored, self._decider, self._step = dict(values.get("strategy", {})), None, -1
        self._traffic = None
        self._exchanges.set(None)

    def _decide(self) -> None:
        """Decide this step by agreed measurements, and attach the previous step's to its first exchange."""
        is_first = self._decider is None
        if is_first:
            decider = self._new_decider()
            with self._lock:
                self._decider = decider
        assert self._decider is not None
        words = self._exchanges.result()
        if words is not None:
            self._observe(self._decider, Measurement.agreed(words))
        self._traffic = None if is_first else self._exchanges.traffic(self._elements, self._sums)
        self._exchanges.set(self._measure(self._decider, self._traffic).words())
        self._reset()
        self._started_at = self._clock()

    def _reset(self) -> None:
        """Clear the measurements for another step."""
        self._exchanges.reset()
        self._sums = self._elements = 0
        self._encode_s = self._offered_energy = self._sent_energy = 0.0

    def _new_decider(self) -> Decider:
        """Return a decider, restored from a checkpoint if its settings are the same.

        Raises PlanMismatchError, on every rank, if ranks have other settings or other restored values.
        """
        backend = self.turns.backend
        decider = Decider(
            self._settings,
            _FIRST_ELEMENTS,
            backend.workers,
            path=self._path,
            carriers=tuple(self._backends),
            headers=_HEADER_EXCHANGES,
            few_words=self._few_words,
        )
        if self._restored and self._restored["of"] == self._identity(decider):
            try:
                decider.load_state_dict(self._restored)
            except (KeyError, TypeError, ValueError) as error:
                raise CompressConfigError(
                    f"strategy: is not that of a saved state ({type(error).__name__}: {error}); "
                    "give the result of state_dict"
                ) from error
        elif self._restored:
            _LOGGER.info("strategy: saved with other settings or ranks; ratios are explored again")
        text = repr((self._identity(decider), decider.state_dict()))
        message = (
            f"strategy: not the same on every worker; worker {backend.worker_id} has {self._settings!r}; "
            "pass the same settings, and restore the same step, on every worker"
        )
        backend.sum_words([agreement_part(text, lambda: message)])
        return decider

    def _identity(self, decider: Decider) -> str:
        """Return a text that must be equal for saved decisions to be continued by a decider."""
        return repr((_STATE_FORMAT, self._settings, decider.carriers, self.turns.workers))

    def _measure(self, decider: Decider, traffic: StepTraffic | None) -> Measurement:
        """Exchange the probes of the next step; return their times, and measurements of the previous step.

        traffic: that of the previous step; None if there was none.
        """
        elapsed_s, times = self._clock() - self._started_at, dict[str, float]()
        if traffic is not None and decider.before is not None:
            times[f"{carrier_of(decider.before.method)}_small_s"] = self._exchanges.small.seconds
        for carrier, words in decider.next.probe_words.items():
            if carrier in decider.next.small:
                times[f"{carrier}_small_s"] = self._time_probe(carrier, 1)
            if words:
                times[f"{carrier}_probe_s"] = self._time_probe(carrier, words)
        if traffic is None:
            return Measurement(**times)
        return Measurement(
            **times,
            exchange_s=self._exchanges.seconds,
            compress_s=self._encode_s,
            compute_s=max(elapsed_s - self._exchanges.seconds - self._encode_s, 0.0),
            gain=self._gain(),
        )

    def _observe(self, decider: Decider, measured: Measurement) -> None:
        """Update the decider by agreed measurements; store and log the step and the events."""
        done = decider.before
        with self._lock:
            events = decider.observe(measured, self._traffic)
            self._events.extend(events)
            links, step = decider.links, decider.observed
            if done is not None:
                self._history.append(
                    DecidedStep(step, done.method, done.ratio, done.exploring, measured.exchange_s, links)
                )
        chosen = any(isinstance(event, MethodChosen) for event in events)
        for event in events:
            # A change of a link after which no other method is chosen interests few users.
            level = logging.DEBUG if isinstance(event, LinkChanged) and not chosen else logging.INFO
            _LOGGER.log(level, "step %d: %s", event.step, describe_event(event))

    def _gain(self) -> float:
        """Return the compression gain of the step; 1 if the gradients were zero."""
        gain = self._sent_energy / self._offered_energy if self._offered_energy else 1.0
        return gain if 0 <= gain <= 1 else 1.0

    def _time_probe(self, carrier: Carrier, words: int) -> float:
        """Return the seconds of an exchange of zeros."""
        zeros, started = Part(np.zeros(words, np.uint32), "add"), self._clock()
        self._backends[carrier].sum_words([zeros])
        return self._clock() - started


def compressor_of(method: Method, ratio: float) -> Compressor:
    """Return the compressor of a method, which sends a share `ratio` of each tensor's elements."""
    if method in DENSE:
        return Dense()
    if method == "top_k_all_gather":
        return TopK(ratio, quantizer=Single())
    return TopK(ratio) if method == "top_k_switch" else StarTopK(ratio)


def switch_path(summation: Summation) -> SwitchPath:
    """Return the parameters of the path through a summation's switch; defaults for other backends."""
    if not isinstance(summation, SwitchSummation):
        return SwitchPath(lanes=summation.lanes)
    job = summation.config
    return SwitchPath(job.lanes, job.window, 2 * job.window, hops=4 if job.racks else 2)


def lossy_reducer(
    compressor: Any,
    strategy: Any,
    error_feedback: Any,
    *,
    over: Any,
    switch: bool,
    group_gathers: bool,
    **spans: Any,
) -> LossyReducer | None:
    """Return the reducer for these arguments of a hook; None if they ask for exact sums.

    over: the backend, for errors. switch: whether it is a switch. group_gathers: see `CompressorReducer`.
    spans: `span` and `note`, see `Allreduce`. Raises CompressConfigError for values that are not allowed.
    """
    method = check_compressor(compressor, error_feedback)
    if strategy is None:
        if method is None:
            return None
        return CompressorReducer(method, error_feedback, group_gathers=group_gathers, **spans)
    if not isinstance(strategy, Flexible):
        raise CompressConfigError(
            f"strategy: {strategy!r} is not a strategy; give a peelsum.compress.Flexible, or None"
        )
    if compressor is not None:
        raise CompressConfigError(
            f"compressor: {compressor!r} does not go with a strategy, which chooses what to send; "
            "use one of both"
        )
    if error_feedback is False:
        raise CompressConfigError(
            "error_feedback: False does not go with a strategy, whose residuals it is; use None"
        )
    switch_methods = [method for method in strategy.methods or () if carrier_of(method) == "switch"]
    if switch_methods and not switch:
        raise CompressConfigError(
            f"strategy: method {switch_methods[0]!r} needs a switch, but over is {over!r}; "
            "use over='switch', or leave the method out"
        )
    return StrategyReducer(strategy, **spans)
