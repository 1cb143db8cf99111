"""A seeded network in virtual time: the simulation's engine, with faults on its links, and hosts for tests.

A switch, or two levels of switches, joins workers and servers. Every link may drop, repeat, hold back or
delay a packet. It knows nothing of what the packets mean.
"""

import heapq
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np
from numpy.typing import NDArray

from peelsum.control.description import SwitchMember, SwitchPlan
from peelsum.control.sections import SwitchSection
from peelsum.simulation import Train
from peelsum.simulation.engine import Engine
from peelsum.simulation.links import LinkSpec, SimulatedLink
from peelsum.simulation.switches import SpecifiedSwitch
from peelsum.simulation.trains import NEVER, PS_PER_S, ps
from peelsum.spec import SpecSwitch
from peelsum.transport import AggregationServer, JobFinished, TensorCompleted, WorkerEndpoint
from peelsum.wire import CPU_PORT, MAX_WORKERS, Kind, Level, pack

Words = NDArray[np.uint32]
HOP = 50e-6
#: A leaf's port to the spine, and the spine's to the first rack.
UPLINK, RACK_PORT = 500, 501
_WIRE = LinkSpec(gbps=100_000.0, delay_s=HOP, queue=1 << 14)


@dataclass(frozen=True)
class Faults:
    """Probabilities of what happens to a packet on one hop. A delayed packet arrives within 20 ms."""

    drop: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0

    @classmethod
    def drawn(cls, random, most):
        return cls(*(random.uniform(0, most) for _ in range(4)))


@dataclass
class Actor:
    """A worker or a server behind a switch port. `due` is the picosecond of its next turn."""

    port: int
    machine: WorkerEndpoint | AggregationServer
    due: int = NEVER
    alive: bool = True
    sums: dict[int, Words] = field(default_factory=dict)
    confirmed: bool | None = None

    def note(self, events):
        for event in events:
            match event:
                case TensorCompleted(ticket, words):
                    assert ticket not in self.sums, "a tensor completed twice"
                    self.sums[ticket] = words.copy()
                case JobFinished(_, confirmed) if isinstance(self.machine, WorkerEndpoint):
                    self.confirmed, self.alive = confirmed, False


class FaultyLink(SimulatedLink):
    """A link on which the network's faults of the moment happen, drawn packet by packet."""

    def __init__(self, network, spec, seed, number):
        super().__init__(spec, seed, number)
        self._network = network

    def send(self, train):
        random, faults = self._network.random, self._network.faults
        rows, late = [], []
        for row in range(len(train)):
            for _ in range(1 + (random.random() < faults.repeat)):
                if random.random() < faults.drop:
                    continue
                held = random.uniform(0, 10 * HOP) if random.random() < faults.reorder else 0.0
                held += random.uniform(0, 0.02) if random.random() < faults.delay else 0.0
                rows.append(row)
                late.append(ps(held))
        arrived = super().send(train.rows(np.array(rows, np.intp)))
        assert len(arrived) == len(rows), "a queue was full"
        times = arrived.times + np.array(late, np.int64)
        order = np.argsort(times, kind="stable")
        return Train(times[order], arrived.sizes[order], arrived.data[order])


class Place:
    """The host behind one port: whichever actor is there at the moment."""

    def __init__(self, network, port):
        self._network, self._port = network, port

    def next_time(self):
        actor = self._network.actors[self._port]
        return actor.due if actor.alive else NEVER

    def run(self, arrivals, until):
        """Take arrivals and timers before `until`, each at its time."""
        actor, sent = self._network.actors[self._port], []
        times = [] if arrivals is None else arrivals.train.times.tolist()
        for number, at in enumerate([*times, until]):
            while (due := self.next_time()) < at:
                actor.note(actor.machine.expire(due / PS_PER_S))
                sent += self._turn(actor, due)
            if at < until and actor.alive:
                batch = arrivals.train.data[number : number + 1].copy()
                actor.note(actor.machine.receive(batch, at / PS_PER_S))
                sent += self._turn(actor, at)
        if not sent:
            return []
        data = np.concatenate([packets for _, packets in sent])
        return [(0, train_of(data, np.repeat([at for at, _ in sent], [len(each) for _, each in sent])))]

    def _turn(self, actor, now):
        """Take all that an actor has to send, and note when it next wants to be asked."""
        sent, network = [], self._network
        network.turns += 1
        assert network.turns <= network.most_turns, "a timer is always due"
        while len(batch := actor.machine.to_send(now / PS_PER_S, limit=network.random.choice([1, 3, 64]))):
            sent.append((now, batch.copy()))
        due = actor.machine.next_timer()
        actor.due = NEVER if due is None else max(ps(due) + 1, now)
        return sent


def train_of(data, times):
    return Train(times.astype(np.int64), np.full(len(data), data.shape[1], np.int32), data)


