"""`peelsum bench`: measure this machine's sums, switch, endpoint, codec and training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from peelsum.bench.devices import DEVICES
from peelsum.bench.point import Support
from peelsum.cli.options import with_settings
from peelsum.cli.output import aligned, measuring, print_json
from peelsum.extras import missing_extra_message
from peelsum.options import CommandSettings, Option, names, numbers
from peelsum.processes.progress import reporting_progress
from peelsum.wire import COMPILED_LANES, MAX_WORKERS

Row = Mapping[str, Any]
_LIST = "A list is separated by commas."


def _numbers(text: str, kind: type[int] | type[float], least: float, most: float) -> Option:
    """Return an option whose value is a list of numbers."""
    return Option(f"{text} {_LIST}", least, most, parse=numbers(kind))


def _choice(text: str, choices: Iterable[object]) -> str:
    """Return `text`. Raises ValueError unless it is one of the choices."""
    if text not in map(str, choices):
        raise ValueError(f"{text!r} is unknown; use one of {', '.join(map(str, choices))}")
    return text


def _lanes(text: str) -> int:
    return int(_choice(text, COMPILED_LANES))


_LANES = Option("Words of a packet, a power of 2 from 32 to 2048.", metavar="<int>", parse=_lanes)
_LANES_LIST = Option(
    f"Words of a packet, powers of 2 from 32 to 2048. {_LIST}",
    parse=lambda text: tuple(map(_lanes, text.split(","))),
)
_DEVICE = Option("cpu or cuda.", parse=lambda text: _choice(text, DEVICES))
_SECONDS = Option("Seconds of each measurement.", 0.1, 3600)


@dataclass(frozen=True)
class _Runs(CommandSettings):
    """The repetitions of a benchmark, and the format of its output."""

    repetitions: Annotated[
        int, Option("Number of measurements, each with another seed; medians are printed.", 1, 1000)
    ] = 1
    seed: Annotated[int, Option("Seed of the first repetition.", 0, 2**31)] = 0
    json: Annotated[bool, Option("Print JSON instead of text.", name="--json")] = False


class BenchGroup(TyperGroup):
    """The five commands. The error for another one says how to run the project's own experiments."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See TyperGroup."""
        word, rest = (args[0], args[1:]) if args else ("", [])
        if word in self.commands or not word or word.startswith("-"):
            return super().resolve_command(ctx, args)
        if word == "run" and rest and rest[0] in self.commands:
            raise typer.BadParameter(f"run: is gone; write: {' '.join(['peelsum bench', *rest])}")
        verb = [] if word == "run" else [word]
        command = " ".join(["python -m benchmarks", *verb, *rest])
        commands = ", ".join(self.commands)
        raise typer.BadParameter(f"{word}: is none of {commands}; in a checkout of peelsum, write: {command}")


app = typer.Typer(
    cls=BenchGroup,
    help="Measure this machine: sums, switch, endpoint, codec, training.",
    no_args_is_help=True,
)


@dataclass(frozen=True)
class _AllreduceSettings(CommandSettings):
    """Tensors, and the network over which they are summed."""

    elements: Annotated[tuple[int, ...], _numbers("Elements of the tensor.", int, 1, 2**32)] = (
        262144,
        1048576,
        4194304,
    )
    density: Annotated[
        tuple[float, ...], _numbers("Share of elements that are non-zero on some worker.", float, 0, 1)
    ] = (0.01, 0.1)
    form: Annotated[
        tuple[str, ...],
        Option(
            f"Form of the values: dense, compact, sketch. {_LIST}",
            parse=names(("dense", "compact", "sketch")),
        ),
    ] = ("compact",)
    workers: Annotated[int, Option("Worker processes, 2 to 32.", 2, MAX_WORKERS)] = 4
    lanes: Annotated[int, _LANES] = 256
    planes: Annotated[int, Option("Switches that share each sum, each with its own server.", 1, 64)] = 1
    iterations: Annotated[int, Option("Timed sums of each tensor, back to back.", 1, 10**6)] = 5
    warmups: Annotated[int, Option("Untimed sums before them.", 0, 10**6)] = 2
    trace: Annotated[Path | None, Option("Sum the last step of the trace in this folder.")] = None


@app.command("allreduce")
@with_settings
def allreduce(settings: _AllreduceSettings, runs: _Runs) -> None:
    """Time exact sums over the softswitch, compared with dense sums, in nccl-tests' columns.

    The last sum of each tensor is compared with one that NumPy computes in 64 bits.
    """
    from peelsum.bench.allreduce import measure_sums
    from peelsum.topology import TopologyError
    from peelsum.traces import TraceError

    lists = ("elements", "density", "form")
    point = {f"{name}_each" if name in lists else name: value for name, value in asdict(settings).items()}
    point["trace"] = settings.trace and str(settings.trace)
    columns = (
        *("time_us", "algbw", "busbw", "wire_bytes", "ratio_to_dense", "encode_us", "network_us"),
        *("decode_us", "wrong"),
    )
    keys = ("size_bytes", "ranks", "density", "form")
    _measure(measure_sums, [point], keys, columns, runs, TopologyError, TraceError)


