"""The MTU of interfaces and of ways to other hosts (Linux)."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress
from typing import Final

from peelsum.wire.datagrams import Address
from peelsum.wire.format import HEADER_BYTES
from peelsum.wire.frames import FRAME_HEADER_BYTES

ETHERNET_HEADER_BYTES: Final = 14
_SIOCGIFADDR, _SIOCGIFMTU, _IP_MTU = 0x8915, 0x8921, 14
_NAME_BYTES = 15


def needed_mtu(packet_bytes: int) -> int:
    """Return the MTU that packets of `packet_bytes` bytes need."""
    return packet_bytes + FRAME_HEADER_BYTES - ETHERNET_HEADER_BYTES


def mtu_of(name: str) -> int:
    """Return an interface's MTU in bytes. Raises OSError if there is no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        told = fcntl.ioctl(control, _SIOCGIFMTU, struct.pack("16si12x", name.encode()[:_NAME_BYTES], 0))
    return int(struct.unpack("16si12x", told)[1])


def too_long_for(name: str, packet_bytes: int, mtu: int | None = None) -> str | None:
    """Return why packets do not fit an interface's MTU, and what to do; None if they fit.

    mtu: None to ask the interface. Raises OSError if there is no such interface.
    """
    mtu, needed = mtu_of(name) if mtu is None else mtu, needed_mtu(packet_bytes)
    if mtu >= needed:
        return None
    lanes = (packet_bytes - HEADER_BYTES) // 4
    return (
        f"interface {name}: MTU {mtu}, but packets of {lanes} lanes need {needed}; "
        f"give all interfaces of the way as much (`ip link set {name} mtu {needed}`), or use fewer lanes"
    )


def too_long_to(address: Address, packet_bytes: int) -> str | None:
    """Return why packets do not fit the MTU of the way to a UDP address, as `too_long_for`.

    The kernel knows the MTU of this host's interface, and of the way behind it what routers reported. Raises
    OSError if there is no way.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        mtu = probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    if mtu >= needed_mtu(packet_bytes):
        return None
    return too_long_for(interface_to(address) or "?", packet_bytes, mtu)


def interface_to(address: Address) -> str:
    """Return the name of the interface on the way to a UDP address; empty if it is not known.

    Raises OSError if there is no way.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        ip, _ = probe.getsockname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                told = fcntl.ioctl(control, _SIOCGIFADDR, struct.pack("40s", name.encode()))
                if socket.inet_ntoa(told[20:24]) == ip:
                    return name
    return ""
