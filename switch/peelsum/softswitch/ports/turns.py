"""What the compiled loops over a switch's ports share: numbers, wait, clock, and the way in from Python.

Theory of operation. A turn waits for the ports, receives a batch, runs the program over it and sends what
leaves. The loop holds the switch's lock, also while it waits. It returns when a waker is readable: a thread
that wants the lock, the controller or a signal has written to it. It also returns when a frame leaves for the
controller. The next `CompiledLoop.run` continues where the loop has stopped.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.softswitch.ports.pacing_kernels import NEVER
from peelsum.softswitch.runtime.native import Entry
from peelsum.softswitch.runtime.switch import Room, Switch
from peelsum.wire import CPU_PORT
from peelsum.wire.system_calls import INTERRUPTED, errno, nanoseconds, ppoll

_READABLE, _RETURNED = 1 << 32, 48
CLOCK_MASK: Final = (1 << 48) - 1
# Why a loop returned: all turns are over, or nothing arrived in time; a waker is readable; frames have left
# for the controller.
DONE, WOKEN, FOR_CPU = 0, 1, 2
#: In place of the number of readable ports: a waker is readable. Error numbers, negative, are above it.
WAKER = -(1 << 16)


class At(IntEnum):
    """Indices of a loop's numbers."""

    NEXT = 0  # the first received frame that the program has not seen
    COUNT = 1  # received frames
    LEFT = 2  # frames that left the program last and are not all sent yet
    TURNS = 3  # turns until the loop returns
    BATCH = 4  # about how many frames a turn receives
    STARTED = 5  # when the program's clock was 0, in nanoseconds
    COPIES = 6  # the most frames that one frame leaves behind


class Leaving(NamedTuple):
    """Memory for frames that leave the program."""

    data: NDArray[np.uint8]  # [rows, stride]
    length: NDArray[np.int32]  # [rows]
    port: NDArray[np.int32]  # [rows]
    leave: NDArray[np.uint64]  # [rows]


class Loop(NamedTuple):
    """A loop's memory from one call to the next."""

    numbers: NDArray[np.int64]  # [At]
    polled: NDArray[np.int64]  # [wakers + ports]: struct pollfd
    ready: NDArray[np.int32]  # [ports]: rows of ports that are readable
    clock: NDArray[np.int64]  # [2]: struct timespec


def new_loop(descriptors: Sequence[int], ports: int) -> Loop:
    """Return a loop that waits for descriptors, of which the last ones are the ports'."""
    return Loop(
        numbers=np.zeros(len(At), np.int64),
        polled=np.array(descriptors, np.int64) | _READABLE,
        ready=np.zeros(ports, np.int32),
        clock=np.zeros(2, np.int64),
    )


class CompiledLoop(ABC):
    """A compiled loop over the ports of one running switch, whose program is `entry`."""

    def __init__(
        self, switch: Switch, entry: Entry, loop: Loop, batch: NDArray[np.uint8], share: int, started_ns: int
    ) -> None:
        """batch: uint8[frames, stride], into which the loop receives. share: frames that a turn receives.

        started_ns: when the program's clock was 0, by `time.monotonic_ns`.
        """
        self.switch, self.entry, self.loop = switch, entry, loop
        self._batch, self._room = batch, Room()
        self.loop.numbers[At.STARTED], self.loop.numbers[At.BATCH] = started_ns, share

    def run(self, timeout_s: float | None, turns: int) -> tuple[bool, list[bytes]]:
        """Take up to `turns` turns, each of which waits up to `timeout_s` (None: without limit).

        Return whether a waker is readable, and frames for the controller. Raises OSError for what waiting
        does not mend.
        """
        room, numbers = self._room, self.loop.numbers
        numbers[At.TURNS] = turns
        wait_us = NEVER if timeout_s is None else math.ceil(1e6 * timeout_s)
        with self.switch.lock:
            numbers[At.COPIES] = copies = self.switch.groups.most_copies
            stride = self._batch.shape[1] + self.switch.growth
            room.prepare(len(self._batch) + copies, stride)
            data = room.data[: room.rows * stride].reshape(room.rows, stride)
            because = self.take_turns(Leaving(data, room.length, room.port, room.leave), wait_us)
        if because < 0:
            raise OSError(-because, f"ports: wait or receive: {os.strerror(-because)}")
        left = room.frames(int(numbers[At.LEFT]), stride)
        numbers[At.LEFT] = 0
        return because == WOKEN, [frame for _, frame in left.at(left.port == CPU_PORT).pairs()]

    @abstractmethod
    def take_turns(self, leaving: Leaving, wait_us: int) -> int:
        """Take turns; return why they ended: a code, or minus an error number."""


@compiled
def clock_us(loop: Loop) -> int:
    """Return the microseconds since the program's clock was 0."""
    return int((nanoseconds(loop.clock) - loop.numbers[At.STARTED]) // 1000)


@compiled
def waited(loop: Loop, wait_us: int) -> int:
    """Wait; return how many ports are readable, in `loop.ready`, WAKER, or minus an error number."""
    count, ports, timeout = 0, loop.ready.shape[0], np.int64(0)
    wakers = loop.polled.shape[0] - ports
    if wait_us != NEVER:
        loop.clock[0], loop.clock[1] = wait_us // 1_000_000, wait_us % 1_000_000 * 1000
        timeout = np.int64(loop.clock.ctypes.data)
    if ppoll(loop.polled.ctypes.data, loop.polled.shape[0], timeout, 0) < 0:
        problem = errno()
        return 0 if problem == INTERRUPTED else -problem
    for i in range(loop.polled.shape[0]):
        if loop.polled[i] >> _RETURNED:
            if i < wakers:
                return WAKER
            loop.ready[count] = i - wakers
            count += 1
    return count
