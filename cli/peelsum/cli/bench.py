"""`peelsum bench`: figures of this machine."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from peelsum.cli.options import Json, require_lanes, within, without_torch
from peelsum.topology import TopologyError
from peelsum.topology.interrupts import Interruption
from peelsum.topology.telling import told
from peelsum.topology.user_errors import reported

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)


@app.command()
def switch(
    lanes: Annotated[list[int] | None, typer.Option(help="Pipelines to measure; all by default.")] = None,
    workers: Annotated[list[int] | None, typer.Option(help="Workers, each at a port of its own; 4.")] = None,
    seconds: Annotated[float, typer.Option(help="How long a rate is measured, and a latency.")] = 3.0,
    json: Json = False,
) -> None:
    """Packets a second and latency of a slot: embedded target, and BMv2 where it is installed."""
    from peelsum.bench.switch.rows import bench_switch
    from peelsum.pipelines import PipelineError
    from peelsum.softswitch import SoftswitchError
    from peelsum.wire import COMPILED_LANES, MAX_WORKERS

    within("--seconds", seconds, 0.1, 3600)
    for count in workers or ():
        within("--workers", count, 1, MAX_WORKERS)
    for count in lanes or ():
        require_lanes(count)
    with reported(TopologyError, PipelineError, SoftswitchError), Interruption():
        bench_switch(json=json, lanes=lanes or COMPILED_LANES, workers=workers or (4,), seconds=seconds)


@app.command()
def endpoint(
    lanes: Annotated[list[int] | None, typer.Option(help="Lanes of a packet; 32 and 256 by default.")] = None,
    seconds: Annotated[float, typer.Option(help="How long each row is measured.")] = 3.0,
    json: Json = False,
) -> None:
    """Packets a second that one core of a worker sends and takes results for, beside bare sockets."""
    from peelsum.bench.endpoint.rows import DEFAULT_LANES, bench_endpoint
    from peelsum.transport import TransportError

    within("--seconds", seconds, 0.1, 3600)
    for count in lanes or ():
        require_lanes(count)
    with reported(TransportError), Interruption():
        bench_endpoint(json=json, lanes=lanes or DEFAULT_LANES, seconds=seconds)


@app.command()
def loss(
    loss: Annotated[
        list[float] | None, typer.Option(help="Shares of packets that each port loses; 0.001, 0.01, 0.05.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that sum.")] = 4,
    lanes: Annotated[int, typer.Option(help="Lanes of the pipeline.")] = 256,
    elements: Annotated[int, typer.Option(help="32-bit words of a sum.")] = 1 << 20,
    seconds: Annotated[float, typer.Option(help="How long sums are repeated at each share.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Which packets are lost, and what is summed.")] = 0,
    json: Json = False,
) -> None:
    """Rate of sums over the embedded switch whose ports lose packets, beside the rate without loss."""
    from peelsum.bench.loss.rows import bench_loss
    from peelsum.wire import MAX_WORKERS

    require_lanes(lanes)
    within("--workers", workers, 2, MAX_WORKERS)
    within("--elements", elements, 1, 1 << 28)
    within("--seconds", seconds, 0, 3600)
    within("--seed", seed, 0, 2**63 - 1)
    for share in loss or ():
        within("--loss", share, 0, 0.5)
    with reported(TopologyError), Interruption():
        told(json=json)
        bench_loss(
            losses=loss or (0.001, 0.01, 0.05),
            workers=workers,
            lanes=lanes,
            elements=elements,
            seconds=seconds,
            seed=seed,
            json=json,
        )


@app.command()
def fairness(
    jobs: Annotated[list[int] | None, typer.Option(help="Jobs that compete for a port; 2 and 4.")] = None,
    workers: Annotated[int, typer.Option(help="Workers of each job.")] = 2,
    lanes: Annotated[int, typer.Option(help="Lanes of the pipeline.")] = 256,
    mbit: Annotated[float, typer.Option(help="Mbit/s at which every port sends.")] = 20.0,
    mark_from: Annotated[int, typer.Option(help="Packets at a port, from which on more are marked.")] = 64,
    seconds: Annotated[float, typer.Option(help="How long each row is measured, in its own time.")] = 4.0,
    json: Json = False,
) -> None:
    """What jobs that compete for a port get of it, and its queue: in virtual time, and over UDP."""
    from peelsum.bench.fairness.rows import bench_fairness
    from peelsum.pipelines import PipelineError
    from peelsum.softswitch import SoftswitchError
    from peelsum.transport import TransportError

    require_lanes(lanes)
    within("--workers", workers, 2, 15)
    for count in jobs or ():
        within("--jobs", count, 1, 16)
    within("--mbit", mbit, 1, 10_000)
    within("--mark-from", mark_from, 0, 1 << 18)
    within("--seconds", seconds, 0.01, 3600)
    with reported(TopologyError, PipelineError, SoftswitchError, TransportError), Interruption():
        told(json=json)
        bench_fairness(
            jobs=jobs or (2, 4),
            workers=workers,
            lanes=lanes,
            mbit=mbit,
            mark_from=mark_from,
            seconds=seconds,
            json=json,
        )


@app.command()
def allreduce(
    begin: Annotated[str, typer.Option("-b", "--begin", help="Smallest size, in bytes of float32.")] = "1M",
    end: Annotated[str, typer.Option("-e", "--end", help="Largest size.")] = "16M",
    factor: Annotated[float, typer.Option("-f", "--factor", help="From one size to the next.")] = 4,
    iterations: Annotated[int, typer.Option("-n", "--iterations", help="Timed sums a size.")] = 5,
    warmups: Annotated[int, typer.Option("-w", "--warmups", help="Untimed sums before them.")] = 2,
    check: Annotated[int, typer.Option("-c", "--check", min=0, max=1, help="Compare every sum.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes that sum.")] = 4,
    density: Annotated[list[float] | None, typer.Option(help="Shares of non-zeros; 0.01 and 0.1.")] = None,
    form: Annotated[list[str] | None, typer.Option(help="compact, sketch or dense; compact.")] = None,
    lanes: Annotated[int, typer.Option(help="Lanes of the pipeline.")] = 256,
    json: Json = False,
) -> None:
    """Time of a sum over the embedded switch by size and density, beside the same elements sent dense."""
    from peelsum.allreduce import AllreduceError, Form
    from peelsum.bench.allreduce.rows import BenchError, bench_allreduce
    from peelsum.transport import TransportError

    require_lanes(lanes)
    chosen: list[Form] = [known for name in form or ["compact"] for known in get_args(Form) if known == name]
    with reported(BenchError, TopologyError, AllreduceError, TransportError), Interruption():
        if len(chosen) != len(form or ["compact"]):
            raise BenchError(f"--form: {form} is not among {', '.join(get_args(Form))}")
        told(json=json)
        bench_allreduce(
            begin=begin,
            end=end,
            factor=factor,
            iterations=iterations,
            warmups=warmups,
            check=bool(check),
            workers=workers,
            densities=density or (0.01, 0.1),
            forms=chosen,
            lanes=lanes,
            json=json,
        )


@app.command()
def codec(
    elements: Annotated[list[int] | None, typer.Option(help="Elements; 2**20, 2**24 and 2**27.")] = None,
    density: Annotated[list[float] | None, typer.Option(help="Shares of non-zeros; 0.1 to 20 %.")] = None,
    support: Annotated[list[str] | None, typer.Option(help="uniform, rows or columns; all three.")] = None,
    cells: Annotated[float, typer.Option(help="Cells of a sketch for each candidate.")] = 1.4,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option(help="2**20 elements only.")] = False,
    seed: Annotated[int, typer.Option(help="Where non-zeros lie, and their values.")] = 0,
    json: Json = False,
) -> None:
    """Size over the lower bound, and speed, of every form of the codec, beside LHC's layout."""
    from peelsum.bench.codec import SUPPORTS, NoDeviceError, NotEnoughMemoryError, NotExactError
    from peelsum.bench.codec import rows as bench

    for count in elements or ():
        within("--elements", count, 1, 2**40)
    for share in density or ():
        within("--density", share, 1e-9, 1)
    within("--cells", cells, 0.1, 100)
    within("--seed", seed, 0, 2**63 - 1)
    chosen = [known for known in SUPPORTS if known in (support or SUPPORTS)]
    with reported(bench.CodecBenchError, NoDeviceError, NotEnoughMemoryError, NotExactError), Interruption():
        if unknown := set(support or ()) - set(SUPPORTS):
            raise bench.CodecBenchError(
                f"--support: {min(unknown)!r} is unknown; use one of {', '.join(SUPPORTS)}"
            )
        sizes = elements or (bench.QUICK_ELEMENTS if quick else bench.DEFAULT_ELEMENTS)
        points = bench.points_of(sizes, density or bench.DEFAULT_DENSITIES, chosen)
        bench.bench_codec(points, cells_per_candidate=cells, seed=seed, device=device, json=json)


