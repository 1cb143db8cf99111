"""Time and bytes of exact sums over the softswitch, in nccl-tests' columns, beside dense sums.

Sizes go from `begin` to `end` bytes of float32, each `factor` times its predecessor. Switch, controller,
server and every worker are processes, connected by UDP over loopback; times are the slowest worker's. With
`trace`, the workers sum the last step of the trace in that folder. Every last sum is compared with one that
plain NumPy computes in 64 bits. A job of several `planes` has a switch and a server for each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peelsum.allreduce.plan import FORMS
from peelsum.bench.allreduce.rows import Row, bench_allreduce
from peelsum.experiments import Experiment, Size, Value, columns_of
from peelsum.wire import COMPILED_LANES, MAX_WORKERS


def measure(
    seed: int,
    begin: str,
    end: str,
    factor: float,
    iterations: int,
    warmups: int,
    check: bool,
    workers: int,
    density_each: tuple[float, ...],
    form_each: tuple[Any, ...],
    lanes: int,
    planes: int,
    trace: str | None,
) -> Any:
    """Measure each size dense, then in every density and form."""
    rows = bench_allreduce(
        begin=begin,
        end=end,
        factor=factor,
        iterations=iterations,
        warmups=warmups,
        check=check,
        workers=workers,
        densities=density_each,
        forms=form_each,
        lanes=lanes,
        planes=planes,
        seed=seed,
        trace=Path(trace) if trace else None,
    )
    return [{**vars(row), "ranks": row.workers} for row in rows]


def part(begin: str, end: str, iterations: int, workers: int) -> dict[str, tuple[Value, ...]]:
    """Return one part of the grid."""
    return {
        "begin": (begin,),
        "end": (end,),
        "factor": (4.0,),
        "iterations": (iterations,),
        "warmups": (2,),
        "check": (True,),
        "workers": (workers,),
        "density_each": ((0.01, 0.1),),
        "form_each": (("compact",),),
        "lanes": (COMPILED_LANES[-1],),
        "planes": (1,),
        "trace": (None,),
    }


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Row, without=("workers", "lanes"), ranks="workers that summed; a trace has its own"),
    keys=("size_bytes", "density", "form"),
    sizes={"quick": Size([part("64K", "64K", 1, 2)], 1), "usual": Size([part("1M", "16M", 5, 4)], 1)},
    ranges={"workers": (2, MAX_WORKERS), "planes": (1, 64), "density_each": (0, 1), "iterations": (1, 10**6)},
    choices={"lanes": COMPILED_LANES, "form_each": FORMS},
)
