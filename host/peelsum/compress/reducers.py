"""Reducers with loss for a training hook: with a fixed compressor, or with a strategy that decides each step.

A reducer's memory keeps values that are not sent as residuals for later sums.

Theory of operation of a strategy. In the turn of a step's first sum, each rank exchanges the probes that the
decision asks for. The times of the probes, and the measurements of the previous step, are attached to the
first exchange of that sum. All ranks then agree on the measurements, and derive the same method and ratio for
the next step. The other sums of a step wait for its decision. All methods share one memory of residuals, so
an element that one method has not sent is sent by a later one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.allreduce import BucketSum, ExactSum, Reducer, SumScheduler, Tensor
from peelsum.allreduce.plan import SUPPORTED_DTYPES, agreement_part, digest_of, unsupported_dtype
from peelsum.codec import BFloat16
from peelsum.codec.arrays import to_float32
from peelsum.compress import loops
from peelsum.compress.arguments import CompressConfigError
from peelsum.compress.collectives import GroupSummation, Route, StepExchanges
from peelsum.compress.compressed_sum import CompressedSum, uses_feedback
from peelsum.compress.compressor import Compressor
from peelsum.compress.costs import DENSE, METHODS, Carrier, Method, SwitchPath, carrier_of
from peelsum.compress.events import (
    DecidedStep,
    Event,
    LinkChanged,
    Measurement,
    MethodChosen,
    StepTraffic,
    StrategyStats,
    describe_event,
)
from peelsum.compress.exchange import CompressedResult
from peelsum.compress.memory import Memory, Residual
from peelsum.compress.methods.gathered import Single
from peelsum.compress.methods.packed import Dense
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
_STATE_FORMAT = 3


class LossyReducer(Reducer):
    """The base class of reducers with loss. Residuals are in `memory`."""

    on_host = keeps_residuals = True
    #: False, because scales and shares may be those of a bucket.
    can_merge_buckets = False
    #: The process group for gathers, and for sums by a strategy's methods over it; None if none is needed.
    group: GroupSummation | None = None

    def __init__(self, **spans: Any) -> None:
        """spans: `span` and `note`, see `Allreduce`."""
        self.memory, self._spans = Memory(), spans

    def warm_up(self) -> None:
        loops.warm_up()

    def needs_group(self) -> bool:
        """Return whether a process group is needed if the backend is not one."""
        raise NotImplementedError

    def connect(self, turns: SumScheduler, new_group: Callable[[], GroupSummation]) -> None:
        """Sum at `turns` from now on; make a process group if one is needed."""
        super().connect(turns, new_group)
        if isinstance(turns.backend, GroupSummation):
            self.group = turns.backend
        elif self.needs_group():
            self.group = new_group()

    def saved(self) -> dict[str, Any]:
        """Return the residuals, and the arrays that compressors keep; see `Reducer.saved`."""
        residuals = {name: dict(vars(residual)) for name, residual in self.memory.residuals.items()}
        kept = {name: arrays for name, arrays in self.memory.kept.items() if arrays}
        return {"residuals": residuals, **({"kept": kept} if kept else {})}

    def restore(
        self, values: Mapping[str, Any], residuals: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]
    ) -> None:
        """See `Reducer.restore`. Raises CompressConfigError for damaged residuals, TypeError for none."""
        memories = ({name: Residual(**arrays) for name, arrays in rank.items()} for rank in residuals)
        self.memory.restore(*memories)
        self.memory.kept = dict(values.get("kept", {}))

    def new_sum(
        self, compressor: Compressor, route: Route, exact: ExactSum, error_feedback: bool | None
    ) -> CompressedSum:
        """Return the compressed sum of a bucket over a route; `exact` sums indexed payloads."""
        return CompressedSum(
            route,
            compressor,
            self.memory,
            error_feedback=error_feedback,
            allreduce=exact(route),
            collectives=route,
            **self._spans,
        )


class CompressorReducer(LossyReducer):
    """Sums by a compressor. Raises CompressConfigError for momentum without error feedback.

    group_gathers: whether to make a process group for gathered payloads, if the backend is not one.
    """

    argument = "compressor"

    def __init__(
        self, compressor: Compressor, error_feedback: bool | None, *, group_gathers: bool, **spans: Any
    ) -> None:
        super().__init__(**spans)
        uses_feedback(compressor, error_feedback)
        self.compressor, self._error_feedback = compressor, error_feedback
        self._group_gathers = group_gathers
        # If each tensor is compressed by itself, buckets do not matter.
        self.can_merge_buckets = compressor.kind == "indexed" and compressor.per == "tensor"

    def needs_group(self) -> bool:
        return self._group_gathers and self.compressor.kind == "gather"

    def bucket(self, exact: ExactSum) -> BucketSum:
        """Return a function that sums a bucket. Raises CompressConfigError for too many workers."""
        route = Route(self.turns, StepExchanges(), SwitchPath(), self.group)
        return partial(sum_in_place, self.new_sum(self.compressor, route, exact, self._error_feedback).sum)


def sum_in_place(
    sum_tensors: Callable[[Mapping[str, NDArray[Any]], int], CompressedResult],
    tensors: Mapping[str, Tensor],
    shapes: Sequence[tuple[int, ...]],
    step: int,
) -> CompressedResult:
    """Call `sum_tensors` with flat tensors, converted to float32 and to these shapes; return its result.

    Tensors that are float32 are replaced by their sums. Raises InvalidRequestError for a dtype that the
    all-reduce does not take.
    """
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in SUPPORTED_DTYPES:
            raise unsupported_dtype(name, str(tensor.dtype))
    arrays: Any = tensors
    wide = {
        name: to_float32(tensor).reshape(shape)
        for (name, tensor), shape in zip(arrays.items(), shapes, strict=True)
    }
    result = sum_tensors(wide, step)
    for name, tensor in arrays.items():
        if tensor.dtype == "float32":
            tensor[:] = result[name].values.reshape(-1)
    size = sum((array.bits if isinstance(array, BFloat16) else array).nbytes for array in arrays.values())
    float32_size = sum(array.nbytes for array in wide.values())
    return replace(result, dense_bytes=result.dense_bytes * size // max(float32_size, 1))


class StrategyReducer(LossyReducer):
    """Sums by a strategy, whose decisions are the same on all ranks. `clock` returns seconds."""

    argument = "strategy"

    def __init__(
        self, settings: Flexible, clock: Callable[[], float] = time.perf_counter, **spans: Any
    ) -> None:
        super().__init__(**spans)
        self._settings, self._clock = settings, clock
        self._exchanges = StepExchanges(clock)
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

    def needs_group(self) -> bool:
        return any(carrier_of(method) == "group" for method in self._settings.methods or METHODS)

    def connect(self, turns: SumScheduler, new_group: Callable[[], GroupSummation]) -> None:
        """See `LossyReducer.connect`. Raises CompressConfigError for a single rank."""
        summation = turns.backend
        if summation.workers < 2:
            raise CompressConfigError(
                "strategy: one rank has nothing to send; use None, or start 2 or more ranks"
            )
        super().connect(turns, new_group)
        self._path = SwitchPath(lanes=summation.lanes)
        if isinstance(summation, SwitchSummation):
            job = summation.config
            self._path = SwitchPath(job.lanes, job.window, 2 * job.window, hops=4 if job.racks else 2)
        if self.group is not summation:
            self._backends["switch"] = summation
        if self.group is not None:
            self._backends["group"], self._few_words = self.group, self.group.few_words

    def bucket(self, exact: ExactSum) -> BucketSum:
        """Return a function that sums a bucket by the method of each step."""
        sums: dict[tuple[Method, float], CompressedSum] = {}

        def sum_by_method(tensors: Mapping[str, NDArray[np.float32]], step: int) -> CompressedResult:
            assert self._decider is not None
            key = method, ratio = self._decider.next.method, self._decider.next.ratio
            if key not in sums:
                route = Route(self.turns, self._exchanges, self._path, self.group, method)
                sums[key] = self.new_sum(compressor_of(method, ratio), route, exact, error_feedback=True)
            result = sums[key].sum(tensors, step)
            self._sums += 1
            self._elements += sum(tensor.elements for tensor in result.tensors)
            self._encode_s += result.encode_s
            self._offered_energy += result.offered_energy
            self._sent_energy += result.sent_energy
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
        measured = self._measure(self._decider, self._traffic)
        self._exchanges.set(measured.words(self.turns.worker_id, self.turns.workers))
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
        backend.sum_words([agreement_part(digest_of(text), lambda: message)])
        return decider

    def _identity(self, decider: Decider) -> str:
        """Return a text that must be equal for saved decisions to be continued by a decider."""
        return repr((_STATE_FORMAT, self._settings, decider.carriers, self.turns.workers))

    def _measure(self, decider: Decider, traffic: StepTraffic | None) -> Measurement:
        """Time the probes that `decider.next` asks for; return these, and the previous step's measurements.

        A carrier, process group or switch, has up to two probes: one word for its latency, more for its rate.
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
        gain = self._sent_energy / self._offered_energy if self._offered_energy else 1.0
        return Measurement(
            **times,
            exchange_s=self._exchanges.seconds,
            compress_s=self._encode_s,
            compute_s=max(elapsed_s - self._exchanges.seconds - self._encode_s, 0.0),
            gain=gain if 0 <= gain <= 1 else 1.0,
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


def lossy_reducer(
    compressor: Compressor | None,
    strategy: Flexible | None,
    error_feedback: bool | None,
    *,
    over: object,
    switch: bool,
    group_gathers: bool,
    **spans: Any,
) -> LossyReducer | None:
    """Return the reducer for these arguments of a hook; None if they ask for exact sums.

    over: the backend, for errors. switch: whether it is a switch. group_gathers: see `CompressorReducer`.
    spans: `span` and `note`, see `Allreduce`. Raises CompressConfigError for values that are not allowed.
    """
    if strategy is None:
        if compressor is None and not error_feedback:
            return None
        # Error feedback without a compressor sends all elements, and keeps the rounding errors.
        method = TopK(1.0) if compressor is None else compressor
        return CompressorReducer(method, error_feedback, group_gathers=group_gathers, **spans)
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
