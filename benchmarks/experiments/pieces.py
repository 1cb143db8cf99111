"""Reduce-scatter, all-gather and broadcast of the process group over the softswitch, beside gloo's.

Ranks are processes on this machine, with one thread each. In every round, each backend runs the same calls,
one after the other. `fsdp2_step` is a training step of a linear layer that `fully_shard` shards. Bytes are
those of peelsum's packets, headers included, over the whole tensor's; `ring` is what a ring sends and
receives. Results are compared with sums of integers that float32 holds exactly.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks import Experiment, Plot, Series, Size

#: What a ring sends and receives, in (n - 1) / n of the tensor. A step gathers once, and scatters once.
RING = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 1, "fsdp2_step": 2}
_LANES, _BATCH = 256, 4


class TimedCall(NamedTuple):
    """A call of one backend, to be repeated."""

    run: Callable[[], object]
    wrong: Callable[[int], int]
    """Returns the number of elements that are wrong after so many calls."""


def measure(seed: int, collective: str, elements: int, ranks: int, rounds: int, calls: int) -> dict[str, Any]:
    """Measure a collective over one switch, beside gloo; return the row. Raises what a rank raises.

    Bytes are those of rank 0, over those of the tensor. Each round, and one before them to warm up, makes
    `calls` calls.
    """
    width = ranks * max(1, int(elements**0.5) // ranks)
    results, sent, received = run_ranks(ranks, _rank, collective, width, rounds, calls, seed)
    whole = 4 * width**2 * calls * (rounds + 1)
    return {
        "sent": round(sent / whole, 3),
        "received": round(received / whole, 3),
        "ring": round(RING[collective] * (ranks - 1) / ranks, 3),
        **compared(results),
        "wrong": sum(result["wrong"] for result in results),
    }


def run_ranks(
    ranks: int, measure_rank: Callable[..., dict[str, Any]], *arguments: Any
) -> tuple[list[dict[str, Any]], int, int]:
    """Run `measure_rank` in a process for each rank, over a star.

    Return the ranks' results, and the bytes that rank 0 sent and received. Raises what a rank raises.
    """
    from peelsum.topology import Star
    from peelsum.wire import packet_bytes

    with (
        Star(ranks, lanes=_LANES) as star,
        TemporaryDirectory(prefix="peelsum-") as folder,
        ProcessPoolExecutor(ranks, mp_context=get_context("spawn")) as pool,
    ):
        seats = [json.dumps(asdict(seat)) for seat in star.seats]
        # No process is idle yet, so that each call starts one.
        running = [
            pool.submit(measure_rank, rank, f"{folder}/store", seats, *arguments) for rank in range(ranks)
        ]
        results = [future.result() for future in running]
    ports, size = star.report.ports if star.report is not None else {}, packet_bytes(_LANES)
    return results, size * ports["1"]["received"], size * ports["1"]["sent"]


def join(path: str, seats: list[str], rank: int) -> dict[str, Any]:
    """Join the process group over the switch as a rank; return it, and gloo's of the same ranks, by name."""
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # not exported, but documented

    from peelsum.torch.process_group import register_backend

    os.environ["PEELSUM_SEAT"] = seats[rank]
    torch.set_num_threads(1)
    register_backend()
    dist.init_process_group("peelsum", store=FileStore(path, len(seats)), rank=rank, world_size=len(seats))
    return {"peelsum": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


#: The columns of `compared`.
COMPARED = {
    "time_ms": "milliseconds a call, of the slowest rank",
    "gloo_time_ms": "the same with gloo, in the same round",
    "time_ratio": "`time_ms` over gloo's",
    "cpu_ms": "milliseconds of a rank's processor time a call, of the rank that takes most",
    "gloo_cpu_ms": "the same with gloo",
    "cpu_ratio": "`cpu_ms` over gloo's",
}


def compared(results: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians over rounds of the slowest rank, by backend, and peelsum's over gloo's."""
    each = {
        f"{name}{what}": 1e3
        * median(max(column) for column in zip(*(result[by][what] for result in results), strict=True))
        for by, name in (("peelsum", ""), ("gloo", "gloo_"))
        for what in ("time_ms", "cpu_ms")
    }
    ratios = {f"{what}_ratio": each[f"{what}_ms"] / each[f"gloo_{what}_ms"] for what in ("time", "cpu")}
    return {name: round(value, 3) for name, value in (each | ratios).items()}


def timed_rounds(
    groups: dict[str, Any], rounds: int, calls: int, prepare: Callable[[str], TimedCall]
) -> dict[str, Any]:
    """Run calls of each backend in every round; return times by backend, and the count of wrong elements.

    prepare: returns the call of a backend for one round. The first round, which opens connections and
    compiles, does not count. Leaves the process group.
    """
    import torch.distributed as dist

    result: dict[str, Any] = {by: {"time_ms": [], "cpu_ms": []} for by in groups} | {"wrong": 0}
    for number in range(rounds + 1):
        for by in groups:
            call = prepare(by)
            dist.barrier(group=groups["gloo"])
            cpu, began = time.process_time(), time.perf_counter()
            for _ in range(calls):
                call.run()
            spent = {"time_ms": time.perf_counter() - began, "cpu_ms": time.process_time() - cpu}
            result["wrong"] += call.wrong(calls * (number + 1))
            for figure, seconds in spent.items() if number else ():
                result[by][figure].append(seconds / calls)
    dist.destroy_process_group()
    return result


def _rank(
    rank: int, path: str, seats: list[str], collective: str, width: int, rounds: int, calls: int, seed: int
) -> dict[str, Any]:
    import numpy as np
    import torch

    groups = join(path, seats, rank)
    # Integers, whose sums float32 and 31-bit fixed point hold exactly.
    drawn = [
        np.random.default_rng([seed, worker]).integers(-999, 999, width**2) for worker in range(len(seats))
    ]
    everybody = torch.from_numpy(np.stack(drawn).astype(np.float32))
    by_group = {by: _call(collective, group, rank, everybody) for by, group in groups.items()}
    return timed_rounds(groups, rounds, calls, by_group.__getitem__)


def _call(collective: str, group: Any, rank: int, everybody: Any) -> TimedCall:
    """Return the call of a rank, given all ranks' values float32[ranks, width * width]."""
    import torch
    import torch.distributed as dist

    if collective == "fsdp2_step":
        return _fsdp2_step(group, rank, everybody)
    words, total = everybody[rank], everybody.sum(0)
    pieces = words.chunk(len(everybody))
    whole, piece = words.clone(), pieces[rank].clone()
    gathered = torch.cat([values.chunk(len(everybody))[n] for n, values in enumerate(everybody)])

    def reduce_scatter() -> None:
        dist.reduce_scatter_tensor(piece, words, group=group)

    def all_gather() -> None:
        dist.all_gather_into_tensor(whole, pieces[rank], group=group)

    calls: dict[str, tuple[Callable[[], object], Any, Any]] = {
        "all_reduce": (lambda: dist.all_reduce(whole.copy_(words), group=group), whole, total),
        "reduce_scatter": (reduce_scatter, piece, total.chunk(len(everybody))[rank]),
        "all_gather": (all_gather, whole, gathered),
        "broadcast": (lambda: dist.broadcast(whole, 0, group=group), whole, everybody[0]),
    }
    run, result, expected = calls[collective]
    return TimedCall(run, lambda _: int((result != expected).sum()))


def _fsdp2_step(group: Any, rank: int, everybody: Any) -> TimedCall:
    """Return a step of a layer of zeros, whose gradient's rows are the sum of its input's."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    width = int(everybody.shape[1] ** 0.5)
    inputs = everybody[:, : _BATCH * width].reshape(len(everybody), _BATCH, width)
    layer = torch.nn.Linear(width, width, bias=False)
    torch.nn.init.zeros_(layer.weight)
    fully_shard(layer, mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    gradient = inputs.sum((0, 1)) / len(everybody)

    def run() -> None:
        optimizer.zero_grad()
        layer(inputs[rank]).sum().backward()
        optimizer.step()

    weight: Any = layer.weight
    return TimedCall(run, lambda calls: int((weight.to_local() != -calls * gradient).sum()))


EXPERIMENT = Experiment(
    measure=measure,
    plots=[
        Plot(
            "bytes",
            x="collective",
            y="sent received ring",
            kind="bars",
            finding="""Of a reduce-scatter a rank receives {received@reduce_scatter:.2f} of the tensor, where
                a ring's rank moves {ring@reduce_scatter:.2f}; of a step of FSDP2 it sends
                {sent@fsdp2_step:.2f}, a ring's {ring@fsdp2_step:.2f}""",
            setting="""Rank 0 of four, 4 MiB over the softswitch, headers included. Measured; the ring is
                computed, without headers.""",
            ylabel="Bytes over those of the whole tensor",
            names={
                "sent": Series("peelsum, sent", "blue", ours=True),
                "received": Series("peelsum, received", "teal", ours=True),
                "ring": Series("gloo, NCCL: ring, each way", "grey"),
                **{name: name.replace("_", "-") for name in RING if name != "fsdp2_step"},
                "fsdp2_step": "a step of FSDP2",
            },
            height=4.6,
        )
    ],
    columns={
        "sent": "bytes that rank 0 sends to the switch, over those of the whole tensor",
        "received": "bytes that rank 0 gets from the switch, over those of the whole tensor",
        "ring": "what a ring sends, and receives, without headers",
        **COMPARED,
        "wrong": "elements with another value than an independent sum, over all ranks",
    },
    modelled_columns=("ring",),
    defaults={"collective": tuple(RING)},
    sizes={
        "quick": Size([{"elements": 2**12, "ranks": 2, "rounds": 1, "calls": 1}], 1),
        "usual": Size([{"elements": 2**20, "ranks": 4, "rounds": 5, "calls": 4}], 1),
    },
    ranges={"elements": (32, 2**28), "ranks": (2, 32), "rounds": (1, 1000), "calls": (1, 1000)},
    choices={"collective": tuple(RING)},
)
