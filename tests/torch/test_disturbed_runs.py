"""Runs in which parts are killed or stopped in a random order, while others enter: all sums stay exact."""

from contextlib import ExitStack, closing

import pytest
from disturbed_ranks import Disturbance, check
from served_job import Controlling, Switch, described_racks, served_to

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
    with ExitStack() as stack:
        switches = [stack.enter_context(closing(Switch()))]
        for port in (1, 2):
            join = f"3@127.0.0.1:{switches[0].base + port}"
            switches.append(stack.enter_context(closing(Switch("--join", join))))
        addresses = (switch.p4runtime for switch in switches)
        description = described_racks(*addresses, workers=((1, 2), (1, 2)), timeout_s=900.0)
        controller = stack.enter_context(closing(Controlling(tmp_path, description, *switches)))
        job, switch = {"PEELSUM_JOB": controller.job}, switches[events != "spine"]
        disturbance = Disturbance(folder, job, switch, controller, seed)
        results = disturbance.run(10, RACK_EVENTS[events])
    print(disturbance.log)
    assert check(results)
