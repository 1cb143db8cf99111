"""The Triton kernels give the reference's bits, on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gpu_device import DEVICE, REAL, bits, needs_device, on_device, poisoned
from gpu_order import shuffled
from gpu_probe import bloom_row_kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from peelsum.codec import (
    BloomLayout,
    FixedPoint,
    SketchLayout,
    block_words,
    gpu,
    gpu_launch,
    index_words,
    reference,
)

SIZES = [0, 1, 32, 33, 1009, 4096, 9001]
#: A first element far beyond 2**31, so that large element numbers are tested without large tensors.
FAR = 2**40 + 32


@pytest.fixture(autouse=True)
def poisoned_allocations() -> Iterator[None]:
    """Let torch.empty fill memory with garbage, so that elements that no kernel writes are found."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def values(n: int, density: float = 0.1, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng([n, seed])
    dense = rng.normal(size=n) * 10.0 ** rng.integers(-6, 3, n)
    chosen = np.where(rng.random(n) < density, dense, 0.0).astype(np.float32)
    chosen[rng.random(n) < 0.05] *= np.float32(-0.0)
    return chosen


def bitmap(n: int, density: float = 0.1, seed: int = 0) -> NDArray[np.uint32]:
    out = np.empty(index_words(n), np.uint32)
    reference.index(values(n, density, seed), out)
    return out


def same(ours: torch.Tensor, truth: NDArray[Any]) -> None:
    truth = truth.view(np.uint32) if truth.itemsize == 4 else truth
    np.testing.assert_array_equal(bits(ours), truth)


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
def test_index_and_positions(n: int, density: float) -> None:
    sample, truth = values(n, density), bitmap(n, density)
    ours = poisoned(index_words(n))
    assert int(gpu.index(on_device(sample), ours)) == reference.magnitude(sample)
    assert int(gpu.magnitude(on_device(sample))) == reference.magnitude(sample)
    same(ours, truth)
    listed = reference.positions(truth, n, FAR)
    assert gpu.count(ours, n) == listed.size
    same(gpu.positions(ours, n, FAR), listed)
    same(gpu.occupied(on_device(listed)), reference.occupied(listed))


@pytest.mark.parametrize("k", [0, 1, 33, 1009])
def test_blocks_with_sums_that_are_not_zero(k: int) -> None:
    """A sum of -2**31 has no bits but its sign."""
    rng = np.random.default_rng(k)
    where = np.sort(rng.choice(10 * k + 1, k, replace=False))
    total = rng.choice(np.array([0, 0, 1, -(2**31)], np.int32), k)
    truth = reference.occupied(where[total != 0])
    same(gpu.occupied(on_device(where), on_device(total)), truth)
    assert truth[0] == np.count_nonzero(total)


def test_what_is_not_finite_is_the_magnitude() -> None:
    for value in (np.inf, -np.inf, np.nan):
        sample = np.array([1.0, value, -3.0], np.float32)
        assert int(gpu.magnitude(on_device(sample))) == reference.magnitude(sample) >= 0x7F800000


@pytest.mark.parametrize("n", [1, 31, 33, 63, 64])
def test_bits_beyond_the_last_element_are_ignored(n: int) -> None:
    full = on_device(np.full(3, 0xFFFFFFFF, np.uint32))
    same(gpu.positions(full, n), np.arange(n))
    assert gpu.count(full, n) == n


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("block", [2, 16, 32, 64, 4096, 2**14])
def test_blocks(n: int, block: int) -> None:
    index = bitmap(n, density=0.01)
    truth = np.empty(block_words(n, block), np.uint32)
    reference.block_encode(index, n, block, truth)
    ours = poisoned(truth.size)
    gpu.block_encode(on_device(index), n, block, ours)
    same(ours, truth)
    back, decoded = np.empty_like(index), poisoned(index.size)
    reference.block_decode(truth, n, block, back)
    gpu.block_decode(ours, n, block, decoded)
    same(decoded, back)


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "layout", [BloomLayout(1, 1, 0), BloomLayout(3, 17, 2**64 - 1), BloomLayout(8, 400, 2**63)]
)
def test_bloom(n: int, layout: BloomLayout) -> None:
    index, truth, ours = bitmap(n, 0.02), np.empty(layout.words, np.uint32), poisoned(layout.words)
    reference.bloom_encode(layout, index, truth, FAR)
    gpu.bloom_encode(layout, on_device(index), ours, FAR)
    same(ours, truth)
    back, decoded = np.empty_like(index), poisoned(index.size)
    reference.bloom_decode(layout, truth, n, back, FAR)
    gpu.bloom_decode(layout, ours, n, decoded, FAR)
    same(decoded, back)


