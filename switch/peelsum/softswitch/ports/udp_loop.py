"""A switch's turns without the interpreter: its UDP ports, its program and the clock in one compiled loop.

Theory of operation. A turn waits for the ports, receives a batch, runs the program over it and sends what
leaves. Packets of ports with a rate are held, and sent when they are due. The loop holds the switch's lock,
also while it waits. It returns when a waker is readable: a thread that wants the lock, the controller or a
signal has written to it. It also returns when a frame leaves for the controller, or when the kernel refuses
to send segments. The next `UdpLoop.run` continues where the loop has stopped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, cast

import numpy as np
from numba import typeof
from numpy.typing import NDArray

from peelsum.softswitch.ports import pacing_kernels
from peelsum.softswitch.ports.pacing_kernels import (
    NEVER,
    Rings,
    crowded,
    due_in,
    hold,
    new_rings,
    release,
)
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.ports.udp_kernels import Batch, Outbox, Sockets, receive, send, sort
from peelsum.softswitch.runtime import switch as runtime_switch
from peelsum.softswitch.runtime.native import SIGNATURE, Entry, types
from peelsum.softswitch.runtime.queues import Queues
from peelsum.softswitch.runtime.switch import Room, State, Switch
from peelsum.wire import CPU_PORT
from peelsum.wire.compiled import compiler
from peelsum.wire.system_calls import INTERRUPTED, errno, nanoseconds, ppoll

# A state's fields are places in a tuple, so the file that orders them is among the sources.
compiled = compiler([*pacing_kernels.SOURCES, str(runtime_switch.__file__), __file__])

_READABLE, _RETURNED = 1 << 32, 48
_CLOCK_MASK = (1 << 48) - 1
# Why the loop returned: all turns are over, or nothing arrived in time; a waker is readable; frames have left
# for the controller; the kernel refuses segments of the port whose row is added to the code.
_DONE, _WOKEN, _FOR_CPU, _REFUSED = 0, 1, 2, 3
#: In place of the number of readable ports: a waker is readable. Error numbers, negative, are above it.
_WAKER = -(1 << 16)


class _At(IntEnum):
    """Indices of the loop's numbers."""

    NEXT = 0  # the first received frame that the program has not seen
    COUNT = 1  # received frames
    LEFT = 2  # frames that left the program last and are not all sent yet
    TURNS = 3  # turns until the loop returns
    BATCH = 4  # about how many frames a turn receives
    STARTED = 5  # when the program's clock was 0, in nanoseconds
    COPIES = 6  # the most frames that one frame leaves behind


class _Leaving(NamedTuple):
    """Memory for frames that leave the program."""

    data: NDArray[np.uint8]  # [rows, stride]
    length: NDArray[np.int32]  # [rows]
    port: NDArray[np.int32]  # [rows]
    leave: NDArray[np.uint64]  # [rows]


class _Loop(NamedTuple):
    """The loop's memory from one call to the next."""

    numbers: NDArray[np.int64]  # [_At]
    polled: NDArray[np.int64]  # [wakers + ports]: struct pollfd
    ready: NDArray[np.int32]  # [ports]: rows of ports that are readable
    clock: NDArray[np.int64]  # [2]: struct timespec


class _Memory(NamedTuple):
    """All that a turn reads and writes."""

    sockets: Sockets
    batch: Batch
    outbox: Outbox
    state: State
    rings: Rings
    leaving: _Leaving
    loop: _Loop


def warm_up(ports: UdpPorts) -> None:
    """Compile the loops ahead of use: no packet waits for them, nor a signal for a compiler."""
    ports.send(ports.receive([]))
    byte, half, word = np.zeros((1, 1), np.uint8), np.zeros(1, np.uint32), np.zeros(1, np.uint64)
    leaving = _Leaving(byte, ports.received.length, ports.received.port, word)
    state = State(memory=word, regs=half, wide=word, counts=word, groups=word, queues=word)
    rings = new_rings([], 1, 1, ports.sockets)
    outbox, loop = ports.outbox_for(0), _new_loop([], 0)
    memory = _Memory(ports.sockets, ports.received, outbox, state, rings, leaving, loop)
    signature = types.FunctionType(SIGNATURE), cast(Any, typeof)(memory), types.int64
    cast(Any, run_turns).compile(signature)


def _new_loop(descriptors: Sequence[int], ports: int) -> _Loop:
    """Return a loop that waits for descriptors, of which the last ones are the ports'."""
    return _Loop(
        numbers=np.zeros(len(_At), np.int64),
        polled=np.array(descriptors, np.int64) | _READABLE,
        ready=np.zeros(ports, np.int32),
        clock=np.zeros(2, np.int64),
    )


