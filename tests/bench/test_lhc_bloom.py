"""LHC's fewest words: the filter's formula, its false positives, and tables that recover everything."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.rivals.lhc import smallest_lhc
from benchmarks.rivals.lhc_bloom import best_hashes, fewest_words, filter_words, passing

N = 2**17


def support(density: float) -> np.ndarray:
    return np.flatnonzero(np.random.default_rng(7).random(N) < density)


def cost(non_zeros: int, hashes: int, cells: float) -> float:
    """Bits of a filter by the textbook's formula, and of the cells of its false positives."""
    bits = -non_zeros * math.log(0.5**hashes) / math.log(2) ** 2
    return bits + 32 * cells * (N - non_zeros) * 0.5**hashes


@pytest.mark.parametrize("density", [0.001, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("cells", [1.3, 3.0])
def test_no_other_filter_has_fewer_bits(density: float, cells: float) -> None:
    non_zeros = round(density * N)
    hashes = best_hashes(non_zeros, N, cells)
    least = cost(non_zeros, hashes, cells) if hashes else N
    assert least == pytest.approx(min(N, *(cost(non_zeros, h, cells) for h in range(1, 33))))


@pytest.mark.parametrize("hashes", [1, 3, 6])
def test_a_filter_passes_its_positions_and_few_others(hashes: int) -> None:
    positions = support(0.02)
    passed = passing(positions, N, filter_words(positions.size, hashes), hashes)
    assert np.isin(positions, passed).all()
    others = (passed.size - positions.size) / (N - positions.size)
    assert others == pytest.approx(0.5**hashes, rel=0.1)


@pytest.mark.parametrize("density", [0.0, 0.001, 0.01, 0.2])
def test_the_fewest_words_recover_everything(density: float) -> None:
    positions = support(density)
    best, program = fewest_words(positions, N), smallest_lhc(positions, N, index_bits=1)
    assert best is not None
    assert program is not None
    assert best.layout.peeled(best.candidates).left_over == 0
    assert np.isin(positions, best.candidates).all()
    assert best.words < program.words(N)
    # A bitmap where it takes fewer bits than any filter.
    assert (best.index_words == N // 32) == (density == 0.2)
