"""The Ethernet, IPv4 (without options) and UDP headers of a packet on a wire."""

from __future__ import annotations

import struct
from typing import NamedTuple

from peelsum.wire.format import UDP_PORT

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
FRAME_HEADER_BYTES = _ETHERNET.size + _IPV4.size + _UDP.size
_ETHERTYPE_IPV4, _PROTOCOL_UDP = 0x0800, 17
_NO_OPTIONS, _DO_NOT_FRAGMENT, _TTL = 0x45, 0x4000, 64


class FrameAddress(NamedTuple):
    """The source or destination of a frame: its MAC and IPv4 addresses."""

    mac: bytes = bytes(6)
    ip: bytes = bytes(4)


NO_ADDRESS = FrameAddress()


def encapsulation(
    packet_bytes: int, source: FrameAddress = NO_ADDRESS, destination: FrameAddress = NO_ADDRESS
) -> bytes:
    """Return the headers of a packet, FRAME_HEADER_BYTES: with an IPv4 checksum, without a UDP checksum."""
    udp_length = _UDP.size + packet_bytes
    addresses = (source.ip, destination.ip)
    fields = (_NO_OPTIONS, 0, _IPV4.size + udp_length, 0, _DO_NOT_FRAGMENT, _TTL, _PROTOCOL_UDP)
    checksum = _internet_checksum(_IPV4.pack(*fields, 0, *addresses))
    return (
        _ETHERNET.pack(destination.mac, source.mac, _ETHERTYPE_IPV4)
        + _IPV4.pack(*fields, checksum, *addresses)
        + _UDP.pack(UDP_PORT, UDP_PORT, udp_length, 0)
    )


def _internet_checksum(header: bytes) -> int:
    """Return the checksum of RFC 1071: the complement of the one's complement sum of 16-bit words."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
