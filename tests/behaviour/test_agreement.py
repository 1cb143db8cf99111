"""Random packet sequences: every switch does what the specification does, packet for packet."""

import numpy as np
import pytest
from frames import frame, payload_of
from peelsum_packets import Job, admit_two_jobs, random_packet
from rigs import SpecRig

from peelsum.spec import Packet
from peelsum.wire import EVERYONE, Kind, Level, Verdict
from peelsum.wire.clock import NEVER_TICKS

PACKETS = 400
SEEDS = range(3)


@pytest.mark.covering(2)
@pytest.mark.parametrize("age_limit", [0, NEVER_TICKS])
@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("seed", SEEDS)
def test_random_packets(rig, seed, level, age_limit):
    rng = np.random.default_rng(seed)
    spec = SpecRig(rig.lanes, rig.slots)
    jobs = admit_two_jobs(rig, age_limit, level)
    admit_two_jobs(spec, age_limit, level)
    for step in range(PACKETS):
        port, packet = random_packet(rng, jobs, rig.slots, rig.lanes)
        assert rig.process(port, packet) == spec.process(port, packet), f"packet {step}"
    assert rig.verdicts() == spec.verdicts()
    assert len(rig.verdicts()) > 10


def test_frames_that_are_not_ours_are_counted_and_dropped(frame_rig):
    job = Job(frame_rig, job_id=1, ports=(1, 2, 3), server_port=8)
    packet = job.packet(Kind.CONTRIBUTION, chunk=5, sender=0)
    foreign = [
        frame(packet, ether_type=0x86DD),
        frame(packet, version_ihl=0x46),
        frame(packet, version_ihl=0x65),
        frame(packet, fragment=0x0001),
        frame(packet, protocol=6),
        frame(packet, dst_port=53),
        frame(packet)[:30],
        frame(packet)[:20],
    ]
    assert frame_rig.process_frames([(1, raw) for raw in foreign]) == []
    assert frame_rig.verdicts() == {Verdict.NOT_PEELSUM: len(foreign)}


def test_every_truncation_is_counted_and_dropped(frame_rig):
    job = Job(frame_rig, job_id=1, ports=(1, 2, 3), server_port=8)
    whole = frame(job.packet(Kind.CONTRIBUTION, chunk=5, sender=0))
    cuts = range(42, len(whole) - frame_rig.trailer_bytes, 7)
    assert frame_rig.process_frames([(1, whole[:cut]) for cut in cuts]) == []
    assert frame_rig.verdicts() == {Verdict.SHORT_PACKET: len(cuts)}


def test_wrong_udp_length_is_counted_and_dropped(frame_rig):
    job = Job(frame_rig, job_id=1, ports=(1, 2, 3), server_port=8)
    packet = job.packet(Kind.CONTRIBUTION, chunk=5, sender=0)
    assert frame_rig.process_frames([(1, frame(packet, udp_length=n)) for n in (8, 100, 65535)]) == []
    assert frame_rig.verdicts() == {Verdict.BAD_LENGTH: 3}


def test_ip_congestion_mark_is_carried_into_the_sum(frame_rig):
    job = Job(frame_rig, job_id=7, ports=(4,), server_port=8)
    for ecn, mark in ((0, 0), (1, 0), (2, 0), (3, 1)):
        raw = frame(job.packet(Kind.CONTRIBUTION, chunk=5 + ecn, sender=0), ecn=ecn)
        ((port, out),) = frame_rig.process_frames([(4, raw)])
        assert port == 8
        assert Packet.parse(payload_of(out), frame_rig.lanes).ce == bool(mark)


def test_copies_are_addressed_to_the_host_behind_their_port(frame_rig):
    job = Job(frame_rig, job_id=1, ports=(1, 2, 3), server_port=8)
    for port in (1, 2):
        addresses = (0x02_00_00_00_00_FE, 0x02_00_00_00_01_00 + port, 0x0A0000FE, 0x0A000100 + port)
        frame_rig.write("hosts", (port,), "readdress", addresses)
    raw = frame(job.packet(Kind.RESULT, chunk=5, sender=EVERYONE), src_ip=0x0A000063, dst_ip=0x0A0000FE)
    outputs = dict(frame_rig.process_frames([(8, raw)]))
    for port in (1, 2):
        assert outputs[port][:12].hex() == f"0200000001{port:02x}0200000000fe"
        assert outputs[port][26:34].hex() == f"0a0000fe0a0001{port:02x}"
    assert outputs[3][:34] == raw[:34]
    assert all(payload_of(out) == payload_of(raw) for out in outputs.values())
    assert all(out[40:42] == b"\0\0" for out in outputs.values())


def test_queue_depth_marks_from_the_limit_on(frame_rig):
    job = Job(frame_rig, job_id=7, ports=(4,), server_port=8)
    frame_rig.write("congestion", None, "mark_from", (0,))
    ((_, packet),) = job.contribute(0, chunk=5, value=1)
    assert packet.ce
    frame_rig.write("congestion", None, "mark_from", (2**19 - 1,))
    ((_, packet),) = job.contribute(0, chunk=6, value=1)
    assert not packet.ce
