"""`peelsum bench allreduce`: time of exact sums, in nccl-tests' columns."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from peelsum.cli.bench.output import aligned, exit_if, measuring, print_json, printed
from peelsum.cli.options import Json, require_lanes, within
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from peelsum.bench.allreduce.rows import Row

_HEADINGS = ("size", "count", "type", "density", "form", "time", "algbw", "busbw", "#wrong", "wire", "time/")
_UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(B)", "dense")
_WIDTHS = (12, 12, 7, 8, 8, 11, 8, 8, 8, 12, 8)


def allreduce(
    begin: Annotated[str, typer.Option("-b", "--begin", help="Smallest size, in bytes of float32.")] = "1M",
    end: Annotated[str, typer.Option("-e", "--end", help="Largest size.")] = "16M",
    factor: Annotated[float, typer.Option("-f", "--factor", help="Factor from one size to the next.")] = 4,
    iterations: Annotated[int, typer.Option("-n", "--iterations", help="Timed sums of each size.")] = 5,
    warmups: Annotated[int, typer.Option("-w", "--warmups", help="Untimed sums before them.")] = 2,
    check: Annotated[
        int, typer.Option("-c", "--check", min=0, max=1, help="Whether to check every sum.")
    ] = 1,
    workers: Annotated[int, typer.Option(help="Processes that sum.")] = 4,
    density: Annotated[
        list[float] | None, typer.Option(help="Shares of non-zeros; default: 0.01 and 0.1.")
    ] = None,
    form: Annotated[
        list[str] | None, typer.Option(help="compact, sketch or dense; default: compact.")
    ] = None,
    lanes: Annotated[int, typer.Option(help="Lanes of the pipeline.")] = 256,
    planes: Annotated[
        int, typer.Option(help="Switches, each with a server, that every worker is connected to.")
    ] = 1,
    trace: Annotated[
        Path | None,
        typer.Option(help="Sum the last step of a trace, with its workers, instead of drawn tensors."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure sums over the softswitch by size and density, beside the same elements sent dense."""
    from peelsum.allreduce import AllreduceError, Form
    from peelsum.bench.allreduce.rows import BenchError, bench_allreduce
    from peelsum.traces import TraceError
    from peelsum.transport import TransportError

    require_lanes(lanes)
    within("--planes", planes, 1, 64)
    chosen: list[Form] = [known for name in form or ["compact"] for known in get_args(Form) if known == name]
    with measuring(BenchError, TopologyError, AllreduceError, TraceError, TransportError, json=json):
        if len(chosen) != len(form or ["compact"]):
            raise BenchError(f"--form: {form} is not among {', '.join(get_args(Form))}")
        measured = bench_allreduce(
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
            planes=planes,
            trace=trace,
        )
        if not json:
            print(_header(None if trace else workers, lanes, planes, iterations, warmups), flush=True)
        with closing(measured):
            rows = list(printed(measured, _line, json=json))
        if json:
            print_json(rows)
    exit_if(any(row.wrong for row in rows))


def _header(workers: int | None, lanes: int, planes: int, iterations: int, warmups: int) -> str:
    who = f"{workers} workers" if workers else "all workers of the trace"
    switches = "the softswitch" if planes == 1 else f"{planes} softswitches"
    return "\n".join(
        [
            f"# {who} over {switches}, {lanes} lanes; {iterations} iterations after "
            f"{warmups} warm-ups; time is the slowest worker's",
            "#" + aligned(_HEADINGS, _WIDTHS)[1:],
            "#" + aligned(_UNITS, _WIDTHS)[1:],
        ]
    )


def _line(row: Row) -> str:
    cells = (
        str(row.size_bytes),
        str(row.elements),
        row.type,
        f"{row.density:g}",
        row.form,
        f"{row.time_us:.1f}",
        f"{row.algbw:.2f}",
        f"{row.busbw:.2f}",
        "N/A" if row.wrong is None else str(row.wrong),
        str(row.wire_bytes),
        f"{row.ratio_to_dense:.3f}",
    )
    return aligned(cells, _WIDTHS)
