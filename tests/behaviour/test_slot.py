"""The life of a slot, one transition after the other, and packets that must be dropped, on every target.

A test names what goes in and what must come out, so that the specification is tested as well as the targets.
"""

import pytest
from peelsum_packets import ADD, CE, FIN, OR, Job, lanes_of
from rig_fixtures import LANES

from peelsum.wire import CPU_PORT, EVERYONE, Kind, Verdict
from peelsum.wire.clock import NEVER_TICKS

SERVER = 8


def goes_up(outputs, bitmap, *values):
    """The only packet that left is these workers' sum, for the server; return it."""
    ((port, packet),) = outputs
    assert (port, packet.kind, packet.bitmap) == (SERVER, Kind.BYPASS, bitmap)
    assert packet.lanes == lanes_of(*values, like=packet)
    return packet


@pytest.fixture
def job(rig):
    """A job of three workers behind ports 1 to 3, its server behind port 8; slots never expire."""
    rig.set_age_limit(NEVER_TICKS)
    return Job(rig, job_id=1, ports=(1, 2, 3), server_port=SERVER)


def test_last_contribution_completes_and_the_sum_goes_up(job):
    assert job.contribute(0, chunk=5, value=10) == []
    assert job.contribute(2, chunk=5, value=300) == []
    ((port, packet),) = job.contribute(1, chunk=5, value=2000)
    assert port == SERVER
    assert packet.kind == Kind.BYPASS
    assert packet.bitmap == 0b111
    assert (packet.chunk_id, packet.sender, packet.generation) == (5, 1, job.generation)
    assert packet.lanes == lanes_of(10, 300, 2000, like=packet)
    assert job.verdicts() == {Verdict.ABSORBED: 2, Verdict.COMPLETED: 1}


def test_sums_wrap_modulo_2_to_the_32(job):
    for worker in (0, 1):
        job.contribute(worker, chunk=0, value=2**31 - 1)
    goes_up(job.contribute(2, chunk=0, value=2**31 + 5), 0b111, 2**31 - 1, 2**31 - 1, 2**31 + 5)


def test_duplicate_is_dropped_until_the_result(job):
    job.contribute(0, chunk=5, value=10)
    assert job.contribute(0, chunk=5, value=10) == []
    job.contribute(1, chunk=5, value=1)
    goes_up(job.contribute(2, chunk=5, value=1), 0b111, 10, 1, 1)
    assert job.contribute(1, chunk=5, value=1) == []
    assert job.verdicts()[Verdict.DUPLICATE] == 2


def test_result_frees_the_slot_and_reaches_every_worker(job):
    for worker in range(3):
        job.contribute(worker, chunk=5, value=1)
    outputs = job.result(chunk=5, value=3)
    assert [port for port, _ in outputs] == [1, 2, 3]
    assert all((p.kind, p.chunk_id, p.sender) == (Kind.RESULT, 5, EVERYONE) for _, p in outputs)
    assert all(p.lanes == [3] * len(p.lanes) for _, p in outputs)
    # The slot is free: its neighbour in time, a whole turn later, claims it though nothing ever expires.
    assert job.contribute(0, chunk=5 + job.slots, value=1) == []
    assert job.verdicts()[Verdict.ABSORBED] == 3


@pytest.mark.parametrize("kind", [Kind.RETRY, Kind.RESEND])
@pytest.mark.parametrize("held", [(0, 1, 2), (0, 2), (1,)], ids=["summed", "two held", "one held"])
def test_slot_answers_with_the_result_that_it_keeps(job, held, kind):
    """A worker that has lost a result gets it from the switch, also if the server summed the chunk."""
    for worker in held:
        job.contribute(worker, chunk=5, value=1)
    job.result(chunk=5, value=1234)
    for worker in (2, 0, 2):
        ((port, packet),) = job.send(worker, kind, chunk=5, value=1)
        assert (port, packet.kind, packet.sender, packet.chunk_id) == (worker + 1, Kind.RESULT, worker, 5)
        assert (packet.flags, packet.lanes) == (ADD, [1234] * job.rig.lanes)
    assert job.verdicts()[Verdict.ANSWERED] == 3


