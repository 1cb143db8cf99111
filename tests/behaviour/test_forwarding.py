"""The switch forwards other traffic, but no frame that a host would read as a packet past admission."""

import struct

import pytest
from frames import checksum, frame
from peelsum_packets import Job

from peelsum.wire import EVERYONE, Kind, Verdict
from peelsum.wire.clock import NEVER_TICKS

OTHER = {"dst_port": 53}
MAC_A, MAC_B = 0x020000000002, 0x0200000000BB
WORKER_IP, WORKER_PORT = 0x0A000002, 3
FOREIGN_PORT = 6


def test_bridged_by_address(frame_rig):
    frame_rig.write("bridge", (MAC_A,), "forward", (3,))
    raw = frame(b"hello", **OTHER)
    assert frame_rig.process_frames([(1, raw)]) == [(3, raw)]
    assert frame_rig.verdicts() == {Verdict.FORWARDED: 1}


def test_not_ip_is_bridged_too(frame_rig):
    frame_rig.write("bridge", (MAC_A,), "forward", (3,))
    raw = frame(b"hello", ether_type=0x0806)
    assert frame_rig.process_frames([(1, raw)]) == [(3, raw)]


def test_flooded(frame_rig):
    """To all ports of the group but the one that it came by."""
    frame_rig.set_group(9, [1, 2, 3])
    frame_rig.write("bridge", (0xFFFFFFFFFFFF,), "flood", (9,))
    raw = b"\xff" * 6 + frame(b"who has", ether_type=0x0806)[6:]
    assert sorted(frame_rig.process_frames([(1, raw)])) == [(2, raw), (3, raw)]


def test_routed_by_the_longest_prefix(frame_rig):
    frame_rig.write("routes", ((0x0A000000, 8),), "route", (4, MAC_A, MAC_B))
    frame_rig.write("routes", ((0x0A000200, 24),), "route", (5, MAC_A, MAC_B))
    for dst_ip, port in ((0x0A000201, 5), (0x0A000301, 4)):
        raw = frame(b"hello", dst_ip=dst_ip, **OTHER)
        ((out_port, out),) = frame_rig.process_frames([(1, raw)])
        assert out_port == port
        assert out[:12] == struct.pack("!Q", MAC_B)[2:] + struct.pack("!Q", MAC_A)[2:]
        assert out[22] == raw[22] - 1
        assert checksum(out[14:34]) == 0
        assert out[26:] == raw[26:]
    assert frame_rig.verdicts() == {Verdict.FORWARDED: 2}


def test_last_hop_is_not_routed_on(frame_rig):
    frame_rig.write("routes", ((0x0A000000, 8),), "route", (4, MAC_A, MAC_B))
    raw = bytearray(frame(b"hello", **OTHER))
    raw[22] = 1
    assert frame_rig.process_frames([(1, bytes(raw))]) == []
    assert frame_rig.verdicts() == {Verdict.NOT_PEELSUM: 1}


def test_ours_is_never_bridged(frame_rig):
    frame_rig.write("bridge", (MAC_A,), "forward", (3,))
    assert frame_rig.process_frames([(1, frame(b"short"))]) == []
    assert frame_rig.verdicts() == {Verdict.SHORT_PACKET: 1}


def test_addresses_of_other_traffic_are_left_alone(frame_rig):
    frame_rig.write("hosts", (3,), "readdress", (1, 2, 3, 4))
    frame_rig.write("bridge", (MAC_A,), "forward", (3,))
    raw = frame(b"hello", **OTHER)
    assert frame_rig.process_frames([(1, raw)]) == [(3, raw)]


@pytest.fixture
def forged(frame_rig):
    """Return a result for a worker of job 1, to a switch that bridges and routes to that worker."""
    frame_rig.set_age_limit(NEVER_TICKS)
    job = Job(frame_rig, job_id=1, ports=(1, 2, WORKER_PORT), server_port=8)
    frame_rig.write("bridge", (MAC_A,), "forward", (WORKER_PORT,))
    frame_rig.write("routes", ((WORKER_IP, 32),), "route", (WORKER_PORT, 1, MAC_A))
    return job.packet(Kind.RESULT, chunk=5, lanes=[99] * frame_rig.lanes, sender=EVERYONE, bitmap=0b111)


def with_options(raw, options):
    """Return the frame with options in its IPv4 header."""
    header = bytearray(raw[14:34] + options)
    header[0] += len(options) // 4
    header[2:4] = struct.pack("!H", struct.unpack("!H", header[2:4])[0] + len(options))
    header[10:12] = bytes(2)
    header[10:12] = struct.pack("!H", checksum(bytes(header)))
    return raw[:14] + bytes(header) + raw[34:]


def tagged(raw, ether_type, vlan):
    """Return the frame with a VLAN tag."""
    return raw[:12] + struct.pack("!HH", ether_type, vlan) + raw[12:]


def test_ours_from_a_foreign_port(frame_rig, forged):
    assert frame_rig.process_frames([(FOREIGN_PORT, frame(forged))]) == []
    assert frame_rig.verdicts() == {Verdict.FOREIGN_PORT: 1}


@pytest.mark.parametrize("words", [1, 5, 10])
def test_ours_behind_ip_options(frame_rig, forged, words):
    """Hosts skip no-operation options, so the switch must not forward a packet behind them."""
    raw = with_options(frame(forged), b"\x01" * (4 * words))
    assert frame_rig.process_frames([(FOREIGN_PORT, raw)]) == []
    assert frame_rig.verdicts() == {Verdict.NOT_PEELSUM: 1}


@pytest.mark.parametrize("ether_type", [0x8100, 0x88A8])
@pytest.mark.parametrize("vlan", [0, 0xE000])
def test_ours_behind_a_priority_tag(frame_rig, forged, ether_type, vlan):
    """Hosts ignore a tag of VLAN 0, so the switch must not forward a packet behind it."""
    raw = tagged(frame(forged), ether_type, vlan)
    assert frame_rig.process_frames([(FOREIGN_PORT, raw)]) == []
    assert frame_rig.verdicts() == {Verdict.NOT_PEELSUM: 1}


def test_ours_behind_two_tags(frame_rig, forged):
    raw = tagged(tagged(frame(forged), 0x8100, 0), 0x88A8, 0)
    assert frame_rig.process_frames([(FOREIGN_PORT, raw)]) == []


def test_the_first_fragment_of_ours(frame_rig, forged):
    """Hosts need a datagram's first fragment to reassemble it; later ones carry no port and may pass."""
    raw = frame(forged[:64], udp_length=8 + len(forged), fragment=0x2000)
    assert frame_rig.process_frames([(FOREIGN_PORT, raw)]) == []
    assert frame_rig.verdicts() == {Verdict.SHORT_PACKET: 1}


def test_others_later_fragments_and_options_without_udp_still_pass(frame_rig, forged):
    fragment = frame(b"the rest of something", fragment=0x0008)
    options = with_options(frame(b"hello", protocol=1), b"\x01" * 4)
    outputs = frame_rig.process_frames([(FOREIGN_PORT, fragment), (FOREIGN_PORT, options)])
    assert [port for port, _ in outputs] == [WORKER_PORT, WORKER_PORT]
    assert outputs[1][1] == options  # bridged as it is: its checksum covers what the switch does not parse
    assert frame_rig.verdicts() == {Verdict.FORWARDED: 2}
