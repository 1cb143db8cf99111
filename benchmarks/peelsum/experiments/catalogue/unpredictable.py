"""Fixed against flexible communication on networks that change.

Training steps of a million elements on four workers, all computed from the cost model of
`peelsum.flexible`; the strategy decides by the model's times with noise, and the words of its measurements
and its probes take their time. Methods over a process group and dense sums exchange a few words first, as in
the communication hook. Networks: 10 Gbit/s
(`steady_fast`), 100 Mbit/s (`steady_slow`), 10 Gbit/s that fall to 200 Mbit/s in the middle third
(`falling`), both in turn in ten parts (`alternating`), and 1 Gbit/s whose latency rises from 0.1 to 10 ms
half-way (`far`). A step computes for 5 ms. A step's gain is assumed: ratio\\*\\*0.2 for what selects, 1 for
dense sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from peelsum.experiments import Column, Experiment, Plot, Size, Value
from peelsum.flexible import (
    CARRIERS,
    DENSE,
    Decider,
    Flexible,
    LinkModel,
    Measurement,
    Method,
    MethodChosen,
    Next,
    Step,
    SwitchPath,
    Traffic,
    carrier_of,
    cost,
)
from peelsum.flexible.collectives import directly

_NOISE = 0.05
#: As over gloo in the hook: fewer words go to all workers at once.
_FEW_WORDS = 2**12
#: As in the hook: an exchange of a few words before each sum of a method that has none of its own.
_HEADERS = 1
_COMPUTE_S, _SELECT_NS = 5e-3, 1.0
#: The networks: the link at a share of the run that is done.
NETWORKS: dict[str, Callable[[float], LinkModel]] = {
    "steady_fast": lambda share: LinkModel(1e-4, 10.0),
    "steady_slow": lambda share: LinkModel(1e-4, 0.1),
    "falling": lambda share: LinkModel(1e-4, 0.2 if 1 / 3 <= share < 2 / 3 else 10.0),
    "alternating": lambda share: LinkModel(1e-4, 10.0 if int(share * 10) % 2 else 0.2),
    "far": lambda share: LinkModel(1e-2 if share >= 0.5 else 1e-4, 1.0),
}


@dataclass(frozen=True)
class Run:
    """The cost of a run of training steps."""

    seconds: float
    """Seconds of the network, selecting and computing, and of measuring."""
    measuring_s: float
    """Seconds of these that the words of measurements, small exchanges and probes took."""
    gain: float
    """Sum of the steps' compression gains: dense steps have 1 each."""
    changes: int
    """How often the method or ratio changed, without exploring."""


def gain(method: Method, ratio: float) -> float:
    """Return the assumed share of a gradient's energy that a step sends: ratio ** 0.2, or 1 for all of it."""
    return 1.0 if method in DENSE else float(ratio**0.2)


def fixed(network: str, method: Method, ratio: float, *, steps: int, elements: int, workers: int) -> Run:
    """Return what the same method takes in every step."""
    seconds = sum(_step_s(network, method, ratio, step / steps, elements, workers) for step in range(steps))
    return Run(seconds, 0.0, steps * gain(method, ratio), 0)


def flexible(network: str, *, steps: int, elements: int, workers: int, seed: int) -> Run:
    """Return what the strategy takes, exploring included; it looks for the least time for each gain."""
    random = np.random.default_rng(seed)
    settings = Flexible(prefer=1.0)
    decider = Decider(settings, elements, workers, carriers=CARRIERS, headers=_HEADERS, few_words=_FEW_WORDS)
    seconds, measuring_s, gained, changes = 0.0, 0.0, 0.0, 0
    traffic, last = None, [dict[str, float]() for _ in range(workers)]
    for step in range(steps):
        plan, link = decider.next, NETWORKS[network](step / steps)
        seconds += _step_s(network, plan.method, plan.ratio, step / steps, elements, workers)
        asked, along_s = _asked(plan, link, workers), _along_s(plan, link, workers)
        measuring_s += sum(asked.values()) + along_s
        gained += gain(plan.method, plan.ratio)
        words = [Measurement(**(one | _noisy(asked, random))).words() for one in last]
        events = decider.observe(Measurement.agreed(np.bitwise_or.reduce(words)), traffic)
        changes += sum(isinstance(event, MethodChosen) for event in events)
        of = _step(plan.method, plan.ratio, link, elements, workers)
        traffic = Traffic.modelled(plan.method, of)
        last = [_summed(plan, of, along_s, random) for _ in range(workers)]
    return Run(seconds + measuring_s, measuring_s, gained, changes)


def _step(method: Method, ratio: float, link: LinkModel, elements: int, workers: int) -> Step:
    select_s = _SELECT_NS * 1e-9 * elements
    return Step(elements, ratio, workers, link, select_s=select_s, headers=_HEADERS, few_words=_FEW_WORDS)


