"""Collectives over links of several rates and latencies, beside the cost model.

Collectives of torch.distributed over gloo, between network namespaces behind a relay that gives every link a
rate and a delay, predicted by the cost model of `peelsum.flexible` from the time of a short and of a long
message. All workers start at the same time of one clock; a time ends with the slowest. Every sum is compared
with an independent one. Needs root.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.methods.measured import Grid, MeasuredRow
from peelsum.bench.methods.measured import measure as measured
from peelsum.experiments import Experiment, Size, columns_of


def measure(
    seed: int,
    workers: int,
    mbit_each: tuple[float, ...],
    delay_ms_each: tuple[float, ...],
    words_each: tuple[int, ...],
) -> Any:
    """Measure all collectives between network namespaces."""
    return measured(Grid((workers,), mbit_each, delay_ms_each, words_each))


GRID = Grid()
EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(MeasuredRow, without=("workers",)),
    keys=("collective", "mbit", "delay_ms", "words"),
    sizes={
        "quick": Size(
            [
                {
                    "workers": (2,),
                    "mbit_each": ((100.0,),),
                    "delay_ms_each": ((0.0,),),
                    "words_each": ((1000,),),
                }
            ],
            1,
        ),
        "usual": Size(
            [
                {
                    "workers": GRID.workers,
                    "mbit_each": (GRID.mbit,),
                    "delay_ms_each": (GRID.delays_ms,),
                    "words_each": (GRID.words,),
                }
            ],
            1,
        ),
    },
    ranges={
        "workers": (2, 16),
        "mbit_each": (0.1, 10_000),
        "delay_ms_each": (0, 1000),
        "words_each": (1, 1 << 26),
    },
    needs=("torch",),
)
