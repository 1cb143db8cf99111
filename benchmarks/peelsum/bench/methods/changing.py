"""A network that changes while training runs: fixed methods against the strategy, by the cost model.

Workers decide in lockstep, as in training; what they measure is the cost model's time with noise. The
strategy's exchanges of measurements, and its probes, take that time, too. Nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

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
    cost,
)

_NOISE = 0.05
#: As over gloo in the hook: fewer words go to all workers at once.
_FEW_WORDS = 2**12
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
    """Seconds of these in which the strategy exchanged measurements and probes."""
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
    decider = Decider(Flexible(prefer=1.0), elements, workers, carriers=CARRIERS, few_words=_FEW_WORDS)
    seconds, measuring_s, gained, changes = 0.0, 0.0, 0.0, 0
    for step in range(steps):
        plan, share = decider.next, step / steps
        seconds += _step_s(network, plan.method, plan.ratio, share, elements, workers)
        times = _measuring(plan, NETWORKS[network](share), workers)
        measuring_s += sum(times.values())
        gained += gain(plan.method, plan.ratio)
        words = [
            _measured(plan, times, NETWORKS[network](share), random, elements, workers)
            for _ in range(workers)
        ]
        events = decider.observe(Measurement.agreed(np.bitwise_or.reduce(words)))
        changes += sum(isinstance(event, MethodChosen) for event in events)
    return Run(seconds + measuring_s, measuring_s, gained, changes)


def _step_s(network: str, method: Method, ratio: float, share: float, elements: int, workers: int) -> float:
    link, select_s = NETWORKS[network](share), _SELECT_NS * 1e-9 * elements
    step = Step(elements, ratio, workers, link, select_s=select_s, few_words=_FEW_WORDS)
    return cost(method, step).seconds + _COMPUTE_S


def _measuring(plan: Next, link: LinkModel, workers: int) -> dict[str, float]:
    """Return the seconds of a step's exchanges of measurements and of its probes, by field of Measurement."""
    few = Measurement().words().size
    times = {
        "group_small_s": _exchange_s(link, 1, (workers - 1) * few),
        "switch_small_s": _exchange_s(link, 2, few),
    }
    ring = 2 * (workers - 1)
    for carrier, words in plan.probe_words.items():
        sent = (ring, ring / workers * words) if carrier == "group" else (2, words)
        times[f"{carrier}_probe_s"] = _exchange_s(link, *sent) if words else 0.0
    return times


def _exchange_s(link: LinkModel, messages: float, words: float) -> float:
    return messages * link.latency_s + 32 * words / (link.gbps * 1e9)


def _measured(
    plan: Next,
    times: Mapping[str, float],
    link: LinkModel,
    random: np.random.Generator,
    elements: int,
    workers: int,
) -> np.ndarray:
    """Return one worker's measurement of a step whose measuring took `times`, as words."""
    dense, select_s = plan.method in DENSE, _SELECT_NS * 1e-9 * elements
    step = Step(elements, plan.ratio, workers, link, select_s=0.0, few_words=_FEW_WORDS)
    one = cost(plan.method, step)

    def noisy(seconds: float) -> float:
        return float(seconds * (1 + _NOISE * random.exponential()))

    return Measurement(
        **{name: noisy(seconds) for name, seconds in times.items()},
        exchange_s=noisy(one.latency_s + one.transfer_s),
        compress_s=0.0 if dense else noisy(select_s),
        compute_s=noisy(_COMPUTE_S),
        gain=gain(plan.method, plan.ratio),
    ).words()
