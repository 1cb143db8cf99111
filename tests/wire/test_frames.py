"""The headers in front of a packet on a wire are those that Scapy builds."""

import pytest

from peelsum.wire import UDP_PORT
from peelsum.wire.format import FRAME_HEADER_BYTES, FrameAddress, encapsulation

scapy = pytest.importorskip("scapy.layers.inet", reason="Scapy is not installed")

WORKER = FrameAddress(bytes.fromhex("020000000001"), bytes([10, 0, 0, 1]))
#: With 144 bytes, adding the carry to the checksum's sum carries once more.
SERVER = FrameAddress(bytes.fromhex("02000000fffe"), bytes([255, 254, 48, 67]))


@pytest.mark.parametrize("packet_bytes", [16, 144, 1040, 65507 - 28])
@pytest.mark.parametrize(("source", "destination"), [(WORKER, SERVER), (SERVER, WORKER)])
def test_headers_are_those_of_another_implementation(
    source: FrameAddress, destination: FrameAddress, packet_bytes: int
) -> None:
    ethernet = scapy.Ether(src=_mac(source), dst=_mac(destination))
    ip = scapy.IP(src=_ip(source), dst=_ip(destination), id=0, flags="DF", ttl=64)
    udp = scapy.UDP(sport=UDP_PORT, dport=UDP_PORT, chksum=0)
    frame = bytes(ethernet / ip / udp / bytes(packet_bytes))
    assert encapsulation(packet_bytes, source, destination) == frame[:FRAME_HEADER_BYTES]
    assert len(frame) == FRAME_HEADER_BYTES + packet_bytes


def _mac(address: FrameAddress) -> str:
    return address.mac.hex(":")


def _ip(address: FrameAddress) -> str:
    return ".".join(map(str, address.ip))
