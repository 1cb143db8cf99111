"""The cost model of `peelsum plan` against the packet level, in virtual time."""

from __future__ import annotations

import pytest

from peelsum.bench.methods.simulated import SIMULATED, SimulatedGrid, median_error, simulated_rows


def test_the_median_error_is_below_15_percent_over_rates_delays_sizes_and_workers() -> None:
    grid = SimulatedGrid(workers=(2, 4), gbps=(0.1, 10.0), words=(1_000, 25_000))
    rows = list(simulated_rows(grid))
    assert len(rows) == 16 * len(SIMULATED)
    assert not any(row.wrong for row in rows)
    assert median_error(rows) < 0.15
    for collective in SIMULATED.values():
        assert median_error(rows, collective) < 0.15


def test_a_window_that_has_to_open_takes_longer_than_the_model_says() -> None:
    """The page names this limit: on long, fast links the model lets a worker send a whole window at once."""
    grid = SimulatedGrid(workers=(2,), gbps=(10.0,), delays_us=(1000.0,), words=(100_000,))
    switch = next(row for row in simulated_rows(grid) if row.collective == "switch")
    assert switch.error == pytest.approx(-0.54, abs=0.1)
