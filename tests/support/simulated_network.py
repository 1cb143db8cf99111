"""A simulated network and gradient on which workers decide in lockstep, with seeded noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from peelsum.flexible import (
    CARRIERS,
    Carrier,
    Decider,
    Event,
    Flexible,
    LinkModel,
    Measurement,
    Next,
    Step,
    Traffic,
    carrier_of,
    cost,
    family_of,
)
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

#: A carrier, with messages in a row and words on its busiest link.
Sent = tuple[Carrier, float, float]

WORKERS = 4
ELEMENTS = 1_000_000


@dataclass
class World:
    """What is true at each step, and what happened. Each worker measures it with its own noise.

    `switch_link` is the link through the switch; None takes that of the process group. `shared` is the gain
    of one worker's positions, as a share of that of each worker's own.
    """

    link: Callable[[int], LinkModel]
    switch_link: Callable[[int], LinkModel] | None = None
    gain: Callable[[int, float], float] = lambda step, ratio: ratio**0.2
    shared: float = 1.0
    noise: float = 0.05
    select_s: float = 1e-3
    compute_s: float = 5e-3
    seed: int = 0
    events: list[tuple[int, Event]] = field(default_factory=list)
    used: list[tuple[str, float, bool]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    probes: list[dict[str, int]] = field(default_factory=list)
    probed: list[float] = field(default_factory=list)

    def run(self, settings: Flexible, steps: int, workers: int = WORKERS) -> list[Decider]:
        """Run steps with two workers' deciders; assert at each that both would do the same."""
        deciders = [Decider(settings, ELEMENTS, workers, carriers=CARRIERS) for _ in range(2)]
        random = np.random.default_rng(self.seed)
        for step in range(steps):
            plan = deciders[0].next
            assert all(one.next == plan for one in deciders)
            self.used.append((plan.method, plan.ratio, plan.exploring))
            self.probes.append(dict(plan.probe_words))
            sent = self._sent(step, plan, workers)
            self.seconds.append(self._seconds(step, sent[1]) + self.compute_s)
            self.probed.append(self._waited(step, plan, workers))
            words = [self._measured(step, plan, sent, random, workers).words() for _ in range(workers)]
            agreed = Measurement.agreed(np.bitwise_or.reduce(words))
            (_, first_messages, first_words), (_, messages, all_words) = sent
            traffic = Traffic(ELEMENTS, 1, messages, all_words, first_messages, first_words)
            found = [one.observe(agreed, traffic) for one in deciders]
            assert all(one == found[0] for one in found)
            self.events += [(step, event) for event in found[0]]
        return deciders

    def _sent(self, step: int, plan: Next, workers: int) -> tuple[Sent, Sent]:
        """Return carrier, messages and words of the step's header, and of all its collectives."""
        carrier = carrier_of(plan.method)
        one = cost(plan.method, Step(ELEMENTS, plan.ratio, workers, self._link(step, carrier), select_s=0.0))
        in_a_row = cost(plan.method, Step(ELEMENTS, plan.ratio, workers, LinkModel(1.0, 1.0))).latency_s
        header = 2.0 if carrier == "switch" else 1.0
        return (carrier, header, 64.0), (carrier, header + in_a_row, 64.0 + one.words)

    def _link(self, step: int, carrier: Carrier) -> LinkModel:
        return self.switch_link(step) if self.switch_link and carrier == "switch" else self.link(step)

    def _seconds(self, step: int, sent: Sent) -> float:
        carrier, messages, words = sent
        link = self._link(step, carrier)
        return messages * link.latency_s + 32 * words / (link.gbps * 1e9)

    def _probe(self, carrier: Carrier, words: int, workers: int) -> Sent:
        """Return carrier, messages and words of a probe."""
        if carrier == "switch":
            return carrier, 2.0, _framed(words)
        return carrier, 2.0 * (workers - 1), 2 * (workers - 1) / workers * words

    def _waited(self, step: int, plan: Next, workers: int) -> float:
        """Return the seconds that a step waits for its probes; beside other sums, only for long ones."""
        return sum(
            self._seconds(step, sent if used else (carrier, 0.0, sent[2]))
            for carrier, words in plan.probe_words.items()
            if (sent := self._probe(carrier, words, workers))
            and ((used := carrier == carrier_of(plan.method)) or words > 1)
            and words
        )

    def _measured(
        self, step: int, plan: Next, sent: tuple[Sent, Sent], random: np.random.Generator, workers: int
    ) -> Measurement:
        def noisy(seconds: float) -> float:
            return seconds * (1 + self.noise * random.exponential())

        first_s = noisy(self._seconds(step, sent[0]))
        measured = {
            f"{carrier}_probe_s": noisy(self._seconds(step, self._probe(carrier, words, workers)))
            for carrier, words in plan.probe_words.items()
            if words
        }
        return Measurement(
            **measured,
            first_s=first_s,
            exchange_s=first_s + noisy(self._seconds(step, sent[1]) - self._seconds(step, sent[0])),
            compress_s=0.0 if plan.method.startswith("dense") else noisy(self.select_s),
            compute_s=noisy(self.compute_s),
            gain=1.0 if plan.method.startswith("dense") else self._gain(step, plan),
        )

    def _gain(self, step: int, plan: Next) -> float:
        gain = self.gain(step, plan.ratio)
        return gain if family_of(plan.method) == "own" else self.shared * gain

    def of(self, kind: type[Event]) -> list[int]:
        """Return the steps of the events of one kind."""
        return [step for step, event in self.events if isinstance(event, kind)]


def _framed(words: int) -> float:
    """Return the words of whole packets."""
    return -(-words // 256) * (FRAME_HEADER_BYTES + packet_bytes(256)) / 4
