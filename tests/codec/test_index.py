"""Every index form is OR-homomorphic, loses no element, and has the same bits in every implementation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from peelsum.codec import BLOCK_SIZES, BloomLayout, CodecError, Kernels, block_words, index_words, kernels
from peelsum.codec.layout import MIX_STEP, mix

Support = Callable[[np.random.Generator, int, int], NDArray[np.int64]]
Words = NDArray[np.uint32]
ALL = [kernels("reference"), kernels("cpu")]
IMPLEMENTATIONS = pytest.mark.parametrize("ops", ALL, ids=["reference", "cpu"])
BLOCKS = [2, 4, 8, 16, 32, 64, 128, 4096]
SIZES = [0, 1, 31, 32, 33, 97, 4097, 20011]


def bitmap(elements: int, where: NDArray[np.int64]) -> Words:
    """Return the expected bitmap by NumPy's own packing, little-endian in bits and bytes."""
    bits = np.zeros(32 * index_words(elements), np.uint8)
    bits[where] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def set_bits(words: Words) -> list[int]:
    return np.flatnonzero(np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")).tolist()


def blank(words: int) -> Words:
    """Return an array of garbage that a kernel must overwrite."""
    return np.full(words, 0xA5A5A5A5, np.uint32)


def filtered(ops: Kernels, layout: BloomLayout, index: Words, elements: int, first: int = 0) -> Words:
    words, out = blank(layout.words), blank(index.size)
    ops.bloom_encode(layout, index, words, first)
    ops.bloom_decode(layout, words, elements, out, first)
    return out


@IMPLEMENTATIONS
@pytest.mark.parametrize("n", SIZES)
def test_blocks_hold_what_they_say(ops: Kernels, support: Support, n: int) -> None:
    where = support(np.random.default_rng(n), n, 32)
    for block in BLOCKS:
        blocks, out = blank(block_words(n, block)), blank(index_words(n))
        ops.block_encode(bitmap(n, where), n, block, blocks)
        assert set_bits(blocks) == sorted(set((where // block).tolist()))
        ops.block_decode(blocks, n, block, out)
        expected = np.isin(np.arange(n) // block, where // block)
        np.testing.assert_array_equal(out, bitmap(n, np.flatnonzero(expected)))


@IMPLEMENTATIONS
@pytest.mark.parametrize("base", [0, 2**33])
def test_occupied_blocks_are_counted(ops: Kernels, support: Support, base: int) -> None:
    for n in SIZES:
        where = support(np.random.default_rng(n), n, 32) + base
        counted = ops.occupied(where).tolist()
        assert counted == [len({int(i) // 2**b for i in where}) for b in range(BLOCK_SIZES)]


@IMPLEMENTATIONS
@pytest.mark.parametrize("n", SIZES)
def test_gathered_bits_scatter_back(ops: Kernels, support: Support, n: int) -> None:
    rng = np.random.default_rng(n)
    mask_at = support(rng, n, 32)
    chosen = rng.random(mask_at.size) < 0.4
    index, mask = bitmap(n, rng.permutation(n)[: n // 3]), bitmap(n, mask_at)
    both = bitmap(n, mask_at[chosen]) | (index & ~mask)
    bits, out = blank(index_words(mask_at.size)), blank(index_words(n))
    ops.gather_bits(both, mask, bits)
    assert set_bits(bits) == np.flatnonzero(chosen).tolist()
    ops.scatter_bits(bits, mask, out)
    np.testing.assert_array_equal(out, both & mask)


@IMPLEMENTATIONS
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("hashes", [1, 2, 5, 32])
def test_a_filter_lets_everything_pass_that_is_in_it(
    ops: Kernels, support: Support, n: int, hashes: int
) -> None:
    where = support(np.random.default_rng(n), n, 32)
    index = bitmap(n, where)
    passed = filtered(ops, BloomLayout.sized(where.size, hashes, n), index, n)
    assert not (index & ~passed).any()
    assert all(element < n for element in set_bits(passed))


def test_false_positives_are_as_rare_as_promised() -> None:
    n, rng = 1 << 21, np.random.default_rng(3)
    for chosen in (rng.random(n) < 0.01, np.repeat(rng.random(n // 64) < 0.01, 64), np.arange(n) % 128 == 5):
        where = np.flatnonzero(chosen)
        for hashes in (1, 4, 8):
            layout = BloomLayout.sized(where.size, hashes, 9)
            passed = len(set_bits(filtered(ALL[1], layout, bitmap(n, where), n))) - where.size
            assert passed / n == pytest.approx(2.0**-hashes, rel=0.1)


@IMPLEMENTATIONS
def test_a_filter_too_small_lets_all_pass(ops: Kernels) -> None:
    n = 10_007
    index = bitmap(n, np.arange(0, n, 3))
    passed = filtered(ops, BloomLayout(3, 1, 7), index, n)
    np.testing.assert_array_equal(passed, bitmap(n, np.arange(n)))
    bits, out = blank(index_words(n)), blank(index_words(n))
    ops.gather_bits(index, passed, bits)
    ops.scatter_bits(bits, passed, out)
    np.testing.assert_array_equal(out, index)


@IMPLEMENTATIONS
def test_filter_places_are_those_of_the_definition(ops: Kernels) -> None:
    """Compare the layout with one computed in Python's integers, far beyond 2**31 elements."""
    layout = BloomLayout(5, 11, 2**63 + 12345)
    for element in (0, 31, 32, 1000, 2**31 + 7, 2**38 + 45):
        word, bit = divmod(element, 32)
        out = blank(layout.words)
        ops.bloom_encode(layout, np.array([1 << bit], np.uint32), out, first=32 * word)
        expected = set()
        mixed = mix((word * MIX_STEP + layout.seed) % 2**64)
        for j in range(5):
            hashed = (mixed + j * (mixed >> 32 | 1)) % 2**32
            expected.add(32 * (11 * j + (hashed * 11 >> 32)) + (bit + hashed % 32) % 32)
        assert set_bits(out) == sorted(expected)
        back = blank(1)
        ops.bloom_decode(layout, out, 32, back, first=32 * word)
        assert back[0] >> bit & 1
        np.testing.assert_array_equal(
            ops.positions(np.array([1 << bit], np.uint32), 32, 32 * word), [element]
        )


@settings(deadline=None, derandomize=True, max_examples=60)
@given(data=st.data())
def test_forms_are_homomorphic_and_alike(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 3000))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    density = data.draw(st.sampled_from([0.0, 0.003, 0.05, 0.5, 1.0]))
    workers = [
        bitmap(n, np.flatnonzero(rng.random(n) < density)) for _ in range(data.draw(st.integers(1, 4)))
    ]
    union = np.bitwise_or.reduce(workers)
    block = 1 << data.draw(st.integers(1, 9))
    rows = data.draw(st.integers(1, 40))
    layout = BloomLayout(data.draw(st.integers(1, 32)), rows, data.draw(st.integers(0, 2**64 - 1)))
    masks = []
    for ops in ALL:
        for size, encode in (
            (block_words(n, block), lambda index, out, ops=ops: ops.block_encode(index, n, block, out)),
            (layout.words, lambda index, out, ops=ops: ops.bloom_encode(layout, index, out)),
        ):
            parts, whole = [blank(size) for _ in workers], blank(size)
            for index, part in zip(workers, parts, strict=True):
                encode(index, part)
            encode(union, whole)
            np.testing.assert_array_equal(np.bitwise_or.reduce(parts), whole)
            masks.append(whole)
        masks.append(filtered(ops, layout, union, n))
    for reference, cpu in zip(masks[:3], masks[3:], strict=True):
        np.testing.assert_array_equal(reference, cpu)


@pytest.mark.parametrize(
    ("hashes", "rows", "seed", "field"),
    [(0, 1, 0, "hashes"), (33, 1, 0, "hashes"), (1, 0, 0, "rows"), (1, 2**27, 0, "rows"), (1, 1, -1, "seed")],
)
def test_impossible_filters_are_refused(hashes: int, rows: int, seed: int, field: str) -> None:
    with pytest.raises(CodecError, match=f"^{field}: .*; use "):
        BloomLayout(hashes, rows, seed)


def test_filters_for_any_number_of_candidates_can_be_laid_out() -> None:
    assert BloomLayout.sized(0, 1, 0).rows == 1
    assert BloomLayout.sized(2**40, 32, 0).rows == BloomLayout.sized(2**50, 32, 0).rows == 2**27 - 1


@pytest.mark.parametrize("block", [-2, 0, 1, 3, 48])
def test_impossible_blocks_are_refused(block: int) -> None:
    with pytest.raises(CodecError, match=r"^block: .*; use a power of 2"):
        block_words(100, block)
