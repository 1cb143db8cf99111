"""The switch forwards other traffic."""

import struct

from frames import checksum, frame

from peelsum.wire import Verdict

OTHER = {"dst_port": 53}
MAC_A, MAC_B = 0x020000000002, 0x0200000000BB


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
