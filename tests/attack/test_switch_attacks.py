"""Attackers behind ports of every kind of switch: no other job's sum changes, each packet is counted.

The victim is job 1. Mallory sits behind a port of job 2 or of no job. Or she is a worker of the victim's job
and poses as another worker.
"""

import pytest
from peelsum_packets import CE, FIN, OR, Job, lanes_of

from peelsum.spec import Packet
from peelsum.wire import CPU_PORT, EVERYONE, Kind, Verdict
from peelsum.wire.clock import NEVER_TICKS

SERVER, CHUNK = 8, 5
#: Where Mallory may sit: no member of any job, and worker and server of another job.
FOREIGN_PORTS = {"nobody": 6, "other-worker": 4, "other-server": 7}


@pytest.fixture
def victim(rig):
    rig.set_age_limit(NEVER_TICKS)
    Job(rig, job_id=2, ports=(4, 5), server_port=FOREIGN_PORTS["other-server"], generation=7)
    return Job(rig, job_id=1, ports=(1, 2, 3), server_port=SERVER, generation=7)


def attack(victim, port, **fields):
    """Send one forged packet at `port`, by default of CHUNK; return the verdict and the packets sent."""
    before = victim.verdicts()
    packet = victim.packet(**{"chunk": CHUNK, "lanes": garbage(victim)} | fields)
    outputs = victim.rig.process(port, packet)
    after = victim.verdicts()
    (verdict,) = [v for v in after if after[v] != before.get(v, 0)]
    return verdict, [(at, Packet.parse(payload, victim.rig.lanes)) for at, payload in outputs]


def finish(victim, *values, worker=2, chunk=CHUNK):
    """Contribute as the last worker; the sum must be that of `values`, of all workers, without flags."""
    ((port, packet),) = victim.contribute(worker, chunk, values[worker])
    assert port == victim.server_port
    assert (packet.kind, packet.bitmap, packet.chunk_id, packet.flags) == (Kind.BYPASS, 0b111, chunk, 0)
    assert packet.lanes == lanes_of(*values, like=packet)


def start(victim, chunk=CHUNK):
    """Contribute as two of three workers."""
    assert victim.contribute(0, chunk, 10) == []
    assert victim.contribute(1, chunk, 20) == []


def garbage(job):
    return [0xDEADBEEF] * job.rig.lanes


@pytest.mark.covering(2)
@pytest.mark.parametrize("flags", [0, OR, CE, FIN])
@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.RESET])
@pytest.mark.parametrize("seat", FOREIGN_PORTS)
def test_another_job_s_packets_are_refused(victim, seat, kind, flags):
    """Packets of every kind and with every `sender` are refused."""
    start(victim)
    for sender in (0, 2, EVERYONE):
        verdict, outputs = attack(
            victim, FOREIGN_PORTS[seat], kind=kind, flags=flags, sender=sender, bitmap=0b111
        )
        assert (verdict, outputs) == (Verdict.FOREIGN_PORT, [])
    finish(victim, 10, 20, 30)


@pytest.mark.parametrize("port", [1, 4, 6, 7, SERVER])
@pytest.mark.parametrize("job_id", [0, 1, 2])
def test_a_reset_from_the_network_frees_nothing(victim, port, job_id):
    start(victim)
    slot = victim.slot_of(CHUNK)
    verdict, outputs = attack(victim, port, kind=Kind.RESET, chunk=slot, job_id=job_id, sender=EVERYONE)
    assert (verdict, outputs) == (Verdict.FOREIGN_PORT, [])
    finish(victim, 10, 20, 30)


@pytest.mark.parametrize("kind", [Kind.CONTRIBUTION, Kind.RETRY, Kind.RESEND, Kind.BYPASS])
def test_a_worker_that_names_another_worker_is_refused(victim, kind):
    start(victim)
    for sender in (1, 2, 3, EVERYONE):
        verdict, outputs = attack(victim, victim.ports[0], kind=kind, sender=sender, bitmap=0b100)
        assert (verdict, outputs) == (Verdict.WRONG_SENDER, [])
    finish(victim, 10, 20, 30)


