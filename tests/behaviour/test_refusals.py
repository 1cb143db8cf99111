"""Packets that every switch must drop, each counted under its reason."""

import pytest
from peelsum_packets import Job
from rig_fixtures import LANES

from peelsum.wire import CPU_PORT, EVERYONE, Kind, Verdict
from peelsum.wire.clock import NEVER_TICKS

SERVER = 8


@pytest.fixture
def job(rig):
    rig.set_age_limit(NEVER_TICKS)
    return Job(rig, job_id=1, ports=(1, 2, 3), server_port=SERVER)


@pytest.mark.parametrize(
    ("offset", "byte", "verdict"),
    [
        (0, 0, Verdict.BAD_VERSION),
        (0, 2, Verdict.BAD_VERSION),
        (1, 0, Verdict.FOREIGN_PORT),
        (1, 8, Verdict.FOREIGN_PORT),
        (2, 0x20, Verdict.RESERVED_FLAGS),
        (2, 0x80, Verdict.RESERVED_FLAGS),
        (3, 0, Verdict.UNKNOWN_JOB),
        (3, 9, Verdict.UNKNOWN_JOB),
        (4, 0xFF, Verdict.WRONG_GENERATION),
        (7, 1, Verdict.WRONG_SENDER),
    ],
)
def test_damaged_header(job, rig, offset, byte, verdict):
    packet = bytearray(job.packet(Kind.CONTRIBUTION, chunk=5, sender=0))
    packet[offset] = byte
    assert rig.process(1, bytes(packet)) == []
    assert job.verdicts() == {verdict: 1}
    assert job.contribute(0, chunk=5, value=1) == []
    assert job.verdicts() == {verdict: 1, Verdict.ABSORBED: 1}


@pytest.mark.parametrize("missing", [1, 4, 4 * LANES, 400, 10**6])
def test_short_packet(job, rig, missing):
    """All lanes may be missing, or the whole packet."""
    packet = job.packet(Kind.CONTRIBUTION, chunk=5, sender=0)
    assert rig.process(1, packet[: max(0, len(packet) - rig.trailer_bytes - missing)]) == []
    assert job.verdicts() == {Verdict.SHORT_PACKET: 1}


def test_long_packet(job, rig):
    packet = job.packet(Kind.CONTRIBUTION, chunk=5, sender=0)
    assert rig.process(1, packet + bytes(4)) == []
    assert job.verdicts() == {Verdict.BAD_LENGTH: 1}


@pytest.mark.parametrize(
    ("port", "kind"),
    [(SERVER, kind) for kind in (Kind.CONTRIBUTION, Kind.BYPASS, Kind.RESET)]
    + [(CPU_PORT, kind) for kind in Kind if kind is not Kind.RESET],
)
def test_the_server_s_and_the_controller_s_port_may_not_send(job, rig, port, kind):
    sender = EVERYONE if port == SERVER else 0
    assert rig.process(port, job.packet(kind, chunk=5, sender=sender)) == []
    assert job.verdicts() == {Verdict.FOREIGN_PORT: 1}


def test_bitmap_that_a_worker_claims_is_not_believed(job, rig):
    rig.process(1, job.packet(Kind.CONTRIBUTION, chunk=5, sender=0, bitmap=0b111))
    assert job.verdicts() == {Verdict.ABSORBED: 1}
    ((_, packet),) = job.give_up(chunk=5)
    assert packet.bitmap == 0b001
