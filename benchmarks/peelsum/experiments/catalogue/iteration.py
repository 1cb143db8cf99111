"""Time of a training iteration, from traces.

Traces of four workers that train the small models of `peelsum.training`: the time of computing in the
trace, plus the sum of one step's gradients, dense and sparse, without overlap. Computing is processor time of
one core (`peelsum trace record --model MODEL --steps 5`, 2026-11-25, 2 shared cores of AMD EPYC, load 10).
Sums are modelled: the cost model of `peelsum.flexible` knows the fastest sparse form for links of `gbps`. The
models are hundreds of times smaller than the paper's. The page of training times has measured iterations.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from peelsum.experiments import Column, Experiment, Plot, Published, Size, Value

MODELS = ("ncf", "lstm", "vgg19", "bert")
LANES = 256


def folder(model: str) -> Path:
    """Return the folder of a model's trace, which is installed with the package."""
    import peelsum.experiments as package

    return Path(package.__file__).parent / "traces" / model


def measure(seed: int, model: str, gbps: float) -> dict[str, Value]:
    """Add the computing time of the trace to a dense and to a sparse sum."""
    compute_s = computing(model)
    dense_s, sparse_s, ratio = modelled(model, gbps)
    return {
        "speedup": (compute_s + dense_s) / (compute_s + sparse_s),
        "sum_speedup": dense_s / sparse_s,
        "compute_ms": 1e3 * compute_s,
        "dense_ms": 1e3 * dense_s,
        "sparse_ms": 1e3 * sparse_s,
        "bytes_over_dense": ratio,
    }


@cache
def traces(model: str) -> list[Any]:
    """Return the traces of a model's workers."""
    from peelsum.traces import read_folder

    return read_folder(folder(model))


def computing(model: str) -> float:
    """Return the seconds until a step's last bucket is ready: the least over steps, the most of workers.

    The first step does not count: it has no optimizer before it.
    """
    import numpy as np

    return float(max(np.nanmax(trace.ready_s[1:], axis=1).min() for trace in traces(model)))


def modelled(model: str, gbps: float) -> tuple[float, float, float]:
    """Return the seconds of a dense and of the fastest sparse sum by the cost model, and bytes."""
    import numpy as np

    from peelsum.allreduce import Settings
    from peelsum.allreduce.costs import Seen, candidates
    from peelsum.codec import kernels
    from peelsum.flexible import LinkModel, SwitchPath

    total = sum(trace.gradient(-1) for trace in traces(model))
    found = Seen(tuple(kernels().occupied(np.flatnonzero(total)).tolist()))
    network = SwitchPath(LANES).network(LinkModel(50e-6, gbps))
    ways = list(candidates(total.size, found, Settings()))
    dense = min((one for one in ways if one.choice.form == "dense"), key=lambda one: one.seconds(network))
    sparse = min((one for one in ways if one.choice.form != "dense"), key=lambda one: one.seconds(network))
    return dense.seconds(network), sparse.seconds(network), sparse.words / dense.words


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "speedup": Column("time of an iteration with dense sums over that with sparse ones", modelled=True),
        "sum_speedup": Column("the same for the sums alone", modelled=True),
        "compute_ms": Column("milliseconds of processor time of computing, as recorded in the trace"),
        "dense_ms": Column("milliseconds of a dense sum", modelled=True),
        "sparse_ms": Column("milliseconds of a sparse sum", modelled=True),
        "bytes_over_dense": Column(
            "bytes of the sparse sum that a worker sends, over the dense", modelled=True
        ),
    },
    sizes={"usual": Size([{"model": MODELS, "gbps": (0.1, 0.4, 1.0, 10.0, 25.0, 100.0)}], 1)},
    plots=[Plot("speedup", x="gbps", y="speedup", lines="model", log="x")],
    published=[
        Published(
            "speed of an iteration at most, among NCF, LSTM, VGG19 and BERT-base, on GPUs",
            3.74,
            "LHC, arXiv 2402.07529",
            "speedup",
        )
    ],
    timed=False,
)