class VirtualNetwork:
    """A switch with any number of jobs, and a clock that only events advance.

    With racks, `switch` is the spine, and `leaves` are the racks' switches. A job's server is at a port p of
    the (spine) switch, its worker n at port p + 1 + n of its rack's.
    """

    def __init__(self, seed, *, lanes, slots, faults, age_limit, racks=0, make_switch=None):
        self.random = Random(seed)
        self.lanes, self.slots, self.faults = lanes, slots, faults
        self.switches = [(make_switch or self._fresh)() for _ in range(1 + racks)]
        self.switch, *self.leaves = self.switches
        self.engine = Engine(seed, link=partial(FaultyLink, self))
        self.actors = {}
        self.turns = self.most_turns = 0
        self._places = {}
        self._actions = []
        self._numbered = 0
        self._nodes = [SpecifiedSwitch(switch) for switch in self.switches]
        for switch, node in zip(self.switches, self._nodes, strict=True):
            switch.set_age_limit(age_limit)
            self.engine.add(node)
        for rack, leaf in enumerate(self._nodes[1:]):
            self._connect(leaf, UPLINK, self._nodes[0], RACK_PORT + rack)

    def _fresh(self):
        return SpecSwitch(self.lanes, self.slots)

    @property
    def now(self):
        return self.engine.now / PS_PER_S

    # -- setting up ------------------------------------------------------------------------------------

    def admit(self, config, first_port, salt=0):
        """Admit a job on all switches; return its workers in the order of their numbers."""
        ports = {number: first_port + 1 + number for number in config.worker_ids}
        spine, *leaves = self._nodes

        def admit(switch, level, up, members, back):
            plan = SwitchPlan(SwitchSection(), config.job_id, config.window, level, up, tuple(members), back)
            switch.admit(plan, config.generation, salt)

        for rack, switch in enumerate(leaves or [spine]):
            back = {number: port for number, port in ports.items() if number // MAX_WORKERS == rack}
            members = [SwitchMember(port, 1 << number % MAX_WORKERS, number) for number, port in back.items()]
            level, up = (Level.LEAF, UPLINK) if leaves else (Level.ONLY, first_port)
            admit(switch, level, up, members, back)
        if leaves:
            racks = range(len(leaves))
            members = [SwitchMember(RACK_PORT + n, 1 << n, MAX_WORKERS * n, is_rack=True) for n in racks]
            back = {number: RACK_PORT + number // MAX_WORKERS for number in ports}
            admit(spine, Level.SPINE, first_port, members, back)
        self._put(Actor(first_port, AggregationServer(config)), spine)
        for number, port in ports.items():
            at = leaves[number // MAX_WORKERS] if leaves else spine
            self._put(Actor(port, WorkerEndpoint(config, number)), at)
        return [self.actors[port] for port in ports.values()]

    def _put(self, actor, switch):
        self.actors[actor.port] = actor
        if actor.port not in self._places:
            place = Place(self, actor.port)
            self._places[actor.port] = place, switch
            self.engine.add(place)
            self._connect(place, 0, switch, actor.port)

    def _connect(self, a, a_port, b, b_port):
        count = len(self.engine.links)
        self.engine.connect(a, a_port, b, b_port, _WIRE, f"{count}")
        self.engine.connect(b, b_port, a, a_port, _WIRE, f"{count + 1}")

    def at(self, time, action):
        """Call a function at a virtual time."""
        self._numbered += 1
        heapq.heappush(self._actions, (ps(time), self._numbered, action))

    def reset_slots(self):
        """Free every slot in-band, as a controller does when it raises a job's generation."""
        lanes = np.zeros((self.slots, self.lanes), np.uint32)
        for packet in pack(lanes, kind=Kind.RESET, chunk_id=range(self.slots)):
            for switch in self.switches:
                assert switch.process(CPU_PORT, packet.tobytes(), int(self.now * 1e6))

    def restart_server(self, port):
        """Replace the server by one without state."""
        actor = self.actors[port]
        actor.machine, actor.due = AggregationServer(actor.machine.config), NEVER

    def restart_switch(self, which=0):
        """Clear a switch's registers; the controller restores its tables. Rack r's is number 1 + r."""
        self.switches[which].state = self._fresh().state

    # -- running ---------------------------------------------------------------------------------------

    def run_until(self, done, *, seconds, packets):
        """Advance time until `done()`. Raises AssertionError if that takes more virtual time or packets.

        Whatever happens, happens because of a packet or a timer: hosts' turns are bounded with the packets,
        so that a timer that is always due fails too.
        """
        self.most_turns = self.turns + 10 * packets
        while not done():
            acts_at = self._actions[0][0] if self._actions else NEVER
            if not self.engine.step(acts_at):
                assert self._actions, f"nothing will ever happen again at {self.now:.3f} s"
                heapq.heappop(self._actions)[2]()
            assert self.now <= seconds, f"not done after {seconds} virtual seconds"
            assert self.engine.packets <= packets, f"not done after {packets} packets"

    def poke(self, actor):
        """Give an actor a turn now."""
        actor.due = self.engine.now

    def inject(self, port, payload):
        """Let a packet arrive at the switch of a port now."""
        self.engine.arrive(self._places[port][1], port, self._alone(payload))

    def send(self, port, payload):
        """Send a packet from the host of a port now."""
        self.engine.send(self._places[port][0], 0, self._alone(payload))

    def _alone(self, payload):
        return train_of(np.frombuffer(bytearray(payload), np.uint8)[None], np.array([self.engine.now]))