@pytest.mark.parametrize("kind", [Kind.RETRY, Kind.RESEND])
@pytest.mark.parametrize("flag", [CE, FIN])
def test_answer_has_the_marks_of_the_result(job, kind, flag):
    job.contribute(0, chunk=5, value=1)
    job.send_from_server(Kind.RESULT, chunk=5, value=7, flags=flag)
    ((_, packet),) = job.send(1, kind, chunk=5, value=1)
    assert (packet.kind, packet.flags) == (Kind.RESULT, flag)


@pytest.mark.parametrize("late", [Kind.CONTRIBUTION, Kind.BYPASS])
def test_nothing_is_added_to_a_result_that_is_kept(job, late):
    job.contribute(0, chunk=5, value=10)
    job.result(chunk=5, value=99)
    goes_up(job.send(1, late, chunk=5, value=20), 0b010, 20)
    assert job.give_up(chunk=5) == []
    ((_, packet),) = job.retry(1, chunk=5, value=20)
    assert (packet.kind, packet.lanes) == (Kind.RESULT, [99] * job.rig.lanes)
    verdict = Verdict.TOMBSTONED if late == Kind.CONTRIBUTION else Verdict.BYPASSED
    counts = {Verdict.ABSORBED: 1, Verdict.RESULT_RETURNED: 1, Verdict.NOTHING_HELD: 1, Verdict.ANSWERED: 1}
    assert job.verdicts() == {**counts, verdict: 1}


@pytest.mark.parametrize("kind", [Kind.RETRY, Kind.RESEND])
@pytest.mark.parametrize("held", ["another chunk", "the chunk again", "nothing"])
def test_result_is_kept_until_the_slot_is_taken(job, rig, held, kind):
    job.contribute(0, chunk=5, value=10)
    job.result(chunk=5, value=99)
    if held == "nothing":
        rig.process(CPU_PORT, job.packet(Kind.RESET, chunk=job.slot_of(5), job_id=0, generation=0))
    else:
        job.contribute(0, chunk=5 + job.slots, value=7)
    if held == "the chunk again":
        job.result(chunk=5 + job.slots, value=8)
        job.contribute(0, chunk=5, value=10)
        ((_, packet),) = job.resend(0, chunk=5, value=10)
        assert (packet.kind, packet.bitmap) == (Kind.BYPASS, 0b001)
        assert packet.lanes == lanes_of(10, like=packet)
        return
    goes_up(job.send(1, kind, chunk=5, value=20), 0b010, 20)


def test_result_that_passes_a_slot_of_another_chunk_is_not_kept(job):
    job.contribute(0, chunk=5 + job.slots, value=10)
    job.result(chunk=5, value=99)
    goes_up(job.retry(1, chunk=5, value=20), 0b010, 20)
    goes_up(job.resend(1, chunk=5 + job.slots, value=20), 0b011, 10, 20)


def test_result_for_one_worker_goes_to_its_port_alone(job):
    ((port, packet),) = job.result(chunk=5, value=3, sender=2)
    assert (port, packet.sender) == (3, 2)
    assert job.result(chunk=5, value=3, sender=9) == []
    assert job.verdicts() == {Verdict.RESULT_RETURNED: 1, Verdict.NO_RETURN_PATH: 1}


def test_collision_goes_up_unsummed_and_leaves_the_slot_unchanged(job):
    job.contribute(0, chunk=5, value=10)
    goes_up(job.contribute(1, chunk=5 + job.slots, value=99), 0b010, 99)
    job.contribute(1, chunk=5, value=1)
    goes_up(job.contribute(2, chunk=5, value=1), 0b111, 10, 1, 1)


