"""The compiled event loop over UDP ports: it receives, runs the program and sends, without the interpreter.

Packets of ports with a rate wait in rings until they are due. The loop also returns when the kernel refuses
to send segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

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
from peelsum.softswitch.ports.pacing_kernels import (
    Rings,
    due_in,
    hold,
    may_overflow,
    new_rings,
    release,
)
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.ports.udp_kernels import (
    SHARE,
    ReceiveBuffers,
    SendBuffers,
    Sockets,
    lose_sent,
    receive,
    send,
    sort,
)
from peelsum.softswitch.runtime.native import CompiledProgram
from peelsum.softswitch.runtime.queues import Queues
from peelsum.softswitch.runtime.switch import ProgramMemory, Switch

#: A result of `run_loop`: the kernel refuses segments of a port, whose row is added to this number.
_SEGMENTS_REFUSED = FOR_CPU + 1


class _UdpLoopMemory(NamedTuple):
    """All memory that the loop reads and writes."""

    sockets: Sockets
    batch: ReceiveBuffers
    send_buffers: SendBuffers
    rings: Rings
    state: ProgramMemory
    output: OutputFrames
    loop: LoopState


def warm_up(ports: UdpPorts) -> None:
    """Compile the loop, so that neither the first packet nor a signal waits for the compiler later."""
    ports.send(ports.receive([]))
    rings, send_buffers = new_rings([], 1, 1, ports.sockets), ports.send_buffers_for(0)
    compile_loop(run_loop, partial(_UdpLoopMemory, ports.sockets, ports.received, send_buffers, rings))


class UdpLoop(CompiledLoop):
    """The compiled loop over UDP ports."""

    ports: UdpPorts

    def __init__(
        self,
        ports: UdpPorts,
        switch: Switch,
        entry: CompiledProgram,
        queues: Queues | None,
        wakers: Sequence[int],
        started_ns: int,
    ) -> None:
        """Take the ports with a rate from `queues`; for the others, see `CompiledLoop`."""
        super().__init__(ports, switch, entry, wakers, started_ns)
        paced_ports, limit = (queues.ports, queues.limit) if queues else ([], 1)
        self._rings = new_rings(paced_ports, limit, int(ports.received.iovecs[0, 1]), ports.sockets)
        self._ring_rows = len(paced_ports) * limit

    def run_compiled(self, output: OutputFrames, wait_us: int) -> int:
        """Run the compiled loop; see `CompiledLoop`."""
        ports = self.ports
        send_buffers = ports.send_buffers_for(max(len(output.data), self._ring_rows))
        memory = _UdpLoopMemory(
            ports.sockets, ports.received, send_buffers, self._rings, self.switch.state, output, self.loop
        )
        reason = run_loop(self.entry, memory, wait_us)
        if reason < _SEGMENTS_REFUSED:
            return reason
        ports.resend_smaller(reason - _SEGMENTS_REFUSED)
        return FINISHED


@compiled
def run_loop(program: Callable[..., tuple[int, int]], memory: _UdpLoopMemory, wait_us: int) -> int:
    """Process batches; return why they ended, _SEGMENTS_REFUSED plus a row, or minus an error number."""
    sockets, rings, loop = memory.sockets, memory.rings, memory.loop
    numbers = loop.numbers
    while True:
        while numbers[LoopField.NEXT] < numbers[LoopField.COUNT]:
            reason = _process_batch(program, memory)
            if reason:
                return reason
        now_us = clock_us(loop)
        if now_us >= rings.paused_until[0]:
            row = release(rings, sockets, memory.send_buffers, now_us)
            if row >= 0:
                return _SEGMENTS_REFUSED + row
        if not numbers[LoopField.ITERATIONS]:
            return FINISHED
        numbers[LoopField.ITERATIONS] -= 1
        due_us = due_in(rings, now_us)
        ready = wait_for_ports(loop, min(due_us, wait_us))
        if ready == WAKER:
            return WOKEN
        if ready < 0:
            return ready
        if not ready and due_us >= wait_us:
            return FINISHED
        share = max(SHARE, numbers[LoopField.BATCH] // max(1, ready))
        count = receive(sockets, loop.ready[:ready], share, memory.batch)
        if count < 0:
            return count
        numbers[LoopField.NEXT], numbers[LoopField.COUNT] = 0, count


@compiled
def _process_batch(program: Callable[..., tuple[int, int]], memory: _UdpLoopMemory) -> int:
    """Run the program over received frames, as far as the output has room, and send what leaves.

    Return 0, or why the loop must return.
    """
    sockets, batch, send_buffers, rings, state, output, loop = memory
    numbers = loop.numbers
    now_us = clock_us(loop)
    if may_overflow(rings, (numbers[LoopField.COUNT] - numbers[LoopField.NEXT]) * numbers[LoopField.COPIES]):
        row = release(rings, sockets, send_buffers, now_us)
        if row >= 0:
            return _SEGMENTS_REFUSED + row
    run_program(program, batch.data, batch.length, batch.port, state, output, loop, now_us)
    length = output.length[: numbers[LoopField.OUTPUT_COUNT]]
    lose_sent(sockets, output.port[: length.shape[0]])
    hold(rings, sockets, output.data, length, output.port, output.leave)
    for_cpu = sort(sockets, output.data, length, output.port, send_buffers)
    row = send(sockets, send_buffers)
    if row >= 0:
        return _SEGMENTS_REFUSED + row
    if for_cpu:
        return FOR_CPU
    numbers[LoopField.OUTPUT_COUNT] = 0
    return 0
