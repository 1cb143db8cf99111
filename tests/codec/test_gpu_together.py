"""Launches that are kept and then made together: fewer of them, in an order that each lane keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gpu_counts import counted
from gpu_device import DEVICE, bits, on_device

from peelsum.codec import FixedPoint, gpu, gpu_launch, gpu_memory, gpu_together, index_words, reference

SIZES = [0, 1, 5000, 33]


def values(n: int) -> Any:
    rng = np.random.default_rng(n)
    return ((rng.random(n) < 0.2) * rng.normal(size=n)).astype(np.float32)


def test_lanes_of_different_launches() -> None:
    """Some lanes have scales of blocks, one has more launches than others; all have the reference's bits."""
    made: list[Any] = []
    with counted() as counts, gpu_launch.together() as together:
        for m, n in enumerate(SIZES):
            with together.lane():
                sample, index = on_device(values(n)), torch.empty(index_words(n), dtype=torch.int32)
                words = torch.empty(-(-n // 64), dtype=torch.int32, device=DEVICE)
                index = index.to(DEVICE)
                if m % 2:
                    gpu.index(sample, index)
                else:
                    gpu.index_exponents(sample, 64, index, words)
                where = gpu.positions(index, n, count=int(np.count_nonzero(values(n))))
                numbers = torch.empty(len(where), dtype=torch.int32, device=DEVICE)
                gpu.quantize_at(sample, where, FixedPoint(9 + m), numbers)
                made.append((index, words, where, numbers, gpu_memory.later(where)))
    assert counts.kernels["index_kernel"] == counts.kernels["positions_kernel"] == 1, str(counts)
    assert counts.kernels["quantize_at_kernel"] == counts.operations["cat"] == 1, str(counts)
    for m, (n, (index, words, where, numbers, near)) in enumerate(zip(SIZES, made, strict=True)):
        bitmap, exponents = np.empty(index_words(n), np.uint32), np.empty(-(-n // 64), np.uint32)
        reference.index(values(n), bitmap)
        np.testing.assert_array_equal(bits(index), bitmap)
        if not m % 2:
            reference.block_exponents(values(n), 64, exponents)
            np.testing.assert_array_equal(bits(words), exponents)
        found = np.flatnonzero(values(n))
        truth = np.empty(found.size, np.int32)
        reference.quantize_at(values(n), found, FixedPoint(9 + m), truth)
        np.testing.assert_array_equal(where.cpu(), found)
        np.testing.assert_array_equal(near(), found)
        np.testing.assert_array_equal(numbers.cpu(), truth)


def test_what_is_read_is_made_first() -> None:
    with gpu_launch.together() as together, together.lane():
        index = torch.empty(2, dtype=torch.int32, device=DEVICE)
        gpu.index(on_device(np.ones(40, np.float32)), index)
        assert gpu.count(index, 40) == 40


def test_an_error_leaves_nothing_behind() -> None:
    """Numbers that have not reached the device are not kept."""
    gpu_together._NUMBERS.clear()
    into = torch.ones(3, dtype=torch.int32, device=DEVICE)

    def launches() -> None:
        with gpu_launch.together() as together, together.lane():
            gpu_together.clear(into)
            gpu_together.number(7, torch.int64, DEVICE)
            raise KeyError

    with pytest.raises(KeyError):
        launches()
    assert into.tolist() == [1, 1, 1]
    assert gpu_together.number(7, torch.int64, DEVICE).tolist() == [7]


def test_numbers_of_both_widths() -> None:
    gpu_together._NUMBERS.clear()
    wanted = [(m * (-1) ** m, dtype) for m in range(70) for dtype in (torch.int32, torch.int64)]
    with gpu_launch.together() as together, together.lane():
        made = [gpu_together.number(value, dtype, DEVICE) for value, dtype in wanted]
    for (value, dtype), there in zip(wanted, made, strict=True):
        assert there.dtype == dtype
        assert there.tolist() == [value]
        assert gpu_together.number(value, dtype, DEVICE) is there


def test_launches_of_many_programs_are_made_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_together, "_MANY_PROGRAMS", 2)
    with counted() as counts, gpu_launch.together() as together:
        for n in (5000, 40, 50, 6000):
            with together.lane():
                gpu.index(on_device(values(n)), torch.empty(index_words(n), dtype=torch.int32, device=DEVICE))
    assert counts.kernels["index_kernel"] == 3, str(counts)


def test_programs_that_meet_all_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the tensors has a share of the programs that fit the device, at least one."""
    monkeypatch.setattr(gpu_together, "cooperating", lambda device: 100)
    options = {"launch_cooperative_grid": True}
    kept = [
        gpu_together._Kept("key", [torch.ones(1)], "kernel", programs, (), options) for programs in (60, 3)
    ]
    assert gpu_together._programs(kept) == [50, 3]
    lanes = [gpu_together.deque([kept[0]]) for _ in range(130)]
    groups = list(gpu_together._in_step(lanes))
    assert [len(group) for group in groups] == [64, 64, 2]
    assert all(sum(gpu_together._programs(group)) <= 100 for group in groups)
