"""Collectives on a scenario's links: streams between hosts, through switches that only forward.

A connection carries transfers in order, as numbered packets. A packet may be sent once its transfer is
released, the window has room, and so has the host's link; connections take turns.

| event | action |
|---|---|
| a packet arrives | note it; acknowledge every fourth, marks, repeats and ends of transfers at once |
| a transfer is complete | release the transfers that waited for it, at this host |
| a packet is acknowledged | the window grows, or on a mark is cut, as a peelsum worker's does |
| a packet sent 3 or more before an acknowledged one is missing | send it again |
| nothing acknowledged for 4 round trips | send the oldest again, backing off |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.rivals.collectives import COLLECTIVES, Transfers
from benchmarks.rivals.program_bench import RivalRow, link_counts
from peelsum.simulation.engine import Engine, Outputs, Timerless
from peelsum.simulation.hosts import PORT
from peelsum.simulation.scenario import Job, Scenario
from peelsum.simulation.topologies import build
from peelsum.simulation.trains import NEVER, PS_PER_S, Arrivals, SimulationError, Train, ps
from peelsum.transport import congestion
from peelsum.wire import FRAME_HEADER_BYTES, HEADER_BYTES, Flag

_HEADERS = FRAME_HEADER_BYTES + HEADER_BYTES
_DATA, _ACK = 1, 2
#: Acknowledgements in one packet, and its bytes: the shortest Ethernet frame.
_MOST_ACKS, _ACK_BYTES = 4, 64
#: Packets sent later than a missing one whose acknowledgement shows that it is lost.
_REORDERED = 3
_CE = int(Flag.CE) << 16
#: Words of a packet: kind and flags (bytes 1 and 2), destination, connection, how many numbers, numbers.
_WORDS = 4 + _MOST_ACKS


class Connection:
    """A stream of packets from one host to another, as its sender and its receiver know it."""

    def __init__(self, number: int, source: int, target: int, job: Job) -> None:
        self.number, self.source, self.target = number, source, target
        self.window = congestion.new_window(job.window, job.initial_window)
        #: The window's size now; the sender's connections that may have something to send.
        self.size = congestion.size(self.window)
        self.unsent: set[Connection] = set()
        #: Of each packet: its bytes, and the place of its transfer in `transfers`.
        self.packets: list[tuple[int, int]] = []
        #: The transfers' indices, and the numbers of their last packets, plus 1.
        self.transfers: list[int] = []
        self.ends: list[int] = []
        #: The next transfer to release, the packets that may be sent, the next, the oldest unanswered one.
        self.next_transfer = self.released = self.next = self.base = 0
        self.outstanding = self.transmissions = self.resends = 0
        #: The last acknowledgement, or the first packet after a pause; the smoothed round trip; 0 before it.
        self.moved_at = self.round_trip = self.backoff = 0
        #: The largest number of an acknowledged transmission.
        self.heard = -1
        #: Of each packet: the number of its last transmission, and when that was.
        self.sent: dict[int, tuple[int, int]] = {}
        self.acknowledged: set[int] = set()
        self.received: set[int] = set()
        #: Packets that the receiver has not acknowledged yet, and whether one was marked.
        self.pending: list[int] = []
        self.marked = False

    def add(self, transfer: int, words: int, lanes: int) -> int:
        """Append a transfer; return the number of its packets. One of no words still takes a packet."""
        count = max(-(-words // lanes), 1)
        last = max(_HEADERS + 4 * (words - (count - 1) * lanes), _ACK_BYTES)
        place = len(self.transfers)
        self.packets += [(_HEADERS + 4 * lanes, place)] * (count - 1) + [(last, place)]
        self.transfers.append(transfer)
        self.ends.append(len(self.packets))
        return count

    def due(self, least: int) -> int:
        """Return when the oldest packet is sent again, or NEVER."""
        if not self.outstanding:
            return NEVER
        return self.moved_at + (max(least, 4 * self.round_trip) << min(self.backoff, 6))

    def on_acknowledgements(self, numbers: Sequence[int], marked: bool, now: int) -> list[int]:
        """Take acknowledgements; return the packets that they show to be lost."""
        fresh = [number for number in dict.fromkeys(numbers) if number not in self.acknowledged]
        for number in fresh:
            transmission, sent_at = self.sent[number]
            if transmission > self.heard:
                self.heard, took = transmission, now - sent_at
                before = self.round_trip
                self.round_trip = before + (took - before) // 8 if before else took
        self.acknowledged.update(fresh)
        if not fresh:
            return []
        self.outstanding -= len(fresh)
        self.moved_at, self.backoff = now, 0
        while self.base < self.next and self.base in self.acknowledged:
            self.base += 1
        congestion.on_results(self.window, len(fresh), marked, self.base, self.next)
        self.size = congestion.size(self.window)
        self.unsent.add(self)
        if self.base == self.next or self.sent[self.base][0] + _REORDERED > self.heard:
            return []
        return [
            number
            for number in range(self.base, self.next)
            if number not in self.acknowledged and self.sent[number][0] + _REORDERED <= self.heard
        ]


class _Connections:
    """All connections of a collective, and what its transfers wait for."""

    def __init__(self, transfers: Transfers, lanes: int, job: Job) -> None:
        self.connections: list[Connection] = []
        self.missing = [0] * len(transfers.each)
        #: Transfers that have to be complete before each, and the start of its sender.
        self.waits = [len(transfer.after) + 1 for transfer in transfers.each]
        self.followers: list[list[int]] = [[] for _ in transfers.each]
        self.done_at = [0] * len(transfers.each)
        self.of_transfer: list[Connection] = []
        pairs: dict[tuple[int, int], Connection] = {}
        for t, transfer in enumerate(transfers.each):
            pair = transfer.source, transfer.target
            if pair not in pairs:
                pairs[pair] = Connection(len(pairs), *pair, job)
            self.missing[t] = pairs[pair].add(t, transfer.words, lanes)
            self.of_transfer.append(pairs[pair])
            for before in transfer.after:
                self.followers[before].append(t)
        self.connections += pairs.values()

    def release(self, connection: Connection) -> None:
        """Release a connection's transfers that wait for nothing, in order."""
        while (
            connection.next_transfer < len(connection.transfers)
            and not self.waits[connection.transfers[connection.next_transfer]]
        ):
            connection.released = connection.ends[connection.next_transfer]
            connection.next_transfer += 1
            connection.unsent.add(connection)

    def complete(self, transfer: int, now: int) -> None:
        """Release what waited for a transfer."""
        self.done_at[transfer] = now
        for later in self.followers[transfer]:
            self.waits[later] -= 1
            if not self.waits[later]:
                self.release(self.of_transfer[later])


