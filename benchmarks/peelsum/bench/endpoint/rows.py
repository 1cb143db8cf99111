"""The packet rate of one core of a worker, beside that of bare sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peelsum.bench.endpoint import rates
from peelsum.bench.endpoint.rates import Spent
from peelsum.wire import COMPILED_LANES

DEFAULT_LANES = (COMPILED_LANES[0], COMPILED_LANES[-1])


def rows(lanes: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each way, measured for `seconds`. Raises WrongSumError if a sum was wrong."""
    with rates.answering(lanes) as peer:
        spent = {
            "memory": rates.in_memory(lanes, seconds),
            "sockets": rates.over_sockets(lanes, seconds, peer),
            "bare": rates.bare_sockets(lanes, seconds, peer),
        }
    for way, one in spent.items():
        yield {
            "way": way,
            "packets_per_core_s": round(_per_core(one)),
            "packets_per_s": None if way == "memory" else round(one.packets / one.wall_s),
            "share_of_bare": round(_per_core(one) / _per_core(spent["bare"]), 3),
        }


def _per_core(spent: Spent) -> float:
    return spent.packets / spent.cpu_s
