"""Reduce-scatter, all-gather and broadcast of the process group over the softswitch, beside gloo's.

Ranks are processes on this machine, with one thread each. In every round, each backend runs the same calls,
one after the other. Bytes are those of peelsum's packets, headers included, over the whole tensor's; `ring`
is what a ring sends and receives. Results are compared with sums of integers that float32 holds exactly.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from peelsum.experiments import Column, Experiment, Plot, Size

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
_LANES = 256
_Found = dict[str, Any]


def measure(
    seed: int, collective_each: tuple[str, ...], elements: int, ranks: int, rounds: int, calls: int
) -> Iterator[dict[str, Any]]:
    """Measure each collective over a star of its own. Raises RuntimeError if a rank fails; it prints why."""
    from peelsum.topology import Star
    from peelsum.wire import packet_bytes

    context = multiprocessing.get_context("spawn")
    elements -= elements % ranks
    for collective in collective_each:
        answers: SimpleQueue[_Found] = context.SimpleQueue()
        with Star(ranks, lanes=_LANES) as star, TemporaryDirectory(prefix="peelsum-") as folder:
            given = (str(Path(folder) / "store"), answers, collective, elements, rounds, calls, seed)
            seats = [json.dumps(asdict(seat)) for seat in star.seats]
            processes = [
                context.Process(target=_rank, args=(rank, seat, ranks, *given))
                for rank, seat in enumerate(seats)
            ]
            for one in processes:
                one.start()
            for one in processes:
                one.join()
        if any(one.exitcode for one in processes):
            raise RuntimeError("a rank failed; see its output")
        ports = star.report.ports if star.report is not None else {}
        found = [answers.get() for _ in processes]
        whole, packet = 4 * elements * calls * (rounds + 1), packet_bytes(_LANES)
        yield {
            "collective": collective,
            "sent": round(packet * ports["1"]["received"] / whole, 3),
            "received": round(packet * ports["1"]["sent"] / whole, 3),
            "ring": round((2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks, 3),
            **_compared(found),
            "wrong": sum(one["wrong"] for one in found),
        }


def _compared(found: list[_Found]) -> dict[str, float]:
    """Return the medians over rounds of the slowest rank, by backend, and peelsum's over gloo's."""
    each = {
        f"{name}{what}": 1e3
        * median(max(column) for column in zip(*(one[by][what] for one in found), strict=True))
        for by, name in (("peelsum", ""), ("gloo", "gloo_"))
        for what in ("time_ms", "cpu_ms")
    }
    ratios = {f"{what}_ratio": each[f"{what}_ms"] / each[f"gloo_{what}_ms"] for what in ("time", "cpu")}
    return {name: round(value, 3) for name, value in (each | ratios).items()}


def _rank(
    rank: int,
    seat: str,
    ranks: int,
    path: str,
    answers: SimpleQueue[_Found],
    collective: str,
    elements: int,
    rounds: int,
    calls: int,
    seed: int,
) -> None:
    import os

    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # not exported, but documented

    from peelsum.torch.process_group import register_backend

    os.environ["PEELSUM_SEAT"] = seat
    torch.set_num_threads(1)
    register_backend()
    dist.init_process_group("peelsum", store=FileStore(path, ranks), rank=rank, world_size=ranks)
    groups = {"peelsum": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    # Multiples of a power of two, whose sums float32 and 31-bit fixed point hold exactly.
    drawn = np.stack(
        [np.random.default_rng([seed, one]).integers(-999, 999, elements) for one in range(ranks)]
    )
    everybody = torch.from_numpy(drawn.astype(np.float32))
    piece = slice(rank * elements // ranks, (rank + 1) * elements // ranks)
    whole, own = everybody[rank].clone(), everybody[rank][piece].clone()
    run: Callable[[Any], object] = {
        "all_reduce": lambda group: dist.all_reduce(whole, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter_tensor(own, everybody[rank], group=group),
        "all_gather": lambda group: dist.all_gather_into_tensor(whole, everybody[rank][piece], group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
    }[collective]
    total = everybody.sum(0)
    gathered = torch.cat([one.chunk(ranks)[number] for number, one in enumerate(everybody)])
    expected = {
        "all_reduce": total,
        "reduce_scatter": total[piece],
        "all_gather": gathered,
        "broadcast": everybody[0],
    }
    found: _Found = {by: {"time_ms": [], "cpu_ms": []} for by in groups} | {"wrong": 0}
    for number in range(rounds + 1):
        for by, group in groups.items():
            dist.barrier(group=groups["gloo"])
            cpu, began = time.process_time(), time.perf_counter()
            for _ in range(calls):
                if collective == "all_reduce":
                    whole.copy_(everybody[rank])
                run(group)
            spent = {"time_ms": time.perf_counter() - began, "cpu_ms": time.process_time() - cpu}
            result = own if collective == "reduce_scatter" else whole
            found["wrong"] += int((result != expected[collective]).sum())
            if number:  # the first round opens connections and compiles
                for what, value in spent.items():
                    found[by][what].append(value / calls)
    answers.put(found)
    dist.destroy_process_group()


def draw(figure: Any, groups: Sequence[Any]) -> None:
    """Draw what rank 0 sends and receives in each collective, beside a ring's."""
    axes = figure.subplots()
    figure.suptitle("Bytes of a rank over the tensor's", fontweight="bold")
    for number, name in enumerate(("sent", "received", "ring")):
        heights = [group.figures[name].median for group in groups]
        axes.bar([place + 0.27 * (number - 1) for place in range(len(groups))], heights, 0.25, label=name)
    axes.set_xticks(range(len(groups)), [group.point["collective"] for group in groups])
    axes.legend()


EXPERIMENT = Experiment(
    measure=measure,
    plots=[Plot("bytes", x="collective_each", y="sent", fill=draw)],
    columns={
        "collective": Column("the call of torch.distributed"),
        "sent": Column("bytes that rank 0 sends to the switch, over those of the whole tensor"),
        "received": Column("bytes that rank 0 gets from the switch, over those of the whole tensor"),
        "ring": Column("what a ring sends, and receives, without headers"),
        "time_ms": Column("milliseconds a call, of the slowest rank"),
        "gloo_time_ms": Column("the same with gloo, in the same round"),
        "time_ratio": Column("`time_ms` over gloo's"),
        "cpu_ms": Column("milliseconds of a rank's processor time a call, of the rank that takes most"),
        "gloo_cpu_ms": Column("the same with gloo"),
        "cpu_ratio": Column("`cpu_ms` over gloo's"),
        "wrong": Column("elements with another value than an independent sum, over all ranks"),
    },
    keys=("collective",),
    defaults={"collective_each": (COLLECTIVES,)},
    sizes={
        "quick": Size([{"elements": 2**12, "ranks": 2, "rounds": 1, "calls": 1}], 1),
        "usual": Size([{"elements": 2**20, "ranks": 4, "rounds": 5, "calls": 4}], 1),
    },
    ranges={"elements": (32, 2**28), "ranks": (2, 32), "rounds": (1, 1000), "calls": (1, 1000)},
    choices={"collective_each": COLLECTIVES},
    needs=("torch",),
)
