"""The data plane of a switch process: its loop moves frames between ports, pipeline and controller.

It has the pipeline's clock.
"""

from __future__ import annotations

import logging
import select
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TypeAlias

from peelsum.softswitch.ports import interface_loop, udp_loop
from peelsum.softswitch.ports.capture import Capture
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.links import Links
from peelsum.softswitch.ports.pacing import Pacer
from peelsum.softswitch.ports.turns import CLOCK_MASK, CompiledLoop
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.switch import Switch
from peelsum.wire import CPU_PORT, lanes_in, packet_bytes

#: All ports of a switch.
Ports: TypeAlias = UdpPorts | InterfacePorts
#: Reported by the selector, beside numbers of ports, after `stop`.
_STOPPING = -1
#: Turns of a compiled loop: it returns only when something else is to be done.
_MANY = 1 << 62
_log = logging.getLogger("peelsum.switch")


def warm_up(ports: Ports) -> None:
    """Compile the loop over these ports ahead of use: no packet waits for it, nor a signal for a compiler."""
    if isinstance(ports, UdpPorts):
        udp_loop.warm_up(ports)
    else:
        interface_loop.warm_up(ports)


class DataPlane:
    """Moves frames from the ports through the pipeline to the ports, and to and from the controller.

    Theory of operation: `turn` waits for any port, for the device (a frame from the controller, or a new
    pipeline) or for `stop`. Each ready port then contributes up to its share of a batch, and the batch goes
    through the pipeline at one instant of the clock. Outgoing frames are sent before the next batch is
    received; those of a port with a rate or delay when they are due, and no wait lasts longer than that.
    Frames of a port with an arrival delay are held likewise, before the pipeline. A stop drops held frames.
    A `CompiledLoop` does all that without the interpreter, where the ports and links permit it.
    While no pipeline runs, hellos are answered and packets are dropped.
    """

    def __init__(
        self,
        device: Device,
        ports: Ports,
        *,
        links: Links | None = None,
        capture: Capture | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """links: None has the rates of the device's queues only. clock: returns nanoseconds."""
        self._device = device
        self._ports = ports
        self._links, self._capture = links, capture
        self._pacer, self._arrivals = self._new_pacers()
        self._switch: Switch | None = None
        self._loop: CompiledLoop | None = None
        self._clock, self._started = clock, clock()
        self._stopping = False
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, _STOPPING)
        self._selector.register(device, selectors.EVENT_READ, CPU_PORT)
        for number, port in ports.ports.items():
            self._selector.register(port.socket, selectors.EVENT_READ, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def now_us(self) -> int:
        """Return the pipeline's clock: microseconds since this data plane was made, 48 bits."""
        return (self._clock() - self._started) // 1000 & CLOCK_MASK

    def run(self) -> None:
        """Move frames until `stop` is called."""
        while not self._stopping:
            self.turn(turns=_MANY)

    def turn(self, timeout: float | None = None, turns: int = 1) -> None:
        """Wait up to `timeout` seconds (None: without limit) for a batch, and process it.

        turns: the most batches that a compiled loop processes before it returns.
        """
        if self._loop is not None:
            woken, to_cpu = self._loop.run(timeout, turns)
            if to_cpu:
                self._deliver_to_cpu(to_cpu)
            if woken:
                self._attend()
            return
        ready = {key.data for key, _ in self._wait(timeout)}
        if ready & {CPU_PORT, _STOPPING}:
            self._attend()
        ready -= {CPU_PORT, _STOPPING}
        arrived = self._ports.receive(sorted(ready))
        if len(arrived):
            if self._capture is not None:
                self._capture.write("in", arrived)
            if self._links is not None and self._pacer is not None and self._switch is not None:
                self._links.follow(self._pacer, self.now_us())
            self._process(arrived if self._arrivals is None else self._arrivals.hold(arrived, self.now_us()))

    def stop(self) -> None:
        """End `run` after the current batch. May be called from any thread or signal handler."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # full: already readable; closed: already stopped
            self._waker.send(b"\0")

    @property
    def waker(self) -> int:
        """A descriptor; a write to it ends the wait."""
        return self._waker.fileno()

    def close(self) -> None:
        """Close the descriptors; the caller closes ports and device."""
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ports that are ready within `timeout` seconds, and move frames whose time has come."""
        due = self._release()
        if due is None:
            return self._selector.select(timeout)
        # The selector's timeout is in milliseconds, too coarse: thousands of frames may leave in one.
        select.select([self._selector], [], [], due if timeout is None else min(due, timeout))
        self._release()
        return self._selector.select(0)

    def _release(self) -> float | None:
        """Move the held frames that are due; return the seconds until more are, None if none are held."""
        # Arrivals first: they may leave at once.
        pacers = [pacer for pacer in (self._arrivals, self._pacer) if pacer is not None]
        now = self.now_us()
        for pacer in pacers:
            pacer.release(now)
        return min((due for pacer in pacers if (due := pacer.due_in(now)) is not None), default=None)

    def _attend(self) -> None:
        """Take the device's news: a new pipeline, or frames from the controller; clear the wakers."""
        with suppress(OSError):
            self._woken.recv(4096)
        # Under the lock, no commit comes between: frames for the new pipeline would enter the old one.
        with self._device.lock:
            self._follow_pipeline()
            injected = self._device.take_injected()
        if injected:
            self._process(Frames.of([(CPU_PORT, frame) for frame in injected]))

    def _follow_pipeline(self) -> None:
        switch = self._device.switch
        if switch is not self._switch and switch is not None:
            lanes = lanes_in(switch.registers)
            _log.info("switch: runs a pipeline of %d lanes", lanes, extra={"lanes": lanes})
            self._ports.resize(packet_bytes(lanes))
            self._pacer, self._arrivals = self._new_pacers()
            self._loop = self._new_loop(switch)
        self._switch = switch

    def _new_loop(self, switch: Switch) -> CompiledLoop | None:
        """Return a compiled loop for a pipeline; None if its frames have to go through Python."""
        if self._clock is not time.monotonic_ns or (self._links is not None and not self._links.steady):
            return None
        if switch.entry is None or self._capture is not None:
            return None
        wakers = [self._woken.fileno(), self._device.fileno()]
        loop: CompiledLoop
        match self._ports:
            case UdpPorts(lossy=False) as ports:
                loop = udp_loop.UdpLoop(
                    ports, switch, switch.entry, self._device.queues, wakers, self._started
                )
            case InterfacePorts() as wires if self._device.queues is None:
                loop = interface_loop.InterfaceLoop(wires, switch, switch.entry, wakers, self._started)
            case _:
                return None
        switch.lock.wanted = self._wake
        return loop

    def _new_pacers(self) -> tuple[Pacer | None, Pacer | None]:
        """Return the pacers of frames that leave and that arrive."""
        if self._links is not None:
            return self._links.pacer(self._send), self._links.arrivals(self._process)
        return (Pacer(self._device.queues, self._send) if self._device.queues else None), None

    def _deliver_to_cpu(self, frames: list[bytes]) -> None:
        """Pass frames on to the controller, which reads their headers by the running pipeline."""
        with self._device.lock:
            if self._device.switch is self._switch:
                self._device.deliver_to_cpu(frames)

    def _process(self, frames: Frames) -> None:
        if self._switch is None or not len(frames):
            return
        now = self.now_us()
        out = self._switch.process(frames, now)
        to_cpu = out.port == CPU_PORT
        if to_cpu.any():
            self._deliver_to_cpu([frame for _, frame in out.at(to_cpu).pairs()])
            out = out.at(~to_cpu)
        if self._pacer is not None:
            out = self._pacer.hold(out, now)
        if len(out):
            self._send(out)

    def _send(self, frames: Frames) -> None:
        if self._capture is not None:
            self._capture.write("out", frames)
        self._ports.send(frames)
