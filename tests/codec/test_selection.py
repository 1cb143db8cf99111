"""Values of selected elements: the same numbers by bitmap and by positions, and nothing else written."""

from __future__ import annotations

import numpy as np
import pytest

from peelsum.codec import FixedPoint, Packed, Selection, cpu, kernels, threads
from peelsum.codec.cpu_vectors import PACKS_FLOATS

CPU, REFERENCE = kernels(), kernels("reference")
_SENTINEL = 77


def _selection(n: int, density: float, seed: int, stray: int = 0) -> tuple[Selection, np.ndarray]:
    """Return a selection of about this share of n elements, and its positions; set bits beyond n, too."""
    chosen = np.random.default_rng(seed).random(n) < density
    bits = np.zeros(-(-n // 32) * 32, np.bool_)
    bits[:n], bits[n : n + stray] = chosen, True
    where = np.flatnonzero(chosen)
    bitmap = np.packbits(bits, bitorder="little").view(np.uint32)
    return Selection(where.size, lambda: where, bitmap), where


def _fixed(n: int, block: int | None, seed: int) -> FixedPoint:
    if block is None:
        return FixedPoint(16)
    octaves = np.random.default_rng(seed).integers(0, 6, -(-n // block)).astype(np.int32)
    return FixedPoint(16, octaves, block)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32, 33, 4095, 4096, 4097, 4128, 8192, 12321])
@pytest.mark.parametrize("block", [None, 32, 64, 4096, 65536])
@pytest.mark.parametrize("packs", [False, True])
def test_gather_and_scatter(n: int, block: int | None, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PACKS_FLOATS", packs and PACKS_FLOATS)
    rng, fixed = np.random.default_rng(n), _fixed(n, block, n)
    for density in (0.0, 0.02, 0.05, 0.5, 1.0):
        selection, where = _selection(n, density, n, stray=3)
        k, values = where.size, (rng.standard_normal(n) * 100).astype(np.float32)
        numbers = np.full(k, _SENTINEL, np.int32)
        CPU.gather(values, selection, fixed, numbers)
        scales = fixed.scales_at(where)
        exact = np.rint(values[where] * np.ldexp(1.0, scales))  # a power of 2 times 24 bits fits float64
        np.testing.assert_array_equal(numbers, exact.astype(np.int64))
        for divisor in (1, 3, 8):
            for clear in (False, True):
                # Nothing around `out` may be written.
                room = np.full(n + 64, _SENTINEL, np.float32)
                out = room[32 : 32 + n]
                out[:] = np.nan if clear else 0.0
                CPU.scatter(numbers, selection, fixed, divisor, out, clear=clear)
                expected = np.full(n + 64, _SENTINEL, np.float32)
                expected[32 : 32 + n] = 0.0
                quotients = numbers.astype(np.float64) * np.ldexp(1.0, -scales) / divisor
                expected[32 + where] = quotients.astype(np.float32)
                np.testing.assert_array_equal(room.view(np.uint32), expected.view(np.uint32))


@pytest.mark.skipif(not PACKS_FLOATS, reason="non-zeros are packed by AVX-512 only")
@pytest.mark.parametrize("n", [1, 31, 32, 33, 4095, 4097, 8191, 8193, 70_003])
@pytest.mark.parametrize("block", [32, 4096, 65536])
@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("room", [8300, 2**20])
def test_packed_non_zeros(
    n: int, block: int, over: bool, cores: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensor is overwritten after its non-zeros are packed, so that nothing can be read from it again."""
    monkeypatch.setattr(threads, "PER_CORE", 8192)
    monkeypatch.setattr(threads, "_CORES", cores)
    monkeypatch.setattr(cpu, "_PACKED", room)
    rng = np.random.default_rng(n)
    for density, others in [(0.0, 0.3), (0.02, 0.0), (0.02, 0.5), (0.3, 0.0), (0.3, 0.1), (1.0, 0.0)]:
        values = (rng.standard_normal(n) * 100).astype(np.float32)
        zero = rng.random(n) >= density
        values[zero] = rng.choice(np.array([0.0, -0.0], np.float32), n)[zero]
        chosen = np.zeros(-(-n // 32) * 32, np.bool_)
        chosen[:n] = (values != 0) | (rng.random(n) < others)
        where = np.flatnonzero(chosen)
        chosen[n : n + 3] = True  # a bitmap may have bits beyond the tensor
        bitmap = np.packbits(chosen, bitorder="little").view(np.uint32)
        selection = Selection(where.size, lambda where=where: where, bitmap)
        index, exponents, own, packed = _words(-(-n // 32)), _words(-(-n // block)), values.copy(), Packed()
        largest = CPU.index_exponents(own, block, index, exponents, over=over, packed=packed)
        expected = _words(index.size), _words(exponents.size)
        assert largest == REFERENCE.index_exponents(values, block, *expected)
        np.testing.assert_array_equal(index, expected[0])
        np.testing.assert_array_equal(exponents, expected[1])
        assert (own.view(np.uint32) == 1 << 31).any() == (
            not over and (values.view(np.uint32) == 1 << 31).any()
        )
        assert [part.begin for part in packed.parts] + [n] == [0] + [part.end for part in packed.parts]
        if 256 * where.size >= n:
            own[:] = np.nan
        fixed, numbers = _fixed(n, block, n), np.full(where.size + 8, _SENTINEL, np.int32)
        CPU.gather(own, selection, fixed, numbers[: where.size], packed)
        exact = np.rint(values[where] * np.ldexp(1.0, fixed.scales_at(where)))
        np.testing.assert_array_equal(numbers[: where.size], exact.astype(np.int32))
        np.testing.assert_array_equal(numbers[where.size :], _SENTINEL)


def _words(count: int) -> np.ndarray:
    return np.full(count, _SENTINEL, np.uint32)


@pytest.mark.parametrize("cores", [1, 3])
def test_cores_share_the_work(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PER_CORE", 8192)
    monkeypatch.setattr(threads, "_CORES", cores)
    n = 5 * 8192 + 77
    for block in (None, 128, 16384):
        selection, where = _selection(n, 0.3, n)
        fixed, values = _fixed(n, block, 5), np.random.default_rng(1).random(n, np.float32)
        numbers, back = [], []
        for ops in (CPU, REFERENCE):
            numbers.append(np.empty(where.size, np.int32))
            ops.gather(values, selection, fixed, numbers[-1])
            back.append(np.full(n, np.nan, np.float32))
            ops.scatter(numbers[-1], selection, fixed, 7, back[-1], clear=True)
        np.testing.assert_array_equal(*numbers)
        np.testing.assert_array_equal(*back)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1023, 1024, 1025, 70_000])
@pytest.mark.parametrize("density", [0.0, 0.0005, 0.05, 0.7])
def test_occupied_by(n: int, density: float) -> None:
    selection, where = _selection(n, density, n)
    for ops in (CPU, REFERENCE):
        expected = [len({int(i) >> b for i in where}) for b in range(13)]
        np.testing.assert_array_equal(ops.occupied_by(selection), expected)
        without = Selection(where.size, lambda: where)
        np.testing.assert_array_equal(ops.occupied_by(without), expected)


def test_positions_are_found_once() -> None:
    calls: list[int] = []

    def find() -> np.ndarray:
        calls.append(1)
        return np.arange(3)

    selection = Selection(3, find)
    assert len(selection) == 3
    assert not calls
    assert selection.positions is selection.positions
    assert calls == [1]
