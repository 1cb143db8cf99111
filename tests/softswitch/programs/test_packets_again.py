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


def copies(replicas, instance_type, frame, **fields):
    """Return the copies of a frame, with what egress reports of each."""
    return [out(port, told(instance_type, port, rid=rid, **fields), frame) for port, rid in replicas]


CLONES, GROUP = ((4, 11), (5, 12)), ((1, 21), (2, 22))
ORIGINAL = told(NORMAL, TO, came_from=FROM, kept=1001, lost=0x100)
#: A frame, and what leaves of it.
SENT = {
    "a clone of ingress is the packet as it came and goes first": (
        ask(1),
        [*copies(CLONES, INGRESS_CLONE, ask(1), kept=1001), out(TO, ORIGINAL, ask(1, value=1001))],
    ),
    "a clone without a list keeps nothing and the packet can be multicast": (
        ask(2, group=3),
        copies(CLONES, INGRESS_CLONE, ask(2, group=3))
        + copies(GROUP, REPLICATION, ask(2, group=3, value=1001), came_from=FROM, lost=0x100),
    ),
    **{
        f"session {session}, which is not there, makes no clone": (
            ask(1, session=session),
            [out(TO, ORIGINAL, ask(1, session=session, value=1001))],
        )
        for session in (99, 0)
    },
    # The drop in the same pass has no effect; each packet keeps the metadata of its own list.
    "cloned and resubmitted at once": (
        ask(4),
        [
            *copies(CLONES, INGRESS_CLONE, ask(4), rounds=3, kept=0x66),
            out(TO, told(NORMAL, TO, rounds=6, kept=0x77, lost=0x100), ask(4, value=1001)),
        ],
    ),
    "a clone of egress is the packet as egress left it": (
        ask(16),
        [
            out(TO, told(NORMAL, TO, rounds=4, came_from=FROM, kept=0x99, lost=0x100), ask(16, value=1049)),
            *copies(CLONES, EGRESS_CLONE, ask(16, value=1049), rounds=4, length=LENGTH + 16, kept=0x99),
        ],
    ),
    "a clone of egress survives its packet": (
        ask(17, session=101),
        [out(6, told(EGRESS_CLONE, 6, length=LENGTH + 16), ask(17, session=101, value=1001))],
    ),
    "only the copy that asked is cloned": (
        ask(25, session=101, group=3),
        [out(port, ask(25, session=101, group=3, value=1001)) for port in (1, 2, 6)],
    ),
    "only the copy that asked is recirculated": (
        ask(26, group=3),
        [out(2, ask(26, group=3, value=1001)), out(TO, ask(26, value=1002))],
    ),
    "ingress knows the length": (ask(27), [out(TO, ask(27, group=LENGTH, value=1001))]),
    "cloned and recirculated at once": (
        ask(22, session=101),
        [
            out(6, told(EGRESS_CLONE, 6, kept=3), ask(22, times=200, session=101, value=1001)),
            out(TO, ask(22, 200, 101, value=1002)),
        ],
    ),
    "a drop goes before recirculating": (ask(23), []),
}


@pytest.mark.parametrize(("frame", "expected"), SENT.values(), ids=SENT)
def test_what_leaves_of_a_frame(switch, frame, expected):
    assert send(switch, frame) == expected
    assert switch.refused_passes == 0


def test_the_last_session_asked_for_counts(switch):
    assert send(switch, ask(7))[0] == out(6, told(INGRESS_CLONE, 6), ask(7))


@pytest.mark.parametrize("times", [0, 1, 5])
def test_resubmitted_packets_start_as_they_came_with_what_their_list_keeps(switch, times):
    frame = ask(3, times=200 + times)
    came_from = 0 if times else FROM
    kept, lost = 0x10 * (times + 1), 0x10 * times + 0x100
    expected = told(NORMAL, TO, rounds=times + 1, came_from=came_from, kept=kept, lost=lost)
    assert send(switch, frame) == [out(TO, expected, ask(3, times=200 + times, value=1001))]


@pytest.mark.parametrize("times", [0, 1, 7])
def test_recirculated_packets_are_parsed_as_they_were_deparsed(switch, times):
    frame = ask(18, times=200 + times)
    fields = {"came_from": 0 if times else FROM, "kept": 7 * times, "lost": 7 * times + 0x100}
    expected = told(NORMAL, TO, rounds=times, **fields)
    assert send(switch, frame) == [out(TO, expected, ask(18, times=200, value=1001 + times))]


def test_recirculated_packets_grow_round_by_round(switch):
    """Fifty rounds add two bytes each, far more than one round can add."""
    got = send(switch, ask(24, times=150) + b"\0\xff", ask(24, times=150) + b"\0\xff")
    assert got == [out(TO, ask(24, times=100, value=1051), b"\0\xff" * 51)] * 2


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
