"""The switch process: a data plane and a P4Runtime server, from start to clean stop."""

from __future__ import annotations

import errno
import logging
import select
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self, TypeAlias

from peelsum.processes.user_errors import ending_signals
from peelsum.softswitch.compiler.loading import load
from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.p4runtime.notifications import poll_regularly
from peelsum.softswitch.ports.capture import Capture
from peelsum.softswitch.ports.interfaces import InterfaceCounts, InterfacePorts
from peelsum.softswitch.ports.links import Links, load_schedule
from peelsum.softswitch.ports.loops import CLOCK_MASK, CompiledLoop, InterfaceLoop, UdpLoop, warm_up
from peelsum.softswitch.ports.pacing import Pacer
from peelsum.softswitch.ports.udp import PortCounts, UdpPorts
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, QueueCounts, Queues
from peelsum.softswitch.runtime.switch import Switch
from peelsum.switch_settings import SwitchSettings
from peelsum.tls import TlsIdentity, is_loopback
from peelsum.wire import Verdict, count_lanes, packet_bytes

#: All ports of a switch.
Ports: TypeAlias = UdpPorts | InterfacePorts
#: The selector's keys for the socket that `stop` writes to, and the device; its others are port numbers.
_STOPPING, _DEVICE = -1, -2
#: Batches after which a compiled loop returns: never, but for other reasons.
_UNLIMITED = 1 << 62
_logger = logging.getLogger("peelsum.switch")


class DataPlane:
    """Moves frames from the ports through the pipeline to the ports, and to and from the controller.

    Theory of operation: `process_batch` waits for a port, for the device (a frame from the controller, or a
    new pipeline) or for `stop`. It receives a batch, to which each ready port contributes up to its share.
    The pipeline processes the batch at one instant of the clock, and outgoing frames are sent before the next
    batch is received. Frames of a port with a rate or a delay are kept until they are due; a wait ends when
    some are. Frames that arrive at a port with an arrival delay are kept likewise before the pipeline. `stop`
    drops kept frames. A `CompiledLoop` does the same as machine code, if ports and links permit it. While no
    pipeline runs, hellos are answered and packets are dropped.
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
        """links: None if links have neither delays nor a schedule. clock: returns nanoseconds."""
        self._device = device
        self._ports = ports
        self._links, self._capture = links, capture
        self._pacer, self._arrivals = self._new_pacers()
        self._switch: Switch | None = None
        self._compiled_loop: CompiledLoop | None = None
        self._clock, self._started = clock, clock()
        self._stopping = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, _STOPPING)
        self._selector.register(device, selectors.EVENT_READ, _DEVICE)
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
            self.process_batch(iterations=_UNLIMITED)

    def process_batch(self, timeout: float | None = None, iterations: int = 1) -> None:
        """Wait up to `timeout` seconds (None: without limit) for a batch, and process it.

        iterations: the most batches that a compiled loop processes before it returns.
        """
        if self._compiled_loop is not None:
            is_woken, to_cpu = self._compiled_loop.run(timeout, iterations)
            if to_cpu:
                self._deliver_to_cpu(to_cpu)
            if is_woken:
                self._handle_wakeup()
            return
        due = self._release_due_frames()
        if due is not None:
            # The selector's timeout is in milliseconds, too coarse: thousands of frames may leave in one.
            select.select([self._selector], [], [], due if timeout is None else min(due, timeout))
            self._release_due_frames()
            timeout = 0
        ready = {key.data for key, _ in self._selector.select(timeout)}
        if ready & {_DEVICE, _STOPPING}:
            self._handle_wakeup()
        ready -= {_DEVICE, _STOPPING}
        received = self._ports.receive(sorted(ready))
        if len(received):
            if self._capture is not None:
                self._capture.write("in", received)
            if self._links is not None and self._switch is not None:
                self._links.apply_schedule(self._pacer, self.now_us())
            self._process(self._arrivals.hold(received, self.now_us()))

    def stop(self) -> None:
        """End `run` after the current batch. May be called from any thread or signal handler."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # the buffer is full, so the loop wakes anyway; or it is closed already
            self._wake_writer.send(b"\0")

    @property
    def waker(self) -> int:
        """A descriptor; writing a byte to it ends the wait in `process_batch`."""
        return self._wake_writer.fileno()

    def close(self) -> None:
        """Close the descriptors; the caller closes ports and device."""
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _release_due_frames(self) -> float | None:
        """Move on kept frames that are due; return the seconds until the next are due, None for none."""
        pacers = (self._arrivals, self._pacer)  # arrivals first: they may leave at once
        now = self.now_us()
        for pacer in pacers:
            pacer.release(now)
        return min((due for pacer in pacers if (due := pacer.due_in(now)) is not None), default=None)

    def _handle_wakeup(self) -> None:
        """Process frames from the controller, and start a new pipeline if there is one."""
        with suppress(OSError):
            self._wake_reader.recv(4096)
        # Without the lock, a commit could come between, and frames for the new pipeline would enter the old
        # one.
        with self._device.lock:
            switch = self._device.switch
            if switch is not self._switch and switch is not None:
                lanes = count_lanes(switch.registers)
                what = f"pipeline of {lanes} lanes" if lanes else "program without lanes"
                _logger.info("switch: runs a %s", what, extra={"lanes": lanes})
                self._ports.resize(packet_bytes(lanes))
                self._pacer, self._arrivals = self._new_pacers()
                self._compiled_loop = self._new_loop(switch)
            self._switch = switch
            injected = self._device.take_injected()
        if injected:
            self._process(Frames.of([(self._ports.cpu_port, frame) for frame in injected]))

    def _new_loop(self, switch: Switch) -> CompiledLoop | None:
        """Return a compiled loop for a pipeline; None if its ports, links or program need the Python loop."""
        if self._clock is not time.monotonic_ns or (self._links is not None and not self._links.steady):
            return None
        if switch.entry is None or self._capture is not None:
            return None
        if isinstance(self._ports, InterfacePorts) and self._device.queues is not None:
            return None
        wakers = [self._wake_reader.fileno(), self._device.fileno()]
        switch.lock.on_wait = self._wake
        if isinstance(self._ports, UdpPorts):
            queues = self._device.queues
            return UdpLoop(self._ports, switch, switch.entry, queues, wakers, self._started)
        return InterfaceLoop(self._ports, switch, switch.entry, wakers, self._started)

    def _new_pacers(self) -> tuple[Pacer, Pacer]:
        if self._links is None:
            return Pacer(self._device.queues, self._send), Pacer(None, self._process)
        return self._links.pacer(self._send), self._links.arrivals(self._process)

    def _deliver_to_cpu(self, frames: list[bytes]) -> None:
        """Pass frames on to the controller, unless another pipeline, with other headers, runs by now."""
        with self._device.lock:
            if self._device.switch is self._switch:
                self._device.deliver_to_cpu(frames)

    def _process(self, frames: Frames) -> None:
        """Run the program over frames; send, keep, or pass to the controller what leaves."""
        if self._switch is None or not len(frames):
            return
        now = self.now_us()
        out = self._switch.process(frames, now)
        to_cpu = out.port == self._ports.cpu_port
        if to_cpu.any():
            self._deliver_to_cpu([frame for _, frame in out.at(to_cpu).pairs()])
            out = out.at(~to_cpu)
        out = self._pacer.hold(out, now)
        if len(out):
            self._send(out)

    def _send(self, frames: Frames) -> None:
        if self._capture is not None:
            self._capture.write("out", frames)
        self._ports.send(frames)


