"""Train a subject over links that change as time passes, by a fixed method or by a strategy.

Training, bytes and compression gains are real, by the routes and counts of the communication hook. Time is
modelled: a step takes constant times for computing and selecting. Its exchanges take the time of the messages
and words that were counted, on the link of that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.in_process import InProcess
from benchmarks.accuracy.training import Training, TrainingSetting
from peelsum.compress import (
    CARRIERS,
    DENSE,
    CompressedResult,
    CompressedSum,
    Decider,
    Flexible,
    LinkModel,
    Measurement,
    Method,
    MethodChosen,
    StepPlan,
    StepTraffic,
    SwitchPath,
    carrier_of,
)
from peelsum.compress.collectives import Bytes, Route, StepExchanges
from peelsum.compress.costs import direct_cost
from peelsum.compress.reducers import compressor_of
from peelsum.summation import Part, Words
from peelsum.training import one_thread

T = TypeVar("T")

#: Modelled seconds of a step's computation, and of selecting elements.
COMPUTE_S, SELECT_S = 20e-3, 1e-3
#: As over gloo in the hook: fewer words go to all workers at once.
_FEW_WORDS = 2**12
_NOISE, _HEADERS = 0.05, 1
#: The networks: the link after so many seconds.
NETWORKS: dict[str, Callable[[float], LinkModel]] = {
    "steady_slow": lambda seconds: LinkModel(1e-4, 0.005),
    "alternating": lambda seconds: LinkModel(1e-4, 0.5 if int(seconds) % 2 else 0.005),
    "far": lambda seconds: LinkModel(1e-2 if seconds >= 0.5 else 1e-4, 0.5),
}


@dataclass(frozen=True)
class ChangingRun:
    """A training over links that changed."""

    curve: list[tuple[int, float, float]]
    """Steps done, modelled seconds until then, and the metric on data held out."""
    wire_bytes: int
    """Bytes that worker 0 contributed."""
    gain: float
    """Compression gain of worker 0, mean over steps."""
    changes: int
    """How often the strategy chose another method or ratio."""

    def reached(self, target: float) -> tuple[int, float] | None:
        """Return steps and seconds to the first measurement of at least `target`; None if there is none."""
        return next(((steps, seconds) for steps, seconds, value in self.curve if value >= target), None)


class _Group:
    """What a route needs of a process group, and of a queue, in which it is always this worker's turn."""

    few_words = _FEW_WORDS

    def __init__(self, member: InProcess) -> None:
        self.backend = member
        self.lanes, self.workers, self.worker_id = member.lanes, member.workers, member.worker_id

    def in_turn(self, work: Callable[[], T]) -> T:
        return work()

    def sum_words(self, parts: Sequence[Part], *, by: object = None) -> list[Words]:
        return self.backend.sum_words(parts)

    def broadcast(self, pieces: Sequence[Words], sources: Sequence[int]) -> list[Words]:
        return self.backend.broadcast(pieces, sources)[1]

    def gather_equal(self, data: Bytes) -> list[Bytes]:
        return self.backend.gather(data)


