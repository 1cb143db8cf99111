"""The MTU of interfaces and of ways to other hosts (Linux)."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path
from typing import Final

from peelsum.wire.datagrams import Address
from peelsum.wire.format import HEADER_BYTES
from peelsum.wire.frames import FRAME_HEADER_BYTES

ETHERNET_HEADER_BYTES: Final = 14
_SIOCGIFMTU, _IP_MTU = 0x8921, 14
_NAME_BYTES = 15


def needed_mtu(packet_bytes: int) -> int:
    """Return the MTU that packets of `packet_bytes` bytes need."""
    return packet_bytes + FRAME_HEADER_BYTES - ETHERNET_HEADER_BYTES


def mtu_of(name: str) -> int:
    """Return an interface's MTU in bytes. Raises OSError if there is no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        told = fcntl.ioctl(control, _SIOCGIFMTU, struct.pack("16si12x", name.encode()[:_NAME_BYTES], 0))
    return int(struct.unpack("16si12x", told)[1])


def too_long_for(name: str, packet_bytes: int) -> str | None:
    """Return why packets do not fit an interface's MTU, and what to do; None if they fit.

    Raises OSError if there is no such interface.
    """
    mtu, needed = mtu_of(name), needed_mtu(packet_bytes)
    if mtu >= needed:
        return None
    lanes = (packet_bytes - HEADER_BYTES) // 4
    return (
        f"interface {name}: MTU {mtu}, but packets of {lanes} lanes need {needed}; "
        f"give all interfaces of the way as much (`ip link set {name} mtu {needed}`), or use fewer lanes"
    )


def too_long_to(address: Address, packet_bytes: int) -> str | None:
    """Return why packets do not fit the MTU of the way to a UDP address, and what to do; None if they fit.

    The kernel knows the MTU of this host's interface, and of the way behind it what routers reported. Raises
    OSError if there is no way.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        mtu = probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    if mtu >= needed_mtu(packet_bytes):
        return None
    name, where = interface_to(address), socket.gethostbyname(address[0])
    if name and (why := too_long_for(name, packet_bytes)) is not None:
        return why
    return (
        f"way to {where}: MTU {mtu}, but packets of {(packet_bytes - HEADER_BYTES) // 4} lanes need "
        f"{needed_mtu(packet_bytes)}; see `ip route get {where}`, or use fewer lanes"
    )


def interface_to(address: Address) -> str:
    """Return the name of the interface on the way to a UDP address; empty if the main table has no way.

    Raises OSError for a host that is not known.
    """
    wanted, found = struct.unpack("=I", socket.inet_aton(socket.gethostbyname(address[0])))[0], ("", -1)
    for line in Path("/proc/thread-self/net/route").read_text().splitlines()[1:]:
        name, target, _, flags, *_, mask, _, _, _ = line.split()
        length = int(mask, 16).bit_count()
        if int(flags, 16) & 1 and wanted & int(mask, 16) == int(target, 16) and length > found[1]:
            found = name, length
    return found[0]
