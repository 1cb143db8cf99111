"""Sums through simulated networks: exact, repeatable, independent of how time is batched."""

import pytest

from peelsum.simulation import Job, NetworkSection, Scenario, Simulation, SimulationError, simulate
from peelsum.simulation.scenario import RateChange, Straggler, TimersSection
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

LANES = 32
#: Seconds of a chunk's frame at 100 Gbit/s.
FRAME_S = 8 * (FRAME_HEADER_BYTES + packet_bytes(LANES)) / 100e9
QUICK = TimersSection(
    first_answer=1e-3, resend_least=5e-5, resend_most=2e-3, need=2e-4, need_most=5e-3, reply_gap=2e-5
)
LOSSY = Scenario(
    lanes=LANES,
    network=NetworkSection(loss=0.02),
    jobs=(
        Job(workers=4, elements=9000, timers=QUICK),
        Job(
            workers=3,
            elements=5003,
            sums=2,
            timers=QUICK,
            stragglers=(Straggler(worker=1, late_s=2e-5, gbps=25.0),),
        ),
    ),
)
CROWDED = Scenario(
    lanes=LANES,
    network=NetworkSection(racks=2, loss=0.01, cross=0.3, mark_from=8, oversubscription=8.0, queue=20),
    jobs=LOSSY.jobs,
)


def check(report):
    """Every sum is exact, and every packet delivered, dropped for a reason, or in a slot's sum."""
    assert [row.wrong for row in report.jobs] == [0] * len(report.jobs)
    assert report.offered == report.delivered + report.drops["queue_full"] + report.drops["lost"]


@pytest.mark.parametrize(
    "scenario", [LOSSY, pytest.param(CROWDED, marks=pytest.mark.slow)], ids=["lossy", "crowded"]
)
def test_the_same_seed_gives_the_same_rows_on_every_switch_and_in_every_batch(scenario):
    report = simulate(scenario)
    check(report)
    assert report.drops["lost"] > 0
    assert report.jobs[0].resends > 0
    assert simulate(scenario) == report
    specified = simulate(scenario.model_copy(update={"switch": "specification"}))
    assert specified == report
    assert Simulation(scenario, step_ps=1000).run() == report
    assert simulate(scenario.model_copy(update={"seed": 2})) != report


def test_without_loss_the_switch_sums_every_chunk_and_time_is_near_its_bound():
    scenario = Scenario(lanes=LANES, jobs=(Job(workers=4, elements=LANES * 2000, initial_window=1024),))
    report = simulate(scenario)
    check(report)
    (row,) = report.jobs
    assert (row.in_switch, row.resends, report.drops) == (1.0, 0, {"queue_full": 0, "lost": 0})
    # All frames leave through one link, the last then crosses three more, and each of four takes its delay.
    bound = 2000 * FRAME_S + 3 * FRAME_S + 4e-6
    assert bound <= row.seconds <= 1.02 * bound


@pytest.mark.parametrize(("racks", "links"), [(1, 4), (2, 6)])
def test_a_chunk_takes_exactly_the_links_to_the_server_and_back(racks, links):
    network = NetworkSection(racks=racks)
    report = simulate(Scenario(lanes=LANES, network=network, jobs=(Job(workers=2, elements=LANES),)))
    assert report.jobs[0].seconds == pytest.approx(links * (FRAME_S + 1e-6), abs=1e-12)


def test_a_straggler_delays_everyone_by_as_much_as_it_is_late():
    job = Job(workers=4, elements=LANES * 100)
    plain = simulate(Scenario(lanes=LANES, jobs=(job,))).jobs[0]
    late = job.model_copy(update={"stragglers": (Straggler(worker=2, late_s=3e-5),)})
    delayed = simulate(Scenario(lanes=LANES, jobs=(late,))).jobs[0]
    assert delayed.seconds - plain.seconds == pytest.approx(3e-5, rel=0.05)
    assert delayed.wrong == 0


def test_few_slots_move_sums_to_the_server():
    jobs = tuple(Job(workers=2, elements=8 * 600, window=512, initial_window=512) for _ in range(2))
    report = simulate(Scenario(lanes=8, slots=256, jobs=jobs))
    check(report)
    assert all(0 < row.in_switch < 1 for row in report.jobs)
    assert report.packets["collided"] > 0


def test_the_rate_changes_when_the_schedule_says_so():
    job = Job(workers=2, elements=LANES * 1000, initial_window=1024)
    steady = simulate(Scenario(lanes=LANES, jobs=(job,))).jobs[0].seconds
    slower = NetworkSection(schedule=(RateChange(at_s=steady / 2, gbps=50.0),))
    assert simulate(Scenario(lanes=LANES, network=slower, jobs=(job,))).jobs[0].seconds == pytest.approx(
        1.5 * steady, rel=0.05
    )


def test_a_simulation_that_takes_too_long_says_so():
    scenario = LOSSY.model_copy(update={"limit_s": 1e-5})
    with pytest.raises(
        SimulationError, match=r"limit_s: not done after 1e-05 s of simulated time; give more"
    ):
        simulate(scenario)