@pytest.mark.covering(2)
@pytest.mark.parametrize("bitmap", [0, 0b001, 0b010, 0b100, 0b111, 0xFFFFFFFF])
@pytest.mark.parametrize("kind", [Kind.CONTRIBUTION, Kind.RETRY, Kind.RESEND, Kind.BYPASS])
def test_a_worker_that_claims_others_masks_speaks_for_itself_only(victim, kind, bitmap):
    """Packets that leave the switch name Mallory alone, or the slot's workers and Mallory."""
    start(victim)
    verdict, outputs = attack(victim, victim.ports[0], kind=kind, sender=0, bitmap=bitmap)
    expected = {
        Kind.CONTRIBUTION: (Verdict.DUPLICATE, []),
        Kind.RETRY: (Verdict.DUPLICATE, []),
        Kind.RESEND: (Verdict.RESENT, [0b011]),
        Kind.BYPASS: (Verdict.BYPASSED, [0b001]),
    }[kind]
    assert (verdict, [packet.bitmap for _, packet in outputs]) == expected
    if kind == Kind.RESEND:
        ((_, packet),) = outputs
        assert packet.lanes == lanes_of(10, 20, like=packet)  # Mallory's new lanes are not believed
    else:
        finish(victim, 10, 20, 30)


@pytest.mark.parametrize("kind", [Kind.RESULT, Kind.NEED])
@pytest.mark.parametrize("worker", [0, 2])
def test_a_worker_cannot_forge_what_only_the_server_sends(victim, kind, worker):
    start(victim)
    for sender, reason in ((worker, Verdict.FOREIGN_PORT), (EVERYONE, Verdict.WRONG_SENDER)):
        verdict, outputs = attack(victim, victim.ports[worker], kind=kind, sender=sender, bitmap=0b111)
        assert (verdict, outputs) == (reason, [])
    finish(victim, 10, 20, 30)


@pytest.mark.covering(2)
@pytest.mark.parametrize("generation", [0, 6, 8, 0xFFFF])
@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.RESET])
def test_another_generation_is_refused_from_the_rightful_ports_too(victim, kind, generation):
    start(victim)
    downwards = kind in (Kind.RESULT, Kind.NEED)
    verdict, outputs = attack(
        victim,
        SERVER if downwards else victim.ports[2],
        kind=kind,
        sender=EVERYONE if downwards else 2,
        generation=generation,
    )
    assert (verdict, outputs) == (Verdict.WRONG_GENERATION, [])
    finish(victim, 10, 20, 30)


def test_a_foreign_server_cannot_release_or_empty_the_victim_s_slot(victim):
    """A foreign server's results and resends concern its own job, whose chunk of that id has another slot."""
    start(victim)
    for kind, verdict in ((Kind.RESULT, Verdict.RESULT_RETURNED), (Kind.RESEND, Verdict.NOTHING_HELD)):
        found, outputs = attack(victim, 7, kind=kind, sender=EVERYONE, job_id=2)
        assert found == verdict
        assert {port for port, _ in outputs} <= {4, 5}
    finish(victim, 10, 20, 30)


def test_a_chunk_replayed_after_its_result_occupies_a_slot_but_enters_no_sum(victim):
    """It goes to the server, which has the chunk; the result that the slot keeps stays as it is."""
    start(victim)
    finish(victim, 10, 20, 30)
    victim.result(CHUNK, 60)
    verdict, _ = attack(victim, 1, kind=Kind.CONTRIBUTION, sender=0)
    assert verdict == Verdict.TOMBSTONED
    ((port, answer),) = victim.retry(1, CHUNK, 20)
    assert (port, answer.kind, answer.lanes) == (2, Kind.RESULT, [60] * victim.rig.lanes)
    later = CHUNK + victim.slots
    for worker, value in enumerate((11, 21, 31)):
        ((_, packet),) = victim.contribute(worker, later, value)
        assert (packet.chunk_id, packet.bitmap) == (later, 1 << worker)
        assert packet.lanes == lanes_of(value, like=packet)


def test_a_replay_across_a_restart_is_refused(victim):
    """Packets recorded in one generation are refused in the next."""
    start(victim)
    old = [
        (1, victim.packet(Kind.CONTRIBUTION, CHUNK, lanes=garbage(victim), sender=0)),
        (2, victim.packet(Kind.RETRY, CHUNK, lanes=garbage(victim), sender=1)),
        (3, victim.packet(Kind.RESEND, CHUNK, lanes=garbage(victim), sender=2)),
        (SERVER, victim.packet(Kind.RESULT, CHUNK, lanes=garbage(victim), bitmap=0b111)),
        (SERVER, victim.packet(Kind.RESEND, CHUNK, lanes=garbage(victim))),
    ]
    victim.rig.process(CPU_PORT, victim.packet(Kind.RESET, victim.slot_of(CHUNK), job_id=0))
    victim.raise_generation()
    start(victim)
    before = victim.verdicts().get(Verdict.WRONG_GENERATION, 0)
    for port, packet in old:
        assert victim.rig.process(port, packet) == []
    assert victim.verdicts()[Verdict.WRONG_GENERATION] - before == len(old)
    finish(victim, 10, 20, 30)
