"""The hosts of a job: the real worker endpoint and the real aggregation server, behind one port each.

Their compiled loops process each packet at its own time, and timers run out in between at theirs. What a host
has to send, it sends at once; its link queues it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

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
from peelsum.transport.endpoint_state import Count, Identity, Limits, WorkerState
from peelsum.transport.layout import Words, copy, rows_of
from peelsum.transport.server_state import JobState, ServerIdentity, Waits
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes, packet_fields

#: The port of a host.
PORT = 0
#: Packets that a compiled loop can send before it returns.
_ROOM = 512
_S, _PS = 1e-12, 1e12

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


@compiled
def _ps(due: float) -> int:
    """Convert seconds to picoseconds, rounded up: a timer has run out when its time has come."""
    return NEVER if due == np.inf else int(due * _PS) + 1


@compiled
def drain_worker(state: WorkerState, limits: Limits, cursor: Times, out: Words, out_times: Times) -> bool:
    """Append what the worker has to send to the output; return whether there was room for all."""
    now = cursor[HostCursor.NOW] * _S
    endpoint_kernels.begin(state, now)
    while cursor[HostCursor.SENT] < out.shape[0]:
        first = cursor[HostCursor.SENT]
        count = endpoint_kernels.resend(state, now, out[first:])
        count = count or endpoint_kernels.gather(state, now, out[first:])
        if not count:
            row, count = endpoint_kernels.contribute(state, limits.window, out.shape[0] - first, now)
            for k in range(count):
                copy(state.packets[row + k], out[first + k])
        if not count:
            return True
        out_times[first : first + count] = cursor[HostCursor.NOW]
        cursor[HostCursor.SENT] += count
    return False


@compiled
def run_worker(
    state: WorkerState,
    identity: Identity,
    limits: Limits,
    rows: Words,
    times: Times,
    until: int,
    cursor: Times,
    out: Words,
    out_times: Times,
) -> bool:
    """Process arrivals and timers before `until`.

    Return whether all are processed; else a tensor is complete at `NOW`, or the output is full: call again.
    """
    completed = state.counts[Count.COMPLETED]
    while drain_worker(state, limits, cursor, out, out_times):
        if state.counts[Count.COMPLETED] != completed:
            return False
        due = max(_ps(endpoint_kernels.next_due(state, limits)), cursor[HostCursor.NOW])
        i = cursor[HostCursor.NEXT]
        arrives = times[i] if i < times.shape[0] else NEVER
        cursor[HostCursor.DUE] = due
        if min(due, arrives) >= until:
            return True
        cursor[HostCursor.NOW] = min(due, arrives)
        if arrives <= due:
            endpoint_kernels.take(state, rows[i : i + 1], identity, arrives * _S, limits)
            cursor[HostCursor.NEXT] += 1
        else:
            endpoint_kernels.expire(state, due * _S, limits)
    return False


@compiled
def run_server(
    state: JobState,
    identity: ServerIdentity,
    waits: Waits,
    window: int,
    rows: Words,
    times: Times,
    until: int,
    cursor: Times,
    out: Words,
    out_times: Times,
) -> bool:
    """Process arrivals and timers before `until`; return False if the output is full: call again."""
    while True:
        first = cursor[HostCursor.SENT]
        count = server_kernels.send(state, out[first:])
        out_times[first : first + count] = cursor[HostCursor.NOW]
        cursor[HostCursor.SENT] += count
        if cursor[HostCursor.SENT] == out.shape[0]:
            return False
        due = max(_ps(server_kernels.next_due(state)), cursor[HostCursor.NOW])
        i = cursor[HostCursor.NEXT]
        arrives = times[i] if i < times.shape[0] else NEVER
        cursor[HostCursor.DUE] = due
        if min(due, arrives) >= until:
            return True
        cursor[HostCursor.NOW] = min(due, arrives)
        if arrives <= due:
            server_kernels.take(state, rows[i : i + 1], identity, window, arrives * _S, waits)
            cursor[HostCursor.NEXT] += 1
        else:
            server_kernels.expire(state, due * _S, window, waits.need, waits.need_most)


class _Output:
    """The packets that one call of a compiled loop sends, and the loop's numbers."""

    def __init__(self, lanes: int, room: int) -> None:
        self.rows: Words = np.zeros((room, packet_bytes(lanes) // 4), np.uint32)
        self.times = np.zeros(room, np.int64)
        self.cursor = np.zeros(len(HostCursor), np.int64)
        self.cursor[HostCursor.DUE] = NEVER
        self._size = FRAME_HEADER_BYTES + packet_bytes(lanes)

    def taken(self) -> list[Train]:
        """Return what was sent since the last call."""
        count = int(self.cursor[HostCursor.SENT])
        if not count:
            return []
        self.cursor[HostCursor.SENT] = 0
        data = self.rows[:count].view(np.uint8).copy()
        return [Train(self.times[:count].copy(), np.full(count, self._size, np.int32), data)]


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
        self._out = _Output(endpoint.config.lanes, _ROOM)
        self._none = np.zeros((0, self._out.rows.shape[1]), np.uint32)

    def next_time(self) -> int:
        """Return when the worker starts, or its next timer."""
        return self._start if self._words else int(self._out.cursor[HostCursor.DUE])

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process results and timers before `until`."""
        cursor = self._out.cursor
        if self._words and self._start < until:
            # No result can be there before the first words are.
            cursor[HostCursor.NOW] = self._start
            for words in self._words:
                self.endpoint.submit(words, "add")
            self._words.clear()
        rows = self._none if arrivals is None else rows_of(arrivals.train.data)
        times = np.zeros(0, np.int64) if arrivals is None else arrivals.train.times
        cursor[HostCursor.NEXT] = 0
        sent: list[Train] = []
        endpoint, out = self.endpoint, self._out
        state, identity, limits = endpoint.state, endpoint.identity, endpoint.limits
        while not run_worker(state, identity, limits, rows, times, until, out.cursor, out.rows, out.times):
            sent += self._out.taken()
            self._collect(int(cursor[HostCursor.NOW]))
        sent += self._out.taken()
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
        self._outs = {job_id: _Output(self._lanes, _ROOM) for job_id in self.servers}
        self._none = np.zeros((0, packet_bytes(self._lanes) // 4), np.uint32)

    def next_time(self) -> int:
        """Return the next timer of any job."""
        return min(int(out.cursor[HostCursor.DUE]) for out in self._outs.values())

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process sums, contributions and timers before `until`."""
        sent: list[Train] = []
        for job_id, server in self.servers.items():
            rows, times = self._none, np.zeros(0, np.int64)
            if arrivals is not None:
                fields = packet_fields(arrivals.train.data, self._lanes)
                mine = arrivals.train.rows(np.flatnonzero(fields["job_id"] == job_id))
                rows, times = rows_of(mine.data), mine.times
            out, job = self._outs[job_id], (server.state, server.identity, server.waits)
            out.cursor[HostCursor.NEXT] = 0
            while not run_server(
                *job, server.config.window, rows, times, until, out.cursor, out.rows, out.times
            ):
                sent += out.taken()
            sent += out.taken()
        if not sent:
            return []
        whole = joined(sent)
        return [(PORT, whole.rows(np.argsort(whole.times, kind="stable")))]