#: The counter of peelsum's program.
_VERDICTS = "PeelsumIngress.verdicts"


class StartError(SoftswitchError):
    """The switch cannot start: an address is in use or a value is out of range."""


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
    port_method: Mapping[int, str] = field(default_factory=dict)
    """By switch port: AF_XDP and its mode, or AF_PACKET and why AF_XDP is not used."""
    accepts_any_hello: bool = False
    """Whether UDP ports accept every hello until a controller gives them secrets."""

    def __str__(self) -> str:
        ports = len(self.udp_ports) + len(self.interfaces)
        return f"switch: P4Runtime listens at TCP port {self.grpc_port}; switch ports: {ports}"


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
    unsent: Mapping[str, int] = field(default_factory=dict)
    """Packets from the program that no port sent, by reason."""


def run(
    settings: SwitchSettings,
    *,
    identity: TlsIdentity | None = None,
    observe: Callable[[Callable[[], SwitchCounts]], AbstractContextManager[object]] | None = None,
    announce: Callable[[Listening], None] = lambda listening: None,
) -> SwitchCounts:
    """Run a switch until Ctrl-C or another of `ending_signals`; return its counts.

    identity: P4Runtime's certificate. Without it, P4Runtime listens on loopback only, and UDP ports on
        loopback accept every hello as long as they have no secret.
    observe: a context in which the switch runs, made with a function that returns the current counts; any
        thread may call that function.
    announce: called when all addresses listen.
    Raises StartError, which names the value that is out of range or in use.
    """
    with ExitStack() as stack:
        accepts_any_hello = identity is None and is_loopback(settings.host)
        try:
            ports = _open_ports(settings, accepts_any_hello)
            stack.callback(ports.close)
            program = None if settings.program is None else load(settings.program)
            capture = _open_capture(settings, ports)
            stack.callback(capture.close if capture else lambda: None)
            links = Links(
                ports.ports,
                rates=settings.rates.of(ports.ports),
                delays=settings.delays.of(ports.ports),
                arrival_delays=settings.arrival_delays.of(ports.ports),
                schedule=None if settings.schedule is None else load_schedule(settings.schedule),
                queue_limit=QUEUE_LIMIT if settings.queue_limit is None else settings.queue_limit,
            )
            device = Device(
                settings.device_id,
                mode=settings.mode,
                queues=links.queues,
                # Interfaces' switches accept every port in a group, as BMv2 does.
                ports=None if settings.interfaces else {*ports.ports, settings.cpu_port},
                secret_ports=ports.ports if isinstance(ports, UdpPorts) else None,
                port_is_up=ports.is_up if isinstance(ports, InterfacePorts) else lambda port: True,
            )
            stack.callback(device.close)
            server = serve(device, settings.p4runtime, identity, any_address=settings.as_bmv2)
            stack.callback(server.stop)
            # Clients of P4Runtime need not wait for the compiler.
            warm_up(ports)
            if program is not None:
                stack.callback(_install(device, program))
        except OSError as error:
            remedy = "; allow more by `ulimit -n`, or give fewer ports" if error.errno == errno.EMFILE else ""
            raise StartError(f"{error.strerror}{remedy}") from error
        except (SoftswitchError, ValueError) as error:
            raise StartError(str(error)) from error
        plane = stack.enter_context(DataPlane(device, ports, links=links, capture=capture))
        count = partial(_counts, device, ports, links.queues)
        with observe(count) if observe else nullcontext(), _stop_on_signals(plane):
            listening = Listening(settings.host, server.port, {}, settings.interfaces)
            if isinstance(ports, InterfacePorts):
                announce(replace(listening, port_method=ports.methods))
            else:
                announce(replace(listening, udp_ports=ports.listening, accepts_any_hello=accepts_any_hello))
            plane.run()
        return count()


