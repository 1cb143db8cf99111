"""The switch process: a data plane and a P4Runtime server, from start to clean stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from peelsum.softswitch.data_plane import DataPlane, Ports, warm_up
from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.ports.capture import Capture
from peelsum.softswitch.ports.interfaces import InterfaceCounts, InterfacePorts
from peelsum.softswitch.ports.links import Links
from peelsum.softswitch.ports.schedule import load_schedule
from peelsum.softswitch.ports.udp import PortCounts, UdpPorts
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, QueueCounts, Queues
from peelsum.switch_settings import SwitchSettings
from peelsum.tls import TlsIdentity, is_loopback
from peelsum.wire import CPU_PORT, Verdict, count_lanes

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


def run(
    settings: SwitchSettings,
    *,
    identity: TlsIdentity | None = None,
    observe: Callable[[Callable[[], SwitchCounts]], AbstractContextManager[object]] | None = None,
    announce: Callable[[Listening], None] = lambda listening: None,
) -> SwitchCounts:
    """Run a switch until SIGINT (`Ctrl-C`) or SIGTERM; return its counts.

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
            ports = (
                InterfacePorts(settings.interfaces, method=settings.port_method)
                if settings.interfaces
                else _open_udp_ports(settings, accepts_any_hello)
            )
            stack.callback(ports.close)
            warm_up(ports)
            capture = None
            if settings.capture is not None:
                capture = stack.enter_context(closing(Capture(ports.ports, settings.capture)))
            links = Links(
                ports.ports,
                rates=settings.rates.of(ports.ports),
                delays=settings.delays.of(ports.ports),
                arrival_delays=settings.arrival_delays.of(ports.ports),
                schedule=None if settings.schedule is None else load_schedule(settings.schedule),
                queue_limit=QUEUE_LIMIT if settings.queue_limit is None else settings.queue_limit,
            )
            queues = links.queues
            device = Device(
                settings.device_id,
                mode=settings.mode,
                queues=queues,
                ports={*ports.ports, CPU_PORT},
                secret_ports=ports.ports if isinstance(ports, UdpPorts) else None,
            )
            stack.callback(device.close)
            server = serve(device, settings.p4runtime, identity)
            stack.callback(server.stop)
        except (OSError, SoftswitchError, ValueError) as error:
            raise StartError(error.strerror if isinstance(error, OSError) else str(error)) from error
        plane = stack.enter_context(DataPlane(device, ports, links=links, capture=capture))
        count = partial(_counts, device, ports, queues)
        with observe(count) if observe else nullcontext(), _stop_on_signals(plane):
            if isinstance(ports, InterfacePorts):
                announce(Listening(settings.host, server.port, {}, settings.interfaces, ports.methods))
            else:
                announce(
                    Listening(
                        settings.host, server.port, ports.listening, accepts_any_hello=accepts_any_hello
                    )
                )
            plane.run()
        return count()


def _counts(device: Device, ports: Ports, queues: Queues | None) -> SwitchCounts:
    """Return a switch's counts so far."""
    port_counts = {number: port.counts for number, port in ports.ports.items()}
    switch, verdicts = device.switch, {}
    lanes = count_lanes(switch.registers) if switch is not None else 0
    cells = switch.counters.get(_VERDICTS) if switch is not None and lanes else None
    if cells is not None:
        counted = zip(Verdict, cells.values().tolist(), strict=False)
        verdicts = {verdict.name.lower(): (int(packets), int(size)) for verdict, (packets, size) in counted}
    return SwitchCounts(port_counts, queues.counts() if queues else {}, lanes, verdicts)


def _open_udp_ports(settings: SwitchSettings, accepts_any_hello: bool) -> Ports:
    ports = UdpPorts(
        range(1, settings.ports + 1),
        host=settings.host,
        base=settings.udp_ports or settings.udp_base,
        loss=settings.loss,
        seed=settings.seed,
        accepts_any_hello=accepts_any_hello,
    )
    for port, address in settings.peer_addresses.items():
        ports.ports[port].join(address)
    return ports


@contextmanager
def _stop_on_signals(plane: DataPlane) -> Iterator[None]:
    """Call `stop` at SIGINT and SIGTERM while the body runs. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    # A signal that comes just before the wait, or to another thread, would not end the wait by itself.
    previous_fd = signal.set_wakeup_fd(plane.waker, warn_on_full_buffer=False)
    previous_handlers = [signal.signal(number, lambda *_: plane.stop()) for number in numbers]
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in zip(numbers, previous_handlers, strict=True):
            signal.signal(number, handler)
