"""`peelsum bench`: measure this machine's sums, switch, endpoint, codec and training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple, get_args

import typer
from typer.core import TyperGroup

from peelsum.bench.devices import DEVICES
from peelsum.bench.point import Support
from peelsum.cli.output import aligned, measuring, print_json
from peelsum.cli.settings import with_settings
from peelsum.extras import missing
from peelsum.options import Option, Settings, names, numbers
from peelsum.processes.progress import taking_time
from peelsum.wire import COMPILED_LANES, MAX_WORKERS

Row = Mapping[str, Any]
_SEVERAL = "Several are separated by commas."
_FORMS = "dense", "compact", "sketch"


def _list(text: str, kind: type[int] | type[float], least: float, most: float) -> Option:
    """Return the option of numbers that are separated by commas."""
    return Option(text, least, most, parse=numbers(kind))


def _names(text: str, known: Sequence[str]) -> Option:
    """Return the option of names that are separated by commas."""
    return Option(text, parse=names(known))


def _lanes(text: str) -> tuple[int, ...]:
    return tuple(map(int, names([*map(str, COMPILED_LANES)])(text)))


def _one_lanes(text: str) -> int:
    return int(names([*map(str, COMPILED_LANES)])(text)[0])


_LANES = Option("Words of a packet, a power of 2 from 32 to 2048.", metavar="<int>", parse=_one_lanes)
_EACH_LANES = Option(f"Words of a packet. {_SEVERAL}", parse=_lanes)


@dataclass(frozen=True)
class _Runs(Settings):
    """How often a bench measures, and what it prints."""

    repetitions: Annotated[int, Option("How often to measure, each time with another seed.", 1, 1000)] = 1
    seed: Annotated[int, Option("Seed of the first repetition.", 0, 2**31)] = 0
    json: Annotated[bool, Option("Print JSON instead of text.", name="--json")] = False


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


class _Bench(NamedTuple):
    """How rows are measured and shown."""

    measure: Callable[..., Iterable[Row]]
    """measure(seed=..., **point) measures a point's rows."""
    points: Sequence[Mapping[str, Any]]
    labels: Sequence[str]
    """The figures that tell rows apart."""
    columns: Sequence[str]
    """The other figures of the table; JSON has all."""


@dataclass(frozen=True)
class _Sums(Settings):
    """Tensors, and the network over which they are summed."""

    elements: Annotated[tuple[int, ...], _list(f"Elements of the tensor. {_SEVERAL}", int, 1, 2**32)] = (
        262144,
        1048576,
        4194304,
    )
    density: Annotated[
        tuple[float, ...], _list("Shares of elements that are non-zero on some worker.", float, 0, 1)
    ] = (0.01, 0.1)
    form: Annotated[tuple[str, ...], _names("Forms of the values: dense, compact, sketch.", _FORMS)] = (
        "compact",
    )
    workers: Annotated[int, Option("Worker processes, 2 to 32.", 2, MAX_WORKERS)] = 4
    lanes: Annotated[int, _LANES] = 256
    planes: Annotated[int, Option("Switches that share the sum, each with a server.", 1, 64)] = 1
    iterations: Annotated[int, Option("Timed sums of each tensor, back to back.", 1, 10**6)] = 5
    warmups: Annotated[int, Option("Sums before them.", 0, 10**6)] = 2
    trace: Annotated[Path | None, Option("Sum the last step of the trace in this folder.")] = None


@app.command("allreduce")
@with_settings
def allreduce(settings: _Sums, runs: _Runs) -> None:
    """Time exact sums over the softswitch, in nccl-tests' columns, beside dense sums.

    Every last sum is compared with one that plain NumPy computes in 64 bits.
    """
    from peelsum.bench.allreduce import sums
    from peelsum.topology import TopologyError
    from peelsum.traces import TraceError

    several = ("elements", "density", "form")
    point = {f"{name}_each" if name in several else name: value for name, value in asdict(settings).items()}
    point["trace"] = settings.trace and str(settings.trace)
    columns = (
        *("time_us", "algbw", "busbw", "wire_bytes", "ratio_to_dense", "encode_us", "network_us"),
        *("decode_us", "wrong"),
    )
    bench = _Bench(sums, [point], ("size_bytes", "ranks", "density", "form"), columns)
    _measure(bench, runs, TopologyError, TraceError)


@dataclass(frozen=True)
class _Switches(Settings):
    """The load of a switch."""

    lanes: Annotated[tuple[int, ...], _EACH_LANES] = (32, 64, 128, 256)
    workers: Annotated[int, Option("Workers of the job, 1 to 32.", 1, MAX_WORKERS)] = 4
    seconds: Annotated[float, Option("Duration of each rate, and of each latency.", 0.1, 3600)] = 3.0


@app.command("switch")
@with_settings
def switch(settings: _Switches, runs: _Runs) -> None:
    """Measure rate and latency of the softswitch, and of BMv2, in memory and on ports.

    Ports are UDP, and virtual Ethernet by AF_XDP and AF_PACKET, which need root, as BMv2 does; that must be
    on PATH. The first sums of every run are compared with the sums of what was sent.
    """
    from peelsum.bench.switch.load import WrongSumError
    from peelsum.bench.switch.rows import compared
    from peelsum.topology import TopologyError

    columns = (
        *("packets_per_s", "packets_per_cpu_s", "latency_p50_us", "latency_p99_us", "rate_to_bmv2"),
        "bmv2",
    )
    points = [{**asdict(settings), "lanes": lanes} for lanes in settings.lanes]
    labels = ("lanes", "workers", "target", "ports")
    bench = _Bench(lambda seed, **point: compared(**point), points, labels, columns)
    _measure(bench, runs, TopologyError, WrongSumError)


