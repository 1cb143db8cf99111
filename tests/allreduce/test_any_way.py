"""All three implementations give the same exact bits for any dtype, size, support, workers and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gpu_device import DEVICE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sums_of_floats import DTYPES, FAR, ODD_SIZES, SLOW, check, typed, workers_of

from peelsum.allreduce import Allreduce, NetworkModel
from peelsum.codec import BFloat16, threads


def any_way(draw: Callable[..., Any]) -> dict[str, Any]:
    """Draw settings that must not change a sum."""
    return {
        "forms": draw(st.sampled_from(["dense", "sparse", "auto"])),
        "values": draw(st.sampled_from(["compact", "sketch", "auto"])),
        "implementation": draw(st.sampled_from(["cpu", "reference"])),
        "cells_per_candidate": draw(st.floats(0.05, 3.0)),
        "network": draw(st.sampled_from([SLOW, FAR, NetworkModel()])),
        "seed": draw(st.integers(0, 2**64)),
    }


def supports(n: int) -> dict[str, Any]:
    """Return where non-zeros may be: bool[n] by name."""
    at = np.arange(n)
    return {
        "anywhere": at >= 0,
        "rows": at // 64 % 5 == 1,
        "columns": at % 256 < 3,
        "ends": (at == 0) | (at == n - 1),
    }


def check_steps(group: Any, draw: Callable[..., Any], n: int, steps: int) -> None:
    """Run steps of one tensor."""
    workers, dtype = len(group.reduces), draw(st.sampled_from(DTYPES))
    for step in range(steps):
        density = draw(st.sampled_from([0.0, 0.01, 0.2, 1.0])) / (1 if n < 1000 else 10)
        where = supports(n)[draw(st.sampled_from(sorted(supports(0))))]
        arrays = workers_of(n, workers, density, step, spread=draw(st.integers(1, 12)))
        arrays = [np.where(where, array, np.float32(0)) for array in arrays]
        tensors, meant = zip(*(typed(array, dtype) for array in arrays), strict=True)
        check(group.sum([{"g": mine} for mine in tensors]), meant)


@pytest.mark.parametrize(("octaves", "finer"), [(56, 56), (64, 0), (66, 2)])
def test_levels_of_blocks_repeat_after_64_octaves(make_workers: Any, octaves: int, finer: int) -> None:
    """A worker far below the others lets a block count as up to 64 octaves higher than it is."""
    far, near = np.zeros((2, 96), np.float32)
    far[0], near[40], near[70] = 2.0**40, 2.0 ** (40 - octaves), 2.0 ** (40 - octaves + 40)
    results = make_workers(2, 16, forms="dense").sum([{"g": far}, {"g": near}])
    scales = results[0]["g"].scales
    assert scales[40] - scales[0] == finer
    check(results, [far, near])


@settings(
    deadline=None,
    derandomize=True,
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the fixtures hold no state
)
@given(data=st.data())
def test_any_way_any_size(make_workers: Any, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 32))
    magnitudes = st.integers(0, 5).flatmap(lambda digits: st.integers(0, 10**digits // workers))
    n = data.draw(st.one_of(magnitudes, st.sampled_from(ODD_SIZES if workers < 5 else ODD_SIZES[:-4])))
    choices = any_way(data.draw)
    lanes = data.draw(st.integers(1, 64) if n < 2000 else st.sampled_from([32, 77, 256]))
    check_steps(make_workers(workers, lanes, **choices), data.draw, n, 3)


@settings(
    deadline=None,
    derandomize=True,
    max_examples=16,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # set alike in every example
)
@given(data=st.data())
def test_any_way_up_to_a_million_on_several_cores(
    make_workers: Any, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(threads, "PER_CORE", 2**14)
    workers = data.draw(st.integers(1, 3))
    n = data.draw(st.one_of(st.integers(10**5, 10**6), st.sampled_from([2**19 + 1, 10**6 - 1, 10**6])))
    choices = any_way(data.draw)
    group = make_workers(workers, data.draw(st.sampled_from([251, 256, 1024])), **choices)
    check_steps(group, data.draw, n, 2)


class OnHost:
    """A result on a device, with the interface of a result on the host."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self.values = result.values.cpu().numpy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)


def on_device(tensor: Any) -> torch.Tensor:
    """Return a copy on the device of a host's tensor."""
    if isinstance(tensor, BFloat16):
        return torch.from_numpy(tensor.bits.view("int16").copy()).view(torch.bfloat16).to(DEVICE)
    return torch.from_numpy(tensor.copy()).to(DEVICE)


@settings(
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the fixtures hold no state
)
@given(data=st.data())
def test_all_three_implementations_in_one_job(make_workers: Any, data: st.DataObject) -> None:
    choices = any_way(data.draw)
    del choices["implementation"]
    group = make_workers(3, data.draw(st.integers(1, 64)), implementation="cpu", **choices)
    for worker, implementation in ((0, "gpu"), (1, "reference")):
        group.reduces[worker] = Allreduce(group.summations[worker], implementation=implementation, **choices)
    n, dtype = (
        data.draw(st.one_of(st.integers(0, 700), st.sampled_from(ODD_SIZES[:7]))),
        data.draw(st.sampled_from(DTYPES)),
    )
    for step in range(2):
        arrays = workers_of(n, 3, data.draw(st.sampled_from([0.0, 0.02, 0.3])), step)
        tensors, meant = zip(*(typed(array, dtype) for array in arrays), strict=True)
        ours, *theirs = group.sum([{"g": on_device(tensors[0])}, *({"g": mine} for mine in tensors[1:])])
        results = [{"g": OnHost(ours["g"])}, *theirs]
        check(results, meant)