def _step_s(network: str, method: Method, ratio: float, share: float, elements: int, workers: int) -> float:
    step = _step(method, ratio, NETWORKS[network](share), elements, workers)
    return cost(method, step).seconds + _COMPUTE_S


def _along_s(plan: Next, link: LinkModel, workers: int) -> float:
    """Return the seconds that the measurements' words add to the first exchange of a step."""
    copies = 1 if carrier_of(plan.method) == "switch" else workers - 1
    return _exchange_s(link, 0, copies * Measurement().words().size)


def _asked(plan: Next, link: LinkModel, workers: int) -> dict[str, float]:
    """Return the seconds of the small exchanges and probes asked for, by field of Measurement."""
    times, path = {}, SwitchPath()
    for carrier, probe in plan.probe_words.items():
        for kind, words in (("small", int(carrier in plan.small)), ("probe", probe)):
            group = carrier == "group"
            sent = directly(workers, words, _FEW_WORDS) if group else (path.hops, path.words(words))
            if words:
                times[f"{carrier}_{kind}_s"] = _exchange_s(link, *sent)
    return times


def _exchange_s(link: LinkModel, messages: float, words: float) -> float:
    return messages * link.latency_s + 32 * words / (link.gbps * 1e9)


def _noisy(times: Mapping[str, float], random: np.random.Generator) -> dict[str, float]:
    return {name: float(one * (1 + _NOISE * random.exponential())) for name, one in times.items()}


def _summed(plan: Next, step: Step, along_s: float, random: np.random.Generator) -> dict[str, float]:
    """Return what one worker measures of a step's sums, by field of Measurement."""
    one = cost(plan.method, step)
    small_s = Traffic.modelled(plan.method, step).small_messages * step.link.latency_s
    times = {
        f"{carrier_of(plan.method)}_small_s": small_s + along_s,
        "exchange_s": one.latency_s + one.transfer_s + along_s,
        "compress_s": 0.0 if plan.method in DENSE else step.compress_s,
        "compute_s": _COMPUTE_S,
    }
    return _noisy(times, random) | {"gain": gain(plan.method, plan.ratio)}


#: The methods with the ratio that each sends; the strategy chooses both.
FIXED = {
    "dense, ring": ("dense_ring", 1.0),
    "dense, switch": ("dense_switch", 1.0),
    "top 1%, all_gather": ("top_k_all_gather", 0.01),
    "top 1%, switch": ("top_k_switch", 0.01),
    "AR-Topk 1%, ring": ("ar_top_k_ring", 0.01),
    "AR-Topk 0.1%, switch": ("ar_top_k_switch", 0.001),
}
FLEXIBLE = "flexible"


def measure(
    seed: int, network: str, method: str, steps: int, elements: int, workers: int
) -> dict[str, Value]:
    """Compute the time of training steps by the cost model."""

    def of(name: str) -> Run:
        way, ratio = FIXED[name]
        return fixed(network, way, ratio, steps=steps, elements=elements, workers=workers)  # type: ignore[arg-type]

    if method == FLEXIBLE:
        one = flexible(network, steps=steps, elements=elements, workers=workers, seed=seed)
    else:
        one = of(method)
    best = min(run.seconds / run.gain for run in map(of, FIXED))
    return {
        "step_ms": 1e3 * one.seconds / steps,
        "measuring_ms": 1e3 * one.measuring_s / steps,
        "gain": one.gain / steps,
        "ms_for_gain": 1e3 * one.seconds / one.gain,
        "over_best_fixed": one.seconds / one.gain / best,
        "changes": one.changes,
    }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "step_ms": Column("milliseconds of a step", modelled=True),
        "measuring_ms": Column(
            "milliseconds of these that the words of measurements, and probes, take", modelled=True
        ),
        "gain": Column("assumed gain of a step", modelled=True),
        "ms_for_gain": Column("milliseconds for a gain of 1", modelled=True),
        "over_best_fixed": Column(
            "milliseconds for a gain of 1, over those of the best fixed method", modelled=True
        ),
        "changes": Column("how often the strategy chose another method or ratio", modelled=True),
    },
    defaults={"network": tuple(NETWORKS), "method": (*FIXED, FLEXIBLE), "elements": 1_000_000, "workers": 4},
    sizes={
        "quick": Size([{"network": ("steady_fast", "falling"), "steps": 200}], 3),
        "usual": Size([{"steps": 600}], 7),
        "full": Size([{"steps": 3000}], 15),
    },
    plots=[Plot("over_best_fixed", x="network", y="over_best_fixed", lines="method", log="y")],
    timed=False,
)
