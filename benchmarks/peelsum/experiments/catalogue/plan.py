"""Collectives over links of several rates and latencies, beside the cost model.

Collectives of torch.distributed over gloo, between network namespaces behind a relay that gives every link a
rate and a delay, predicted by the cost model of `peelsum.flexible` from the time of a short and of a long
message. All workers start at the same time of one clock; a time ends with the slowest. Every sum is compared
with an independent one. Needs root.
"""

from __future__ import annotations

from typing import Any

from peelsum.experiments import Column, Experiment, Size


def measure(
    seed: int,
    workers: int,
    mbit_each: tuple[float, ...],
    delay_ms_each: tuple[float, ...],
    words_each: tuple[int, ...],
) -> Any:
    """Measure all collectives between network namespaces."""
    from peelsum.bench.methods import measured

    return measured.measure(workers, mbit_each, delay_ms_each, words_each)


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