@dataclass(frozen=True)
class _SwitchLoad(CommandSettings):
    """The load of a switch."""

    lanes: Annotated[tuple[int, ...], _LANES_LIST] = (32, 64, 128, 256)
    workers: Annotated[int, Option("Workers of the job, 1 to 32.", 1, MAX_WORKERS)] = 4
    seconds: Annotated[float, _SECONDS] = 3.0


@app.command("switch")
@with_settings
def switch(settings: _SwitchLoad, runs: _Runs) -> None:
    """Measure rate and latency of the softswitch, and of BMv2, in memory and on ports.

    Ports are UDP, and virtual Ethernet by AF_XDP and AF_PACKET, which needs root. BMv2 needs root, too, and
    simple_switch_grpc on PATH. The first sums of each measurement are compared with NumPy's.
    """
    from peelsum.bench.switch.load import WrongSumError
    from peelsum.bench.switch.rows import measure_switches
    from peelsum.topology import TopologyError

    columns = (
        *("packets_per_s", "packets_per_cpu_s", "latency_p50_us", "latency_p99_us"),
        *("slots_timed", "lost_chunks", "rate_to_bmv2", "bmv2"),
    )
    points = [{**asdict(settings), "lanes": lanes} for lanes in settings.lanes]
    keys = ("lanes", "workers", "target", "ports")
    errors = (TopologyError, WrongSumError)
    _measure(lambda seed, **point: measure_switches(**point), points, keys, columns, runs, *errors)


@dataclass(frozen=True)
class _EndpointLoad(CommandSettings):
    """The packets of an endpoint."""

    lanes: Annotated[tuple[int, ...], _LANES_LIST] = (32, 256)
    seconds: Annotated[float, _SECONDS] = 3.0


@app.command("endpoint")
@with_settings
def endpoint(settings: _EndpointLoad, runs: _Runs) -> None:
    """Measure the packet rate of a worker's endpoint on one core, compared with bare sockets."""
    from peelsum.bench.endpoint import measure
    from peelsum.bench.switch.load import WrongSumError

    points = [{"lanes": lanes, "seconds": settings.seconds} for lanes in settings.lanes]
    columns = ("packets_per_core_s", "packets_per_s", "share_of_bare")
    _measure(lambda seed, **point: measure(**point), points, ("lanes", "way"), columns, runs, WrongSumError)


@dataclass(frozen=True)
class _CodecSettings(CommandSettings):
    """Tensors to encode and decode."""

    elements: Annotated[tuple[int, ...], _numbers("Elements of the tensor.", int, 1, 2**40)] = (
        1048576,
        16777216,
    )
    density: Annotated[tuple[float, ...], _numbers("Share of non-zero elements.", float, 1e-9, 1)] = (
        0.001,
        0.01,
        0.1,
    )
    support: Annotated[
        tuple[str, ...],
        Option(f"Where non-zeros are: uniform, rows, columns. {_LIST}", parse=names(get_args(Support))),
    ] = ("uniform",)
    cells: Annotated[float, Option("Cells of a sketch for each candidate.", 0.1, 100)] = 1.3
    device: Annotated[str, _DEVICE] = "cpu"


@app.command("codec")
@with_settings
def codec(settings: _CodecSettings, runs: _Runs) -> None:
    """Measure size and speed of every form of the codec; nothing is sent.

    Encoding is everything before words are sent, decoding is the rest. The fastest of up to five runs counts.
    With NUMBA_NUM_THREADS=1, times are processor time. Every decoded tensor is compared with NumPy's sums.
    """
    from peelsum.bench.codec.rows import CodecBenchError, bench_codec
    from peelsum.bench.codec.timing import NotEnoughMemoryError, NotExactError
    from peelsum.bench.devices import NoDeviceError

    keys = ("elements", "density", "support")
    points = [
        {
            **dict(zip(keys, values, strict=True)),
            "cells_per_candidate": settings.cells,
            "device": settings.device,
        }
        for values in product(settings.elements, settings.density, settings.support)
    ]
    columns = (
        *("bits_per_element", "over_lower_bound", "recovered_by_peeling", "rounds", "encode_gbps"),
        "decode_gbps",
    )
    errors = (NoDeviceError, NotEnoughMemoryError, NotExactError, CodecBenchError)
    _measure(bench_codec, points, (*keys, "form", "index"), columns, runs, *errors)


