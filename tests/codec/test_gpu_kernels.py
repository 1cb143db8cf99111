"""The Triton kernels give the reference's bits, on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_device import DEVICE, REAL, bits, needs_device, on_device, poisoned, poisoned_allocations, same
from gpu_order import shuffled
from gpu_probe import bloom_row_kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from peelsum.codec import (
    BloomLayout,
    SketchLayout,
    block_words,
    device,
    index_words,
)
from peelsum.codec.gpu import sketch as gpu_sketch
from peelsum.codec.gpu.device import GpuDevice
from peelsum.codec.gpu.index import index as write_index
from peelsum.codec.reference import index as reference_index
from peelsum.codec.reference import sketch as reference_sketch

__all__ = ["poisoned_allocations"]

REFERENCE, GPU = device("reference"), GpuDevice()
SIZES = [0, 1, 32, 33, 1009, 4096, 9001]
#: A first element far beyond 2**31, so that large element numbers are tested without large tensors.
FAR = 2**40 + 32


def values(n: int, density: float = 0.1, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng([n, seed])
    dense = rng.normal(size=n) * 10.0 ** rng.integers(-6, 3, n)
    chosen = np.where(rng.random(n) < density, dense, 0.0).astype(np.float32)
    chosen[rng.random(n) < 0.05] *= np.float32(-0.0)
    return chosen


def bitmap(n: int, density: float = 0.1, seed: int = 0) -> NDArray[np.uint32]:
    out = np.empty(index_words(n), np.uint32)
    reference_index.index(values(n, density, seed), out)
    return out


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
def test_positions(n: int, density: float) -> None:
    truth = bitmap(n, density)
    listed, ours = REFERENCE.positions(truth, n, FAR), on_device(truth)
    same(GPU.positions(ours, n, FAR), listed)
    same(GPU.positions(ours, n, FAR, listed.size), listed)


@pytest.mark.parametrize("n", [1, 31, 33, 63, 64])
def test_bits_beyond_the_last_element_are_ignored(n: int) -> None:
    full = on_device(np.full(3, 0xFFFFFFFF, np.uint32))
    same(GPU.positions(full, n), np.arange(n))


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("block", [2, 16, 32, 64, 4096, 2**14])
def test_blocks(n: int, block: int) -> None:
    index = bitmap(n, density=0.01)
    truth = np.empty(block_words(n, block), np.uint32)
    REFERENCE.block_encode(index, n, block, truth)
    ours = poisoned(truth.size)
    GPU.block_encode(on_device(index), n, block, ours)
    same(ours, truth)
    back, decoded = np.empty_like(index), poisoned(index.size)
    REFERENCE.block_decode(truth, n, block, back)
    GPU.block_decode(ours, n, block, decoded)
    same(decoded, back)


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "layout", [BloomLayout(1, 1, 0), BloomLayout(3, 17, 2**64 - 1), BloomLayout(8, 400, 2**63)]
)
def test_bloom(n: int, layout: BloomLayout) -> None:
    index, truth, ours = bitmap(n, 0.02), np.empty(layout.words, np.uint32), poisoned(layout.words)
    REFERENCE.bloom_encode(layout, index, truth, FAR)
    GPU.bloom_encode(layout, on_device(index), ours, FAR)
    same(ours, truth)
    back, decoded = np.empty_like(index), poisoned(index.size)
    REFERENCE.bloom_decode(layout, truth, n, back, FAR)
    GPU.bloom_decode(layout, ours, n, decoded, FAR)
    same(decoded, back)


def test_a_filter_of_more_words_than_an_int32_counts() -> None:
    layout, word = BloomLayout(32, 2**27 - 1, 5), 2**31 + 3
    rows, _ = reference_index._bloom_places(layout, 1, 32 * word)
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
    truth = np.empty(index_words(int(np.bitwise_count(mask).sum())), np.uint32)
    REFERENCE.gather_bits(index, mask, truth)
    ours = poisoned(truth.size)
    GPU.gather_bits(on_device(index), on_device(mask), ours)
    same(ours, truth)
    back = poisoned(mask.size)
    GPU.scatter_bits(ours, on_device(mask), back)
    same(back, index & mask)


def peeled(layout: SketchLayout, where: NDArray[np.int64], numbers: NDArray[np.int32]) -> int:
    """Encode and decode numbers at positions, and compare with the reference; return the left-over's size."""
    sketch, out = np.empty(layout.cells, np.uint32), np.empty(numbers.shape, np.int32)
    ours, decoded = poisoned(*sketch.shape), poisoned(*out.shape)
    REFERENCE.sketch_encode(layout, where, numbers, sketch)
    GPU.sketch_encode(layout, on_device(where), on_device(numbers), ours)
    left = REFERENCE.sketch_decode(layout, sketch, where, out)
    same(ours, sketch)
    same(GPU.sketch_decode(layout, ours, on_device(where), decoded), left)
    same(decoded, out)
    return left.size


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", [0, 1, 33, 1009, 4097])
@pytest.mark.parametrize("per_candidate", [1.4, 1.3, 1.15, 0.14])
def test_sketch(n: int, per_candidate: float) -> None:
    where = np.flatnonzero(values(n)) + FAR
    numbers = np.random.default_rng(n).integers(-(2**31), 2**31, where.size, np.int32)
    left = peeled(SketchLayout.sized(where.size, n, per_candidate), where, numbers)
    assert left < where.size or not where.size or per_candidate < 1