class FlowHost:
    """A host that sends its part of a collective's transfers. Times are picoseconds."""

    def __init__(self, streams: _Connections, host: int, *, start: int, least: int, gbps: float) -> None:
        self._streams, self._least, self._start = streams, least, start
        self._byte_ps = 8000 / gbps
        self._sending = [each for each in streams.connections if each.source == host]
        self._place = {connection: place for place, connection in enumerate(self._sending)}
        self._unsent: set[Connection] = set()
        for connection in self._sending:
            connection.unsent = self._unsent
        longest = max(size for each in streams.connections for size, _ in each.packets)
        self._frame_ps = int(longest * self._byte_ps)
        #: The clock, when the link has sent everything, and whose turn it is.
        self._now = self._free_at = self._turn = 0
        #: The next timer, and no connection's is earlier than `_oldest`.
        self._due = self._oldest = NEVER
        self._out: list[tuple[int, int, list[int]]] = []

    def next_time(self) -> int:
        """Return when the host starts, or its next timer."""
        return min(self._start, self._due)

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process packets and timers before `until`."""
        if self._start < until:
            # What arrives in the same step, but before, is taken at the start.
            self._now, self._start = max(self._now, self._start), NEVER
            for connection in self._sending:
                for transfer in connection.transfers[connection.next_transfer :]:
                    self._streams.waits[transfer] -= 1
                self._streams.release(connection)
        packets: Iterator[tuple[int, list[int]]] = iter(())
        if arrivals is not None:
            train = arrivals.train
            rows = np.ascontiguousarray(train.data).view(np.uint32).tolist()
            packets = zip(train.times.tolist(), rows, strict=True)
        arrives, packet = next(packets, (NEVER, []))
        while True:
            more = self._fill()
            room_at = max(self._free_at - self._frame_ps, self._now) if more else NEVER
            self._due = min(room_at, self._oldest)
            if min(self._due, arrives) >= until:
                break
            self._now, first = max(min(self._due, arrives), self._now), len(self._out)
            if arrives > self._due:
                self._expire()
            else:
                self._take(packet)
                arrives, packet = next(packets, (NEVER, []))
            for _, size, _ in self._out[first:]:
                self._occupy(size)
        if not self._out:
            return []
        times, sizes, words = zip(*self._out, strict=True)
        self._out = []
        data = np.array(words, np.uint32).view(np.uint8)
        return [(PORT, Train(np.array(times, np.int64), np.array(sizes, np.int32), data))]

    def _occupy(self, size: int) -> None:
        """Occupy the host's link for the time of `size` bytes, after what it has to send already."""
        self._free_at = max(self._free_at, self._now) + int(size * self._byte_ps)

    def _send(self, connection: Connection, number: int) -> None:
        """Send a packet, for the first time or again."""
        size, _ = connection.packets[number]
        connection.sent[number] = connection.transmissions, self._now
        connection.transmissions += 1
        words = [_DATA << 8, connection.target, connection.number, 0, number, 0, 0, 0]
        self._out.append((self._now, size, words))

    def _fill(self) -> bool:
        """Send what may be sent, a packet of each connection in turn, while the link has room.

        Return whether there is more to send. The link has room for one packet behind the one that it sends.
        """
        count = len(self._sending)
        while self._unsent:
            connection = min(self._unsent, key=lambda each: (self._place[each] - self._turn) % count)
            if connection.next == connection.released or connection.outstanding >= connection.size:
                self._unsent.remove(connection)
                continue
            self._turn = self._place[connection]
            if self._free_at > self._now + self._frame_ps:
                return True
            if not connection.outstanding:
                connection.moved_at = self._now
            self._send(connection, connection.next)
            self._occupy(connection.packets[connection.next][0])
            connection.next += 1
            connection.outstanding += 1
            self._oldest = min(self._oldest, connection.due(self._least))
            self._turn += 1
        return False

    def _expire(self) -> None:
        """Send the oldest packet again, of each connection whose timer has run out."""
        if self._oldest > self._now:
            return
        for connection in self._sending:
            if connection.due(self._least) <= self._now:
                self._send(connection, connection.base)
                connection.resends += 1
                connection.moved_at = self._now
                connection.backoff += 1
        self._oldest = min((connection.due(self._least) for connection in self._sending), default=NEVER)

    def _take(self, packet: list[int]) -> None:
        """Process a packet of a stream, or acknowledgements."""
        kind, marked = packet[0] >> 8 & 0xFF, bool(packet[0] & _CE)
        connection = self._streams.connections[packet[2]]
        if kind == _DATA:
            self._arrived(connection, packet[4], marked)
            return
        lost = connection.on_acknowledgements(packet[4 : 4 + packet[3]], marked, self._now)
        self._oldest = min(self._oldest, connection.due(self._least))
        for number in lost:
            self._send(connection, number)
        connection.resends += len(lost)

    def _arrived(self, connection: Connection, number: int, marked: bool) -> None:
        """Note a packet of a stream and acknowledge it; release what waited for its transfer."""
        _, place = connection.packets[number]
        transfer, repeated, complete = connection.transfers[place], number in connection.received, False
        if not repeated:
            connection.received.add(number)
            self._streams.missing[transfer] -= 1
            complete = not self._streams.missing[transfer]
        connection.pending.append(number)
        connection.marked |= marked
        last = number + 1 == connection.ends[place]
        if complete or repeated or marked or last or len(connection.pending) == _MOST_ACKS:
            flags, pending = _CE * connection.marked, connection.pending
            words = [_ACK << 8 | flags, connection.source, connection.number, len(pending), *pending]
            self._out.append((self._now, _ACK_BYTES, words + [0] * (_WORDS - len(words))))
            connection.pending, connection.marked = [], False
        if complete:
            self._streams.complete(transfer, self._now)


