"""The hosts of a job: the real worker endpoint and the real aggregation server, behind one port each.

Their compiled loops process each packet at its own time, and timers run out in between at theirs. What a host
has to send, it sends at once; its link queues it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.simulation.engine import Outputs
from peelsum.simulation.trains import NEVER, PS_PER_S, Arrivals, Times, Train, joined, ps
from peelsum.transport import (
    AggregationServer,
    TensorCompleted,
    WorkerEndpoint,
    endpoint_kernels,
    server_kernels,
)
from peelsum.transport.endpoint_state import Count, WorkerState
from peelsum.transport.layout import Words, copy, rows_of
from peelsum.transport.server_state import JobState
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes, packet_fields

#: The port of a host.
PORT = 0
#: Packets that a compiled loop can send before it returns.
_ROOM = 512
_S, _PS = 1e-12, 1e12
#: What happens next at a host, as `_next_event` returns it.
_NOTHING, _ARRIVAL, _TIMER = range(3)

#: Told the ticket of a sum, its words and the picosecond; returns the words to sum next.
OnSum = Callable[[int, NDArray[np.uint32], int], Sequence[NDArray[np.uint32]]]


class HostCursor(IntEnum):
    """Indices of a host's numbers."""

    NEXT = 0
    """The next arrival."""
    SENT = 1
    """Packets in the output."""
    NOW = 2
    """The host's time in picoseconds."""
    DUE = 3
    """Its next timer, or the largest int64."""


