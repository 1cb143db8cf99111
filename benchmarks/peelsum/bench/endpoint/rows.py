"""`peelsum bench endpoint`: measure the packet rate of one core of a worker, beside that of bare sockets."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from peelsum.bench.endpoint import rates as rates
from peelsum.bench.endpoint.rates import Spent
from peelsum.wire import COMPILED_LANES

DEFAULT_LANES = (COMPILED_LANES[0], COMPILED_LANES[-1])
#: What each row's `way` measures.
_WAYS = {
    "memory": "endpoint, in memory",
    "sockets": "endpoint and sockets",
    "bare": "bare sockets",
}


@dataclass(frozen=True)
class Row:
    """The rate at which one worker sends packets and takes their results."""

    way: str
    """What is measured.

    "memory": the endpoint alone; "sockets": the endpoint with socket and clock, as in training; "bare":
    sockets that send and receive as many bytes without reading them.
    """
    lanes: int
    packets_per_core_s: float
    """Packets per second of this process's CPU time."""
    packets_per_s: float | None
    """Packets per second of wall-clock time; None for "memory", where it would include making the results."""
    share_of_bare: float
    """`packets_per_core_s` over that of bare sockets."""


def bench_endpoint(
    *, json: bool = False, lanes: Sequence[int] = DEFAULT_LANES, seconds: float = 3.0
) -> list[Row]:
    """Measure each row for `seconds`, and print a table or, with `json`, a list of objects.

    Raises WrongSumError if a sum was wrong.
    """
    rows = [row for count in lanes for row in _rows(count, seconds)]
    if json:
        sys.stdout.write(json_format.dumps([asdict(row) for row in rows], indent=2) + "\n")
    else:
        Console().print(_table(rows))
    return rows


def _rows(lanes: int, seconds: float) -> Iterator[Row]:
    with rates.answering(lanes) as peer:
        spent = {
            "memory": rates.in_memory(lanes, seconds),
            "sockets": rates.over_sockets(lanes, seconds, peer),
            "bare": rates.bare_sockets(lanes, seconds, peer),
        }
    for way, one in spent.items():
        yield Row(
            way=way,
            lanes=lanes,
            packets_per_core_s=round(_per_core(one)),
            packets_per_s=None if way == "memory" else round(one.packets / one.wall_s),
            share_of_bare=round(_per_core(one) / _per_core(spent["bare"]), 3),
        )


def _per_core(spent: Spent) -> float:
    return spent.packets / spent.cpu_s


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption="packets sent whose results were taken, by one worker")
    for heading in ("", "lanes", "packets/s of a core", "x bare", "packets/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        table.add_row(
            _WAYS[row.way],
            str(row.lanes),
            f"{row.packets_per_core_s:,.0f}",
            f"{row.share_of_bare:.2f}",
            "-" if row.packets_per_s is None else f"{row.packets_per_s:,.0f}",
        )
    return table
