"""Jobs held on a switch that other controllers use: it restarts, loses tables, or gets another program."""

import math
import os
import time
from contextlib import closing

import pytest
from device_state import rows
from patience import PATIENCE_S
from primary import Primary
from restartable_switch import RestartableSwitch
from test_controller import stamps

from peelsum.control import SwitchError, open_session, read_status
from peelsum.control.admission import Placement
from peelsum.control.cluster import JobController
from peelsum.control.errors import DescriptionError, LeaseHeldError
from peelsum.control.session import pipeline_schema
from peelsum.pipelines import pipeline


@pytest.fixture
def switch():
    with closing(RestartableSwitch()) as switch:
        yield switch


def described(description, address, job_id=3, **more):
    """Return the description at a switch's address, with another number, and other values for the switch."""
    section = description.switch.model_copy(update={"p4runtime": address, **more})
    job = description.job.model_copy(update={"id": job_id})
    return description.model_copy(update={"switch": section, "job": job})


class Holder:
    """A controller of one job, whose polls return what they told."""

    def __init__(self, job):
        self.told, self.job = [], job
        self.jobs = JobController(on_event=lambda event: self.told.append(event))
        self.jobs.acquire_lease(job)
        self.generation = self.jobs.admit_job(job)["generation"]
        self.told.clear()

    def poll(self):
        self.jobs.poll()
        told, self.told[:] = [event.kind for event in self.told], []
        return told

    def until_told(self):
        """Poll until something happens; a switch may take a moment to notice that a controller has left."""
        return next(told for _ in range(100) if (told := self.poll()))

    def close(self):
        self.jobs.close()


@pytest.fixture
def job(description, switch):
    return described(description, switch.address)


@pytest.fixture
def held(job):
    with closing(Holder(job)) as holder:
        yield holder


