"""The segments of a step on a GPU, or in Triton's interpreter: the reference's words and results."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gpu_device import DEVICE, bits, on_device, poisoned, poisoned_allocations, same
from gpu_order import shuffled
from numpy.typing import NDArray

from peelsum.codec import NON_FINITE, ROW
from peelsum.codec.gpu import launch
from peelsum.codec.gpu.segments import GpuSegments
from peelsum.codec.reference.segments import ReferenceSegments
from peelsum.codec.segments import Segment, Table

__all__ = ["poisoned_allocations"]

WORKERS, TILE = 2, 64 * ROW
SIZES = [1, 31, 32, 33, TILE - 1, TILE, TILE + 1]
Floats = NDArray[np.float32]
TABLES = {
    "one dense": [Segment(9001, sparse=False)],
    "one sparse": [Segment(9001, sparse=True, block=64)],
    "dense": [Segment(n, sparse=False, block=32) for n in SIZES],
    "sparse": [Segment(n, sparse=True, block=128) for n in SIZES],
    "both, in large blocks": [Segment(n, sparse=m > 3, block=2**15) for m, n in enumerate(SIZES)],
    "both, many": [Segment(1 + m * 7 % 100, sparse=m > 40, block=ROW << m % 4) for m in range(90)],
}
PLACES = ["over, end to end", "over", "into", "new", "some of each"]


def values(table: Table, worker: int) -> list[Floats]:
    """Values of each segment: every third is zero on a worker, or not finite, or has extreme numbers."""
    rng, arrays = np.random.default_rng([len(table), worker]), []
    for s, n in enumerate(table.elements.tolist()):
        one = rng.normal(size=n) * 10.0 ** rng.integers(-6, 3, n) * (rng.random(n) < 0.3)
        one = one.astype(np.float32)
        one[rng.random(n) < 0.1] *= np.float32(-0.0)
        if s % 6 == 1:
            one[:] = 0 if worker or s % 12 == 1 else -0.0
        elif s % 6 == 3 and worker == s % 2:
            one[-1] = [np.nan, np.inf, -np.inf][s % 3]
        elif s % 6 == 4:
            one[rng.random(n) < 0.2] = np.float32(1e38)
        elif s % 6 == 5:
            one[: n // 2] = np.float32(2.0**-149) * rng.integers(-9, 9, n // 2)
        arrays.append(one)
    return arrays


def placed(arrays: Sequence[Floats], where: str) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return tensors on the device, and where their results go."""
    if "end to end" in where:
        whole = on_device(np.concatenate([np.ones(5, np.float32), *arrays]))
        tensors = list(whole[5:].split([one.size for one in arrays]))
    else:
        tensors = [on_device(one) for one in arrays]
    fresh = [poisoned(one.size, dtype=torch.float32) for one in arrays]
    each = [tensors, fresh, [None] * len(arrays)]
    kind = {"over": 0, "into": 1, "new": 2}.get(where.split(",")[0])
    return tensors, [each[m % 3 if kind is None else kind][m] for m in range(len(arrays))]


@pytest.mark.covering(1)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", TABLES)
def test_a_step_has_the_references_words_and_results(name: str, where: str) -> None:
    table, seed = Table(TABLES[name]), len(name) + len(where)
    inputs = [values(table, worker) for worker in range(WORKERS)]
    tensors, out = placed(inputs[0], where)
    with shuffled(seed):
        step(table, inputs, GpuSegments(table, tensors, out, WORKERS), out, divisor=1 + seed % 3)
    for tensor, own, result in zip(tensors, inputs[0], out, strict=True):
        if result is not tensor:
            same(tensor, own)


