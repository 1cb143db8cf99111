"""The compiled event loop over ports on interfaces, which have neither rate nor delay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numba import typeof
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.softswitch.ports.compiled_loop import (
    CLOCK_MASK,
    FINISHED,
    FOR_CPU,
    WAKER,
    WOKEN,
    CompiledLoop,
    LoopField,
    LoopState,
    OutputFrames,
    clock_us,
    new_loop_state,
    wait_for_ports,
)
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.ring_kernels import InterfaceRings, receive, send, unsent
from peelsum.softswitch.runtime.native import SIGNATURE, CompiledProgram, types
from peelsum.softswitch.runtime.switch import ProgramMemory, Switch

#: Microseconds after which the kernel is told again to send what has remained in a ring.
_RETRY_US = 1000


class _InterfaceLoopMemory(NamedTuple):
    """All memory that the loop reads and writes."""

    wires: InterfaceRings
    data: NDArray[np.uint8]  # [rows, stride]: received frames
    length: NDArray[np.int32]  # [rows]
    port: NDArray[np.int32]  # [rows]
    state: ProgramMemory
    output: OutputFrames
    loop: LoopState


def warm_up(ports: InterfacePorts) -> None:
    """Compile the loop, so that neither the first packet nor a signal waits for the compiler later."""
    ports.send(ports.receive([]))
    frames, word32, word64 = ports.received, np.zeros(1, np.uint32), np.zeros(1, np.uint64)
    state = ProgramMemory(
        memory=word64, regs=word32, wide=word64, counts=word64, groups=word64, queues=word64
    )
    output = OutputFrames(frames.data, frames.length, frames.port, word64)
    memory = _InterfaceLoopMemory(
        ports.wires, frames.data, frames.length, frames.port, state, output, new_loop_state([], 0)
    )
    signature = types.FunctionType(SIGNATURE), cast(Any, typeof)(memory), types.int64
    cast(Any, run_loop).compile(signature)


class InterfaceLoop(CompiledLoop):
    """The compiled loop over ports on interfaces."""

    def __init__(
        self,
        ports: InterfacePorts,
        switch: Switch,
        entry: CompiledProgram,
        wakers: Sequence[int],
        started_ns: int,
    ) -> None:
        """Take the switch's program from `entry`; for the others, see `CompiledLoop`."""
        self._ports = ports
        super().__init__(ports, switch, entry, wakers, started_ns)

    def run_compiled(self, output: OutputFrames, wait_us: int) -> int:
        """Run the compiled loop; see `CompiledLoop`."""
        self._ports.check_mtus()
        frames, state = self._ports.received, self.switch.state
        memory = _InterfaceLoopMemory(
            self._ports.wires, frames.data, frames.length, frames.port, state, output, self.loop
        )
        return run_loop(self.entry, memory, wait_us)


@compiled
def run_loop(program: Callable[..., tuple[int, int]], memory: _InterfaceLoopMemory, wait_us: int) -> int:
    """Process batches; return why it ended, or minus an error number."""
    loop = memory.loop
    numbers = loop.numbers
    while True:
        while numbers[LoopField.NEXT] < numbers[LoopField.COUNT]:
            if _process_batch(program, memory):
                return FOR_CPU
        if not numbers[LoopField.ITERATIONS]:
            return FINISHED
        numbers[LoopField.ITERATIONS] -= 1
        has_unsent = unsent(memory.wires)
        ready = wait_for_ports(loop, min(wait_us, _RETRY_US) if has_unsent else wait_us)
        if ready == WAKER:
            return WOKEN
        if ready < 0:
            return ready
        if not ready:
            if has_unsent and wait_us > _RETRY_US:
                continue
            return FINISHED
        share = max(1, numbers[LoopField.BATCH] // ready)
        numbers[LoopField.NEXT] = 0
        numbers[LoopField.COUNT] = receive(
            memory.wires, loop.ready[:ready], share, memory.data, memory.length, memory.port
        )


@compiled
def _process_batch(program: Callable[..., tuple[int, int]], memory: _InterfaceLoopMemory) -> int:
    """Run the program over received frames, as far as the output has room, and send what leaves.

    Return how many frames are for the controller, and so must be returned by the loop.
    """
    wires, data, length, port, state, output, loop = memory
    numbers, (rows, stride) = loop.numbers, output.data.shape
    processed, output_count = program(
        data.reshape(data.size), np.uint64(data.shape[1]), length, port,
        np.uint64(numbers[LoopField.NEXT]), np.uint64(numbers[LoopField.COUNT]),
        np.uint64(clock_us(loop) & CLOCK_MASK),
        output.data.reshape(output.data.size), np.uint64(stride), output.length, output.port,
        output.leave, np.uint64(rows), np.uint64(numbers[LoopField.COPIES]),
        state.memory, state.regs, state.wide, state.counts, state.groups, state.queues,
    )  # fmt: skip
    numbers[LoopField.NEXT], numbers[LoopField.OUTPUT_COUNT] = processed, output_count
    for_cpu = send(wires, output.data, output.length[: numbers[LoopField.OUTPUT_COUNT]], output.port)
    if not for_cpu:
        numbers[LoopField.OUTPUT_COUNT] = 0
    return for_cpu
