"""The networks of one and of two levels of switches."""

from __future__ import annotations

from benchmarks.experiments.levels import topology_of


def test_trunks_have_rates_of_their_own() -> None:
    links = topology_of(2, 4, mbit=100.0, trunk=0.5).links
    assert sorted(link.rate_mbit or 0 for link in links) == [50.0, 50.0, *[100.0] * 5]
    assert len(topology_of(1, 4, None, 1.0).links) == 5
