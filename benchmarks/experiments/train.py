"""A training iteration through the switch, beside dense sums and gloo, by rate of links.

The small model is trained, or with `--full` that of the published size. Every worker is a process. The
switch is the softswitch on loopback, with ports of a rate; gloo's links are virtual Ethernet, limited to
the same rate by token buckets, which needs root. With `cpu`, no link has a rate, and the processor time of
all processes beyond computation is compared. `top_k` is the share of elements that `switch` sends, the rest
later.

LHC's paper (arXiv 2402.07529) has up to 3.74 for an iteration and 6.33 for aggregation, on GPUs, over its
own baselines.
"""

from __future__ import annotations

from typing import Any

from benchmarks import Experiment, Plot, Size

MODELS = ("ncf", "lstm", "vgg19", "bert")


def measure(
    seed: int,
    model: Any,
    workers: int,
    gbps_each: tuple[float, ...],
    small: bool,
    data: str | None,
    steps: int,
    warm_ups: int,
    top_k: float | None,
    cpu: bool,
    device: str,
) -> Any:
    """Train a model by every backend."""
    from peelsum.bench.train.rows import bench_train

    task = {"model": model, "small": small, "path": data, "seed": seed, "device": device, "top_k": top_k}
    return bench_train({**task, "steps": steps, "warm_ups": warm_ups}, workers, gbps_each, cpu=cpu)


DRAWN = {"path": "switch", "top_k": None, "cpu": False, "small": True}
OVER_RATES: dict[str, Any] = {
    "x": "gbps",
    "lines": "model",
    "where": DRAWN,
    "log": "xy",
    "setting": "Small models, four processes on two cores, sparse sums through the softswitch. Measured.",
    "xlabel": "Rate of the links (Gbit/s)",
    "names": {"lstm": "LSTM", "bert": "BERT", "ncf": "NCF", "vgg19": "VGG19"},
}


def over_gloo(medians: Any) -> str:
    """Return the least and the greatest speed-up over gloo at the slowest and the fastest links."""
    slow, fast = ([medians[f"{model}@{rate}"] for model in MODELS] for rate in ("0.1", "10.0"))
    return f"""A training step is {min(slow):.1f} to {max(slow):.1f} times as fast as over gloo at 0.1 Gbit/s,
        and {min(fast):.2f} to {max(fast):.2f} times at 10 Gbit/s"""


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "gbps": "rate of every link in each direction, in Gbit/s; none if links could not be shaped",
        "shaped_by": "what limits the rate: `switch ports`, or virtual Ethernet of `namespaces`",
        "path": (
            "`switch`; `switch-dense`, all gradients dense; `gloo`, its all_reduce of floats; `hook-gloo`, "
            "the hook over gloo; `fp16`, torch's hook over gloo, which halves gradients"
        ),
        "form": "forms in which gradients were sent",
        "density_worker": "share of elements that are non-zero on one worker; with top-k, of those sent",
        "density_union": "share of elements that are non-zero on any worker; with top-k, of those sent",
        "bytes_per_step": "bytes that a worker sends per step; for gloo and fp16, those of a ring",
        "iteration_ms": "time of an iteration, of the slowest worker, as all times: the median",
        "iteration_least_ms": "time of the fastest iteration",
        "iteration_most_ms": "time of the slowest iteration",
        "compute_ms": "time of forward, backward and optimizer, without sums",
        "encode_ms": "encoding time of the summing threads, beside the computation",
        "network_ms": "network time of these threads; for gloo, the iteration's beyond `compute_ms`",
        "decode_ms": "decoding time of the summing threads",
        "aggregation_ms": "time to sum all gradients of a step without any computation",
        "aggregation_gbps": "gigabits of gradients, 32 bits per element, per second of this time",
        "exact": "whether all workers have the same bits, "
        "within the sum's error bound; not for gloo and top-k",
        "cpu_ms": "CPU time of all processes per step beyond computation, the mean",
        "switch_cpu_ms": "the share of `cpu_ms` of switch and server",
        "speedup_over_dense": "`iteration_ms` of `switch-dense` over that of this row",
        "speedup_over_gloo": "`iteration_ms` of `gloo` over that of this row",
        "aggregation_over_dense": "`aggregation_ms` of `switch-dense` over that of this row",
        "aggregation_over_gloo": "`aggregation_ms` of `gloo` over that of this row",
        "cpu_of_gloo": "`cpu_ms` of this row over that of `gloo`",
    },
    keys=("gbps", "path"),
    defaults={
        "model": "ncf",
        "workers": 4,
        "gbps_each": ((1.0, 10.0),),
        "small": True,
        "data": None,
        "warm_ups": 3,
        "top_k": None,
        "cpu": False,
        "device": "cpu",
    },
    sizes={
        "quick": Size([{"workers": 2, "steps": 2, "warm_ups": 1, "cpu": True}], 1),
        "usual": Size([{"steps": 10}], 1),
        "full": Size([{"small": False, "steps": 10}], 1),
    },
    plots=[
        Plot(
            "speedup_over_gloo",
            y="speedup_over_gloo",
            finding=over_gloo,
            ylabel="Speed-up of a training step over gloo",
            reference=(1, "gloo"),
            **OVER_RATES,
        ),
        Plot(
            "speedup_over_dense",
            y="speedup_over_dense",
            finding="""At 1 Gbit/s a training step is {lstm@1.0:.1f} times as fast as with dense sums for the
                LSTM, {bert@1.0:.1f} for BERT, {ncf@1.0:.1f} for NCF and {vgg19@1.0:.1f} for VGG19""",
            ylabel="Speed-up of a training step over dense sums in the switch",
            reference=(1, "dense sums"),
            **OVER_RATES,
        ),
        Plot(
            "aggregation_over_dense",
            y="aggregation_over_dense",
            finding="""At 1 Gbit/s a step's sums alone are {lstm@1.0:.1f} times as fast as dense ones for the
                LSTM, {bert@1.0:.1f} for BERT, {ncf@1.0:.2f} for NCF and {vgg19@1.0:.2f} for VGG19""",
            ylabel="Speed-up of a step's sums over dense sums in the switch",
            reference=(1, "dense sums"),
            **OVER_RATES,
        ),
    ],
    ranges={
        "workers": (2, 32),
        "gbps_each": (0.001, 400),
        "steps": (1, 100_000),
        "warm_ups": (1, 100_000),
        "top_k": (1e-9, 1),
    },
    choices={"model": MODELS, "device": ("cpu", "cuda")},
)