@dataclass(frozen=True)
class _TrainSettings(CommandSettings):
    """The training, and the rates of links."""

    model: Annotated[
        str, Option("ncf, lstm, vgg19, bert, or MODULE:FUNCTION, a function of yours that returns a Task.")
    ] = "ncf"
    workers: Annotated[int, Option("Worker processes, 2 to 32.", 2, 32)] = 4
    gbps: Annotated[tuple[float, ...], _numbers("Rates of links in Gbit/s.", float, 0.001, 400)] = (1, 10)
    steps: Annotated[int, Option("Timed steps.", 1, 100_000)] = 10
    warm_ups: Annotated[int, Option("Untimed steps before them.", 1, 100_000)] = 3
    top_k: Annotated[
        float | None,
        Option("Share of elements that `switch` sends in a step; error feedback keeps the rest.", 1e-9, 1),
    ] = None
    cpu: Annotated[
        bool, Option("Compare processor time beyond computation, without rates of links.", name="--cpu")
    ] = False
    full: Annotated[bool, Option("Train the model's published size.", name="--full")] = False
    data: Annotated[str | None, Option("Path of the model's data.")] = None
    device: Annotated[str, _DEVICE] = "cpu"


@app.command("train")
@with_settings
def train(settings: _TrainSettings, runs: _Runs) -> None:
    """Measure a training iteration through the switch, compared with dense sums and gloo, by rate of links.

    Every worker is a process. The softswitch's ports have the rate; gloo's links are virtual Ethernet,
    limited to the same rate, which needs root. Gradients are compared with int64 sums over gloo.
    """
    if find_spec("torch") is None:
        raise typer.BadParameter(missing_extra_message("torch", "training"))
    from peelsum.bench.devices import NoDeviceError
    from peelsum.bench.train.rows import bench_train
    from peelsum.topology import TopologyError
    from peelsum.training import TrainingDataError, check_model

    options = {name: getattr(settings, name) for name in ("device", "top_k", "steps", "warm_ups")}
    options |= {"small": not settings.full, "path": settings.data}

    def measure(seed: int, model: str) -> list[dict[str, Any]]:
        check_model(model)
        worker_options = {**options, "model": model, "seed": seed}
        return bench_train(worker_options, settings.workers, settings.gbps, cpu=settings.cpu)

    columns = (
        *("form", "density_union", "bytes_per_step", "iteration_ms", "compute_ms", "encode_ms"),
        *("network_ms", "decode_ms", "aggregation_ms", "cpu_ms", "speedup_over_dense"),
        *("speedup_over_gloo", "exact"),
    )
    points = [{"model": name} for name in settings.model.split(",")]
    keys = ("model", "gbps", "path")
    _measure(measure, points, keys, columns, runs, NoDeviceError, TopologyError, TrainingDataError)


def _measure(
    measure: Callable[..., Iterable[Row]],
    points: Sequence[Row],
    keys: Sequence[str],
    columns: Sequence[str],
    runs: _Runs,
    *errors: type[Exception],
) -> None:
    """Measure all points; print a table of medians, or all rows as JSON. Exit with 1 after a wrong sum.

    measure: measure(seed=..., **point) returns a point's rows. keys: the fields that identify a row.
    columns: the other fields that the table shows; JSON has all.
    """
    rows, total = list[dict[str, Any]](), runs.repetitions * len(points)
    with measuring(*errors) as tell:
        for number, (repetition, point) in enumerate(product(range(runs.repetitions), points), 1):
            with reporting_progress(f"point {number} of {total}", tell):
                measured = measure(seed=runs.seed + repetition, **point)
                rows += [{"repetition": repetition, **point, **row} for row in measured]
        if runs.json:
            print_json(rows)
        else:
            groups: dict[tuple[Any, ...], list[Row]] = {}
            for row in rows:
                groups.setdefault(tuple(row[name] for name in keys), []).append(row)
            lines = [[name.replace("_", " ") for name in (*keys, *columns)]]
            for key, group in groups.items():
                values = [*key, *(_summary(name, [row.get(name) for row in group]) for name in columns)]
                lines.append([*map(_cell, values)])
            texts = {name for row in rows for name, value in row.items() if isinstance(value, str)}
            print(*aligned(lines, texts), sep="\n")
    if any(row.get("wrong") or row.get("exact") is False for row in rows):
        raise typer.Exit(1)


def _summary(name: str, values: Sequence[Any]) -> Any:
    """Return what the table shows of a column's values in all repetitions: usually the median of the numbers.

    Of wrong elements it is the most, and sums were exact if all were. Without numbers, it is the first value
    that is not None, or None.
    """
    known = [value for value in values if value is not None]
    if known and (name == "wrong" or isinstance(known[0], bool)):
        return all(known) if isinstance(known[0], bool) else max(known)
    numbers = [value for value in known if isinstance(value, int | float)]
    return median(numbers) if numbers else next(iter(known), None)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
