"""The MTU of interfaces and of routes to other hosts, and interfaces' links (Linux)."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path
from typing import Final

from peelsum.wire import FRAME_HEADER_BYTES, HEADER_BYTES
from peelsum.wire.datagrams import Address

ETHERNET_HEADER_BYTES: Final = 14
_SIOCGIFFLAGS, _SIOCGIFMTU, _IP_MTU = 0x8913, 0x8921, 14
_UP_AND_RUNNING = 0x41
_NAME_BYTES = 15


def required_mtu(packet_bytes: int) -> int:
    """Return the MTU that packets of `packet_bytes` bytes need."""
    return packet_bytes + FRAME_HEADER_BYTES - ETHERNET_HEADER_BYTES


def mtu_of(name: str) -> int:
    """Return an interface's MTU in bytes. Raises OSError if there is no such interface."""
    return _interface_number(name, _SIOCGIFMTU)


def is_running(name: str) -> bool:
    """Return whether an interface is up and has a link. Raises OSError if there is no such interface."""
    return _interface_number(name, _SIOCGIFFLAGS) & _UP_AND_RUNNING == _UP_AND_RUNNING


def _interface_number(name: str, request: int) -> int:
    """Return a number that the kernel has of an interface. Raises OSError if there is no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        reply = fcntl.ioctl(probe, request, struct.pack("16si12x", name.encode()[:_NAME_BYTES], 0))
    return int(struct.unpack("16si12x", reply)[1])


def interface_mtu_error(name: str, packet_bytes: int) -> str | None:
    """Return why packets do not fit an interface's MTU, and what to do; None if they fit.

    Raises OSError if there is no such interface.
    """
    mtu, required = mtu_of(name), required_mtu(packet_bytes)
    if mtu >= required:
        return None
    lanes = (packet_bytes - HEADER_BYTES) // 4
    return (
        f"interface {name}: MTU {mtu}, but packets of {lanes} lanes need {required}; "
        f"set it on all interfaces of the route (`ip link set {name} mtu {required}`), or use fewer lanes"
    )


def path_mtu_error(address: Address, packet_bytes: int) -> str | None:
    """Return why packets do not fit the MTU of the route to a UDP address, and what to do; None if they fit.

    The kernel knows the MTU of this host's interface, and the path MTU as far as routers have reported it.
    Raises OSError if there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        mtu = probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    if mtu >= required_mtu(packet_bytes):
        return None
    name, where = route_interface(address), socket.gethostbyname(address[0])
    if name and (why := interface_mtu_error(name, packet_bytes)) is not None:
        return why
    return (
        f"route to {where}: MTU {mtu}, but packets of {(packet_bytes - HEADER_BYTES) // 4} lanes need "
        f"{required_mtu(packet_bytes)}; see `ip route get {where}`, or use fewer lanes"
    )


def route_interface(address: Address) -> str:
    """Return the name of the interface that packets to a UDP address leave by.

    It is empty if the main routing table has no route. Raises OSError if the host's name is unknown.
    """
    destination, best = struct.unpack("=I", socket.inet_aton(socket.gethostbyname(address[0])))[0], ("", -1)
    for line in Path("/proc/thread-self/net/route").read_text().splitlines()[1:]:
        name, network, _, flags, *_, mask, _, _, _ = line.split()
        length = int(mask, 16).bit_count()
        if int(flags, 16) & 1 and destination & int(mask, 16) == int(network, 16) and length > best[1]:
            best = name, length
    return best[0]
