"""Jobs that share a switch's slots: what the servers sum, exactly, with enough slots and with few."""

import pytest

from benchmarks.experiments.slots import measure


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("workers", [2, 3])
def test_with_enough_slots_the_switch_sums_everything_in_least_packets(jobs, workers):
    row = measure(0, 2**14, jobs, "peelsum", "short", 512, workers)
    assert (row["at_server"], row["packets_to_servers"], row["wrong"]) == (0.0, 1.0, 0)
    assert row["fairness"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("protocol", ["peelsum", "atp"])
def test_with_all_chunks_under_way_one_in_a_hundred_slots_leaves_the_servers_nearly_all(protocol):
    plenty, few = (measure(0, slots, 1, protocol, "long", 6400, 2) for slots in (2**14, 256))
    assert (plenty["wrong"], few["wrong"]) == (0, 0)
    # A slot is held for as long as a link takes to send all outstanding chunks. The sum is of two windows.
    assert few["at_server"] > 1 - 5 * 256 / 6400
    assert few["packets_to_servers"] == pytest.approx(1 + few["at_server"], rel=0.01)
    assert plenty["at_server"] < (0.4 if protocol == "atp" else 0.001)
