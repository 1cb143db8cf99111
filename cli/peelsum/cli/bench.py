"""`peelsum bench`: measure this machine's sums, switch, endpoint, codec and training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.core import TyperGroup

from peelsum.cli.options import Json, within
from peelsum.cli.output import aligned, measuring, print_json
from peelsum.extras import missing
from peelsum.processes.progress import taking_time

T = TypeVar("T", int, float)
Row = Mapping[str, Any]
_SEVERAL = "Several are separated by commas."


class _Group(TyperGroup):
    """The five commands; an error says how to reproduce our own figures."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See TyperGroup."""
        word, names = (args[0], args[1:]) if args else ("", [])
        if word in self.commands or not word or word.startswith("-"):
            return super().resolve_command(ctx, args)
        if word == "run" and names and names[0] in self.commands:
            raise typer.BadParameter(f"run: is gone; write: {' '.join(['peelsum bench', *names])}")
        verb = [] if word == "run" else [word]
        command = " ".join(["python -m benchmarks", *verb, *names])
        known = ", ".join(self.commands)
        raise typer.BadParameter(f"{word}: is none of {known}; in a checkout of peelsum, write: {command}")


app = typer.Typer(cls=_Group, help="Measure this machine: sums, switch, endpoint, codec, training.")

Repetitions = Annotated[int, typer.Option(help="How often to measure, each time with another seed.")]
Seed = Annotated[int, typer.Option(help="Seed of the first repetition.")]


class _Bench(NamedTuple):
    """How rows are measured and shown."""

    measure: Callable[..., Iterable[Row]]
    """measure(seed=..., **point) measures a point's rows."""
    points: Sequence[Mapping[str, Any]]
    labels: Sequence[str]
    """The figures that tell rows apart."""
    columns: Sequence[str]
    """The other figures of the table; JSON has all."""


