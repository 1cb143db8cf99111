"""Training with sparse tables: DDP with the hook and with the process group, beside gloo's sums."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import sums_of_floats
import torch_sparse as sparse
from torch_ranks import run_at_switch, run_ranks

pytestmark = pytest.mark.usefixtures("forked_children")

STEPS = 4
LOSSY = {"loss": 0.05, "seed": 3}


def alike(parameters):
    """What all ranks have, the same bits."""
    for several in zip(*parameters, strict=True):
        for one in several[1:]:
            np.testing.assert_array_equal(one, several[0])
    return parameters[0]


def close(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


def check_averages(before, after):
    """A row of several ranks has the average of integers, that of a single one its own value's."""
    rows, counts = np.unique(np.concatenate([own for own, _ in before]), return_counts=True)
    tables = [np.zeros((rows.size, values.shape[1]), np.float32) for _, values in before]
    for table, (own, values) in zip(tables, before, strict=True):
        table[np.searchsorted(rows, own)] = values
    ranks, shared = len(before), counts > 1
    expected = (np.sum(tables, 0, np.float64) / ranks).astype(np.float32)
    if any(one[shared].any() for one in tables):
        meant = sums_of_floats.expected([one[shared] for one in tables], 32, ranks).values
        expected[shared] = meant.reshape(expected[shared].shape)
    for own, values in after:
        np.testing.assert_array_equal(own, rows)
        np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


def test_averages_are_those_of_integers_bit_for_bit():
    by_rank = run_ranks(3, sparse.trained, {"over": "gloo"}, STEPS)
    alike([parameters for parameters, _, _ in by_rank])
    for pairs in zip(*(pairs for _, pairs, _ in by_rank), strict=True):
        check_averages(*zip(*pairs, strict=True))
    assert len(by_rank[0][1]) == 3 * STEPS
    for _, pairs, stats in by_rank:
        assert stats.steps == STEPS
        table = stats.tensors["bags.0.weight"]
        assert (table.form, table.elements) == ("rows", sparse.ROWS[0] * sparse.WIDTH)
        _, (rows, _) = pairs[-3:][
            [len(own) for _, (own, _) in pairs[-3:]].index(round(table.density * sparse.ROWS[0]))
        ]
        assert 0 < table.density_worker < table.density == rows.size / sparse.ROWS[0]
        assert 0 < table.error_bound < 1e-6
        assert stats.wire_bytes < stats.dense_bytes / 5


def test_options_of_ddp_and_a_compressor():
    for usual, *others in run_ranks(2, sparse.by_options):
        for one in others:
            close(one, usual)


def test_a_trainer_without_ddp():
    first, second = run_ranks(2, sparse.averaged)
    (_, ddp, _), _ = run_ranks(2, sparse.trained, {"over": "gloo"}, 1)
    for (rows, values), (others, other) in zip(first, second, strict=True):
        np.testing.assert_array_equal(rows, others)
        np.testing.assert_array_equal(values, other)
    by_rows = {rows.tobytes(): values for _, (rows, values) in ddp}
    assert sum(np.array_equal(by_rows.get(rows.tobytes()), values) for rows, values in first) == 3


def test_float64_is_refused_with_a_remedy():
    for error, message, _ in run_ranks(2, sparse.in_float64):
        assert error == "InvalidRequestError"
        assert "float64; convert it to one of float32, float16, bfloat16" in message
        assert "DDP itself sums float64" in message


@pytest.mark.system
def test_the_switch_gives_the_same_bits_whatever_is_lost():
    by_hook, star = run_at_switch(2, sparse.trained, {"over": "switch"}, STEPS, star=LOSSY)
    over_gloo = run_ranks(2, sparse.trained, {"over": "gloo"}, STEPS)
    for one, other in zip(
        alike([one for one, *_ in by_hook]), alike([one for one, *_ in over_gloo]), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert star.report.server["chunks_in_switch"] > 0
    without = alike([one for one, *_ in run_ranks(2, sparse.trained, None, STEPS)])
    close(by_hook[0][0], without)
    by_group, star = run_at_switch(2, sparse.trained, None, STEPS, backend="cpu:peelsum", star=LOSSY)
    close(alike([one for one, *_ in by_group]), without)
    assert star.report.server["chunks_in_switch"] > 0


@pytest.mark.system
def test_three_rows_of_ten_million_cost_three_rows():
    """Not the 2.56 GB of the table."""
    rows = 10_000_000
    sums, star = run_at_switch(2, sparse.of_a_long_table, rows, 64, backend="cpu:peelsum")
    for touched, grown in sums:
        assert touched == [1, rows // 2, rows - 2, rows - 1]
        assert grown < 2**24
    assert star.report.server["results"] < 40


@pytest.mark.system
def test_the_example_learns():
    by_rank = run_ranks(2, sparse.example)
    alike([parameters for _, parameters, _ in by_rank])
    for losses, _, saving in by_rank:
        assert np.mean(losses[-5:]) < np.mean(losses[:5])
        assert saving > 50
