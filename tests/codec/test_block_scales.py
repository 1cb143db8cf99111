"""Workers agree on each block's exponent from OR-ed words; it is never below that of any worker."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sums_of_floats import finest, scales_of

from peelsum.allreduce.history_loops import (
    COARSEST,
    FEWEST_BITS,
    MARGIN,
    flag_blocks,
    predict_exponents,
    update_exponents,
    write_exponents,
)
from peelsum.codec import device
from peelsum.codec.cpu.scales import decode_scales, encode_scales, power_of_two
from peelsum.codec.fixed_point import ZERO
from peelsum.codec.reference import segments as reference
from peelsum.codec.segments import Segment, SegmentTable

SIZES = [1, 31, 32, 33, 1023, 1025, 8193]
IMPLEMENTATIONS = ["reference", "cpu"]


def drawn(n, worker, octaves):
    """Blocks of 32 elements of magnitudes 2**-octaves to 1, one in four of them zero."""
    rng = np.random.default_rng([n, worker, octaves])
    blocks = 2.0 ** -rng.integers(0, octaves + 1, n // 32 + 1) * (rng.random(n // 32 + 1) < 0.75)
    values = (np.repeat(blocks, 32)[:n] * rng.standard_normal(n)).astype(np.float32)
    values[0] = 1.0
    return values


def agreed(implementation, tensors, block):
    """Return a codec that has read the words of all workers, each with its list of tensors."""
    table = SegmentTable([Segment(values.size, sparse=False, block=block) for values in tensors[0]])
    segments, out = device(implementation).segments, [None] * len(table)
    codecs = [segments(table, values, out, len(tensors)) for values in tensors]
    ored = np.zeros(table.scale_words, np.uint32)
    for codec in codecs:
        words = np.full(table.scale_words, 0xDEADBEEF, np.uint32)
        codec.write_scales(words)
        ored |= words
    codecs[0].read_scales(ored)
    return codecs[0]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("block", [32, 256, 2**15])
@pytest.mark.parametrize("octaves", [3, 40, 90])
def test_scales_are_those_of_the_rules(implementation, block, octaves):
    tensors = [[drawn(n, worker, octaves) for n in SIZES] for worker in range(3)]
    tensors[2] = [values * np.float32(2.0**-50) for values in tensors[2]]
    expected = [scales_of(list(arrays), block)[::block] for arrays in zip(*tensors, strict=True)]
    np.testing.assert_array_equal(agreed(implementation, tensors, block).scales, np.concatenate(expected))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_no_scale_is_too_fine_whatever_the_exponents(implementation, data):
    """Even where workers' largest values are so far apart that levels are mistaken for others."""
    bits = st.integers(0, 0x7F7FFFFF)
    workers = [
        np.array(data.draw(st.lists(bits, min_size=96, max_size=96)), np.uint32).view(np.float32)
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    scales = agreed(implementation, [[one] for one in workers], 32).scales
    for values in workers:
        fields = values.reshape(3, 32).view(np.uint32).max(1) >> 23
        for field, used, scale in zip(fields.tolist(), values.reshape(3, 32).any(1), scales, strict=True):
            assert not used or scale <= finest(field, len(workers))


@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_loops_write_the_words_of_the_definition(data):
    """Any magnitudes, and any words, also such as no worker writes."""
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    firsts = np.cumsum([0, *lengths])
    word = st.one_of(st.just(0), st.integers(0, 0x7FFFFFFF), st.integers(0, 30).map(lambda bit: 1 << bit))
    count = int(firsts[-1])
    magnitudes = np.array(data.draw(st.lists(word, min_size=count, max_size=count)), np.uint32)
    segments, blocks = reference.encode_scales(magnitudes, firsts)
    ours = np.full(len(lengths), 7, np.uint32), magnitudes.copy()
    encode_scales(firsts, ours[1], ours[0], ours[1])
    np.testing.assert_array_equal(ours[0], segments)
    np.testing.assert_array_equal(ours[1], blocks)
    if data.draw(st.booleans()):
        segments |= np.uint32(data.draw(word))
        blocks = magnitudes | blocks
    fields, levels = reference.decode_scales(segments, blocks, firsts)
    found, scales = np.full(len(lengths), 7, np.int32), np.full(count, 7, np.int32)
    decode_scales(segments, blocks, firsts, 100, found, scales)
    np.testing.assert_array_equal(found, fields)
    np.testing.assert_array_equal(scales, 100 - levels)
    for scale in scales.tolist():
        assert (power_of_two(scale), power_of_two(-scale)) == (2.0**scale, 2.0**-scale)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_zeros_and_non_finite_values_are_told_apart(implementation):
    tensors = [[np.full(70, value, np.float32) for value in (-0.0, 1.0, 3e38, 1e-45)] for _ in range(2)]
    tensors[1][1][69] = np.nan
    tensors[0][2][0] = -np.inf
    assert agreed(implementation, tensors, 32).fields.tolist() == [ZERO, 255, 255, 8]


@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_loops_compare_blocks_with_what_was_expected_of_them(data):
    """As NumPy does, of any fields, scales and words."""
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    firsts, count = np.cumsum([0, *lengths]), sum(lengths)

    def drawn(numbers, size=count):
        return np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.int32)

    field, highest, bits = st.integers(0, 254), 155, data.draw(st.integers(20, 30))
    words = drawn(st.sampled_from([0, 1, 2**30])).view(np.uint32)
    fields = drawn(st.sampled_from([ZERO, 255, 130]), len(lengths))
    actual, expected_fields, kept = highest - drawn(field), drawn(field), drawn(field)

    levels = np.full(count, -7, np.int32)
    write_exponents(words, firsts, fields, actual, highest, levels)
    summed = np.repeat((fields != ZERO) & (fields != 255), lengths)
    np.testing.assert_array_equal(levels, np.where(summed & (words != 0), highest - actual, 0))

    scales, bounds, flags = actual.copy(), np.full(count, -7, np.int32), np.zeros((2, count), np.bool)
    levels[:] = -7
    count_again = flag_blocks(
        words, firsts, fields, levels, expected_fields, highest, bits, scales, bounds, *flags
    )
    np.testing.assert_array_equal(levels, np.where(summed & (words != 0), highest - actual, 0))
    coarsest = np.repeat(np.maximum.reduceat(levels, firsts[:-1]), lengths) + COARSEST
    coarse = (levels < expected_fields - bits + FEWEST_BITS) | (expected_fields > coarsest)
    again = (levels > expected_fields + bits - 1) | ((levels > 0) & coarse)
    assert count_again == again.sum()
    np.testing.assert_array_equal(flags[0], (words != 0) & (highest - actual > expected_fields))
    np.testing.assert_array_equal(flags[1], again)
    np.testing.assert_array_equal(scales, np.where(again | (levels <= 0), actual, highest - expected_fields))
    np.testing.assert_array_equal(bounds, np.minimum(scales, actual))

    largest = np.repeat(np.maximum.reduceat(kept, firsts[:-1]), lengths)
    out = np.full(count, -7, np.int32)
    predict_exponents(kept, firsts, out)
    np.testing.assert_array_equal(out, np.minimum(np.where(kept > 0, kept + MARGIN, largest), 254))

    learned = kept.copy()
    update_exponents(learned, levels, firsts)
    fallen = np.maximum(kept - levels, 0) // 2
    largest = np.repeat(np.maximum.reduceat(levels, firsts[:-1]), lengths)
    most = np.where(largest > 0, largest + COARSEST - MARGIN, 255)
    np.testing.assert_array_equal(learned, np.minimum(np.where(levels > 0, levels + fallen, kept), most))
