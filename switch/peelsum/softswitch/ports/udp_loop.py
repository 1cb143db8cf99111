"""A switch's turns without the interpreter: its UDP ports, its program and the clock in one compiled loop.

Packets of ports with a rate are held, and sent when they are due. The loop also returns when the kernel
refuses to send segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numba import typeof

from peelsum.compiling import compiled
from peelsum.softswitch.ports.pacing_kernels import (
    Rings,
    crowded,
    due_in,
    hold,
    new_rings,
    release,
)
from peelsum.softswitch.ports.turns import (
    CLOCK_MASK,
    DONE,
    FOR_CPU,
    WAKER,
    WOKEN,
    At,
    CompiledLoop,
    Leaving,
    Loop,
    clock_us,
    new_loop,
    waited,
)
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.ports.udp_kernels import SHARE, Batch, Outbox, Sockets, receive, send, sort
from peelsum.softswitch.runtime.native import SIGNATURE, Entry, types
from peelsum.softswitch.runtime.queues import Queues
from peelsum.softswitch.runtime.switch import State, Switch

#: Why the loop returned, beside `turns`: the kernel refuses segments of the port whose row is added to it.
_REFUSED = FOR_CPU + 1


class _Memory(NamedTuple):
    """All that a turn reads and writes."""

    sockets: Sockets
    batch: Batch
    outbox: Outbox
    state: State
    rings: Rings
    leaving: Leaving
    loop: Loop


def warm_up(ports: UdpPorts) -> None:
    """Compile the loops ahead of use: no packet waits for them, nor a signal for a compiler."""
    ports.send(ports.receive([]))
    byte, half, word = np.zeros((1, 1), np.uint8), np.zeros(1, np.uint32), np.zeros(1, np.uint64)
    leaving = Leaving(byte, ports.received.length, ports.received.port, word)
    state = State(memory=word, regs=half, wide=word, counts=word, groups=word, queues=word)
    rings = new_rings([], 1, 1, ports.sockets)
    outbox, loop = ports.outbox_for(0), new_loop([], 0)
    memory = _Memory(ports.sockets, ports.received, outbox, state, rings, leaving, loop)
    signature = types.FunctionType(SIGNATURE), cast(Any, typeof)(memory), types.int64
    cast(Any, run_turns).compile(signature)


class UdpLoop(CompiledLoop):
    """The compiled loop over UDP ports."""

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

        wakers: descriptors that end the wait when they are readable. started_ns: see `CompiledLoop`.
        """
        self._ports = ports
        sockets = [port.socket.fileno() for port in ports.ports.values()]
        loop = new_loop([*wakers, *sockets], len(sockets))
        super().__init__(switch, entry, loop, ports.received.data, ports.batch, started_ns)
        paced, limit = (queues.ports, queues.limit) if queues else ([], 1)
        self._rings = new_rings(paced, limit, int(ports.received.parts[0, 1]), ports.sockets)
        self._held = len(paced) * limit

    def take_turns(self, leaving: Leaving, wait_us: int) -> int:
        """Take turns, see `CompiledLoop`."""
        ports = self._ports
        outbox = ports.outbox_for(max(len(leaving.data), self._held))
        state = self.switch.state
        memory = _Memory(ports.sockets, ports.received, outbox, state, self._rings, leaving, self.loop)
        because = run_turns(self.entry, memory, wait_us)
        if because < _REFUSED:
            return because
        ports.send_less(because - _REFUSED)
        return DONE


@compiled
def run_turns(run: Callable[..., tuple[int, int]], memory: _Memory, wait_us: int) -> int:
    """Take turns; return why they ended, _REFUSED plus the port's row, or minus an error number."""
    sockets, rings, loop = memory.sockets, memory.rings, memory.loop
    numbers = loop.numbers
    while True:
        while numbers[At.NEXT] < numbers[At.COUNT]:
            because = _forwarded(run, memory)
            if because:
                return because
        now_us = clock_us(loop)
        if now_us >= rings.paused_until[0]:
            row = release(rings, sockets, memory.outbox, now_us)
            if row >= 0:
                return _REFUSED + row
        if not numbers[At.TURNS]:
            return DONE
        numbers[At.TURNS] -= 1
        due_us = due_in(rings, now_us)
        ready = waited(loop, min(due_us, wait_us))
        if ready == WAKER:
            return WOKEN
        if ready < 0:
            return ready
        if not ready and due_us >= wait_us:
            return DONE
        share = max(SHARE, numbers[At.BATCH] // max(1, ready))
        count = receive(sockets, loop.ready[:ready], share, memory.batch)
        if count < 0:
            return count
        numbers[At.NEXT], numbers[At.COUNT] = 0, count


@compiled
def _forwarded(run: Callable[..., tuple[int, int]], memory: _Memory) -> int:
    """Run the program over received frames, as far as there is room, and send; return why it ended, or 0."""
    sockets, batch, outbox, state, rings, leaving, loop = memory
    numbers, (rows, stride) = loop.numbers, leaving.data.shape
    now_us = clock_us(loop)
    if crowded(rings, (numbers[At.COUNT] - numbers[At.NEXT]) * numbers[At.COPIES]):
        row = release(rings, sockets, outbox, now_us)
        if row >= 0:
            return _REFUSED + row
    done, left = run(
        batch.data.reshape(batch.data.size), np.uint64(batch.data.shape[1]), batch.length, batch.port,
        np.uint64(numbers[At.NEXT]), np.uint64(numbers[At.COUNT]), np.uint64(now_us & CLOCK_MASK),
        leaving.data.reshape(leaving.data.size), np.uint64(stride), leaving.length, leaving.port,
        leaving.leave, np.uint64(rows), np.uint64(numbers[At.COPIES]),
        state.memory, state.regs, state.wide, state.counts, state.groups, state.queues,
    )  # fmt: skip
    numbers[At.NEXT], numbers[At.LEFT] = done, left
    size, length = batch.length[0], leaving.length[: numbers[At.LEFT]]
    hold(rings, sockets, leaving.data, length, leaving.port, leaving.leave, size)
    for_cpu = sort(sockets, leaving.data, length, leaving.port, outbox, size)
    row = send(sockets, outbox)
    if row >= 0:
        return _REFUSED + row
    if for_cpu:
        return FOR_CPU
    numbers[At.LEFT] = 0
    return 0
