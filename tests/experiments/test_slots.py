"""Jobs that share a switch's slots: what the servers sum, exactly, with enough slots and with few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.experiments.slots import Scene, Shares, share_slots, share_slots_atp


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("workers", [2, 3])
def test_with_enough_slots_the_switch_sums_everything_in_least_packets(jobs: int, workers: int) -> None:
    found = share_slots(Scene(slots=2**14, jobs=jobs, outstanding=512, workers=workers))
    assert (found.at_server, found.packets_to_servers, found.wrong) == (0.0, 1.0, 0)
    assert found.fairness == pytest.approx(1.0, abs=0.01)


def test_with_few_slots_the_servers_sum_what_the_switch_cannot_exactly() -> None:
    scene = Scene(slots=256, jobs=4, outstanding=2048, seed=5)
    found = share_slots(scene)
    assert found == share_slots(scene)
    assert found != share_slots(replace(scene, seed=6))
    assert found.wrong == 0
    assert 0.2 < found.at_server < 1
    # Both contributions of a chunk that the server sums reach it, instead of one sum.
    assert found.packets_to_servers == pytest.approx(1 + found.at_server, rel=0.05)


@pytest.mark.parametrize("share", [share_slots, share_slots_atp])
def test_with_all_chunks_under_way_one_in_a_hundred_slots_leaves_the_servers_nearly_all(
    share: Callable[[Scene], Shares],
) -> None:
    plenty, few = (share(Scene(slots, 1, outstanding=6400, full=True)) for slots in (2**14, 256))
    assert (plenty.wrong, few.wrong) == (0, 0)
    # A slot is held for as long as a link takes to send all outstanding chunks. The sum is of three windows.
    assert few.at_server > 1 - 5 * 256 / 6400
    assert few.packets_to_servers == pytest.approx(1 + few.at_server, rel=0.01)
    assert plenty.at_server < (0.4 if share is share_slots_atp else 0.001)
