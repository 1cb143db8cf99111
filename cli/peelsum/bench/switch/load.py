"""A closed loop of contributions and results, which loads a switch and checks its sums; and its hosts.

Workers and server are behind UDP ports of the softswitch (`UdpHosts`), or on interfaces (`RingHosts`).
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch import Frames
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.udp import frame_header
from peelsum.switch_settings import Method
from peelsum.topology.errors import TopologyError
from peelsum.transport.errors import SwitchUnreachableError
from peelsum.transport.link import PortLink
from peelsum.wire import EVERYONE, FRAME_HEADER_BYTES, Batch, Kind, pack, packet_bytes, packet_fields

#: Seconds of silence after which chunks count as lost.
_TIMEOUT_S = 0.2
#: Number of sums that are compared, from the first.
_CHECKED = 2048
_HELLO_S = 5.0
#: Maximum of frames that hosts on interfaces send or receive at once.
_RING_BATCH = 4096


#: The server, in place of a worker's number.
SERVER = -1


class UdpHosts:
    """Workers behind switch ports 1 to n, and the server behind port n + 1, all over UDP."""

    def __init__(self, host: str, udp_ports: Mapping[int, int], workers: int, packet_bytes: int) -> None:
        """Say hello at every port. Raises TopologyError if no switch answers."""
        with ExitStack() as stack:
            try:
                links = [
                    stack.enter_context(PortLink((host, udp_ports[port]), packet_bytes, hello_s=_HELLO_S))
                    for port in range(1, workers + 2)
                ]
            except SwitchUnreachableError as error:
                raise TopologyError(str(error)) from None
            self._sockets, self._links = [link.socket for link in links], stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._links.close()

    def send(self, worker: int, batch: Batch) -> None:
        """Send packets from a worker, or from SERVER, into the switch.

        Those that do not fit the kernel's buffer are lost.
        """
        self._sockets[worker].send(batch)

    def receive_sums(self, timeout: float) -> Batch | None:
        """Return the server's received packets, or None after `timeout` seconds of silence.

        The next call may overwrite them.
        """
        select.select([self._sockets[-1]], [], [], timeout)
        burst = self._sockets[-1].receive()
        return None if burst is None else burst.packets

    def receive_results(self, expected: int, timeout: float) -> int:
        """Receive `expected` packets at the workers, or fewer after `timeout` seconds of silence.

        Return their number. With `expected` 0, receive only those that have arrived already.
        """
        workers, count = self._sockets[:-1], 0
        while True:
            for sock in workers:
                while (burst := sock.receive()) is not None:
                    count += len(burst.packets)
            if count >= expected or not select.select(workers, [], [], timeout)[0]:
                return count


class RingHosts:
    """Workers and server at the host ends of virtual Ethernet pairs, by AF_XDP or AF_PACKET.

    Worker w is at port w + 1, the server at the last port. They use the softswitch's own ports on interfaces.
    """

    def __init__(
        self, interfaces: Mapping[int, str], workers: int, packet_bytes: int, method: Method
    ) -> None:
        """Open the host ends, given by switch port in `interfaces`."""
        self._ports = InterfacePorts(interfaces, batch=_RING_BATCH, method=method)
        self._ports.resize(packet_bytes)
        self._server, self._workers = workers + 1, list(range(1, workers + 1))
        self._size = FRAME_HEADER_BYTES + packet_bytes
        self._frames = np.zeros((workers + 1, _RING_BATCH, self._size), np.uint8)
        for frames, port in zip(self._frames, (*self._workers, self._server), strict=True):
            frames[:, :FRAME_HEADER_BYTES] = frame_header(port, packet_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ports.close()

    def send(self, worker: int, batch: Batch) -> None:
        """See `UdpHosts.send`."""
        frames = self._frames[worker][: len(batch)]
        frames[:, FRAME_HEADER_BYTES:] = batch
        length = np.full(len(batch), self._size, np.int32)
        port = self._server if worker == SERVER else worker + 1
        self._ports.send(Frames(frames, length, np.full_like(length, port)))

    def receive_sums(self, timeout: float) -> Batch | None:
        """See `UdpHosts.receive_sums`. Frame headers are removed."""
        select.select([self._ports.ports[self._server].socket], [], [], timeout)
        frames = self._ports.receive([self._server])
        return np.ascontiguousarray(frames.data[:, FRAME_HEADER_BYTES : self._size]) if len(frames) else None

    def receive_results(self, expected: int, timeout: float) -> int:
        """See `UdpHosts.receive_results`."""
        count = 0
        while True:
            count += len(self._ports.receive(self._workers))
            sockets = [self._ports.ports[port].socket for port in self._workers]
            if count >= expected or not select.select(sockets, [], [], timeout)[0]:
                return count


#: A job's workers and its server, each behind a port of the switch.
Hosts = UdpHosts | RingHosts


class WrongSumError(AssertionError):
    """A sum differs from that of the contributions."""


@dataclass(frozen=True)
class Load:
    """The packets of one job: chunk c carries row c mod `window` of each worker's lanes."""

    job_id: int
    generation: int
    lanes: NDArray[np.uint32]
    """uint32[workers, window, lanes]."""
    sums: NDArray[np.uint32]
    """uint32[window, lanes]: the sum over workers, modulo 2**32."""

    @classmethod
    def random(cls, *, workers: int, window: int, lanes: int, generation: int) -> Load:
        """Return a load of job 1, of uniformly distributed 32-bit lanes, whose sums overflow."""
        values = np.random.default_rng(0).integers(0, 1 << 32, (workers, window, lanes), np.uint32)
        return cls(1, generation, values, values.sum(axis=0, dtype=np.uint32))

    @property
    def workers(self) -> int:
        """Number of workers that contribute to each chunk."""
        return len(self.lanes)

    @property
    def window(self) -> int:
        """Number of chunks that may be outstanding at once."""
        return int(self.lanes.shape[1])

    @property
    def packet_bytes(self) -> int:
        """Length of each packet in bytes."""
        return packet_bytes(self.lanes.shape[2])

    @property
    def expected_mask(self) -> int:
        """The bitmap of a complete sum."""
        return (1 << self.workers) - 1

    def contributions(self, worker: int, first: int = 0) -> Batch:
        """Return worker `worker`'s packets for the `window` chunks from `first` on."""
        bitmap = 1 << worker
        return self._pack(self.lanes[worker], first, kind=Kind.CONTRIBUTION, sender=worker, bitmap=bitmap)

    def results(self, first: int = 0) -> Batch:
        """Return the server's packets for the `window` chunks from `first` on."""
        return self._pack(self.sums, first, kind=Kind.RESULT, sender=EVERYONE, bitmap=self.expected_mask)

    def _pack(self, lanes: NDArray[np.uint32], first: int, **fields: int) -> Batch:
        chunks = np.arange(first, first + self.window)
        return pack(lanes, job_id=self.job_id, generation=self.generation, chunk_id=chunks, **fields)

    def check(self, sums: Batch) -> None:
        """Raise WrongSumError unless every packet in `sums` holds the complete sum of its chunk."""
        packets = packet_fields(sums, self.lanes.shape[2])
        rows = packets["chunk_id"].astype(np.int64) % self.window
        wrong = np.flatnonzero((packets["lanes"] != self.sums[rows]).any(axis=1))
        if wrong.size:
            raise WrongSumError(f"chunk {packets['chunk_id'][wrong[0]]}: not the sum of the contributions")


