"""Decide which chunks the aggregation server accepts, and which rows they get.

Theory of operation. A worker sends no chunk W or more ahead of its oldest one without a result, and results
come from the server alone. Let N be the newest complete chunk: no worker sends a chunk above N + W, and none
needs a chunk up to N - W. The server keeps the 2 W chunks between, each in a row of its own; it drops others.

N is unknown at the start, after a restart, and after the first sum, after which the job continues far ahead.
Then the server follows the chunks it receives until one is complete. It does so again if for a while it
receives nothing near N, but packets near one other chunk.
"""

from __future__ import annotations

import numpy as np

from peelsum.compiling import compiled
from peelsum.transport.layout import unwrap
from peelsum.transport.server_state import JobState, ServerClock, ServerCount, ServerCursor, ServerSettings

#: Most requests for a chunk without a packet of it. A worker that waits for it retransmits its own.
ASKS = 8


@compiled
def row_of(state: JobState, chunk_id: int, now: float) -> int:
    """Return the chunk's row, taken over from an older chunk if necessary; -1 if it is to be dropped.

    The first sum's chunks are kept permanently: a worker that joins later learns by them that the run has
    begun. Once the run is 2^31 chunks away, their ids look like future ones, and the worker must ask twice.
    """
    cursors, ring = state.cursors, 2 * state.settings.window
    position = unwrap(chunk_id, cursors[ServerCursor.ANCHOR])
    near = _near(state, position)
    if not near and not cursors[ServerCursor.SETTLED]:
        position = unwrap(chunk_id, cursors[ServerCursor.FIRST])
    joining = (chunk_id - cursors[ServerCursor.FIRST]) & 0xFFFFFFFF
    again = not near and position == cursors[ServerCursor.ELSEWHERE]
    row, first = position % ring, cursors[ServerCursor.FIRST] + joining
    if first < cursors[ServerCursor.RUN] and (position == first or again):
        row = ring + joining
    kept = row >= ring and state.done[row]
    if not near and not kept and not _followed(state, position, now):
        ahead = position > cursors[ServerCursor.ANCHOR]
        state.counts[ServerCount.AHEAD_OF_WINDOW if ahead else ServerCount.OUT_OF_WINDOW] += 1
        return -1
    if row >= ring:
        position = first
    if not cursors[ServerCursor.SETTLED]:
        cursors[ServerCursor.ANCHOR] = position
    if near or not cursors[ServerCursor.SETTLED]:
        state.clock[ServerClock.HEARD] = now
    if position != state.position[row]:
        _hand_over(state, row, position)
    return int(row)


@compiled
def _hand_over(state: JobState, row: int, position: int) -> None:
    """Give a row to a new chunk."""
    state.position[row] = position
    state.have[row] = 0
    state.done[row] = False
    state.deadline[row] = np.inf
    state.asked[row] = 0
    state.repeated_at[row] = -np.inf
    state.owed[row] = 0


@compiled
def _near(state: JobState, position: int) -> bool:
    """Return whether a chunk may be in use, judged by the job's position."""
    cursors, window = state.cursors, state.settings.window
    ahead = position - cursors[ServerCursor.ANCHOR]
    if cursors[ServerCursor.SETTLED]:
        return bool(-window < ahead <= window)
    return bool(-2 * window < ahead < 2 * window)


@compiled
def _followed(state: JobState, position: int, now: float) -> bool:
    """Return whether to follow the job to a chunk far from its last known position.

    That is so if the position is unknown, or if for `need_most` seconds only chunks near this one arrived.
    """
    cursors, clock, settings = state.cursors, state.clock, state.settings
    moved = abs(position - cursors[ServerCursor.ELSEWHERE]) >= 2 * settings.window
    if moved or clock[ServerClock.ELSEWHERE] <= clock[ServerClock.HEARD]:
        clock[ServerClock.ELSEWHERE] = now
    cursors[ServerCursor.ELSEWHERE] = position
    if now - clock[ServerClock.ELSEWHERE] >= settings.need_most:
        cursors[ServerCursor.SETTLED] = 0
    return bool(cursors[ServerCursor.SETTLED] == 0)


@compiled
def pause(settings: ServerSettings, asked: int) -> float:
    """Return the wait, in seconds, before the next request for a chunk after `asked` requests."""
    return float(min(settings.need_most, settings.need * 2.0 ** max(0, min(asked - 1, 30))))


@compiled
def current(state: JobState, position: int) -> bool:
    """Return whether a worker may wait for a chunk: near ones, and the first sum's while workers join."""
    cursors = state.cursors
    joining = (
        not cursors[ServerCursor.SETTLED]
        and cursors[ServerCursor.FIRST] <= position < cursors[ServerCursor.RUN]
    )
    return bool(joining or _near(state, position))