def limit(monkeypatch, seconds=0.1):
    """Let switches, or other primaries, have so many seconds."""
    for name in ("_CONNECT_S", "_FIRST_CONNECT_S", "_PATIENCE_S"):
        monkeypatch.setattr(f"peelsum.control.cluster.switches.{name}", seconds)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let a restarted switch take its time to answer; tests of missing switches set their own limit."""
    limit(monkeypatch, PATIENCE_S)


def forget(switch, files):
    with Primary(switch.address, patience_s=PATIENCE_S) as other:
        other.session.commit(pipeline_schema(*files))


def test_a_restarted_switch_gets_pipeline_and_job_back_and_others_nothing(held, switch, files):
    before = switch.holding()
    assert held.poll() == held.poll() == []
    switch.restart()
    assert held.poll() == ["restored"]
    assert switch.holding() == before
    forget(switch, files)  # the connection stays
    assert rows(switch.device, "jobs") == []
    assert held.poll() == ["restored"]
    assert switch.holding() == before
    assert held.poll() == []
    assert held.jobs.evict(3) == {"waiting": []}


def test_slots_that_would_soon_look_as_if_in_use_are_freed_without_an_admission(held, switch, monkeypatch):
    """Else no chunk of a job that has paused for 19 hours could claim a slot, for 38 hours."""
    register, (view,) = stamps(switch.device), held.jobs._switches.values()
    old, recent = (-(1 << 29) - 1) % (1 << 32), (1 << 30) - 1
    for slot, stamp in ((10, old), (11, recent)):
        register.write(slot, stamp)

    def polled(at):
        view._slots_at = at
        assert held.poll() == []
        return register.read(10), register.read(11)

    assert polled(math.inf) == (old, recent)
    first_due = view._slots_at
    assert polled(first_due) == (old, recent)
    with Primary(switch.address, patience_s=PATIENCE_S) as other, monkeypatch.context() as patched:
        patched.setattr("peelsum.control.cluster.switches._CONNECT_S", 0.1)
        other.session.become_primary(7)
        started = time.monotonic()
        assert polled(0.0) == (old, recent)
        assert 0.0 < view._slots_at < first_due
        # Ranks of a `peelsum job serve` wait during its polls, so these are less patient than changes.
        assert time.monotonic() - started < PATIENCE_S / 2
    assert polled(0.0) == (0, recent)
    assert view._slots_at >= first_due


def test_a_switch_that_stays_away_is_told_of_once(held, switch, monkeypatch):
    with monkeypatch.context() as patched:
        limit(patched)
        switch.stop()
        assert held.poll() == ["lost"]
        assert held.poll() == held.poll() == []
        assert not held.jobs.is_up(held.job)
    switch.start()
    assert held.poll() == ["restored", "regained"]
    assert held.jobs.is_up(held.job)


def test_a_job_that_was_only_half_put_back_is_put_back_again(held, switch, files, monkeypatch):
    before = switch.holding()
    forget(switch, files)

    def dying(placement, secret):
        raise SwitchError("switch: did not answer in time while writing; try again")

    with monkeypatch.context() as patched:
        patched.setattr(Placement, "prepare", dying)
        assert held.until_told() == ["lost"]
    ((_, row),) = rows(switch.device, "jobs")
    assert row[2] == 0  # closed, as if evicted
    assert held.until_told() == ["restored", "regained"]
    assert switch.holding() == before


def test_a_job_that_another_controller_evicted_or_admitted_again_is_over(held, switch, job):
    with Primary(switch.address, patience_s=PATIENCE_S) as other:
        assert held.poll() == []
        other.evict(3)
    held.jobs.poll()
    (event,) = held.told
    assert (event.kind, event.job_id) == ("ended", 3)
    assert event.text.startswith(f"job: 3: generation {held.generation} no longer runs on")
    assert held.jobs.generation(3) is None
    held.told.clear()
    assert held.poll() == []


def test_tables_wait_while_another_controller_is_the_primary(held, switch, files, monkeypatch):
    limit(monkeypatch)
    before = switch.holding()
    with Primary(switch.address, election_id=7) as other:
        other.session.commit(pipeline_schema(*files))
        assert held.poll() == held.poll() == []
        assert rows(switch.device, "jobs") == []
    limit(monkeypatch, PATIENCE_S)
    assert held.until_told() == ["restored"]
    assert switch.holding() == before


def test_another_program_is_left_alone_and_ends_the_job(held, switch):
    other = pipeline(64)
    with Primary(switch.address, patience_s=PATIENCE_S) as controller:
        controller.load_pipeline(other.json_path, other.p4info_path)
    held.jobs.poll()
    (event,) = held.told
    assert event.kind == "ended"
    assert "runs another program now, which somebody else loaded" in event.text
    with open_session(switch.address) as observer:
        assert read_status(observer).lanes == 64


def test_two_held_jobs_are_both_put_back(held, switch, description):
    """Two holders become the primary in turn; the first one loads the pipeline."""
    with closing(Holder(described(description, switch.address, job_id=4))) as other:
        before = switch.holding(), switch.device.switch.groups.get(4)
        assert held.poll() == other.poll() == []
        switch.restart()
        for holder in (held, other):
            assert holder.poll() == ["restored"]
        assert (switch.holding(), switch.device.switch.groups.get(4)) == before
        held.jobs.evict(3)
        assert other.poll() == []


def test_a_held_job_is_refused_to_others_until_its_holder_ends(held, switch, job, monkeypatch):
    refusal = rf"job.id: 3: process {os.getpid()} at 127.0.0.1:\d+ holds"
    with monkeypatch.context() as patched:
        patched.setattr("peelsum.control.session._RELEASE_S", 0.0)
        with closing(JobController()) as other, pytest.raises(LeaseHeldError, match=refusal):
            other.acquire_lease(job)
        waiting = Primary(switch.address, patience_s=PATIENCE_S)
        with waiting as other, pytest.raises(LeaseHeldError, match=refusal):
            other.admit(job)
        assert held.poll() == []
        switch.restart()
        with closing(JobController()) as other:
            other.acquire_lease(job)
            assert held.poll() == ["ended"]
    held.close()
    with closing(JobController()) as other:
        other.acquire_lease(job)


@pytest.mark.parametrize("job_id", [3, 4])
def test_a_pipeline_with_other_jobs_is_not_replaced(held, switch, description, job_id):
    """One with this job alone is: its admission comes next, and needs no slots of the program before."""
    wide = described(description, switch.address, job_id, pipeline_lanes=64)
    if job_id == 3:
        held.close()
    with closing(JobController()) as jobs:
        if job_id == 3:
            assert jobs.admit_job(wide)["lanes"] == 64
            return
        with pytest.raises(
            DescriptionError, match=r"pipeline_lanes: 64: .* another program, of 32 lanes, with jobs 3; evict"
        ):
            jobs.acquire_lease(wide)
