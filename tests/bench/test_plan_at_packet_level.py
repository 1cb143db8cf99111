"""The cost model of `peelsum plan` against the packet level, in virtual time."""

from __future__ import annotations

from itertools import product
from statistics import median

import pytest

from peelsum.experiments.catalogue.plan_simulated import SIMULATED, measure


@pytest.mark.slow
def test_the_median_error_is_below_15_percent_over_rates_delays_sizes_and_workers() -> None:
    grid = product((2, 4), (0.1, 10.0), (10.0, 1000.0), (1_000, 25_000))
    rows = [row for point in grid for row in measure(0, *point)]
    assert len(rows) == 16 * len(SIMULATED)
    assert not any(row["wrong"] for row in rows)
    for collective in SIMULATED.values():
        assert median(abs(row["error"]) for row in rows if row["collective"] == collective) < 0.15


def test_a_window_that_has_to_open_takes_longer_than_the_model_says() -> None:
    """The page names this limit: on long, fast links the model lets a worker send a whole window at once."""
    switch = next(row for row in measure(0, 2, 10.0, 1000.0, 100_000) if row["collective"] == "switch")
    assert switch["error"] == pytest.approx(-0.54, abs=0.1)
