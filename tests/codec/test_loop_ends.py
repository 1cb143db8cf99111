"""Compiled loops that handle several elements at once are right where a vector, word or chunk ends.

Outputs lie between guards, which must survive. NumPy computes what is expected.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from peelsum.codec import (
    BloomLayout,
    SketchLayout,
    block_words,
    cpu_index_loops,
    index_words,
    kernels,
)

CPU = kernels("cpu")
GUARD, MARGIN = 0xA5A5A5A5, 64
#: Sizes around a word, 32 words (1,024 elements), a block of floats and a chunk of 1,024 words.
ENDS = [0, 1, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 2079, 8191, 8192, 8193, 32767, 32768, 32769, 65569]
#: None, few, just below and above a bit in 32, many and all.
DENSITIES = [0.0, 0.001, 0.03, 0.04, 0.3, 1.0]


class Guarded:
    """An array of garbage between guards."""

    def __init__(self, count: int, dtype: type[np.generic]) -> None:
        self._all = np.full(2 * MARGIN + count, GUARD, np.int64).astype(dtype)
        self._intact = self._all[:MARGIN].copy()
        self.array = self._all[MARGIN : MARGIN + count]

    def check(self) -> None:
        np.testing.assert_array_equal(self._all[:MARGIN], self._intact)
        np.testing.assert_array_equal(self._all[MARGIN + self.array.size :], self._intact)


def drawn(n: int, density: float) -> NDArray[np.float32]:
    """Return floats, some of which are not zero; with a density, the first and the last two are such."""
    rng = np.random.default_rng([n, int(1000 * density)])
    chosen = rng.random(n) < density
    if density:
        chosen[:1] = chosen[-2:] = True
    return np.where(chosen, rng.standard_normal(n), rng.choice([0.0, -0.0], n)).astype(np.float32)


def packed(chosen: NDArray[np.bool_]) -> NDArray[np.uint32]:
    octets = np.zeros(4 * index_words(chosen.size), np.uint8)
    octets[: -(-chosen.size // 8)] = np.packbits(chosen, bitorder="little")
    return octets.view("<u4").astype(np.uint32)


@pytest.mark.parametrize("n", ENDS)
@pytest.mark.parametrize("density", DENSITIES)
def test_bitmap(n: int, density: float) -> None:
    sample, out = drawn(n, density), Guarded(index_words(n), np.uint32)
    magnitude = cpu_index_loops.pack(sample.view(np.uint32), 0, n, out.array)
    np.testing.assert_array_equal(out.array, packed(sample != 0))
    assert magnitude == np.abs(sample).max(initial=0).view(np.uint32)
    out.check()


@pytest.mark.parametrize("n", ENDS)
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("first", [0, 2**40])
def test_positions(n: int, density: float, first: int) -> None:
    where = np.flatnonzero(drawn(n, density))
    out = Guarded(where.size, np.int64)
    words = packed(np.isin(np.arange(n), where))
    if n % 32:
        words[-1] |= np.uint32(0xFFFFFFFF << n % 32 & 0xFFFFFFFF)  # bits beyond the last element are ignored
    cpu_index_loops.positions(words, n, first, out.array)
    np.testing.assert_array_equal(out.array, first + where)
    out.check()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 39, 40, 41, 63, 64, 65])
@pytest.mark.parametrize("gap", [1, 2, 5, 31, 32])
def test_the_last_positions_are_written_one_by_one(count: int, gap: int) -> None:
    where = gap * np.arange(count)
    n, out = int(where[-1]) + 1, Guarded(count, np.int64)
    cpu_index_loops.positions(packed(np.isin(np.arange(n), where)), n, 0, out.array)
    np.testing.assert_array_equal(out.array, where)
    out.check()


@pytest.mark.parametrize("count", range(1, 33))
def test_the_last_word_may_have_any_number_of_bits(count: int) -> None:
    where, out = np.arange(96 + count), Guarded(96 + count, np.int64)
    cpu_index_loops.positions(packed(np.arange(128) < 96 + count), 128, 0, out.array)
    np.testing.assert_array_equal(out.array, where)
    out.check()


@pytest.mark.parametrize("n", ENDS)
@pytest.mark.parametrize("block", [2, 4, 8, 16, 32, 64, 1024])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.1, 1.0])
def test_blocks(n: int, block: int, density: float) -> None:
    where = np.flatnonzero(drawn(n, density))
    blocks, out = Guarded(block_words(n, block), np.uint32), Guarded(index_words(n), np.uint32)
    CPU.block_encode(packed(np.isin(np.arange(n), where)), n, block, blocks.array)
    used = np.isin(np.arange(-(-n // block)), where // block)
    np.testing.assert_array_equal(blocks.array, packed(used))
    CPU.block_decode(blocks.array, n, block, out.array)
    np.testing.assert_array_equal(out.array, packed(used[np.arange(n) // block]))
    blocks.check()
    out.check()


@pytest.mark.parametrize("n", ENDS)
@pytest.mark.parametrize("density", DENSITIES)
def test_bits_of_candidates(n: int, density: float) -> None:
    rng, mask = np.random.default_rng(n), drawn(n, density) != 0
    chosen = rng.random(n) < 0.5
    k = int(mask.sum())
    bits, out = Guarded(index_words(k), np.uint32), Guarded(index_words(n), np.uint32)
    CPU.gather_bits(packed(chosen), packed(mask), bits.array)
    np.testing.assert_array_equal(bits.array, packed(chosen[mask]))
    CPU.scatter_bits(bits.array, packed(mask), out.array)
    np.testing.assert_array_equal(out.array, packed(chosen & mask))
    bits.check()
    out.check()


@pytest.mark.parametrize("n", ENDS)
@pytest.mark.parametrize("density", [0.0, 0.001, 0.1])
@pytest.mark.parametrize("hashes", [1, 7])
def test_filters(n: int, density: float, hashes: int) -> None:
    where, first = np.flatnonzero(drawn(n, density)), 64
    layout, index = BloomLayout.sized(where.size, hashes, n), packed(np.isin(np.arange(n), where))
    truth, passed = np.empty(layout.words, np.uint32), np.empty(index_words(n), np.uint32)
    kernels("reference").bloom_encode(layout, index, truth, first)
    kernels("reference").bloom_decode(layout, truth, n, passed, first)
    words, out = Guarded(layout.words, np.uint32), Guarded(index_words(n), np.uint32)
    CPU.bloom_encode(layout, index, words.array, first)
    np.testing.assert_array_equal(words.array, truth)
    CPU.bloom_decode(layout, truth, n, out.array, first)
    np.testing.assert_array_equal(out.array, passed)
    words.check()
    out.check()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000])
@pytest.mark.parametrize("cells_per_candidate", [0.2, 1.1, 1.4])
def test_ends_of_peeling(count: int, cells_per_candidate: float) -> None:
    """Peeled candidates have their values. The left-over is the reference's, with values of 0."""
    rng, where = np.random.default_rng(count), 5 * np.arange(count)
    numbers = rng.integers(-(2**31), 2**31, count).astype(np.int32)
    layout = SketchLayout.sized(count, count, cells_per_candidate)
    sketch = np.empty(layout.cells, np.uint32)
    CPU.sketch_encode(layout, where, numbers, sketch)
    wanted = numbers.copy()
    left = kernels("reference").sketch_decode(layout, sketch, where, np.empty_like(wanted))
    wanted[left] = 0
    out = Guarded(count, np.int32)
    np.testing.assert_array_equal(CPU.sketch_decode(layout, sketch, where, out.array), left)
    np.testing.assert_array_equal(out.array, wanted)
    out.check()


def test_code_is_compiled_again_after_a_change_of_what_it_contains(monkeypatch: pytest.MonkeyPatch) -> None:
    given: set[str] = set()

    def compiler(sources: Iterable[Path], options: object) -> Callable[[object], object]:
        given.update(source.name for source in sources)
        return lambda function: function

    monkeypatch.setattr("peelsum.wire.compiled.compiler", compiler)
    runpy.run_path(str(cpu_index_loops.__file__))
    loops = {"cpu_segment_loops.py", "cpu_index_loops.py", "cpu_loops.py", "cpu_sketch_loops.py"}
    assert given >= loops | {"cpu_prefetch.py", "cpu_vectors.py"}
    assert given >= {"block_scales.py", "fixed_point.py", "layout.py"}
