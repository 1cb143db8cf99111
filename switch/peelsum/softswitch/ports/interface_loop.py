"""A switch's turns without the interpreter on interfaces, whose ports have neither rate nor delay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numba import typeof
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.ring_kernels import Wires, receive, send, unsent
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
from peelsum.softswitch.runtime.native import SIGNATURE, Entry, types
from peelsum.softswitch.runtime.switch import State, Switch

#: Microseconds after which the kernel is asked again to send what it left in a ring.
_AGAIN_US = 1000


class _Memory(NamedTuple):
    """All that a turn reads and writes."""

    wires: Wires
    data: NDArray[np.uint8]  # [rows, stride]: received frames
    length: NDArray[np.int32]  # [rows]
    port: NDArray[np.int32]  # [rows]
    state: State
    leaving: Leaving
    loop: Loop


def warm_up(ports: InterfacePorts) -> None:
    """Compile the loop ahead of use: no packet waits for it, nor a signal for a compiler."""
    ports.send(ports.receive([]))
    frames, half, word = ports.received, np.zeros(1, np.uint32), np.zeros(1, np.uint64)
    state = State(memory=word, regs=half, wide=word, counts=word, groups=word, queues=word)
    leaving = Leaving(frames.data, frames.length, frames.port, word)
    memory = _Memory(ports.wires, frames.data, frames.length, frames.port, state, leaving, new_loop([], 0))
    signature = types.FunctionType(SIGNATURE), cast(Any, typeof)(memory), types.int64
    cast(Any, run_turns).compile(signature)


class InterfaceLoop(CompiledLoop):
    """The compiled loop over ports on interfaces."""

    def __init__(
        self, ports: InterfacePorts, switch: Switch, entry: Entry, wakers: Sequence[int], started_ns: int
    ) -> None:
        """wakers: descriptors that end the wait when they are readable. Others: see `CompiledLoop`."""
        self._ports = ports
        sockets = [port.socket.fileno() for port in ports.ports.values()]
        loop = new_loop([*wakers, *sockets], len(sockets))
        super().__init__(switch, entry, loop, ports.received.data, ports.batch, started_ns)

    def take_turns(self, leaving: Leaving, wait_us: int) -> int:
        """Take turns, see `CompiledLoop`."""
        self._ports.look_at_mtus()
        frames, state = self._ports.received, self.switch.state
        memory = _Memory(
            self._ports.wires, frames.data, frames.length, frames.port, state, leaving, self.loop
        )
        return run_turns(self.entry, memory, wait_us)


@compiled
def run_turns(run: Callable[..., tuple[int, int]], memory: _Memory, wait_us: int) -> int:
    """Take turns; return why they ended, or minus an error number."""
    loop = memory.loop
    numbers = loop.numbers
    while True:
        while numbers[At.NEXT] < numbers[At.COUNT]:
            if _forwarded(run, memory):
                return FOR_CPU
        if not numbers[At.TURNS]:
            return DONE
        numbers[At.TURNS] -= 1
        more = unsent(memory.wires)
        ready = waited(loop, min(wait_us, _AGAIN_US) if more else wait_us)
        if ready == WAKER:
            return WOKEN
        if ready < 0:
            return ready
        if not ready:
            if more and wait_us > _AGAIN_US:
                continue
            return DONE
        share = max(1, numbers[At.BATCH] // ready)
        numbers[At.NEXT] = 0
        numbers[At.COUNT] = receive(
            memory.wires, loop.ready[:ready], share, memory.data, memory.length, memory.port
        )


@compiled
def _forwarded(run: Callable[..., tuple[int, int]], memory: _Memory) -> int:
    """Run the program over received frames, as far as there is room, and send; return the controller's."""
    wires, data, length, port, state, leaving, loop = memory
    numbers, (rows, stride) = loop.numbers, leaving.data.shape
    done, left = run(
        data.reshape(data.size), np.uint64(data.shape[1]), length, port,
        np.uint64(numbers[At.NEXT]), np.uint64(numbers[At.COUNT]), np.uint64(clock_us(loop) & CLOCK_MASK),
        leaving.data.reshape(leaving.data.size), np.uint64(stride), leaving.length, leaving.port,
        leaving.leave, np.uint64(rows), np.uint64(numbers[At.COPIES]),
        state.memory, state.regs, state.wide, state.counts, state.groups, state.queues,
    )  # fmt: skip
    numbers[At.NEXT], numbers[At.LEFT] = done, left
    for_cpu = send(wires, leaving.data, leaving.length[: numbers[At.LEFT]], leaving.port)
    if not for_cpu:
        numbers[At.LEFT] = 0
    return for_cpu