def step(
    table: Table, inputs: list[list[Floats]], ours: GpuSegments, out: Sequence[Any], divisor: int
) -> None:
    """Go through all calls of a step with the reference for each worker, and compare the first's."""
    rng, truths = np.random.default_rng(7), [ReferenceSegments(table, one, [None] * 99, 2) for one in inputs]
    words, theirs = poisoned(table.scale_words), np.empty((WORKERS, table.scale_words), np.uint32)
    bitmap = ours.write_scales(words)
    bitmaps = [one.write_scales(into) for one, into in zip(truths, theirs, strict=True)]
    same(words, theirs[0])
    same(bitmap, bitmaps[0])
    for codec in (ours, *truths):
        codec.read_scales(theirs[0] | theirs[1])
    truth = truths[0]
    np.testing.assert_array_equal(ours.fields, truth.fields)
    np.testing.assert_array_equal(ours.scales, truth.scales)
    # False positives of an index, which it is chosen afterwards to refine.
    union = bitmaps[0] | bitmaps[1]
    for candidates in (union | valid(table) & rng.integers(0, 2**32, union.size, np.uint32), union):
        place, *_ = [codec.place(candidates) for codec in truths]
        assert ours.place(on_device(candidates)) == place
        np.testing.assert_array_equal(ours.sent, truth.sent)
        if rng.random() < 0.5:
            break
    dense, sparse = (int(part.sum()) for part in np.split(truth.sent, [table.dense]))
    mine, numbers = poisoned(dense + sparse), np.empty((WORKERS, dense + sparse), np.int32)
    for codec, into in zip((ours, *truths), (mine, *numbers), strict=True):
        codec.write_dense(into[:dense])
        codec.gather(into[dense:])
    finite = truth.fields != NON_FINITE
    same(mine, numbers[0], np.repeat(finite, truth.sent))  # other numbers are not used
    sums = numbers.sum(0, dtype=np.int32)
    read = ours.read(on_device(sums[:dense]), on_device(sums[dense:]), divisor)
    for result, right, into in zip(read, truth.read(sums[:dense], sums[dense:], divisor), out, strict=True):
        same(result, right)
        assert into is None or result is into
    counts, right_counts = ours.counts(), truth.counts()
    np.testing.assert_array_equal(counts.local[finite], right_counts.local[finite])
    np.testing.assert_array_equal(counts[1:], right_counts[1:])
    wanted = np.arange(len(table)) % 3 != 2
    np.testing.assert_array_equal(
        ours.occupied(on_device(sums[dense:]), wanted.astype(np.int64)),
        truth.occupied(sums[dense:], wanted.astype(np.int64)),
    )


def valid(table: Table) -> NDArray[np.uint32]:
    """Return the bitmap of all elements of the sparse vector."""
    rows = [
        np.packbits(np.arange(ROW * -(-one.elements // ROW)) < one.elements, bitorder="little")
        for one in table.segments[table.dense :]
    ]
    return np.concatenate([np.empty(0, np.uint8), *rows]).view(np.uint32)


def test_rows_are_kept_as_long_as_their_table() -> None:
    table = Table([Segment(70, sparse=False)])
    first, second = (GpuSegments(table, [torch.zeros(70, device=DEVICE)], [None], 1) for _ in range(2))
    assert first._rows is second._rows
    kept = weakref.ref(table)
    del table, first, second
    gc.collect()
    assert kept() is None


def test_an_error_comes_before_results_are_written_over_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch writes all of them, so that the host can go through the step again."""
    table = Table([Segment(40, sparse=False), Segment(70, sparse=True)])
    whole = torch.ones(110, device=DEVICE)
    tensors = list(whole.split([40, 70]))
    codec = GpuSegments(table, tensors, tensors, 1)
    words = poisoned(table.scale_words)
    bitmap = codec.write_scales(words)
    codec.read_scales(bits(words))
    counts, launches = codec.place(bitmap), []
    monkeypatch.setattr(launch, "run", lambda kernel, *rest, **options: launches.append(kernel))
    codec.read(*(torch.zeros(count, dtype=torch.int32, device=DEVICE) for count in counts), 1)
    assert len(launches) == 1