@dataclass(frozen=True)
class _Endpoints(Settings):
    """The packets of an endpoint."""

    lanes: Annotated[tuple[int, ...], _EACH_LANES] = (32, 256)
    seconds: Annotated[float, Option("Duration of each measurement.", 0.1, 3600)] = 3.0


@app.command("endpoint")
@with_settings
def endpoint(settings: _Endpoints, runs: _Runs) -> None:
    """Count the packets that one core of a worker sends and takes results for, beside bare sockets."""
    from peelsum.bench.endpoint import measure
    from peelsum.bench.switch.load import WrongSumError

    points = [{"lanes": lanes, "seconds": settings.seconds} for lanes in settings.lanes]
    columns = ("packets_per_core_s", "packets_per_s", "share_of_bare")
    bench = _Bench(lambda seed, **point: measure(**point), points, ("lanes", "way"), columns)
    _measure(bench, runs, WrongSumError)


@dataclass(frozen=True)
class _Tensors(Settings):
    """Tensors to encode and decode."""

    elements: Annotated[tuple[int, ...], _list(f"Elements of the tensor. {_SEVERAL}", int, 1, 2**40)] = (
        1048576,
        16777216,
    )
    density: Annotated[tuple[float, ...], _list("Shares of elements that are not zero.", float, 1e-9, 1)] = (
        0.001,
        0.01,
        0.1,
    )
    support: Annotated[
        tuple[str, ...], _names("Where they are: uniform, rows, columns.", get_args(Support))
    ] = ("uniform",)
    cells: Annotated[float, Option("Cells of a sketch for each candidate.", 0.1, 100)] = 1.3
    device: Annotated[tuple[str, ...], _names("cpu or cuda.", DEVICES)] = ("cpu",)


@app.command("codec")
@with_settings
def codec(settings: _Tensors, runs: _Runs) -> None:
    """Measure size and speed of every form of the codec; nothing is sent.

    Encoding is everything before words are sent, decoding is the rest. The fastest of up to five runs counts.
    With NUMBA_NUM_THREADS=1, times are processor time. Every decoded tensor is compared with NumPy's sums.
    """
    from peelsum.bench.codec import NoDeviceError, NotEnoughMemoryError, NotExactError
    from peelsum.bench.codec.rows import CodecBenchError, bench_codec

    labels = ("elements", "density", "support")
    points = [
        dict(zip(labels, point, strict=True))
        for point in product(settings.elements, settings.density, settings.support)
    ]
    (device,) = settings.device

    def measure(seed: int, **point: Any) -> Iterator[dict[str, Any]]:
        return bench_codec(**point, cells_per_candidate=settings.cells, device=device, seed=seed)

    columns = (
        *("bits_per_element", "over_lower_bound", "recovered_by_peeling", "rounds", "encode_gbps"),
        "decode_gbps",
    )
    bench = _Bench(measure, points, (*labels, "form", "index"), columns)
    _measure(bench, runs, NoDeviceError, NotEnoughMemoryError, NotExactError, CodecBenchError)


@dataclass(frozen=True)
class _Trainings(Settings):
    """What is trained, over which links."""

    model: Annotated[
        str, Option("ncf, lstm, vgg19, bert, or MODULE:FUNCTION, which returns a Task of your own.")
    ] = "ncf"
    workers: Annotated[int, Option("Worker processes, 2 to 32.", 2, 32)] = 4
    gbps: Annotated[tuple[float, ...], _list(f"Rates of links in Gbit/s. {_SEVERAL}", float, 0.001, 400)] = (
        1,
        10,
    )
    steps: Annotated[int, Option("Timed steps.", 1, 100_000)] = 10
    warm_ups: Annotated[int, Option("Steps before them.", 1, 100_000)] = 3
    top_k: Annotated[
        float | None, Option("Share of elements that `switch` sends, the rest later.", 1e-9, 1)
    ] = None
    cpu: Annotated[bool, Option("No rates: compare processor time beyond computation.", name="--cpu")] = False
    full: Annotated[bool, Option("The model's published size.", name="--full")] = False
    data: Annotated[str | None, Option("Path of the model's data.")] = None
    device: Annotated[str, Option("cpu or cuda.")] = "cpu"


@app.command("train")
@with_settings
def train(settings: _Trainings, runs: _Runs) -> None:
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

    options = {name: getattr(settings, name) for name in ("device", "top_k", "steps", "warm_ups")}
    options |= {"small": not settings.full, "path": settings.data}

    def measure(seed: int, model: str) -> list[dict[str, Any]]:
        check_model(model)
        job = {**options, "model": model, "seed": seed}
        return bench_train(job, settings.workers, settings.gbps, cpu=settings.cpu)

    columns = (
        *("form", "density_union", "bytes_per_step", "iteration_ms", "compute_ms", "encode_ms"),
        *("network_ms", "decode_ms", "aggregation_ms", "cpu_ms", "speedup_over_dense"),
        *("speedup_over_gloo", "exact"),
    )
    points = [{"model": name} for name in settings.model.split(",")]
    bench = _Bench(measure, points, ("model", "gbps", "path"), columns)
    _measure(bench, runs, NoDeviceError, TopologyError, TrainingDataError)


def _measure(bench: _Bench, runs: _Runs, *errors: type[Exception]) -> None:
    """Measure all points, print medians, or all rows as JSON. Status 1 says that a sum was wrong."""
    rows, total = list[dict[str, Any]](), runs.repetitions * len(bench.points)
    with measuring(*errors) as tell:
        for number, (repetition, point) in enumerate(product(range(runs.repetitions), bench.points), 1):
            with taking_time(f"point {number} of {total}", tell):
                measured = bench.measure(seed=runs.seed + repetition, **point)
                rows += [{"repetition": repetition, **point, **row} for row in measured]
        if runs.json:
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
