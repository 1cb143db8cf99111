"""Racks below a spine: the program's behaviour as leaf and as spine, on every switch."""

import pytest
from peelsum_packets import OR, SPINE, Job, lanes_of

from peelsum.wire import EVERYONE, Kind, Level, Verdict
from peelsum.wire.clock import NEVER_TICKS

UP = 8


@pytest.fixture
def leaf(rig):
    """A rack of three workers; behind port 8 is the spine."""
    rig.set_age_limit(NEVER_TICKS)
    return Job(rig, job_id=1, ports=(1, 2, 3), server_port=UP, level=Level.LEAF)


@pytest.fixture
def spine(rig):
    """Two racks behind ports 1 and 2; behind port 8 is the server."""
    rig.set_age_limit(NEVER_TICKS)
    return Job(rig, job_id=1, ports=(1, 2), server_port=UP, level=Level.SPINE)


def test_leaf_contributes_its_racks_sum(leaf):
    for worker in (0, 1):
        assert leaf.contribute(worker, chunk=5, value=worker) == []
    ((port, packet),) = leaf.contribute(2, chunk=5, value=2)
    assert port == UP
    assert (packet.kind, packet.flags, packet.bitmap) == (Kind.CONTRIBUTION, SPINE, 0b111)
    assert packet.lanes == lanes_of(0, 1, 2, like=packet)


def test_retry_completes_a_racks_sum(leaf):
    for worker in (0, 2):
        leaf.contribute(worker, chunk=5, value=worker)
    ((port, packet),) = leaf.retry(1, chunk=5, value=1)
    assert (port, packet.kind, packet.flags, packet.bitmap) == (UP, Kind.CONTRIBUTION, SPINE, 0b111)
    assert packet.lanes == lanes_of(0, 1, 2, like=packet)


@pytest.mark.parametrize("flags", [0, SPINE])
@pytest.mark.parametrize("way", ["collision", "tombstone", "resend", "retry", "bypass"])
def test_leaf_never_passes_a_part_for_its_rack(leaf, way, flags):
    """Partial sums of a rack pass the spine's slots by, and their bitmaps count workers, with any flags."""
    leaf.contribute(0, chunk=5, value=1)
    if way == "collision":
        ((_, packet),) = leaf.contribute(1, chunk=5 + leaf.slots, value=7, flags=flags)
    elif way == "tombstone":
        leaf.resend(0, chunk=5, value=1)
        ((_, packet),) = leaf.contribute(1, chunk=5, value=7, flags=flags)
    elif way == "resend":
        ((_, packet),) = leaf.resend(1, chunk=5, value=7, flags=flags)
    elif way == "retry":
        ((_, packet),) = leaf.retry(1, chunk=5 + leaf.slots, value=7, flags=flags)
    else:
        ((_, packet),) = leaf.send(1, Kind.BYPASS, chunk=5, value=7, flags=flags)
    assert (packet.kind, packet.flags) == (Kind.BYPASS, 0)
    assert packet.bitmap == (0b011 if way == "resend" else 0b010)


def test_leaf_gives_up_when_the_server_asks(leaf):
    leaf.contribute(1, chunk=5, value=7)
    ((port, packet),) = leaf.give_up(chunk=5)
    assert (port, packet.kind, packet.flags, packet.bitmap) == (UP, Kind.BYPASS, 0, 0b010)


@pytest.mark.parametrize("kind", [Kind.RETRY, Kind.RESEND])
def test_leaf_answers_with_the_sum_of_all_racks(leaf, kind):
    """The slot had the rack's sum; it keeps the result. The server does not get it as the rack's sum."""
    for worker in range(3):
        leaf.contribute(worker, chunk=5, value=1)
    leaf.result(chunk=5, value=1234)
    assert leaf.give_up(chunk=5) == []
    ((port, packet),) = leaf.send(1, kind, chunk=5, value=1)
    assert (port, packet.kind, packet.sender) == (2, Kind.RESULT, leaf.sender_of(1))
    assert packet.lanes == [1234] * leaf.rig.lanes


