"""Programs of the softswitch's suite on interfaces: every frame leaves as the program has it in memory."""

import os
import random
import select
import socket
import time

import networks
import pytest
from patience import PATIENCE_S
from program_frames import MADE, PORTS, TAIL, by_port, switch_of

from peelsum.softswitch import Frames
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.loops import InterfaceLoop
from peelsum.topology import namespaces

pytestmark = pytest.mark.system
_SOL_PACKET, _IGNORE_OUTGOING, _ALL = 263, 23, 3
#: Seconds in which a frame too many would have come.
SILENCE_S = 0.3


def host(port):
    """Return a socket at the other end of a port's wire."""
    namespaces.add_wire(f"switch{port}", f"host{port}")
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    found.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    found.bind((f"host{port}", _ALL))
    return found


def turn(ports, switch, loop):
    """Take one turn, by the compiled loop where the program has one."""
    if loop is not None:
        loop.run(PATIENCE_S, 1)
        return
    waiting = {port.socket: number for number, port in ports.ports.items()}
    ready, _, _ = select.select(list(waiting), [], [], PATIENCE_S)
    ports.send(switch.process(ports.receive([waiting[one] for one in ready]), 0))


def heard(hosts, count):
    """Return frames until there are `count`, by port."""
    found = []
    while len(found) < count:
        ready, _, _ = select.select(list(hosts.values()), [], [], PATIENCE_S)
        if not ready:
            break
        found += [(port, one.recv(1 << 16)) for port, one in hosts.items() if one in ready]
    return by_port(found)


def exchange():
    """Send a program's frames into its ports in turn; compare what comes out with another switch's."""
    hosts = {port: host(port) for port in PORTS}
    interfaces = {port: f"switch{port}" for port in PORTS}
    ports = InterfacePorts(interfaces, batch=64, method=os.environ["METHOD"])
    ports.resize(0)  # every frame, whatever its headers
    name, wrong, sent = os.environ["PROGRAM"], [], 0
    there, here = switch_of(name, "numba"), switch_of(name, "python")
    loop = None
    if there.entry is not None:
        loop = InterfaceLoop(ports, there, there.entry, [], time.monotonic_ns())
    for sent, made in enumerate(MADE[name](random.Random(1)), 1):
        port, frame = PORTS[sent % len(PORTS)], made + TAIL
        expected = here.process(Frames.of([(port, frame)]), 0).pairs()
        hosts[port].send(frame)
        turn(ports, there, loop)
        if heard(hosts, len(expected)) != by_port(expected):
            wrong.append(made.hex())
    late, _, _ = select.select(list(hosts.values()), [], [], SILENCE_S)
    return {"wrong": wrong, "late": len(late), "some": sent > 10, "loop": loop is not None}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("method", ["xdp", "packet"])
def test_frames_leave_interfaces_as_they_leave_the_program(method, name, monkeypatch):
    if method == "xdp" and (why := networks.alone(__file__, "xdp_refusal")["why"]):
        pytest.skip(str(why))
    monkeypatch.setenv("METHOD", method)
    monkeypatch.setenv("PROGRAM", name)
    told = networks.alone(__file__, "exchange")
    assert told == {"wrong": [], "late": 0, "some": True, "loop": name != "again"}


if __name__ == "__main__":
    networks.main({**globals(), "xdp_refusal": networks.xdp_refusal})
