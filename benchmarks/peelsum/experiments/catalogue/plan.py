"""Collectives over links of several rates and latencies, beside the cost model.

Collectives of torch.distributed over gloo, between network namespaces behind a relay that gives every link a
rate and a delay, predicted by the cost model of `peelsum.flexible` from the time of a short and of a long
message. All workers start at the same time of one clock; a time ends with the slowest. Every sum is compared
with an independent one. Needs root.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from peelsum.bench.methods.relay import RelayedLan
from peelsum.experiments import Column, Experiment, Size
from peelsum.flexible import COLLECTIVES, LinkModel
from peelsum.topology import Child, TopologyError
from peelsum.topology.namespaces import HOST_INTERFACE

#: Seconds that workers have to prepare a collective, and within which it must end.
_AHEAD_S, _PATIENCE_S = 0.03, 60.0
_REPEATS, _PROBE_WORDS = 3, 1 << 17


#: The collectives in a row of each that is measured.
_MODELS: dict[str, tuple[str, ...]] = {
    "broadcast": ("broadcast",),
    "all_gather": ("all_gather",),
    "all_reduce_ring": ("all_reduce_ring",),
    "all_reduce_tree": ("all_reduce_tree",),
    "ar_top_k_ring": ("broadcast", "all_reduce_ring"),
    "ar_top_k_tree": ("broadcast", "all_reduce_tree"),
}


def measure(
    seed: int,
    workers: int,
    mbit_each: tuple[float, ...],
    delay_ms_each: tuple[float, ...],
    words_each: tuple[int, ...],
) -> Iterator[dict[str, Any]]:
    """Measure all collectives between network namespaces. Raises TopologyError where there can be none."""
    with RelayedLan(workers) as lan, ExitStack() as processes:
        lan.shape(1.0)
        children = _started(processes, lan, workers)
        for mbit, delay_ms in product(mbit_each, delay_ms_each):
            lan.shape(mbit / 1e3, delay_ms / 1e3)
            link = _link(children)
            for words, name in product(words_each, _MODELS):
                seconds, wrong = _seconds(children, name, words)
                predicted = predict(name, link, workers, words)
                yield {
                    "collective": name,
                    "mbit": mbit,
                    "delay_ms": delay_ms,
                    "words": words,
                    "latency_ms": round(1e3 * link.latency_s, 4),
                    "gbps": round(link.gbps, 6),
                    "predicted_ms": round(1e3 * predicted, 3),
                    "measured_ms": round(1e3 * seconds, 3),
                    "error": round(predicted / seconds - 1, 4),
                    "wrong": wrong,
                }


def predict(name: str, link: LinkModel, workers: int, words: int) -> float:
    """Return the seconds of a collective of `words` words by the cost model."""
    return sum(COLLECTIVES[part](link, workers).seconds(words, 1) for part in _MODELS[name])


def _link(children: Sequence[Child]) -> LinkModel:
    """Measure the link by short and long messages; the first ones open connections."""
    for name in _MODELS:
        _once(children, name, _PROBE_WORDS)
    latency_s, _ = _seconds(children, "send", 1)
    long_s, _ = _seconds(children, "send", _PROBE_WORDS)
    return LinkModel(latency_s, 32 * _PROBE_WORDS / max(long_s - latency_s, 1e-9) / 1e9)


def _seconds(children: Sequence[Child], name: str, words: int) -> tuple[float, int]:
    """Return the median time of a collective, until the slowest worker is done, and wrong elements."""
    found = [_once(children, name, words) for _ in range(_REPEATS)]
    return median(seconds for seconds, _ in found), sum(wrong for _, wrong in found)


def _once(children: Sequence[Child], name: str, words: int) -> tuple[float, int]:
    at = time.monotonic() + _AHEAD_S
    for child in children:
        child.tell(name=name, words=words, at=at)
    answers = [child.next_line(_PATIENCE_S) for child in children]
    if None in answers:
        raise TopologyError("a worker ended early; run again, it may have been stopped")
    done = [answer for answer in answers if answer is not None]
    # In a point-to-point message, the sender is done before the receiver.
    return max(one["ended"] for one in done) - at, sum(one["wrong"] for one in done)


def _started(stack: ExitStack, lan: RelayedLan, workers: int) -> list[Child]:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))
    children = []
    for rank in range(workers):
        job = {
            "rank": rank,
            "workers": workers,
            "store": str(Path(folder) / "gloo"),
            "interface": HOST_INTERFACE,
        }
        command = [sys.executable, "-m", "peelsum.bench.methods.worker", json.dumps(job)]
        child = Child(f"worker {rank}", [*lan.prefix(rank), *command])
        stack.callback(child.stop)
        children.append(child)
    for child in children:
        child.ready()
    return children


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "collective": Column("the collective"),
        "mbit": Column("rate of every link, in Mbit/s"),
        "delay_ms": Column("delay of every link, in milliseconds"),
        "words": Column("32-bit words of every worker"),
        "latency_ms": Column("milliseconds that a short message took"),
        "gbps": Column("rate of a long message, in Gbit/s"),
        "predicted_ms": Column("milliseconds by the cost model, from latency and rate", modelled=True),
        "measured_ms": Column("median of three, each until the slowest worker was done"),
        "error": Column("`predicted_ms` over `measured_ms`, less 1"),
        "wrong": Column("elements of sums that were wrong, over all workers"),
    },
    keys=("collective", "mbit", "delay_ms", "words"),
    defaults={
        "workers": (2, 4),
        "mbit_each": ((20.0, 100.0),),
        "delay_ms_each": ((0.0, 2.0, 10.0),),
        "words_each": ((1_000, 25_000, 100_000),),
    },
    sizes={
        "quick": Size(
            [{"workers": 2, "mbit_each": ((100.0,),), "delay_ms_each": ((0.0,),), "words_each": ((1000,),)}],
            1,
        ),
        "usual": Size([{}], 1),
    },
    ranges={
        "workers": (2, 16),
        "mbit_each": (0.1, 10_000),
        "delay_ms_each": (0, 1000),
        "words_each": (1, 1 << 26),
    },
    needs=("torch",),
)