@app.command()
def train(
    model: Annotated[str, typer.Option(help="ncf, lstm, vgg19 or bert.")] = "ncf",
    workers: Annotated[int, typer.Option(help="Processes that train.")] = 4,
    gbps: Annotated[str, typer.Option(help="Rates of every link, in Gbit/s, between commas.")] = "1,10",
    small: Annotated[
        bool, typer.Option("--small/--full", help="A small model, or the published size.")
    ] = True,
    data: Annotated[
        str | None, typer.Option(help="Path of the data; by default what any machine has.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Timed iterations of each row.")] = 10,
    warm_ups: Annotated[int, typer.Option(help="Iterations before them.")] = 3,
    top_k: Annotated[
        float | None, typer.Option(help="Share of elements that is sent, the rest later; all by default.")
    ] = None,
    densities: Annotated[
        bool, typer.Option(help="Show how dense each gradient is, on 2, 4 and 8 workers, and end.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the model and its batches.")] = 0,
    json: Json = False,
) -> None:
    """Time of a training iteration through the switch, beside dense sums and gloo, by rate of links."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise typer.BadParameter(without_torch("training"))
    from peelsum.bench.train import rows as bench
    from peelsum.training import MODELS, TrainingDataError
    from peelsum.wire import MAX_WORKERS

    within("--workers", workers, 2, MAX_WORKERS)
    within("--steps", steps, 1, 100_000)
    within("--warm-ups", warm_ups, 1, 100_000)
    within("--seed", seed, 0, 2**31 - 1)
    if top_k is not None:
        within("--top-k", top_k, 1e-9, 1)
    chosen = next((known for known in MODELS if known == model), None)
    if chosen is None:
        raise typer.BadParameter(f"--model: {model!r} is unknown; use one of {', '.join(MODELS)}")
    rates = tuple(_rate(text) for text in gbps.split(","))
    request = bench.Request(chosen, workers, rates, small, data, steps, warm_ups, seed, top_k)
    with reported(TopologyError, TrainingDataError), Interruption():
        told(json=json)
        if densities:
            bench.show_densities(request, json=json)
        else:
            bench.bench_train(request, json=json)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise typer.BadParameter(f"--gbps: {text!r} is no rate; write them like 1,10") from None
    within("--gbps", rate, 0.001, 400)
    return rate