@dataclass(frozen=True)
class LoadResult:
    """The result of `drive`."""

    chunks: int
    """Chunks summed in the switch."""
    seconds: float
    """Duration of the loop."""
    lost: int
    """Chunks counted as lost."""


def drive(
    load: Load,
    hosts: Hosts,
    seconds: float,
    clock: Callable[[], float],
    *,
    used: int = 0,
    first_within: float = 0.0,
) -> LoadResult:
    """Send contributions as sums arrive at the server, for `seconds`; the server returns them as results.

    Half a window of chunks is sent whenever as many have arrived. After a silence, the outstanding chunks
    count as lost, and others are sent. `seconds` begin with the first sums, for which the loop waits up to
    `first_within` seconds: else a slow start would count as a low rate. used: how many chunks were sent
    before; their numbers are not used again, because slots keep their results. Raises WrongSumError if one of
    the first sums is wrong.
    """
    packets, half = [load.contributions(worker) for worker in range(load.workers)], load.window // 2
    next_chunk = -(-used // load.window) * load.window
    outstanding = done = lost = 0
    started = clock()
    while (now := clock()) < started + (seconds if done else max(seconds, first_within)):
        while outstanding + half <= load.window:
            rows = slice(next_chunk % load.window, next_chunk % load.window + half)
            chunk_ids = np.arange(next_chunk, next_chunk + half) & 0xFFFFFFFF
            for worker, batch in enumerate(packets):
                packet_fields(batch[rows], load.lanes.shape[2])["chunk_id"] = chunk_ids
                hosts.send(worker, batch[rows])
            next_chunk, outstanding = next_chunk + half, outstanding + half
        hosts.receive_results(0, 0.0)
        sums = hosts.receive_sums(_TIMEOUT_S)
        if sums is None:
            lost, outstanding = lost + outstanding, 0
            continue
        complete = _complete(load, sums)
        started = started if done or not len(complete) else now
        if done < _CHECKED:
            load.check(complete)
        hosts.send(SERVER, as_results(complete, load.lanes.shape[2]))
        done += len(complete)
        outstanding = max(0, outstanding - len(complete))
    return LoadResult(done, now - started, lost)


@dataclass(frozen=True)
class ChunkLatencies:
    """Latencies of chunks, each measured while no other chunk is in the switch."""

    sum_us: NDArray[np.float64]
    """float64[n]: microseconds from sending the last contribution to receiving the sum at the server."""
    lost: int
    """Chunks whose sum did not arrive."""

    @property
    def chunks(self) -> int:
        """Number of chunks that were sent."""
        return len(self.sum_us) + self.lost


def time_slots(
    load: Load,
    hosts: Hosts,
    seconds: float,
    clock: Callable[[], float],
    *,
    used: int = 0,
    first_within: float = 0.0,
) -> ChunkLatencies:
    """Time single chunks for `seconds`: a packet from each worker, the sum, its result; then the next chunk.

    A chunk's time starts with the last worker's packet. `seconds`, `used` and `first_within` are as for
    `drive`; 0 seconds are one sum, to warm up. Raises WrongSumError if a sum is wrong.
    """
    packets = [load.contributions(worker) for worker in range(load.workers)]
    chunk, lost = used, 0
    latencies: list[float] = []
    started = clock()
    while (now := clock()) < started + (seconds if latencies else max(seconds, first_within)):
        row = chunk % load.window
        for worker, batch in enumerate(packets):
            packet_fields(batch[row : row + 1], load.lanes.shape[2])["chunk_id"] = chunk
            sent = clock()
            hosts.send(worker, batch[row : row + 1])
        complete = _sum_of(load, hosts, chunk)
        received = clock()
        chunk = (chunk + 1) & 0xFFFFFFFF
        if complete is None:
            lost += 1
            continue
        load.check(complete)
        started = started if latencies else now
        latencies.append(received - sent)
        hosts.send(SERVER, as_results(complete, load.lanes.shape[2]))
        hosts.receive_results(load.workers, _TIMEOUT_S)
    return ChunkLatencies(np.array(latencies) * 1e6, lost)


def _sum_of(load: Load, hosts: Hosts, chunk: int) -> Batch | None:
    """Return the packet with the complete sum of a chunk, or None after a silence.

    Sums of earlier chunks, which were given up, are ignored: else each would be taken for the next chunk's.
    """
    while (sums := hosts.receive_sums(_TIMEOUT_S)) is not None:
        complete = _complete(load, sums)
        of_chunk: Batch = complete[packet_fields(complete, load.lanes.shape[2])["chunk_id"] == chunk]
        if len(of_chunk):
            return of_chunk
    return None


def _complete(load: Load, sums: Batch) -> Batch:
    """Return the packets with a complete sum; the switch has forwarded the others without adding them up."""
    complete = packet_fields(sums, load.lanes.shape[2])["bitmap"] == load.expected_mask
    return sums if complete.all() else sums[complete]


def as_results(batch: Batch, lanes: int) -> Batch:
    """Turn complete sums, or the contributions of a job's only worker, into results in place; return them."""
    fields = packet_fields(batch, lanes)
    fields["kind"] = Kind.RESULT
    fields["sender"] = EVERYONE
    return batch
