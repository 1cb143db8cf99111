"""A model of what a network and a gradient cost, on which workers decide in lockstep, with seeded noise."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from peelsum import compress
from peelsum.compress.costs import all_reduce_cost

WORKERS = 4
ELEMENTS = 1_000_000


@dataclass
class World:
    """What is true at each step, and what happened. Each worker measures it with its own noise.

    `switch_link` is the link through the switch; None is the same as that of the process group. `summing` is
    called with each step and its decision, before `gain`.
    """

    link: Callable[[int], compress.LinkModel]
    switch_link: Callable[[int], compress.LinkModel] | None = None
    gain: Callable[[int, float], float] = lambda step, ratio: ratio**0.2
    summing: Callable[[int, compress.StepPlan], None] = lambda step, plan: None
    noise: float = 0.05
    select_s: float = 1e-3
    compute_s: float = 5e-3
    seed: int = 0
    events: list[tuple[int, compress.Event]] = field(default_factory=list)
    used: list[tuple[str, float, bool]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    probes: list[dict[str, int]] = field(default_factory=list)

    def run(self, settings, steps, workers=WORKERS):
        """Run steps with two workers' deciders; assert at each that both would do the same."""
        deciders = [
            compress.Decider(settings, ELEMENTS, workers, carriers=compress.CARRIERS, headers=1)
            for _ in range(2)
        ]
        random = np.random.default_rng(self.seed)
        traffic, last = None, [dict[str, float]() for _ in range(workers)]
        for step in range(steps):
            plan = deciders[0].next
            assert all(one.next == plan for one in deciders)
            self.used.append((plan.method, plan.ratio, plan.exploring))
            self.probes.append(dict(plan.probe_words))
            words = [
                compress.Measurement(**{**one, **self._asked(step, plan, random, workers)}).words(
                    rank, workers
                )
                for rank, one in enumerate(last)
            ]
            agreed = compress.Measurement.agreed(np.bitwise_or.reduce(words))
            found = [one.observe(agreed, traffic) for one in deciders]
            assert all(one == found[0] for one in found)
            self.events += [(step, event) for event in found[0]]
            traffic = modelled(plan.method, self._step(step, plan, workers))
            self.summing(step, plan)
            last = [self._summed(step, plan, random, workers) for _ in range(workers)]
        return deciders

    def _links(self, step):
        link = self.link(step)
        return {"group": link, "switch": self.switch_link(step) if self.switch_link else link}

    def _step(self, step, plan, workers):
        link = self._links(step)[compress.carrier_of(plan.method)]
        return compress.Workload(ELEMENTS, plan.ratio, workers, link, select_s=0.0, headers=1)

    def _noisy(self, seconds, random):
        return seconds * (1 + self.noise * random.exponential())

    def _asked(self, step, plan, random, workers):
        """Return the times of the small exchanges and probes that the plan asks for."""
        times, path = {}, compress.SwitchPath()
        for carrier, probe in plan.probe_words.items():
            link = self._links(step)[carrier]
            for kind, words in (("small", int(carrier in plan.small)), ("probe", probe)):
                messages, sent = (
                    (2, path.words(words)) if carrier == "switch" else all_reduce_cost(workers, words)
                )
                seconds = messages * link.latency_s + 32 * sent / (link.gbps * 1e9)
                if words:
                    times[f"{carrier}_{kind}_s"] = self._noisy(seconds, random)
        return times

    def _summed(self, step, plan, random, workers):
        """Return what a worker measures of a step's sums."""
        of, dense = self._step(step, plan, workers), plan.method in compress.DENSE
        one, small_s = compress.cost(plan.method, of), modelled(plan.method, of).small_messages
        network_s = one.latency_s + one.transfer_s
        self.seconds.append(network_s)
        return {
            f"{compress.carrier_of(plan.method)}_small_s": self._noisy(small_s * of.link.latency_s, random),
            "exchange_s": self._noisy(network_s, random),
            "compress_s": 0.0 if dense else self._noisy(self.select_s, random),
            "compute_s": self._noisy(self.compute_s, random),
            "gain": 1.0 if dense else self.gain(step, plan.ratio),
        }

    def of(self, kind):
        """Return the steps of the events of one kind."""
        return [step for step, event in self.events if isinstance(event, kind)]


def modelled(method, step):
    """Return the cost model's prediction of a step; its small exchange is a header of no words."""
    one, alpha = compress.cost(method, step), replace(step, link=compress.LinkModel(1.0, 1.0))
    messages = compress.cost(method, alpha).latency_s
    bare = compress.cost(method, replace(alpha, headers=0)).latency_s
    small = (messages - bare) / (step.sums * step.headers) if step.headers else 0.0
    return compress.StepTraffic(step.elements, step.sums, messages, one.words, small)
