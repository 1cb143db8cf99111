"""Index forms: OR-homomorphic, without loss, and with the same bits on every device.

Loops that handle several elements at once must be right where a vector, word or chunk ends. Outputs lie
between guards, which must survive. NumPy computes what is expected.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poison import Guarded

from peelsum.codec import (
    BLOCK_SIZES,
    BloomLayout,
    CodecError,
    FixedPoint,
    block_words,
    device,
    index_words,
    occupied,
    quantize,
    threads,
)
from peelsum.codec.cpu import index as cpu_index
from peelsum.codec.layout import MIX_STEP, mix
from peelsum.codec.reference import index as reference

CPU, REFERENCE = device("cpu"), device("reference")
#: Sizes around a word, 32 words (1,024 elements), a block of floats and a chunk of 1,024 words.
ENDS = [0, 1, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 2079, 8191, 8192, 8193, 32767, 32768, 32769, 65569]
#: None, few, just below and above a bit in 32, many and all.
DENSITIES = [0.0, 0.001, 0.03, 0.04, 0.3, 1.0]
#: A first element far beyond 2**31, so that large element numbers are tested without large tensors.
FAR = 2**40 + 32


def ends(ops):
    """Return sizes of tensors: few of them for the interpreter of a GPU's kernels, which is slow."""
    return [0, 1, 33, 1024, 9001] if getattr(ops, "interpreted", False) else ENDS


def drawn(n, density):
    """Return floats, some of which are not zero; with a density, the first and the last two are such."""
    rng = np.random.default_rng([n, int(1000 * density)])
    chosen = rng.random(n) < density
    if density:
        chosen[:1] = chosen[-2:] = True
    return np.where(chosen, rng.standard_normal(n), rng.choice([0.0, -0.0], n)).astype(np.float32)


