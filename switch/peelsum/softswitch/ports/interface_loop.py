"""The compiled event loop over ports on interfaces, which have neither rate nor delay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.softswitch.ports.compiled_loop import (
    FINISHED,
    FOR_CPU,
    WAKER,
    WOKEN,
    CompiledLoop,
    LoopField,
    LoopState,
    OutputFrames,
    clock_us,
    compile_loop,
    run_program,
    wait_for_ports,
)
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.ring_kernels import InterfaceRings, receive, send, unsent
from peelsum.softswitch.runtime.switch import ProgramMemory

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


def _memory(
    ports: InterfacePorts, state: ProgramMemory, output: OutputFrames, loop: LoopState
) -> _InterfaceLoopMemory:
    frames = ports.received
    return _InterfaceLoopMemory(ports.wires, frames.data, frames.length, frames.port, state, output, loop)


def warm_up(ports: InterfacePorts) -> None:
    """Compile the loop, so that neither the first packet nor a signal waits for the compiler later."""
    ports.send(ports.receive([]))
    compile_loop(run_loop, partial(_memory, ports))


class InterfaceLoop(CompiledLoop):
    """The compiled loop over ports on interfaces."""

    ports: InterfacePorts

    def run_compiled(self, output: OutputFrames, wait_us: int) -> int:
        """Run the compiled loop; see `CompiledLoop`."""
        self.ports.check_mtus()
        return run_loop(self.entry, _memory(self.ports, self.switch.state, output, self.loop), wait_us)


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
    run_program(program, data, length, port, state, output, loop, clock_us(loop))
    for_cpu = send(wires, output.data, output.length[: loop.numbers[LoopField.OUTPUT_COUNT]], output.port)
    if not for_cpu:
        loop.numbers[LoopField.OUTPUT_COUNT] = 0
    return for_cpu
