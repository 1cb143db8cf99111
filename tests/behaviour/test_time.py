"""Slots while time passes: age limits that are finite, and clocks that cross 2**31 and 2**32 ticks.

BMv2 is not among the targets: its clock cannot be set.
"""

import numpy as np
import pytest
from peelsum_packets import OR, Job, admit_two_jobs, lanes_of, random_packet
from rig_fixtures import _fresh_rig
from rigs import SpecRig

from peelsum.wire import CPU_PORT, Kind, Level, Verdict
from peelsum.wire.clock import EPOCH_TICKS, NEVER_TICKS, TICK_US

SERVER = 8
#: When the clock, which starts at 2**30 ticks, is at 2**31 and comes round to 0.
HALF, ROUND = ((ticks - EPOCH_TICKS) * TICK_US for ticks in (2**31, 2**32))
STARTS = [0, HALF - 2000 * TICK_US, ROUND - 2000 * TICK_US, ROUND - 1]
LIMITS = [0, 1, 40, 15_625, NEVER_TICKS - 1, NEVER_TICKS]
PACKETS = 300


@pytest.fixture(params=["softswitch-python", "softswitch-numba"])
def target(request, made_rigs, tmp_path_factory):
    return _fresh_rig(request.param, made_rigs, tmp_path_factory)


@pytest.fixture(params=["spec", "softswitch-python", "softswitch-numba"])
def clocked(request, made_rigs, tmp_path_factory):
    return _fresh_rig(request.param, made_rigs, tmp_path_factory)


class JobInTime(Job):
    """A job whose packets arrive at `now_us`."""

    def at(self, ticks, base_us):
        """Set the next packets' time: this many ticks after a time in microseconds."""
        self.now_us = base_us + ticks * TICK_US
        return self

    def reset(self, slot):
        packet = self.packet(Kind.RESET, slot, job_id=0)
        assert len(self.rig.process(CPU_PORT, packet, self.now_us)) == 1

    def claims(self, chunk):
        """Return whether another chunk of slot `chunk`, of worker 1, can claim it now."""
        before = dict(self.verdicts())
        self.contribute(1, chunk + self.slots, 77)
        after = self.verdicts()
        (verdict,) = [v for v in after if after[v] != before.get(v, 0)]
        assert verdict in (Verdict.ABSORBED, Verdict.COLLIDED)
        return verdict is Verdict.ABSORBED


def job_of_three(rig, limit):
    rig.set_age_limit(limit)
    return JobInTime(rig, job_id=1, ports=(1, 2, 3), server_port=SERVER)


