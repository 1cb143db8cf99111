"""Run a scene in virtual time: the softswitch with its queues, and workers and servers without sockets.

A list of events connects them. Two runs of a scene are identical, event by event.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from peelsum.bench.fairness.scene import Scene, Shares, admit
from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.ports.udp import frame_header
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.queues import TICK_SHIFT, Queues
from peelsum.topology.errors import TopologyError
from peelsum.transport import AggregationServer, Event, JobConfig, TensorCompleted, WorkerEndpoint
from peelsum.wire import FRAME_HEADER_BYTES, Batch, fields_of, packet_bytes

#: Delay of a link in seconds, in addition to its rate.
HOP_S = 10e-6
#: Packets that a host sends or receives at once.
BURST = 8
_FOREVER = float("inf")


def simulated(scene: Scene) -> Shares:
    """Run a scene in virtual time."""
    network = VirtualNetwork(scene)
    network.run_until(scene.settle_s)
    before = network.summed()
    network.run_until(scene.settle_s + scene.seconds)
    queue = network.queues.counts()[scene.server_port]
    return Shares.of(scene, before, network.summed(), network.wrong, queue)


@dataclass(eq=False)
class _Host:
    """The host behind a port, with an interface of the port's rate."""

    port: int
    machines: Sequence[WorkerEndpoint | AggregationServer]
    """One worker, or the servers of all jobs."""
    wire_free_at: float = 0.0
    """Time at which the wire will have sent all packets."""
    wakes_at: float = _FOREVER
    """Time of the next timer."""


@dataclass(eq=False)
class _Depths:
    """The queue of the servers' port in packets, after each batch that arrived, with the batch's time."""

    times: list[float] = field(default_factory=list)
    packets: list[float] = field(default_factory=list)


class VirtualNetwork:
    """A switch, its hosts, and a clock that only events advance. `depths` records the servers' port."""

    def __init__(self, scene: Scene, starts_s: Sequence[float] | None = None) -> None:
        """Set up the scene. `starts_s` are the jobs' start times; by default, all start at once."""
        self.scene = scene
        self.now = 0.0
        self.wrong = 0
        self.depths = _Depths()
        self.queues = Queues(dict.fromkeys(range(1, scene.server_port + 1), scene.mbit), scene.queue_limit)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbered = 0
        self._size = packet_bytes(scene.lanes)
        self._words = scene.words()
        self._sum = self._words.sum(0, dtype=np.uint32)
        self._switch, configs = _admitted(scene, self.queues)
        self._workers = [
            [_Host(port, [WorkerEndpoint(config, w)]) for w, port in enumerate(scene.worker_ports(job))]
            for job, config in enumerate(configs)
        ]
        server = _Host(scene.server_port, [AggregationServer(config) for config in configs])
        self._hosts = {host.port: host for host in (server, *(w for job in self._workers for w in job))}
        for job, start in zip(self._workers, starts_s or [0.0] * scene.jobs, strict=True):
            for host in job:
                self._at(start, partial(self._start, host))

    def run_until(self, time: float) -> None:
        """Process all events up to `time`."""
        while self._events and self._events[0][0] <= time:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = time

    def summed(self) -> list[float]:
        """Return the number of chunks that each job has summed, the mean over its workers."""
        stats = [[_worker(host).stats() for host in job] for job in self._workers]
        return [sum(one.results for one in job) / len(job) for job in stats]

    def windows(self) -> list[int]:
        """Return the window of each job's first worker."""
        return [_worker(job[0]).stats().window for job in self._workers]

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._numbered += 1
        heapq.heappush(self._events, (time, self._numbered, action))

    def _start(self, host: _Host) -> None:
        """Submit two sums, so that one is always pending when the other ends."""
        worker = _worker(host)
        for _ in range(2):
            worker.submit(self._words[worker.worker_id], "add")
        self._send(host)

    def _send(self, host: _Host) -> None:
        """Send all of a host's pending packets on its wire, and schedule its next timer."""
        for machine in host.machines:
            while len(batch := machine.to_send(self.now, limit=BURST)):
                frames = self._frames(host.port, batch)
                host.wire_free_at = max(self.now, host.wire_free_at) + len(batch) * self.scene.frame_s
                self._at(host.wire_free_at + HOP_S, partial(self._at_switch, frames))
        timers = [machine.next_timer() for machine in host.machines]
        due = max(min((timer for timer in timers if timer is not None), default=_FOREVER), self.now)
        if due < host.wakes_at:
            host.wakes_at = due
            self._at(due, partial(self._wake, host, due))

    def _wake(self, host: _Host, due: float) -> None:
        if host.wakes_at != due:
            return
        host.wakes_at = _FOREVER
        for machine in host.machines:
            timer = machine.next_timer()
            if timer is not None and timer <= self.now:
                self._note(machine, machine.expire(self.now))
        self._send(host)

    def _frames(self, port: int, batch: Batch) -> Frames:
        data = np.empty((len(batch), FRAME_HEADER_BYTES + self._size), np.uint8)
        data[:, :FRAME_HEADER_BYTES] = frame_header(port, self._size)
        data[:, FRAME_HEADER_BYTES:] = batch
        return Frames(data, np.full(len(batch), data.shape[1], np.int32), np.full(len(batch), port, np.int32))

    def _at_switch(self, frames: Frames) -> None:
        """Process frames in the switch; schedule each outgoing burst's arrival after its queueing delay."""
        now_us = int(self.now * 1e6)
        out = self._switch.process(frames, now_us)
        assert out.leave is not None
        seconds = (out.leave - np.uint64(now_us << TICK_SHIFT)) / (1e6 * (1 << TICK_SHIFT))
        packets = out.data[:, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + self._size]
        for port in np.unique(out.port).tolist():
            rows = np.flatnonzero(out.port == port)
            if port == self.scene.server_port:
                self.depths.times.append(self.now)
                self.depths.packets.append(float(seconds[rows[-1]] / self.scene.frame_s))
            for part in np.split(rows, range(BURST, len(rows), BURST)):
                batch, arrival = packets[part], self.now + float(seconds[part[-1]]) + HOP_S
                self._at(arrival, partial(self._at_host, self._hosts[port], batch))

    def _at_host(self, host: _Host, batch: Batch) -> None:
        job_ids = fields_of(batch, self.scene.lanes)["job_id"]
        for machine in host.machines:
            mine = batch[job_ids == machine.config.job_id]
            if len(mine):
                self._note(machine, machine.receive(mine, self.now))
        self._send(host)

    def _note(self, machine: WorkerEndpoint | AggregationServer, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TensorCompleted) and isinstance(machine, WorkerEndpoint):
                self.wrong += not np.array_equal(event.words, self._sum)
                machine.submit(self._words[machine.worker_id], "add")


def _worker(host: _Host) -> WorkerEndpoint:
    (machine,) = host.machines
    assert isinstance(machine, WorkerEndpoint)
    return machine


def _admitted(scene: Scene, queues: Queues) -> tuple[Switch, list[JobConfig]]:
    """Return a switch with the jobs in its tables, without a P4Runtime server, and their configurations."""
    device = Device(queues=queues)
    try:
        server = serve(device, "127.0.0.1:0")
        try:
            configs = admit(server.address, scene)
        finally:
            server.stop()
        if device.switch is None:
            raise TopologyError("switch: has no pipeline after one was loaded; see its log")
        return device.switch, configs
    finally:
        device.close()
