"""The switch process: a data plane and a P4Runtime server, from start to clean stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from peelsum.softswitch.data_plane import DataPlane, Ports, warm_up
from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.ports.capture import Capture
from peelsum.softswitch.ports.interfaces import InterfaceCounts, InterfacePorts, Method
from peelsum.softswitch.ports.links import Links
from peelsum.softswitch.ports.schedule import LinkSchedule
from peelsum.softswitch.ports.udp import PortCounts, UdpPorts
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, QueueCounts, Queues
from peelsum.tls import Identity, is_loopback
from peelsum.wire import CPU_PORT, Verdict, lanes_in
from peelsum.wire.datagrams import Address

_LAST_UDP_PORT = 0xFFFF
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
    ports_by: Mapping[int, str] = field(default_factory=dict)
    """How frames reach the ports on interfaces: AF_XDP and its mode, or AF_PACKET and why."""
    are_open: bool = False
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
    capture: a folder for pcap files of each port's frames, see `Capture`.
    identity: P4Runtime's certificate, without which it listens on loopback only. Without it, UDP ports on
        loopback accept hellos also as long as they have no secrets.
    observe: entered before `announce`, with a function that returns the counts now, from any thread.
    announce: called when all addresses listen.
    Raises StartError naming the value that is out of range or in use.
    """
    with ExitStack() as stack:
        are_open = identity is None and is_loopback(udp_host)
        try:
            opened = (
                _interface_ports(interfaces, loss, ports_by)
                if interfaces
                else _udp_ports(ports, udp_host, udp_base, joins or {}, loss, seed, are_open)
            )
            stack.callback(opened.close)
            warm_up(opened)
            files = None
            if capture is not None:
                files = stack.enter_context(closing(Capture(opened.ports, capture)))
            links = Links(
                opened.ports,
                rates=rates,
                delays=delays,
                arrival_delays=arrival_delays,
                schedule=schedule,
                queue_limit=queue_limit,
            )
            queues = links.queues
            device = Device(
                device_id,
                mode=mode,
                queues=queues,
                ports={*opened.ports, CPU_PORT},
                secret_ports=opened.ports if isinstance(opened, UdpPorts) else None,
            )
            stack.callback(device.close)
            server = serve(device, grpc_address, identity)
            stack.callback(server.stop)
        except (OSError, SoftswitchError, ValueError) as error:
            raise StartError(error.strerror if isinstance(error, OSError) else str(error)) from error
        plane = stack.enter_context(DataPlane(device, opened, links=links, capture=files))
        count = partial(_counts, device, opened, queues)
        with observe(count) if observe else nullcontext(), _stopped_by_signals(plane):
            if isinstance(opened, InterfacePorts):
                announce(Listening(udp_host, server.port, {}, interfaces or {}, opened.methods))
            else:
                announce(Listening(udp_host, server.port, opened.listening, are_open=are_open))
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
    are_open: bool,
) -> Ports:
    if not 1 <= ports < CPU_PORT:
        raise StartError(f"ports: {ports} is out of range; use 1 to {CPU_PORT - 1}")
    if isinstance(base, int) and not 0 <= base <= _LAST_UDP_PORT - ports:
        raise StartError(f"udp_base: {base} is out of range; use 0 to {_LAST_UDP_PORT - ports}")
    for port in joins:
        if not 1 <= port <= ports:
            raise StartError(f"join: port {port} is out of range; use 1 to {ports}")
    opened = UdpPorts(range(1, ports + 1), host=host, base=base, loss=loss, seed=seed, are_open=are_open)
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
