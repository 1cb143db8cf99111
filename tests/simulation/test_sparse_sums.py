"""Sparse sums by every way of `experiment run density`: exact, and with the words that each has to send."""

from typing import get_args

import numpy as np
import pytest

from benchmarks.rivals.sparse_sums import LANES, Tensors, Way, links, omnireduce, sparse_sum

GBPS = 0.2
ELEMENTS = 20_003
#: One of them tries dozens of tables.
WAYS = [pytest.param(way, marks=[pytest.mark.slow] if way == "lhc_fastest" else []) for way in get_args(Way)]


def blocks(words):
    """Return which blocks of LANES hold a non-zero: bool[workers, blocks]."""
    padded = np.zeros((len(words), -(-words.shape[1] // LANES) * LANES), words.dtype)
    padded[:, : words.shape[1]] = words
    return padded.reshape(len(words), -1, LANES).any(2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("support", ["uniform", "rows"])
def test_every_way_is_exact(way, density, support):
    tensors = Tensors(ELEMENTS, density, support, workers=3, seed=5)
    found = sparse_sum(way, tensors, GBPS)
    assert found.wrong == 0
    assert found.network_s > 0
    # What the network does, unlike the codec's time, is the same every time.
    again = sparse_sum(way, tensors, GBPS)
    assert (again.network_s, again.words) == (found.network_s, found.words)


def test_workers_share_a_support_and_each_position_has_a_holder():
    tensors = Tensors(ELEMENTS, 0.05, "uniform", workers=4, seed=2)
    each = np.array(tensors.each())
    union = np.count_nonzero(each.any(0)) / ELEMENTS
    assert union == pytest.approx(0.05, rel=0.15)
    assert 0.5 < np.count_nonzero(each[0]) / np.count_nonzero(each.any(0)) < 0.75


def test_omnireduce_sends_the_blocks_that_are_not_zero_and_gains_by_rows():
    scattered, rows = (
        np.array(Tensors(2**18, 0.01, support, workers=4, seed=1).each()).view(np.uint32)
        for support in ("uniform", "rows")
    )
    for words in (scattered, rows):
        row = omnireduce(links(GBPS, 4, 2**18), words)
        # At most 256 streams begin with a block that may be zero.
        assert int(blocks(words).sum()) <= row.words // LANES <= int(blocks(words).sum()) + 4 * 256
        assert row.wrong == 0
    assert omnireduce(links(GBPS, 4, 2**18), rows).seconds < 0.5 * row_seconds(scattered)


def row_seconds(words):
    """Return the seconds of OmniReduce for uint32[4, 2**18]."""
    return omnireduce(links(GBPS, 4, 2**18), words).seconds


@pytest.mark.slow
def test_sparse_ways_send_less_than_dense_and_a_ring_more():
    tensors = Tensors(2**17, 0.01)
    found = {way: sparse_sum(way, tensors, GBPS) for way in get_args(Way)}
    assert found["compact"].words < 0.05 * found["dense"].words
    assert found["compact"].words < found["lhc"].words < found["dense"].words
    # A bit for each element, instead of four, is an eighth of the dense words less.
    assert found["lhc_best"].words < found["lhc"].words - 3 * 2**17 // 32
    assert found["ring"].words == 6 * 2**17 // 4
    assert found["compact"].network_s < found["lhc"].network_s < found["dense"].network_s
    assert found["dense"].network_s < found["ring"].network_s
