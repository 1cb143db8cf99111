"""Frames as bytes of a wire, packed and unpacked with `struct` alone."""

import struct

from peelsum.wire import UDP_PORT

FRAME_HEADER_BYTES = 42


def checksum(header):
    """The Internet checksum of an even number of bytes."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(
    payload,
    *,
    ether_type=0x0800,
    version_ihl=0x45,
    ecn=0,
    fragment=0,
    protocol=17,
    dst_port=UDP_PORT,
    udp_length=None,
    src_ip=0x0A000001,
    dst_ip=0x0A000002,
):
    """`payload` in UDP, IPv4 and Ethernet; any field can be made wrong."""
    udp_length = 8 + len(payload) if udp_length is None else udp_length
    udp = struct.pack("!HHHH", 40000, dst_port, udp_length, 0)
    fields = [version_ihl, ecn, 28 + len(payload), 0, fragment, 64, protocol, 0, src_ip, dst_ip]
    ip = struct.pack("!BBHHHBBHII", *fields)
    fields[7] = checksum(ip)
    ip = struct.pack("!BBHHHBBHII", *fields)
    ethernet = bytes.fromhex("020000000002 020000000001") + struct.pack("!H", ether_type)
    return ethernet + ip + udp + payload


def payload_of(raw):
    """The UDP payload of a frame, once its lengths and its IPv4 checksum have been found right."""
    total_length = struct.unpack_from("!H", raw, 16)[0]
    udp_length = struct.unpack_from("!H", raw, 38)[0]
    assert checksum(raw[14:34]) == 0
    assert total_length == 20 + udp_length
    return raw[FRAME_HEADER_BYTES : 34 + udp_length]