class HostLoop(NamedTuple):
    """The packets that one call of a compiled loop sends, and the host's numbers."""

    rows: Words  # [_ROOM, words]: packets
    times: Times  # [_ROOM]: when they are sent
    cursor: Times  # [HostCursor]

    @classmethod
    def of(cls, lanes: int) -> HostLoop:
        """Return the loop of a host that has sent nothing."""
        cursor = np.zeros(len(HostCursor), np.int64)
        cursor[HostCursor.DUE] = NEVER
        return cls(np.zeros((_ROOM, packet_bytes(lanes) // 4), np.uint32), np.zeros(_ROOM, np.int64), cursor)

    def begin(self, arrivals: Train | None) -> tuple[Words, Times]:
        """Return the rows and times of arrivals, to be processed from the first on."""
        self.cursor[HostCursor.NEXT] = 0
        if arrivals is None:
            return self.rows[:0], self.times[:0]
        return rows_of(arrivals.data), arrivals.times

    def taken(self) -> list[Train]:
        """Return what was sent since the last call."""
        count, size = int(self.cursor[HostCursor.SENT]), FRAME_HEADER_BYTES + 4 * self.rows.shape[1]
        if not count:
            return []
        self.cursor[HostCursor.SENT] = 0
        data = self.rows[:count].view(np.uint8).copy()
        return [Train(self.times[:count].copy(), np.full(count, size, np.int32), data)]


@compiled
def _next_event(cursor: Times, due_s: float, times: Times, until: int) -> int:
    """Move a host's time to its next arrival or timer before `until`; return which it is.

    due_s: when the timer runs out, in seconds. It has run out when its time has come, so it is rounded up.
    """
    due = max(NEVER if due_s == np.inf else int(due_s * _PS) + 1, cursor[HostCursor.NOW])
    i = cursor[HostCursor.NEXT]
    arrives = times[i] if i < times.shape[0] else NEVER
    cursor[HostCursor.DUE] = due
    if min(due, arrives) >= until:
        return _NOTHING
    cursor[HostCursor.NOW] = min(due, arrives)
    if arrives > due:
        return _TIMER
    cursor[HostCursor.NEXT] += 1
    return _ARRIVAL


@compiled
def drain_worker(state: WorkerState, loop: HostLoop) -> bool:
    """Append what the worker has to send to the output; return whether there was room for all."""
    cursor, out = loop.cursor, loop.rows
    now = cursor[HostCursor.NOW] * _S
    endpoint_kernels.begin(state, now)
    while cursor[HostCursor.SENT] < out.shape[0]:
        first = cursor[HostCursor.SENT]
        count = endpoint_kernels.resend(state, now, out[first:])
        count = count or endpoint_kernels.gather(state, now, out[first:])
        if not count:
            row, count = endpoint_kernels.contribute(state, out.shape[0] - first, now)
            for k in range(count):
                copy(state.packets[row + k], out[first + k])
        if not count:
            return True
        loop.times[first : first + count] = cursor[HostCursor.NOW]
        cursor[HostCursor.SENT] += count
    return False


@compiled
def run_worker(state: WorkerState, rows: Words, times: Times, until: int, loop: HostLoop) -> bool:
    """Process arrivals and timers before `until`.

    Return whether all are processed; else a tensor is complete at `NOW`, or the output is full: call again.
    """
    completed, cursor = state.counts[Count.COMPLETED], loop.cursor
    while drain_worker(state, loop):
        if state.counts[Count.COMPLETED] != completed:
            return False
        event = _next_event(cursor, endpoint_kernels.next_due(state), times, until)
        if event == _NOTHING:
            return True
        if event == _ARRIVAL:
            i = cursor[HostCursor.NEXT]
            endpoint_kernels.take(state, rows[i - 1 : i], cursor[HostCursor.NOW] * _S)
        else:
            endpoint_kernels.expire(state, cursor[HostCursor.NOW] * _S)
    return False


@compiled
def run_server(state: JobState, rows: Words, times: Times, until: int, loop: HostLoop) -> bool:
    """Process arrivals and timers before `until`; return False if the output is full: call again."""
    cursor, out = loop.cursor, loop.rows
    while True:
        first = cursor[HostCursor.SENT]
        count = server_kernels.send(state, out[first:])
        loop.times[first : first + count] = cursor[HostCursor.NOW]
        cursor[HostCursor.SENT] += count
        if cursor[HostCursor.SENT] == out.shape[0]:
            return False
        event = _next_event(cursor, server_kernels.next_due(state), times, until)
        if event == _NOTHING:
            return True
        if event == _ARRIVAL:
            i = cursor[HostCursor.NEXT]
            server_kernels.take(state, rows[i - 1 : i], cursor[HostCursor.NOW] * _S)
        else:
            server_kernels.expire(state, cursor[HostCursor.NOW] * _S)


class WorkerHost:
    """A worker behind a port. It submits `words` at `start_s`, and what `on_sum` returns for each sum."""

    def __init__(
        self,
        endpoint: WorkerEndpoint,
        words: Sequence[NDArray[np.uint32]],
        on_sum: OnSum,
        *,
        start_s: float = 0.0,
    ) -> None:
        self.endpoint = endpoint
        self._words, self._on_sum, self._start = list(words), on_sum, ps(start_s)
        self._loop = HostLoop.of(endpoint.config.lanes)

    def next_time(self) -> int:
        """Return when the worker starts, or its next timer."""
        return self._start if self._words else int(self._loop.cursor[HostCursor.DUE])

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process results and timers before `until`."""
        loop = self._loop
        if self._words and self._start < until:
            # No result can be there before the first words are.
            loop.cursor[HostCursor.NOW] = self._start
            for words in self._words:
                self.endpoint.submit(words, "add")
            self._words.clear()
        rows, times = loop.begin(None if arrivals is None else arrivals.train)
        sent: list[Train] = []
        while not run_worker(self.endpoint.state, rows, times, until, loop):
            sent += loop.taken()
            self._collect(int(loop.cursor[HostCursor.NOW]))
        sent += loop.taken()
        return [(PORT, joined(sent))] if sent else []

    def _collect(self, now: int) -> None:
        for event in self.endpoint.collect(now / PS_PER_S):
            if isinstance(event, TensorCompleted):
                for words in self._on_sum(event.ticket, event.words, now):
                    self.endpoint.submit(words, "add")


class ServerHost:
    """The aggregation servers of some jobs behind one port."""

    def __init__(self, servers: Sequence[AggregationServer]) -> None:
        self.servers = {server.config.job_id: server for server in servers}
        self._lanes = servers[0].config.lanes
        self._loops = {job_id: HostLoop.of(self._lanes) for job_id in self.servers}

    def next_time(self) -> int:
        """Return the next timer of any job."""
        return min(int(loop.cursor[HostCursor.DUE]) for loop in self._loops.values())

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process sums, contributions and timers before `until`."""
        sent: list[Train] = []
        for job_id, server in self.servers.items():
            loop, mine = self._loops[job_id], None
            if arrivals is not None:
                fields = packet_fields(arrivals.train.data, self._lanes)
                mine = arrivals.train.rows(np.flatnonzero(fields["job_id"] == job_id))
            rows, times = loop.begin(mine)
            while not run_server(server.state, rows, times, until, loop):
                sent += loop.taken()
            sent += loop.taken()
        if not sent:
            return []
        whole = joined(sent)
        return [(PORT, whole.rows(np.argsort(whole.times, kind="stable")))]
