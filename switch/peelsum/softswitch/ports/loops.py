"""The compiled event loops over a switch's ports: they receive, run the program and send as machine code.

Theory of operation. An iteration waits for the ports, receives a batch, runs the program over it and sends
what leaves. The loop holds the switch's lock, also while it waits. It returns when a waker is readable, a
descriptor to which a thread that waits for the lock, the controller or a signal has written. It also returns
when frames leave for the controller. The next `CompiledLoop.run` continues where the loop has stopped.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numba import typeof
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.softswitch.ports import ring_kernels, udp_kernels
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.pacing import (
    NEVER,
    Rings,
    due_in,
    hold,
    may_overflow,
    new_rings,
    release,
)
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.runtime.native import SIGNATURE, CompiledProgram, types
from peelsum.softswitch.runtime.queues import Queues
from peelsum.softswitch.runtime.switch import OutputBuffers, ProgramMemory, Switch
from peelsum.wire.system_calls import INTERRUPTED, errno, nanoseconds, ppoll

_POLLIN, _REVENTS_SHIFT = 1 << 32, 48
CLOCK_MASK: Final = (1 << 48) - 1
# Why a loop returned: it has done its iterations, or nothing arrived in time; a waker is readable; frames
# have left for the controller.
FINISHED, WOKEN, FOR_CPU = 0, 1, 2
#: A result of `wait_for_ports`: a waker is readable. It is smaller than all negative error numbers.
WAKER = -(1 << 16)


#: Microseconds after which the kernel is told again to send what has remained in an interface's ring.
_RETRY_US = 1000
#: A result of `run_udp_loop`: the kernel refuses segments of a port, whose row is added to this number.
_SEGMENTS_REFUSED = FOR_CPU + 1


class LoopField(IntEnum):
    """Indices of `LoopState.numbers`."""

    NEXT = 0  # the first received frame that the program has not processed
    COUNT = 1  # received frames
    OUTPUT_COUNT = 2  # frames that the program returned last, if some of them are for the controller
    ITERATIONS = 3  # iterations until the loop returns
    BATCH = 4  # about how many frames an iteration receives
    STARTED = 5  # when the program's clock was 0, in nanoseconds
    COPIES = 6  # the most frames that the program makes of one frame


class OutputFrames(NamedTuple):
    """Memory for frames that leave the program."""

    data: NDArray[np.uint8]  # [rows, stride]
    length: NDArray[np.int32]  # [rows]
    port: NDArray[np.int32]  # [rows]
    leave: NDArray[np.uint64]  # [rows]


class LoopState(NamedTuple):
    """The state of a loop, which it keeps from one call to the next."""

    numbers: NDArray[np.int64]  # [LoopField]
    polled: NDArray[np.int64]  # [wakers + ports]: struct pollfd
    ready: NDArray[np.int32]  # [ports]: rows of ports that are readable
    clock: NDArray[np.int64]  # [2]: struct timespec


def new_loop_state(descriptors: Sequence[int], ports: int) -> LoopState:
    """Return the state of a loop that waits for `descriptors`: wakers, then as many ports as `ports` says."""
    return LoopState(
        numbers=np.zeros(len(LoopField), np.int64),
        polled=np.array(descriptors, np.int64) | _POLLIN,
        ready=np.zeros(ports, np.int32),
        clock=np.zeros(2, np.int64),
    )


class CompiledLoop(ABC):
    """A compiled loop over the ports of one running switch, whose program is `entry`."""

    ports: UdpPorts | InterfacePorts

    def __init__(
        self,
        ports: UdpPorts | InterfacePorts,
        switch: Switch,
        entry: CompiledProgram,
        wakers: Sequence[int],
        started_ns: int,
    ) -> None:
        """wakers: descriptors that end the wait when they are readable.

        started_ns: when the program's clock was 0, by `time.monotonic_ns`.
        """
        self.ports, self.switch, self.entry = ports, switch, entry
        sockets = [port.socket.fileno() for port in ports.ports.values()]
        self.loop = new_loop_state([*wakers, *sockets], len(sockets))
        self._batch, self._output, self._cpu_port = ports.received.data, OutputBuffers(), ports.cpu_port
        self.loop.numbers[LoopField.STARTED], self.loop.numbers[LoopField.BATCH] = started_ns, ports.batch

    def run(self, timeout_s: float | None, iterations: int) -> tuple[bool, list[bytes]]:
        """Process up to `iterations` batches; wait up to `timeout_s` for each (None: without limit).

        Return whether a waker is readable, and frames for the controller. Raises OSError for permanent
        errors.
        """
        output, numbers = self._output, self.loop.numbers
        numbers[LoopField.ITERATIONS] = iterations
        wait_us = NEVER if timeout_s is None else math.ceil(1e6 * timeout_s)
        with self.switch.lock:
            numbers[LoopField.COPIES] = copies = self.switch.groups.most_copies
            stride = self._batch.shape[1] + self.switch.growth
            output.prepare(len(self._batch) + copies, stride)
            data = output.data[: output.rows * stride].reshape(output.rows, stride)
            reason = self.run_compiled(OutputFrames(data, output.length, output.port, output.leave), wait_us)
        if reason < 0:
            raise OSError(-reason, f"ports: wait or receive: {os.strerror(-reason)}")
        frames = output.frames(int(numbers[LoopField.OUTPUT_COUNT]), stride)
        numbers[LoopField.OUTPUT_COUNT] = 0
        return reason == WOKEN, [frame for _, frame in frames.at(frames.port == self._cpu_port).pairs()]

    @abstractmethod
    def run_compiled(self, leaving: OutputFrames, wait_us: int) -> int:
        """Run the compiled loop; return why it ended: a code, or minus an error number."""


@compiled
def run_program(
    program: Callable[..., tuple[int, int]],
    data: NDArray[np.uint8],
    length: NDArray[np.int32],
    port: NDArray[np.int32],
    state: ProgramMemory,
    output: OutputFrames,
    loop: LoopState,
    now_us: int,
) -> None:
    """Run the program over received frames, as far as the output has room."""
    numbers, (rows, stride) = loop.numbers, output.data.shape
    processed, output_count = program(
        data.reshape(data.size), np.uint64(data.shape[1]), length, port,
        np.uint64(numbers[LoopField.NEXT]), np.uint64(numbers[LoopField.COUNT]),
        np.uint64(now_us & CLOCK_MASK),
        output.data.reshape(output.data.size), np.uint64(stride), output.length, output.port,
        output.leave, np.uint64(rows), np.uint64(numbers[LoopField.COPIES]),
        state.memory, state.regs, state.wide, state.counts, state.groups, state.queues,
    )  # fmt: skip
    numbers[LoopField.NEXT], numbers[LoopField.OUTPUT_COUNT] = processed, output_count


@compiled
def clock_us(loop: LoopState) -> int:
    """Return the microseconds since the program's clock was 0."""
    return int((nanoseconds(loop.clock) - loop.numbers[LoopField.STARTED]) // 1000)


@compiled
def wait_for_ports(loop: LoopState, wait_us: int) -> int:
    """Wait; return the number of readable ports in `loop.ready`, or WAKER, or minus an error number."""
    count, ports, timeout = 0, loop.ready.shape[0], np.int64(0)
    wakers = loop.polled.shape[0] - ports
    if wait_us != NEVER:
        loop.clock[0], loop.clock[1] = wait_us // 1_000_000, wait_us % 1_000_000 * 1000
        timeout = np.int64(loop.clock.ctypes.data)
    if ppoll(loop.polled.ctypes.data, loop.polled.shape[0], timeout, 0) < 0:
        error_number = errno()
        return 0 if error_number == INTERRUPTED else -error_number
    for i in range(loop.polled.shape[0]):
        if loop.polled[i] >> _REVENTS_SHIFT:
            if i < wakers:
                return WAKER
            loop.ready[count] = i - wakers
            count += 1
    return count


class _UdpLoopMemory(NamedTuple):
    """All memory that the loop reads and writes."""

    sockets: udp_kernels.Sockets
    batch: udp_kernels.ReceiveBuffers
    send_buffers: udp_kernels.SendBuffers
    rings: Rings
    state: ProgramMemory
    output: OutputFrames
    loop: LoopState


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
        reason = run_udp_loop(self.entry, memory, wait_us)
        if reason < _SEGMENTS_REFUSED:
            return reason
        ports.resend_smaller(reason - _SEGMENTS_REFUSED)
        return FINISHED


@compiled
def run_udp_loop(program: Callable[..., tuple[int, int]], memory: _UdpLoopMemory, wait_us: int) -> int:
    """Process batches; return why they ended, _SEGMENTS_REFUSED plus a row, or minus an error number."""
    sockets, rings, loop = memory.sockets, memory.rings, memory.loop
    numbers = loop.numbers
    while True:
        while numbers[LoopField.NEXT] < numbers[LoopField.COUNT]:
            reason = _process_from_udp(program, memory)
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
        share = max(udp_kernels.SHARE, numbers[LoopField.BATCH] // max(1, ready))
        count = udp_kernels.receive(sockets, loop.ready[:ready], share, memory.batch)
        if count < 0:
            return count
        numbers[LoopField.NEXT], numbers[LoopField.COUNT] = 0, count


@compiled
def _process_from_udp(program: Callable[..., tuple[int, int]], memory: _UdpLoopMemory) -> int:
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
    udp_kernels.lose_sent(sockets, output.port[: length.shape[0]])
    hold(rings, sockets, output.data, length, output.port, output.leave)
    for_cpu = udp_kernels.sort(sockets, output.data, length, output.port, send_buffers)
    row = udp_kernels.send(sockets, send_buffers)
    if row >= 0:
        return _SEGMENTS_REFUSED + row
    if for_cpu:
        return FOR_CPU
    numbers[LoopField.OUTPUT_COUNT] = 0
    return 0


class _InterfaceLoopMemory(NamedTuple):
    """All memory that the loop reads and writes."""

    wires: ring_kernels.InterfaceRings
    data: NDArray[np.uint8]  # [rows, stride]: received frames
    length: NDArray[np.int32]  # [rows]
    port: NDArray[np.int32]  # [rows]
    state: ProgramMemory
    output: OutputFrames
    loop: LoopState


def _interface_memory(
    ports: InterfacePorts, state: ProgramMemory, output: OutputFrames, loop: LoopState
) -> _InterfaceLoopMemory:
    frames = ports.received
    return _InterfaceLoopMemory(ports.wires, frames.data, frames.length, frames.port, state, output, loop)


class InterfaceLoop(CompiledLoop):
    """The compiled loop over ports on interfaces."""

    ports: InterfacePorts

    def run_compiled(self, output: OutputFrames, wait_us: int) -> int:
        """Run the compiled loop; see `CompiledLoop`."""
        self.ports.check_mtus()
        return run_interface_loop(
            self.entry, _interface_memory(self.ports, self.switch.state, output, self.loop), wait_us
        )


@compiled
def run_interface_loop(
    program: Callable[..., tuple[int, int]], memory: _InterfaceLoopMemory, wait_us: int
) -> int:
    """Process batches; return why it ended, or minus an error number."""
    loop = memory.loop
    numbers = loop.numbers
    while True:
        while numbers[LoopField.NEXT] < numbers[LoopField.COUNT]:
            if _process_from_interfaces(program, memory):
                return FOR_CPU
        if not numbers[LoopField.ITERATIONS]:
            return FINISHED
        numbers[LoopField.ITERATIONS] -= 1
        has_unsent = ring_kernels.unsent(memory.wires)
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
        numbers[LoopField.COUNT] = ring_kernels.receive(
            memory.wires, loop.ready[:ready], share, memory.data, memory.length, memory.port
        )


@compiled
def _process_from_interfaces(program: Callable[..., tuple[int, int]], memory: _InterfaceLoopMemory) -> int:
    """Run the program over received frames, as far as the output has room, and send what leaves.

    Return how many frames are for the controller, and so must be returned by the loop.
    """
    wires, data, length, port, state, output, loop = memory
    run_program(program, data, length, port, state, output, loop, clock_us(loop))
    for_cpu = ring_kernels.send(
        wires, output.data, output.length[: loop.numbers[LoopField.OUTPUT_COUNT]], output.port
    )
    if not for_cpu:
        loop.numbers[LoopField.OUTPUT_COUNT] = 0
    return for_cpu


def warm_up(ports: UdpPorts | InterfacePorts) -> None:
    """Compile the loop over these ports, so that neither the first packet nor a signal waits for it later."""
    ports.send(ports.receive([]))
    word32, word64 = np.zeros(1, np.uint32), np.zeros(1, np.uint64)
    number, byte = np.zeros(1, np.int32), np.zeros((1, 1), np.uint8)
    state = ProgramMemory(word64, word32, word64, word64, word64, word64)
    program = state, OutputFrames(byte, number, number, word64), new_loop_state([], 0)
    loop: Any = run_interface_loop
    memory: Any = None
    if isinstance(ports, UdpPorts):
        rings, send_buffers = new_rings([], 1, 1, ports.sockets), ports.send_buffers_for(0)
        memory = _UdpLoopMemory(ports.sockets, ports.received, send_buffers, rings, *program)
        loop = run_udp_loop
    else:
        memory = _interface_memory(ports, *program)
    loop.compile((types.FunctionType(SIGNATURE), cast(Any, typeof)(memory), types.int64))
