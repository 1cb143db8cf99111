"""The parts that the compiled event loops over a switch's ports share: state, wait, clock, and the interface.

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
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.pacing_kernels import NEVER
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.runtime.native import SIGNATURE, CompiledProgram, types
from peelsum.softswitch.runtime.switch import OutputBuffers, ProgramMemory, Switch
from peelsum.wire.system_calls import INTERRUPTED, errno, nanoseconds, ppoll

_POLLIN, _REVENTS_SHIFT = 1 << 32, 48
CLOCK_MASK: Final = (1 << 48) - 1
# Why a loop returned: it has done its iterations, or nothing arrived in time; a waker is readable; frames
# have left for the controller.
FINISHED, WOKEN, FOR_CPU = 0, 1, 2
#: A result of `wait_for_ports`: a waker is readable. It is smaller than all negative error numbers.
WAKER = -(1 << 16)


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

    numbers: NDArray[np.int64]  # [At]
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


def compile_loop(run_loop: Any, memory_of: Callable[[ProgramMemory, OutputFrames, LoopState], Any]) -> None:
    """Compile a loop for the types of its memory; `memory_of` adds that of the ports."""
    word32, word64 = np.zeros(1, np.uint32), np.zeros(1, np.uint64)
    number, byte = np.zeros(1, np.int32), np.zeros((1, 1), np.uint8)
    state = ProgramMemory(word64, word32, word64, word64, word64, word64)
    memory = memory_of(state, OutputFrames(byte, number, number, word64), new_loop_state([], 0))
    run_loop.compile((types.FunctionType(SIGNATURE), cast(Any, typeof)(memory), types.int64))


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