def test_spine_adds_up_racks(spine):
    assert spine.contribute(0, chunk=5, value=10, flags=SPINE) == []
    ((port, packet),) = spine.contribute(1, chunk=5, value=20, flags=SPINE)
    assert port == UP
    assert (packet.kind, packet.flags, packet.bitmap) == (Kind.BYPASS, SPINE, 0b11)
    assert packet.lanes == lanes_of(10, 20, like=packet)


def test_spine_collision_goes_up_as_its_rack(spine):
    spine.contribute(0, chunk=5, value=10, flags=SPINE)
    ((_, packet),) = spine.contribute(1, chunk=5 + spine.slots, value=20, flags=SPINE)
    assert (packet.kind, packet.flags, packet.bitmap) == (Kind.BYPASS, SPINE, 0b10)


def test_spine_leaves_a_racks_bypass_untouched(spine):
    spine.contribute(1, chunk=5, value=10, flags=SPINE)
    bypass = spine.packet(
        Kind.BYPASS, chunk=5, lanes=[3] * spine.rig.lanes, flags=OR, sender=5, bitmap=0b10110
    )
    assert spine.rig.process(1, bypass) == [(UP, bypass)]
    assert spine.verdicts() == {Verdict.ABSORBED: 1, Verdict.BYPASSED: 1}


def test_spine_passes_the_servers_resend_on_to_the_racks(spine):
    spine.contribute(0, chunk=5, value=10, flags=SPINE)
    outputs = spine.give_up(chunk=5)
    assert [port for port, _ in outputs] == [1, 2]
    assert all((p.kind, p.flags) == (Kind.RESEND, 0) for _, p in outputs)
    ((port, packet),) = spine.give_up(chunk=5, flags=SPINE)
    assert (port, packet.kind, packet.flags, packet.bitmap) == (UP, Kind.BYPASS, SPINE, 0b01)
    assert spine.verdicts() == {Verdict.ABSORBED: 1, Verdict.RESEND_FORWARDED: 1, Verdict.RESENT: 1}


def test_spine_returns_a_result_to_every_rack_and_frees_its_slot(spine):
    spine.contribute(0, chunk=5, value=10, flags=SPINE)
    assert [port for port, _ in spine.result(chunk=5, value=1)] == [1, 2]
    assert spine.contribute(0, chunk=5 + spine.slots, value=1, flags=SPINE) == []


def test_spine_returns_a_result_to_the_rack_of_one_worker(spine):
    ((port, packet),) = spine.result(chunk=5, value=1, sender=spine.sender_of(1))
    assert (port, packet.sender) == (2, spine.sender_of(1))


def test_any_worker_of_a_rack_may_be_the_sender_but_no_other(spine):
    """A rack cannot speak for another."""
    for sender, verdict in ((32, Verdict.ABSORBED), (63, Verdict.DUPLICATE)):
        spine.rig.process(2, spine.packet(Kind.CONTRIBUTION, chunk=5, sender=sender, flags=SPINE))
        assert verdict in spine.verdicts()
    for sender in (0, 31, 64, EVERYONE):
        for kind in (Kind.CONTRIBUTION, Kind.BYPASS):
            assert spine.rig.process(2, spine.packet(kind, chunk=5, sender=sender, flags=SPINE)) == []
    assert spine.verdicts()[Verdict.WRONG_SENDER] == 8


@pytest.mark.parametrize("kind", [Kind.RETRY, Kind.RESEND, Kind.RESULT, Kind.NEED, Kind.RESET])
def test_rack_may_only_contribute_and_bypass(spine, kind):
    spine.rig.process(1, spine.packet(kind, chunk=5, sender=5))
    assert spine.verdicts() == {Verdict.FOREIGN_PORT: 1}


@pytest.mark.parametrize(("flags", "verdict"), [(0, Verdict.FOREIGN_PORT), (SPINE, Verdict.RESEND_PASSED)])
def test_a_worker_right_below_a_spine_asks_no_rack(spine, flags, verdict):
    """Only the server sends racks a RESEND without SPINE."""
    spine.rig.admit_worker(spine.job_id, 3, worker_mask=0b100, worker_id=200)
    packet = spine.packet(Kind.RESEND, chunk=5, sender=200, bitmap=0b100, flags=flags)
    outputs = spine.rig.process(3, packet)
    assert [port for port, _ in outputs] == ([UP] if flags else [])
    assert spine.verdicts() == {verdict: 1}