class Forwarder(Timerless):
    """A switch that forwards by destination. `ports` has the port to each host, int32[hosts]."""

    def __init__(self, hosts: int) -> None:
        self.ports = np.zeros(hosts, np.int32)

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Send every packet on."""
        if arrivals is None:
            return []
        train = arrivals.train
        out = self.ports[train.data.view(np.uint32)[:, 1]]
        order = np.argsort(out, kind="stable")
        edges = np.flatnonzero(np.diff(out[order])) + 1
        return [(int(out[rows[0]]), train.rows(rows)) for rows in np.split(order, edges)]


def run_collective(
    scenario: Scenario, name: str, collective: Callable[[int, int], Transfers] | None = None
) -> RivalRow:
    """Run a collective of the scenario's first job on the scenario's links, and return its row.

    collective: the function, if it is not one of COLLECTIVES. Packets carry `lanes` words with the headers of
    a peelsum packet; windows and timers are the job's. Raises SimulationError for an unknown name, or if it
    does not end by `limit_s`.
    """
    if collective is None and name not in COLLECTIVES:
        raise SimulationError(f"algorithm: {name!r} is unknown; use {', '.join(COLLECTIVES)}")
    job, rate = scenario.jobs[0], scenario.network.gbps
    transfers = (collective or COLLECTIVES[name])(job.workers, job.elements)
    streams, hosts = _Connections(transfers, scenario.lanes, job), range(transfers.workers)
    engine, least = Engine(scenario.seed), ps(job.timers.resend_least)
    starts, rates = dict.fromkeys(hosts, ps(job.start_s)), dict.fromkeys(hosts, rate)
    for straggler in job.stragglers:
        starts[straggler.worker] += ps(straggler.late_s)
        rates[straggler.worker] = straggler.gbps or rate
    nodes = [FlowHost(streams, host, start=starts[host], least=least, gbps=rates[host]) for host in hosts]

    def route(switch: Forwarder, host: int, port: int) -> None:
        switch.ports[host] = port

    build(engine, scenario, nodes, len(hosts), lambda: Forwarder(len(hosts)), route)
    engine.run(lambda: not any(streams.missing), scenario.limit_s)
    return RivalRow(
        name=name,
        seconds=max(streams.done_at) / PS_PER_S - job.start_s,
        packets=sum(connection.transmissions for connection in streams.connections),
        resends=sum(connection.resends for connection in streams.connections),
        wrong=transfers.wrong(streams.done_at),
        **link_counts(engine),
    )
