"""Training with sparse tables: DDP with the hook and with the process group, beside gloo's sums."""

import numpy as np
import pytest
import sums_of_floats
import torch_sparse as sparse
from torch_ranks import alike, run_at_switch, run_ranks, run_several

pytestmark = pytest.mark.usefixtures("forked_children")

STEPS = 4
LOSSY = {"loss": 0.05, "seed": 3}


def assert_close(parameters, expected):
    for parameter, other in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(parameter, other, rtol=0, atol=1e-4)


def check_averages(before, after):
    """Rows of several ranks have the average in fixed point, those of a single rank its values over ranks."""
    union, counts = np.unique(np.concatenate([rows for rows, _ in before]), return_counts=True)
    tables = [np.zeros((union.size, values.shape[1]), np.float32) for _, values in before]
    for table, (rows, values) in zip(tables, before, strict=True):
        table[np.searchsorted(union, rows)] = values
    ranks, shared = len(before), counts > 1
    expected = (np.sum(tables, 0, np.float64) / ranks).astype(np.float32)
    if any(table[shared].any() for table in tables):
        averages = sums_of_floats.expected([table[shared] for table in tables], 32, ranks).values
        expected[shared] = averages.reshape(expected[shared].shape)
    for rows, values in after:
        np.testing.assert_array_equal(rows, union)
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
        held = round(table.density * sparse.ROWS[0])
        rows = next(rows for _, (rows, _) in pairs[-3:] if len(rows) == held)
        assert 0 < table.density_worker < table.density == rows.size / sparse.ROWS[0]
        assert 0 < table.error_bound < 1e-6
        assert stats.wire_bytes < stats.dense_bytes / 5


@pytest.fixture(scope="module")
def over_gloo():
    """Return what each of several works returned on the two ranks of one group."""
    works = {"trained": (sparse.trained, {"over": "gloo"}, 1)}
    works |= {work.__name__: (work,) for work in (sparse.by_options, sparse.averaged, sparse.in_float64)}
    return run_several(2, works)


def test_options_of_ddp_and_a_compressor(over_gloo):
    for usual, *others in over_gloo["by_options"]:
        for parameters in others:
            assert_close(parameters, usual)


def test_a_trainer_without_ddp(over_gloo):
    first = alike(over_gloo["averaged"])
    (_, ddp, _), _ = over_gloo["trained"]
    by_rows = {rows.tobytes(): values for _, (rows, values) in ddp}
    assert sum(np.array_equal(by_rows.get(rows.tobytes()), values) for rows, values in first) == 3


def test_float64_is_refused_with_a_remedy(over_gloo):
    for error, message, _ in over_gloo["in_float64"]:
        assert error == "InvalidRequestError"
        assert "float64; convert it to one of float32, float16, bfloat16" in message
        assert "DDP itself sums float64" in message


@pytest.mark.system
def test_the_switch_gives_the_same_bits_whatever_is_lost():
    by_hook, star = run_at_switch(2, sparse.trained, {"over": "switch"}, STEPS, star=LOSSY)
    over_gloo = run_ranks(2, sparse.trained, {"over": "gloo"}, STEPS)
    alike([parameters for parameters, *_ in [*by_hook, *over_gloo]])
    assert star.report.server["chunks_in_switch"] > 0
    without = alike([parameters for parameters, *_ in run_ranks(2, sparse.trained, None, STEPS)])
    assert_close(by_hook[0][0], without)
    by_group, star = run_at_switch(2, sparse.trained, None, STEPS, backend="cpu:peelsum", star=LOSSY)
    assert_close(alike([parameters for parameters, *_ in by_group]), without)
    assert star.report.server["chunks_in_switch"] > 0


@pytest.mark.system
def test_the_example_learns():
    by_rank = run_ranks(2, sparse.example)
    alike([parameters for _, parameters, _ in by_rank])
    for losses, _, saving in by_rank:
        assert np.mean(losses[-5:]) < np.mean(losses[:5])
        assert saving > 50
