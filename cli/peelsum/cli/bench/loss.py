"""`peelsum bench loss`: rate of sums when ports lose packets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.bench.output import exit_if, measuring, show, table_of
from peelsum.cli.options import Json, require_lanes, within
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from rich.table import Table

    from peelsum.bench.loss.rows import Row

_HEADINGS = ("loss", "sums", "wrong", "ms per sum", "Gbit/s", "rate lost", "in switch", "resends", "cuts")


def loss(
    loss: Annotated[
        list[float] | None,
        typer.Option(help="Shares of packets that each port loses; default: 0.001, 0.01 and 0.05."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that sum.")] = 4,
    lanes: Annotated[int, typer.Option(help="Lanes of the pipeline.")] = 256,
    elements: Annotated[int, typer.Option(help="32-bit words of a sum.")] = 1 << 20,
    seconds: Annotated[float, typer.Option(help="How long sums are repeated at each share.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the losses, and of the summed words.")] = 0,
    json: Json = False,
) -> None:
    """Measure the rate of sums over a softswitch whose ports lose packets, beside the rate without loss."""
    from peelsum.bench.loss.rows import bench_loss
    from peelsum.wire import MAX_WORKERS

    require_lanes(lanes)
    within("--workers", workers, 2, MAX_WORKERS)
    within("--elements", elements, 1, 1 << 28)
    within("--seconds", seconds, 0, 3600)
    within("--seed", seed, 0, 2**63 - 1)
    for share in loss or ():
        within("--loss", share, 0, 0.5)
    with measuring(TopologyError, json=json):
        rows = bench_loss(
            losses=loss or (0.001, 0.01, 0.05),
            workers=workers,
            lanes=lanes,
            elements=elements,
            seconds=seconds,
            seed=seed,
        )
        show(rows, _table, json=json)
    exit_if(any(row.wrong for row in rows))


def _table(rows: Sequence[Row]) -> Table:
    first = rows[0]
    caption = (
        f"{first.workers} workers, {first.elements:,} words per sum, {first.lanes} lanes, seed {first.seed}"
    )
    table = table_of(_HEADINGS, caption=caption)
    for row in rows:
        table.add_row(
            f"{row.loss:.1%}",
            str(row.sums),
            str(row.wrong),
            f"{row.step_ms:,.1f}",
            f"{row.rate_gbit_s:.2f}",
            f"{row.share_lost:.1%}",
            f"{row.summed_in_switch:.1%}",
            f"{row.resends:,}",
            str(row.window_cuts),
        )
    return table