def test_expired_slot_still_belongs_to_its_chunk(job, rig):
    rig.set_age_limit(0)
    job.contribute(0, chunk=5, value=10)
    job.contribute(1, chunk=5, value=20)
    goes_up(job.contribute(2, chunk=5, value=30), 0b111, 10, 20, 30)


@pytest.mark.parametrize("flags", [ADD, OR])
@pytest.mark.parametrize(
    ("held", "worker", "turns", "taken"),
    [
        pytest.param((0,), 1, 0, (0, 1), id="takes the partial sum with it"),
        pytest.param((0,), 0, 0, (0,), id="of who is in already only reads"),
        pytest.param((0, 1, 2), 2, 0, (0, 1, 2), id="recovers a complete sum"),
        pytest.param((), 1, 0, (1,), id="where nothing is held passes alone"),
        pytest.param((0,), 1, 1, (1,), id="of another chunk passes alone"),
    ],
)
def test_resend(job, held, worker, turns, taken, flags):
    values = (1, 10, 100)
    for other in held:
        job.contribute(other, chunk=5, value=values[other], flags=flags)
    before = job.verdicts()
    ((port, packet),) = job.resend(worker, 5 + turns * job.slots, values[worker], flags=flags)
    assert (port, packet.kind, packet.flags) == (SERVER, Kind.BYPASS, flags)
    assert packet.bitmap == sum(1 << one for one in taken)
    if flags == OR:
        assert set(packet.lanes) == {1 * (0 in taken) | 10 * (1 in taken) | 100 * (2 in taken)}
    else:
        assert packet.lanes == lanes_of(*(values[one] for one in taken), like=packet)
    verdict = Verdict.RESENT if held and not turns else Verdict.RESEND_PASSED
    assert job.verdicts() == {**before, verdict: 1}


def test_tombstone_passes_contributions_up(job):
    job.contribute(0, chunk=5, value=10)
    job.resend(0, chunk=5, value=10)
    goes_up(job.contribute(1, chunk=5, value=20), 0b010, 20)
    ((_, packet),) = job.resend(2, chunk=5, value=30)
    assert packet.bitmap == 0b100
    assert job.verdicts() == {
        Verdict.ABSORBED: 1,
        Verdict.RESENT: 1,
        Verdict.TOMBSTONED: 1,
        Verdict.RESEND_PASSED: 1,
    }


def test_tombstone_keeps_colliders_out_until_the_result(job):
    job.contribute(0, chunk=5, value=10)
    job.resend(0, chunk=5, value=10)
    job.contribute(0, chunk=5 + job.slots, value=1)
    assert job.verdicts()[Verdict.COLLIDED] == 1
    job.result(chunk=5, value=0)
    assert job.contribute(0, chunk=5 + job.slots, value=1) == []


def test_retry_joins_the_partial_sum_and_stays(job):
    job.contribute(0, chunk=5, value=10)
    assert job.retry(1, chunk=5, value=20) == []
    goes_up(job.contribute(2, chunk=5, value=30), 0b111, 10, 20, 30)
    assert job.verdicts() == {Verdict.ABSORBED: 2, Verdict.COMPLETED: 1}


@pytest.mark.parametrize(("flags", "lanes"), [(ADD, (10, 20, 30)), (OR, (0b1010, 0b10100, 0b11110))])
def test_retry_completes_a_sum(job, flags, lanes):
    for worker in (0, 1):
        job.contribute(worker, chunk=5, value=lanes[worker], flags=flags)
    ((port, packet),) = job.retry(2, chunk=5, value=lanes[2], flags=flags)
    assert port == SERVER
    assert (packet.kind, packet.flags, packet.bitmap) == (Kind.BYPASS, flags, 0b111)
    if flags == OR:
        assert set(packet.lanes) == {0b11110}
    else:
        assert packet.lanes == lanes_of(*lanes, like=packet)
    assert job.verdicts() == {Verdict.ABSORBED: 2, Verdict.COMPLETED: 1}


