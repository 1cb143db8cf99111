"""Cloned, resubmitted and recirculated packets: the metadata they keep, their order, the end of loops."""

import struct

import pytest

from peelsum.softswitch import Frames

#: The most packets that a frame makes, according to docs/softswitch.md.
MOST_ITEMS = 256
NORMAL, INGRESS_CLONE, EGRESS_CLONE, REPLICATION = 0, 1, 2, 5
FROM, TO = 7, 9
TAIL = b"tail"
LENGTH = 8 + len(TAIL)


def ask(kind, times=0, session=100, group=0, value=1000):
    return struct.pack(">BBHHH", kind, times, session, group, value)


def told(instance_type, to, rounds=0, rid=0, came_from=0, length=LENGTH, kept=0, lost=0):
    """Return what egress reports: a clone has lost its ingress port and all metadata not in its list."""
    return struct.pack(">BBHHHIHH", instance_type, rounds, rid, came_from, to, length, kept, lost)


@pytest.fixture
def switch(switch_of):
    switch = switch_of("again")
    switch.sessions.set(100, [(4, 11), (5, 12)])
    switch.sessions.set(101, [(6, 0)])
    switch.groups.set(3, [(1, 21), (2, 22)])
    return switch


def send(switch, *frames):
    return switch.process(Frames.of([(FROM, frame + TAIL) for frame in frames]), 0).pairs()


def out(port, *parts):
    return port, b"".join(parts) + TAIL


def test_a_clone_of_ingress_is_the_packet_as_it_came_and_goes_first(switch):
    clones = [
        out(port, told(INGRESS_CLONE, port, rid=rid, kept=1001), ask(1)) for port, rid in ((4, 11), (5, 12))
    ]
    original = told(NORMAL, TO, came_from=FROM, kept=1001, lost=0x100)
    assert send(switch, ask(1)) == [*clones, out(TO, original, ask(1, value=1001))]


def test_a_clone_without_a_list_keeps_nothing_and_the_packet_can_be_multicast(switch):
    clones = [
        out(port, told(INGRESS_CLONE, port, rid=rid), ask(2, group=3)) for port, rid in ((4, 11), (5, 12))
    ]
    copies = [
        out(port, told(REPLICATION, port, rid=rid, came_from=FROM, lost=0x100), ask(2, group=3, value=1001))
        for port, rid in ((1, 21), (2, 22))
    ]
    assert send(switch, ask(2, group=3)) == [*clones, *copies]


@pytest.mark.parametrize("session", [99, 0])
def test_a_session_that_is_not_there_makes_no_clone(switch, session):
    original = told(NORMAL, TO, came_from=FROM, kept=1001, lost=0x100)
    frame = ask(1, session=session)
    assert send(switch, frame) == [out(TO, original, ask(1, session=session, value=1001))]


def test_the_last_session_asked_for_counts(switch):
    clone = out(6, told(INGRESS_CLONE, 6), ask(7))
    assert send(switch, ask(7))[0] == clone


@pytest.mark.parametrize("times", [0, 1, 5])
def test_resubmitted_packets_start_as_they_came_with_what_their_list_keeps(switch, times):
    frame = ask(3, times=200 + times)
    came_from = 0 if times else FROM
    expected = told(
        NORMAL, TO, rounds=times + 1, came_from=came_from, kept=0x10 * (times + 1), lost=0x10 * times + 0x100
    )
    assert send(switch, frame) == [out(TO, expected, ask(3, times=200 + times, value=1001))]


def test_cloned_and_resubmitted_at_once(switch):
    """The drop in the same pass has no effect; each packet keeps the metadata of its own list."""
    clones = [
        out(port, told(INGRESS_CLONE, port, rounds=3, rid=rid, kept=0x66), ask(4))
        for port, rid in ((4, 11), (5, 12))
    ]
    again = told(NORMAL, TO, rounds=6, kept=0x77, lost=0x100)
    assert send(switch, ask(4)) == [*clones, out(TO, again, ask(4, value=1001))]


