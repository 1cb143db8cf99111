"""The sketch is lossless: encoding is linear, decoding is its inverse, and all workers know the left-over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from peelsum.codec import SUB_TABLES, CodecError, Kernels, SketchLayout, cpu, kernels
from peelsum.codec.layout import MIX_STEP, mix

Support = Callable[[np.random.Generator, int, int], NDArray[np.int64]]
INT32 = st.integers(-(2**31), 2**31 - 1)
IMPLEMENTATIONS = pytest.mark.parametrize(
    "ops", [kernels("cpu"), kernels("reference")], ids=["cpu", "reference"]
)


def encoded(
    ops: Kernels, layout: SketchLayout, where: NDArray[np.int64], values: NDArray[np.int32]
) -> NDArray[np.uint32]:
    sketch = np.empty(layout.cells, np.uint32)
    ops.sketch_encode(layout, where, values, sketch)
    return sketch


def decoded_with_left_over_round(
    ops: Kernels,
    layout: SketchLayout,
    sketch: NDArray[np.uint32],
    where: NDArray[np.int64],
    total: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the workers' final sums: peeled values, and one `compact` round for the left-over."""
    values = np.empty(where.size, np.int32)
    left = ops.sketch_decode(layout, sketch, where, values)
    assert (np.diff(left) > 0).all()
    assert not values[left].any()
    values[left] = total[left]
    return values, left


def two_core(layout: SketchLayout, where: NDArray[np.int64]) -> list[int]:
    """Return the candidates that share every cell with another, by repeated deletion from a dictionary."""
    cells = {k: cells_of(layout, int(i)) for k, i in enumerate(where)}
    while True:
        load = Counter(cell for places in cells.values() for cell in places)
        pure = [k for k, places in cells.items() if any(load[cell] == 1 for cell in places)]
        if not pure:
            return sorted(cells)
        for k in pure:
            del cells[k]


def cells_of(layout: SketchLayout, element: int) -> list[int]:
    """Return an element's cells, computed in Python's integers."""
    block, lane = divmod(element, layout.lanes)
    places = []
    for j in range(SUB_TABLES):
        mixed = mix(((SUB_TABLES * block + j) * MIX_STEP + layout.seed) % 2**64)
        row = (mixed >> 32) * layout.rows >> 32
        rotated = (lane + ((mixed % 2**31) * layout.lanes >> 31)) % layout.lanes
        places.append((j * layout.rows + row) * layout.lanes + rotated)
    return places


@IMPLEMENTATIONS
@pytest.mark.parametrize("n", [0, 1, 31, 997, 4096])
@pytest.mark.parametrize("cells_per_candidate", [1.6, 1.4, 0.14])
def test_decode_inverts_encode_for_any_support(
    ops: Kernels, support: Support, n: int, cells_per_candidate: float
) -> None:
    rng, lanes = np.random.default_rng(n), 32
    where = support(rng, n, lanes)
    values = rng.integers(-(2**31), 2**31, where.size).astype(np.int32)
    layout = SketchLayout.sized(where.size, lanes, 99, cells_per_candidate)
    got, left = decoded_with_left_over_round(ops, layout, encoded(ops, layout, where, values), where, values)
    np.testing.assert_array_equal(got, values)
    assert left.tolist() == two_core(layout, where)
    if cells_per_candidate < 1 and where.size > 500:
        assert left.size > where.size / 2


@IMPLEMENTATIONS
@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_encoding_is_linear_over_the_union(ops: Kernels, support: Support, workers: int) -> None:
    rng, n, lanes = np.random.default_rng(workers), 2003, 16
    supports = [support(rng, n, lanes) for _ in range(workers)]
    dense = np.zeros((workers, n), np.int32)
    for row, where in zip(dense, supports, strict=True):
        row[where] = rng.integers(-(2**31), 2**31, where.size)
    union = np.unique(np.concatenate(supports))
    layout = SketchLayout.sized(union.size, lanes, 7)
    with np.errstate(over="ignore"):
        total = dense.sum(axis=0, dtype=np.int32)
    parts = [encoded(ops, layout, where, row[where]) for row, where in zip(dense, supports, strict=True)]
    added = np.sum(parts, axis=0, dtype=np.uint32)
    np.testing.assert_array_equal(added, encoded(ops, layout, union, total[union]))
    got, left = decoded_with_left_over_round(ops, layout, added, union, total[union])
    np.testing.assert_array_equal(got, total[union])
    assert left.tolist() == two_core(layout, union)


