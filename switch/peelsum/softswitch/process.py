"""The switch process: a data plane and a P4Runtime server, from start to clean stop.

The data plane's loop moves frames between ports, pipeline and controller, and has the pipeline's clock.
"""

from __future__ import annotations

import logging
import select
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Self

from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.ports.capture import CapturedPorts
from peelsum.softswitch.ports.interfaces import InterfaceCounts, InterfacePorts, Method
from peelsum.softswitch.ports.links import Links
from peelsum.softswitch.ports.loops import compiled_loop, warm_up
from peelsum.softswitch.ports.pacing import Pacer
from peelsum.softswitch.ports.port import Ports
from peelsum.softswitch.ports.schedule import LinkSchedule
from peelsum.softswitch.ports.turns import CLOCK_MASK, CompiledLoop
from peelsum.softswitch.ports.udp import PortCounts, UdpPorts
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, QueueCounts, Queues
from peelsum.softswitch.runtime.switch import Switch
from peelsum.tls import Identity
from peelsum.wire import CPU_PORT, Verdict, lanes_in, packet_bytes
from peelsum.wire.datagrams import Address

_LAST_UDP_PORT = 0xFFFF
#: Reported by the selector, beside numbers of ports, after `stop`.
_STOPPING = -1
#: Turns of a compiled loop: it returns only when something else is to be done.
_MANY = 1 << 62
#: The counter of peelsum's program.
_VERDICTS = "PeelsumIngress.verdicts"


class StartError(SoftswitchError):
    """The switch cannot start: an address is in use or a value is out of range."""


_log = logging.getLogger("peelsum.switch")


@dataclass(frozen=True)
class Listening:
    """The addresses of a running switch; `udp_ports` or `interfaces` is empty."""

    host: str
    """The host on which UDP ports listen."""
    grpc_port: int
    """P4Runtime's TCP port."""
    udp_ports: Mapping[int, int]
    """UDP ports by switch port."""
    interfaces: Mapping[int, str] = field(default_factory=dict)
    """Names of interfaces by switch port."""
    ports_by: Mapping[int, str] = field(default_factory=dict)
    """How frames reach the ports on interfaces: AF_XDP and its mode, or AF_PACKET and why."""


@dataclass(frozen=True)
class SwitchCounts:
    """Counts of a switch: of its ports and queues, by switch port, and of its program."""

    ports: Mapping[int, PortCounts | InterfaceCounts]
    """Counts of each port."""
    queues: Mapping[int, QueueCounts]
    """Counts of the queue of each port that has a rate."""
    lanes: int = 0
    """32-bit values per packet of the running pipeline; 0 without one, or if it is not peelsum's."""
    verdicts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Packets and bytes by the verdict of peelsum's program."""


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
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """links: None has the rates of the device's queues only. clock: returns nanoseconds."""
        self._device = device
        self._ports = ports
        self._links = links
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
        if switch.entry is None:
            return None
        wakers = [self._woken.fileno(), self._device.fileno()]
        queues = self._device.queues
        loop = compiled_loop(self._ports, switch, switch.entry, queues, wakers, self._started)
        if loop is not None:
            switch.lock.wanted = self._wake
        return loop

    def _new_pacers(self) -> tuple[Pacer | None, Pacer | None]:
        """Return the pacers of frames that leave and that arrive."""
        send = self._ports.send_by
        if self._links is not None:
            return self._links.pacer(send), self._links.arrivals(lambda _, frames: self._process(frames))
        return (Pacer(self._device.queues, send) if self._device.queues else None), None

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
            self._ports.send(out)


