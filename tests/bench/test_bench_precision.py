"""`bench codec --precision`: errors, losses and words are what their names say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments import precision


def drawn(workers: int = 3) -> dict[str, list[np.ndarray]]:
    """Rows of 64 whose magnitudes differ by up to 2**40, and a tensor that nobody has a gradient for."""
    rng = np.random.default_rng(2)
    rows = 2.0 ** -rng.integers(0, 41, (60, 1))
    values = [(rows * rng.standard_normal((60, 64))).astype(np.float32) for _ in range(workers)]
    return {"rows": values, "unused": [np.zeros(5, np.float32)] * workers}


def test_errors_are_relative_to_exact_sums() -> None:
    gradients = drawn()
    rows = list(precision.rows_of(gradients))
    assert [row["tensor"] for row in rows] == ["rows"] * 3 + ["all"] * 3
    assert [row["way"] for row in rows[:3]] == ["float32", "one scale", "blocks"]
    float32, one_scale, blocks = rows[:3]
    arrays = [array.astype(np.longdouble) for array in gradients["rows"]]
    exact = arrays[0] + arrays[1] + arrays[2]
    in_sequence = np.float32(np.float32(gradients["rows"][0] + gradients["rows"][1]) + gradients["rows"][2])
    errors = (np.abs(in_sequence - exact) / np.abs(exact)).astype(float)
    assert float32["median_error"] == pytest.approx(np.median(errors))
    assert float32["p99_error"] == pytest.approx(np.quantile(errors, 0.99))
    assert float32["sums"] == exact.size == 3840
    assert one_scale["lost"] > 0.1
    assert float32["lost"] == blocks["lost"] == 0
    assert blocks["median_error"] < 2 * float32["median_error"] < one_scale["median_error"]
    assert float32["scale_words"] is one_scale["scale_words"] is None
    larger = 84  # cells for numbers that are larger than expected
    assert blocks["scale_words"] == pytest.approx(121 / (3840 + 120 + 1 + larger))


def test_gradients_are_those_of_every_worker_at_the_steps_asked_for() -> None:
    by_step = dict(precision.gradients_of("ncf", (0, 2), 2))
    assert list(by_step) == [0, 2]
    for gradients in by_step.values():
        assert all(len(arrays) == 2 for arrays in gradients.values())
        first, second = gradients["perceptron.0.weight"]
        assert (first != second).any()
    assert (by_step[0]["score.weight"][0] != by_step[2]["score.weight"][0]).any()