def _install(device: Device, program: Program) -> Callable[[], None]:
    """Run a program unless a controller has loaded one, and write its log until the result is called.

    The log of a program that a controller loads is written by the P4Runtime server.
    """
    switch = device.build(program)
    with device.lock:
        if device.switch is None:
            device.install(switch)
    return poll_regularly(program, switch.take_messages)


def _counts(device: Device, ports: Ports, queues: Queues | None) -> SwitchCounts:
    port_counts = {number: port.counts for number, port in ports.ports.items()}
    switch, verdicts = device.switch, {}
    lanes = count_lanes(switch.registers) if switch is not None else 0
    cells = switch.counters.get(_VERDICTS) if switch is not None and lanes else None
    if cells is not None:
        counted = zip(Verdict, cells.values().tolist(), strict=False)
        verdicts = {verdict.name.lower(): (int(packets), int(size)) for verdict, (packets, size) in counted}
    queue_counts = queues.counts() if queues else {}
    return SwitchCounts(port_counts, queue_counts, lanes, verdicts, ports.unsent_frames)


def _open_capture(settings: SwitchSettings, ports: Ports) -> Capture | None:
    if settings.capture is None:
        return None
    names = {number: f"port{number}" for number in ports.ports}
    if settings.as_bmv2:
        names |= settings.interfaces
    return Capture(names, settings.capture, overwrite=settings.as_bmv2)


def _open_ports(settings: SwitchSettings, accepts_any_hello: bool) -> Ports:
    if settings.interfaces:
        return InterfacePorts(settings.interfaces, method=settings.port_method, cpu_port=settings.cpu_port)
    ports = UdpPorts(
        range(1, settings.ports + 1),
        host=settings.host,
        base=settings.udp_ports or settings.udp_base,
        loss=settings.loss,
        loss_burst=settings.loss_burst,
        late=settings.late,
        seed=settings.seed,
        accepts_any_hello=accepts_any_hello,
        cpu_port=settings.cpu_port,
    )
    for port, address in settings.peer_addresses.items():
        ports.ports[port].join(address)
    return ports


@contextmanager
def _stop_on_signals(plane: DataPlane) -> Iterator[None]:
    """Call `stop` at the signals that end a command, while the body runs. Only the main thread can do so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = ending_signals()
    # A signal that comes just before the wait, or to another thread, would not end the wait by itself.
    previous_fd = signal.set_wakeup_fd(plane.waker, warn_on_full_buffer=False)
    previous_handlers = [signal.signal(number, lambda *_: plane.stop()) for number in numbers]
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in zip(numbers, previous_handlers, strict=True):
            signal.signal(number, handler)
