"""`peelsum bench endpoint`: measure the packet rate of one core of a worker, beside that of bare sockets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peelsum.bench.endpoint import rates as rates
from peelsum.bench.endpoint.rates import Spent
from peelsum.wire import COMPILED_LANES

DEFAULT_LANES = (COMPILED_LANES[0], COMPILED_LANES[-1])


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


def bench_endpoint(*, lanes: Sequence[int] = DEFAULT_LANES, seconds: float = 3.0) -> list[Row]:
    """Measure each row for `seconds`; return the rows. Raises WrongSumError if a sum was wrong."""
    return [row for count in lanes for row in _rows(count, seconds)]


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
