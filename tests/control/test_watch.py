"""A held job whose switches disconnect, restart empty, or lose their tables."""

import os
from contextlib import ExitStack

import pytest
from bmv2_process import running_bmv2
from device_state import rows
from patience import PATIENCE_S
from restartable_switch import RestartableSwitch
from test_fabric import TEXT

from peelsum.control import (
    ControlError,
    Controller,
    Fabric,
    SwitchError,
    SwitchLost,
    SwitchRegained,
    Watch,
)
from peelsum.control.description import parse_description
from peelsum.control.errors import DescriptionError, HeldError
from peelsum.control.session import pipeline_schema
from peelsum.control.tables import Placement
from peelsum.pipelines import pipeline


@pytest.fixture
def switch():
    switch = RestartableSwitch()
    yield switch
    switch.close()


def at(description, address):
    section = description.switch.model_copy(update={"p4runtime": address})
    return description.model_copy(update={"switch": section})


@pytest.fixture
def held(switch, description, files):
    """Return a fabric with the job admitted, and its watch."""
    with Fabric.connect(at(description, switch.address), timeout_s=PATIENCE_S) as fabric:
        fabric.load_pipeline(*files)
        watch = Watch(fabric, fabric.admit().generation, *files)
        fabric.become_backup()
        yield fabric, watch


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let a restarted switch take its time to answer; tests of missing switches set their own limit."""
    monkeypatch.setattr("peelsum.control.watch._PATIENCE_S", PATIENCE_S)


def looked_until_something_came(watch):
    """Poll until the watch reports; a switch may take a moment to notice that its controller has left."""
    return next(events for _ in range(100) if (events := watch.look()))


def test_nothing_is_done_where_nothing_happened(held, switch):
    _, watch = held
    before = switch.holding()
    assert watch.look() == watch.look() == []
    assert switch.holding() == before


def test_a_restarted_switch_gets_pipeline_and_job_back(held, switch):
    fabric, watch = held
    before = switch.holding()
    switch.stop()
    switch.start()
    assert switch.device.switch is None
    lost, regained = watch.look()
    assert isinstance(lost, SwitchLost)
    assert str(lost) in (  # by what has noticed already
        f"switch: {switch.address} runs no pipeline any more; connecting again",
        f"switch: lost the connection to {switch.address} while reading; connecting again",
        f"switch: lost the connection to {switch.address} while in session; connecting again",
    )
    assert regained == SwitchRegained(switch.address, restored=True)
    assert str(regained) == f"switch: {switch.address}: had lost the job's tables; they are back"
    assert switch.holding() == before
    assert watch.look() == []
    fabric.evict()


def test_a_switch_that_stays_away_is_told_of_once(held, switch, monkeypatch):
    monkeypatch.setattr("peelsum.control.watch._PATIENCE_S", 0.1)
    _, watch = held
    switch.stop()
    assert [type(event) for event in watch.look()] == [SwitchLost]
    assert watch.look() == watch.look() == []
    assert watch.misses_switch
    switch.start()
    monkeypatch.setattr("peelsum.control.watch._PATIENCE_S", PATIENCE_S)
    assert watch.look() == [SwitchRegained(switch.address, restored=True)]
    assert not watch.misses_switch


def test_tables_lost_without_the_connection_are_put_back(held, switch, files):
    fabric, watch = held
    before = switch.holding()
    with fabric.as_primary(patience_s=PATIENCE_S):
        fabric._placed[0][0].session.commit(pipeline_schema(*files))
    assert rows(switch.device, "jobs") == []
    assert watch.look() == [SwitchRegained(switch.address, restored=True)]
    assert switch.holding() == before


def test_a_job_that_was_only_half_put_back_is_put_back_again(held, switch, files, monkeypatch):
    fabric, watch = held
    before = switch.holding()
    with fabric.as_primary(patience_s=PATIENCE_S):
        fabric._placed[0][0].session.commit(pipeline_schema(*files))

    def dying(placement, secret):
        raise SwitchError("switch: did not answer in time while writing; try again")

    with monkeypatch.context() as patched:
        patched.setattr(Placement, "prepare", dying)
        assert [type(event) for event in watch.look()] == [SwitchLost]
    ((_, row),) = rows(switch.device, "jobs")
    assert row[2] == 0  # closed, as if evicted
    assert looked_until_something_came(watch) == [SwitchRegained(switch.address, restored=True)]
    assert switch.holding() == before
    # From then on, a switch that has the job is left as it is.
    with monkeypatch.context() as patched:

        def unanswered(*_):
            patched.undo()
            raise SwitchError("switch: did not answer in time while reading; try again")

        patched.setattr(fabric, "holds", unanswered)
        assert watch.look()[1:] == [SwitchRegained(switch.address, restored=False)]


def test_a_job_that_another_controller_evicted_is_over(held, switch):
    _, watch = held
    with Controller.connect(switch.address, patience_s=PATIENCE_S) as other:
        assert watch.look() == []
        other.evict(3)
    with pytest.raises(ControlError, match=r"job: 3: generation \d+ no longer runs on"):
        watch.look()


def test_tables_wait_while_another_controller_is_in_charge(held, switch, files, monkeypatch):
    monkeypatch.setattr("peelsum.control.watch._PATIENCE_S", 0.1)
    _, watch = held
    before = switch.holding()
    with Controller.connect(switch.address, election_id=7) as other:
        other.session.commit(pipeline_schema(*files))
        assert watch.look() == watch.look() == []
        assert rows(switch.device, "jobs") == []
    assert looked_until_something_came(watch) == [SwitchRegained(switch.address, restored=True)]
    assert switch.holding() == before


def test_another_program_is_left_alone_and_ends_the_job(held, switch):
    _, watch = held
    other = pipeline(64)
    with Controller.connect(switch.address, patience_s=PATIENCE_S) as controller:
        controller.load_pipeline(other.json_path, other.p4info_path)
    with pytest.raises(
        ControlError, match=r"job: 3: .* runs another program now, which somebody else loaded"
    ):
        watch.look()
    with Controller.observe(switch.address) as controller:
        assert controller.status().lanes == 64


def test_two_held_jobs_are_both_put_back(held, switch, description, files):
    """Two holders become the primary in turn; the first one loads the pipeline."""
    first, watch = held
    fourth = at(description, switch.address)
    fourth = fourth.model_copy(update={"job": fourth.job.model_copy(update={"id": 4, "window": 32})})
    with Fabric.connect(fourth, timeout_s=PATIENCE_S, patience_s=PATIENCE_S) as second:
        assert second.load_pipeline(*files) == 0
        other = Watch(second, second.admit().generation, *files)
        second.become_backup()
        before = switch.holding(), switch.device.switch.groups.get(4)
        assert watch.look() == other.look() == []
        switch.stop()
        switch.start()
        for one in (watch, other):
            assert one.look()[-1] == SwitchRegained(switch.address, restored=True)
        assert (switch.holding(), switch.device.switch.groups.get(4)) == before
        assert watch.look() == other.look() == []
        first.evict()
        with pytest.raises(ControlError, match="job: 3: "):
            watch.look()
        assert other.look() == []


def test_a_held_job_is_refused_to_others_until_its_holder_ends(held, switch, description, monkeypatch):
    fabric, watch = held
    job, refusal = (
        at(description, switch.address),
        rf"job.id: 3: process {os.getpid()} at 127.0.0.1:\d+ holds",
    )
    with monkeypatch.context() as patched:
        patched.setattr("peelsum.control.session._RELEASE_S", 0.0)
        with pytest.raises(HeldError, match=refusal):
            Fabric.connect(job, timeout_s=PATIENCE_S)
        with (
            Controller.connect(switch.address, patience_s=PATIENCE_S) as other,
            pytest.raises(HeldError, match=refusal),
        ):
            other.admit(job)
        assert watch.look() == []
        switch.stop()
        switch.start()
        with Fabric.connect(job, timeout_s=PATIENCE_S), pytest.raises(HeldError, match=refusal):
            watch.look()
    fabric.close()
    with Fabric.connect(job, timeout_s=PATIENCE_S):
        pass


@pytest.mark.parametrize("job_id", [3, 4])
def test_a_pipeline_with_other_jobs_is_not_replaced(held, switch, description, job_id):
    """One with this job alone is: its admission comes next, and needs no slots of the program before."""
    wide, other = at(description, switch.address), pipeline(64)
    section = wide.switch.model_copy(update={"pipeline_lanes": 64})
    job = wide.job.model_copy(update={"id": job_id})
    wide = wide.model_copy(update={"job": job, "switch": section})
    if job_id == 3:
        held[0].close()
    with Fabric.connect(wide, timeout_s=PATIENCE_S, patience_s=PATIENCE_S) as fabric:
        if job_id == 3:
            assert fabric.load_pipeline(other.json_path, other.p4info_path) == 1
            assert fabric.admit().lanes == 64
            return
        with pytest.raises(
            DescriptionError, match=r"pipeline_lanes: 64: .* another program, of 32 lanes, with jobs 3; evict"
        ):
            fabric.load_pipeline(other.json_path, other.p4info_path)


def test_the_switches_of_racks_are_looked_after_one_by_one(files, monkeypatch):
    def reconnect(fabric, switch, *, timeout_s, _reconnect=Fabric.reconnect):
        _reconnect(fabric, switch, timeout_s=0.1 if fabric.switches[switch] in away else timeout_s)

    monkeypatch.setattr(Fabric, "reconnect", reconnect)
    away = set()
    switches = [RestartableSwitch() for _ in range(3)]
    described = parse_description(TEXT.format(*(switch.address for switch in switches)))
    with Fabric.connect(described, timeout_s=PATIENCE_S) as fabric:
        fabric.load_pipeline(*files)
        watch = Watch(fabric, fabric.admit().generation, *files)
        fabric.become_backup()
        before = [switch.holding() for switch in switches]
        for switch in (switches[0], switches[2]):
            switch.stop()
        switches[2].start()
        away.add(switches[0].address)
        events = watch.look()
        away.clear()
        assert [(type(event), event.p4runtime) for event in events] == [
            (SwitchLost, switches[0].address),
            (SwitchLost, switches[2].address),
            (SwitchRegained, switches[2].address),
        ]
        switches[0].start()
        assert watch.look() == [SwitchRegained(switches[0].address, restored=True)]
        assert [switch.holding() for switch in switches] == before
    for switch in switches:
        switch.close()


def test_bmv2_gets_its_tables_back_too(tmp_path, description, files):
    with ExitStack() as later:
        with running_bmv2(tmp_path / "first.log") as address:
            fabric = later.enter_context(Fabric.connect(at(description, address), timeout_s=PATIENCE_S))
            fabric.load_pipeline(*files)
            watch = Watch(fabric, fabric.admit().generation, *files)
            fabric.become_backup()
            assert watch.look() == []
            before = fabric.status()[0].jobs
        with running_bmv2(tmp_path / "second.log", address):
            assert watch.look()[-1] == SwitchRegained(address, restored=True)
            assert fabric.status()[0].jobs == before
            assert watch.look() == []