@pytest.mark.parametrize("flags", [ADD, OR])
def test_retry_of_who_is_in_already_is_dropped(job, flags):
    job.contribute(0, chunk=5, value=10, flags=flags)
    assert job.retry(0, chunk=5, value=5, flags=flags) == []
    ((_, packet),) = job.give_up(chunk=5, flags=flags)
    assert (packet.bitmap, packet.lanes[0]) == (0b001, 10)
    assert job.verdicts() == {Verdict.ABSORBED: 1, Verdict.DUPLICATE: 1, Verdict.RESENT: 1}


def test_retry_leaves_a_complete_sum_for_a_resend(job):
    for worker in range(3):
        job.contribute(worker, chunk=5, value=1)
    for worker in range(3):
        assert job.retry(worker, chunk=5, value=1) == []
    goes_up(job.resend(2, chunk=5, value=1), 0b111, 1, 1, 1)
    assert job.verdicts()[Verdict.DUPLICATE] == 3


def test_retry_of_a_worker_behind_a_tombstone_is_dropped(job):
    job.contribute(0, chunk=5, value=10)
    job.resend(0, chunk=5, value=10)
    assert job.retry(0, chunk=5, value=10) == []
    assert job.retry(1, chunk=5, value=20) == []
    assert job.verdicts() == {Verdict.ABSORBED: 1, Verdict.RESENT: 1, Verdict.NOTHING_HELD: 2}
    ((_, packet),) = job.contribute(1, chunk=5, value=20)
    assert packet.bitmap == 0b010


@pytest.mark.parametrize("taken", [False, True])
def test_retry_claims_no_slot_and_passes_alone(job, rig, taken):
    if taken:
        rig.set_age_limit(0)  # expired at once: a contribution would claim it
        job.contribute(0, chunk=5 + job.slots, value=10)
    goes_up(job.retry(1, chunk=5, value=20), 0b010, 20)
    assert job.verdicts() == {Verdict.RESEND_PASSED: 1} | ({Verdict.ABSORBED: 1} if taken else {})
    rig.set_age_limit(NEVER_TICKS)
    if taken:
        ((_, packet),) = job.resend(1, chunk=5 + job.slots, value=1)
        assert packet.lanes == lanes_of(10, 1, like=packet)
    else:
        assert job.contribute(0, chunk=5 + job.slots, value=1) == []


def test_server_asks_for_what_is_held(job):
    job.contribute(0, chunk=5, value=10)
    job.contribute(2, chunk=5, value=30)
    goes_up(job.give_up(chunk=5), 0b101, 10, 30)


def test_server_asks_for_what_is_not_there(job):
    assert job.give_up(chunk=5) == []
    assert job.verdicts() == {Verdict.NOTHING_HELD: 1}


def test_bypass_touches_nothing(job):
    job.contribute(0, chunk=5, value=10)
    goes_up(job.send(1, Kind.BYPASS, chunk=5, value=20), 0b010, 20)
    job.contribute(1, chunk=5, value=20)
    goes_up(job.contribute(2, chunk=5, value=30), 0b111, 10, 20, 30)


def test_need_reaches_everyone_or_one(job):
    outputs = job.send_from_server(Kind.NEED, chunk=5, bitmap=0b110)
    assert [port for port, _ in outputs] == [1, 2, 3]
    assert all((p.kind, p.bitmap) == (Kind.NEED, 0b110) for _, p in outputs)
    ((port, _),) = job.send_from_server(Kind.NEED, chunk=5, bitmap=0b100, sender=2)
    assert port == 3
    assert job.verdicts() == {Verdict.NEED_PASSED: 2}


def test_reset_frees_the_slot_and_comes_back(job, rig):
    job.contribute(0, chunk=5, value=10)
    reset = job.packet(Kind.RESET, chunk=job.slot_of(5), job_id=0, generation=0)
    assert rig.process(CPU_PORT, reset) == [(CPU_PORT, reset)]
    assert job.contribute(0, chunk=5 + job.slots, value=1) == []
    assert job.verdicts() == {Verdict.ABSORBED: 2, Verdict.RESET_DONE: 1}


