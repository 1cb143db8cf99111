"""Jobs admitted and evicted at random, while switches restart and controllers die: both sides end equal."""

import random
from contextlib import closing

import pytest
from clusters import Controllers, actual, expected, random_job
from patience import until
from restartable_switch import RestartableSwitch

from peelsum.control import SwitchError
from peelsum.control.session import Session

#: Operations between two checks, and between two of each kind of failure, on average.
CHECK_EVERY, SWITCH_FAILS_EVERY, CONTROLLER_DIES_EVERY = 50, 250, 50


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of the controller may handle it."""


class Life:
    """A cluster whose controller is killed and replaced, and what its jobs should be."""

    def __init__(self, controllers, switches, rng, jobs, monkeypatch):
        self.controllers, self.switches, self.rng, self._most = controllers, switches, rng, jobs
        self.jobs = {}
        self.deaths = self.restarts = self.halfway = self.refused = 0
        self._writes_left = None
        monkeypatch.setattr(Session, "write_raw", self._writing(Session.write_raw))
        self.begin()

    def _writing(self, write):
        def dying(session, updates):
            if self._writes_left is not None:
                self._writes_left -= 1
                if self._writes_left < 0:
                    raise KilledError
            write(session, updates)

        return dying

    def begin(self):
        """A new controller over the same file, until it is the primary and all switches are up."""
        self.cluster = self.controllers.start()
        self.settle()

    def settle(self):
        def up():
            self.cluster.poll()
            return self.cluster.is_primary and self.cluster.totals()["away"] == 0

        until(up, "the switches do not come up")

    def change(self):
        """Admit or evict a random job; sometimes the controller dies at a random write of it."""
        job_id = self.rng.randint(1, self._most)
        dies = self.rng.random() < 1 / CONTROLLER_DIES_EVERY
        self._writes_left = self.rng.randint(0, 25) if dies else None
        try:
            if job_id in self.jobs and self.rng.random() < 0.7:
                self.jobs.pop(job_id)  # an eviction is in force before the first write
                self.cluster.evict(job_id)
            else:
                text = random_job(self.rng, job_id, [switch.address for switch in self.switches])
                self.jobs[job_id] = (text, self.cluster.admit(text)["generation"])
        except KilledError:
            self.halfway += 1
        except SwitchError:
            self.refused += 1  # a switch has just restarted; the job goes on as it was
            self._writes_left = None  # the admission's writes are over
            self.cluster.poll()
        self._writes_left = None
        if dies:
            self.kill()

    def kill(self):
        self.deaths += 1
        for switch in self.cluster._switches.values():
            switch.close()
        self.begin()

    def restart_a_switch(self):
        self.restarts += 1
        switch = self.rng.choice(self.switches)
        switch.restart()

    def check(self):
        self.settle()
        self.cluster.poll()
        for switch in self.switches:
            assert actual(switch.device) == expected(switch.address, self.jobs)
        listed = {job["job_id"]: job["generation"] for job in self.cluster.listed()["jobs"]}
        assert listed == {job_id: generation for job_id, (_, generation) in self.jobs.items()}


def live(tmp_path, monkeypatch, operations, seed, jobs):
    """Do this many operations on jobs 1 to `jobs`; return the life."""
    rng = random.Random(seed)
    switches = [RestartableSwitch() for _ in range(3)]
    try:
        with closing(Controllers(tmp_path, [switch.address for switch in switches])) as controllers:
            life = Life(controllers, switches, rng, jobs, monkeypatch)
            for number in range(1, operations + 1):
                life.change()
                if rng.random() < 1 / SWITCH_FAILS_EVERY:
                    life.restart_a_switch()
                if number % CHECK_EVERY == 0:
                    life.check()
            life.restart_a_switch()
            life.check()
            return life
    finally:
        for switch in switches:
            switch.close()


@pytest.fixture
def without_freeing(monkeypatch):
    """Leave the slots as they are: that takes most of an admission's time, and no table depends on it."""
    monkeypatch.setattr("peelsum.control.admission.Placement.free_slots", lambda *_: None)


def test_with_slots_that_are_freed(tmp_path, monkeypatch):
    live(tmp_path, monkeypatch, 8, seed=2, jobs=25)


@pytest.mark.slow
@pytest.mark.usefixtures("without_freeing")
def test_ten_thousand_operations(tmp_path, monkeypatch):
    life = live(tmp_path, monkeypatch, 10_000, seed=3, jobs=100)
    assert life.restarts > 20
    assert life.deaths > 50
    assert life.halfway > 20
    print(f"restarts {life.restarts}, deaths {life.deaths}, half-way {life.halfway}, refused {life.refused}")