def test_a_clone_of_egress_is_the_packet_as_egress_left_it(switch):
    made = ask(16, value=1000 + 1 + 0x30)
    original = out(TO, told(NORMAL, TO, rounds=4, came_from=FROM, kept=0x99, lost=0x100), made)
    clones = [
        out(port, told(EGRESS_CLONE, port, rounds=4, rid=rid, length=LENGTH + 16, kept=0x99), made)
        for port, rid in ((4, 11), (5, 12))
    ]
    assert send(switch, ask(16)) == [original, *clones]


def test_a_clone_of_egress_survives_its_packet(switch):
    clone = told(EGRESS_CLONE, 6, length=LENGTH + 16)
    assert send(switch, ask(17, session=101)) == [out(6, clone, ask(17, session=101, value=1001))]


@pytest.mark.parametrize("times", [0, 1, 7])
def test_recirculated_packets_are_parsed_as_they_were_deparsed(switch, times):
    frame = ask(18, times=200 + times)
    expected = told(
        NORMAL, TO, rounds=times, came_from=0 if times else FROM, kept=7 * times, lost=7 * times + 0x100
    )
    assert send(switch, frame) == [out(TO, expected, ask(18, times=200, value=1001 + times))]


def test_recirculated_packets_grow_round_by_round(switch):
    """Fifty rounds add two bytes each, far more than one round can add."""
    got = send(switch, ask(24, times=150) + b"\0\xff", ask(24, times=150) + b"\0\xff")
    assert got == [out(TO, ask(24, times=100, value=1051), b"\0\xff" * 51)] * 2


def test_only_the_copy_that_asked_is_cloned(switch):
    made = ask(25, session=101, group=3, value=1001)
    assert send(switch, ask(25, session=101, group=3)) == [out(port, made) for port in (1, 2, 6)]


def test_only_the_copy_that_asked_is_recirculated(switch):
    first, again = ask(26, group=3, value=1001), ask(26, value=1002)
    assert send(switch, ask(26, group=3)) == [out(2, first), out(TO, again)]


def test_ingress_knows_the_length(switch):
    assert send(switch, ask(27)) == [out(TO, ask(27, group=LENGTH, value=1001))]


def test_cloned_and_recirculated_at_once(switch):
    made = ask(22, times=200, session=101, value=1001)
    clone = out(6, told(EGRESS_CLONE, 6, kept=3), made)
    assert send(switch, ask(22, session=101)) == [clone, out(TO, ask(22, 200, 101, value=1002))]


def test_a_drop_goes_before_recirculating(switch):
    assert send(switch, ask(23)) == []
    assert switch.refused_passes == 0


@pytest.mark.parametrize("kind", [6, 19])
def test_a_packet_that_never_leaves_is_dropped_in_the_end_and_counted(switch, kind):
    assert send(switch, ask(kind), ask(1, session=0), ask(kind))[0][0] == TO
    assert switch.refused_passes == 2
    assert [port for port, _ in send(switch, ask(5))] == [4, 5]


def test_a_clone_that_clones_itself_ends_and_is_counted(switch):
    got = send(switch, ask(20, session=101), ask(20, session=101))
    assert [port for port, _ in got] == [TO, *[6] * MOST_ITEMS] * 2
    assert switch.refused_passes == 2


def test_clones_outgrow_the_batch_and_keep_its_order(switch):
    """With far more copies than frames, the batch resumes with more room; none is lost or repeated."""
    switch.sessions.set(100, [(port, 1) for port in range(40)])
    got = send(switch, *(ask(kind, value=value) for value in range(25) for kind in (1, 16)))
    ports = [*range(40), TO, TO, *range(40)]
    assert [port for port, _ in got] == ports * 25
    assert got[17 * 82 + 3] == out(3, told(INGRESS_CLONE, 3, rid=1, kept=18), ask(1, value=17))


def test_what_the_last_packet_left_does_not_show_in_the_next(switch):
    alone = send(switch, ask(18, times=203))
    assert send(switch, ask(16), ask(1), ask(18, times=203))[-1:] == alone
