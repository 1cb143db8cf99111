"""Time of a training iteration, from traces: measured on slow links, modelled on fast ones."""

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


def measure(seed: int, model: str, gbps: float, network: str) -> dict[str, Value]:
    """Sum a step's gradients dense and compact; add the computing time of the trace."""
    compute_s = computing(model)
    if network == "emulated":
        dense_s, sparse_s, ratio, wrong = emulated(model, gbps, seed)
    else:
        dense_s, sparse_s, ratio = modelled(model, gbps)
        wrong = None
    return {
        "speedup": (compute_s + dense_s) / (compute_s + sparse_s),
        "sum_speedup": dense_s / sparse_s,
        "compute_ms": 1e3 * compute_s,
        "dense_ms": 1e3 * dense_s,
        "sparse_ms": 1e3 * sparse_s,
        "bytes_over_dense": ratio,
        "wrong": wrong,
    }


@cache
def traces(model: str) -> list[Any]:
    """Return the traces of a model's workers."""
    from peelsum.traces import read_folder

    return read_folder(folder(model))


def computing(model: str) -> float:
    """Return the seconds until a step's last bucket is ready: the least over steps, the most of workers."""
    import numpy as np

    return float(max(np.nanmax(trace.ready_s, axis=1).min() for trace in traces(model)))


def emulated(model: str, gbps: float, seed: int) -> tuple[float, float, float, int]:
    """Return the seconds of a dense and a compact sum over the softswitch, bytes, and wrong elements."""
    from peelsum.bench.allreduce.rows import bench_allreduce

    dense, sparse = bench_allreduce(
        iterations=3, warmups=1, rate_mbit=1e3 * gbps, seed=seed, trace=folder(model), forms=("compact",)
    )
    wrong = (dense.wrong or 0) + (sparse.wrong or 0)
    return dense.time_us / 1e6, sparse.time_us / 1e6, sparse.wire_bytes / dense.wire_bytes, wrong


def modelled(model: str, gbps: float) -> tuple[float, float, float]:
    """Return the seconds of a dense and of the fastest sparse sum by the cost model, and bytes."""
    import numpy as np

    from peelsum.allreduce import Settings
    from peelsum.allreduce.costs import Seen, candidates
    from peelsum.codec import kernels
    from peelsum.flexible import LinkModel, SwitchPath

    total = sum(trace.gradient(-1) for trace in traces(model))
    found = Seen(0, tuple(kernels().occupied(np.flatnonzero(total)).tolist()))
    network = SwitchPath(LANES).network(LinkModel(50e-6, gbps))
    ways = list(candidates(total.size, found, Settings(), predict=False))
    dense = min((one for one in ways if one.choice.form == "dense"), key=lambda one: one.seconds(network))
    sparse = min((one for one in ways if one.choice.form != "dense"), key=lambda one: one.seconds(network))
    return dense.seconds(network), sparse.seconds(network), sparse.words / dense.words


EXPERIMENT = Experiment(
    name="iteration",
    title="Time of a training iteration, from traces",
    about="""
The traces of four workers that train the small models of `peelsum.training` are replayed: the sum of one
step's gradients, dense and sparse, plus the time of computing in the trace, without overlap. `emulated`:
over the softswitch on this machine, with ports of `gbps`. `modelled`: by the cost model of
`peelsum.flexible`, which knows the fastest sparse form; the emulation has the compact one. The models are
hundreds of times smaller than the paper's, and computed by a processor, not by a GPU.
""",
    measure=measure,
    columns={
        "speedup": Column("time of an iteration with dense sums over that with sparse ones"),
        "sum_speedup": Column("the same for the sums alone"),
        "compute_ms": Column("milliseconds of computing, as recorded in the trace"),
        "dense_ms": Column("milliseconds of a dense sum"),
        "sparse_ms": Column("milliseconds of a sparse sum"),
        "bytes_over_dense": Column("bytes that a worker sends for the sparse sum, over the dense one"),
        "wrong": Column("elements that differ from an independent sum"),
    },
    sizes={
        "quick": Size(
            [
                {"model": ("ncf",), "gbps": (0.1,), "network": ("emulated",)},
                {"model": MODELS, "gbps": (0.1, 1.0, 10.0), "network": ("modelled",)},
            ],
            2,
        ),
        "usual": Size(
            [
                {"model": MODELS, "gbps": (0.1, 0.4), "network": ("emulated",)},
                {"model": MODELS, "gbps": (0.1, 0.4, 1.0, 10.0, 25.0, 100.0), "network": ("modelled",)},
            ],
            3,
        ),
    },
    plots=[Plot("speedup", x="gbps", y="speedup", lines="model", where={"network": "modelled"}, log="x")],
    published=[
        Published(
            "speed of an iteration at most, among NCF, LSTM, VGG19 and BERT-base, on GPUs",
            3.74,
            "LHC, arXiv 2402.07529",
            "speedup",
            {"network": "emulated"},
        )
    ],
    modelled={"network": ("modelled",)},
)