def run(
    ports: int,
    *,
    grpc_address: str = "127.0.0.1:9559",
    udp_host: str = "127.0.0.1",
    udp_base: int | Mapping[int, int] | None = None,
    interfaces: Mapping[int, str] | None = None,
    ports_by: Method = "auto",
    joins: Mapping[int, Address] | None = None,
    loss: float = 0.0,
    seed: int = 0,
    rates: Mapping[int, float] | None = None,
    queue_limit: int = QUEUE_LIMIT,
    delays: Mapping[int, float] | None = None,
    arrival_delays: Mapping[int, float] | None = None,
    schedule: LinkSchedule | None = None,
    capture: Path | None = None,
    identity: Identity | None = None,
    device_id: int = 1,
    mode: Literal["numba", "python"] = "numba",
    observe: Callable[[Callable[[], SwitchCounts]], AbstractContextManager[object]] | None = None,
    announce: Callable[[Listening], None] = lambda listening: None,
) -> SwitchCounts:
    """Run a switch with ports 1 to `ports` until SIGINT (`Ctrl-C`) or SIGTERM; return its counts.

    grpc_address: address of P4Runtime, host:port; port 0 takes a free one.
    udp_base: switch port p listens on UDP port udp_base + p, or udp_base[p]; by default on any free one.
    interfaces: names of interfaces by switch port, to use instead of UDP ports; `ports` is then ignored.
    ports_by: how frames reach interfaces' ports: `xdp`, `packet`, or `auto`, AF_XDP where it works.
    joins: by switch port, the address of another switch's UDP port that it is connected to.
    loss: share of datagrams that each UDP port loses in each direction, 0 to 1, decided by `seed`.
    rates: rates in Mbit/s by switch port; the other ports send at once.
    queue_limit: packets that may wait at a port with a rate; further ones are dropped.
    delays: milliseconds by switch port that a frame is under way after it was sent.
    arrival_delays: milliseconds by switch port that a frame is under way before it arrives.
    schedule: changes of rates and delays, from the first frame that arrives at a port.
    capture: a folder for pcap files of each port's frames, see `CapturedPorts`.
    identity: P4Runtime's certificate, without which it listens on loopback only.
    observe: entered before `announce`, with a function that returns the counts now, from any thread.
    announce: called when all addresses listen.
    Raises StartError naming the value that is out of range or in use.
    """
    with ExitStack() as stack:
        try:
            opened = (
                _interface_ports(interfaces, loss, ports_by)
                if interfaces
                else _udp_ports(ports, udp_host, udp_base, joins or {}, loss, seed)
            )
            stack.callback(opened.close)
            told = opened.methods if isinstance(opened, InterfacePorts) else {}
            warm_up(opened)
            if capture is not None:
                opened = stack.enter_context(closing(CapturedPorts(opened, capture)))
            links = Links(
                opened.ports,
                rates=rates,
                delays=delays,
                arrival_delays=arrival_delays,
                schedule=schedule,
                queue_limit=queue_limit,
            )
            queues = links.queues
            device = Device(device_id, mode=mode, queues=queues, ports={*opened.ports, CPU_PORT})
            stack.callback(device.close)
            server = serve(device, grpc_address, identity)
            stack.callback(server.stop)
        except (OSError, SoftswitchError, ValueError) as error:
            raise StartError(error.strerror if isinstance(error, OSError) else str(error)) from error
        plane = stack.enter_context(DataPlane(device, opened, links=links))
        count = partial(_counts, device, opened, queues)
        with observe(count) if observe else nullcontext(), _stopped_by_signals(plane):
            announce(Listening(udp_host, server.port, opened.listening, interfaces or {}, told))
            plane.run()
        return count()


def _counts(device: Device, opened: Ports, queues: Queues | None) -> SwitchCounts:
    """Return a switch's counts so far."""
    ports = {number: port.counts for number, port in opened.ports.items()}
    switch, verdicts = device.switch, {}
    lanes = lanes_in(switch.registers) if switch is not None else 0
    cells = switch.counters.get(_VERDICTS) if switch is not None and lanes else None
    if cells is not None:
        counted = zip(Verdict, cells.values().tolist(), strict=False)
        verdicts = {verdict.name.lower(): (int(packets), int(size)) for verdict, (packets, size) in counted}
    return SwitchCounts(ports, queues.counts() if queues else {}, lanes, verdicts)


def _udp_ports(
    ports: int,
    host: str,
    base: int | Mapping[int, int] | None,
    joins: Mapping[int, Address],
    loss: float,
    seed: int,
) -> Ports:
    if not 1 <= ports < CPU_PORT:
        raise StartError(f"ports: {ports} is out of range; use 1 to {CPU_PORT - 1}")
    if isinstance(base, int) and not 0 <= base <= _LAST_UDP_PORT - ports:
        raise StartError(f"udp_base: {base} is out of range; use 0 to {_LAST_UDP_PORT - ports}")
    for port in joins:
        if not 1 <= port <= ports:
            raise StartError(f"join: port {port} is out of range; use 1 to {ports}")
    opened = UdpPorts(range(1, ports + 1), host=host, base=base, loss=loss, seed=seed)
    for port, address in joins.items():
        opened.ports[port].join(address)
    return opened


def _interface_ports(interfaces: Mapping[int, str], loss: float, method: Method) -> Ports:
    if loss:
        raise StartError(f"loss: {loss:g} is for UDP ports; lose packets on the link of an interface")
    for port, name in interfaces.items():
        if not 1 <= port < CPU_PORT:
            raise StartError(
                f"interface: {port}@{name}: port {port} is out of range; use 1 to {CPU_PORT - 1}"
            )
    if len(set(interfaces.values())) < len(interfaces):
        raise StartError(f"interface: {', '.join(interfaces.values())}: give each to one port")
    return InterfacePorts(interfaces, method=method)


@contextmanager
def _stopped_by_signals(plane: DataPlane) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `stop` while the body runs; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    # A signal just before the wait begins, or to another thread, does not end the wait by itself.
    woken_before = signal.set_wakeup_fd(plane.waker, warn_on_full_buffer=False)
    before = [signal.signal(number, lambda *_: plane.stop()) for number in numbers]
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
