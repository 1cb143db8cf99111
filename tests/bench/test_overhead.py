"""The cost of a strategy beside a fixed compressor, on a small gradient."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from peelsum.experiments.catalogue.overhead import measure


@pytest.mark.system
def test_rows_of_both():
    rows = measure(0, 4096, rounds=1, steps=3)
    assert [row["by"] for row in rows] == ["compressor", "strategy"]
    for row in rows:
        assert row["cpu_ms"] > 0
        assert row["wall_ms"] > 0
        assert list(row["more_cpu_ms"]) == sorted(row["more_cpu_ms"])
    assert rows[0]["more_cpu_ms"] == (0, 0, 0)
