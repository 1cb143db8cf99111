"""`peelsum bench fairness` and `peelsum bench port-rate`: how jobs share a port, and its rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.bench.output import exit_if, measuring, show, table_of
from peelsum.cli.options import Json, require_lanes, within
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from rich.table import Table

    from peelsum.bench.fairness.port_rate import Row as PortRow
    from peelsum.bench.fairness.rows import Row

_HEADINGS = ("ports", "jobs", "fairness", "used", "least", "most", "queue", "deepest", "drops", "wrong")
_PORT_RATES = ("100@256", "1000@256", "1000@32")


def fairness(
    jobs: Annotated[
        list[int] | None, typer.Option(help="Jobs that compete for a port; default: 2 and 4.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Workers of each job.")] = 2,
    lanes: Annotated[int, typer.Option(help="Lanes of the pipeline.")] = 256,
    mbit: Annotated[float, typer.Option(help="Rate of every port in Mbit/s.")] = 20.0,
    mark_from: Annotated[
        int, typer.Option(help="Packets in a port's queue from which on it sets ECN marks.")
    ] = 64,
    seconds: Annotated[float, typer.Option(help="Duration of each row, in the row's own time.")] = 4.0,
    json: Json = False,
) -> None:
    """Measure how jobs share a port, and the port's queue: in virtual time, and over UDP."""
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
    with measuring(TopologyError, PipelineError, SoftswitchError, TransportError, json=json):
        rows = bench_fairness(
            jobs=jobs or (2, 4),
            workers=workers,
            lanes=lanes,
            mbit=mbit,
            mark_from=mark_from,
            seconds=seconds,
        )
        show(rows, _table, json=json)
    exit_if(any(row.wrong for row in rows))


def port_rate(
    rates: Annotated[
        list[str] | None,
        typer.Argument(metavar="MBIT@LANES", help=f"Rates and lanes; default: {' '.join(_PORT_RATES)}."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure how well a switch port keeps to its rate under 1.3 times the load."""
    from peelsum.bench.fairness.port_rate import measure_port_rate

    shapes = [_mbit_and_lanes(text) for text in rates or _PORT_RATES]
    with measuring(TopologyError, json=json):
        show([measure_port_rate(mbit, lanes) for mbit, lanes in shapes], _port_table, json=json)


def _mbit_and_lanes(text: str) -> tuple[float, int]:
    mbit, _, lanes = text.partition("@")
    try:
        rate, count = float(mbit), int(lanes)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: give a rate and lanes as MBIT@LANES, e.g. 100@256") from None
    within("MBIT", rate, 1, 10_000)
    require_lanes(count)
    return rate, count


def _table(rows: Sequence[Row]) -> Table:
    first = rows[0]
    caption = (
        f"{first.workers} workers per job, {first.lanes} lanes, ports of {first.mbit:g} Mbit/s that set ECN "
        f"marks from {first.mark_from} packets on"
    )
    table = table_of(_HEADINGS, left=("ports",), caption=caption)
    for row in rows:
        table.add_row(
            row.ports,
            str(row.jobs),
            f"{row.fairness:.3f}",
            f"{row.used:.1%}",
            f"{min(row.chunks_per_s):,.0f}",
            f"{max(row.chunks_per_s):,.0f}",
            f"{row.queue_mean:.0f}",
            str(row.queue_deepest),
            str(row.queue_dropped),
            str(row.wrong),
        )
    return table


def _port_table(rows: Sequence[PortRow]) -> Table:
    table = table_of(
        ("Mbit/s", "lanes", "got", "least", "most", "drops"),
        caption="least and most: 5th and 95th percentile of windows of 10 ms",
    )
    for row in rows:
        table.add_row(
            f"{row.mbit:,g}",
            str(row.lanes),
            f"{row.got_mbit:,.1f}",
            f"{row.least_10ms_mbit:,.0f}",
            f"{row.most_10ms_mbit:,.0f}",
            f"{row.dropped:,}",
        )
    return table
