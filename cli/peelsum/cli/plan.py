"""`peelsum plan`: the ways to send a tensor, as tables, with the reasons for the choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from peelsum.cli.options import Json, within
from peelsum.cli.output import aligned, measuring, print_json

if TYPE_CHECKING:
    from peelsum.bench.plan import MethodRow, Row
    from peelsum.bench.which_form import FormTime
    from peelsum.compress import Crossover

_HEADINGS = ("form", "index", "bytes", "exchanges", "words ms", "exch. ms", "codec ms", "total ms")
_CHECK_HEADINGS = ("measured", "error", "codec ms", "error")
_METHOD_HEADINGS = ("method", "bytes", "latency ms", "words ms", "codec ms", "total ms")
#: Headings of columns of words.
_WORDS = ("form", "index", "layout", "method")
_UNITS = {"gbps": "Gbit/s", "latency_s": "s of latency", "ratio": "of all elements", "elements": "elements"}


def plan(
    elements: Annotated[int, typer.Option(help="Elements of the tensor.")],
    density: Annotated[float, typer.Option(help="Share of elements that are non-zero on some worker.")],
    gbps: Annotated[float, typer.Option(help="Rate at which a worker sends words, in Gbit/s.")],
    rtt: Annotated[float, typer.Option(help="Seconds that the shortest exchange takes.")],
    workers: Annotated[int, typer.Option(help="Workers that sum; they share the bits of an int32.")] = 4,
    support: Annotated[
        Literal["uniform", "rows", "columns"],
        typer.Option(help="Non-zeros anywhere, in rows of 64, or in half of 256 columns."),
    ] = "uniform",
    ratio: Annotated[
        float | None,
        typer.Option(help="Share of elements that a worker sends by a sparse method; by default --density."),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Run every way on this machine, and show the predictions' errors.")
    ] = False,
    json: Json = False,
) -> None:
    """Show every way to send a tensor, with predicted bytes and time, the choice, and why.

    First through the switch, by form and index; then by every collective, dense and sparse, with the values
    of rate, latency, ratio and size at which the fastest changes.
    """
    from peelsum.bench import plan as bench
    from peelsum.bench.codec import NotEnoughMemoryError, NotExactError

    within("--elements", elements, 1, 2**39)
    within("--density", density, 0, 0.5 if support == "columns" else 1)
    within("--gbps", gbps, 1e-6, 1e6)
    within("--rtt", rtt, 0, 3600)
    within("--workers", workers, 1, 1024)
    if ratio is not None:
        within("--ratio", ratio, 0, 1)
    request = bench.Request(elements, density, gbps, rtt, workers, support, ratio)
    with measuring(NotEnoughMemoryError, NotExactError):
        found = bench.plan(request, check=check)
        if json:
            print_json(found)
        else:
            headings = (*_HEADINGS, *(_CHECK_HEADINGS if check else ()), "layout")
            print(
                "\n".join([*aligned([headings, *map(_line, found.candidates)], _WORDS), "", *found.why, ""])
            )
            print("\n".join([*map(_form, found.forms), ""]))
            if found.methods:
                print("\n".join(aligned([_METHOD_HEADINGS, *map(_method, found.methods)], _WORDS)))
                print("\n".join(["", *map(_crossover, found.crossovers)]))
            print(found.advice)


def _line(row: Row) -> list[str]:
    times = (row.words_ms, row.exchanges_ms, row.codec_ms, row.total_ms)
    cells = [row.form, row.index, f"{row.bytes:,}", str(row.exchanges), *(f"{time:.3f}" for time in times)]
    if row.measured_bytes is not None:
        cells += [f"{row.measured_bytes:,}", f"{row.bytes_error:+.1%}"]
        cells += [f"{row.measured_codec_ms:.3f}", f"{row.codec_error:+.0%}"]
    return [*cells, row.layout]


def _form(one: FormTime) -> str:
    said = f"{one.form}: {one.predicted_ms:.4g} ms a step, predicted"
    if one.ms is None or one.codec_ms is None:
        return f"{said}; not measured."
    network_ms = one.ms - one.codec_ms
    return f"{said}; {one.codec_ms:.4g} ms of codec, measured, and {network_ms:.4g} ms of network, simulated."


def _method(row: MethodRow) -> list[str]:
    times = (row.latency_ms, row.words_ms, row.codec_ms, row.total_ms)
    return [row.method, f"{row.sent_bytes:,}", *(f"{time:.3f}" for time in times)]


def _crossover(one: Crossover) -> str:
    return f"At {one.at:.3g} {_UNITS[one.axis]}, {one.above} becomes faster than {one.below}."
