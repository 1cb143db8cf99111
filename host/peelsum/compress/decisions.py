"""The decisions of a strategy during training: what a step measures, agreed by all ranks, and what follows.

Theory of operation. Before the first sum of a step, and in its turn, each rank exchanges the probes that were
asked for. Their times, and what it measured in the step before, go along with the first exchange of that sum.
From what all ranks agree on so, every rank's decider derives the same method and ratio for the next step. The
other sums of a step wait for its decision. All methods share a memory, so that what one has not sent the next
one sends.
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

from peelsum.allreduce.reducer import BucketSum, ExactSum, Turns
from peelsum.compress.arguments import CompressConfigError
from peelsum.compress.collectives import GroupSummation, Route, StepExchanges, agreement
from peelsum.compress.compressed_sum import CompressedSum
from peelsum.compress.compressor import Compressor
from peelsum.compress.costs import DENSE, METHODS, Carrier, Method, SwitchPath, carrier_of
from peelsum.compress.events import (
    DecidedStep,
    Event,
    LinkChanged,
    Measurement,
    MethodChosen,
    Next,
    StrategyStats,
    Traffic,
    told,
)
from peelsum.compress.exchange import CompressedResult
from peelsum.compress.methods.gathered import Single
from peelsum.compress.methods.packed import Dense
from peelsum.compress.reducers import CompressorReducer, LossyReducer, checked, summed_in_place
from peelsum.compress.sparsifier import StarTopK, TopK
from peelsum.compress.strategy import Decider, Flexible
from peelsum.summation import Part, Summation
from peelsum.transport import SwitchSummation

_LOGGER = logging.getLogger("peelsum.torch")
#: The elements for which the first step is decided; the second knows those of the first.
_FIRST_ELEMENTS = 1 << 20
#: Exchanges of a few words before each sum of a method: bounds and agreement, or lengths.
_HEADERS = 1
_KEPT_STEPS, _KEPT_EVENTS = 10_000, 1_000


class StrategyReducer(LossyReducer):
    """Sums by a strategy. The decisions of one rank are those of all. `clock` returns seconds."""

    argument = "strategy"

    def __init__(
        self, settings: Flexible, clock: Callable[[], float] = time.perf_counter, **spans: Any
    ) -> None:
        super().__init__(**spans)
        self._settings, self._clock = settings, clock
        self._exchanges = StepExchanges(clock)
        self._group: GroupSummation | None = None
        #: The backends over which the ranks sum.
        self._by_carrier: dict[Carrier, Summation] = {}
        self._path, self._few_words = SwitchPath(), 0
        self._decider: Decider | None = None
        self._saved: Mapping[str, Any] = {}
        self._step, self._decided = -1, Future[None]()
        self._lock = threading.Lock()
        self._history: deque[DecidedStep] = deque(maxlen=_KEPT_STEPS)
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self._began = 0.0
        #: What the step summed of which the measurement is on its way; None if there was none.
        self._traffic: Traffic | None = None
        self._reset()

    @property
    def next(self) -> Next:
        """The decision for the step whose sums run now."""
        assert self._decider is not None
        return self._decider.next

    def connect(self, turns: Turns, new_group: Callable[[], GroupSummation]) -> None:
        """Decide at `turns` from now on, and over a process group if some method needs one.

        Raises CompressConfigError for a single rank.
        """
        super().connect(turns, new_group)
        summation = turns.backend
        if summation.workers < 2:
            raise CompressConfigError(
                "strategy: one rank has nothing to send; use None, or start 2 or more ranks"
            )
        self._path = path_of(summation)
        methods = self._settings.methods or METHODS
        if isinstance(summation, GroupSummation):
            self._group = summation
        else:
            self._by_carrier["switch"] = summation
            self._group = new_group() if any(carrier_of(one) == "group" for one in methods) else None
        if self._group is not None:
            self._by_carrier["group"], self._few_words = self._group, self._group.few_words

    def bucket(self, exact: ExactSum) -> BucketSum:
        """Return the sum of a bucket, by the method of each step."""
        sums: dict[tuple[Method, float], CompressedSum] = {}

        def total(tensors: Mapping[str, NDArray[np.float32]], step: int) -> CompressedResult:
            key = method, ratio = self.next.method, self.next.ratio
            if key not in sums:
                route = Route.of(method, self.turns, self._exchanges, self._path, self._group)
                sums[key] = self._sum(compressor_of(method, ratio), route, exact, error_feedback=True)
            result = sums[key].sum(tensors, step)
            self.add(result)
            return result

        return partial(summed_in_place, total)

    def before(self, work: Callable[[], None], step: int) -> Callable[[], None]:
        """Return `work`, a sum, so that it waits for the step's decision; the first one makes it.

        Call it for one sum after the other, in the order in which they are submitted.
        """
        first = step != self._step
        if first:
            self._step, self._decided = step, Future()
        decided = self._decided

        def decide() -> None:
            try:
                self.turns.in_turn(self._decide)
            except BaseException as error:
                decided.set_exception(error)
                raise
            decided.set_result(None)
            work()

        def wait() -> None:
            decided.result()
            work()

        return decide if first else wait

    def add(self, result: CompressedResult) -> None:
        """Count a sum of the step."""
        self._sums += 1
        self._elements += sum(one.elements for one in result.tensors)
        self._encode_s += result.encode_s
        self._offered += result.offered_energy
        self._sent += result.sent_energy

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
        decider = self._decider
        decided = self._saved if decider is None else {"of": self._identity(decider), **decider.saved()}
        return {**super().saved(), "strategy": dict(decided)}

    def restore(
        self, values: Mapping[str, Any], residuals: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]
    ) -> None:
        """See `LossyReducer.restore`; decisions continue if settings and number of ranks are the same."""
        super().restore(values, residuals)
        self._saved, self._decider, self._step = dict(values.get("strategy", {})), None, -1
        self._traffic = None
        self._exchanges.set(None)

    def _decide(self) -> None:
        """Decide what the step does, and let what the one before it measured go along with its first sum."""
        opened = self._decider is None
        if opened:
            decider = self._opened()
            with self._lock:
                self._decider = decider
        assert self._decider is not None
        words = self._exchanges.result()
        if words is not None:
            self._take(self._decider, Measurement.agreed(words))
        self._traffic = None if opened else self._exchanges.traffic(self._elements, self._sums)
        self._exchanges.set(self._measured(self._decider, self._traffic).words())
        self._reset()
        self._began = self._clock()

    def _reset(self) -> None:
        self._exchanges.reset()
        self._sums = self._elements = 0
        self._encode_s = self._offered = self._sent = 0.0

    def _opened(self) -> Decider:
        """Return a decider, restored if that is possible, once all ranks agree on it."""
        first = self.turns.backend
        decider = Decider(
            self._settings,
            _FIRST_ELEMENTS,
            first.workers,
            path=self._path,
            carriers=tuple(self._by_carrier),
            headers=_HEADERS,
            few_words=self._few_words,
        )
        if self._saved and self._saved["of"] == self._identity(decider):
            try:
                decider.restore(self._saved)
            except (KeyError, TypeError, ValueError) as error:
                raise CompressConfigError(
                    f"strategy: is not that of a saved state ({type(error).__name__}: {error}); "
                    "give what state_dict returned"
                ) from error
        elif self._saved:
            _LOGGER.info("strategy: saved with other settings or ranks; ratios are explored again")
        text = repr((self._identity(decider), decider.saved()))
        message = (
            f"strategy: not the same on every worker; worker {first.worker_id} has {self._settings!r}; "
            "pass the same settings, and restore the same step, on every worker"
        )
        first.sum_words([agreement(text, lambda: message)])
        return decider

    def _identity(self, decider: Decider) -> str:
        """Return what must be the same for a decider to go on from another's values."""
        return repr((self._settings, decider.carriers, self.turns.workers))

    def _measured(self, decider: Decider, traffic: Traffic | None) -> Measurement:
        """Exchange what was asked for; return its times, and all else of the step that had this traffic."""
        gone_s, times = self._clock() - self._began, dict[str, float]()
        if traffic is not None and decider.before is not None:
            times[f"{carrier_of(decider.before.method)}_small_s"] = self._exchanges.small.seconds
        for carrier, words in decider.next.probe_words.items():
            if carrier in decider.next.small:
                times[f"{carrier}_small_s"] = self._timed(carrier, 1)
            if words:
                times[f"{carrier}_probe_s"] = self._timed(carrier, words)
        if traffic is None:
            return Measurement(**times)
        return Measurement(
            **times,
            exchange_s=self._exchanges.seconds,
            compress_s=self._encode_s,
            compute_s=max(gone_s - self._exchanges.seconds - self._encode_s, 0.0),
            gain=self._gain(),
        )

    def _take(self, decider: Decider, measured: Measurement) -> None:
        """Let the decider take what all ranks agree on."""
        done = decider.before
        with self._lock:
            events = decider.observe(measured, self._traffic)
            self._events.extend(events)
            links, step = decider.links, decider.observed
            if done is not None:
                self._history.append(
                    DecidedStep(step, done.method, done.ratio, done.exploring, measured.exchange_s, links)
                )
        changed = any(isinstance(one, MethodChosen) for one in events)
        for one in events:
            # A link that changes nothing is of interest to few.
            quiet = isinstance(one, LinkChanged) and not changed
            _LOGGER.log(logging.DEBUG if quiet else logging.INFO, "step %d: %s", one.step, told(one))

    def _gain(self) -> float:
        """Return the compression gain of the step; 1 if there was nothing to send."""
        gain = self._sent / self._offered if self._offered else 1.0
        return gain if 0 <= gain <= 1 else 1.0

    def _timed(self, carrier: Carrier, words: int) -> float:
        """Return the seconds of an exchange of zeros."""
        zeros, started = Part(np.zeros(words, np.uint32), "add"), self._clock()
        self._by_carrier[carrier].sum_words([zeros])
        return self._clock() - started


def compressor_of(method: Method, ratio: float) -> Compressor:
    """Return the compressor of a method, which sends a share `ratio` of each tensor's elements."""
    if method in DENSE:
        return Dense()
    if method == "top_k_all_gather":
        return TopK(ratio, quantizer=Single())
    return TopK(ratio) if method == "top_k_switch" else StarTopK(ratio)


def path_of(summation: Summation) -> SwitchPath:
    """Return the path through the switch of a summation; the default for one that is not of a switch."""
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
    """Return the reducer that the arguments of a hook ask for; None if they ask for exact sums.

    over: the backend, for errors. switch: whether it is one. group_gathers: see `CompressorReducer`. spans:
    `span` and `note`, as of `Allreduce`. Raises CompressConfigError for what is not allowed.
    """
    method = checked(compressor, error_feedback)
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
    through = [one for one in strategy.methods or () if carrier_of(one) == "switch"]
    if through and not switch:
        raise CompressConfigError(
            f"strategy: method {through[0]!r} needs a switch, but over is {over!r}; "
            "use over='switch', or leave the method out"
        )
    return StrategyReducer(strategy, **spans)
