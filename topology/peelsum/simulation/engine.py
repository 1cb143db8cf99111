"""The clock and the wires: nodes with ports, links between them, and time that advances in exact steps.

A packet takes at least `lookahead` from one node to the next. So what happens within a step of that length at
one node cannot reach another in the same step. A node therefore processes all packets of a step in one batch,
in order of their times, and the result is the same as one by one. This is conservative synchronisation
(Chandy and Misra, 1979).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from peelsum.simulation.links import LinkCounts, LinkSpec, SimulatedLink, total
from peelsum.simulation.trains import NEVER, PS_PER_S, Arrivals, SimulationError, Train, joined, merged

Outputs = list[tuple[int, Train]]


class Node(Protocol):
    """A host or a switch."""

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process arrivals and timers before `until`; return the packets sent, by port.

        Each port's packets are in one train, in order of time. All arrivals are before `until`.
        """

    def next_time(self) -> int:
        """Return the picosecond of the next timer if nothing arrives before, or NEVER."""


class Timerless:
    """A node that only answers packets: a switch."""

    def next_time(self) -> int:
        """Return NEVER."""
        return NEVER


@dataclass(eq=False)
class _Placed:
    """A node, its outgoing links by port, and what is on the way to it."""

    node: Node
    links: dict[int, tuple[SimulatedLink, _Placed, int]] = field(default_factory=dict)
    waiting: dict[int, list[Train]] = field(default_factory=dict)

    def next_time(self) -> int:
        """Return when the next packet arrives or the next timer runs out."""
        arrivals = (int(trains[0].times[0]) for trains in self.waiting.values() if trains)
        return min(arrivals, default=NEVER)

    def take(self, until: int) -> Arrivals | None:
        """Return what arrives before a time, and keep the rest."""
        due: list[tuple[int, Train]] = []
        for port, trains in self.waiting.items():
            while trains and trains[0].times[0] < until:
                whole = trains.pop(0)
                if whole.times[-1] < until:
                    due.append((port, whole))
                    continue
                now, later = whole.split(until)
                due.append((port, now))
                trains.insert(0, later)
        return merged(sorted(due, key=lambda item: item[0])) if due else None


class Engine:
    """A network of nodes. `steps` and `packets` count what it took; `now` is the time in picoseconds.

    step_ps: process at most so much time at once; by default as much as is exact, never more.
    link: makes a link of its properties, the seed and its number.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        step_ps: int | None = None,
        link: Callable[[LinkSpec, int, int], SimulatedLink] = SimulatedLink,
    ) -> None:
        self.now = 0
        self._new_link = link
        self.steps = self.packets = 0
        self._seed, self._step, self._limit = seed, NEVER, step_ps or NEVER
        self._placed: dict[int, _Placed] = {}
        #: Every direction of a link, by name.
        self.links: dict[str, SimulatedLink] = {}

    def add(self, node: Node) -> None:
        """Add a node. Nodes of one step are processed in the order in which they were added."""
        self._placed[id(node)] = _Placed(node)

    def connect(
        self, source: Node, port: int, target: Node, target_port: int, spec: LinkSpec, name: str
    ) -> None:
        """Connect a port of one node to a port of another, in this direction. `name` is for the counts."""
        link = self._new_link(spec, self._seed, len(self.links))
        self.links[name] = link
        self._placed[id(source)].links[port] = link, self._placed[id(target)], target_port
        self._step = min(self._step, link.lookahead, self._limit)

    def run(
        self, done: Callable[[], bool], until_s: float, on_step: Callable[[], None] | None = None
    ) -> None:
        """Advance time until `done()`. Raises SimulationError if it is not by `until_s`, or never will be."""
        while not done():
            if not self.step(round(until_s * PS_PER_S)):
                if self._next_time() == NEVER:
                    raise SimulationError("simulation: nothing more will happen, but hosts wait for packets")
                raise SimulationError(f"limit_s: not done after {until_s:g} s of simulated time; give more")
            if on_step is not None:
                on_step()

    def run_until(self, seconds: float) -> None:
        """Advance time up to `seconds`; nothing later is processed."""
        while self.step(round(seconds * PS_PER_S)):
            pass

    def step(self, end: int) -> bool:
        """Process what happens next, if it is before `end`; else advance to `end` and return False."""
        time = self._next_time()
        self.now = min(time, end)
        if time < end:
            self._advance(end)
        return time < end

    def send(self, source: Node, port: int, train: Train) -> None:
        """Send packets from a node's port."""
        links = self._placed[id(source)].links
        if port not in links:
            raise SimulationError(f"port {port}: leads nowhere; send to one of {', '.join(map(str, links))}")
        link, target, target_port = links[port]
        self.arrive(target.node, target_port, link.send(train))

    def arrive(self, node: Node, port: int, train: Train) -> None:
        """Let packets arrive at a node's port, as if from its link."""
        waiting = self._placed[id(node)].waiting.setdefault(port, [])
        if not len(train):
            return
        held_back = waiting and waiting[-1].times[-1] > train.times[0]
        waiting.append(train)
        if held_back:
            whole = joined(waiting)
            waiting[:] = [whole.rows(np.argsort(whole.times, kind="stable"))]

    def counts(self) -> dict[str, LinkCounts]:
        """Return the counts of every link by name."""
        return {name: link.counts() for name, link in self.links.items()}

    def total(self) -> LinkCounts:
        """Return the counts of all links together."""
        return total(list(self.counts().values()))

    def _next_time(self) -> int:
        times = (min(placed.next_time(), placed.node.next_time()) for placed in self._placed.values())
        return min(times, default=NEVER)

    def _advance(self, end: int = NEVER) -> None:
        until = min(self.now + self._step, end)
        self.steps += 1
        for placed in self._placed.values():
            arrivals = placed.take(until)
            if arrivals is None and placed.node.next_time() >= until:
                continue
            self.packets += len(arrivals) if arrivals is not None else 0
            for port, train in placed.node.run(arrivals, until):
                self.send(placed.node, port, train)


def together(trains: dict[int, list[Train]]) -> Outputs:
    """Return one train for each port, in order of ports."""
    return [(port, joined(parts)) for port, parts in sorted(trains.items())]
