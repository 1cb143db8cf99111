"""The rows of `peelsum bench simulation`, the formulas' error, and a simulation beside an emulation."""

import pytest

from benchmarks.experiments import simulation_loss
from benchmarks.experiments.simulation_emulated import measure
from benchmarks.rivals import sparse_sums as rows
from benchmarks.rivals.cost_model import ALGORITHMS, CALIBRATION, Parts, estimate, fitted, parts
from benchmarks.rivals.slot_protocols import ATP_SLOTS
from peelsum.simulation import Job, NetworkSection, Scenario, SimulationError


def test_formulas_are_within_a_tenth_of_packets_on_a_case_not_fitted():
    scenario = rows.scenario_of(6, elements=1 << 17)
    for algorithm in ("peelsum", "switchml", "ring", "sharded_server"):
        estimate = parts(scenario, algorithm).scaled(CALIBRATION[algorithm])
        assert estimate == pytest.approx(rows.measured(scenario, algorithm)["seconds"], rel=0.1), algorithm


def test_a_fit_returns_the_factors_that_made_the_times():
    each = [Parts(1e-3, 1e-5), Parts(2e-4, 3e-5), Parts(1e-4, 1e-4)]
    true = Parts(1.25, 0.5)
    assert fitted([(one, one.scaled(true)) for one in each]) == true


def test_every_algorithm_has_a_formula_and_peelsum_s_ends_where_two_levels_do():
    many = rows.scenario_of(1024)
    assert all(estimate(many, algorithm) > 0 for algorithm in ALGORITHMS)
    assert estimate(many, "peelsum") < estimate(many, "ring")
    more = Scenario.model_construct(
        network=NetworkSection(racks=32), jobs=(Job.model_construct(workers=10_000, elements=1 << 20),)
    )
    assert estimate(more, "ring") > estimate(many, "ring")
    with pytest.raises(SimulationError, match="two levels of switches take 1024; use that or fewer"):
        estimate(more, "peelsum")


def test_sums_with_either_timers_are_exact():
    for algorithm, timers in (("peelsum", "quick"), ("ring", "quick"), ("peelsum", "default")):
        assert simulation_loss.measure(0, 0.0, 2, algorithm, timers)["wrong"] == 0


def test_atp_with_the_slots_of_its_paper_sums_nearly_all_in_the_switch():
    scenario = rows.scenario_of(2, elements=1 << 17).model_copy(update={"slots": ATP_SLOTS})
    assert rows.measured(scenario, "atp")["in_switch"] > 0.9


@pytest.mark.system
@pytest.mark.parametrize("workers", [4, 8])
def test_a_simulated_sum_takes_as_long_as_an_emulated_one(workers):
    row = measure(1, workers, mbit=10.0, elements=1 << 15, window=128)
    assert row["wrong"] == 0
    # An emulated sum cannot be much faster than its ports allow; how much slower depends on the machine.
    assert row["simulated_s"] == pytest.approx(row["emulated_s"], rel=0.25)
