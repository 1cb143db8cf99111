"""A simulated network and gradient on which workers decide in lockstep, with seeded noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from peelsum.flexible import (
    CARRIERS,
    Decider,
    Event,
    Flexible,
    LinkModel,
    Measurement,
    Step,
    carrier_of,
    cost,
)

WORKERS = 4
ELEMENTS = 1_000_000


@dataclass
class World:
    """What is true at each step, and what happened. Each worker measures it with its own noise.

    `switch_link` is the link through the switch; None is the same as that of the process group.
    """

    link: Callable[[int], LinkModel]
    switch_link: Callable[[int], LinkModel] | None = None
    gain: Callable[[int, float], float] = lambda step, ratio: ratio**0.2
    noise: float = 0.05
    select_s: float = 1e-3
    compute_s: float = 5e-3
    seed: int = 0
    events: list[tuple[int, Event]] = field(default_factory=list)
    used: list[tuple[str, float, bool]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    probes: list[dict[str, int]] = field(default_factory=list)

    def run(self, settings: Flexible, steps: int, workers: int = WORKERS) -> list[Decider]:
        """Run steps with two workers' deciders; assert at each that both would do the same."""
        deciders = [Decider(settings, ELEMENTS, workers, carriers=CARRIERS) for _ in range(2)]
        random = np.random.default_rng(self.seed)
        for step in range(steps):
            plan = deciders[0].next
            assert all(one.next == plan for one in deciders)
            self.used.append((plan.method, plan.ratio, plan.exploring))
            self.probes.append(dict(plan.probe_words))
            words = [self._measured(step, deciders[0], random, workers).words() for _ in range(workers)]
            agreed = Measurement.agreed(np.bitwise_or.reduce(words))
            found = [one.observe(agreed) for one in deciders]
            assert all(one == found[0] for one in found)
            self.events += [(step, event) for event in found[0]]
        return deciders

    def _measured(
        self, step: int, decider: Decider, random: np.random.Generator, workers: int
    ) -> Measurement:
        plan, link = decider.next, self.link(step)
        links = {"group": link, "switch": self.switch_link(step) if self.switch_link else link}
        one = cost(
            plan.method, Step(ELEMENTS, plan.ratio, workers, links[carrier_of(plan.method)], select_s=0.0)
        )
        network_s = one.latency_s + one.transfer_s
        messages, shares = {"group": 2 * (workers - 1), "switch": 2}, {"group": 2 * (workers - 1) / workers}
        self.seconds.append(network_s)

        def noisy(seconds: float) -> float:
            return seconds * (1 + self.noise * random.exponential())

        measured = {"exchange_s": noisy(network_s)}
        for carrier, words in plan.probe_words.items():
            small_s = messages[carrier] * links[carrier].latency_s
            probe_s = small_s + 32 * words * shares.get(carrier, 1) / (links[carrier].gbps * 1e9)
            measured[f"{carrier}_small_s"] = noisy(small_s)
            measured[f"{carrier}_probe_s"] = noisy(probe_s) if words else 0.0
        return Measurement(
            **measured,
            compress_s=0.0 if plan.method.startswith("dense") else noisy(self.select_s),
            compute_s=noisy(self.compute_s),
            gain=1.0 if plan.method.startswith("dense") else self.gain(step, plan.ratio),
        )

    def of(self, kind: type[Event]) -> list[int]:
        """Return the steps of the events of one kind."""
        return [step for step, event in self.events if isinstance(event, kind)]