def test_congestion_met_by_any_contribution_leaves_with_the_sum(job):
    job.contribute(0, chunk=5, value=1)
    job.contribute(1, chunk=5, value=1, flags=CE)
    ((_, packet),) = job.contribute(2, chunk=5, value=1)
    assert packet.flags == CE
    job.result(chunk=5, value=3)
    for worker in (0, 1):
        job.contribute(worker, chunk=5 + job.slots, value=1)
    ((_, packet),) = job.contribute(2, chunk=5 + job.slots, value=1)
    assert packet.flags == ADD, "the mark is the chunk's, not the slot's"


def test_a_worker_that_has_finished_shows_in_any_sum_that_it_is_in(job):
    """Otherwise finished workers' last, empty chunk would complete a chunk that only some still send."""
    job.contribute(0, chunk=5, value=0, flags=FIN)
    job.contribute(1, chunk=5, value=7)
    ((_, packet),) = job.contribute(2, chunk=5, value=7)
    assert packet.flags == FIN


def test_one_worker_completes_at_once(rig):
    rig.set_age_limit(NEVER_TICKS)
    lonely = Job(rig, job_id=7, ports=(4,), server_port=SERVER)
    ((port, packet),) = lonely.contribute(0, chunk=5, value=10)
    assert (port, packet.bitmap) == (SERVER, 1)
    assert lonely.verdicts() == {Verdict.COMPLETED: 1}


def test_thirty_two_workers_fill_the_bitmap(rig):
    """Worker 31's bit is the sign bit of the register."""
    rig.set_age_limit(NEVER_TICKS)
    wide = Job(rig, job_id=7, ports=tuple(range(10, 42)), server_port=SERVER)
    for worker in range(31):
        assert wide.contribute(worker, chunk=5, value=1 << worker, flags=OR) == []
    ((_, packet),) = wide.contribute(31, chunk=5, value=1 << 31, flags=OR)
    assert packet.bitmap == 0xFFFFFFFF
    assert set(packet.lanes) == {0xFFFFFFFF}


@pytest.mark.parametrize("chunk", [2**31 - 1, 2**31, 2**32 - 1])
def test_chunk_ids_past_two_to_the_31(job, chunk):
    for worker in (0, 1):
        job.contribute(worker, chunk, value=worker + 1)
    ((_, packet),) = job.contribute(2, chunk, value=3)
    assert packet.chunk_id == chunk
    assert packet.lanes == lanes_of(1, 2, 3, like=packet)


def test_same_slot_a_turn_of_chunk_ids_apart_is_told_apart(job):
    """The tag holds every bit of the chunk id that the slot's index does not."""
    job.contribute(0, chunk=5, value=1)
    job.contribute(1, chunk=5 + 2**31, value=1)
    job.contribute(1, chunk=5 + 2**32 - job.slots, value=1)
    assert job.verdicts() == {Verdict.ABSORBED: 1, Verdict.COLLIDED: 2}


def test_two_jobs_share_a_slot_one_after_the_other(job, rig):
    other = Job(rig, job_id=2, ports=(4, 5), server_port=7)
    job.contribute(0, chunk=5, value=10)
    ((port, packet),) = other.contribute(0, chunk=5, value=7)
    assert port == 7
    assert packet.bitmap == 0b001
    for worker in (1, 2):
        job.contribute(worker, chunk=5, value=10)
    job.result(chunk=5, value=30)
    assert other.contribute(0, chunk=6 - 1, value=7) == []


def test_salt_moves_a_job_to_other_slots(job, rig):
    other = Job(rig, job_id=2, ports=(4, 5), server_port=7, salt=1)
    job.contribute(0, chunk=5, value=10)
    assert other.contribute(0, chunk=5, value=7) == []
    assert job.verdicts() == {Verdict.ABSORBED: 2}


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
