"""Fixed ratios against the strategy, trained over links that change.

Four workers train scikit-learn's digits (38,282 parameters), in one process, by the compressors and routes of
the communication hook. Accuracies, steps, bytes and gains are measured. Time is modelled: a step computes for
20 ms and selects for 1 ms, and its exchanges take the messages and words that were counted, on the link of
that moment; so do the strategy's probes. It measures all with 5% of noise. Networks: 5 Mbit/s
(`steady_slow`), 5 and 500 Mbit/s in turn for a second each, the slow one first (`alternating`), and 500
Mbit/s whose latency rises from 0.1 to 10 ms after half a second (`far`). The rates
are to 38,282 parameters what gigabits are to millions. Fixed ratios are of `TopK` through the switch, with
error feedback. The strategy is `Flexible()`, which chooses among all methods, and explores in these steps.
The target is an accuracy of 0.94, measured every 10 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks import Experiment, Plot, Series, Size, Value
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

#: The method and the ratio of each row; the strategy chooses both.
FIXED = {
    "dense": ("dense_switch", 1.0),
    "top 10%": ("top_k_switch", 0.1),
    "top 1%": ("top_k_switch", 0.01),
    "top 0.1%": ("top_k_switch", 0.001),
}
FLEXIBLE = "flexible"
TARGET = 0.94


def measure(seed: int, network: str, method: str, steps: int, workers: int) -> dict[str, Value]:
    """Train digits; return the seconds and steps to the target accuracy, and the bytes sent in a step."""
    by = Flexible() if method == FLEXIBLE else FIXED[method]
    run = train_over(TrainingSetting("digits", "top-k", workers, "iid", seed, steps), network, by)  # type: ignore[arg-type]
    steps_to, seconds_to = run.reached(TARGET) or (None, None)
    done, seconds, accuracy = run.curve[-1]
    row: dict[str, Value] = {
        "seconds_to_target": seconds_to,
        "steps_to_target": steps_to,
        "accuracy": accuracy,
        "step_ms": 1e3 * seconds / done,
        "kb_a_step": run.wire_bytes / done / 1e3,
        "gain": run.gain,
        "changes": run.changes,
    }
    if steps_to is None:
        row["note"] = f"an accuracy of {TARGET} was not reached"
    return row


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


def near_the_best(medians: Any) -> str:
    """Return how much longer than the best fixed method the strategy takes, at most."""
    fixed = [medians.of(method) for method in FIXED if method in medians.by_series]
    best = [min(times) for times in zip(*fixed, strict=True)]
    worst = [
        max(time / least for time, least in zip(times, best, strict=True))
        for times in (medians.of(FLEXIBLE), *fixed)
    ]
    return f"""The strategy takes at most {worst[0]:.2f} times as long as the best fixed method of a network;
        every fixed method takes {min(worst[1:]):.2f} times as long, or more, on some network"""


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "seconds_to_target": "seconds until the accuracy was reached",
        "steps_to_target": "steps until then",
        "accuracy": "accuracy after the last step",
        "step_ms": "milliseconds of a step, mean over all",
        "kb_a_step": "kilobytes that a worker contributes in a step, mean over all",
        "gain": "compression gain of a step, mean over all",
        "changes": "how often the strategy chose another method or ratio",
    },
    modelled_columns=("seconds_to_target", "step_ms"),
    defaults={"network": tuple(NETWORKS), "method": (*FIXED, FLEXIBLE), "workers": 4},
    sizes={
        "quick": Size([{"network": "alternating", "method": ("top 1%", FLEXIBLE), "steps": 20}], 2),
        "usual": Size([{"steps": 200}], 3),
    },
    plots=[
        Plot(
            "seconds_to_target",
            x="network",
            y="seconds_to_target",
            lines="method",
            kind="bars",
            finding=near_the_best,
            setting="""Digits, four workers, an accuracy of 0.94; methods without a bar never reached it.
                Bytes are measured, time is modelled.""",
            ylabel="Time to the target (s)",
            names={
                "flexible": Series("peelsum's strategy", "blue", ours=True),
                **{method: Series(f"fixed: {method}", "grey") for method in FIXED},
                "steady_slow": "5 Mbit/s",
                "alternating": "5 and 500 Mbit/s in turn",
                "far": "500 Mbit/s, 10 ms",
            },
            height=4,
        )
    ],
    timed=False,
)