@pytest.mark.covering(2)
@pytest.mark.parametrize("start_us", STARTS)
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("level", list(Level))
def test_random_packets_while_time_passes(target, start_us, limit, level):
    """Each packet comes a tick or so after another, or as an age limit ends, or hours later."""
    rng = np.random.default_rng((start_us, limit))
    spec = SpecRig(target.lanes, target.slots)
    jobs = admit_two_jobs(target, limit, level)
    admit_two_jobs(spec, limit, level)
    now_us = start_us
    steps = [0, 1, TICK_US - 1, TICK_US, *(max(0, limit + d) * TICK_US for d in (-1, 0, 1))]
    steps = [step for step in steps if step < 2**31 * TICK_US // PACKETS] + [400 * TICK_US]
    for number in range(PACKETS):
        port, packet = random_packet(rng, jobs, target.slots, target.lanes)
        now_us += int(rng.choice(steps)) if rng.random() > 0.02 else NEVER_TICKS * TICK_US // 7
        wanted = spec.process(port, packet, now_us)
        assert target.process(port, packet, now_us) == wanted, f"packet {number} at {now_us} us"
    assert target.verdicts() == spec.verdicts()


@pytest.mark.covering(2)
@pytest.mark.parametrize("start_us", [*STARTS, HALF + 1_000_000, ROUND + 1_000_000])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_chunk_may_be_claimed_from_the_age_limit_on_and_no_sooner(clocked, start_us, limit):
    job = job_of_three(clocked, limit)
    for chunk in range(5, 8):
        job.at(0, start_us).reset(chunk)
        job.contribute(0, chunk, 1)
    if limit:
        assert not job.at(limit - 1, start_us).claims(5)
        assert not job.at(limit - 1, start_us).claims(5), "a packet that is not taken does not refresh"
    assert job.at(limit, start_us).claims(5)
    assert job.at(limit + 1, start_us).claims(6)
    assert job.at(limit + 2**29, start_us).claims(7)


@pytest.mark.covering(2)
@pytest.mark.parametrize("start_us", STARTS)
@pytest.mark.parametrize(
    ("packet", "refreshes"),
    [
        *((name, True) for name in ("absorbed", "duplicate", "tombstoned")),
        *((name, False) for name in ("resend", "retry", "give up", "need", "other result")),
    ],
)
def test_every_contribution_that_a_slot_takes_refreshes_it_and_nothing_else(
    clocked, start_us, packet, refreshes
):
    job, limit = job_of_three(clocked, 1000), 1000
    job.at(0, start_us).reset(5)
    job.contribute(0, 5, 1)
    if packet == "tombstoned":
        job.resend(0, 5, 1)
    job.at(600, start_us)
    {
        "absorbed": lambda: job.contribute(1, 5, 1),
        "duplicate": lambda: job.contribute(0, 5, 1),
        "tombstoned": lambda: job.contribute(0, 5, 1),
        "resend": lambda: job.resend(1, 5, 1),
        "retry": lambda: job.retry(1, 5, 1),
        "give up": lambda: job.give_up(5),
        "need": lambda: job.send_from_server(Kind.NEED, 5),
        "other result": lambda: job.result(5 + job.slots, 0),
    }[packet]()
    since = 600 * refreshes
    assert not job.at(since + limit - 1, start_us).claims(5)
    assert job.at(since + limit, start_us).claims(5)


@pytest.mark.covering(2)
@pytest.mark.parametrize("start_us", STARTS)
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("freed_by", ["result", "reset"])
def test_a_freed_slot_may_be_claimed_at_once_and_for_the_time_said(clocked, start_us, limit, freed_by):
    """Until 2**31 ticks less 2**30, plus the limit, have passed: then its stamp looks like the future."""
    for wait, claimed in (
        (0, True),
        (1, True),
        (NEVER_TICKS + limit - 1, True),
        (NEVER_TICKS + limit, False),
    ):
        clocked.fresh()
        job = job_of_three(clocked, limit)
        job.at(0, start_us).reset(5)
        job.contribute(0, 5, 1)
        job.at(3, start_us)
        if freed_by == "result":
            job.result(5, 0)
        else:
            job.reset(5)
        assert job.at(3 + wait, start_us).claims(5) == claimed, f"{wait} ticks later"


def test_a_claimed_slot_holds_the_new_chunk_alone(clocked):
    job = job_of_three(clocked, 10)
    job.at(0, 0).contribute(0, 5, 1000, flags=OR)
    job.contribute(1, 5, 1000, flags=OR)
    job.at(10, 0).contribute(1, 5 + job.slots, 1)
    job.contribute(0, 5 + job.slots, 2)
    ((port, packet),) = job.contribute(2, 5 + job.slots, 3)
    assert (port, packet.bitmap, packet.lanes) == (SERVER, 0b111, lanes_of(1, 2, 3, like=packet))


def test_a_tick_is_64_microseconds(clocked):
    job = job_of_three(clocked, 1)
    for chunk, wait_us, claimed in ((5, 63, False), (6, 64, True)):
        job.now_us = 640_000
        job.contribute(0, chunk, 1)
        job.now_us += wait_us
        assert job.claims(chunk) == claimed
