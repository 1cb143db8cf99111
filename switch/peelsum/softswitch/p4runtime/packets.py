"""Converts PacketOut messages to frames and frames to PacketIn messages.

A program may declare headers for packets to and from the controller. P4Info lists their fields, which
P4Runtime calls metadata. Without such a header, the payload is the frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from finsy.proto import p4r

from peelsum.softswitch.p4runtime.info import NumberInfo, PipelineInfo
from peelsum.softswitch.p4runtime.status import invalid
from peelsum.softswitch.p4runtime.values import to_bytes, to_int

Header = Sequence[NumberInfo]
#: The longest IPv4 packet, longer than any link's frames.
_LONGEST_PAYLOAD = 0xFFFF


def to_frame(packet: p4r.PacketOut, info: PipelineInfo) -> bytes:
    """Return the frame of a PacketOut: the `packet_out` header, if the program has one, and the payload.

    A field that the controller omits is zero. Raises RequestError for metadata that the header does not have,
    and for payloads that are too long.
    """
    if len(packet.payload) > _LONGEST_PAYLOAD:
        raise invalid(f"packet_out: {len(packet.payload)} bytes are too many; send up to {_LONGEST_PAYLOAD}")
    values = {item.metadata_id: item.value for item in packet.metadata}
    if len(values) != len(packet.metadata):
        raise invalid("packet_out: a metadata field is given twice; give each once")
    header = info.packet_headers.get("packet_out", ())
    header_number = 0
    for field in header:
        value = to_int(values.pop(field.id, b"\0"), field.bits, f"packet_out.{field.name}")
        header_number = header_number << field.bits | value
    if values:
        raise invalid(f"packet_out: has no metadata field {min(values)}; use the P4Info's ids")
    return header_number.to_bytes(_header_bytes(header), "big") + packet.payload


def to_packet_in(frame: bytes, info: PipelineInfo) -> p4r.PacketIn:
    """Return the PacketIn of a frame that left on the CPU port, with its `packet_in` header as metadata."""
    header = info.packet_headers.get("packet_in", ())
    size = _header_bytes(header)
    number = int.from_bytes(frame[:size].ljust(size, b"\0"), "big")
    packet = p4r.PacketIn(payload=frame[size:])
    remaining = 8 * size
    for field in header:
        remaining -= field.bits
        value = number >> remaining & ((1 << field.bits) - 1)
        packet.metadata.add(metadata_id=field.id, value=to_bytes(value))
    return packet


def _header_bytes(header: Header) -> int:
    return sum(field.bits for field in header) // 8