class UdpLoop:
    """The compiled loop over the UDP ports of one running switch."""

    def __init__(
        self,
        ports: UdpPorts,
        switch: Switch,
        entry: Entry,
        queues: Queues | None,
        wakers: Sequence[int],
        started_ns: int,
    ) -> None:
        """Take the switch's program from `entry`, and the ports with a rate from `queues`.

        wakers: descriptors that end the wait when they are readable. started_ns: when the program's clock was
        0, by `time.monotonic_ns`.
        """
        self._ports, self._switch, self._entry = ports, switch, entry
        sockets = [port.socket.fileno() for port in ports.ports.values()]
        self._loop = _new_loop([*wakers, *sockets], len(sockets))
        self._loop.numbers[_At.STARTED], self._loop.numbers[_At.BATCH] = started_ns, ports.batch
        self._room = Room()
        paced, limit = (queues.ports, queues.limit) if queues else ([], 1)
        self._rings = new_rings(paced, limit, int(ports.received.parts[0, 1]), ports.sockets)
        self._held = len(paced) * limit

    def run(self, timeout_s: float | None, turns: int) -> tuple[bool, list[bytes]]:
        """Take up to `turns` turns, each of which waits up to `timeout_s` (None: without limit).

        Return whether a waker is readable, and frames for the controller. Raises OSError for what waiting
        does not mend.
        """
        ports, room, numbers = self._ports, self._room, self._loop.numbers
        numbers[_At.TURNS] = turns
        wait_us = NEVER if timeout_s is None else math.ceil(1e6 * timeout_s)
        with self._switch.lock:
            numbers[_At.COPIES] = copies = self._switch.most_copies
            stride = ports.received.data.shape[1] + self._switch.growth
            room.prepare(len(ports.received.data) + copies, stride)
            data = room.data[: room.rows * stride].reshape(room.rows, stride)
            memory = _Memory(
                ports.sockets,
                ports.received,
                ports.outbox_for(max(room.rows, self._held)),
                self._switch.state,
                self._rings,
                _Leaving(data, room.length, room.port, room.leave),
                self._loop,
            )
            because = run_turns(self._entry, memory, wait_us)
        if because < 0:
            raise OSError(-because, f"udp wait or receive: {os.strerror(-because)}")
        if because >= _REFUSED:
            ports.send_less(because - _REFUSED)
        left = room.frames(int(numbers[_At.LEFT]), stride)
        numbers[_At.LEFT] = 0
        return because == _WOKEN, [frame for _, frame in left.at(left.port == CPU_PORT).pairs()]


@compiled
def run_turns(run: Callable[..., tuple[int, int]], memory: _Memory, wait_us: int) -> int:
    """Take turns; return why they ended, _REFUSED plus the port's row, or minus an error number."""
    sockets, rings, loop = memory.sockets, memory.rings, memory.loop
    numbers = loop.numbers
    while True:
        while numbers[_At.NEXT] < numbers[_At.COUNT]:
            because = _forwarded(run, memory)
            if because:
                return because
        now_us = _now_us(loop)
        if now_us >= rings.paused_until[0]:
            row = release(rings, sockets, memory.outbox, now_us)
            if row >= 0:
                return _REFUSED + row
        if not numbers[_At.TURNS]:
            return _DONE
        numbers[_At.TURNS] -= 1
        due_us = due_in(rings, now_us)
        ready = _waited(loop, min(due_us, wait_us))
        if ready == _WAKER:
            return _WOKEN
        if ready < 0:
            return ready
        if not ready and due_us >= wait_us:
            return _DONE
        share = max(64, numbers[_At.BATCH] // max(1, ready))
        count = receive(sockets, loop.ready[:ready], share, memory.batch)
        if count < 0:
            return count
        numbers[_At.NEXT], numbers[_At.COUNT] = 0, count


@compiled
def _forwarded(run: Callable[..., tuple[int, int]], memory: _Memory) -> int:
    """Run the program over received frames, as far as there is room, and send; return why it ended, or 0."""
    sockets, batch, outbox, state, rings, leaving, loop = memory
    numbers, (rows, stride) = loop.numbers, leaving.data.shape
    now_us = _now_us(loop)
    if crowded(rings, (numbers[_At.COUNT] - numbers[_At.NEXT]) * numbers[_At.COPIES]):
        row = release(rings, sockets, outbox, now_us)
        if row >= 0:
            return _REFUSED + row
    done, left = run(
        batch.data.reshape(batch.data.size), np.uint64(batch.data.shape[1]), batch.length, batch.port,
        np.uint64(numbers[_At.NEXT]), np.uint64(numbers[_At.COUNT]), np.uint64(now_us & _CLOCK_MASK),
        leaving.data.reshape(leaving.data.size), np.uint64(stride), leaving.length, leaving.port,
        leaving.leave, np.uint64(rows), np.uint64(numbers[_At.COPIES]),
        state.memory, state.regs, state.wide, state.counts, state.groups, state.queues,
    )  # fmt: skip
    numbers[_At.NEXT], numbers[_At.LEFT] = done, left
    size, length = batch.length[0], leaving.length[: numbers[_At.LEFT]]
    hold(rings, sockets, leaving.data, length, leaving.port, leaving.leave, size)
    for_cpu = sort(sockets, leaving.data, length, leaving.port, outbox, size)
    row = send(sockets, outbox)
    if row >= 0:
        return _REFUSED + row
    if for_cpu:
        return _FOR_CPU
    numbers[_At.LEFT] = 0
    return 0


@compiled
def _now_us(loop: _Loop) -> int:
    """Return the microseconds since the program's clock was 0."""
    return int((nanoseconds(loop.clock) - loop.numbers[_At.STARTED]) // 1000)


@compiled
def _waited(loop: _Loop, wait_us: int) -> int:
    """Wait; return how many ports are readable, in `loop.ready`, _WAKER, or minus an error number."""
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
                return _WAKER
            loop.ready[count] = i - wakers
            count += 1
    return count
