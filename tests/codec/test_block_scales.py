"""Workers agree on each block's exponent from OR-ed words; it is never below that of any worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peelsum.codec import FixedPoint, exponent_words, kernels, largest_exponent_field, scale_for

SIZES = [1, 31, 32, 33, 1023, 1025, 8192, 8193, 40_001]
IMPLEMENTATIONS = ["reference", "cpu"]


def drawn(n: int, worker: int, octaves: int, seed: int = 0) -> Any:
    """Blocks of 32 elements of magnitudes 2**-octaves to 1, one in four of them zero."""
    rng = np.random.default_rng([seed, worker])
    blocks = 2.0 ** -rng.integers(0, octaves + 1, n // 32 + 1) * (rng.random(n // 32 + 1) < 0.75)
    return (np.repeat(blocks, 32)[:n] * rng.standard_normal(n)).astype(np.float32)


def fields(values: Any, block: int) -> list[int | None]:
    """Each block's largest exponent field, by frexp; None for zeros."""
    largest = [np.abs(values[begin : begin + block]).max() for begin in range(0, len(values), block)]
    return [max(int(np.frexp(one)[1]) + 126, 0) if one else None for one in largest]


def agreed(ops: Any, workers: list[Any], block: int) -> tuple[int, Any]:
    """The largest field of all, and the octaves of each block, from the OR of the workers' words."""
    count = -(-len(workers[0]) // block)
    ored, header = np.zeros(count, np.uint32), np.zeros(8, np.uint32)
    for values in workers:
        words = np.full(count, 0xDEADBEEF, np.uint32)
        header |= exponent_words(ops.block_exponents(values, block, words))
        ored |= words
    octaves = np.full(count, -99, np.int32)
    top = largest_exponent_field(header)
    assert top is not None
    ops.block_octaves(ored, top, octaves)
    return top, octaves


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("block", [32, 256, 16_384])
@pytest.mark.parametrize("n", SIZES)
def test_a_block_has_the_largest_exponent_of_all_workers(implementation: Any, n: int, block: int) -> None:
    workers = [drawn(n, worker, 40) for worker in range(3)]
    workers[0][0] = 1.0
    top, octaves = agreed(kernels(implementation), workers, block)
    for b, (of_all, octave) in enumerate(
        zip(zip(*(fields(values, block) for values in workers), strict=True), octaves.tolist(), strict=True)
    ):
        largest = max((one for one in of_all if one is not None), default=None)
        meant = 0 if largest is None else top - min(largest | 1, top)
        assert octave == meant, f"block {b}"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_no_scale_is_too_fine_whatever_the_exponents(implementation: Any, data: Any) -> None:
    """Even where workers' largest values are so far apart that levels are mistaken for others."""
    bits = st.integers(0, 0x7F7FFFFF)
    workers = [
        np.array(data.draw(st.lists(bits, min_size=96, max_size=96)), np.uint32).view(np.float32)
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    if not any(values.any() for values in workers):
        return
    top, octaves = agreed(kernels(implementation), workers, 32)
    for values in workers:
        for field, octave in zip(fields(values, 32), octaves.tolist(), strict=True):
            assert octave >= 0
            assert field is None or field <= top - octave


def test_what_one_worker_holds_far_above_the_others_does_not_cost_them_their_scale() -> None:
    """An outlier of 2**20 among values of 2**-10, on one of two workers: 30 octaves."""
    quiet = np.full(128, 2.0**-10, np.float32)
    loud = quiet.copy()
    loud[0] = 2.0**20
    top, octaves = agreed(kernels(), [quiet, loud], 32)
    assert top == 127 + 20
    assert octaves.tolist() == [0, 30, 30, 30]


def test_quiet_blocks_are_told_apart_down_to_46_octaves() -> None:
    values = np.repeat([1.0, 2.0**-44, 2.0**-46, 2.0**-60], 32).astype(np.float32)
    _, octaves = agreed(kernels(), [values], 32)
    assert octaves.tolist() == [0, 44, 46, 46]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_blocks_are_rounded_by_their_own_scales_and_come_back(implementation: Any) -> None:
    ops, n, block = kernels(implementation), 9001, 64
    values = drawn(n, 0, 40)
    top, octaves = agreed(ops, [values], block)
    fixed = FixedPoint(scale_for(top, 4), octaves, block)
    quantized, back = np.empty(n, np.int32), np.empty(n, np.float32)
    ops.quantize(values, fixed, quantized)
    ops.dequantize(quantized, fixed, 1, back)
    for i in range(n):
        scale = 2.0 ** (scale_for(top, 4) + int(octaves[i // block]))
        assert quantized[i] == round(float(values[i]) * scale)
        assert back[i] == np.float32(quantized[i] / scale)
    where = np.flatnonzero(values)[::3]
    some, spread = np.empty(where.size, np.int32), np.zeros(n, np.float32)
    ops.quantize_at(values, where, fixed, some)
    ops.dequantize_at(some, where, fixed, 1, spread)
    np.testing.assert_array_equal(some, quantized[where])
    np.testing.assert_array_equal(spread[where], back[where])
    assert np.count_nonzero(spread) <= where.size
