"""Frames that a controller sends through PacketOut, and what it finds in the ones that come back."""

from __future__ import annotations

import struct

import numpy as np

from peelsum.wire import UDP_PORT, Kind, WireError, pack, packet_bytes, unpack

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBHII")
_UDP = struct.Struct("!HHHH")
ENCAPSULATION_BYTES = _ETHERNET.size + _IPV4.size + _UDP.size
_ETHERTYPE_IPV4 = 0x0800
_PROTOCOL_UDP = 17
_TTL = 64


def encapsulate(payload: bytes) -> bytes:
    """A frame around a packet: addresses zero, lengths and the IPv4 checksum right, no UDP checksum."""
    udp = _UDP.pack(UDP_PORT, UDP_PORT, _UDP.size + len(payload), 0)
    length = _IPV4.size + len(udp) + len(payload)
    ip = _IPV4.pack(0x45, 0, length, 0, 0, _TTL, _PROTOCOL_UDP, 0, 0, 0)
    checksum = struct.pack("!H", _internet_checksum(ip))
    ethernet = _ETHERNET.pack(bytes(6), bytes(6), _ETHERTYPE_IPV4)
    return ethernet + ip[:10] + checksum + ip[12:] + udp + payload


def reset_frames(slots: list[int], lanes: int) -> list[bytes]:
    """One frame per slot that asks the switch to free it."""
    batch = pack(
        np.zeros((len(slots), lanes), np.uint32), kind=Kind.RESET, chunk_id=np.array(slots, np.int64)
    )
    return [encapsulate(packet.tobytes()) for packet in batch]


def acknowledged_slot(frame: bytes, lanes: int) -> int | None:
    """The slot that a frame from the switch says is free; None if it says anything else."""
    payload = frame[ENCAPSULATION_BYTES : ENCAPSULATION_BYTES + packet_bytes(lanes)]
    if len(payload) != packet_bytes(lanes):
        return None
    try:
        packet = unpack(payload, lanes)[0]
    except WireError:
        return None
    return int(packet["chunk_id"]) if packet["kind"] == Kind.RESET else None


def _internet_checksum(header: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