@settings(max_examples=6, deadline=None)
@given(
    st.sets(st.integers(0, 2**45), max_size=300),
    st.integers(1, 400),
    st.integers(0, 2**64 - 1),
    st.sampled_from([1, 2, 16]),
)
def test_sketch_of_any_layout(where: set[int], width: int, seed: int, segments: int) -> None:
    positions = np.array(sorted(where), np.int64)
    peeled(SketchLayout(width, seed, segments), positions, positions.astype(np.int32))


@pytest.mark.parametrize(
    ("width", "segments"), [(72, 1), (36, 2), (9, 8), pytest.param(1, 128, marks=pytest.mark.slow)]
)
def test_sketch_in_segments(width: int, segments: int) -> None:
    rng = np.random.default_rng(width)
    where = np.sort(rng.choice(3000, 173, replace=False)).astype(np.int64) + FAR
    numbers = rng.integers(-(2**31), 2**31, where.size).astype(np.int32)
    peeled(SketchLayout(width, 2**63 + 1, segments), where, numbers)


def test_a_crowded_segment_is_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered for the interpreter, which is slow."""
    monkeypatch.setattr(reference_sketch, "MOST_CANDIDATES", 80)
    monkeypatch.setattr(gpu_sketch, "MOST_CANDIDATES", 80)
    layout, where = SketchLayout(90, 5, 2), np.arange(500, dtype=np.int64)
    owners = reference_sketch.places(layout, where)[0][:, 0] // layout.segment_cells
    chosen = np.sort(np.concatenate([where[owners == 0][:81], where[owners == 1][:80]]))
    assert peeled(layout, chosen, chosen.astype(np.int32) + 1) == 81


def test_peeling_that_takes_many_rounds() -> None:
    """The counts of rounds go round three places many times."""
    layout = SketchLayout(200, 3)
    where = chain(layout, 40)
    assert rounds(layout, where) > 12
    assert peeled(layout, where, np.arange(1, where.size + 1, dtype=np.int32)) == 0


def chain(layout: SketchLayout, links: int) -> NDArray[np.int64]:
    """Return elements that can be peeled only from both ends.

    Each shares one cell with its successor, and one with all others.
    """
    cells, _ = reference_sketch.places(layout, np.arange(400_000))
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
    cells, _ = reference_sketch.places(layout, where)
    count, left = 0, np.ones(where.size, np.bool_)
    while left.any():
        load = np.bincount(cells[left].ravel(), minlength=layout.cells)
        pure = left & (load[cells] == 1).any(axis=1)
        if not pure.any():
            break
        left &= ~pure
        count += 1
    return count


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
        write_index(sample.view(torch.int32), out)
    side.synchronize()
    assert (bits(out) == 0xFFFFFFFF).all()


@needs_device
@pytest.mark.parametrize("n", [2**22 - 1, 2**24 + 33])
def test_large_tensors(n: int) -> None:
    sample = values(n, density=0.01)
    where = np.flatnonzero(sample)
    same(GPU.positions(on_device(bitmap(n, density=0.01)), n), where)
    numbers = np.random.default_rng(n).integers(-(2**31), 2**31, where.size, np.int32)
    assert peeled(SketchLayout.sized(where.size, 1), where, numbers) == 0


@pytest.mark.slow
def test_a_hundred_runs_give_the_same_bits() -> None:
    """Threads come in another order in every run on a device; sums of integers do not depend on it.

    The interpreter runs the programs of each launch in another order in each of three runs.
    """
    n, runs = (2**20, 100) if REAL else (2**13, 3)
    index = on_device(bitmap(n, density=0.05))
    where = GPU.positions(index, n)
    layout = SketchLayout.sized(where.numel(), 3, 1.1)
    numbers, sketch, out = where.to(torch.int32), poisoned(layout.cells), poisoned(where.numel())
    kept = []
    for run in range(runs):
        with shuffled(run):
            listed = GPU.positions(index, n)
            GPU.sketch_encode(layout, where, numbers, sketch)
            left = GPU.sketch_decode(layout, sketch, where, out)
        kept.append([one.clone() for one in (listed, sketch, out, left)])
    assert kept[0][3].numel(), "something must be left over"
    for run in kept[1:]:
        assert all(torch.equal(one, other) for one, other in zip(run, kept[0], strict=True))
