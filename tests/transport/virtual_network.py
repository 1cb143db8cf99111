"""A seeded network in virtual time: workers and servers joined through the specification's switch.

Every hop may drop, repeat, hold back or delay a packet. It owns time and the order of events, and knows
nothing of what the packets mean.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from peelsum.spec import SpecSwitch
from peelsum.transport import AggregationServer, JobConfig, JobFinished, TensorCompleted, WorkerEndpoint
from peelsum.wire import CPU_PORT, EVERYONE, Kind, pack

Words = NDArray[np.uint32]
HOP = 50e-6


@dataclass(frozen=True)
class Faults:
    """Probabilities of what happens to a packet on one hop. A delayed packet arrives within 20 ms."""

    drop: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0

    @classmethod
    def drawn(cls, random: Random, most: float) -> Faults:
        return cls(*(random.uniform(0, most) for _ in range(4)))


@dataclass
class Actor:
    """A worker or a server behind a switch port."""

    port: int
    machine: WorkerEndpoint | AggregationServer
    wake_at: float | None = None
    alive: bool = True
    sums: dict[int, Words] = field(default_factory=dict)
    confirmed: bool | None = None


class VirtualNetwork:
    """One switch, any number of jobs, and a clock that only events advance."""

    def __init__(self, seed: int, *, lanes: int, slots: int, faults: Faults, age_limit: int) -> None:
        self.random = Random(seed)
        self.lanes, self.slots, self.faults = lanes, slots, faults
        self.switch = SpecSwitch(lanes, slots)
        self.switch.set_age_limit(age_limit)
        self.now = 0.0
        self.packets = 0
        self.actors: dict[int, Actor] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbered = 0

    # -- setting up ------------------------------------------------------------------------------------

    def admit(self, config: JobConfig, first_port: int, salt: int = 0) -> list[Actor]:
        """Admit a job, its server at `first_port` and its workers at the next ports; return the workers."""
        ports = [first_port + 1 + worker for worker in range(config.workers)]
        self.switch.admit_job(
            config.job_id,
            generation=config.generation,
            salt=salt,
            expected_mask=config.expected_mask,
            up_port=first_port,
            group=config.job_id,
        )
        self.switch.admit_server(config.job_id, first_port)
        self.switch.set_group(config.job_id, ports)
        self.actors[first_port] = Actor(first_port, AggregationServer(config))
        for worker, port in enumerate(ports):
            self.switch.admit_worker(config.job_id, port, worker_mask=1 << worker, worker_id=worker)
            self.switch.return_to(config.job_id, worker, port)
            self.actors[port] = Actor(port, WorkerEndpoint(config, worker))
        assert EVERYONE not in range(config.workers)
        return [self.actors[port] for port in ports]

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call a function at a virtual time."""
        self._numbered += 1
        heapq.heappush(self._events, (time, self._numbered, action))

    def reset_slots(self) -> None:
        """Free every slot in-band, as a controller does when it raises a job's generation."""
        reset = pack(
            np.zeros((self.slots, self.lanes), np.uint32), kind=Kind.RESET, chunk_id=range(self.slots)
        )
        for packet in reset:
            assert self.switch.process(CPU_PORT, packet.tobytes(), int(self.now * 1e6))

    def restart_server(self, port: int) -> None:
        """Replace the server by one without state."""
        actor = self.actors[port]
        actor.machine, actor.wake_at = AggregationServer(actor.machine.config), None

    def restart_switch(self) -> None:
        """Clear the switch's registers; the controller restores its tables."""
        fresh = SpecSwitch(self.lanes, self.slots)
        self.switch.state = fresh.state

    # -- running ---------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool], *, seconds: float, packets: int) -> None:
        """Advance time until `done()`. Raises AssertionError if that takes more virtual time or packets.

        Whatever happens, happens because of a packet or a timer: events are bounded with the packets, so that
        a timer that is always due fails too.
        """
        for _ in range(10 * packets):
            if done():
                return
            assert self._events, f"nothing will ever happen again at {self.now:.3f} s"
            self.now, _, action = heapq.heappop(self._events)
            assert self.now <= seconds, f"not done after {seconds} virtual seconds"
            assert self.packets <= packets, f"not done after {packets} packets"
            action()
        raise AssertionError(f"not done after {10 * packets} events")

    def poke(self, actor: Actor) -> None:
        """Send all of an actor's packets, and schedule its next timer."""
        if not actor.alive:
            return
        while len(batch := actor.machine.to_send(self.now, limit=self.random.choice([1, 3, 64]))):
            for packet in batch:
                self._hop(lambda payload, port=actor.port: self._at_switch(port, payload), packet.tobytes())
        due = actor.machine.next_timer()
        if due is not None and (actor.wake_at is None or due < actor.wake_at):
            actor.wake_at = max(due, self.now)
            self.at(actor.wake_at, lambda when=actor.wake_at: self._wake(actor, when))

    def _wake(self, actor: Actor, when: float) -> None:
        if actor.wake_at == when and actor.alive:
            actor.wake_at = None
            self._note(actor, actor.machine.expire(self.now))
            self.poke(actor)

    def _hop(self, arrive: Callable[[bytes], None], payload: bytes) -> None:
        random, faults = self.random, self.faults
        copies = 1 + (random.random() < faults.repeat)
        for _ in range(copies):
            if random.random() < faults.drop:
                continue
            self.packets += 1
            time = self.now + HOP
            if random.random() < faults.reorder:
                time += random.uniform(0, 10 * HOP)
            if random.random() < faults.delay:
                time += random.uniform(0, 0.02)
            self.at(time, lambda: arrive(payload))

    def _at_switch(self, port: int, payload: bytes) -> None:
        for out, packet in self.switch.process(port, payload, int(self.now * 1e6)):
            self._hop(lambda copy, out=out: self._at_actor(self.actors[out], copy), packet)

    def _at_actor(self, actor: Actor, payload: bytes) -> None:
        if actor.alive:
            batch = np.frombuffer(bytearray(payload), np.uint8)[None, :]
            self._note(actor, actor.machine.receive(batch, self.now))
            self.poke(actor)

    def _note(self, actor: Actor, events: list[object]) -> None:
        for event in events:
            match event:
                case TensorCompleted(ticket, words):
                    assert ticket not in actor.sums, "a tensor completed twice"
                    actor.sums[ticket] = words.copy()
                case JobFinished(_, confirmed) if isinstance(actor.machine, WorkerEndpoint):
                    actor.confirmed, actor.alive = confirmed, False
