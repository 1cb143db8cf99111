"""Which compiled loop moves the frames of which ports."""

from __future__ import annotations

from collections.abc import Sequence

from peelsum.softswitch.ports import interface_loop, udp_loop
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.port import Ports
from peelsum.softswitch.ports.turns import CompiledLoop
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.runtime.native import Entry
from peelsum.softswitch.runtime.queues import Queues
from peelsum.softswitch.runtime.switch import Switch


def compiled_loop(
    ports: Ports,
    switch: Switch,
    entry: Entry,
    queues: Queues | None,
    wakers: Sequence[int],
    started_ns: int,
) -> CompiledLoop | None:
    """Return a loop over ports whose links are steady; None if their frames have to go through Python.

    queues: of ports with a rate. wakers: descriptors that end the wait. started_ns: see `CompiledLoop`.
    """
    match ports:
        case UdpPorts(lossy=False):
            return udp_loop.UdpLoop(ports, switch, entry, queues, wakers, started_ns)
        case InterfacePorts() if queues is None:
            return interface_loop.InterfaceLoop(ports, switch, entry, wakers, started_ns)
    return None


def warm_up(ports: Ports) -> None:
    """Compile the loop over these ports ahead of use: no packet waits for it, nor a signal for a compiler."""
    match ports:
        case UdpPorts():
            udp_loop.warm_up(ports)
        case InterfacePorts():
            interface_loop.warm_up(ports)
