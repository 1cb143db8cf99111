"""The cost of a strategy in addition to the compressor that it chooses.

Two ranks over gloo sum four buckets by turns with a fixed compressor and with a strategy that chooses it, so
that other work on the machine hits both alike. Figures are of rank 0, medians over rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import numpy as np

from peelsum.bench.ranks import results_of
from peelsum.experiments import Column, Experiment, Size

_RATIO, _RANKS, _BUCKETS = 0.01, 2, 4
_TIMEOUT = timedelta(seconds=60)
#: Seconds of processor time and of time a step, of every round.
_Found = dict[str, list[tuple[float, float]]]


def measure(seed: int, elements: int, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Measure `rounds` times `steps` steps of each. Raises what a rank raises."""
    found: _Found = results_of(_RANKS, _rank, elements, rounds, steps)[0]
    return [_row(by, measured, found["compressor"]) for by, measured in found.items()]


def _row(
    by: str, measured: list[tuple[float, float]], compressor: list[tuple[float, float]]
) -> dict[str, Any]:
    more = [one[0] - other[0] for one, other in zip(measured, compressor, strict=True)]
    quartiles = tuple(float(round(1e3 * one, 3)) for one in np.quantile(more, (0.25, 0.5, 0.75)))
    cpu, wall = (round(1e3 * median(column), 3) for column in zip(*measured, strict=True))
    return {"by": by, "cpu_ms": cpu, "wall_ms": wall, "more_cpu_ms": quartiles}


def _rank(rank: int, path: str, elements: int, rounds: int, steps: int) -> _Found:
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # not exported, but documented

    from peelsum.compress import StarTopK
    from peelsum.flexible import Flexible
    from peelsum.torch import SwitchAllreduceState

    torch.set_num_threads(1)
    store = FileStore(path, _RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_RANKS, timeout=_TIMEOUT)
    strategy = Flexible(ratios=(_RATIO,), methods=("ar_top_k_ring",))
    states = {
        "compressor": SwitchAllreduceState(over="gloo", compressor=StarTopK(_RATIO)),
        "strategy": SwitchAllreduceState(over="gloo", strategy=strategy),
    }
    steppers = {by: _stepper(state, elements // _BUCKETS, rank) for by, state in states.items()}
    found: _Found = {by: [] for by in states}
    for number in range(rounds + 1):
        for by, step in steppers.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(steps):
                step()
            if number:  # the first round opens connections and compiles
                spent = time.process_time() - cpu, time.perf_counter() - wall
                found[by].append((spent[0] / steps, spent[1] / steps))
    for state in states.values():
        state.close()
    dist.destroy_process_group()
    return found


def _stepper(state: Any, elements: int, rank: int) -> Callable[[], None]:
    """Return a function that sums a step's buckets."""
    import torch

    parameters = [torch.nn.Parameter(torch.zeros(elements)) for _ in range(_BUCKETS)]
    generator = torch.Generator().manual_seed(rank)
    gradients = [torch.randn(elements, generator=generator) for _ in parameters]

    def step() -> None:
        sums = [
            state.submit(gradient.clone(), [parameter])
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
        state.end_step()
        for one in sums:
            one.wait()

    return step


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "by": Column("`compressor` or `strategy`"),
        "cpu_ms": Column("milliseconds of processor time of a step, of all threads"),
        "wall_ms": Column("milliseconds from first to last sum of a step"),
        "more_cpu_ms": Column("processor time beyond the compressor's in the same round: quartiles"),
    },
    keys=("by",),
    sizes={
        "quick": Size([{"elements": 1 << 14, "rounds": 3, "steps": 2}], 1),
        "usual": Size([{"elements": (1 << 14, 1 << 20), "rounds": 60, "steps": 5}], 1),
    },
    needs=("torch",),
)
