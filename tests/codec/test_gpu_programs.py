"""Peeling and prefix sums are right if programs run at once, and see others' writes as late as on a GPU.

On a GPU, `make gpu` runs the same kernels with all their programs; these tests are for the interpreter.
"""

import numpy as np
import pytest
from gpu_device import REAL, on_device, poisoned, poisoned_allocations, same
from gpu_programs import SUPPORTED, at_once
from triton.language import constexpr  # after gpu_device, which chooses the interpreter

from peelsum.codec import SketchLayout, device
from peelsum.codec.gpu import GpuDevice
from peelsum.codec.gpu import sketch as peeling
from peelsum.codec.gpu.index import scan_kernel
from peelsum.codec.gpu.launch import SCANNED_WORDS

__all__ = ["poisoned_allocations"]

pytestmark = [
    pytest.mark.skipif(REAL, reason="replaces the interpreter's memory"),
    pytest.mark.skipif(not SUPPORTED, reason="needs the interpreter of Triton 3.9"),
]


def peeled(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peel a drawn sketch by several programs; require the reference's numbers."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(peeling, "_CANDIDATES", int(rng.choice([4, 16])))
    programs = int(rng.integers(3, 13))
    monkeypatch.setattr(peeling, "_cooperative_programs", lambda _: programs)
    layout = SketchLayout(int(rng.integers(20, 60)), seed, int(rng.choice([1, 2])))
    k = int(layout.cells * rng.choice([0.6, 0.75, 0.85]))
    where = np.sort(rng.choice(20 * k, k, replace=False)).astype(np.int64)
    numbers = rng.integers(-(2**31), 2**31, k).astype(np.int32)
    sketch, expected, out = np.empty(layout.cells, np.uint32), np.empty(k, np.int32), poisoned(k)
    device("reference").sketch_encode(layout, where, numbers, sketch)
    left = device("reference").sketch_decode(layout, sketch, where, expected)
    with at_once(seed) as launches:
        ours = GpuDevice().sketch_decode(layout, on_device(sketch), on_device(where), out)
    assert launches[0].accesses > 20
    same(ours, left)
    peeled_ones = np.setdiff1d(np.arange(k), left)
    same(out, numbers, peeled_ones)
    same(out, expected)


@pytest.mark.parametrize(
    "seed", [0, 2, 3, 5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 4, *range(6, 12)))]
)
def test_programs_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    peeled(seed, monkeypatch)


@pytest.mark.parametrize("seed", range(3))
def test_tiles_are_counted_in_order_by_programs_at_once(seed: int) -> None:
    """A program waits until all tiles before its own have said how many bits they hold."""
    rng = np.random.default_rng(seed)
    bitmap = rng.integers(0, 2**32, 5 * SCANNED_WORDS + 3, np.uint32) * (
        rng.random(5 * SCANNED_WORDS + 3) < 0.1
    )
    bitmap, n = bitmap.astype(np.uint32), 32 * len(bitmap) - 5
    expected = device("reference").positions(bitmap, n)
    with at_once(seed, scan_kernel) as launches:
        same(GpuDevice().positions(on_device(bitmap), n, 0, len(expected)), expected)
    assert launches[0].accesses > 20


def _alone(arrived: object, times: object, members: object) -> None:
    """A barrier that lets everyone pass."""


@pytest.mark.parametrize(
    ("name", "fault"), [("_SHARED", constexpr("")), ("_barrier", _alone)], ids=["own cache", "no barrier"]
)
def test_a_fault_is_seen(name: str, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of earlier rounds in an SM's own cache made peeling wrong on a device, and only there."""
    monkeypatch.setattr(peeling, name, fault)
    for seed in range(12):
        with monkeypatch.context() as patched:
            try:
                peeled(seed, patched)
            except (AssertionError, RuntimeError):
                return
    pytest.fail("no launch was wrong")
