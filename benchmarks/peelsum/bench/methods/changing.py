"""A network that changes while training runs: fixed methods against the strategy, by the cost model.

Workers decide in lockstep, as in training; what they measure is the cost model's time with noise. Nothing is
sent.
"""

from __future__ import annotations

from collections.abc import Callable
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
    Step,
    cost,
)

_NOISE = 0.05
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
    """Seconds of the network, selecting and computing."""
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
    return Run(seconds, steps * gain(method, ratio), 0)


def flexible(network: str, *, steps: int, elements: int, workers: int, seed: int) -> Run:
    """Return what the strategy takes, exploring included; it looks for the least time for each gain."""
    random = np.random.default_rng(seed)
    decider = Decider(Flexible(prefer=1.0), elements, workers, carriers=CARRIERS)
    seconds, gained, changes = 0.0, 0.0, 0
    for step in range(steps):
        plan, share = decider.next, step / steps
        seconds += _step_s(network, plan.method, plan.ratio, share, elements, workers)
        gained += gain(plan.method, plan.ratio)
        words = [
            _measured(decider, NETWORKS[network](share), random, elements, workers) for _ in range(workers)
        ]
        events = decider.observe(Measurement.agreed(np.bitwise_or.reduce(words)))
        changes += sum(isinstance(event, MethodChosen) for event in events)
    return Run(seconds, gained, changes)


def _step_s(network: str, method: Method, ratio: float, share: float, elements: int, workers: int) -> float:
    step = Step(elements, ratio, workers, NETWORKS[network](share), select_s=_SELECT_NS * 1e-9 * elements)
    return cost(method, step).seconds + _COMPUTE_S


def _measured(
    decider: Decider, link: LinkModel, random: np.random.Generator, elements: int, workers: int
) -> np.ndarray:
    """Return one worker's measurement of the step that the decider planned, as words."""
    plan = decider.next
    select_s = _SELECT_NS * 1e-9 * elements
    one = cost(plan.method, Step(elements, plan.ratio, workers, link, select_s=0.0))

    def noisy(seconds: float) -> float:
        return float(seconds * (1 + _NOISE * random.exponential()))

    measured = {"exchange_s": noisy(one.latency_s + one.transfer_s)}
    for carrier, words in plan.probe_words.items():
        ring = carrier == "group"
        small_s = (2 * (workers - 1) if ring else 2) * link.latency_s
        share = 2 * (workers - 1) / workers if ring else 1.0
        measured[f"{carrier}_small_s"] = noisy(small_s)
        probe_s = small_s + 32 * words * share / (link.gbps * 1e9)
        measured[f"{carrier}_probe_s"] = noisy(probe_s) if words else 0.0
    dense = plan.method in DENSE
    return Measurement(
        **measured,
        compress_s=0.0 if dense else noisy(select_s),
        compute_s=noisy(_COMPUTE_S),
        gain=gain(plan.method, plan.ratio),
    ).words()
