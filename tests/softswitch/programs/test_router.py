"""A router: longest prefixes, ACL by ternary and range, checksums, parser errors, wide keys, counters."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from frames import checksum

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.compiler.loading import parse

ROUTER_MAC, HOST_MAC, NEXT_HOP = 0x02_00_00_00_00_01, 0x02_00_00_00_00_02, 0x02_00_00_00_00_99


def mac(number):
    return number.to_bytes(6, "big")


def ipv4(dst="10.1.2.3", src="192.168.0.2", *, ttl=64, dport=5000, version=0x45, wrong=0, vlan=None):
    """Return an Ethernet frame with an IPv4 packet that has eight bytes of payload after the ports."""
    to, frm = (bytes(map(int, address.split("."))) for address in (dst, src))
    head = struct.pack(">BBHHHBBH", version, 7, 40, 99, 0x4001, ttl, 17, 0) + frm + to
    sum_ = checksum(head) ^ wrong
    head = head[:10] + sum_.to_bytes(2, "big") + head[12:]
    tag = b"" if vlan is None else b"\x81\0" + vlan.to_bytes(2, "big")
    ethernet = mac(ROUTER_MAC) + mac(HOST_MAC) + tag + b"\x08\0"
    return ethernet + head + struct.pack(">HH", 4000, dport) + b"PAYLOAD!"


def routed(frame, vlan=None):
    """Return the router's expected output for `ipv4()`: only TTL, addresses and checksum change."""
    start = 14 if vlan is None else 18
    head = bytearray(frame[start : start + 20])
    head[8] -= 1
    head[10:12] = bytes(2)
    head[10:12] = checksum(bytes(head)).to_bytes(2, "big")
    return mac(NEXT_HOP) + mac(ROUTER_MAC) + frame[12:start] + bytes(head) + frame[start + 20 :]


@pytest.fixture
def router(switch_of):
    switch = switch_of("router")
    routes = switch.tables["RouterIngress.routes"]
    routes.insert(((0x0A000000, 8),), "RouterIngress.route", (1, NEXT_HOP))
    routes.insert(((0x0A010200, 24),), "RouterIngress.route", (2, NEXT_HOP))
    routes.insert(((0x0A010000, 16),), "RouterIngress.route", (4, NEXT_HOP))

    def send(frame, port=5):
        return switch.process(Frames.of([(port, frame)]), 0).pairs()

    return SimpleNamespace(switch=switch, routes=routes, send=send)


@pytest.mark.parametrize(
    ("frame", "port"),
    [
        (ipv4("10.9.9.9"), 1),
        (ipv4("10.1.2.3"), 2),
        (ipv4("10.1.9.9"), 4),
        (ipv4(ttl=2), 2),
        pytest.param(ipv4("11.0.0.1"), None, id="no route"),
        pytest.param(ipv4(ttl=1), None, id="expired"),
        pytest.param(ipv4(wrong=0x0100), None, id="wrong checksum"),
        pytest.param(ipv4(vlan=101), None, id="a vlan that is not parsed further"),
    ],
)
def test_the_longest_prefix_wins_and_what_is_wrong_is_dropped(router, frame, port):
    assert router.send(frame) == ([] if port is None else [(port, routed(frame))])


@pytest.mark.parametrize(
    ("frame", "passes", "class_"),
    [
        (ipv4(src="10.0.0.1", dport=1023), False, 1),
        (ipv4(src="10.0.0.2", dport=1024), True, 0),
        (ipv4(dport=1005, vlan=100), False, 2),
        (ipv4(dport=1005, vlan=102), True, 0),
        (ipv4(dport=1010, vlan=100), True, 0),
        (ipv4(src="192.168.0.1"), True, 3),
        (ipv4(src="10.0.0.1", dport=80), False, 1),
    ],
)
def test_the_first_acl_entry_that_fits_decides(router, frame, passes, class_):
    assert bool(router.send(frame)) == passes
    counts = [router.switch.counters["RouterIngress.classes"].read(i)[0] for i in range(4)]
    assert counts == [int(i == class_) for i in range(4)]


def test_egress_takes_the_vlan_tag_off_on_port_4(router):
    frame = ipv4("10.1.9.9", vlan=100)
    with_tag = routed(frame, vlan=100)
    assert router.send(frame) == [(4, with_tag[:12] + with_tag[16:])]


def test_a_verify_that_fails_ends_the_pipeline_with_exit(router):
    assert router.send(ipv4(version=0x46)) == []
    assert router.switch.registers["RouterIngress.last_source"].read(5) == 0


def test_a_frame_shorter_than_its_headers_is_seen_as_far_as_it_parsed(router):
    """PacketTooShort before IPv4: no table matches and the frame is dropped, but registers see it."""
    assert router.send(ipv4()[:20]) == []
    assert router.switch.registers["RouterIngress.last_source"].read(5) == HOST_MAC


def test_a_register_index_past_the_end_does_nothing(router):
    """`marks` has 16 cells; source addresses that end in 16..31 index past its end."""
    marks = router.switch.registers["RouterIngress.marks"]
    for ending in (3, 3, 15, 16, 31):
        frame = bytearray(ipv4(ttl=1))  # dropped, so that its addresses stay
        frame[11] = ending
        router.send(bytes(frame))
    assert [marks.read(i) for i in range(16)] == [0, 0, 0, 2, *[0] * 11, 1]


def ipv6(dst, next_header=6, tail=b"\x12\x34\x00\x16" + b"rest"):
    head = struct.pack(">IHBB", 0x60012345, 8, next_header, 9) + bytes(range(16)) + dst.to_bytes(16, "big")
    return mac(ROUTER_MAC) + mac(HOST_MAC) + b"\x86\xdd" + head + tail