def packed(chosen):
    """Return the expected bitmap by NumPy's own packing, little-endian in bits and bytes."""
    octets = np.zeros(4 * index_words(chosen.size), np.uint8)
    octets[: -(-chosen.size // 8)] = np.packbits(chosen, bitorder="little")
    return octets.view("<u4").astype(np.uint32)


def set_bits(words):
    return np.flatnonzero(np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")).tolist()


def filtered(ops, layout, index, elements, first=0):
    """Return what passes a filter of an index; the guards of both arrays must survive."""
    words, out = Guarded(layout.words), Guarded(index.size)
    ops.bloom_encode(layout, index, words.array, first)
    ops.bloom_decode(layout, words.array, elements, out.array, first)
    words.check(words.array)
    out.check(out.array)
    return out.array


@pytest.mark.parametrize("density", DENSITIES)
def test_bitmap(density):
    for n in ENDS:
        sample, out = drawn(n, density), Guarded(index_words(n))
        magnitude = cpu_index.write_bitmap(sample.view(np.uint32), 0, n, False, out.array)
        out.check(packed(sample != 0))
        assert magnitude == np.abs(sample).max(initial=0).view(np.uint32)
        truth = np.empty(index_words(n), np.uint32)
        assert reference.index(sample, truth) == magnitude
        np.testing.assert_array_equal(truth, out.array)


@pytest.mark.parametrize("density", DENSITIES)
def test_positions(ops, density):
    for n in ends(ops):
        where = np.flatnonzero(drawn(n, density))
        words = packed(np.isin(np.arange(n), where))
        if n % 32:
            # Bits beyond the last element are ignored.
            words[-1] |= np.uint32(0xFFFFFFFF << n % 32 & 0xFFFFFFFF)
        for first in (0, FAR):
            result = ops.positions(np.append(words, ~words[:1]), n, first)
            np.testing.assert_array_equal(result, first + where)
        np.testing.assert_array_equal(ops.positions(words, n, FAR, where.size), FAR + where)


def test_the_last_positions_are_written_one_by_one():
    """Into memory without room for eight more, of any distance and number in the last word."""
    cases = [gap * np.arange(count) for gap in (1, 2, 5, 31, 32) for count in (1, 31, 32, 33, 39, 40, 41, 65)]
    for where in [*cases, *(np.arange(96 + count) for count in range(1, 33))]:
        n, out = int(where[-1]) + 1, Guarded(where.size, np.int64)
        cpu_index.positions(packed(np.isin(np.arange(n), where)), n, 0, out.array)
        out.check(where)


@pytest.mark.parametrize("block", [2, 4, 8, 16, 32, 64, 128, 1024, 4096, 2**14])
def test_blocks(ops, block):
    for n in ends(ops):
        for density in (0.0, 0.001, 0.1, 1.0) if ends(ops) is ENDS else (0.01,):
            where = np.flatnonzero(drawn(n, density))
            blocks, out = Guarded(block_words(n, block)), Guarded(index_words(n))
            ops.block_encode(packed(np.isin(np.arange(n), where)), n, block, blocks.array)
            used = np.isin(np.arange(-(-n // block)), where // block)
            blocks.check(packed(used))
            ops.block_decode(blocks.array, n, block, out.array)
            out.check(packed(used[np.arange(n) // block]))


@pytest.mark.parametrize("density", DENSITIES)
def test_occupied_blocks_are_counted(density):
    for n in ENDS[:-3]:
        numbers = (drawn(n, density) != 0).astype(np.int32)
        where = np.flatnonzero(numbers)
        expected = [len({i // 2**b for i in where.tolist()}) for b in range(BLOCK_SIZES)]
        assert occupied(-numbers).tolist() == reference.occupied(where).tolist() == expected


@pytest.mark.parametrize("density", DENSITIES)
def test_bits_of_candidates(ops, density):
    for n in ends(ops):
        mask, chosen = drawn(n, density) != 0, np.random.default_rng(n).random(n) < 0.5
        gathered_and_scattered(ops, mask, chosen)


def gathered_and_scattered(ops, mask, chosen):
    bits, out = Guarded(index_words(int(mask.sum()))), Guarded(index_words(mask.size))
    ops.gather_bits(packed(chosen), packed(mask), bits.array)
    bits.check(packed(chosen[mask]))
    ops.scatter_bits(bits.array, packed(mask), out.array)
    out.check(packed(chosen & mask))


@pytest.mark.parametrize("words", [1, 2, 31, 1023, 1024, 1025])
def test_the_last_word_may_have_any_number_of_candidates(words):
    rng = np.random.default_rng(words)
    for last_bits in range(1, 33):
        mask = rng.random(32 * words) < [0.01, 0.4, 0.6, 0.9, 1.0][last_bits % 5]
        mask[-32:] = np.arange(32) < last_bits
        gathered_and_scattered(CPU, mask, rng.random(32 * words) < 0.5)


@pytest.mark.parametrize(("density", "hashes"), [(0.0, 7), (0.001, 1), (0.001, 32), (0.1, 2)])
def test_a_filter_lets_everything_pass_that_is_in_it(ops, density, hashes):
    """And what the reference lets pass."""
    for n in ends(ops):
        where = np.flatnonzero(drawn(n, density))
        layout, index = BloomLayout.sized(where.size, hashes, n), packed(np.isin(np.arange(n), where))
        passed = filtered(ops, layout, index, n, FAR)
        np.testing.assert_array_equal(passed, filtered(REFERENCE, layout, index, n, FAR))
        assert not (index & ~passed).any()
        assert all(element < n for element in set_bits(passed))


def blank(words):
    """Return an array of garbage that a kernel must overwrite."""
    return np.full(words, 0xA5A5A5A5, np.uint32)


def test_false_positives_are_as_rare_as_promised():
    n, rng = 1 << 21, np.random.default_rng(3)
    for chosen in (rng.random(n) < 0.01, np.repeat(rng.random(n // 64) < 0.01, 64), np.arange(n) % 128 == 5):
        where = np.flatnonzero(chosen)
        for hashes in (1, 4, 8):
            layout = BloomLayout.sized(where.size, hashes, 9)
            passed = len(set_bits(filtered(CPU, layout, packed(chosen), n))) - where.size
            assert passed / n == pytest.approx(2.0**-hashes, rel=0.1)


def test_a_filter_too_small_lets_all_pass(ops):
    n = 10_007
    index = packed(np.arange(n) % 3 == 0)
    passed = filtered(ops, BloomLayout(3, 1, 7), index, n)
    np.testing.assert_array_equal(passed, packed(np.ones(n, np.bool_)))


def test_filter_places_are_those_of_the_definition(ops):
    """Compare the layout with one computed in Python's integers, far beyond 2**31 elements."""
    layout = BloomLayout(5, 11, 2**63 + 12345)
    for element in (0, 31, 1000, 2**31 + 7, 2**38 + 45):
        word, bit = divmod(element, 32)
        out, index = blank(layout.words), np.array([1 << bit], np.uint32)
        ops.bloom_encode(layout, index, out, 32 * word)
        expected = set()
        mixed = mix((word * MIX_STEP + layout.seed) % 2**64)
        for j in range(5):
            hashed = (mixed + j * (mixed >> 32 | 1)) % 2**32
            expected.add(32 * (11 * j + (hashed * 11 >> 32)) + (bit + hashed % 32) % 32)
        assert set_bits(out) == sorted(expected)
        back = blank(1)
        ops.bloom_decode(layout, out, 32, back, 32 * word)
        assert back[0] >> bit & 1


@settings(deadline=None, derandomize=True, max_examples=60)
@given(data=st.data())
def test_forms_are_homomorphic_and_alike(data):
    n = data.draw(st.integers(0, 3000))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    density = data.draw(st.sampled_from([0.0, 0.003, 0.05, 0.5, 1.0]))
    workers = [packed(rng.random(n) < density) for _ in range(data.draw(st.integers(1, 4)))]
    union = np.bitwise_or.reduce(workers)
    block = 1 << data.draw(st.integers(1, 9))
    rows = data.draw(st.integers(1, 40))
    layout = BloomLayout(data.draw(st.integers(1, 32)), rows, data.draw(st.integers(0, 2**64 - 1)))
    masks = []
    for ops in (REFERENCE, CPU):
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
    for ours, truth in zip(masks[3:], masks[:3], strict=True):
        np.testing.assert_array_equal(ours, truth)


@pytest.mark.parametrize("n", [3 * 8192 + 17, 65537, 131072])
def test_cores_share_the_work_and_change_nothing(n, monkeypatch):
    sample, outcomes, bloom = drawn(n, 0.5), [], BloomLayout(3, 500, n)
    bitmap = packed(sample != 0)
    monkeypatch.setattr(threads, "PER_CORE", 8192)
    for cores in (1, 3):
        monkeypatch.setattr(threads, "_CORES", cores)
        numbers, blocks, filled = np.empty(n, np.int32), blank(index_words(-(-n // 4))), blank(bitmap.size)
        quantize(sample, FixedPoint(12), numbers)
        CPU.block_encode(bitmap, n, 4, blocks)
        CPU.block_decode(blocks, n, 4, filled)
        passed = filtered(CPU, bloom, bitmap, n, FAR)
        outcomes.append((numbers, blocks, filled, passed))
        np.testing.assert_array_equal(CPU.positions(bitmap, n, FAR), np.flatnonzero(sample) + FAR)
    for by_one, by_several in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(by_one, by_several)


@pytest.mark.parametrize(
    ("hashes", "rows", "seed", "field"),
    [(0, 1, 0, "hashes"), (33, 1, 0, "hashes"), (1, 0, 0, "rows"), (1, 2**27, 0, "rows"), (1, 1, -1, "seed")],
)
def test_impossible_filters_are_refused(hashes, rows, seed, field):
    with pytest.raises(CodecError, match=f"^{field}: .*; use "):
        BloomLayout(hashes, rows, seed)


def test_filters_for_any_number_of_candidates_can_be_laid_out():
    assert BloomLayout.sized(0, 1, 0).rows == 1
    assert BloomLayout.sized(2**40, 32, 0).rows == BloomLayout.sized(2**50, 32, 0).rows == 2**27 - 1


@pytest.mark.parametrize("block", [-2, 0, 1, 3, 48])
def test_impossible_blocks_are_refused(block):
    with pytest.raises(CodecError, match=r"^block: .*; use a power of 2"):
        block_words(100, block)