class ChangingTraining(Training):
    """A subject's training over `network`, by `fixed` method and ratio, or by `strategy`. Use it with `with`.

    All methods share each worker's memory of residuals, as in the hook.
    """

    def __init__(
        self,
        setting: TrainingSetting,
        network: Callable[[float], LinkModel],
        by: tuple[Method, float] | Flexible,
    ) -> None:
        self._network, self._path = network, SwitchPath()
        self._by_method: dict[tuple[int, Method, float], CompressedSum] = {}
        self._fixed = None if isinstance(by, Flexible) else StepPlan(*by, False, {})
        super().__init__(setting)
        self._exchanges = [StepExchanges() for _ in range(setting.workers)]
        self._elements = sum(parameter.numel() for parameter in self.subject.model.parameters())
        self._decider = None
        if isinstance(by, Flexible):
            self._decider = Decider(
                by,
                self._elements,
                setting.workers,
                path=self._path,
                carriers=CARRIERS,
                headers=_HEADERS,
                few_words=_FEW_WORDS,
            )
        self._random = np.random.default_rng([setting.seed, 3])
        self.seconds, self.gained, self.changes = 0.0, 0.0, 0
        #: Seconds of the last step by field of Measurement, and gains of all workers.
        self._last, self._gains = dict[str, float](), [0.0] * setting.workers
        self._traffic: StepTraffic | None = None

    @property
    def plan(self) -> StepPlan:
        """What the next step does."""
        if self._decider is not None:
            return self._decider.next
        assert self._fixed is not None
        return self._fixed

    def step(self) -> bool:
        """See `Training.step`; add the step's modelled seconds, and let a strategy decide the next step."""
        link, plan = self._network(self.seconds), self.plan
        if self._decider is not None:
            self.seconds += self._measure(self._decider, link)
        for exchanges in self._exchanges:
            exchanges.reset()
        finite = super().step()
        exchange_s = _seconds(link, self._exchanges[0].messages, self._exchanges[0].words)
        select_s = 0.0 if plan.method in DENSE else SELECT_S
        self.seconds += COMPUTE_S + select_s + exchange_s
        if self._decider is not None:
            self._observe(self._decider)
            small = self._exchanges[0].small
            self._last = {
                f"{carrier_of(plan.method)}_small_s": _seconds(link, small.messages, small.words),
                "exchange_s": exchange_s,
                "compress_s": select_s,
                "compute_s": COMPUTE_S,
            }
        return finite

    def _new_sums(self) -> list[Any]:
        """Make all sums again when one is needed."""
        self._by_method.clear()
        return []

    def _summed(self, rank: int, gradients: dict[str, NDArray[np.float32]]) -> CompressedResult:
        plan = self.plan
        key = rank, plan.method, plan.ratio
        if key not in self._by_method:
            member, exchanges = self._threads.members[rank], self._exchanges[rank]
            group = cast(Any, _Group(member))
            route = Route(group, exchanges, self._path, group, plan.method)
            self._by_method[key] = CompressedSum(
                route,
                compressor_of(plan.method, plan.ratio),
                self._memories[rank],
                error_feedback=True,
                collectives=route,
            )
        return self._by_method[key].sum(gradients, self.done)

    def _count(self, results: list[Any]) -> None:
        super()._count(results)
        self._gains = [
            result.sent_energy / result.offered_energy if result.offered_energy else 1.0 for result in results
        ]
        self.gained += self._gains[0]

    def _measure(self, decider: Decider, link: LinkModel) -> float:
        """Send all workers' measurements with the step's sums; return the seconds of the probes."""
        asked = {}
        for carrier, probe in decider.next.probe_words.items():
            for kind, count in (("small", int(carrier in decider.next.small)), ("probe", probe)):
                switch = self._path.hops, self._path.words(count)
                sent = direct_cost(self.setting.workers, count, _FEW_WORDS) if carrier == "group" else switch
                if count:
                    asked[f"{carrier}_{kind}_s"] = _seconds(link, *sent)
        self._traffic = self._exchanges[0].traffic(self._elements, 1) if self._last else None
        for rank, (exchanges, gain) in enumerate(zip(self._exchanges, self._gains, strict=True)):
            times = (self._last | asked).items()
            noisy = {name: seconds * (1 + _NOISE * self._random.exponential()) for name, seconds in times}
            measured = Measurement(**noisy, gain=min(gain, 1.0))
            exchanges.set(measured.words(rank, self.setting.workers))
        return sum(asked.values())

    def _observe(self, decider: Decider) -> None:
        """Let the decider take what all workers agree on."""
        words = self._exchanges[0].result()
        assert words is not None
        events = decider.observe(Measurement.agreed(words), self._traffic)
        self.changes += sum(isinstance(event, MethodChosen) for event in events)


def train_over(setting: TrainingSetting, network: str, by: tuple[Method, float] | Flexible) -> ChangingRun:
    """Train over one of NETWORKS, and measure the metric as often as the subject says.

    `setting.method` only determines the memories: a method with error feedback.
    """
    with one_thread(), ChangingTraining(setting, NETWORKS[network], by) as training:
        every = training.subject.every
        curve = [(0, 0.0, training.subject.measure())]
        while training.done < training.steps and training.step():
            if training.done % every == 0 or training.done == training.steps:
                curve.append((training.done, training.seconds, training.subject.measure()))
        gain = training.gained / max(training.done, 1)
        return ChangingRun(curve, training.wire_bytes, gain, training.changes)


def _seconds(link: LinkModel, messages: float, words: float) -> float:
    return messages * link.latency_s + 32 * words / (link.gbps * 1e9)
