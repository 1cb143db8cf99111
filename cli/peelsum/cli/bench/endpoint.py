"""`peelsum bench endpoint`: packet rate of one core of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.bench.output import measuring, show, table_of
from peelsum.cli.options import Json, require_lanes, within

if TYPE_CHECKING:
    from rich.table import Table

    from peelsum.bench.endpoint.rows import Row

#: What each row's `way` measures.
_WAYS = {
    "memory": "endpoint, in memory",
    "sockets": "endpoint and sockets",
    "bare": "bare sockets",
}


def endpoint(
    lanes: Annotated[list[int] | None, typer.Option(help="Lanes of a packet; default: 32 and 256.")] = None,
    seconds: Annotated[float, typer.Option(help="Duration of each row's measurement.")] = 3.0,
    json: Json = False,
) -> None:
    """Measure the packets per second that one core of a worker handles, beside bare sockets."""
    from peelsum.bench.endpoint.rows import DEFAULT_LANES, bench_endpoint
    from peelsum.transport import TransportError

    within("--seconds", seconds, 0.1, 3600)
    for count in lanes or ():
        require_lanes(count)
    with measuring(TransportError, json=json):
        show(bench_endpoint(lanes=lanes or DEFAULT_LANES, seconds=seconds), _table, json=json)


def _table(rows: Sequence[Row]) -> Table:
    headings = ("", "lanes", "packets/s of a core", "x bare", "packets/s")
    caption = "packets sent whose results were taken, by one worker"
    table = table_of(headings, left=("",), caption=caption, padding=(0, 1))
    for row in rows:
        table.add_row(
            _WAYS[row.way],
            str(row.lanes),
            f"{row.packets_per_core_s:,.0f}",
            f"{row.share_of_bare:.2f}",
            "-" if row.packets_per_s is None else f"{row.packets_per_s:,.0f}",
        )
    return table
