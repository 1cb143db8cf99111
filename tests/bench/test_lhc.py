"""LHC's layout is exact for what it peels and leaves over what is predicted; its fewest words recover all."""

import math
from functools import reduce

import numpy as np
import pytest

from benchmarks.experiments.codec import TimedLhc, best_lhc
from benchmarks.rivals import lhc
from peelsum.bench.codec.rows import peel
from peelsum.bench.codec.timing import Measured, TimedDevice, tensor
from peelsum.codec import fixed_point


def four_bits(index):
    return (index[:, np.newaxis] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(-1)[:6]


def drawn(elements, density, seed):
    values, _ = tensor("uniform", elements, density, seed)
    return values, fixed_point(int(np.abs(values).max().view(np.uint32)) >> 23, lhc.LARGEST_FAN_IN)


@pytest.mark.parametrize(
    "elements", [1, 15, 16, 17, 1023, 1024, 1025, 33_333, pytest.param(2**23 + 5, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("density", [0.01, 1.0])
@pytest.mark.parametrize("index_bits", [1, 4])
def test_decodes_the_exact_sum_of_workers(elements, density, index_bits):
    workers = 3 if elements < 2**20 else 1
    layout = lhc.LhcLayout(max(8, 5 * elements // 1024), index_bits=index_bits)
    tensors = [drawn(elements, density, seed)[0] for seed in range(workers)]
    fixed = fixed_point(130, workers)
    merge = np.add if index_bits == 4 else np.bitwise_or
    index = reduce(merge, [layout.index(values) for values in tensors])
    sketches = [layout.encode(values, fixed, index) for values in tensors]
    total = sum(sketch for sketch, _ in sketches)
    exact = sum(np.rint(values.astype(np.float64) * 2.0**fixed.scale) for values in tensors)
    out, left_over = layout.decode(total, sketches[0][1], index, fixed, elements)
    assert left_over == 0
    np.testing.assert_array_equal(out, (exact * 2.0**-fixed.scale).astype(np.float32))


def test_index_counts_workers_and_overflows_at_sixteen():
    values = np.array([0.0, 1.0, -0.0, np.nan, 0.0, -2.0], np.float32)
    layout = lhc.LhcLayout(1)
    np.testing.assert_array_equal(four_bits(15 * layout.index(values)), [0, 15, 0, 15, 0, 15])
    # The sixteenth worker's count carries into its neighbour, so that a zero becomes a candidate.
    np.testing.assert_array_equal(four_bits(16 * layout.index(values)), [0, 0, 1, 0, 1, 0])


@pytest.mark.parametrize("rows", [9, 40, 400])
def test_what_is_left_over_is_what_parallel_peeling_leaves(rows):
    values, fixed = drawn(200_000, 0.2, 1)
    layout = lhc.LhcLayout(rows, seed=3)
    left_over = layout.peeled(np.flatnonzero(values)).left_over
    assert lhc.lhc_step(TimedDevice.of("cpu"), layout, values, fixed).left_over == left_over
    assert (left_over > 0) == (rows < 400)


@pytest.mark.parametrize("elements", [5003, 60_000])
@pytest.mark.parametrize("density", [0.01, 0.3, 0.95])
def test_every_table_that_is_tried_gives_the_exact_values(elements, density):
    values, fixed = drawn(elements, density, 6)
    positions = np.flatnonzero(values)
    expected = (np.rint(values * 2.0**fixed.scale) * 2.0**-fixed.scale).astype(np.float32)
    variants = lhc.lhc_variants(positions.size, lhc.smallest_lhc(positions, elements))
    assert lhc.sized_lhc(positions.size) in variants
    leftovers = []
    for layout in variants:
        index = layout.index(values)
        sketch, counts = layout.encode(values, fixed, index)
        out, missing = layout.decode(sketch, counts, index, fixed, elements)
        at, integers = layout.left_over(values, fixed, index)
        assert len(at) == missing == layout.peeled(positions).left_over
        layout.complete(out, at, integers, fixed)
        np.testing.assert_array_equal(out, expected)
        measured = lhc.lhc_step(TimedDevice.of("cpu"), layout, values, fixed)
        assert measured.words == layout.words(elements) + missing
        leftovers.append(missing)
    assert max(leftovers) > 0
    assert min(leftovers) == 0 or density == 0.95


def test_the_best_is_the_fastest_of_all_runs():
    variants = lhc.lhc_variants(1000, None)
    speeds = {layout: 1.0 + number for number, layout in enumerate(variants)}

    def step(layout):
        return Measured(1, speeds[layout], 1.0, None, 0)

    slower = TimedLhc(variants[0], Measured(1, 5.0, 1.0, None, 0))
    assert best_lhc(variants[::-1], step, slower).layout == variants[0]
    faster = TimedLhc(variants[-1], Measured(1, 0.5, 0.5, None, 0))
    assert best_lhc(variants, step, faster) == faster


def test_the_smallest_layout_recovers_all_and_one_of_fewer_rows_does_not():
    positions = np.flatnonzero(drawn(300_000, 0.05, 2)[0])
    layout = lhc.smallest_lhc(positions, 300_000)
    assert layout.peeled(positions).left_over == 0
    assert lhc.LhcLayout(int(layout.rows / 1.06)).peeled(positions).left_over > 0
    assert lhc.smallest_lhc(np.arange(300_000), 300_000) is None


def test_peeling_counts_rounds_in_which_something_is_recovered():
    # A chain: only the cell at its end is pure, and peeling it makes the next one pure.
    chain = np.array([[0, 0, 1], [1, 1, 2], [2, 2, 3]])
    assert peel(chain, 4) == (0, 3)
    # Two candidates share all three cells, none of which is ever pure.
    assert peel(np.array([[0, 1, 2], [0, 1, 2]]), 3) == (2, 0)
    assert peel(np.empty((0, 3), np.int64), 3) == (0, 0)


N = 2**17


def support(density):
    return np.flatnonzero(np.random.default_rng(7).random(N) < density)


def cost(non_zeros, hashes, cells):
    """Bits of a filter by the textbook's formula, and of the cells of its false positives."""
    bits = -non_zeros * math.log(0.5**hashes) / math.log(2) ** 2
    return bits + 32 * cells * (N - non_zeros) * 0.5**hashes


@pytest.mark.parametrize("density", [0.001, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("cells", [1.3, 3.0])
def test_no_other_filter_has_fewer_bits(density, cells):
    non_zeros = round(density * N)
    hashes = lhc.best_hashes(non_zeros, N, cells)
    least = cost(non_zeros, hashes, cells) if hashes else N
    assert least == pytest.approx(min(N, *(cost(non_zeros, h, cells) for h in range(1, 33))))


@pytest.mark.parametrize("hashes", [1, 3, 6])
def test_a_filter_passes_its_positions_and_few_others(hashes):
    positions = support(0.02)
    passed = lhc.passing(positions, N, lhc.filter_words(positions.size, hashes), hashes)
    assert np.isin(positions, passed).all()
    others = (passed.size - positions.size) / (N - positions.size)
    assert others == pytest.approx(0.5**hashes, rel=0.1)


@pytest.mark.parametrize("density", [0.0, 0.001, 0.01, 0.2])
def test_the_fewest_words_recover_everything(density):
    positions = support(density)
    best, program = lhc.fewest_words(positions, N), lhc.smallest_lhc(positions, N, index_bits=1)
    assert best.layout.peeled(best.candidates).left_over == 0
    assert np.isin(positions, best.candidates).all()
    assert best.words < program.words(N)
    # A bitmap where it takes fewer bits than any filter.
    assert (best.index_words == N // 32) == (density == 0.2)
