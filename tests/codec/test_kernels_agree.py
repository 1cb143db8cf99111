"""The Numba kernels give the reference's bits at every size, including odd ones, in poisoned memory."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from peelsum.codec import (
    BloomLayout,
    CodecError,
    FixedPoint,
    SketchLayout,
    index_words,
    kernels,
    reference,
    threads,
)
from peelsum.codec.cpu_index_loops import pack

CPU, REFERENCE = kernels("cpu"), kernels("reference")
L = 32
SIZES = [0, 1, 2, L - 1, L, L + 1, 3 * L - 1, 97, 1009, 8191, 8192, 8193, 3 * 8192 + 17, 65537]


def values(n: int, seed: int = 0, density: float = 0.1) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=n) * 10.0 ** rng.integers(-6, 3, n)
    chosen = np.where(rng.random(n) < density, dense, 0.0).astype(np.float32)
    chosen[rng.random(n) < 0.05] = -0.0
    return chosen


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_index_and_positions(n: int, density: float) -> None:
    sample = values(n, density=density)
    ours, truth = np.empty(index_words(n), np.uint32), np.empty(index_words(n), np.uint32)
    assert pack(sample.view(np.uint32), 0, n, ours) == reference.index(sample, truth)
    np.testing.assert_array_equal(ours, truth)
    expected = np.flatnonzero(sample)
    for ops in (CPU, REFERENCE):
        np.testing.assert_array_equal(ops.positions(ours, n), expected)


def test_bit_order_is_least_significant_first() -> None:
    sample = np.zeros(70, np.float32)
    sample[[0, 33, 69]] = [1.0, np.nan, -2.0]
    ours, truth = np.empty(3, np.uint32), np.empty(3, np.uint32)
    pack(sample.view(np.uint32), 0, 70, ours)
    reference.index(sample, truth)
    for out in (ours, truth):
        np.testing.assert_array_equal(out, [1 << 0, 1 << 1, 1 << 5])


@pytest.mark.parametrize("n", [1, 31, 33, 63, 64])
def test_bits_beyond_the_last_element_are_ignored(n: int) -> None:
    full = np.full(3, 0xFFFFFFFF, np.uint32)
    for ops in (CPU, REFERENCE):
        np.testing.assert_array_equal(ops.positions(full, n), np.arange(n))


@pytest.mark.parametrize("n", SIZES)
def test_quantize(n: int) -> None:
    sample, scale = values(n, density=0.9), 11
    expected = [round(float(value) * 2.0**scale) for value in sample]
    for ops in (CPU, REFERENCE):
        out = np.empty(n, np.int32)
        ops.quantize(sample, FixedPoint(scale), out)
        np.testing.assert_array_equal(out, np.array(expected, np.int32))


def test_half_goes_to_even() -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    for ops in (CPU, REFERENCE):
        out = np.empty(6, np.int32)
        ops.quantize(halves, FixedPoint(0), out)
        np.testing.assert_array_equal(out, [0, 2, 2, 0, -2, -2])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("cells_per_candidate", [1.4, 1.3, 0.14, 0.1])
def test_sketch(n: int, cells_per_candidate: float) -> None:
    sample = values(n, seed=n)
    where = np.flatnonzero(sample)
    quantized = np.empty(where.size, np.int32)
    CPU.quantize(sample[where], FixedPoint(20), quantized)
    layout = SketchLayout.sized(where.size, n, cells_per_candidate)
    sketches = [np.empty(layout.cells, np.uint32) for _ in range(2)]
    decoded = [np.full(where.size, 7, np.int32) for _ in range(2)]
    left = []
    for i, ops in enumerate((CPU, REFERENCE)):
        ops.sketch_encode(layout, where, quantized, sketches[i])
        left.append(ops.sketch_decode(layout, sketches[i], where, decoded[i]))
    for results in (sketches, decoded, left):
        np.testing.assert_array_equal(results[0], results[1])
    quantized[left[0]] = 0
    np.testing.assert_array_equal(decoded[0], quantized)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(("segments", "width"), [(1, 200), (2, 90), (16, 6), (128, 2)])
def test_segments(segments: int, width: int, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_CORES", cores)
    monkeypatch.setattr(threads, "PER_CORE", 1)
    rng = np.random.default_rng(segments)
    where = np.sort(rng.choice(5000, 389, replace=False)).astype(np.int64)
    numbers = rng.integers(-(2**31), 2**31, where.size).astype(np.int32)
    layout = SketchLayout(width, 9, segments)
    sketches = [np.full(layout.cells, 7, np.uint32) for _ in range(3)]
    decoded = [np.full(where.size, 7, np.int32) for _ in range(3)]
    left = []
    for i, ops in enumerate((CPU, REFERENCE)):
        ops.sketch_encode(layout, where, numbers, sketches[i])
        left.append(ops.sketch_decode(layout, sketches[i], where, decoded[i]))
    # Independently: every segment is a sketch of its own.
    alone, parts = SketchLayout(width, 9), []
    owners = reference.places(layout, where)[0][:, 0] // alone.cells
    for s in range(segments):
        part = np.flatnonzero(owners == s)
        cells, values = sketches[2][s * alone.cells : (s + 1) * alone.cells], np.empty(part.size, np.int32)
        REFERENCE.sketch_encode(alone, where[part], numbers[part], cells)
        parts.append(part[REFERENCE.sketch_decode(alone, cells, where[part], values)])
        decoded[2][part] = values
    left.append(np.sort(np.concatenate(parts)))
    for results in (sketches, decoded, left):
        np.testing.assert_array_equal(results[0], results[2])
        np.testing.assert_array_equal(results[1], results[2])


def test_read_only_and_foreign_memory_is_read() -> None:
    sample = np.frombuffer(values(97).tobytes(), np.float32)
    assert not sample.flags.writeable
    out = np.empty(97, np.int32)
    CPU.quantize(sample, FixedPoint(3), out)
    np.testing.assert_array_equal(out, np.rint(sample.astype(np.float64) * 8).astype(np.int32))


def test_unknown_implementation_is_refused() -> None:
    with pytest.raises(CodecError, match="'gpux' is unknown; use one of cpu, reference"):
        kernels("gpux")  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [3 * 8192 + 17, 65537, 131072])
def test_cores_share_the_work_and_change_nothing(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = FixedPoint(12)
    sample, first = values(n, seed=n, density=0.5), 2**33
    where, bloom = np.flatnonzero(sample), BloomLayout(3, 500, n)
    outcomes = []
    for cores in (1, 3):
        monkeypatch.setattr(threads, "PER_CORE", 8192)
        monkeypatch.setattr(threads, "_CORES", cores)
        bitmap, passed = np.empty(index_words(n), np.uint32), np.empty(index_words(n), np.uint32)
        filtered = np.empty(bloom.words, np.uint32)
        whole = np.empty(n, np.int32)
        blocks, filled = np.empty(index_words(-(-n // 4)), np.uint32), np.empty_like(bitmap)
        reference.index(sample, bitmap)
        CPU.quantize(sample, fixed, whole)
        CPU.block_encode(bitmap, n, 4, blocks)
        CPU.block_decode(blocks, n, 4, filled)
        CPU.bloom_encode(bloom, bitmap, filtered, first)
        CPU.bloom_decode(bloom, filtered, n, passed, first)
        outcomes.append((bitmap, passed, whole, blocks, filled, filtered))
        np.testing.assert_array_equal(CPU.positions(bitmap, n, first), where + first)
    for one, several in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(one, several)


@pytest.mark.parametrize("words", [1, 2, 3, 31, 1023, 1024, 1025, 3073])
@pytest.mark.parametrize("density", [0.01, 0.4, 0.6, 0.9, 1.0])
def test_bits_are_gathered_and_scattered_alike(words: int, density: float) -> None:
    rng = np.random.default_rng(words)
    for last_bits in range(1, 33):
        bits = rng.random(32 * words) < density
        bits[32 * words - 32 :] = np.arange(32) < last_bits  # so that the last word gets any number of bits
        mask = np.packbits(bits, bitorder="little").view(np.uint32)
        index = rng.integers(0, 2**32, words, np.uint32)
        size = index_words(int(bits.sum()))
        gathered = [np.empty(size, np.uint32) for _ in range(2)]
        scattered = [np.empty(words, np.uint32) for _ in range(2)]
        for i, ops in enumerate((CPU, REFERENCE)):
            ops.gather_bits(index, mask, gathered[i])
            ops.scatter_bits(gathered[i], mask, scattered[i])
        np.testing.assert_array_equal(gathered[0], gathered[1])
        np.testing.assert_array_equal(scattered[0], scattered[1])
        np.testing.assert_array_equal(scattered[0], index & mask)
