"""Which chunks the aggregation server takes, and the rows that they get.

Theory of operation. A worker sends no chunk W or more ahead of its oldest without a result, and each result
comes from here. So, N being the newest complete chunk, nobody sends a chunk above N + W, and nobody needs one
up to N - W: what is kept are the 2 W chunks between, each with a row that no other of them has. The rest is
dropped. Where N is not known, at the start, after a restart, and after the first sum, behind which a job goes
on far ahead, the server follows whatever it hears, until a chunk is complete. It follows again if it hears
nothing near N for a while, and all that time keeps hearing of chunks near another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.transport.layout import compiled, inlined, unwrap
from peelsum.transport.server_state import Clock, Count, JobState, Mark

#: How often a chunk is asked for while no packet of it comes. A worker that waits for it repeats its own.
ASKS = 8


@inlined
def row_of(state: JobState, chunk_id: int, window: int, now: float, patience: float) -> int:
    """The chunk's row, taken over from another chunk if need be; -1, and counted, for one to be dropped.

    The first sum's chunks are kept for good: a worker that joins when a run is under way is told that there
    was one. Once the run is 2^31 chunks away, where their ids look like the future, it has to ask twice.
    """
    marks, ring = state.marks, 2 * window
    position = unwrap(chunk_id, marks[Mark.ANCHOR])
    near = _near(marks, position, window)
    if not near and not marks[Mark.SETTLED]:
        position = unwrap(chunk_id, marks[Mark.FIRST])
    joining = (chunk_id - marks[Mark.FIRST]) & 0xFFFFFFFF
    again = not near and position == marks[Mark.ELSEWHERE]
    row, first = position % ring, marks[Mark.FIRST] + joining
    if first < marks[Mark.RUN] and (position == first or again):
        row = ring + joining
    kept = row >= ring and state.done[row]
    if not near and not kept and not _followed(marks, state.clock, position, window, now, patience):
        ahead = position > marks[Mark.ANCHOR]
        state.counts[Count.AHEAD_OF_WINDOW if ahead else Count.OUT_OF_WINDOW] += 1
        return -1
    if row >= ring:
        position = first
    if not marks[Mark.SETTLED]:
        marks[Mark.ANCHOR] = position
    if near or not marks[Mark.SETTLED]:
        state.clock[Clock.HEARD] = now
    if position != state.position[row]:
        _hand_over(state, row, position)
    return int(row)


@inlined
def _hand_over(state: JobState, row: int, position: int) -> None:
    """Give a row to a chunk of which nothing has come yet."""
    state.position[row] = position
    state.have[row] = 0
    state.done[row] = False
    state.deadline[row] = np.inf
    state.asked[row] = 0
    state.answered_at[row] = -np.inf
    state.owed[row] = 0


@compiled
def _near(marks: NDArray[np.int64], position: int, window: int) -> bool:
    """Whether a worker of the job may be at a chunk, from what is known of where the job is."""
    ahead = position - marks[Mark.ANCHOR]
    if marks[Mark.SETTLED]:
        return bool(-window < ahead <= window)
    return bool(-2 * window < ahead < 2 * window)


@compiled
def _followed(
    marks: NDArray[np.int64],
    clock: NDArray[np.float64],
    position: int,
    window: int,
    now: float,
    patience: float,
) -> bool:
    """Whether the job is taken to be at a chunk that is not near where it was.

    It is where that is not known; or where nothing near has come, but chunks about this one have, for
    `patience`.
    """
    moved = abs(position - marks[Mark.ELSEWHERE]) >= 2 * window
    if moved or clock[Clock.ELSEWHERE] <= clock[Clock.HEARD]:
        clock[Clock.ELSEWHERE] = now
    marks[Mark.ELSEWHERE] = position
    if now - clock[Clock.ELSEWHERE] >= patience:
        marks[Mark.SETTLED] = 0
    return bool(marks[Mark.SETTLED] == 0)


@compiled
def pause(asked: int, need: float, most: float) -> float:
    """How long to wait before a chunk is asked for again that was asked for so often."""
    return float(min(most, need * 2.0 ** max(0, min(asked - 1, 30))))


@compiled
def current(marks: NDArray[np.int64], position: int, window: int) -> bool:
    """Whether somebody may wait for a chunk: one near, or one of the first sum while somebody may join."""
    joining = not marks[Mark.SETTLED] and marks[Mark.FIRST] <= position < marks[Mark.RUN]
    return bool(joining or _near(marks, position, window))
