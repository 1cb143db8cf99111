"""Jobs that share a switch's slots: what the servers sum, exactly, with enough slots and with few."""

from __future__ import annotations

import pytest

from benchmarks.experiments.slots import share_slots


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("workers", [2, 3])
def test_with_enough_slots_the_switch_sums_everything_in_least_packets(jobs: int, workers: int) -> None:
    row = share_slots(2**14, jobs, 512, workers=workers)
    assert (row["at_server"], row["packets_to_servers"], row["wrong"]) == (0.0, 1.0, 0)
    assert row["fairness"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("protocol", ["peelsum", "atp"])
def test_with_all_chunks_under_way_one_in_a_hundred_slots_leaves_the_servers_nearly_all(
    protocol: str,
) -> None:
    plenty, few = (share_slots(slots, 1, 6400, protocol=protocol, long=True) for slots in (2**14, 256))
    assert (plenty["wrong"], few["wrong"]) == (0, 0)
    # A slot is held for as long as a link takes to send all outstanding chunks. The sum is of three windows.
    assert few["at_server"] > 1 - 5 * 256 / 6400
    assert few["packets_to_servers"] == pytest.approx(1 + few["at_server"], rel=0.01)
    assert plenty["at_server"] < (0.4 if protocol == "atp" else 0.001)
