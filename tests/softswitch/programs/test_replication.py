"""Multicast: precedence over other decisions, the copies' metadata, and their independence."""

import struct

import pytest
from softswitch_frames import send

UNICAST, MULTICAST, DROP_FIRST, DROP_LAST = 0, 1, 2, 3
REPLICATION = 5  # simple_switch's instance_type of a copy


def flat(kind, group=0, port=9, value=1000):
    return struct.pack(">BHHI", kind, group, port << 7, value) + b"tail"


def tagged(frame, port, instance, kind, added):
    """Return `frame` as changed by the program's `tag`."""
    value = struct.unpack(">I", frame[5:9])[0] + added
    head = struct.pack(">HHII", instance, port << 7, len(frame), kind)
    return head + frame[:5] + struct.pack(">I", value) + b"tail"


@pytest.fixture
def switch(switch_of):
    switch = switch_of("replicate")
    switch.groups.set(3, [(1, 10), (2, 20), (1, 30)])
    return switch


def test_every_copy_starts_from_what_ingress_left(switch):
    frame = flat(MULTICAST, 3)
    copies = ((1, 10), (2, 20), (1, 30))
    expected = [(port, tagged(frame, port, rid, REPLICATION, 1001)) for port, rid in copies]
    assert send(switch, frame) == expected


def test_a_group_set_after_the_drop_wins(switch):
    assert len(send(switch, flat(DROP_FIRST, 3))) == 3
    assert send(switch, flat(DROP_FIRST, 0)) == []


def test_a_drop_after_the_group_wins_and_exit_ends_ingress(switch):
    assert send(switch, flat(DROP_LAST, 3)) == []


def test_group_numbers_have_16_bits(switch):
    switch.groups.set(0x103, [(5, 1)])
    switch.groups.set(0xFFFF, [(6, 1)])
    assert [port for port, _ in send(switch, flat(MULTICAST, 0x103), flat(MULTICAST, 0xFFFF))] == [5, 6]


def test_egress_can_strip_and_drop_single_copies(switch):
    copies = switch.tables["E.copies"]
    copies.insert(((20, 0xFFFF), (0, 0)), "E.strip", (), priority=1)
    copies.insert(((30, 0xFFFF), (1, 0x1FF)), "E.drop", (), priority=1)
    frame = flat(MULTICAST, 3)
    assert send(switch, frame) == [(1, tagged(frame, 1, 10, REPLICATION, 1001)), (2, b"tail")]


def test_outputs_follow_the_order_of_inputs_and_outgrow_the_batch(switch):
    """With far more copies than frames, the batch resumes with more room; none is lost or repeated."""
    switch.groups.set(5, [(port, 0) for port in range(40)])
    frames = [flat(MULTICAST, 5, value=value) for value in range(50)]
    got = send(switch, flat(UNICAST), *frames, flat(UNICAST))
    assert [port for port, _ in got] == [9, *list(range(40)) * 50, 9]
    assert got[1 + 40 * 17 + 3] == (3, tagged(frames[17], 3, 0, REPLICATION, 18))


def test_replaced_and_deleted_groups(switch):
    switch.groups.set(3, [(4, 1)])
    frame = flat(MULTICAST, 3)
    assert send(switch, frame) == [(4, tagged(frame, 4, 1, REPLICATION, 1001))]
    switch.groups.delete(3)
    assert send(switch, frame) == []