def test_numbers_of_cells_past_int32_decode_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    where = np.flatnonzero(rng.random(5000) < 0.1)
    values = rng.integers(-(2**31), 2**31, where.size).astype(np.int32)
    layout = SketchLayout.sized(where.size, 32, 1, 1.2)
    sketch = encoded(kernels(), layout, where, values)
    narrow, wide = np.empty(where.size, np.int32), np.empty(where.size, np.int32)
    left = kernels().sketch_decode(layout, sketch, where, narrow)
    monkeypatch.setattr(cpu, "_NARROW_CELLS", 0)
    np.testing.assert_array_equal(kernels().sketch_decode(layout, sketch, where, wide), left)
    np.testing.assert_array_equal(wide, narrow)


@settings(deadline=None, derandomize=True)
@given(
    elements=st.dictionaries(st.integers(0, 2**40), INT32, max_size=60),
    lanes=st.integers(1, 40),
    rows=st.integers(1, 12),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_support_any_size_any_seed(elements: dict[int, int], lanes: int, rows: int, seed: int) -> None:
    where = np.array(sorted(elements), np.int64)
    values = np.array([elements[i] for i in sorted(elements)], np.int32)
    layout = SketchLayout(lanes, rows, seed)
    sketches = [encoded(kernels(name), layout, where, values) for name in ("cpu", "reference")]
    np.testing.assert_array_equal(sketches[0], sketches[1])
    for name in ("cpu", "reference"):
        got, left = decoded_with_left_over_round(kernels(name), layout, sketches[0], where, values)
        np.testing.assert_array_equal(got, values)
        assert left.tolist() == two_core(layout, where)


@IMPLEMENTATIONS
def test_each_element_adds_its_sign_once_to_each_sub_table(ops: Kernels) -> None:
    layout = SketchLayout(24, 5, 3)
    for element in (0, 23, 24, 1000, 2**33 + 11):
        sketch = encoded(ops, layout, np.array([element]), np.array([1], np.int32))
        touched = np.flatnonzero(sketch)
        assert sorted(touched) == sorted(cells_of(layout, element))
        assert (touched // (5 * 24)).tolist() == [0, 1, 2]
        assert set(sketch[touched].tolist()) <= {1, 2**32 - 1}


def test_signs_rows_and_rotations_are_spread() -> None:
    layout = SketchLayout(64, 16, 12345)
    where = np.arange(0, 64 * 4000, 64)
    load = np.zeros(layout.cells, np.uint32)
    negative = 0
    for element in where:
        sketch = encoded(kernels(), layout, np.array([element]), np.array([1], np.int32))
        load += sketch != 0
        negative += int((sketch == 2**32 - 1).sum())
    assert abs(negative - 6000) < 300
    assert load.max() < 20  # 4000 balls in 1024 cells of each sub-table: 3.9 expected in each


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["uniform", "half the columns dead", "rows of 64"])
def test_default_size_peels_a_bucket_to_the_end(seed: int, kind: str) -> None:
    rng, n, lanes = np.random.default_rng(seed), 1 << 20, 256
    chosen = rng.random(n) < 0.01
    if kind == "half the columns dead":
        chosen = (rng.random(n) < 0.02) & (np.arange(n) % lanes < lanes // 2)
    elif kind == "rows of 64":
        chosen = np.repeat(rng.random(n // 64) < 0.01, 64)
    where = np.flatnonzero(chosen)
    values = rng.integers(-(2**31), 2**31, where.size).astype(np.int32)
    layout = SketchLayout.sized(where.size, lanes, seed)
    got, sketch = np.empty(where.size, np.int32), encoded(kernels(), layout, where, values)
    assert kernels().sketch_decode(layout, sketch, where, got).size == 0
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize(
    ("candidates", "segments", "share"),
    [(0, 1, 1), (1, 1, 1), (65536, 1, 65536), (65537, 2, 32769), (131072, 2, 65536), (10**6, 16, 62500)],
)
def test_a_known_union_is_cut_into_even_segments(candidates: int, segments: int, share: int) -> None:
    layout = SketchLayout.segmented(candidates, 32, 5, 1.3)
    assert (layout.segments, layout.share) == (segments, share)
    assert layout.rows == SketchLayout.sized(share if segments > 1 else candidates, 32, 5, 1.3).rows
    slices = layout.slices(candidates)
    assert [i for a, b in slices for i in range(a, b)] == list(range(candidates))
    assert len(slices) == segments


@pytest.mark.parametrize(
    ("lanes", "rows", "seed", "field"),
    [(0, 1, 0, "lanes"), (1, 0, 0, "rows"), (1, 2**31, 0, "rows"), (1, 1, -1, "seed"), (1, 1, 2**64, "seed")],
)
def test_impossible_layouts_are_refused(lanes: int, rows: int, seed: int, field: str) -> None:
    with pytest.raises(CodecError, match=f"^{field}: .*; use "):
        SketchLayout(lanes, rows, seed)


@pytest.mark.parametrize("size", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_sizes_are_refused(size: float) -> None:
    with pytest.raises(CodecError, match=r"^cells_per_candidate: "):
        SketchLayout.sized(10, 32, 0, size)
