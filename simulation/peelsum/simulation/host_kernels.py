"""The compiled loops of hosts: the real endpoint and the real server, packet by packet, in virtual time.

Each packet is processed at its own time, and timers run out in between at theirs. What a host has to send, it
sends at once; its link queues it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from peelsum.transport import endpoint_kernels, server_kernels
from peelsum.transport.endpoint_state import Count, Identity, Limits, WorkerState
from peelsum.transport.layout import Words, compiled, copy
from peelsum.transport.server_state import Identity as ServerIdentity
from peelsum.transport.server_state import JobState, Waits

Times = NDArray[np.int64]
_S = 1e-12
_PS = 1e12
_NEVER = (1 << 63) - 1


class Cursor(IntEnum):
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
    return _NEVER if due == np.inf else int(due * _PS) + 1


@compiled
def drain_worker(state: WorkerState, limits: Limits, cursor: Times, out: Words, out_times: Times) -> bool:
    """Append what the worker has to send to the output; return whether there was room for all."""
    now = cursor[Cursor.NOW] * _S
    endpoint_kernels.begin(state, now)
    while cursor[Cursor.SENT] < out.shape[0]:
        first = cursor[Cursor.SENT]
        count = endpoint_kernels.resend(state, now, out[first:])
        count = count or endpoint_kernels.gather(state, now, out[first:])
        if not count:
            row, count = endpoint_kernels.contribute(state, limits.window, out.shape[0] - first, now)
            for k in range(count):
                copy(state.packets[row + k], out[first + k])
        if not count:
            return True
        out_times[first : first + count] = cursor[Cursor.NOW]
        cursor[Cursor.SENT] += count
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
        due = max(_ps(endpoint_kernels.next_due(state, limits)), cursor[Cursor.NOW])
        i = cursor[Cursor.NEXT]
        arrives = times[i] if i < times.shape[0] else _NEVER
        cursor[Cursor.DUE] = due
        if min(due, arrives) >= until:
            return True
        cursor[Cursor.NOW] = min(due, arrives)
        if arrives <= due:
            endpoint_kernels.take(state, rows[i : i + 1], identity, arrives * _S, limits)
            cursor[Cursor.NEXT] += 1
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
        first = cursor[Cursor.SENT]
        count = server_kernels.send(state, out[first:])
        out_times[first : first + count] = cursor[Cursor.NOW]
        cursor[Cursor.SENT] += count
        if cursor[Cursor.SENT] == out.shape[0]:
            return False
        due = max(_ps(server_kernels.next_due(state)), cursor[Cursor.NOW])
        i = cursor[Cursor.NEXT]
        arrives = times[i] if i < times.shape[0] else _NEVER
        cursor[Cursor.DUE] = due
        if min(due, arrives) >= until:
            return True
        cursor[Cursor.NOW] = min(due, arrives)
        if arrives <= due:
            server_kernels.take(state, rows[i : i + 1], identity, window, arrives * _S, waits)
            cursor[Cursor.NEXT] += 1
        else:
            server_kernels.expire(state, due * _S, window, waits.need, waits.need_most)
