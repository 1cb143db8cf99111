"""MTUs that packets do not fit: who says so, and when."""

import logging
import subprocess

import networks
import pytest

from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.topology import namespaces
from peelsum.transport.errors import SwitchUnreachableError
from peelsum.transport.link import PortLink
from peelsum.wire import COMPILED_LANES, packet_bytes
from peelsum.wire.mtu import mtu_of, path_mtu_error


def small_mtu() -> dict[str, object]:
    """A host whose interface to the switch has an MTU of one byte less than 512 lanes need."""
    namespaces.add_wire("eth7", "far")
    subprocess.run(["ip", "link", "set", "eth7", "mtu", "2091"], check=True)
    subprocess.run(["ip", "address", "add", "10.9.0.1/24", "dev", "eth7"], check=True)
    there = ("10.9.0.2", 9999)
    said = []
    for wire in ("udp-port", "ethernet"):
        try:
            PortLink(there, packet_bytes(512), hello_s=0.1, wire=wire)
        except SwitchUnreachableError as error:
            said.append(str(error))
    fits = path_mtu_error(there, packet_bytes(256))
    subprocess.run(["ip", "link", "set", "eth7", "mtu", "2092"], check=True)
    return {"said": said, "fits": [fits, path_mtu_error(there, packet_bytes(512))]}


def of_a_switch() -> dict[str, object]:
    """A switch loads a pipeline whose packets one of its interfaces cannot carry."""
    for port in (1, 2):
        namespaces.add_wire(f"switch{port}", f"host{port}")
    subprocess.run(["ip", "link", "set", "switch2", "mtu", "1500"], check=True)
    ports, said = InterfacePorts({1: "switch1", 2: "switch2"}, method="packet"), []
    logging.getLogger("peelsum").addFilter(lambda record: said.append(record.getMessage()))
    ports.resize(packet_bytes(512))
    subprocess.run(["ip", "link", "set", "switch2", "mtu", "9000"], check=True)
    ports.resize(packet_bytes(512))
    return {"said": said}


def other_ways() -> dict[str, object]:
    """The interface's second address is on the way, and then a route with an MTU of its own."""
    namespaces.add_wire("eth7", "far")
    subprocess.run(["ip", "link", "set", "eth7", "mtu", "1500"], check=True)
    for address in ("10.8.0.1/24", "10.9.0.1/24"):
        subprocess.run(["ip", "address", "add", address, "dev", "eth7"], check=True)
    second = path_mtu_error(("10.9.0.2", 9), packet_bytes(512))
    subprocess.run(["ip", "link", "set", "eth7", "mtu", "9000"], check=True)
    subprocess.run(["ip", "route", "add", "10.9.0.3", "dev", "eth7", "mtu", "1400"], check=True)
    return {"said": [second, path_mtu_error(("10.9.0.3", 9), packet_bytes(512))]}


REMEDY = "set it on all interfaces of the route (`ip link set {0} mtu 2092`), or use fewer lanes"


def test_packets_longer_than_the_mtu_are_an_error_at_the_start():
    expected = "interface eth7: MTU 2091, but packets of 512 lanes need 2092; " + REMEDY.format("eth7")
    assert networks.alone(__file__, "small_mtu") == {"said": [expected] * 2, "fits": [None, None]}


def test_a_switch_names_interfaces_with_a_smaller_mtu():
    expected = "port 2: interface switch2: MTU 1500, but packets of 512 lanes need 2092; " + REMEDY
    opened_for = (
        "port 2: interface switch2: its MTU was smaller when the switch started, which receives no frames of "
        "more than 1982 bytes; start it again"
    )
    assert networks.alone(__file__, "of_a_switch") == {"said": [expected.format("switch2"), opened_for]}


def test_the_interface_or_the_route_is_named():
    first, second = networks.alone(__file__, "other_ways")["said"]
    assert first.startswith("interface eth7: MTU 1500, but packets of 512 lanes need 2092; ")
    assert second == (
        "route to 10.9.0.3: MTU 1400, but packets of 512 lanes need 2092; see `ip route get 10.9.0.3`, "
        "or use fewer lanes"
    )


def test_loopback_takes_all_of_them_and_an_unknown_interface_is_an_error():
    assert path_mtu_error(("127.0.0.1", 9), packet_bytes(max(COMPILED_LANES))) is None
    assert mtu_of("lo") == 65536
    with pytest.raises(OSError, match="No such device"):
        mtu_of("nowhere")


if __name__ == "__main__":
    networks.main(globals())