def test_addresses_of_128_bits_are_matched_and_written(router):
    via = 0xFE80_0000_0000_0000_0000_0000_0000_0102
    table = router.switch.tables["RouterIngress.routes6"]
    table.insert(((0x20010DB8 << 96, 32),), "RouterIngress.route6", (3, via))
    table.insert(((0x20010DB8_0001_0002_8000 << 48, 65),), "RouterIngress.route6", (6, 1))
    near, far = 0x20010DB8_0001_0002_8000_0000_0000_0007, 0x20010DB8_0001_0002_7000_0000_0000_0007
    frame = ipv6(near)
    assert router.send(frame) == [(6, frame[:38] + (1).to_bytes(16, "big") + frame[54:])]
    frame = ipv6(far)
    assert router.send(frame) == [(3, frame[:38] + via.to_bytes(16, "big") + frame[54:])]
    assert router.send(ipv6(7)) == []


def test_lookahead_past_the_end_is_too_short(router):
    router.switch.tables["RouterIngress.routes6"].insert(((0, 0),), "RouterIngress.route6", (3, 5))
    assert len(router.send(ipv6(9, next_header=59, tail=b"\x80\0\0\x50"))) == 0, "port 80 is denied"
    assert len(router.send(ipv6(9, next_header=59, tail=b"\x70\0\0\x50"))) == 1, "ports not parsed"
    assert len(router.send(ipv6(9, next_header=59, tail=b""))) == 1, "a parser error, but no IPv4"


def test_switching_on_the_action_that_ran(router):
    other = mac(ROUTER_MAC) + mac(HOST_MAC) + b"\x88\xb5" + b"anything"
    assert router.send(other) == []
    by_port = router.switch.tables["RouterIngress.by_port"]
    by_port.insert((5, ROUTER_MAC, 0x88B5), "RouterIngress.permit", (3,))
    assert router.send(other) == [(7, other)]
    assert router.send(other, port=6) == []


@pytest.fixture
def document():
    return json.loads((Path(__file__).parents[1] / "p4" / "router.json").read_text())


def table_of(document, name):
    return next(part for item in document["pipelines"] for part in item["tables"] if part["name"] == name)


@pytest.mark.parametrize("mode", ["python", "numba"])
def test_a_table_without_a_default_entry_does_nothing_on_a_miss(document, mode):
    acl = table_of(document, "RouterIngress.acl")
    acl["default_entry"] = None
    switch = Switch(parse(document, "x"), mode)
    assert switch.tables["RouterIngress.acl"].default == ("NoAction", ())
    acl["default_entry"] = {"action_id": 0, "action_data": []}
    same = Switch(parse(document, "x"), mode)
    for each in (switch, same):
        each.tables["RouterIngress.routes"].set_default("RouterIngress.route", (3, 5))
    frames = Frames.of([(1, ipv4()), (1, ipv4(ttl=1)), (2, ipv4(vlan=9))])
    assert switch.process(frames, 0).pairs() == same.process(frames, 0).pairs() != []


def test_p4_14_matches_on_headers_that_are_there_and_adds_to_fields(document):
    acl = table_of(document, "RouterIngress.acl")
    ttl = {"type": "field", "value": ["ipv4", "ttl"]}
    (permit,) = (made for made in document["actions"] if made["id"] == acl["action_ids"][0])
    permit["runtime_data"] = []
    permit["primitives"] = [
        {"op": op, "parameters": [ttl, {"type": "hexstr", "value": value}]}
        for op, value in (("add_to_field", "0xff"), ("subtract_from_field", "0x2"))
    ]
    del acl["entries"]
    acl.update(key=[{"match_type": "valid", "target": "ipv4", "mask": None}], default_entry=None)
    switch = Switch(parse(document, "x"))
    switch.tables["RouterIngress.routes"].set_default("RouterIngress.route", (3, 5))
    before = switch.process(Frames.of([(1, ipv4(ttl=64))]), 0).pairs()
    switch.tables["RouterIngress.acl"].insert((1,), "RouterIngress.permit", ())
    ((_, frame),) = switch.process(Frames.of([(1, ipv4(ttl=64))]), 0).pairs()
    assert frame[22] == before[0][1][22] - 3


@pytest.mark.parametrize("mode", ["python", "numba"])
def test_what_a_checksum_covers_moves_up_where_a_header_is_missing(document, mode):
    """8 bits of zero before 8 of the protocol, as over TCP's pseudo-header; the target is Ethernet's type."""
    fields = [{"type": "field", "value": ["ipv4", name]} for name in ("src", "protocol")]
    constants = [{"type": "hexstr", "value": value, "bitwidth": 8} for value in ("0x12", "0x34")]
    document["calculations"][0]["input"] = [fields[1], *constants, fields[0], fields[1]]
    (item,) = (item for item in document["checksums"] if item["update"])
    document["checksums"] = [{**item, "target": ["ethernet", "ether_type"], "if_cond": None}]
    switch = Switch(parse(document, "x"), mode)
    switch.tables["RouterIngress.routes"].set_default("RouterIngress.route", (3, 5))
    frame = ipv4()
    covered = frame[23:24] + b"\x12\x34" + frame[26:30] + frame[23:24]
    ((_, got),) = switch.process(Frames.of([(1, frame)]), 0).pairs()
    assert got[12:14] == checksum(covered).to_bytes(2, "big")
    other = mac(ROUTER_MAC) + mac(HOST_MAC) + b"\x88\xb5" + b"anything"
    switch.tables["RouterIngress.by_port"].insert((5, ROUTER_MAC, 0x88B5), "RouterIngress.permit", (3,))
    ((_, got),) = switch.process(Frames.of([(5, other)]), 0).pairs()
    assert got[12:14] == checksum(b"\x12\x34").to_bytes(2, "big")
