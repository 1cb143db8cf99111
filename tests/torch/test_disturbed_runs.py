"""Runs in which parts are killed or stopped in a random order, while others enter: all sums stay exact."""

import pytest
from disturbed_ranks import Disturbance, check
from served_job import served_over_racks, served_to

pytestmark = pytest.mark.usefixtures("forked_children")

#: Events of a run, each as often as it stands here.
EVENTS = {
    "ranks": "rank rank two_ranks joiner joiner wait",
    "server": "rank joiner server server wait",
    "controller": "rank joiner controller wait",
    "switch": "rank joiner switch wait",
    "all": "rank two_ranks joiner server switch controller wait wait",
}


@pytest.mark.system
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
@pytest.mark.parametrize("events", EVENTS)
def test_sums_stay_exact(tmp_path, events, seed):
    (folder := tmp_path / "run").mkdir()
    with served_to(4, tmp_path, spare=0, timeout_s=900.0) as (switch, controller, job):
        disturbance = Disturbance(folder, job, switch, controller, seed)
        results = disturbance.run(12, EVENTS[events])
    print(disturbance.log)
    assert check(results)


#: As `EVENTS`, for two racks below a spine; the switch that is killed is that of a rack, or the spine.
RACK_EVENTS = {
    "ranks": "rank rank two_ranks joiner wait",
    "rack's switch": "rank switch server wait",
    "spine": "rank switch server wait",
}


@pytest.mark.system
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
@pytest.mark.parametrize("events", RACK_EVENTS)
def test_sums_over_racks_stay_exact(tmp_path, events, seed):
    (folder := tmp_path / "run").mkdir()
    with served_over_racks(tmp_path) as (switches, controller, job):
        disturbance = Disturbance(folder, job, switches[events != "spine"], controller, seed)
        results = disturbance.run(10, RACK_EVENTS[events])
    print(disturbance.log)
    assert check(results)
