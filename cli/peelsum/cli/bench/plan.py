"""`peelsum bench plan`: collectives over links of several rates and latencies, beside the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.bench.output import exit_if, measuring, show, table_of
from peelsum.cli.options import Json, within
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from rich.table import Table

    from peelsum.bench.methods.measured import MeasuredRow

_HEADINGS = (
    *("collective", "workers", "Mbit/s", "delay ms", "words", "hop ms"),
    *("model ms", "took ms", "error"),
)


def plan(
    workers: Annotated[list[int] | None, typer.Option(help="Numbers of workers; default: 2 and 4.")] = None,
    mbit: Annotated[
        list[float] | None, typer.Option(help="Rates of the links in Mbit/s; default: 20 and 100.")
    ] = None,
    delay_ms: Annotated[
        list[float] | None, typer.Option(help="Delays of the links in milliseconds; default: 0, 2 and 10.")
    ] = None,
    words: Annotated[
        list[int] | None, typer.Option(help="32-bit words; default: 1,000, 25,000 and 100,000.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure collectives in network namespaces, and show the errors of the cost model. Needs root."""
    from peelsum.bench.methods.measured import Grid, measure

    grid = Grid()
    grid = Grid(
        tuple(workers or grid.workers),
        tuple(mbit or grid.mbit),
        tuple(delay_ms or grid.delays_ms),
        tuple(words or grid.words),
    )
    for option, values, least, most in (
        ("--workers", grid.workers, 2, 16),
        ("--mbit", grid.mbit, 0.1, 10_000),
        ("--delay-ms", grid.delays_ms, 0, 1000),
        ("--words", grid.words, 1, 1 << 26),
    ):
        for value in values:
            within(option, value, least, most)
    with measuring(TopologyError, json=json):
        rows = list(measure(grid))
        show(rows, _table, json=json)
    exit_if(any(row.wrong for row in rows))


def _table(rows: Sequence[MeasuredRow]) -> Table:
    caption = f"median absolute error: {median(abs(row.error) for row in rows):.1%}"
    table = table_of(_HEADINGS, left=("collective",), caption=caption, padding=0)
    for row in rows:
        table.add_row(
            row.collective,
            str(row.workers),
            f"{row.mbit:g}",
            f"{row.delay_ms:g}",
            f"{row.words:,}",
            f"{row.latency_ms:.2f}",
            f"{row.predicted_ms:,.1f}",
            f"{row.measured_ms:,.1f}",
            f"{row.error:+.0%}",
        )
    return table