def test_a_filter_of_more_words_than_an_int32_counts() -> None:
    layout, word = BloomLayout(32, 2**27 - 1, 5), 2**31 + 3
    rows, _ = reference._bloom_places(layout, 1, 32 * word)
    for j in (0, 15, 16, 31):
        row = poisoned(1, dtype=torch.int64)
        seed, words = (torch.full((1,), value, device=DEVICE) for value in (layout.seed, word))
        bloom_row_kernel[(1,)](row, words, seed, j, layout.rows)
        assert row.item() == rows[0, j]


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("density", [0.0, 0.05, 1.0])
def test_own_bits_of_candidates(n: int, density: float) -> None:
    index, mask = bitmap(n, seed=1), bitmap(n, density)
    truth = np.empty(index_words(reference.count(mask, n)), np.uint32)
    reference.gather_bits(index, mask, truth)
    ours = poisoned(truth.size)
    gpu.gather_bits(on_device(index), on_device(mask), ours)
    same(ours, truth)
    back = poisoned(mask.size)
    gpu.scatter_bits(ours, on_device(mask), back)
    same(back, index & mask)


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("fixed", [FixedPoint(11), FixedPoint(-3)], ids=str)
def test_quantize_and_dequantize(n: int, fixed: FixedPoint) -> None:
    sample = values(n, density=0.8)
    where = np.flatnonzero(sample)
    whole, some = np.empty(n, np.int32), np.empty(where.size, np.int32)
    reference.quantize(sample, fixed, whole)
    reference.quantize_at(sample, where, fixed, some)
    ours, ours_at = poisoned(n), poisoned(where.size)
    assert int(gpu.quantize(on_device(sample), fixed, ours)) == reference.magnitude(sample)
    gpu.quantize_at(on_device(sample), on_device(where), fixed, ours_at)
    same(ours, whole)
    same(ours_at, some)
    for divisor in (1, 3):
        truth, back, scattered = (
            np.empty(n, np.float32),
            poisoned(n, dtype=torch.float32),
            np.ones(n, np.float32),
        )
        reference.dequantize(whole, fixed, divisor, truth)
        gpu.dequantize(ours, fixed, divisor, back)
        same(back, truth)
        spread = on_device(scattered)
        reference.dequantize_at(some, where, fixed, divisor, scattered)
        gpu.dequantize_at(ours_at, on_device(where), fixed, divisor, spread)
        same(spread, scattered)


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("block", [32, 128, 4096])
def test_scales_of_blocks(n: int, block: int) -> None:
    sample, count = values(n, density=0.8), -(-n // block)
    sample[: n // 3] *= np.float32(2.0**-30)
    words, octaves = np.empty(count, np.uint32), np.empty(count, np.int32)
    ours, ours_octaves = poisoned(count), poisoned(count)
    largest = reference.block_exponents(sample, block, words)
    assert int(gpu.block_exponents(on_device(sample), block, ours)) == largest
    same(ours, words)
    bitmap, index, again = np.empty(index_words(n), np.uint32), poisoned(index_words(n)), poisoned(count)
    reference.index(sample, bitmap)
    copied = on_device(sample.copy())
    assert int(gpu.index_exponents(copied, block, index, again, over=True)) == largest
    same(index, bitmap)
    same(again, words)
    assert not torch.signbit(copied[copied == 0]).any()
    for field in {largest >> 23, (largest >> 23) + 1, 254}:
        reference.block_octaves(words, field, octaves)
        gpu.block_octaves(ours, field, ours_octaves)
        same(ours_octaves, octaves)
    reference.block_octaves(words, largest >> 23, octaves)
    gpu.block_octaves(ours, largest >> 23, ours_octaves)
    where = np.flatnonzero(sample)
    whole, some = np.empty(n, np.int32), np.empty(where.size, np.int32)
    fixed, there = FixedPoint(5, octaves, block), FixedPoint(5, ours_octaves, block)
    reference.quantize(sample, fixed, whole)
    reference.quantize_at(sample, where, fixed, some)
    numbers, numbers_at = poisoned(n), poisoned(where.size)
    gpu.quantize(on_device(sample), there, numbers)
    gpu.quantize_at(on_device(sample), on_device(where), there, numbers_at)
    same(numbers, whole)
    same(numbers_at, some)
    truth, back = np.empty(n, np.float32), poisoned(n, dtype=torch.float32)
    reference.dequantize(whole, fixed, 3, truth)
    gpu.dequantize(numbers, there, 3, back)
    same(back, truth)
    scattered = np.ones(n, np.float32)
    spread = on_device(scattered)
    reference.dequantize_at(some, where, fixed, 3, scattered)
    gpu.dequantize_at(numbers_at, on_device(where), there, 3, spread)
    same(spread, scattered)


def test_numbers_at_the_edges() -> None:
    """Halves round to even, subnormals keep their value, and sums too large for float32 become infinite."""
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    ours = poisoned(6)
    gpu.quantize(on_device(halves), FixedPoint(0), ours)
    assert ours.tolist() == [0, 2, 2, 0, -2, -2]
    subnormal = np.array([2.0**-149, -(2.0**-127), 3 * 2.0**-149], np.float32)
    tiny, back = poisoned(3), poisoned(3, dtype=torch.float32)
    gpu.quantize(on_device(subnormal), FixedPoint(149), tiny)
    assert tiny.tolist() == [1, -(2**22), 3]
    gpu.dequantize(tiny, FixedPoint(149), 1, back)
    same(back, subnormal)
    gpu.dequantize(on_device(np.array([2**30, -(2**30), 1], np.int32)), FixedPoint(-98), 1, back)
    assert back.tolist() == [np.inf, -np.inf, 2.0**98]


@pytest.mark.covering(2)
@pytest.mark.parametrize("n", [0, 1, 33, 1009, 4096, 4097])
@pytest.mark.parametrize(("lanes", "rows"), [(256, 3), (7, 20), (1, 50)])
def test_one_pass_is_index_and_sketch(n: int, lanes: int, rows: int) -> None:
    fixed = FixedPoint(12)
    sample, layout = values(n), SketchLayout(lanes, rows, 2**64 - 1 - n)
    index, sketch = np.empty(index_words(n), np.uint32), np.empty(layout.cells, np.uint32)
    reference.index_sketch(layout, sample, fixed, index, sketch, FAR)
    ours, cells = poisoned(index.size), poisoned(*sketch.shape)
    assert int(gpu.index_sketch(layout, on_device(sample), fixed, ours, cells, FAR)) == reference.magnitude(
        sample
    )
    same(ours, index)
    same(cells, sketch)


def peeled(layout: SketchLayout, where: NDArray[np.int64], numbers: NDArray[np.int32]) -> int:
    """Encode and decode numbers at positions, and compare with the reference; return the left-over's size."""
    sketch, out = np.empty(layout.cells, np.uint32), np.empty(numbers.shape, np.int32)
    ours, decoded = poisoned(*sketch.shape), poisoned(*out.shape)
    reference.sketch_encode(layout, where, numbers, sketch)
    gpu.sketch_encode(layout, on_device(where), on_device(numbers), ours)
    left = reference.sketch_decode(layout, sketch, where, out)
    same(ours, sketch)
    same(gpu.sketch_decode(layout, ours, on_device(where), decoded), left)
    same(decoded, out)
    return left.size


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", [0, 1, 33, 1009, 4097])
@pytest.mark.parametrize(("lanes", "per_candidate"), [(32, 1.4), (1, 1.3), (256, 0.14), (7, 1.15)])
def test_sketch(n: int, lanes: int, per_candidate: float) -> None:
    where = np.flatnonzero(values(n)) + FAR
    numbers = np.random.default_rng(n).integers(-(2**31), 2**31, where.size, np.int32)
    left = peeled(SketchLayout.sized(where.size, lanes, n, per_candidate), where, numbers)
    assert left < where.size or not where.size or per_candidate < 1


@settings(max_examples=15, deadline=None)
@given(
    st.sets(st.integers(0, 2**45), max_size=300),
    st.integers(1, 64),
    st.integers(1, 12),
    st.integers(0, 2**64 - 1),
)
def test_sketch_of_any_layout(where: set[int], lanes: int, rows: int, seed: int) -> None:
    positions = np.array(sorted(where), np.int64)
    peeled(SketchLayout(lanes, rows, seed), positions, positions.astype(np.int32))


@pytest.mark.parametrize(("share", "segments"), [(1, 173), (29, 6), (173, 1), (100, 2)])
def test_sketch_in_segments(share: int, segments: int) -> None:
    rng = np.random.default_rng(share)
    where = np.sort(rng.choice(3000, 173, replace=False)).astype(np.int64) + FAR
    numbers = rng.integers(-(2**31), 2**31, where.size).astype(np.int32)
    peeled(SketchLayout(8, 4, 11, segments, share), where, numbers)


@pytest.mark.parametrize(("lanes", "segments"), [(8, 3), (32, 2), (7, 40)])
def test_sketch_in_dealt_segments(lanes: int, segments: int) -> None:
    sample = values(3001)
    where = np.flatnonzero(sample)
    layout = SketchLayout(
        lanes, max(where.size // (2 * lanes * segments), 1), 2**63 + 1, segments, dealt=True
    )
    numbers = np.random.default_rng(lanes).integers(-(2**31), 2**31, where.size).astype(np.int32)
    peeled(layout, where + FAR, numbers)
    fixed = FixedPoint(12)
    index, sketch = np.empty(index_words(3001), np.uint32), np.empty(layout.cells, np.uint32)
    reference.index_sketch(layout, sample, fixed, index, sketch, FAR)
    ours, cells = poisoned(index.size), poisoned(*sketch.shape)
    gpu.index_sketch(layout, on_device(sample), fixed, ours, cells, FAR)
    same(ours, index)
    same(cells, sketch)


def test_peeling_that_takes_many_rounds() -> None:
    """The counts of rounds go round three places many times."""
    layout = SketchLayout(1, 200, 3)
    where = chain(layout, 96)
    assert rounds(layout, where) > 32
    assert peeled(layout, where, np.arange(1, where.size + 1, dtype=np.int32)) == 0


def chain(layout: SketchLayout, links: int) -> NDArray[np.int64]:
    """Return elements that can be peeled only from both ends.

    Each shares one cell with its successor, and one with all others.
    """
    cells, _ = reference.places(layout, np.arange(400_000))
    elements = np.flatnonzero(cells[:, 2] == cells[0, 2])
    chosen, visited, end, side = [], set(), cells[elements[0], 0], 0
    while len(chosen) < links:
        visited.add(end)
        onward = (e for e in elements if cells[e, side] == end and cells[e, 1 - side] not in visited)
        chosen.append(next(onward))
        side = 1 - side
        end = cells[chosen[-1], side]
    return np.array(sorted(chosen), np.int64)


def rounds(layout: SketchLayout, where: NDArray[np.int64]) -> int:
    """Count the peel rounds, if each round removes all candidates in pure cells."""
    cells, _ = reference.places(layout, where)
    count, left = 0, np.ones(where.size, np.bool_)
    while left.any():
        load = np.bincount(cells[left].ravel(), minlength=layout.cells)
        pure = left & (load[cells] == 1).any(axis=1)
        if not pure.any():
            break
        left &= ~pure
        count += 1
    return count


def test_room_for_fewer_candidates_than_there_are() -> None:
    """If there is too little room, nothing is written out of bounds, and the true count is reported."""
    n, truth = 4097, np.flatnonzero(values(4097))
    bases, room = (
        poisoned(gpu_launch.tiles(index_words(n), DEVICE), dtype=torch.int64),
        poisoned(20, dtype=torch.int64),
    )
    listed = gpu_launch.Candidates(room[:10], poisoned(1, dtype=torch.int64))
    gpu_launch.positions(on_device(bitmap(n)), n, bases, listed)
    assert int(listed.count) == truth.size > listed.capacity == 10
    same(room[:10], truth[:10])
    assert not np.isin(truth, room[10:].cpu().numpy()).any()
    out = poisoned(20)
    before = bits(out).copy()
    gpu_launch.quantize_at(
        on_device(values(n)).view(torch.int32), listed, on_device(np.array([9], np.int32)), out[:10]
    )
    np.testing.assert_array_equal(bits(out)[10:], before[10:])


class BoundedStep:
    """A step: `run` encodes, lists and peels candidates, and neither waits nor allocates."""

    def __init__(self, n: int, capacity: int, layout: SketchLayout) -> None:
        self.n, self.layout = n, layout
        self.sample, self.bitmap, self.largest = poisoned(n), poisoned(index_words(n)), poisoned(1)
        self.seed, self.scale = poisoned(1, dtype=torch.int64), poisoned(1)
        self.cells, self.out = poisoned(layout.cells), poisoned(capacity)
        self.bases = poisoned(gpu_launch.tiles(index_words(n), DEVICE), dtype=torch.int64)
        self.left_bitmap = poisoned(index_words(capacity))
        self.left_bases = poisoned(gpu_launch.tiles(index_words(capacity), DEVICE), dtype=torch.int64)
        self.found, self.left = (
            gpu_launch.Candidates(poisoned(capacity, dtype=torch.int64), poisoned(1, dtype=torch.int64))
            for _ in range(2)
        )
        self.room = gpu_launch.Peeling.room(capacity, layout.cells, DEVICE)

    def set(self, sample: NDArray[np.float32], number: int) -> None:
        self.sample.copy_(on_device(sample).view(torch.int32))
        self.seed.fill_(number)
        self.scale.fill_(number)

    def run(self) -> None:
        launch, room, found = gpu_launch, self.room, self.found
        launch.index_sketch(
            self.layout, self.seed, self.sample, self.scale, self.bitmap, self.cells, self.largest
        )
        launch.positions(self.bitmap, self.n, self.bases, found)
        launch.peel(self.layout, self.seed, self.cells, found, room, self.out)
        launch.left_over(room, self.left_bitmap, self.largest, self.left_bases, self.left)

    def check(self, sample: NDArray[np.float32], number: int) -> int:
        """Compare with the reference; return the number of left-over candidates."""
        layout = SketchLayout(self.layout.lanes, self.layout.rows, number)
        index, sketch = np.empty(index_words(self.n), np.uint32), np.empty(layout.cells, np.uint32)
        reference.index_sketch(layout, sample, FixedPoint(number), index, sketch)
        where = np.flatnonzero(sample)
        out = np.empty(where.size, np.int32)
        left = reference.sketch_decode(layout, sketch, where, out)
        assert (int(self.found.count), int(self.room.left)) == (where.size, left.size)
        same(self.out[: where.size], out)
        same(self.left.positions[: int(self.left.count)], left)
        return left.size


def test_a_step_of_bounded_size() -> None:
    step = BoundedStep(4097, 700, SketchLayout(8, 20, 0))
    left = []
    for number in (5, 6):
        sample = values(4097, seed=number)
        step.set(sample, number)
        step.run()
        left.append(step.check(sample, number))
    assert max(left) > 0


@needs_device
def test_work_is_on_the_callers_stream() -> None:
    """Kernels see the results of earlier work on the same side stream, without synchronization."""
    side = torch.cuda.Stream()
    sample = torch.zeros(2**24, device=DEVICE)
    out = poisoned(index_words(sample.numel()))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        sample.fill_(1.0)
        gpu.index(sample, out)
    side.synchronize()
    assert (bits(out) == 0xFFFFFFFF).all()


@needs_device
@pytest.mark.parametrize("n", [2**22 - 1, 2**24 + 33])
def test_large_tensors(n: int) -> None:
    sample = values(n, density=0.01)
    where = np.flatnonzero(sample)
    ours = poisoned(index_words(n))
    assert int(gpu.index(on_device(sample), ours)) == reference.magnitude(sample)
    same(gpu.positions(ours, n), where)
    numbers = np.random.default_rng(n).integers(-(2**31), 2**31, where.size, np.int32)
    assert peeled(SketchLayout.sized(where.size, 256, 1), where, numbers) == 0


@pytest.mark.slow
def test_a_hundred_runs_give_the_same_bits() -> None:
    """Threads come in another order in every run on a device; sums of integers do not depend on it.

    The interpreter runs the programs of each launch in another order in each of three runs.
    """
    n, runs = (2**20, 100) if REAL else (2**13, 3)
    sample, fixed = on_device(values(n, density=0.05)), FixedPoint(20)
    where = gpu.positions(on_device(bitmap(n, density=0.05)), n)
    layout = SketchLayout.sized(where.numel(), 256 if REAL else 8, 3, 1.1)
    index, sketch, out = poisoned(n // 32), poisoned(layout.cells), poisoned(where.numel())
    kept = []
    for run in range(runs):
        with shuffled(run):
            gpu.index_sketch(layout, sample, fixed, index, sketch)
            listed = gpu.positions(index, n)
            left = gpu.sketch_decode(layout, sketch, where, out)
        kept.append([one.clone() for one in (index, listed, sketch, out, left)])
    assert kept[0][4].numel(), "something must be left over"
    for run in kept[1:]:
        assert all(torch.equal(one, other) for one, other in zip(run, kept[0], strict=True))