@app.command("allreduce")
def allreduce(
    elements: Annotated[
        str, typer.Option(help=f"Elements of the tensor. {_SEVERAL}")
    ] = "262144,1048576,4194304",
    density: Annotated[
        str, typer.Option(help="Shares of elements that are non-zero on some worker.")
    ] = "0.01,0.1",
    form: Annotated[str, typer.Option(help="Forms of the values: dense, compact, sketch.")] = "compact",
    workers: Annotated[int, typer.Option(help="Worker processes, 2 to 32.")] = 4,
    lanes: Annotated[int, typer.Option(help="Words of a packet, a power of 2 from 32 to 2048.")] = 256,
    planes: Annotated[int, typer.Option(help="Switches that share the sum, each with a server.")] = 1,
    iterations: Annotated[int, typer.Option(help="Timed sums of each tensor, back to back.")] = 5,
    warmups: Annotated[int, typer.Option(help="Sums before them.")] = 2,
    trace: Annotated[Path | None, typer.Option(help="Sum the last step of the trace in this folder.")] = None,
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Time exact sums over the softswitch, in nccl-tests' columns, beside dense sums.

    Every last sum is compared with one that plain NumPy computes in 64 bits.
    """
    from peelsum.allreduce.plan import FORMS
    from peelsum.bench.allreduce import sums
    from peelsum.topology import TopologyError
    from peelsum.traces import TraceError
    from peelsum.wire import COMPILED_LANES, MAX_WORKERS

    within("--workers", workers, 2, MAX_WORKERS)
    within("--planes", planes, 1, 64)
    within("--iterations", iterations, 1, 10**6)
    within("--warmups", warmups, 0, 10**6)
    each = {
        "elements_each": tuple(_numbers("--elements", elements, int, 1, 2**32)),
        "density_each": tuple(_numbers("--density", density, float, 0, 1)),
        "form_each": tuple(_names("--form", form, FORMS)),
    }
    shape = {"workers": workers, "lanes": _lanes(str(lanes), COMPILED_LANES)[0], "planes": planes}
    point = {**each, **shape, "iterations": iterations, "warmups": warmups, "trace": trace and str(trace)}
    columns = [
        "time_us",
        "algbw",
        "busbw",
        "wire_bytes",
        "ratio_to_dense",
        "encode_us",
        "network_us",
        "decode_us",
        "wrong",
    ]
    bench = _Bench(sums, [point], ("size_bytes", "ranks", "density", "form"), columns)
    _measure(bench, repetitions, seed, json, TopologyError, TraceError)


@app.command("switch")
def switch(
    lanes: Annotated[str, typer.Option(help=f"Words of a packet. {_SEVERAL}")] = "32,64,128,256",
    workers: Annotated[int, typer.Option(help="Workers of the job, 1 to 32.")] = 4,
    seconds: Annotated[float, typer.Option(help="Duration of each rate, and of each latency.")] = 3.0,
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure rate and latency of the softswitch, and of BMv2, in memory and on ports.

    Ports are UDP, and virtual Ethernet by AF_XDP and AF_PACKET, which need root, as BMv2 does; that must be
    on PATH. The first sums of every run are compared with the sums of what was sent.
    """
    from peelsum.bench.switch.load import WrongSumError
    from peelsum.bench.switch.rows import compared
    from peelsum.topology import TopologyError
    from peelsum.wire import COMPILED_LANES, MAX_WORKERS

    within("--workers", workers, 1, MAX_WORKERS)
    within("--seconds", seconds, 0.1, 3600)
    points = [
        {"lanes": number, "workers": workers, "seconds": seconds} for number in _lanes(lanes, COMPILED_LANES)
    ]
    columns = [
        "packets_per_s",
        "packets_per_cpu_s",
        "latency_p50_us",
        "latency_p99_us",
        "rate_to_bmv2",
        "bmv2",
    ]
    bench = _Bench(
        lambda seed, **point: compared(**point), points, ("lanes", "workers", "target", "ports"), columns
    )
    _measure(bench, repetitions, seed, json, TopologyError, WrongSumError)


@app.command("endpoint")
def endpoint(
    lanes: Annotated[str, typer.Option(help=f"Words of a packet. {_SEVERAL}")] = "32,256",
    seconds: Annotated[float, typer.Option(help="Duration of each measurement.")] = 3.0,
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Count the packets that one core of a worker sends and takes results for, beside bare sockets."""
    from peelsum.bench.endpoint import measure
    from peelsum.bench.switch.load import WrongSumError
    from peelsum.wire import COMPILED_LANES

    within("--seconds", seconds, 0.1, 3600)
    points = [{"lanes": number, "seconds": seconds} for number in _lanes(lanes, COMPILED_LANES)]
    columns = ["packets_per_core_s", "packets_per_s", "share_of_bare"]
    bench = _Bench(lambda seed, **point: measure(**point), points, ("lanes", "way"), columns)
    _measure(bench, repetitions, seed, json, WrongSumError)


@app.command("codec")
def codec(
    elements: Annotated[str, typer.Option(help=f"Elements of the tensor. {_SEVERAL}")] = "1048576,16777216",
    density: Annotated[str, typer.Option(help="Shares of elements that are not zero.")] = "0.001,0.01,0.1",
    support: Annotated[str, typer.Option(help="Where they are: uniform, rows, columns.")] = "uniform",
    cells: Annotated[float, typer.Option(help="Cells of a sketch for each candidate.")] = 1.3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure size and speed of every form of the codec; nothing is sent.

    Encoding is everything before words are sent, decoding is the rest. The fastest of up to five runs counts.
    With NUMBA_NUM_THREADS=1, times are processor time. Every decoded tensor is compared with NumPy's sums.
    """
    from peelsum.bench.codec import SUPPORTS, NoDeviceError, NotEnoughMemoryError, NotExactError
    from peelsum.bench.codec.rows import CodecBenchError, bench_codec
    from peelsum.bench.devices import DEVICES

    within("--cells", cells, 0.1, 100)
    _names("--device", device, DEVICES)
    sizes = _numbers("--elements", elements, int, 1, 2**40), _numbers("--density", density, float, 1e-9, 1)
    names = ("elements", "density", "support")
    points = [
        dict(zip(names, point, strict=True))
        for point in product(*sizes, _names("--support", support, SUPPORTS))
    ]

    def measure(seed: int, **point: Any) -> Iterator[dict[str, Any]]:
        return bench_codec(**point, cells_per_candidate=cells, device=device, seed=seed)

    columns = [
        "bits_per_element",
        "over_lower_bound",
        "recovered_by_peeling",
        "rounds",
        "encode_gbps",
        "decode_gbps",
    ]
    bench = _Bench(measure, points, (*names, "form", "index"), columns)
    _measure(
        bench, repetitions, seed, json, NoDeviceError, NotEnoughMemoryError, NotExactError, CodecBenchError
    )


@app.command("train")
def train(
    model: Annotated[
        str,
        typer.Option(help="ncf, lstm, vgg19, bert, or MODULE:FUNCTION, which returns a Task of your own."),
    ] = "ncf",
    workers: Annotated[int, typer.Option(help="Worker processes, 2 to 32.")] = 4,
    gbps: Annotated[str, typer.Option(help=f"Rates of links in Gbit/s. {_SEVERAL}")] = "1,10",
    steps: Annotated[int, typer.Option(help="Timed steps.")] = 10,
    warm_ups: Annotated[int, typer.Option(help="Steps before them.")] = 3,
    top_k: Annotated[
        float | None, typer.Option(help="Share of elements that `switch` sends, the rest later.")
    ] = None,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="No rates: compare processor time beyond computation.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="The model's published size.")] = False,
    data: Annotated[str | None, typer.Option(help="Path of the model's data.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure a training iteration through the switch, beside dense sums and gloo, by rate of links.

    Every worker is a process. The softswitch's ports have the rate; gloo's links are virtual Ethernet,
    limited to the same rate, which needs root. Gradients are compared with int64 sums over gloo.
    """
    if find_spec("torch") is None:
        raise typer.BadParameter(missing("torch", "training"))
    from peelsum.bench.devices import NoDeviceError
    from peelsum.bench.train.rows import bench_train
    from peelsum.topology import TopologyError
    from peelsum.training import TrainingDataError, check_model

    within("--workers", workers, 2, 32)
    within("--steps", steps, 1, 100_000)
    within("--warm-ups", warm_ups, 1, 100_000)
    if top_k is not None:
        within("--top-k", top_k, 1e-9, 1)
    rates = _numbers("--gbps", gbps, float, 0.001, 400)
    options = {
        "small": not full,
        "path": data,
        "device": device,
        "top_k": top_k,
        "steps": steps,
        "warm_ups": warm_ups,
    }

    def measure(seed: int, model: str) -> list[dict[str, Any]]:
        check_model(model)
        return bench_train({**options, "model": model, "seed": seed}, workers, rates, cpu=cpu)

    columns = [
        "form",
        "density_union",
        "bytes_per_step",
        "iteration_ms",
        "compute_ms",
        "encode_ms",
        "network_ms",
        "decode_ms",
        "aggregation_ms",
        "cpu_ms",
        "speedup_over_dense",
        "speedup_over_gloo",
        "exact",
    ]
    bench = _Bench(
        measure, [{"model": name} for name in model.split(",")], ("model", "gbps", "path"), columns
    )
    _measure(bench, repetitions, seed, json, NoDeviceError, TopologyError, TrainingDataError)


def _measure(bench: _Bench, repetitions: int, seed: int, json: bool, *errors: type[Exception]) -> None:
    """Measure all points, print medians, or all rows as JSON. Status 1 says that a sum was wrong."""
    within("--repetitions", repetitions, 1, 1000)
    within("--seed", seed, 0, 2**31)
    rows, total = list[dict[str, Any]](), repetitions * len(bench.points)
    with measuring(*errors) as tell:
        for number, (repetition, point) in enumerate(product(range(repetitions), bench.points), 1):
            with taking_time(f"point {number} of {total}", tell):
                measured = bench.measure(seed=seed + repetition, **point)
                rows += [{"repetition": repetition, **point, **row} for row in measured]
        if json:
            print_json(rows)
        else:
            _print(bench, rows)
    if any(row.get("wrong") or row.get("exact") is False for row in rows):
        raise typer.Exit(1)


def _print(bench: _Bench, rows: Sequence[Row]) -> None:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in bench.labels), []).append(row)
    names = (*bench.labels, *bench.columns)
    lines = [[name.replace("_", " ") for name in names]]
    for labels, group in groups.items():
        cells = ([row[name] for row in group if row.get(name) is not None] for name in bench.columns)
        lines.append([*map(_shown, labels), *map(_shown, map(_middle, cells))])
    text = {name for name in names if any(isinstance(row.get(name), str) for row in rows)}
    print(*aligned(lines, text), sep="\n")


def _middle(values: Sequence[Any]) -> Any:
    """Return the median of numbers, None for no values, or the first text."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return median(numbers) if numbers else next(iter(values), None)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _numbers(option: str, text: str, kind: type[T], least: float, most: float) -> list[T]:
    """Return the numbers of an option, separated by commas. Raises typer.BadParameter."""
    try:
        values = [kind(cell) for cell in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{option}: {text!r} is no list of numbers; write numbers like 1,10"
        ) from None
    for value in values:
        within(option, value, least, most)
    return values


def _lanes(text: str, known: Sequence[int]) -> list[int]:
    return [int(name) for name in _names("--lanes", text, list(map(str, known)))]


def _names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Return the names of an option, separated by commas. Raises typer.BadParameter."""
    for name in text.split(","):
        if name not in known:
            raise typer.BadParameter(f"{option}: {name!r} is unknown; use one of {', '.join(known)}")
    return text.split(",")
