"""What only GPUs have: streams, many programs, large launches. Other tests compare bits on all devices."""

import gc
import weakref

import numpy as np
import pytest
import torch
from gpu_device import DEVICE, REAL, bits, needs_device, on_device, poisoned, poisoned_allocations, same
from gpu_order import shuffled
from gpu_probe import bloom_row_kernel

from peelsum.codec import BloomLayout, SketchLayout, device, index_words
from peelsum.codec.gpu import GpuDevice, launch
from peelsum.codec.gpu import sketch as gpu_sketch
from peelsum.codec.gpu.segments import GpuSegments
from peelsum.codec.reference import index as reference_index
from peelsum.codec.reference import sketch as reference_sketch
from peelsum.codec.segments import Segment, SegmentTable

__all__ = ["poisoned_allocations"]

REFERENCE, GPU = device("reference"), GpuDevice()


def test_a_filter_of_more_words_than_an_int32_counts():
    layout, word = BloomLayout(32, 2**27 - 1, 5), 2**31 + 3
    rows, _ = reference_index._bloom_places(layout, 1, 32 * word)
    for j in (0, 15, 16, 31):
        row = poisoned(1, dtype=torch.int64)
        seed, words = (torch.full((1,), value, device=DEVICE) for value in (layout.seed, word))
        bloom_row_kernel[(1,)](row, words, seed, j, layout.rows)
        assert row.item() == rows[0, j]


def peeled(layout, where, numbers):
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


def test_a_crowded_segment_is_left_over(monkeypatch):
    """The limit is lowered for the interpreter, which is slow."""
    monkeypatch.setattr(reference_sketch, "MOST_CANDIDATES", 80)
    monkeypatch.setattr(gpu_sketch, "MOST_CANDIDATES", 80)
    layout, where = SketchLayout(90, 5, 2), np.arange(500, dtype=np.int64)
    owners = reference_sketch.places(layout, where)[0][:, 0] // layout.segment_cells
    chosen = np.sort(np.concatenate([where[owners == 0][:81], where[owners == 1][:80]]))
    assert peeled(layout, chosen, chosen.astype(np.int32) + 1) == 81


def test_peeling_that_takes_many_rounds():
    """The counts of rounds go round three places many times."""
    layout = SketchLayout(200, 3)
    where = chain(layout, 40)
    assert rounds(layout, where) > 12
    assert peeled(layout, where, np.arange(1, where.size + 1, dtype=np.int32)) == 0


def chain(layout, links):
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


def rounds(layout, where):
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
def test_work_is_on_the_callers_stream():
    """Kernels see the results of earlier work on the same side stream, without synchronization."""
    side = torch.cuda.Stream()
    elements = 2**24
    blocks = torch.zeros(elements // 32 // 32, dtype=torch.int32, device=DEVICE)
    out = poisoned(index_words(elements))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        blocks.fill_(-1)
        GpuDevice().block_decode(blocks, elements, 32, out)
    side.synchronize()
    assert (bits(out) == 0xFFFFFFFF).all()


@needs_device
@pytest.mark.parametrize("n", [2**22 - 1, 2**24 + 33])
def test_large_tensors(n):
    bitmap = np.packbits(np.random.default_rng(n).random(32 * index_words(n)) < 0.01, bitorder="little")
    where = REFERENCE.positions(bitmap.view(np.uint32), n)
    same(GPU.positions(on_device(bitmap.view(np.uint32)), n), where)
    numbers = np.random.default_rng(n).integers(-(2**31), 2**31, where.size, np.int32)
    assert peeled(SketchLayout.sized(where.size, 1), where, numbers) == 0


@pytest.mark.slow
def test_a_hundred_runs_give_the_same_bits():
    """Threads come in another order in every run on a device; sums of integers do not depend on it.

    The interpreter runs the programs of each launch in another order in each of three runs.
    """
    n, runs = (2**20, 100) if REAL else (2**13, 3)
    index = on_device(np.packbits(np.random.default_rng(n).random(n) < 0.05).view(np.uint32))
    where = GPU.positions(index, n)
    layout = SketchLayout.sized(where.numel(), 3, 1.1)
    numbers, sketch, out = where.to(torch.int32), poisoned(layout.cells), poisoned(where.numel())
    kept = []
    for run in range(runs):
        with shuffled(run):
            listed = GPU.positions(index, n)
            GPU.sketch_encode(layout, where, numbers, sketch)
            left = GPU.sketch_decode(layout, sketch, where, out)
        kept.append([tensor.clone() for tensor in (listed, sketch, out, left)])
    assert kept[0][3].numel(), "something must be left over"
    for run in kept[1:]:
        assert all(map(torch.equal, run, kept[0]))


def test_tiles_are_kept_as_long_as_their_table():
    table = SegmentTable([Segment(70, sparse=False)])
    first, second = (GpuSegments(table, [torch.zeros(70, device=DEVICE)], [None], 1) for _ in range(2))
    assert first._tiles is second._tiles
    kept = weakref.ref(table)
    del table, first, second
    gc.collect()
    assert kept() is None


def test_an_error_comes_before_results_are_written_over_tensors(monkeypatch):
    """One launch writes all of them, so that the host can go through the step again."""
    table = SegmentTable([Segment(40, sparse=False), Segment(70, sparse=True)])
    whole = torch.ones(110, device=DEVICE)
    tensors = list(whole.split([40, 70]))
    codec = GpuSegments(table, tensors, tensors, 1)
    words = poisoned(table.scale_words)
    bitmap = codec.write_scales(words)
    codec.read_scales(bits(words))
    counts, launches = codec.set_candidates(bitmap), []
    monkeypatch.setattr(launch, "run", lambda kernel, *rest, **options: launches.append(kernel))
    codec.decode(*(torch.zeros(count, dtype=torch.int32, device=DEVICE) for count in counts), 1)
    assert len(launches) == 1
